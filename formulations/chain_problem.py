"""The base of problems whose solutions cut a chain of layers into the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from math import comb
from typing import Any

from trainplan.formulations.problem import Enumeration, Models, Problem
from trainplan.formulations.schedule.chains import Chain


def cut_enumeration(solution: Callable[[tuple[int, ...]], Any]) -> Enumeration:
    """Every partition of a chain into its number of stages, in lexicographic order of the cuts, whatever the memory.

    solution: turns cuts (the first layer of every stage but the first) into a solution of the problem.
    """

    def cuts(instance: Chain) -> combinations[tuple[int, ...]]:
        """All cuts of a chain: the first layer of every stage but the first."""
        return combinations(range(1, instance.length), instance.stages - 1)

    return Enumeration(
        count=lambda instance: comb(instance.length - 1, instance.stages - 1),
        solutions=lambda instance: map(solution, cuts(instance)),
    )


def start(instance: Chain, solution: Any) -> set[str]:
    """The names of the model variables Y[x,l] ("stage x has begun by layer l") that are 1 in a solution, for a warm start.
    Layers by which stage x must have begun anyway have no variable and are left out."""
    ends = instance.length - instance.stages
    return {f"Y[{x},{l}]" for x, first in enumerate(solution.cuts, 1) for l in range(first, ends + x)}


class Cutting(Problem):
    """A problem whose instances are chains and whose solutions are cuts."""

    solution_field = "cuts"
    models = Models(start=start)
