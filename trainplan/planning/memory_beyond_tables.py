"""What programs hold beyond the tables of a search, learned from walks: how plans are found that fit to the byte.

Tables have what programs surely hold. What a walk has beyond them hardly differs among plans of one layout, one schedule and
the same numbers of stages and micro-batches. So of every plan that is walked the difference is noted and counted in the tables
of configurations like its own, and all of them are searched again for what is better than the best plan that fits; where there
is nothing, with less that is counted:

    ALIKE    of configurations of which nothing is known, as much as the least of their layout, or of all
    OWN      of configurations of which something is known, as much as the last of their plans
    REFUSED  only so much that no plan comes again that was walked
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
    """What is counted beyond the tables, see the module's head."""

    ALIKE, OWN, REFUSED = range(3)


@dataclass
class BeyondTables:
    """What walks had beyond the tables, by configurations that are alike, and by whether it is the last unit that needs it.

    found: of the last plan that was walked; refused: what leaves all out that did not fit.
    """

    refinement: Refinement
    found: dict[tuple[Key, bool], int] = field(default_factory=dict)
    refused: dict[tuple[Key, bool], int] = field(default_factory=dict)

    def keys(self, instance: Any) -> list[Key]:
        """Of the configurations of an instance."""
        return [(instance.name, layout, shape) for layout, shape in self.refinement.memory_groups(instance)]

    def note(self, instance: Any, made: PlanningResult, over: Sequence[int]) -> None:
        """A plan was walked. instance: with tables of what programs surely hold, of which it has a solution; over: by how much
        the walk is above the memory, by rank, negative where it fits."""
        if (limit := instance.common_memory_bytes) is None or made.plan is None:
            return
        solution = made.answer.solution
        stages = made.plan.stages[: made.plan.depth]
        by_site = [max(over[rank] for rank in stage.ranks) for stage in stages]
        most, (tables, last) = max(zip(by_site, self.refinement.group_bytes(instance, solution), strict=True))
        where = self.keys(instance)[solution.configuration], last and len(stages) > 1
        self.found[where] = max(0, limit + most - tables)
        if most > 0 or (made.answer.objective_ns or 0) < made.walked_ns:  # else only what is claimed to be better comes again
            self.refused[where] = max(self.refused.get(where, 0), limit - tables + 1)

    def more_bytes(self, key: Key, last: bool, count: Count) -> int:
        """What plans of a key are taken to hold more."""
        refused = self.refused.get((key, last), 0)
        if count == Count.REFUSED:
            return refused
        known = {each: more for (each, of_last), more in self.found.items() if of_last == last}
        if count == Count.ALIKE and known and key not in known:
            alike = [more for each, more in known.items() if each[:2] == key[:2]]
            return min(alike or known.values())
        return max(known.get(key, 0), refused)

    def corrected(self, instance: Any, count: Count = Count.OWN) -> Any:
        """The instance with tables of as much as plans are taken to hold."""
        if not self.found:
            return instance
        more = [(self.more_bytes(key, False, count), self.more_bytes(key, True, count)) for key in self.keys(instance)]
        return self.refinement.with_extra_bytes(instance, more)
