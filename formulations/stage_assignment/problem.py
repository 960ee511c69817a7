"""stage-assignment: cut a chain of L layers into k pipeline stages (AMP, Sections 3.4 and 3.5).

Stage i = 0 .. k-1 holds consecutive layers, at least one; gas micro-batches run through all stages. Choose the cuts that

    minimise    (gas - 1) max_i t_i + sum_i e_i + sum_i t_i                                          Eq. 5, nanoseconds
    with        t_i = sum of c(i, l) over the layers l of stage i         where devices differ, c depends on the stage, too
                e_i = e(i, l), sending what leaves layer l, the last one of stage i < k-1, to stage i + 1
    subject to  sum O_ms(l) + n_i sum O_f(l) + max O_w(l) <= E_i     over the layers of stage i, bytes, where memory is given
                n_i = min(gas, k - i) micro-batches in flight under 1F1B.

c(i, l) is the time of layer l in stage i and E_i the memory of a device there. AMP does not count memory; this part is ours:
O_ms are model states, O_f is what one micro-batch keeps from its forward pass to its backward pass, O_w what the layer's own
computation adds for its duration. `evaluate` and `violations` know no solver; all numbers are integers.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Discriminator, Field, Tag, model_validator
from trainplan.formulations.instance import Timed
from trainplan.formulations.numbers import Integers, TimeNs, check_length
from trainplan.formulations.schedule.chains import Chain, ChainFile, Cuts
from trainplan.profiling.base.files import Source, name_of_source, parse

NAME = "stage-assignment"


def _branch(value: Any) -> str:
    """The tag of the form in which a file gives a field: `list[one]` for one list, `list[list]` for a list of lists, one for
    each stage. Tags of this form are left out of a field's path in errors."""
    return "list[list]" if isinstance(value, list) and value and isinstance(value[0], list) else "list[one]"


Row = Annotated[list[TimeNs], Tag("list[one]")]
Rows = Annotated[list[list[TimeNs]], Tag("list[list]")]
Times = Annotated[Row | Rows, Discriminator(_branch)]


class InstanceRecord(ChainFile):
    """The file format of a stage-assignment instance, version 1."""

    problem: Literal["stage-assignment"]
    layer_ns: Annotated[Times, Field(description="c: time of each layer; or such a list for each stage, where devices differ")]
    transfer_ns: Annotated[Times, Field(description="e: time of each cut between two layers; or such a list for each boundary")]
    parameters: Annotated[
        list[Annotated[int, Field(ge=0, le=2**40)]] | None,
        Field(description="of each layer, for the method uniform-parameters"),
    ] = None

    @model_validator(mode="after")
    def _shapes(self) -> InstanceRecord:
        """Check the file after its fields are read. Returns the record; raises InputError if lists have wrong lengths, or
        sums are too large."""
        times: list[Any] = self.layer_ns if _many(self.layer_ns) else [self.layer_ns]
        layers = len(times[0])
        self.check_stages("layer_ns", layers, "layer")
        self._check_times("layer_ns", layers, self.stages)
        if self.stages > 1 or self.transfer_ns:
            self._check_times("transfer_ns", layers - 1, self.stages - 1)
        if self.parameters is not None:
            check_length("parameters", self.parameters, layers, "one for each layer")
        moves: list[Any] = self.transfer_ns if _many(self.transfer_ns) else [self.transfer_ns] * (self.stages - 1)
        slowest = sum(max(column) for column in zip(*times, strict=True)) + sum(max(row, default=0) for row in moves)
        self.check_totals(layers, "layer", self.micro_batches * slowest)
        return self

    def _check_times(self, name: str, length: int, count: int) -> None:
        """Raise InputError if a field of times has a wrong size. name: the field's name. length: the number of times of a
        list. count: the number of lists, where there is one for each stage or boundary."""
        times: list[Any] = getattr(self, name)
        meaning = "one for each layer" if name == "layer_ns" else "one for each cut between two layers"
        if not _many(times):
            check_length(name, times, length, meaning)
            return
        check_length(name, times, count, "one for each stage" if name == "layer_ns" else "one for each boundary of two stages")
        for index, row in enumerate(times):
            check_length(f"{name}[{index}]", row, length, meaning)


def _many(value: list[Any]) -> bool:
    """Whether a field of a file is a list of lists, one for each stage or boundary, and not a single list."""
    return _branch(value) == "list[list]"


@dataclass(frozen=True, eq=False)
class Instance(Chain):
    """An instance of stage-assignment in arrays, for k stages and L layers.

    Attributes:
        layer_ns: (k, L), the time of each layer in each stage for one micro-batch.
        transfer_ns: (k-1, L-1), the time to send to the next stage, by boundary of two stages and by the layer before the cut.
        parameters: (L,), the number of parameters of each layer, or None.
    """

    layer_ns: Integers
    transfer_ns: Integers
    parameters: Integers | None = None

    problem = NAME
    size_names = ("layers", "stages")

    @property
    def layers(self) -> int:
        """The number of layers, L."""
        return self.layer_ns.shape[1]

    @property
    def length(self) -> int:
        """The number of layers, L, under the name that all chains of layers have for it."""
        return self.layers

    def name_of(self, layer: int) -> str:
        """The name of a layer for users, such as `layer 3`, since instances of this problem name no layers. layer: the layer's
        index."""
        return f"layer {layer}"

    def to_dict(self) -> dict[str, Any]:
        """The instance in its JSON file format, with one list of times where all stages have equal ones."""
        fields: dict[str, Any] = {
            **self.header,
            "stages": self.stages,
            "micro_batches": self.micro_batches,
            "layer_ns": compact(self.layer_ns),
            "transfer_ns": compact(self.transfer_ns),
        }
        if self.parameters is not None:
            fields["parameters"] = self.parameters.tolist()
        if self.memory is not None:
            fields["memory"] = self.memory.to_dict()
        return fields


def compact(rows: Integers) -> list[Any]:
    """The JSON file format of an array's rows: a single list if all rows are equal, else a list of lists. [[1, 2], [1, 2]] ->
    [1, 2]. rows: for each stage, or each boundary between stages, its times.
    """
    equal = len(rows) > 0 and bool((rows == rows[0]).all())
    return rows[0].tolist() if equal else rows.tolist()


class Solution(Cuts):
    """A solution: the first layer of every stage but the first."""


@dataclass(frozen=True)
class AssignedStage:
    """The costs of one stage of a solution.

    first, last: the indices of its first and its last layer. time_ns: its time for one micro-batch. transfer_ns: the time
    to send to the next stage, 0 for the last stage. peak_bytes: the peak memory of a device, None if memory is not given.
    """

    first: int
    last: int
    time_ns: int
    transfer_ns: int
    peak_bytes: int | None


@dataclass(frozen=True)
class Evaluation(Timed):
    """The time and the memory of a solution. time_ns: the objective, Eq. 5 of AMP. stages: the costs of each stage."""

    time_ns: int
    stages: tuple[AssignedStage, ...]


def load(source: Source, where: str = "instance") -> Instance:
    """Read an instance from a file in its JSON format, or from a dict. where: what error messages call a dict. Raises
    InputError which names file, field, value and fix."""
    record = parse(source, InstanceRecord, name_of_source(source, where))
    stages = record.stages
    layer_ns = np.array(record.layer_ns, np.int64)
    layers = layer_ns.shape[-1]
    moves = np.array(record.transfer_ns if stages > 1 else [0] * (layers - 1), np.int64)
    return Instance(
        layer_ns=np.broadcast_to(layer_ns, (stages, layers)),
        transfer_ns=np.broadcast_to(moves, (stages - 1, layers - 1)),
        parameters=None if record.parameters is None else np.array(record.parameters, np.int64),
        **record.common,
    )


def load_solution(source: Source) -> Solution:
    """Read a solution from a file in its JSON format, or from a dict. Raises InputError if it cannot be read or is no
    solution.
    """
    return parse(source, Solution, name_of_source(source, "solution"))


def solution_dict(solution: Solution) -> dict[str, Any]:
    """A solution in its JSON file format. solution: the index of the first layer of every stage but the
    first.
    """
    return solution.to_dict()


def evaluate(instance: Instance, solution: Solution) -> Evaluation:
    """The time of a solution, by AMP's Eq. 5, and the peak memory of each stage. instance: the times of all layers in each
    stage, and the memory limits. solution: the index of the first layer of every stage but the first. Raises ValueError
    if the solution does not belong to the instance; one that needs too much memory is evaluated like any other.
    """
    if wrong := instance.wrong_cuts(solution.cuts):
        raise ValueError(wrong[0])
    stages, peaks = [], instance.peaks_bytes(solution.cuts)
    for i, (first, last) in enumerate(solution.spans(instance.layers)):
        time = int(instance.layer_ns[i, first : last + 1].sum())
        sent = int(instance.transfer_ns[i, last]) if i + 1 < instance.stages else 0
        stages.append(AssignedStage(first, last, time, sent, peaks[i]))
    slowest = max(stage.time_ns for stage in stages)
    whole = sum(stage.time_ns + stage.transfer_ns for stage in stages)
    return Evaluation((instance.micro_batches - 1) * slowest + whole, tuple(stages))


def describe(instance: Instance, solution: Solution) -> dict[str, Any]:
    """The costs of a solution as a JSON-ready dict, as result files and screens show them. Keys: `time_ns` (the step),
    `pipeline` (number of stages), `micro_batches`, `slowest_ns` (the slowest stage's time for a micro-batch), `transfers_ns`
    (the sum of one micro-batch's transfers between stages), `stages` (for each stage a dict with the attributes of
    `AssignedStage`) and, if memory is limited, `peak_bytes`, `peak_stage`, `peak_layer` and `peak_layer_name` of the stage
    closest to its memory limit. instance: the times of all layers in each stage, and the memory limits. solution: the index of
    the first layer of every stage but the first."""
    result = evaluate(instance, solution)
    return {
        "time_ns": result.time_ns,
        "pipeline": instance.stages,
        "micro_batches": instance.micro_batches,
        "slowest_ns": max(stage.time_ns for stage in result.stages),
        "transfers_ns": sum(stage.transfer_ns for stage in result.stages),
        "stages": [asdict(stage) for stage in result.stages],
        **instance.fullest_stage_costs(solution.cuts),
    }


def violations(instance: Instance, solution: Solution) -> list[str]:
    """Every constraint that a solution breaks, one sentence each; empty if it is feasible. instance: the times of all layers
    in each stage, and the memory limits. solution: the index of the first layer of every stage but the first.
    """
    return instance.wrong_cuts(solution.cuts) or instance.over_memory(solution.cuts)


def most_ns(instance: Instance) -> int:
    """An upper bound in ns on the time of all stages and transfers together for one micro-batch, for any cuts; so also on the
    time of any one stage. instance: the times of all layers in each stage, and the memory limits.
    """
    moves = int(instance.transfer_ns.max(axis=1).sum()) if instance.stages > 1 and instance.layers > 1 else 0
    return int(instance.layer_ns.max(axis=0).sum()) + moves
