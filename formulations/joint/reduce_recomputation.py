"""Removes recomputation, and copies to the host, that do not shorten the step.

Where a step waits for the network, the least step has many solutions, some of which recompute units, or keep inputs on the
host, without need. This module looks for a solution that does so in fewer units, from the last unit to the first, and that fits
and whose step is no longer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from trainplan.formulations.joint.evaluation import evaluate, violations
from trainplan.formulations.joint.problem import Instance, Solution
from trainplan.formulations.joint.tables import Option


def without_needless_recomputation(instance: Instance, solution: Solution) -> Solution:
    """The solution with as few recomputed units (sub-layers or layers), and then as few inputs on the host, as fit into memory
    without a longer step. Units are relieved from the end of the model: a binary search finds the largest number of last
    units that can do without. instance: the configurations to choose from, with costs and memory limits. solution: the
    chosen configuration, the cuts between stages, and an option for every unit.
    """
    for lighter in (_kept, _at_home):
        solution = _with_lighter(instance, solution, lighter)
    return solution


def _kept(option: Option) -> Option | None:
    """The option that is like a given one but recomputes nothing and keeps the unit's input on the device; None if the given
    option recomputes nothing. The result is not necessarily in any table of options. option: a strategy, and what of the
    unit is kept on the host.
    """
    strategy = option.strategy
    if strategy is None or not (strategy.ckpt or strategy.modules):
        return None
    return replace(_at_home(option) or option, strategy=replace(strategy, ckpt=False, modules=()))


def _at_home(option: Option) -> Option | None:
    """The option that is like a given one but keeps the unit's input on the device; None if the given option's input is there
    already. option: a strategy, and what of the unit is kept on the host.
    """
    return replace(option, host=tuple(part for part in option.host if part != "hidden")) if "hidden" in option.host else None


def _with_lighter(instance: Instance, solution: Solution, lighter: Callable[[Option], Option | None]) -> Solution:
    """The solution in which as many units (sub-layers or layers) as fit into memory without a longer step, counted from the
    last unit, have lighter options. lighter: takes an option and returns the lighter one to have instead, None if there is
    none. instance: the configurations to choose from, with costs and memory limits. solution: the chosen configuration, the
    cuts between stages, and an option for every unit.
    """
    configuration = instance.configurations[solution.configuration]
    kept: dict[int, int] = {}  # by unit, the lighter option
    for stage, (first, last) in enumerate(solution.spans()):
        for unit in range(first, last + 1):
            options = instance.table(configuration, stage, unit).options
            wanted = lighter(options[solution.choice[unit]])
            same = [
                s
                for s, option in enumerate(options)
                if wanted and (option.strategy, option.host) == (wanted.strategy, wanted.host)
            ]
            kept |= dict.fromkeys((unit,), same[0]) if same else {}
    step_ns, count, best = evaluate(instance, solution).objective, len(kept), solution
    units = sorted(kept, reverse=True)
    low, high = 0, count  # `low` units are known to be kept; more than `high` cannot be
    while low < high:
        tried = high if low == 0 and high == count else (low + high + 1) // 2
        choice = list(solution.choice)
        for unit in units[:tried]:
            choice[unit] = kept[unit]
        other = replace(solution, choice=tuple(choice))
        if not violations(instance, other) and evaluate(instance, other).objective <= step_ns:
            low, best = tried, other
        else:
            high = tried - 1
    return best
