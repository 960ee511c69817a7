"""Where a rank stands in a plan: its stage, its peers, its samples and its shards."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trainplan.formulations.plan import Batch
from trainplan.formulations.strategies import Paradigm, Strategy, rows_of
from trainplan.profiling.models import Model


@dataclass
class Placement:
    """A rank of a plan. stages: the units of each. place: the rank's number in its stage, from 0; strategies speak of these.

    micro_batches: those that the rank works on in one step.
    """

    model: Model
    strategies: tuple[Strategy, ...]
    stages: tuple[range, ...]
    batch: Batch
    rank: int

    def __post_init__(self) -> None:
        self.size = self.strategies[0].group
        self.world = self.size * len(self.stages)
        self.stage, self.place = divmod(self.rank, self.size)
        self.units = self.stages[self.stage]
        self.last = len(self.model.units) - 1
        shares = self.batch.shares
        self.micro_batches = self.batch.micro_batches if shares is None else shares[self._replica(self.place)]

    def _replica(self, place: int) -> int:
        """Of uneven shares: which data-parallel replica a place belongs to. All units are laid out alike then."""
        return self.strategies[0].index(place, "dp")

    def shard_elements(self, unit: int) -> int:
        """Elements of a rank's flat shard: its tensor-parallel part, cut over the sharded-data group, the end padded."""
        return -(-self.flat_elements(unit) // self.strategies[unit].degree("sdp"))

    def flat_elements(self, unit: int) -> int:
        strategy = self.strategies[unit]
        return self.model.units[unit].sublayer.parameter_count(strategy.degree("tp"), strategy.index(self.place, "tp"))

    def rows(self, unit: int, micro_batch: int) -> tuple[int, ...]:
        """Sample ids that this rank works on in a unit: the compiler carries them, so that nothing is permuted silently."""
        return self.rows_at(self.place, unit, micro_batch)

    def rows_at(self, place: int, unit: int, micro_batch: int) -> tuple[int, ...]:
        if self.batch.shares is not None:
            count = self.batch.global_samples // sum(self.batch.shares)
            first = (sum(self.batch.shares[: self._replica(place)]) + micro_batch) * count
            return tuple(range(first, first + count))
        count = self.batch.global_samples // self.batch.micro_batches
        return tuple(rows_of(self.strategies[unit], place, micro_batch * count, count))

    def peers(self, unit: int, paradigm: Paradigm) -> tuple[int, ...]:
        return self.ranks(self.strategies[unit].peers(self.place, paradigm))

    def ranks(self, places: Iterable[int]) -> tuple[int, ...]:
        """Ranks of places in this stage."""
        return tuple(self.rank - self.place + place for place in places)

    def boundary_bytes(self, unit: int, rows: int) -> int:
        return self.model.units[unit].sublayer.boundary_bytes(rows)

    def lane(self, neighbour: int) -> tuple[int, ...]:
        return tuple(sorted((self.rank, self.rank + neighbour * self.size)))
