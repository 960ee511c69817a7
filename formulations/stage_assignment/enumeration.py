"""Every way to cut the chain of a stage-assignment instance, for tiny instances."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from math import comb

from trainplan.formulations.stage_assignment.problem import Instance, Solution


def count(instance: Instance) -> int:
    """The number of ways to cut the layers into stages, whatever their memory."""
    return comb(instance.layers - 1, instance.stages - 1)


def solutions(instance: Instance) -> Iterator[Solution]:
    """Every way to cut the layers into stages, whatever their memory."""
    return map(Solution, combinations(range(1, instance.layers), instance.stages - 1))
