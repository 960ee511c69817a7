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
    """The solution with as few recomputed units, and then as few inputs on the host, as memory and its step allow: a binary
    search over how many units, counted from the last one, may do without."""
    for lighter in (_kept, _at_home):
        solution = _with_lighter(instance, solution, lighter)
    return solution


def _kept(option: Option) -> Option | None:
    """The option that recomputes nothing and keeps its input on the device; None where the option recomputes
    nothing already."""
    strategy = option.strategy
    if strategy is None or not (strategy.ckpt or strategy.modules):
        return None
    return replace(_at_home(option) or option, strategy=replace(strategy, ckpt=False, modules=()))


def _at_home(option: Option) -> Option | None:
    """The option whose input stays on the device; None where it is there already."""
    return replace(option, host=tuple(part for part in option.host if part != "hidden")) if "hidden" in option.host else None


def _with_lighter(instance: Instance, solution: Solution, lighter: Callable[[Option], Option | None]) -> Solution:
    """The solution with lighter options for as many units as memory and its step allow. lighter: gives the lighter option of an
    option, None where there is none."""
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
