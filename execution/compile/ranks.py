"""Where a rank stands in a plan: its stage, its peers, its samples and its shards."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trainplan.execution.program import Part
from trainplan.formulations.plan import Batch
from trainplan.formulations.step.schedules import is_sliced
from trainplan.formulations.strategies import Paradigm, Strategy, rows_of
from trainplan.profiling.models.model import Model


@dataclass
class Placement:
    """A rank of a plan. stages: the units of each. place: the rank's number in its stage, from 0; strategies speak of these.

    micro_batches: those that the rank works on in one step. sliced: how many of them begin in halves. A half is laid out over
    the data-parallel ranks as a small micro-batch of its own, so the samples of a rank are then not consecutive.
    """

    model: Model
    strategies: tuple[Strategy, ...]
    stages: tuple[range, ...]
    batch: Batch
    rank: int
    sliced: int

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

    def rows(self, unit: int, part: Part) -> tuple[int, ...]:
        """Sample ids that this rank works on in a unit: the compiler carries them, so that nothing is permuted silently."""
        return self.rows_at(self.place, unit, part)

    def rows_at(self, place: int, unit: int, part: Part) -> tuple[int, ...]:
        if part.half is None and part.micro_batch < self.sliced:
            first, second = part.halves  # its order of samples is theirs, also on stages that run it whole
            return self.rows_at(place, unit, first) + self.rows_at(place, unit, second)
        shares = self.batch.shares
        count = self.batch.global_samples // (self.batch.micro_batches if shares is None else sum(shares))
        before = 0 if shares is None else sum(shares[: self._replica(place)])
        begin = (before + part.micro_batch) * count
        if part.half is not None:
            count //= 2
            begin += part.half * count
        samples = range(begin, begin + count) if shares is not None else rows_of(self.strategies[unit], place, begin, count)
        return tuple(samples)

    def runs_in_halves(self, stage: int, micro_batch: int) -> bool:
        """Whether a stage runs the forward pass of a micro-batch in halves."""
        return is_sliced(stage, micro_batch, len(self.stages), self.sliced)

    def peers(self, unit: int, paradigm: Paradigm) -> tuple[int, ...]:
        return self.ranks(self.strategies[unit].peers(self.place, paradigm))

    def ranks(self, places: Iterable[int]) -> tuple[int, ...]:
        """Ranks of places in this stage."""
        return tuple(self.rank - self.place + place for place in places)

    def boundary_bytes(self, unit: int, rows: int) -> int:
        return self.model.units[unit].sublayer.boundary_bytes(rows)

    def lane(self, neighbour: int) -> tuple[int, ...]:
        return tuple(sorted((self.rank, self.rank + neighbour * self.size)))
