"""The plan with another option for a single unit, all else unchanged: its step and memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np
from trainplan.formulations.joint.evaluation import Evaluation, evaluate
from trainplan.formulations.joint.problem import Instance, Solution
from trainplan.formulations.plan.run_length import runs

TRIED = 16  # options of each unit, those of the least work of their own; more only until one fits


@dataclass(frozen=True)
class Alternative:
    """The costs of a plan in which one unit (sub-layer or layer) has another option, with all else unchanged.

    Attributes:
        option: the name of the other option.
        step_ns: the step of the changed plan.
        over_bytes: the bytes by which the changed plan exceeds the memory of a device or a host; 0 or less if it fits.
        more_bytes: for each stage, the bytes that its fullest device needs in addition to the unchanged plan.
    """

    option: str
    step_ns: int
    over_bytes: int
    more_bytes: tuple[int, ...] = ()


@dataclass(frozen=True)
class UnitAlternatives:
    """A run of consecutive units of one stage with equal options, and the other options that the first of them could have.

    Attributes:
        stage: the index of the stage.
        first: the index of the first unit.
        units: the names of the first and the last unit.
        count: the number of units.
        option: the name of the option that they have.
        next_best: the option that fits with the least step; None if none of those tried fits.
        prevented: the option with the least step of those that do not fit and would shorten the step; None if there is
            none among those tried.
    """

    stage: int
    first: int
    units: str
    count: int
    option: str
    next_best: Alternative | None
    prevented: Alternative | None


def unit_alternatives(
    instance: Instance, solution: Solution, stop: Callable[[], bool] = lambda: False
) -> list[UnitAlternatives]:
    """For each run of consecutive units (sub-layers, or layers) of a stage with equal options, the best other option that its
    first unit could have, and the best one that memory prevents, with all else unchanged.

    stop: called before each evaluation; when it returns True, the current run is closed with the options tried until then,
    and later runs have none. instance: the configurations to choose from, with costs and memory limits. solution: the
    chosen configuration, the cuts between stages, and an option for every unit. Raises ValueError if the solution does
    not belong to the instance.
    """
    configuration, now = instance.configurations[solution.configuration], evaluate(instance, solution)
    rows = []
    for x, (first, last) in enumerate(solution.spans()):
        tables = [instance.table(configuration, x, l) for l in range(first, last + 1)]
        chosen = [table.options[s].name for table, s in zip(tables, solution.choice[first : last + 1], strict=True)]
        for begin, units, count, name in runs([instance.units[l].name for l in range(first, last + 1)], chosen):
            fitting, prevented = None, None
            for number, option in enumerate(_by_own_work(instance, solution, x, first + begin)):
                if (number >= TRIED and fitting is not None) or stop():
                    break
                change = _changed(instance, solution, now, first + begin, option, tables[begin].options[option].name)
                if change is None:
                    continue
                if change.over_bytes <= 0:
                    fitting = min(fitting or change, change, key=attrgetter("step_ns"))
                elif change.step_ns < now.time_ns:
                    prevented = min(prevented or change, change, key=attrgetter("step_ns"))
            rows.append(UnitAlternatives(x, first + begin, units, count, name, fitting, prevented))
    return rows


def _by_own_work(instance: Instance, solution: Solution, stage: int, unit: int) -> list[int]:
    """The indices of the other options that a unit (sub-layer or layer) could have, sorted by the time in ns that the unit
    itself takes in a step (passes of all micro-batches and work at the end), shortest first. stage: the stage in which the
    unit lies. instance: the configurations to choose from, with costs and memory limits. solution: the chosen
    configuration, the cuts between stages, and an option for every unit.
    """
    configuration = instance.configurations[solution.configuration]
    table = instance.table(configuration, stage, unit)
    work = configuration.micro_batches * (table.forward_ns + table.backward_ns) + table.last_ns + table.end_ns
    return [int(s) for s in np.argsort(work, kind="stable") if s != solution.choice[unit]]


def _changed(instance: Instance, solution: Solution, now: Evaluation, unit: int, option: int, name: str) -> Alternative | None:
    """The costs of the solution with another option for one unit (sub-layer or layer): its step and the memory that it lacks.
    None if the neighbouring units' options may not stand next to the new one.

    now: the evaluation of the unchanged solution. option: the index of the other option. name: the other option's name.
    instance: the configurations to choose from, with costs and memory limits. solution: the chosen configuration, the cuts
    between stages, and an option for every unit.
    """
    other = replace(solution, choice=(*solution.choice[:unit], option, *solution.choice[unit + 1 :]))
    try:
        evaluation = evaluate(instance, other)
    except ValueError:
        return None
    configuration, over = instance.configurations[solution.configuration], 0
    for x, stage in enumerate(evaluation.stages):
        group = configuration.device_group(x)
        host_limit = instance.host_limit_bytes(group)
        over = max(
            over, stage.peak_bytes - instance.limit_bytes(group), 0 if host_limit is None else stage.host_bytes - host_limit
        )
    more = (other.peak_bytes - own.peak_bytes for other, own in zip(evaluation.stages, now.stages, strict=True))
    return Alternative(name, evaluation.time_ns, over, tuple(more))
