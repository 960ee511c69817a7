"""pipeline-partition: cut a chain of n sub-layers into p pipeline stages (AutoPipe, Section III-B).

Stage x = 0 .. p-1 holds consecutive sub-layers, at least one, and takes f_x and b_x, the sums over its sub-layers, for the
forward and the backward pass of one micro-batch; between two stages a message takes the transfer time of their cut, in either
direction. Choose the cuts that

    minimise    the iteration of m micro-batches under 1F1B, simulated pass by pass          see `schedule.autopipe_recurrences`
    subject to  the memory of every stage, where it is given                                 see `schedule.stage_memory`

The objective has no closed formula. Cuts lie between sub-layers: embedding, attention and feed-forward blocks, head. For
planners that cut between layers only, `layers` states which sub-layers belong together.

After its last backward pass a stage may add d_x, the sum of `sync_ns` over its sub-layers (reduction of gradients, optimizer);
the whole step is max_x (end of stage x + d_x). A solution may also state how many micro-batches begin in two halves (`sliced`,
see `schedule.orders`); its iteration is then the sliced one. Methods choose cuts for whole micro-batches only, and their bounds
are about these; `solvers.partition.depths` plans slicing and the whole step.

`evaluate` and `violations` know no solver; all numbers are integers.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator
from trainplan.formulations.numbers import Integers, OneOrMany, TimeNs, check_length
from trainplan.formulations.schedule.autopipe_recurrences import iteration_ns
from trainplan.formulations.schedule.chains import Chain, ChainFile, Cuts
from trainplan.formulations.schedule.critical_path import Critical, critical_path
from trainplan.formulations.schedule.orders import most_sliced, one_f_one_b
from trainplan.formulations.schedule.simulate import Timeline, Work, simulate
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import Source, name_of_source, parse
from trainplan.profiling.base.quantities import span

NAME = "pipeline-partition"
LARGEST_STEP = 100_000  # stages x micro-batches: every pass is simulated


class InstanceRecord(ChainFile):
    """The file format of a pipeline-partition instance, version 1."""

    problem: Literal["pipeline-partition"]
    micro_batches: Annotated[int, Field(ge=1, le=10**5)]
    forward_ns: Annotated[list[TimeNs], Field(description="forward pass of each sub-layer, one micro-batch")]
    backward_ns: Annotated[list[TimeNs], Field(description="backward pass of each, recomputation included")]
    transfer_ns: Annotated[OneOrMany[TimeNs], Field(description="Comm: of a message between two stages, or one for each cut")]
    names: Annotated[list[str] | None, Field(description="of the sub-layers")] = None
    layers: Annotated[
        list[Annotated[int, Field(ge=0, le=2**53)]] | None,
        Field(description="layer of each sub-layer, not falling; for planners that cut between layers only"),
    ] = None
    sync_ns: Annotated[
        list[TimeNs] | None,
        Field(description="what each sub-layer adds to the end of its stage's step: gradients, optimizer; none by default"),
    ] = None

    @model_validator(mode="after")
    def _shapes(self) -> InstanceRecord:
        """Check the file after its fields are read. Returns the record; raises InputError if lists have wrong lengths,
        layers' numbers fall, or the step is too large to simulate."""
        count = len(self.forward_ns)
        self.check_stages("forward_ns", count, "sub-layer")
        meaning = "one for each sub-layer"
        check_length("backward_ns", self.backward_ns, count, meaning)
        if isinstance(self.transfer_ns, list):
            check_length("transfer_ns", self.transfer_ns, count - 1, "one for each cut between two sub-layers, or one number")
        for name in ("names", "layers", "sync_ns"):
            if (entries := getattr(self, name)) is not None:
                check_length(name, entries, count, meaning)
        for index, (before, layer) in enumerate(pairwise(self.layers or []), 1):
            if layer < before:
                raise InputError("", f"layers[{index}]", f"is {layer}, after {before}", f"give at least {before}")
        slowest = max(self.transfer_ns, default=0) if isinstance(self.transfer_ns, list) else self.transfer_ns
        whole = sum(self.forward_ns) + sum(self.backward_ns) + 2 * self.stages * slowest
        self.check_totals(count, "sub-layer", self.micro_batches * whole + sum(self.sync_ns or []))
        if self.stages * self.micro_batches > LARGEST_STEP:
            problem = f"is {self.micro_batches}, with {self.stages} stages"
            fix = f"give at most {LARGEST_STEP // self.stages}: every pass is simulated"
            raise InputError("", "micro_batches", problem, fix)
        return self


@dataclass(frozen=True, eq=False)
class Instance(Chain):
    """An instance of pipeline-partition in arrays, for a chain of n sub-layers. A partition is given by its cuts: the first
    sub-layer of every stage but the first.

    Attributes:
        forward_ns, backward_ns: (n,), passes of one micro-batch.
        transfer_ns: (n-1,), the message between two stages that are cut after each sub-layer but the last.
        layers: (n,), the number of the layer of each sub-layer; its own index where a file has no layers.
        sync_ns: (n,), the time that each sub-layer adds to the end of its stage's step; what the first and the last stage share
            belongs to the first and the last sub-layer.
        names: the name of each sub-layer, or None.
    """

    forward_ns: Integers
    backward_ns: Integers
    transfer_ns: Integers
    layers: Integers
    sync_ns: Integers
    names: tuple[str, ...] | None = None

    problem = NAME
    size_names = ("sublayers", "stages", "micro_batches")
    undigested = ("name", "names", "provenance")

    @property
    def sublayers(self) -> int:
        """The number of sub-layers, n."""
        return len(self.forward_ns)

    @property
    def length(self) -> int:
        """The number of sub-layers, n, under the name that all chains of layers have for it."""
        return self.sublayers

    @property
    def most_sliced(self) -> int:
        """The largest number of micro-batches that may begin in two halves: 0 if a micro-batch has an odd number of
        samples."""
        return 0 if self.provenance.get("mbs", 0) % 2 else most_sliced(self.stages, self.micro_batches)

    def name_of(self, sublayer: int) -> str:
        """The name of a sub-layer, or `sub-layer 3` where the instance has no names. sublayer: the sub-layer's index."""
        return self.names[sublayer] if self.names else f"sub-layer {sublayer}"

    def work(self, cuts: tuple[int, ...]) -> Work:
        """The times of the passes of all stages of a partition, and of the transfers between them. cuts: the first sub-layer of
        every stage but the first."""
        starts = [0, *cuts]
        forward, backward = (np.add.reduceat(times, starts).tolist() for times in (self.forward_ns, self.backward_ns))
        return Work(tuple(forward), tuple(backward), tuple(int(self.transfer_ns[cut - 1]) for cut in cuts))

    def syncs_ns(self, cuts: tuple[int, ...]) -> tuple[int, ...]:
        """For every stage of a partition, the time in ns that it adds to the end of the step. cuts: the first sub-layer of
        every stage but the first."""
        return tuple(np.add.reduceat(self.sync_ns, [0, *cuts]).tolist())

    @property
    def layer_starts(self) -> Integers:
        """The index of the first sub-layer of every layer."""
        return np.unique(self.layers, return_index=True)[1]

    def between_layers(self) -> tuple[Instance, Integers]:
        """A pair: a copy of the instance with whole layers in place of sub-layers, for planners that cut between layers only;
        and for each layer, the index of its first sub-layer.
        """
        starts = self.layer_starts
        ends = [*(starts[1:] - 1), self.sublayers - 1]
        names = [span(self.name_of(first), self.name_of(last)) for first, last in zip(starts, ends, strict=True)]
        memory = None if self.memory is None else self.memory.grouped(starts)
        merged = replace(
            self,
            forward_ns=np.add.reduceat(self.forward_ns, starts),
            backward_ns=np.add.reduceat(self.backward_ns, starts),
            transfer_ns=self.transfer_ns[starts[1:] - 1],
            layers=self.layers[starts],
            sync_ns=np.add.reduceat(self.sync_ns, starts),
            names=tuple(names),
            memory=memory,
        )
        return merged, starts

    def to_dict(self) -> dict[str, Any]:
        """The instance in its JSON file format."""
        moves = self.transfer_ns.tolist()
        fields: dict[str, Any] = {
            **self.header,
            "forward_ns": self.forward_ns.tolist(),
            "backward_ns": self.backward_ns.tolist(),
            "transfer_ns": moves[0] if len(set(moves)) == 1 else moves,
            "stages": self.stages,
            "micro_batches": self.micro_batches,
            "names": None if self.names is None else list(self.names),
            "layers": self.layers.tolist(),
        }
        if self.sync_ns.any():
            fields["sync_ns"] = self.sync_ns.tolist()
        if self.memory is not None:
            fields["memory"] = self.memory.to_dict()
        return fields


@dataclass(frozen=True)
class Solution(Cuts):
    """A solution. cuts: the index of the first sub-layer of every stage but the first; sliced: the number of first
    micro-batches that begin in two halves."""

    sliced: Annotated[int, Field(ge=0)] = 0

    optional = ("sliced",)


@dataclass(frozen=True)
class PartitionStage:
    """The cost of one stage of a solution. first, last: the indices of its first and its last sub-layer. forward_ns,
    backward_ns: its passes of one micro-batch. transfer_ns: a message to the next stage, 0 for the last one. peak_bytes: the
    peak memory of a device, None if memory is not given."""

    first: int
    last: int
    forward_ns: int
    backward_ns: int
    transfer_ns: int
    peak_bytes: int | None


@dataclass(frozen=True)
class Evaluation:
    """The time and the memory of a solution.

    work: the times of passes and transfers. stages: the costs of each stage. sliced: the number of first micro-batches that
    run in two halves. syncs_ns: for every stage, the time that it adds after its last backward pass (summing gradients,
    optimizer).
    """

    micro_batches: int
    work: Work
    stages: tuple[PartitionStage, ...]
    sliced: int
    syncs_ns: tuple[int, ...]

    @cached_property
    def time_ns(self) -> int:
        """The simulated iteration in ns: by AutoPipe's recurrences or, with sliced micro-batches, by simulating every pass."""
        return self.timeline.time_ns if self.sliced else iteration_ns(self.work, self.micro_batches)

    @property
    def objective(self) -> int:
        """The number to be minimised: the simulated iteration in ns."""
        return self.time_ns

    @cached_property
    def timeline(self) -> Timeline:
        """The timeline of all passes of the 1F1B iteration, by simulating every pass; without sliced micro-batches its end is
        asserted to equal `time_ns`, which AutoPipe's recurrences give.
        """
        timeline = simulate(self.work, one_f_one_b(self.work.stages, self.micro_batches, self.sliced))
        assert self.sliced or timeline.time_ns == self.time_ns
        return timeline

    @property
    def step_ns(self) -> int:
        """The whole step in ns: the iteration, and the time that stages add after their last backward pass."""
        return self.timeline.step_ns(self.syncs_ns)

    @cached_property
    def critical(self) -> Critical:
        """The critical path of the timeline (of several longest paths, the one nearest to the last stage), and its master
        stage, on which most of the path's 1F1B passes lie."""
        return critical_path(self.timeline)


def load(source: Source, where: str = "instance") -> Instance:
    """Read an instance from a file in its JSON format, or from a dict. where: what error messages call a dict. Raises
    InputError which names file, field, value and fix."""
    record = parse(source, InstanceRecord, name_of_source(source, where))
    count = len(record.forward_ns)
    moves = record.transfer_ns if isinstance(record.transfer_ns, list) else [record.transfer_ns] * (count - 1)
    return Instance(
        forward_ns=np.array(record.forward_ns, np.int64),
        backward_ns=np.array(record.backward_ns, np.int64),
        transfer_ns=np.array(moves, np.int64),
        layers=np.array(range(count) if record.layers is None else record.layers, np.int64),
        sync_ns=np.array([0] * count if record.sync_ns is None else record.sync_ns, np.int64),
        names=None if record.names is None else tuple(record.names),
        **record.common,
    )


def load_solution(source: Source) -> Solution:
    """Read a solution from a file in its JSON format, or from a dict. Raises InputError if it cannot be read or is no
    solution.
    """
    return parse(source, Solution, name_of_source(source, "solution"))


def solution_dict(solution: Solution) -> dict[str, Any]:
    """A solution in its JSON file format. solution: the index of the first sub-layer of every stage but the
    first, and the number of micro-batches that run in halves.
    """
    return solution.to_dict()


def evaluate(instance: Instance, solution: Solution) -> Evaluation:
    """The time and the memory of a solution. instance: the times of a chain of sub-layers, the numbers of stages and
    micro-batches, and the memory limits. solution: the index of the first sub-layer of every stage but the first, and the
    number of micro-batches that run in halves. Raises ValueError if the solution does not belong to the instance; one
    that needs too much memory is evaluated like any other.
    """
    if malformed := _malformed(instance, solution):
        raise ValueError(malformed[0])
    work, peaks = instance.work(solution.cuts), instance.peaks_bytes(solution.cuts)
    moves = (*work.transfer_ns, 0)
    stages = tuple(
        PartitionStage(first, last, work.forward_ns[x], work.backward_ns[x], moves[x], peaks[x])
        for x, (first, last) in enumerate(solution.spans(instance.sublayers))
    )
    return Evaluation(instance.micro_batches, work, stages, solution.sliced, instance.syncs_ns(solution.cuts))


def describe(instance: Instance, solution: Solution) -> dict[str, Any]:
    """The costs of a solution as a JSON-ready dict, as result files and screens show them. Keys: `time_ns` (the passes of all
    micro-batches under 1F1B), `step_ns` (with what follows the last backward pass, such as the synchronisation of gradients),
    `pipeline` (number of stages), `micro_batches`, `sliced` (number of micro-batches that run in halves), `startup_ns` (until
    the last stage begins), `bubble` (the fraction of the time in which devices are idle), `master_stage` (index of the stage on
    which most 1F1B passes of the critical path are), `stages` (for each stage a dict with the attributes of `PartitionStage`)
    and, if memory is limited, `peak_bytes`, `peak_stage`, `peak_layer` and `peak_layer_name` of the stage closest to its memory
    limit. instance: the times of a chain of sub-layers, the numbers of stages and micro-batches, and the memory limits.
    solution: the index of the first sub-layer of every stage but the first, and the number of micro-batches that run in halves.
    """
    result = evaluate(instance, solution)
    return {
        "time_ns": result.time_ns,
        "step_ns": result.step_ns,
        "pipeline": instance.stages,
        "micro_batches": instance.micro_batches,
        "sliced": solution.sliced,
        "startup_ns": result.timeline.startup_ns,
        "bubble": result.timeline.bubble,
        "master_stage": result.critical.master,
        "stages": [asdict(stage) for stage in result.stages],
        **instance.fullest_stage_costs(solution.cuts),
    }


def violations(instance: Instance, solution: Solution) -> list[str]:
    """Every constraint that a solution breaks, one sentence each; empty if it is feasible. instance: the times of a chain of
    sub-layers, the numbers of stages and micro-batches, and the memory limits. solution: the index of the first sub-layer
    of every stage but the first, and the number of micro-batches that run in halves.
    """
    if malformed := _malformed(instance, solution):
        return malformed
    broken = []
    if solution.sliced > instance.most_sliced:
        samples = instance.provenance["mbs"]
        broken.append(f"sliced is {solution.sliced}, with micro-batches of {samples} samples, which have no halves")
    return broken + instance.over_memory(solution.cuts)


def _malformed(instance: Instance, solution: Solution) -> list[str]:
    """The reasons, in words, why a solution does not belong to the instance: wrong cuts, or too many sliced micro-batches for
    the schedule. Empty if it belongs; samples and memory are not looked at. solution: the index of the first sub-layer of
    every stage but the first, and the number of micro-batches that run in halves.
    """
    if misplaced := instance.wrong_cuts(solution.cuts):
        return misplaced
    if not 0 <= solution.sliced <= (most := most_sliced(instance.stages, instance.micro_batches)):
        return [f"sliced is {solution.sliced}; give 0 to {most}"]
    return []
