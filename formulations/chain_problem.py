"""The base of problems whose solutions cut a chain of layers into the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from math import comb
from typing import Any

from trainplan.formulations.problem import Enumeration, Models, Problem
from trainplan.formulations.schedule.chains import Chain


def cut_enumeration(solution: Callable[[tuple[int, ...]], Any]) -> Enumeration:
    """How brute force lists all solutions of a problem that partitions a chain of layers into stages: every partition into the
    instance's number of stages, in lexicographic order of the cuts, also those that exceed the memory.

    solution: turns cuts (the index of the first layer of every stage but the first) into a solution of the problem.
    """

    def cuts(instance: Chain) -> combinations[tuple[int, ...]]:
        """All cuts of a chain: the first layer of every stage but the first."""
        return combinations(range(1, instance.length), instance.stages - 1)

    return Enumeration(
        count=lambda instance: comb(instance.length - 1, instance.stages - 1),
        solutions=lambda instance: map(solution, cuts(instance)),
    )


def start(instance: Chain, solution: Any) -> set[str]:
    """A warm start for the models: the names of the binary variables Y[x,l] ("stage x has begun by layer l") that are 1 in a
    solution.

    Only undecided variables exist: layers by which stage x must have begun in any solution have no variable and are left out.
    solution: has the attribute `cuts`, the index of the first layer of every stage but the first.
    """
    ends = instance.length - instance.stages
    return {f"Y[{x},{l}]" for x, first in enumerate(solution.cuts, 1) for l in range(first, ends + x)}


class Cutting(Problem):
    """Base class of problems whose instances are chains of layers, and whose solutions are cuts: the index of the first layer
    of every pipeline stage but the first.
    """

    solution_field = "cuts"
    models = Models(start=start)
