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
    """The number of micro-batches that Galvatron's papers use for a batch (Init_Microbatch_Num): 1 for one stage, else one for
    every 4 samples of the batch, at most 8. batch: samples per step. stages: the number of stages.

    The authors' code has this rule in `optimal_chunk_func` of its CLIP search, but for the samples of one device; the first
    version's BERT search has batch / 4 for stages that are tensor-parallel alone. Counting the whole batch is the reading
    that gives the 8 of Figure 4 for both of its batches, 32 and 64. Without an upper limit, memory would not grow with the
    batch under 1F1B, and Algorithm 1 would not end.
    """
    return 1 if stages == 1 else min(MOST_MICRO_BATCHES, -(-batch // SAMPLES_PER_MICRO_BATCH))


def ruled_micro_batches(batch: int, stages: int, possible: Sequence[int]) -> int:
    """The number among `possible` numbers of micro-batches that is nearest to the one of `micro_batch_rule`; of two equally
    near ones the smaller. batch: samples per step. stages: the number of stages."""
    wanted = micro_batch_rule(batch, stages)
    return min(possible, key=lambda m: (abs(m - wanted), m))


class BatchInstances:
    """The pipeline instances of a model on a cluster by batch size (samples per step), for finding the batch with the largest
    throughput. Profiles and tables of costs are computed on first use and shared by batch sizes and search spaces.
    """

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
            most_micro_batches: the most micro-batches of a batch; None for no limit (then 1F1B-Flush never runs out of memory,
                and there is no largest batch).
            step: samples between two batch sizes; None for 8.
        """
        self.model, self.cluster = model, cluster
        self.most, self.step = most_micro_batches, step or STEP
        self._costs: dict[tuple[int, str], PipelineCosts] = {}
        self._profiles: dict[int, Profile] = {}

    def sizes(self, largest: int = LARGEST_BATCH) -> Iterator[int]:
        """Batch sizes in samples, ascending: multiples of the step, up to `largest`."""
        return iter(range(self.step, largest + 1, self.step))

    def micro_batches(self, batch: int) -> list[int]:
        """The numbers of micro-batches that divide a batch of `batch` samples, up to the limit, ascending."""
        return [m for m in divisors(batch) if self.most is None or m <= self.most]

    def instance(self, batch: int, memory_bytes: int, space_name: str, schedule: PassOrder, *, ruled: bool = False) -> Instance:
        """The instance of a batch size in a search space.

        Args:
            batch: samples per step.
            memory_bytes: the memory of one device.
            space_name: the name of the search space.
            schedule: the order of passes.
            ruled: use only the numbers of micro-batches that the papers' methods use.

        Raises InputError if no strategy of the space divides the batch.
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
        """The estimated profile that several batch sizes share: those above step 2^(chunk - 1) and up to step 2^chunk, where
        step is the number of samples between two batch sizes."""
        if chunk not in self._profiles:
            first, last = (self.step * (1 << chunk >> 1) + 1 if chunk else 1), self.step << chunk
            batches = [batch for batch in range(self.step, last + 1, self.step) if batch >= first]
            sizes = sorted({batch // m for batch in batches for m in self.micro_batches(batch)})
            devices = self.cluster.devices
            shapes = shapes_needed(self.model.tp_degrees(devices), stage_sizes(devices), sizes)
            self._profiles[chunk] = estimate_shapes(self.model, self.cluster, shapes, devices)
        return self._profiles[chunk]
