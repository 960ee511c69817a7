"""The cost of a solution, and the constraints that it breaks: time by the instance's `step`, memory by stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from trainplan.formulations.instance import Timed
from trainplan.formulations.joint.problem import Configuration, Instance, RuntimePredictions, Solution, Step
from trainplan.formulations.joint.simulation import StageTimes, step_ns
from trainplan.formulations.joint.stage_memory import StageBytes, most_in_flight, peaks
from trainplan.formulations.joint.tables import FORBIDDEN, OptionTable
from trainplan.profiling.base.quantities import format_bytes


@dataclass(frozen=True)
class EvaluatedStage:
    """The costs of one stage of a solution.

    first, last: the indices of its first and its last unit (sub-layer or layer). in_flight: the largest number of
    micro-batches whose forward pass the stage has run and whose backward pass it has not. times: the times of its passes,
    messages and work at the end of the step. peak_bytes: the peak memory of one device while the stage's passes run.
    peak_unit: the index of the unit in whose pass the peak is. state_bytes: model states on one device. host_bytes: one
    device's bytes on the host.
    """

    first: int
    last: int
    in_flight: int
    times: StageTimes
    peak_bytes: int
    peak_unit: int
    state_bytes: int
    host_bytes: int


@dataclass(frozen=True)
class Evaluation(Timed):
    """The costs of a solution. time_ns: the step. stages: the costs of each stage. tied_ns: the time in which the first and
    the last stage sum the gradients of a weight table that embedding and head share; 0 if there is none.
    """

    time_ns: int
    stages: tuple[EvaluatedStage, ...]
    tied_ns: int

    @property
    def peak_bytes(self) -> int:
        """The peak memory in bytes of one device, on the stage where it is the largest."""
        return max(stage.peak_bytes for stage in self.stages)


def evaluate(instance: Instance, solution: Solution) -> Evaluation:
    """The step time and the memory of a solution, stage by stage. instance: the configurations to choose from, with costs and
    memory limits. solution: the chosen configuration, the cuts between stages, and an option for every unit. Raises
    ValueError if the solution does not belong to the instance; a solution that needs too much memory is evaluated like
    any other.
    """
    if wrong := malformed(instance, solution):
        raise ValueError(wrong[0])
    configuration = instance.configurations[solution.configuration]
    tied_once = shares_table(configuration, solution.choice)
    tables = tables_of(instance, configuration, solution, tied_once)
    times = [stage_times(instance, configuration, solution, tables, x) for x in range(configuration.stages)]
    sizes = bytes_of_stages(instance, solution, tables)
    tied_ns = 0 if configuration.tied is None or tied_once else configuration.tied.reduce_ns
    in_flight = most_in_flight(configuration)
    stages = [
        EvaluatedStage(
            first=first,
            last=last,
            in_flight=in_flight[x],
            times=times[x],
            peak_bytes=most,
            peak_unit=first + index,
            state_bytes=int(sizes[x].state.sum()),
            host_bytes=int(sizes[x].host.sum()),
        )
        for x, ((first, last), (most, index)) in enumerate(zip(solution.spans(), peaks(configuration, sizes), strict=True))
    ]
    if instance.runtime is not None:
        return _by_runtime(instance, solution, instance.runtime, stages)
    return Evaluation(aggregate(instance.step)(configuration, times, tied_ns), tuple(stages), tied_ns)


def _by_runtime(
    instance: Instance, solution: Solution, runtime: RuntimePredictions, stages: Sequence[EvaluatedStage]
) -> Evaluation:
    """The costs of a solution by the prediction of a runtime: its step, the passes of each stage, and the peak of each device
    group on all of its stages. stages: the stages by the tables. Raises ValueError if the runtime cannot be predicted for the
    solution's plan."""
    predicted = runtime.predicted(instance, solution)
    if isinstance(predicted, str):
        raise ValueError(predicted)
    step, peaks = predicted
    bounds, costs, units = runtime.bounds(instance, solution.configuration, solution.choice), [], instance.units
    assert bounds is not None
    for x, stage in enumerate(stages):
        forward, backward = bounds.stage_ns(units[stage.first].first, units[stage.last].last + 1)
        times = replace(stage.times, forward_ns=forward, backward_ns=backward)
        costs.append(replace(stage, times=times, peak_bytes=peaks[x % len(peaks)]))
    return Evaluation(step, tuple(costs), 0)


def bytes_of_stages(instance: Instance, solution: Solution, tables: Sequence[OptionTable] | None = None) -> list[StageBytes]:
    """For every stage of a solution, the bytes that its units (sub-layers or layers) hold on a device and on the host. tables:
    for every unit, the table of its options in its stage; None to look them up. instance: the configurations to choose
    from, with costs and memory limits. solution: the chosen configuration, the cuts between stages, and an option for every
    unit.
    """
    configuration = instance.configurations[solution.configuration]
    if tables is None:
        tables = tables_of(instance, configuration, solution, shares_table(configuration, solution.choice))
    return [stage_bytes(instance, configuration, solution, tables, x) for x in range(configuration.stages)]


# Stages


def shares_table(configuration: Configuration, choice: Sequence[int]) -> bool:
    """Whether embedding and head share a weight table that, under the chosen options, is one parameter, so that no gradients
    are summed between them. choice: for every unit (sub-layer or layer), the index of its option. configuration: one
    schedule, number of micro-batches and division into device groups, with the costs of all options.
    """
    tied = configuration.tied
    return tied is not None and tied.equal is not None and bool(tied.equal[choice[0], choice[-1]])


def tables_of(instance: Instance, configuration: Configuration, solution: Solution, tied_once: bool) -> list[OptionTable]:
    """For every unit (sub-layer or layer) of the model, the table of the options that it has in its stage of a solution.
    tied_once: whether the weight table that embedding and head share is one parameter; the last unit then has a table of
    options of its own. instance: the configurations to choose from, with costs and memory limits. configuration: one
    schedule, number of micro-batches and division into device groups, with the costs of all options. solution: the chosen
    configuration, the cuts between stages, and an option for every unit.
    """
    stages = [x for x, (first, last) in enumerate(solution.spans()) for _ in range(first, last + 1)]
    tables = [instance.table(configuration, x, l) for l, x in enumerate(stages)]
    if tied_once and configuration.tied is not None and configuration.tied.once is not None:
        tables[-1] = configuration.tied.once
    return tables


def stage_times(
    instance: Instance, configuration: Configuration, solution: Solution, tables: Sequence[OptionTable], stage: int
) -> StageTimes:
    """The times in ns of one stage of a solution: passes, messages and work at the end of the step. tables: for every unit
    (sub-layer or layer) of the model, the table of its options. stage: the index of the stage. instance: the configurations
    to choose from, with costs and memory limits. configuration: one schedule, number of micro-batches and division into
    device groups, with the costs of all options.
    """
    edges = (0, *solution.cuts, instance.length)
    choice, first, last = solution.choice, edges[stage], edges[stage + 1] - 1

    def total(column: str) -> int:
        """The sum of a column over the options of the stage's units."""
        return sum(int(getattr(tables[l], column)[choice[l]]) for l in range(first, last + 1))

    def crossing(matrix: str, unit: int, in_stage: int) -> int:
        """The number of a boundary's matrix at the boundary before a unit, by the tables of stage `in_stage`; 0 for a re-layout
        that is not done at a cut."""
        pair = int(tables[unit - 1].leave[choice[unit - 1]]), int(tables[unit].enter[choice[unit]])
        boundary = instance.boundary(configuration, in_stage, unit)
        if unit == edges[in_stage] and not boundary.relayout_at_cut and "relayout" in matrix:
            return 0
        value = getattr(boundary, matrix)
        if value.ndim == 3:
            value = value[configuration.links[in_stage - 1]]
        return int(value[pair])

    begins, ends = first > 0, last < instance.length - 1
    into = range(first if begins else 1, last + 1)  # units whose input is re-laid by this stage
    inside = range(first + 1, last + 1)
    reduction = configuration.reduction
    head = int(tables[first].head_ns[choice[first]])
    turn, tail = int(tables[last].turn_ns[choice[last]]), int(tables[first].tail_ns[choice[first]])
    back = sum(crossing("relayout_backward_ns", l, stage) for l in inside)
    returned = crossing("relayout_backward_ns", last + 1, stage + 1) if ends else 0
    halves: dict[str, int] = {}
    if configuration.schedule.sliced:
        halved_units = [(tables[l].halved, choice[l]) for l in range(first, last + 1)]
        moved = sum(crossing("halved_relayout_forward_ns", l, stage) for l in into)
        inside_back = sum(crossing("halved_relayout_backward_ns", l, stage) for l in inside)
        halves = {
            "first_half_ns": head + moved + sum(int(halved.forward_ns[0, s]) for halved, s in halved_units if halved),
            "second_half_ns": head + moved + sum(int(halved.forward_ns[1, s]) for halved, s in halved_units if halved),
            "message_half_ns": crossing("halved_message_forward_ns", first, stage) if begins else 0,
            "halved_backward_ns": turn
            + sum(int(halved.backward_ns[s]) for halved, s in halved_units if halved)
            + inside_back
            + returned
            + tail,
        }
    return StageTimes(
        forward_ns=head + total("forward_ns") + sum(crossing("relayout_forward_ns", l, stage) for l in into),
        backward_ns=turn + total("backward_ns") + back + returned + tail,
        message_forward_ns=crossing("message_forward_ns", first, stage) if begins else 0,
        message_backward_ns=crossing("message_backward_ns", last + 1, stage + 1) if ends else 0,
        last_ns=total("last_ns"),
        reduce_ns=total("reduce_ns") + (reduction.time_ns(total("gradient_bytes")) if reduction else 0),
        optimizer_ns=total("optimizer_ns"),
        **halves,
    )


def stage_bytes(
    instance: Instance, configuration: Configuration, solution: Solution, tables: Sequence[OptionTable], stage: int
) -> StageBytes:
    """The bytes that the units of one stage hold, and the sizes of the messages that cross the boundary before the stage.
    tables: for every unit of the model, the table of its options. stage: the index of the stage. instance: the
    configurations to choose from, with costs and memory limits. configuration: one schedule, number of micro-batches and
    division into device groups, with the costs of all options. solution: the chosen configuration, the cuts between stages,
    and an option for every unit.
    """
    choice, (first, last) = solution.choice, solution.spans()[stage]

    def column(name: str) -> Any:
        return np.array([getattr(tables[l], name)[choice[l]] for l in range(first, last + 1)], np.int64)

    messages: dict[str, Any] = {}
    if first:
        boundary = instance.boundary(configuration, stage, first)
        pair = tables[first - 1].leave[choice[first - 1]], tables[first].enter[choice[first]]
        for name, sizes in (("entering", boundary.message_forward_bytes), ("returning", boundary.message_backward_bytes)):
            messages[name] = 0 if sizes is None else int(sizes[pair])
    return StageBytes(*(column(f"{name}_bytes") for name in ("state", "kept", "held", "work", "host")), **messages)


# Aggregators

Aggregate = Callable[[Configuration, Sequence[StageTimes], int], int]


def aggregate(step: Step) -> Aggregate:
    """The function that combines the times of all stages into the step in ns. It takes the configuration, the times of every
    stage, and the time in ns in which the first and the last stage sum the gradients of a shared weight table. step: the
    name of the formula: `simulated`, `eq8`, `eq5` or `eq4`.
    """
    return _AGGREGATES[step]


def eq_8_ns(configuration: Configuration, stages: Sequence[StageTimes], tied_ns: int) -> int:
    """The step in ns by Galvatron-BMW's Eq. 8: all micro-batches but one on the slowest stage, and one on all stages, with all
    work that follows the last micro-batch. stages: the times of every stage. tied_ns: the time in which both ends of the
    pipeline sum the gradients of a shared weight table, 0 if there is none. configuration: one schedule, number of
    micro-batches and division into device groups, with the costs of all options.
    """
    times = [stage.micro_batch_ns + stage.message_forward_ns + stage.message_backward_ns for stage in stages]
    syncs = sum(stage.last_ns + stage.reduce_ns + stage.optimizer_ns for stage in stages) + tied_ns
    return (configuration.micro_batches - 1) * max(times) + sum(times) + syncs


def eq_5_ns(configuration: Configuration, stages: Sequence[StageTimes], tied_ns: int) -> int:
    """The step in ns by AMP's Eq. 5: all micro-batches but one on the slowest stage, and one on all stages with their
    messages, without the work at the end of the step. stages: the times of every stage. tied_ns: unused; part of the
    signature that all such formulas share. configuration: one schedule, number of micro-batches and division into device
    groups, with the costs of all options.
    """
    times = [stage.micro_batch_ns for stage in stages]
    moves = sum(stage.message_forward_ns + stage.message_backward_ns for stage in stages)
    return (configuration.micro_batches - 1) * max(times) + sum(times) + moves


def eq_4_ns(configuration: Configuration, stages: Sequence[StageTimes], tied_ns: int) -> int:
    """The step in ns by AMP's Eq. 4: the step by Eq. 5, and the longest time in which a stage reduces its gradients and runs
    its optimizer. stages: the times of every stage. tied_ns: the time in which the first and the last stage sum the gradients
    of a shared weight table, which counts for the first and the last stage. configuration: one schedule, number of
    micro-batches and division into device groups, with the costs of all options.
    """
    ends = (0, len(stages) - 1)
    syncs = [stage.reduce_ns + stage.optimizer_ns + (tied_ns if x in ends else 0) for x, stage in enumerate(stages)]
    return eq_5_ns(configuration, stages, tied_ns) + max(syncs)


_AGGREGATES: dict[Step, Aggregate] = {"simulated": step_ns, "eq8": eq_8_ns, "eq5": eq_5_ns, "eq4": eq_4_ns}


# Constraints


def violations(instance: Instance, solution: Solution) -> list[str]:
    """Every constraint that a solution breaks, one sentence each; empty if the solution is feasible. Memory is checked only
    where the solution belongs to the instance. instance: the configurations to choose from, with costs and memory limits.
    solution: the chosen configuration, the cuts between stages, and an option for every unit.
    """
    return malformed(instance, solution) or over_memory(instance, solution, evaluate(instance, solution))


def over_memory(instance: Instance, solution: Solution, evaluation: Evaluation) -> list[str]:
    """One sentence for each limit that a solution exceeds: a stage that needs more memory than its devices have, or than their
    hosts have; empty if all fits. evaluation: the costs of the solution. instance: the configurations to choose from, with
    costs and memory limits. solution: the chosen configuration, the cuts between stages, and an option for every unit.
    """
    configuration, broken = instance.configurations[solution.configuration], []
    for x, stage in enumerate(evaluation.stages):
        group = configuration.device_group(x)
        limit = instance.limit_bytes(group)
        if stage.peak_bytes > limit:
            broken.append(
                f"stage {x}: {instance.units[stage.peak_unit].name} needs {stage.peak_bytes} bytes "
                f"({format_bytes(stage.peak_bytes)}), {stage.peak_bytes - limit} more than the {limit} of its devices"
            )
        host_limit = instance.host_limit_bytes(group)
        if host_limit is not None and stage.host_bytes > host_limit:
            broken.append(
                f"stage {x}: needs {stage.host_bytes} bytes of its host, which has {host_limit} for each of its devices"
            )
    return broken


def malformed(instance: Instance, solution: Solution) -> list[str]:
    """The reasons, in words, why a solution does not belong to an instance: a wrong index, number of cuts or number of
    options, a stage that may not begin there, or neighbouring options that do not agree. Empty if it belongs; memory is not
    looked at. solution: the chosen configuration, the cuts between stages, and an option for every unit.
    """
    count, length = len(instance.configurations), instance.length
    if not 0 <= solution.configuration < count:
        return [f"configuration is {solution.configuration}; the instance has 0 to {count - 1}"]
    configuration = instance.configurations[solution.configuration]
    edges = (0, *solution.cuts, length)
    if len(edges) != configuration.stages + 1 or any(a >= b for a, b in pairwise(edges)):
        return [f"cuts is {list(solution.cuts)}; give {configuration.stages - 1}, strictly increasing, of 1 to {length - 1}"]
    if configuration.cuts is not None and solution.cuts != configuration.cuts:
        return [f"cuts is {list(solution.cuts)}; configuration {solution.configuration} has {list(configuration.cuts)}"]
    if whole := [cut for cut in solution.cuts if not instance.cuttable[cut - 1]]:
        return [f"cuts has {cut}; no stage may begin with {instance.units[cut].name}" for cut in whole]
    if len(solution.choice) != length:
        return [f"choice has {len(solution.choice)} entries; the instance has {length} units"]
    stages = [x for x, (first, last) in enumerate(solution.spans()) for _ in range(first, last + 1)]
    tables = [instance.table(configuration, x, l) for l, x in enumerate(stages)]
    sizes = [len(table.options) for table in tables]
    wrong = [
        f"choice[{l}] is {s}; unit {l} has options 0 to {size - 1}"
        for l, (s, size) in enumerate(zip(solution.choice, sizes, strict=True))
        if not 0 <= s < size
    ]
    if wrong:
        return wrong
    for l in range(1, length):
        pair = int(tables[l - 1].leave[solution.choice[l - 1]]), int(tables[l].enter[solution.choice[l]])
        boundary = instance.boundary(configuration, stages[l], l)
        if max(int(boundary.relayout_forward_ns[pair]), int(boundary.relayout_backward_ns[pair])) >= FORBIDDEN:
            a, b = (tables[unit].options[solution.choice[unit]].name for unit in (l - 1, l))
            wrong.append(f"choice[{l}] is {solution.choice[l]}; {b} may not follow {a}")
    return wrong


def group_state_bytes(configuration: Configuration, evaluation: Evaluation, stage: int) -> int:
    """The bytes of model states on one device, of all stages that lie on its device group. evaluation: the costs of a
    solution. stage: the index of any stage of the group. configuration: one schedule, number of micro-batches and division
    into device groups, with the costs of all options.
    """
    group_count = len(configuration.device_groups)
    return sum(chunk.state_bytes for chunk in evaluation.stages[stage % group_count :: group_count])


def describe(instance: Instance, solution: Solution) -> dict[str, Any]:
    """The costs of a solution as a JSON-ready dict, as result files and screens show them. Keys: `time_ns` (the step),
    `schedule` (its name), `micro_batches`, `stage_count`, `stages` (for each stage a dict of its times in ns and its bytes),
    and of the stage with the largest peak memory `peak_bytes`, `peak_layer` and `peak_layer_name` (index and name of the unit,
    a sub-layer or layer, in whose pass the peak is) and `state_bytes` (model states); at last `strategies` (the name of each
    unit's option). instance: the configurations to choose from, with costs and memory limits. solution: the chosen
    configuration, the cuts between stages, and an option for every unit."""
    evaluation = evaluate(instance, solution)
    configuration = instance.configurations[solution.configuration]
    worst = max(evaluation.stages, key=lambda stage: stage.peak_bytes)
    tables = tables_of(instance, configuration, solution, tied_once=False)
    return {
        "time_ns": evaluation.time_ns,
        "schedule": str(configuration.schedule),
        "micro_batches": configuration.micro_batches,
        "stage_count": configuration.stages,
        "peak_bytes": evaluation.peak_bytes,
        "peak_layer": worst.peak_unit,
        "peak_layer_name": instance.units[worst.peak_unit].name,
        "state_bytes": group_state_bytes(configuration, evaluation, evaluation.stages.index(worst)),
        "stages": [{**asdict(stage), **asdict(stage.times), "times": None} for stage in evaluation.stages],
        "strategies": [table.options[s].name for table, s in zip(tables, solution.choice, strict=True)],
    }
