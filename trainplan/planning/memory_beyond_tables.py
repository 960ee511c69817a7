"""The bytes that programs hold beyond the tables of a search, learned from simulations, so that plans fit to the byte.

Tables have the bytes that programs surely hold. Those that a simulated program holds in addition hardly differ among plans of
one layout, one schedule and the same numbers of stages and micro-batches. So the difference is noted of every plan that is
simulated, and added to the tables of configurations like its own; then all are searched again for what is better than the best
plan that fits, and where there is nothing, with fewer bytes added:

    ALIKE    of configurations of which nothing is known, as much as the least of their layout, or of all
    OWN      of configurations of which something is known, as much as the last of their plans
    REFUSED  only so much that no plan comes again that was simulated
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from trainplan.formulations.refinement import Refinement
from trainplan.planning.result import PlanningResult

Key = tuple[str, str, str]  # of an instance, a layout, and a schedule with its numbers


class Count(IntEnum):
    """How many bytes are added to the tables, see the head of the module."""

    ALIKE, OWN, REFUSED = range(3)


@dataclass
class BeyondTables:
    """Bytes beyond the tables, by configurations that are alike, and by whether the last unit needs them.

    Attributes:
        refinement: of the problem, which says what is alike.
        found: the bytes that programs of the last plan that was simulated held.
        refused: the least bytes that leave out all plans that did not fit.
    """

    refinement: Refinement
    found: dict[tuple[Key, bool], int] = field(default_factory=dict)
    refused: dict[tuple[Key, bool], int] = field(default_factory=dict)

    def keys(self, instance: Any) -> list[Key]:
        """For each configuration of an instance, its key: configurations of one key are alike."""
        return [(instance.name, layout, shape) for layout, shape in self.refinement.memory_groups(instance)]

    def note(self, instance: Any, made: PlanningResult, over: Sequence[int]) -> None:
        """Note the bytes beyond the tables of a plan that was simulated.

        instance: with tables of what programs surely hold, of which the plan is a solution. over: the bytes by which the
        simulated peaks exceed the memory, by rank; negative where they fit.
        """
        if (limit := instance.common_memory_bytes) is None or made.plan is None:
            return
        solution = made.answer.solution
        stages = made.plan.stages[: made.plan.depth]
        by_group = [max(over[rank] for rank in stage.ranks) for stage in stages]
        most, (tables, last) = max(zip(by_group, self.refinement.group_bytes(instance, solution), strict=True))
        where = self.keys(instance)[solution.configuration], last and len(stages) > 1
        self.found[where] = max(0, limit + most - tables)
        if most > 0 or (made.answer.objective_ns or 0) < made.walked_ns:  # else only what is claimed to be better comes again
            self.refused[where] = max(self.refused.get(where, 0), limit - tables + 1)

    def more_bytes(self, key: Key, last: bool, count: Count) -> int:
        """The bytes that plans of a key are taken to hold beyond the tables, while the last unit runs or while any does."""
        refused = self.refused.get((key, last), 0)
        if count == Count.REFUSED:
            return refused
        known = {each: more for (each, of_last), more in self.found.items() if of_last == last}
        if count == Count.ALIKE and known and key not in known:
            alike = [more for each, more in known.items() if each[:2] == key[:2]]
            return min(alike or known.values())
        return max(known.get(key, 0), refused)

    def corrected(self, instance: Any, count: Count = Count.OWN) -> Any:
        """The instance with tables of as many bytes as its plans are taken to hold."""
        if not self.found:
            return instance
        more = [(self.more_bytes(key, False, count), self.more_bytes(key, True, count)) for key in self.keys(instance)]
        return self.refinement.with_extra_bytes(instance, more)
