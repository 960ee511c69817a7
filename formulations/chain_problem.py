"""What the problems have in common whose solutions cut a chain into the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from math import comb
from typing import Any

from trainplan.formulations.problem import Enumeration, Models, Problem
from trainplan.formulations.schedule.chains import Chain


def cut_enumeration(solution: Callable[[tuple[int, ...]], Any]) -> Enumeration:
    """All ways to cut a chain, whatever the memory, in lexicographic order of their cuts. solution: makes one of its cuts."""

    def cuts(instance: Chain) -> combinations[tuple[int, ...]]:
        return combinations(range(1, instance.length), instance.stages - 1)

    return Enumeration(
        count=lambda instance: comb(instance.length - 1, instance.stages - 1),
        solutions=lambda instance: map(solution, cuts(instance)),
    )


def start(instance: Chain, solution: Any) -> set[str]:
    """The names of the variables Y that are 1 in a solution, by stage and layer, up to the last layer by which the stage need
    not have begun."""
    ends = instance.length - instance.stages
    return {f"Y[{x},{l}]" for x, first in enumerate(solution.cuts, 1) for l in range(first, ends + x)}


class Cutting(Problem):
    """A problem with instances that are chains."""

    solution_field = "cuts"
    models = Models(start=start)
