"""What the problems have in common whose solutions cut a chain into the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from math import comb
from typing import Any, ClassVar

from trainplan.formulations.problem import Problem
from trainplan.formulations.schedule.chains import Chain


class Cutting(Problem):
    """A problem with instances that are chains.

    home: also has the class `Solution` of its cuts. sizes: the attributes of an instance that tell its size.
    """

    sizes: ClassVar[tuple[str, ...]]
    solution_field = "cuts"

    def memory_bytes(self, instance: Chain) -> int | None:
        """The limit of one device; None without one, or where stages have different ones."""
        limits = set() if instance.memory is None else set(instance.memory.limit_bytes.tolist())
        return limits.pop() if len(limits) == 1 else None

    def count(self, instance: Chain) -> int:
        """The number of ways to cut the chain, whatever the memory."""
        return comb(instance.length - 1, instance.stages - 1)

    def solutions(self, instance: Chain) -> Iterator[Any]:
        """Every way to cut the chain, in lexicographic order of its cuts."""
        return map(self.home.Solution, combinations(range(1, instance.length), instance.stages - 1))

    def start(self, instance: Chain, solution: Any) -> set[str]:
        """Y, by stage and layer, up to the last layer by which the stage need not have begun."""
        ends = instance.length - instance.stages
        return {f"Y[{x},{l}]" for x, first in enumerate(solution.cuts, 1) for l in range(first, ends + x)}

    def size(self, instance: Chain) -> dict[str, int]:
        """The instance's sizes, and the memory limit where there is one."""
        sizes = {name: getattr(instance, name) for name in self.sizes}
        limit = self.memory_bytes(instance)
        return sizes if limit is None else sizes | {"memory_bytes": limit}
