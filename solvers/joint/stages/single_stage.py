"""Solves configurations of one stage: passes follow each other under every schedule, so the step is m u + g, a chain under one
memory limit.

m: micro-batches; u: both passes of one; g: the work after the last one. Where embedding and head share a table, it is one
parameter if both have equal layouts, and the head then has the costs of `Tied.once`. So the options of the first unit fall into
groups by what they allow the last one, and each group gives two chains: with the last unit's options that make it one
parameter, and with the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from trainplan.formulations.joint.problem import Configuration, Instance, Solution
from trainplan.formulations.joint.tables import OptionTable, Tables
from trainplan.formulations.numbers import Integers
from trainplan.solvers.core.search import Search
from trainplan.solvers.joint.stages.label_setting import Stages
from trainplan.solvers.joint.stages.option_tables import cut_classes, stage_tables


@dataclass(frozen=True, eq=False)
class TiedCase:
    """One chain to solve for a configuration (number of stages and micro-batches, with a schedule) of one stage: the kinds of
    its units (sub-layers), their tables, the indices of the options that the first and the last unit may have (ends; None where
    all are allowed), and the time in ns that summing the gradients of a table shared by embedding and head adds."""

    kinds: tuple[int, ...]
    tables: Tables
    ends: tuple[list[int], list[int]] | None
    shared_ns: int


class Single:
    """Solves one configuration (number of stages and micro-batches, with a schedule) of a single stage: one chain of options
    under one memory limit, or several chains if embedding and head share a table. The best choice of any chain is the
    configuration's best plan."""

    def __init__(self, instance: Instance, configuration_index: int, search: Search) -> None:
        self.instance, self.configuration_index, self.search = instance, configuration_index, search
        self.configuration: Configuration = instance.configurations[configuration_index]
        self.m = self.configuration.micro_batches
        self.kinds = tuple(unit.kind for unit in instance.units)
        device_group = self.configuration.device_groups[0]
        self.memory_bytes, self.host_bytes = instance.limit_bytes(device_group), instance.host_limit_bytes(device_group)
        self.depth = self.configuration.in_flight(0)
        self.sliced = self.configuration.schedule.sliced > 0
        self.cases = list(self._cases())
        self.count = 0

    def _cases(self) -> Iterator[TiedCase]:
        """Divide the configuration into chains (units with their options) that together have all choices of options: one with
        all options of the first and the last unit (sub-layer), or, if both may share a table, several with some of these
        options."""
        tables, tied = self.configuration.tables[self.configuration.device_groups[0].kind], self.configuration.tied
        kinds, shared_ns = self.kinds, 0 if tied is None else tied.reduce_ns
        if tied is None or tied.equal is None:
            yield TiedCase(kinds, tables, None, shared_ns)
            return
        assert tied.once is not None and len(kinds) > 1
        first, last, count = tables.units[kinds[0]], tables.units[kinds[-1]], len(tables.units)
        for row in np.unique(tied.equal, axis=0):
            firsts = np.flatnonzero((tied.equal == row).all(axis=1)).tolist()
            for equal, table, more in ((True, tied.once, 0), (False, last, shared_ns)):
                lasts = np.flatnonzero(row == equal).tolist()
                if lasts:
                    units = (*tables.units, first.keep(firsts), table.keep(lasts))
                    yield TiedCase((count, *kinds[1:-1], count + 1), replace(tables, units=units), (firsts, lasts), more)

    def _least(self, case: TiedCase) -> int:
        """A lower bound in ns on the step time of every choice of options in a chain, ignoring memory and re-layouts: the sum
        over units (sub-layers) of the least time for all micro-batches and the work after them. case: the chain."""
        tables = case.tables.units
        least = {
            kind: int((self.m * _u_ns(tables[kind], self.sliced) + _extra_ns(tables[kind])).min()) for kind in set(case.kinds)
        }
        return sum(least[kind] for kind in case.kinds) + case.shared_ns

    def _least_bytes(self, case: TiedCase) -> int:
        """A lower bound in bytes on the memory of every choice of options in a chain: the sum of the least bytes that every
        unit (sub-layer) holds throughout, and the largest of the units' least running passes. case: the chain."""
        tables, n = case.tables.units, self.depth
        states, passes = dict[int, int](), dict[int, int]()
        for kind in set(case.kinds):
            table = tables[kind]
            states[kind] = int((table.state_bytes + n * table.held_bytes + (n - 1) * table.kept_bytes).min())
            passes[kind] = int((table.kept_bytes + table.work_bytes).min())
        return sum(states[kind] for kind in case.kinds) + max(passes.values())

    def run(self, target: Callable[[], float], tolerance: float) -> float:
        """Solve all chains of the configuration, and report plans. Returns a lower bound in ns on the configuration's plans,
        infinite if none fits.

        target: returns the largest step time in ns that is still worth finding; chains whose bound is above it are not solved.
        tolerance: the relative gap between bound and plan at which the search may stop. Raises TimeoutError."""
        bounds = [np.inf]
        for least, _, case in sorted((self._least(case), number, case) for number, case in enumerate(self.cases)):
            if least > target():
                bounds.append(least)
                break
            if self._least_bytes(case) > self.memory_bytes:
                continue
            tables, kinds = stage_tables(case.tables, self.sliced), case.kinds
            cuts = cut_classes(tables, 1)
            stages = Stages(tables, kinds, self.instance.boundary_kinds, self.memory_bytes, self.host_bytes, cuts)
            chain, worth_ns = (0, len(kinds) - 1, self.depth, (self.m, 1), (0, 0), None), target() - case.shared_ns
            solved = stages.solve(*chain, self.search, tolerance, worth_ns)
            self.count += 1
            if solved.column is not None:
                options = zip(kinds, solved.column.options, strict=True)
                choice = [int(tables.kinds[kind].indices[s]) for kind, s in options]
                if case.ends is not None:
                    firsts, lasts = case.ends
                    choice[0], choice[-1] = firsts[choice[0]], lasts[choice[-1]]
                self.search.report(Solution(self.configuration_index, (), tuple(choice)))
            bounds.append(solved.bound + case.shared_ns)
        return min(bounds)


def _u_ns(table: OptionTable, sliced: bool) -> Integers:
    """For each of the S options of a unit (sub-layer), (S,), the time in ns of forward plus backward pass of a micro-batch.
    table: the unit's options. sliced: whether some micro-batches run in halves; the cheaper of whole passes and both halves
    then counts.
    """
    if not sliced or table.halved is None:
        return table.forward_ns + table.backward_ns
    forward = np.minimum(table.forward_ns, table.halved.forward_ns.sum(axis=0))
    whole: Integers = forward + np.minimum(table.backward_ns, table.halved.backward_ns)
    return whole


def _extra_ns(table: OptionTable) -> Integers:
    """For each of the S options of a unit (sub-layer), (S,), the work in ns after the last micro-batch: what it adds itself,
    gradient reduction and optimizer. table: the unit's options.
    """
    return table.last_ns + table.end_ns
