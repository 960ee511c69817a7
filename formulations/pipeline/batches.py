"""Pipeline instances by batch size, for searches of the batch with the largest throughput (Galvatron's Algorithm 1).

Costs are estimated; batch sizes and search spaces share profiles and tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trainplan.formulations.pipeline.costs import PipelineCosts
from trainplan.formulations.pipeline.instance import Instance
from trainplan.formulations.schedule.orders import PassOrder
from trainplan.formulations.strategy_spaces import space, stage_sizes
from trainplan.profiling.base.quantities import divisors
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.estimate import estimate_shapes
from trainplan.profiling.models.model import Model
from trainplan.profiling.profile_sources import shapes_needed
from trainplan.profiling.profiles import Profile

SAMPLES_PER_MICRO_BATCH = 4
MOST_MICRO_BATCHES = 8
LARGEST_BATCH = 4096
STEP = 8


def micro_batch_rule(batch: int, stages: int) -> int:
    """The papers' number of micro-batches (Init_Microbatch_Num): 1 for one stage, else one for every 4 samples of the batch, at
    most 8.

    The authors' code has this rule in `optimal_chunk_func` of its CLIP search, for the samples of one device; the first
    version's BERT search has batch / 4 where a stage is all tensor-parallel. Counting the whole batch is the reading that gives
    the 8 of Figure 4 for both its batches, 32 and 64. Without a limit, memory would not grow with the batch under 1F1B, and
    Algorithm 1 would not end.
    """
    return 1 if stages == 1 else min(MOST_MICRO_BATCHES, -(-batch // SAMPLES_PER_MICRO_BATCH))


def ruled_micro_batches(batch: int, stages: int, possible: Sequence[int]) -> int:
    """The possible number of micro-batches that is nearest to the one of `micro_batch_rule`; the smaller of two."""
    wanted = micro_batch_rule(batch, stages)
    return min(possible, key=lambda m: (abs(m - wanted), m))


class BatchInstances:
    """The pipeline instances of a model on a cluster by batch size."""

    def __init__(
        self,
        model: Model,
        cluster: Cluster,
        *,
        most_micro_batches: int | None = MOST_MICRO_BATCHES,
        step: int | None = None,
    ) -> None:
        """Prepare instances without computing any costs yet.

        Args:
            most_micro_batches: the most micro-batches of a batch (without a limit 1F1B-Flush never runs out of memory, and
                there is no largest batch).
            step: samples between two batch sizes (default: 8).
        """
        self.model, self.cluster = model, cluster
        self.most, self.step = most_micro_batches, step or STEP
        self._costs: dict[tuple[int, str], PipelineCosts] = {}
        self._profiles: dict[int, Profile] = {}

    def sizes(self, largest: int = LARGEST_BATCH) -> Iterator[int]:
        """Batch sizes in samples, rising, up to the largest."""
        return iter(range(self.step, largest + 1, self.step))

    def micro_batches(self, batch: int) -> list[int]:
        """The numbers of micro-batches that divide a batch, within the limit."""
        return [m for m in divisors(batch) if self.most is None or m <= self.most]

    def instance(self, batch: int, memory_bytes: int, space_name: str, schedule: PassOrder, *, ruled: bool = False) -> Instance:
        """The instance of a batch size in a search space.

        Args:
            batch: samples of a step.
            memory_bytes: memory of one device.
            space_name: the search space.
            ruled: use only the numbers of micro-batches that the paper's methods use.

        Raises InputError where no strategy of the space divides the batch.
        """
        chunk = (-(-batch // self.step) - 1).bit_length()  # batch sizes up to step 2^chunk share one profile
        key = (chunk, space_name)
        if key not in self._costs:
            self._costs[key] = PipelineCosts(self._profile(chunk), space=space(space_name))
        costs = self._costs[key]

        def counts(stages: int) -> list[int]:
            """The numbers of micro-batches to choose from, for a number of stages."""
            group = self.cluster.devices // stages
            possible = [m for m in self.micro_batches(batch) if costs.strategies(group, batch // m)]
            return [ruled_micro_batches(batch, stages, possible)] if ruled and possible else possible

        return costs.instance(batch, memory_bytes, schedule=schedule, micro_batches=counts)

    def _profile(self, chunk: int) -> Profile:
        """The estimated profile for all batch sizes above step 2^(chunk - 1) and up to step 2^chunk."""
        if chunk not in self._profiles:
            first, last = (self.step * (1 << chunk >> 1) + 1 if chunk else 1), self.step << chunk
            batches = [batch for batch in range(self.step, last + 1, self.step) if batch >= first]
            sizes = sorted({batch // m for batch in batches for m in self.micro_batches(batch)})
            devices = self.cluster.devices
            shapes = shapes_needed(self.model.tp_degrees(devices), stage_sizes(devices), sizes)
            self._profiles[chunk] = estimate_shapes(self.model, self.cluster, shapes, devices)
        return self._profiles[chunk]
