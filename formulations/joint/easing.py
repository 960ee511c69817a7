"""Solutions without recomputation that saves nothing.

Where a step waits for the network, the least step has many solutions, some of which recompute what there is memory for. Of
those that recompute less, in the units from the last one on, the first is taken that fits and whose step is no longer.
"""

from __future__ import annotations

from dataclasses import replace

from trainplan.formulations.joint.evaluation import evaluate, violations
from trainplan.formulations.joint.problem import Instance, Solution


def eased(instance: Instance, solution: Solution) -> Solution:
    """The solution with as few recomputed units as memory and its step allow: all of them kept, or half of them, and so on."""
    configuration = instance.configurations[solution.configuration]
    kept: dict[int, int] = {}  # by unit, the option that is the same but recomputes nothing
    for stage, (first, last) in enumerate(solution.spans()):
        for unit in range(first, last + 1):
            options = instance.table(configuration, stage, unit).options
            option = options[solution.choice[unit]]
            if option.strategy is None or not (option.strategy.ckpt or option.strategy.modules):
                continue
            plain = replace(option.strategy, ckpt=False, modules=())
            same = [s for s, each in enumerate(options) if each.strategy == plain and each.host == option.host]
            kept |= dict.fromkeys((unit,), same[0]) if same else {}
    step_ns, count, best = evaluate(instance, solution).objective, len(kept), solution
    units = sorted(kept, reverse=True)
    low, high = 0, count  # so many units are known to be kept; more than `high` cannot be
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
