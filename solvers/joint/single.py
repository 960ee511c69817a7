"""Pipelines of one stage: passes follow each other whatever the schedule, so the step is m u + g, a chain under one memory.

Where embedding and head share a table, it is one parameter if both are laid out alike, and the head then costs what `Tied.once`
says. So the options of the first unit fall into groups by what they allow the last one, and each group is two chains: with the
last options that make it one parameter, and with the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from trainplan.formulations.joint.problem import Configuration, Instance, Solution
from trainplan.formulations.joint.tables import OptionTable, Tables
from trainplan.solvers.core.search import Search
from trainplan.solvers.joint.stage_tables import StageTables, cut_classes, stage_tables
from trainplan.solvers.joint.stages import Stages

Part = tuple[StageTables, tuple[int, ...], list[int] | None, list[int] | None, int]


class Single:
    """One configuration of one stage. bound_ns: what is proven of it so far; infinite once it is done with."""

    def __init__(self, instance: Instance, place: int, search: Search) -> None:
        self.instance, self.place, self.search = instance, place, search
        self.configuration: Configuration = instance.configurations[place]
        self.m = self.configuration.micro_batches
        self.kinds = tuple(unit.kind for unit in instance.units)
        site = self.configuration.sites[0]
        self.memory_bytes, self.host_bytes = instance.limit_bytes(site), instance.host_limit_bytes(site)
        self.depth = self.configuration.in_flight(0)
        self.sliced = self.configuration.schedule.sliced > 0
        self.parts = list(self._parts())
        self.count = 0

    def _parts(self) -> Iterator[Part]:
        """Tables and kinds of units of each chain, the numbers of the first and the last unit's options where only some are
        among them, and what a shared table adds."""
        tables, tied = self.configuration.tables[self.configuration.sites[0].kind], self.configuration.tied
        if tied is None or tied.equal is None:
            yield stage_tables(tables, self.sliced), self.kinds, None, None, 0 if tied is None else tied.reduce_ns
            return
        assert tied.once is not None and len(self.kinds) > 1
        first, last = tables.units[self.kinds[0]], tables.units[self.kinds[-1]]
        for row in np.unique(tied.equal, axis=0):
            ahead = np.flatnonzero((tied.equal == row).all(axis=1)).tolist()
            for equal, table, more in ((True, tied.once, 0), (False, last, tied.reduce_ns)):
                behind = np.flatnonzero(row == equal).tolist()
                if behind:
                    yield self._part(tables, first.keep(ahead), table.keep(behind)), self._ends(tables), ahead, behind, more

    def _part(self, tables: Tables, first: OptionTable, last: OptionTable) -> StageTables:
        return StageTables(replace(tables, units=(*tables.units, first, last)), self.sliced)

    def _ends(self, tables: Tables) -> tuple[int, ...]:
        count = len(tables.units)
        return (count, *self.kinds[1:-1], count + 1)

    def _least(self, part: Part) -> int:
        tables, kinds, _, _, more = part
        least = [int((self.m * kind.u_ns + kind.extra_ns).min()) for kind in tables.kinds]
        return sum(least[kind] for kind in kinds) + more

    def run(self, target: float, tolerance: float) -> float:
        """Solve all chains, reporting plans: the least bound of those that are not above the target. Raises TimeoutError."""
        bounds = [np.inf]
        for part in sorted(self.parts, key=self._least):
            tables, kinds, ahead, behind, more = part
            if self._least(part) > target:
                continue
            cuts = cut_classes(tables, 1)
            stages = Stages(tables, kinds, self.instance.boundary_kinds, self.memory_bytes, self.host_bytes, cuts)
            solved = stages.solve(0, len(kinds) - 1, self.depth, (self.m, 1), (0, 0), None, self.search, tolerance)
            self.count += 1
            if solved.column is not None:
                options = zip(kinds, solved.column.options, strict=True)
                choice = [int(tables.kinds[kind].places[s]) for kind, s in options]
                if ahead is not None and behind is not None:
                    choice[0], choice[-1] = ahead[choice[0]], behind[choice[-1]]
                self.search.report(Solution(self.place, (), tuple(choice)))
            bounds.append(solved.bound + more)
        return min(bounds)
