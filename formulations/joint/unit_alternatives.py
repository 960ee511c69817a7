"""What other options of single units would come to: the step and the memory of the plan, all else as it is."""

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
class Change:
    """The plan with one unit under another option. over_bytes: what a device or a host then lacks; 0 where all fits.
    more_bytes: by stage, what its fullest device needs more than in the plan."""

    option: str
    step_ns: int
    over_bytes: int
    more_bytes: tuple[int, ...] = ()


@dataclass(frozen=True)
class UnitChanges:
    """Units of one stage that have one option, and what the first of them could have in its place.

    first: the first of them. next_best: the option that fits with the least step. prevented: the one with the least step of
    those that do not fit and would shorten the step. Either is None where there is none among those tried.
    """

    stage: int
    first: int
    units: str
    count: int
    option: str
    next_best: Change | None
    prevented: Change | None


def changes(instance: Instance, solution: Solution, stop: Callable[[], bool] = lambda: False) -> list[UnitChanges]:
    """For each run of units with one option in a stage, what the first of them could have in its place.

    stop: asked before each evaluation; once it says so, nothing more is tried. Raises ValueError where the solution is none of
    the instance.
    """
    configuration, now = instance.configurations[solution.configuration], evaluate(instance, solution)
    rows = []
    for x, (first, last) in enumerate(solution.spans()):
        tables = [instance.table(configuration, x, l) for l in range(first, last + 1)]
        chosen = [table.options[s].name for table, s in zip(tables, solution.choice[first : last + 1], strict=True)]
        for place, units, count, name in runs([instance.units[l].name for l in range(first, last + 1)], chosen):
            fitting, prevented = None, None
            for number, option in enumerate(_by_own_work(instance, solution, x, first + place)):
                if (number >= TRIED and fitting is not None) or stop():
                    break
                change = _changed(instance, solution, now, first + place, option, tables[place].options[option].name)
                if change is None:
                    continue
                if change.over_bytes <= 0:
                    fitting = min(fitting or change, change, key=attrgetter("step_ns"))
                elif change.step_ns < now.time_ns:
                    prevented = min(prevented or change, change, key=attrgetter("step_ns"))
            rows.append(UnitChanges(x, first + place, units, count, name, fitting, prevented))
    return rows


def _by_own_work(instance: Instance, solution: Solution, stage: int, unit: int) -> list[int]:
    """The other options of a unit, by what they take in a step by themselves."""
    configuration = instance.configurations[solution.configuration]
    table = instance.table(configuration, stage, unit)
    work = configuration.micro_batches * (table.forward_ns + table.backward_ns) + table.last_ns + table.end_ns
    return [int(s) for s in np.argsort(work, kind="stable") if s != solution.choice[unit]]


def _changed(instance: Instance, solution: Solution, now: Evaluation, unit: int, option: int, name: str) -> Change | None:
    """The plan with another option of one unit; None where its neighbours cannot be beside that."""
    other = replace(solution, choice=(*solution.choice[:unit], option, *solution.choice[unit + 1 :]))
    try:
        evaluation = evaluate(instance, other)
    except ValueError:
        return None
    configuration, over = instance.configurations[solution.configuration], 0
    for x, stage in enumerate(evaluation.stages):
        site = configuration.site(x)
        room = instance.host_limit_bytes(site)
        over = max(over, stage.peak_bytes - instance.limit_bytes(site), 0 if room is None else stage.host_bytes - room)
    more = (other.peak_bytes - own.peak_bytes for other, own in zip(evaluation.stages, now.stages, strict=True))
    return Change(name, evaluation.time_ns, over, tuple(more))
