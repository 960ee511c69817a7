"""pipeline: choose stages, micro-batches and every layer's strategy together (Galvatron-BMW, Section IV), for one batch size.

A configuration fixes the number P of equal stages, the number m of micro-batches and the schedule; in it, choose which
consecutive layers form stage i = 0 .. P-1 and one option s_l for each layer l:

    minimise    (m - 1) max_i ( T_i - G_i ) + sum_i T_i                                               Eq. 8, nanoseconds
    with        T_i = entry(first layer of i, its option; none for i = 0) + sum_l c(l, s_l) + sum_l R(l, s_l, s_{l+1})
                G_i = sum_l g(l, s_l)                             gradient synchronisation, paid with the last micro-batch
    subject to  max_l ( sum_{k<=l} n_i O_f(k) + O_b(l) + (n_i - 1)(O_f of the rest of i) ) + sum_k O_ms(k) <= E    Eq. 2, bytes
                n_i = min(m, P - i) micro-batches in flight under 1F1B-Flush, m under GPipe.

c is the time of a layer, g the synchronisation in it, R the re-layout between two layers, entry the time to send hidden states
to a stage and their gradients back, and E the memory of a device. O_f is what a layer keeps from its forward pass, O_b what its
backward pass adds, O_ms its model states. n_i - 1 other micro-batches keep the activations of all layers of the stage, the
current one those up to layer l; with M_i = O_ms + (n_i - 1) O_f this is Eq. 2 of one stage. `evaluate` and `violations` know no
solver; all numbers are integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Annotated, Any

from pydantic import Field
from trainplan.formulations.instance import Timed
from trainplan.formulations.pipeline.instance import Configuration, Instance
from trainplan.formulations.schedule.stage_memory import stage_peak
from trainplan.profiling.base.dataclass_records import DataclassRecord, Items
from trainplan.profiling.base.files import Source, name_of_source, parse
from trainplan.profiling.base.quantities import format_bytes


@dataclass(frozen=True)
class EvaluatedStage:
    """The costs of one stage of a solution.

    Attributes:
        first, last: the indices of its first and its last layer.
        in_flight: the largest number of micro-batches whose activations it holds at the same time.
        time_ns: its time for the last micro-batch.
        sync_ns: the part of time_ns that synchronises gradients.
        peak_bytes: the peak memory of a device by Eq. 2 of Galvatron-BMW.
        peak_layer: the index of the layer in whose backward pass the peak is.
        state_bytes: model states.
    """

    first: int
    last: int
    in_flight: int
    time_ns: int
    sync_ns: int
    peak_bytes: int
    peak_layer: int
    state_bytes: int


@dataclass(frozen=True)
class Evaluation(Timed):
    """The time and the memory of a solution. time_ns: the step. stages: the costs of each stage."""

    time_ns: int
    stages: tuple[EvaluatedStage, ...]

    @property
    def peak_bytes(self) -> int:
        """The peak memory in bytes of a device, on the stage where it is the largest."""
        return max(stage.peak_bytes for stage in self.stages)

    @property
    def time_balance(self) -> float:
        """The balance of the stages' times, a_t of Galvatron-BMW's Eq. 6: from 0, where one stage takes all the time, to 1 -
        1/P for P stages of equal time."""
        return _balance([stage.time_ns for stage in self.stages])

    @property
    def memory_balance(self) -> float:
        """The balance of the stages' peak memory, a_m of Galvatron-BMW's Eq. 6: from 0, where one stage takes all the memory,
        to 1 - 1/P for P stages of equal peaks."""
        return _balance([stage.peak_bytes for stage in self.stages])


def _balance(shares: Sequence[int]) -> float:
    """1 minus the largest part's share of a sum: 0 if one part is all of it; 0 also for a sum of 0. shares: the parts."""
    return 1 - max(shares) / sum(shares) if sum(shares) else 0.0


@dataclass(frozen=True)
class Solution(DataclassRecord):
    """One plan of an instance. configuration: the index of the configuration. stages: the number of layers of each stage.
    choice: for every layer, the index of its option (strategy)."""

    configuration: Annotated[int, Field(ge=0)]
    stages: Annotated[Items[Annotated[int, Field(ge=1)]], Field(min_length=1)]
    choice: Items[Annotated[int, Field(ge=0)]]

    def spans(self) -> list[tuple[int, int]]:
        """For every stage, in order, the indices of its first and its last layer, both included."""
        return spans_of_sizes(self.stages)


def spans_of_sizes(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """For every stage, in order, the indices of its first and its last layer, both included: sizes [2, 3] -> [(0, 1), (2, 4)].
    sizes: the number of layers of each stage."""
    ends = list(accumulate(sizes))
    return [(end - size, end - 1) for size, end in zip(sizes, ends, strict=True)]


def load_solution(source: Source) -> Solution:
    """Read a solution from a file in its JSON format, or from a dict. Raises InputError if it cannot be read or is no
    solution.
    """
    return parse(source, Solution, name_of_source(source, "solution"))


def solution_dict(solution: Solution) -> dict[str, Any]:
    """A solution in its JSON file format. solution: a configuration, the number of layers of each stage, and
    the strategy of every layer.
    """
    return solution.to_dict()


def iteration_ns(configuration: Configuration, times_ns: Sequence[int], syncs_ns: Sequence[int]) -> int:
    """The time in ns of a step by Eq. 8 of Galvatron-BMW. configuration: numbers of stages and micro-batches. times_ns: for
    each stage, its time for the last micro-batch. syncs_ns: for each stage, the part of that time that only the last
    micro-batch has (synchronisation of gradients).
    """
    slowest = max(time - sync for time, sync in zip(times_ns, syncs_ns, strict=True))
    return (configuration.micro_batches - 1) * slowest + sum(times_ns)


def evaluate(instance: Instance, solution: Solution) -> Evaluation:
    """The time and the memory of a solution, by Eq. 8 and Eq. 2 of Galvatron-BMW. instance: the configurations (numbers of
    stages and micro-batches) to choose from, with the costs of layers under each strategy, and the memory limit. solution:
    a configuration, the number of layers of each stage, and the strategy of every layer. Raises ValueError if the
    solution does not belong to the instance; one that needs too much memory is evaluated like any other.
    """
    if wrong := malformed(instance, solution):
        raise ValueError(wrong[0])
    stages = evaluate_stages(instance, solution)
    times_ns, syncs_ns = zip(*((stage.time_ns, stage.sync_ns) for stage in stages), strict=True)
    return Evaluation(iteration_ns(instance.configurations[solution.configuration], times_ns, syncs_ns), stages)


def describe(instance: Instance, solution: Solution) -> dict[str, Any]:
    """Evaluate a solution and return its costs as a JSON-ready dict, as result files and screens show them. Keys: `time_ns`
    (the step), `throughput_samples_per_s` (None if the time is 0), `pipeline` (number of stages), `micro_batches`, `schedule`
    (its name), `time_balance` and `memory_balance` (fractions from 0 to 1 - 1/stages, larger if stages are more even), `stages`
    (for each stage a dict with the attributes of `EvaluatedStage`, times in ns), and `strategies` (the name of every layer's
    strategy). Of the stage with the largest peak memory: `peak_bytes` and `state_bytes` (model states) of one device, and
    `peak_layer` and `peak_layer_name`, index and name of the layer in whose backward pass the peak is.

    instance: the configurations (numbers of stages and micro-batches) to choose from, with the costs of layers under each
    strategy, and the memory limit. solution: a configuration, the number of layers of each stage, and the strategy of every
    layer. Raises ValueError if the solution does not belong to the instance."""
    return described(instance, solution, evaluate(instance, solution))


def described(instance: Instance, solution: Solution, evaluation: Evaluation) -> dict[str, Any]:
    """The costs of an evaluated solution as a JSON-ready dict, as result files and screens show them. Keys: `time_ns` (the
    step), `throughput_samples_per_s` (None if the time is 0), `pipeline` (number of stages), `micro_batches`, `schedule` (its
    name), `time_balance` and `memory_balance` (fractions from 0 to 1 - 1/stages, larger if stages are more even), `stages` (for
    each stage a dict with the attributes of `EvaluatedStage`, times in ns), and `strategies` (the name of every layer's
    strategy). Of the stage with the largest peak memory: `peak_bytes` and `state_bytes` (model states) of one device, and
    `peak_layer` and `peak_layer_name`, index and name of the layer in whose backward pass the peak is.

    instance: the configurations (numbers of stages and micro-batches) to choose from, with the costs of layers under each
    strategy, and the memory limit. solution: a configuration, the number of layers of each stage, and the strategy of every
    layer. evaluation: the solution's time and memory, computed before."""
    configuration = instance.configurations[solution.configuration]
    worst = max(evaluation.stages, key=lambda stage: stage.peak_bytes)
    return {
        "time_ns": evaluation.time_ns,
        "throughput_samples_per_s": instance.batch / evaluation.time_ns * 1e9 if evaluation.time_ns else None,
        "pipeline": configuration.stages,
        "micro_batches": configuration.micro_batches,
        "schedule": configuration.schedule,
        "peak_bytes": evaluation.peak_bytes,
        "peak_layer": worst.peak_layer,
        "peak_layer_name": instance.layer_names[worst.peak_layer],
        "state_bytes": worst.state_bytes,
        "time_balance": evaluation.time_balance,
        "memory_balance": evaluation.memory_balance,
        "stages": [asdict(stage) for stage in evaluation.stages],
        "strategies": [configuration.tables.strategies[s] for s in solution.choice],
    }


def evaluate_stages(
    instance: Instance, solution: Solution, configuration: Configuration | None = None
) -> tuple[EvaluatedStage, ...]:
    """The costs of a solution's stages, in order. configuration: numbers of stages and micro-batches, with tables of costs to
    use in place of the instance's own; None for the instance's. instance: the configurations (numbers of stages and
    micro-batches) to choose from, with the costs of layers under each strategy, and the memory limit. solution: a
    configuration, the number of layers of each stage, and the strategy of every layer.
    """
    counted = configuration or instance.configurations[solution.configuration]
    return tuple(
        evaluate_stage(instance, counted, number, first, solution.choice[first : last + 1])
        for number, (first, last) in enumerate(solution.spans())
    )


def evaluate_stage(
    instance: Instance, configuration: Configuration, number: int, first: int, choice: Sequence[int]
) -> EvaluatedStage:
    """The costs of one stage. configuration: numbers of stages and micro-batches, with the layers' costs. number: the stage's
    index. first: the index of its first layer. choice: for each of its layers, in order, the index of its option. instance:
    the configurations (numbers of stages and micro-batches) to choose from, with the costs of layers under each strategy,
    and the memory limit.
    """
    tables, in_flight = configuration.tables, configuration.in_flight(number)
    kinds = instance.layer_kinds[first : first + len(choice)]
    indices = (list(kinds), list(choice))
    time = int(tables.time_ns[indices].sum())
    if first:
        time += int(tables.entries_ns[instance.boundary_kinds[first - 1], choice[0]])
    inside = list(instance.boundary_kinds[first : first + len(choice) - 1])
    time += int(tables.transitions_ns[inside, list(choice[:-1]), list(choice[1:])].sum())
    states = tables.state_bytes[indices]
    peak, index = stage_peak(states, tables.forward_bytes[indices], tables.backward_bytes[indices], in_flight)
    return EvaluatedStage(
        first=first,
        last=first + len(choice) - 1,
        in_flight=in_flight,
        time_ns=time,
        sync_ns=int(tables.sync_ns[indices].sum()),
        peak_bytes=int(peak),
        peak_layer=first + int(index),
        state_bytes=int(states.sum()),
    )


def violations(instance: Instance, solution: Solution) -> list[str]:
    """Every constraint that a solution breaks, one sentence each; empty if it is feasible. instance: the configurations
    (numbers of stages and micro-batches) to choose from, with the costs of layers under each strategy, and the memory
    limit. solution: a configuration, the number of layers of each stage, and the strategy of every layer.
    """
    return malformed(instance, solution) or over_memory(instance, evaluate(instance, solution))


def over_memory(instance: Instance, evaluation: Evaluation) -> list[str]:
    """A sentence for each stage that needs more memory than a device has; empty if all fit. evaluation: the costs of a
    solution. instance: the configurations (numbers of stages and micro-batches) to choose from, with the costs of layers
    under each strategy, and the memory limit.
    """
    limit = instance.memory_bytes
    return [
        f"stage {number}: the backward pass of {instance.layer_names[stage.peak_layer]} needs {stage.peak_bytes} bytes "
        f"({format_bytes(stage.peak_bytes)}), {stage.peak_bytes - limit} more than memory_bytes = {limit}"
        for number, stage in enumerate(evaluation.stages)
        if stage.peak_bytes > limit
    ]


def malformed(instance: Instance, solution: Solution) -> list[str]:
    """The reasons, in words, why a solution does not belong to the instance: a wrong configuration, number of layers or
    option. Empty if it belongs; memory is not looked at. solution: a configuration, the number of layers of each stage, and
    the strategy of every layer.
    """
    count = len(instance.configurations)
    if not 0 <= solution.configuration < count:
        return [f"configuration is {solution.configuration}; the instance has 0 to {count - 1}"]
    configuration, layers = instance.configurations[solution.configuration], instance.layers
    if len(solution.stages) != configuration.stages or min(solution.stages) < 1 or sum(solution.stages) != layers:
        return [f"stages is {list(solution.stages)}; configuration {solution.configuration} splits {layers} layers "
                f"into {configuration.stages} stages of at least one"]  # fmt: skip
    if len(solution.choice) != layers:
        return [f"choice has {len(solution.choice)} entries; the instance has {layers} layers"]
    options = len(configuration.tables.strategies)
    return [
        f"choice[{l}] is {s}; layer {l} has options 0 to {options - 1}"
        for l, s in enumerate(solution.choice)
        if not 0 <= s < options
    ]
