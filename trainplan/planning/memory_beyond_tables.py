"""The bytes that programs hold beyond a search's tables of memory, learned from simulations, so that plans fit to the byte.

The tables count the bytes that programs surely hold. The bytes that a simulated program holds in addition hardly differ among
plans of one layout, one schedule and equal numbers of stages and micro-batches. So the difference is noted for every simulated
plan, and added to the tables of all similar configurations. Then all are searched again for a plan better than the best one
that fits, and where there is none, with fewer bytes added:

    ALIKE    to configurations without a note, the least that was noted of their layout, or of all
    OWN      to configurations with a note, what the last of their plans held
    REFUSED  only as many bytes as keep the plans that did not fit from coming again
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from trainplan.formulations.refinement import Refinement
from trainplan.planning.result import PlanningResult

Key = tuple[str, str, str]  # the names of an instance, of a layout, and of a schedule with its numbers


class Count(IntEnum):
    """Which number of bytes programs of a configuration are assumed to hold in addition to what the instance's memory tables
    say. ALIKE: as many as programs of similar configurations held. OWN: as many as programs of the configuration itself
    held, 0 if none were simulated. REFUSED: only the fewest that exclude its plans that did not fit.
    """

    ALIKE, OWN, REFUSED = range(3)


@dataclass
class BeyondTables:
    """Notes of the bytes that compiled programs hold in addition to what an instance's memory tables say, so that planning can
    add them to the tables.

    A configuration is one choice of pipeline schedule, micro-batches and device layout in an instance. Notes are kept by
    key, a pair of texts that similar configurations share, and separately for the stage that has the last unit (sub-layer).

    Attributes:
        refinement: the problem's functions, of which those that give the keys of configurations are used.
        found: the bytes that the programs of the last simulated plan held in addition, by key and by whether in the last
            unit's stage.
        refused: likewise, the fewest bytes that, added to the tables, exclude all plans that did not fit.
    """

    refinement: Refinement
    found: dict[tuple[Key, bool], int] = field(default_factory=dict)
    refused: dict[tuple[Key, bool], int] = field(default_factory=dict)

    def keys(self, instance: Any) -> list[Key]:
        """The key of each configuration of an instance, in order; configurations that hold about equally many bytes beyond
        their tables share a key."""
        return [(instance.name, layout, shape) for layout, shape in self.refinement.memory_groups(instance)]

    def note(self, instance: Any, result: PlanningResult, over: Sequence[int]) -> None:
        """Note the bytes that the programs of a simulated plan held in addition to the instance's memory tables.

        Args:
            instance: the instance of which the plan is a solution; its tables count the bytes that programs surely hold.
            result: the result that has the simulated plan.
            over: for each rank, the bytes by which its simulated peak exceeds the memory; negative if it fits.
        """
        if (limit := instance.common_memory_bytes) is None or result.plan is None:
            return
        solution = result.answer.solution
        stages = result.plan.stages[: result.plan.depth]
        by_group = [max(over[rank] for rank in stage.ranks) for stage in stages]
        most, (tables, last) = max(zip(by_group, self.refinement.group_bytes(instance, solution), strict=True))
        key = self.keys(instance)[solution.configuration], last and len(stages) > 1
        self.found[key] = max(0, limit + most - tables)
        if most > 0 or (result.answer.objective_ns or 0) < result.walked_ns:  # otherwise no search finds this plan again
            self.refused[key] = max(self.refused.get(key, 0), limit - tables + 1)

    def more_bytes(self, key: Key, last: bool, count: Count) -> int:
        """The bytes that programs are assumed to hold in addition to the memory tables.

        key: the key of the plans' configurations. last: whether in the stage that has the last unit, or else in any other
        stage. count: which notes the assumption is made from.
        """
        refused = self.refused.get((key, last), 0)
        if count == Count.REFUSED:
            return refused
        known = {other: extra_bytes for (other, of_last), extra_bytes in self.found.items() if of_last == last}
        if count == Count.ALIKE and known and key not in known:
            of_layout = [extra_bytes for other, extra_bytes in known.items() if other[:2] == key[:2]]
            return min(of_layout or known.values())
        return max(known.get(key, 0), refused)

    def corrected(self, instance: Any, count: Count = Count.OWN) -> Any:
        """A copy of the instance in which, for each configuration, the bytes that programs are assumed to hold in addition are
        added to the memory tables; the instance itself if nothing is noted. count: which notes the assumption is made from.
        """
        if not self.found:
            return instance
        extra_bytes = [(self.more_bytes(key, False, count), self.more_bytes(key, True, count)) for key in self.keys(instance)]
        return self.refinement.with_extra_bytes(instance, extra_bytes)
