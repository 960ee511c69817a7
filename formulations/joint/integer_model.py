"""What both integer models of the joint problem share: an instance of one configuration as a path through places.

A place of a unit is a pair (stage, option); every stage has a unit, so stage i holds units i .. L-p+i only. Crossings are what
may lie between neighbouring units: they stay in a stage, or a stage begins, from an interface state to another.

Where one stage may hold a table of both ends as one parameter, the last unit has each of its options twice: as two parameters,
and as one. Which of both it is, the first unit's option decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from trainplan.formulations.joint.problem import Configuration, Instance, Solution
from trainplan.formulations.joint.stage_memory import Message
from trainplan.formulations.joint.tables import COLUMNS, FORBIDDEN, TIMES, Boundary, OptionTable
from trainplan.formulations.numbers import Integers
from trainplan.formulations.schedule.graph import Symbol
from trainplan.profiling.base.errors import Unsuited

Node = tuple[int, int, int]  # unit, stage, option


class Crossing(NamedTuple):
    """The boundary before a unit in a stage, between two states. begins: whether the stage begins there."""

    unit: int
    stage: int
    before: int
    after: int
    begins: bool


@dataclass(frozen=True, eq=False)
class Nodes:
    """The places and crossings of an instance of one configuration."""

    instance: Instance

    @cached_property
    def configuration(self) -> Configuration:
        """The only configuration."""
        (configuration,) = self.instance.configurations
        return configuration

    @property
    def units(self) -> range:
        """The units."""
        return range(self.instance.length)

    @property
    def stages(self) -> range:
        """The stages."""
        return range(self.configuration.stages)

    @cached_property
    def has_tied_options(self) -> bool:
        """Whether the last unit has its options twice."""
        return self.configuration.tied is not None and self.configuration.tied.once is not None

    def stages_of(self, unit: int) -> range:
        """Stages that may hold a unit, by the fixed cuts, too; none before the first unit."""
        if unit < 0:
            return range(0)
        count, fixed = self.configuration.stages, self.configuration.cuts
        if fixed is not None:
            stage = sum(cut <= unit for cut in fixed)
            return range(stage, stage + 1)
        return range(max(0, unit - (self.instance.length - count)), min(unit + 1, count))

    def table(self, unit: int, stage: int) -> OptionTable:
        """The options of a unit in a stage; of the last unit of one stage, those as one parameter behind the others."""
        table, tied = self.instance.table(self.configuration, stage, unit), self.configuration.tied
        if not self.has_tied_options or unit < self.instance.length - 1 or tied is None or tied.once is None:
            return table
        columns: dict[str, Any] = {name: np.concatenate([getattr(table, name), getattr(tied.once, name)]) for name in COLUMNS}
        return OptionTable.of((*table.options, *tied.once.options), **columns)

    @cached_property
    def all_nodes(self) -> list[Node]:
        """All places."""
        return [(l, i, s) for l in self.units for i in self.stages_of(l) for s in range(len(self.table(l, i).options))]

    @cached_property
    def crossings(self) -> list[Crossing]:
        """All crossings of states that agree."""
        return [crossing for l in self.units[1:] for i in self.stages_of(l) for crossing in self._into(l, i)]

    def _into(self, unit: int, stage: int) -> Iterator[Crossing]:
        boundary = self.boundary(unit, stage)
        after = np.unique(self.table(unit, stage).enter).tolist()
        for source in (stage - 1, stage):
            begins = source < stage
            if source not in self.stages_of(unit - 1) or (begins and not self.may_begin(unit)):
                continue
            if not begins and self.configuration.cuts is not None and unit in self.configuration.cuts:
                continue
            for a in np.unique(self.table(unit - 1, source).leave).tolist():
                for b in after:
                    moves = boundary.relayout_forward_ns[a, b], boundary.relayout_backward_ns[a, b]
                    if max(moves) < FORBIDDEN:
                        yield Crossing(unit, stage, a, b, begins)

    def may_begin(self, unit: int) -> bool:
        """Whether a stage may begin with a unit."""
        fixed = self.configuration.cuts
        return self.instance.cuttable[unit - 1] if fixed is None else unit in fixed

    def boundary(self, unit: int, stage: int) -> Boundary:
        """The boundary before a unit in a stage."""
        return self.instance.boundary(self.configuration, stage, unit)

    def options(self, unit: int, stage: int, state: int, side: str) -> list[int]:
        """The options of a unit in a stage that `enter` or `leave` in a state."""
        return np.flatnonzero(getattr(self.table(unit, stage), side) == state).tolist()

    def message_bytes(self, message: Message) -> list[tuple[Crossing, int]]:
        """What crossings add to the size of a message."""
        kind, stage = message
        messages = []
        for crossing in self.crossings:
            if crossing.begins and crossing.stage == stage:
                boundary = self.boundary(crossing.unit, stage)
                sizes = boundary.message_forward_bytes if kind == "forward" else boundary.message_backward_bytes
                if sizes is not None:
                    messages.append((crossing, int(sizes[crossing.before, crossing.after])))
        return messages

    # Times

    def node_times(self, symbol: Symbol) -> list[tuple[Node, int]]:
        """What places add to a time of a stage, beside what lies at the ends of the stage."""
        name, stage = symbol
        terms = []
        for l, i, s in self.all_nodes:
            if i == stage and (value := self._node_ns(name, l, i, s)):
                terms.append(((l, i, s), value))
        return terms

    def _node_ns(self, name: str, unit: int, stage: int, option: int) -> int:
        """What an option adds to a time of its stage; with what it adds as the first or the last unit of all."""
        names = [name]
        if unit == 0:
            names += _AT_FIRST.get(name, [])
        if unit == self.instance.length - 1:
            names += _AT_LAST.get(name, [])
        return sum(_column(self.table(unit, stage), column, option) for column in names)

    def end_times(self, symbol: Symbol, first: bool) -> list[tuple[Node, int]]:
        """What places add to a time of a stage that they begin (`first`) or end, beside that of the pipeline's own ends."""
        name, stage = symbol
        names = (_AT_FIRST if first else _AT_LAST).get(name, [])
        ends = [node for node in (self.firsts if first else self.lasts) if node[1] == stage]
        return [(node, sum(_column(self.table(*node[:2]), column, node[2]) for column in names)) for node in ends if names]

    @cached_property
    def firsts(self) -> list[Node]:
        """Places, but those of the first unit, that take longer where they begin a stage; with all of the unit's others."""
        return [
            p for p in self.all_nodes if p[0] > 0 and _any(self.table(*p[:2]), ("head_ns", "tail_ns")) and self.may_begin(p[0])
        ]

    @cached_property
    def lasts(self) -> list[Node]:
        """Places, but those of the last unit, that take longer where they end a stage; with all of the unit's others."""
        ends = self.units[:-1]
        return [
            p for p in self.all_nodes if p[0] in ends and _any(self.table(*p[:2]), ("turn_ns",)) and self.may_begin(p[0] + 1)
        ]

    def crossing_times(self, symbol: Symbol) -> list[tuple[Crossing, int]]:
        """What crossings add to a time of a stage."""
        name, stage = symbol
        terms = []
        for crossing in self.crossings:
            if value := self._crossing_ns(crossing, name, stage):
                terms.append((crossing, value))
        return terms

    def _crossing_ns(self, crossing: Crossing, name: str, stage: int) -> int:
        """A crossing's part of a time of a stage."""
        pair = crossing.before, crossing.after
        sender = crossing.stage - crossing.begins
        boundary = self.boundary(crossing.unit, crossing.stage)
        link = self.configuration.links[crossing.stage - 1] if crossing.begins else 0
        if crossing.begins and not boundary.relayout_at_cut and "message" not in name:
            return 0

        def of(matrix: Integers | None) -> int:
            assert matrix is not None
            return int(matrix[link][pair] if matrix.ndim == 3 else matrix[pair])

        if name == "forward_ns" and crossing.stage == stage:
            return of(boundary.relayout_forward_ns)
        if name in ("first_half_ns", "second_half_ns") and crossing.stage == stage:
            return of(boundary.halved_relayout_forward_ns)
        if name == "backward_ns" and sender == stage:
            return of(boundary.relayout_backward_ns)
        if name == "halved_backward_ns" and sender == stage:
            whole = boundary.relayout_backward_ns if crossing.begins else boundary.halved_relayout_backward_ns
            return of(whole)
        if crossing.begins and name == "message_forward_ns" and crossing.stage == stage:
            return of(boundary.message_forward_ns)
        if crossing.begins and name == "message_half_ns" and crossing.stage == stage:
            return of(boundary.halved_message_forward_ns)
        if crossing.begins and name == "message_backward_ns" and sender == stage:
            return of(boundary.message_backward_ns)
        return 0

    def most_ns(self) -> int:
        """A time that no step exceeds: all passes of all micro-batches one after the other, each unit at its slowest."""
        units = sum(max(self._whole_ns(l, i, s) for l, i, s in self.all_nodes if l == unit) for unit in self.units)
        moves = sum(
            max((self._moves_ns(crossing) for crossing in self.crossings if crossing.unit == l), default=0) for l in self.units
        )
        tied = 0 if self.configuration.tied is None else self.configuration.tied.reduce_ns
        return 2 * self.configuration.micro_batches * (units + moves) + tied

    def _whole_ns(self, unit: int, stage: int, option: int) -> int:
        """Every time of an option together, halves beside whole passes."""
        halves = ("first_half_ns", "second_half_ns", "halved_backward_ns") if self.configuration.schedule.sliced else ()
        return sum(_column(self.table(unit, stage), name, option) for name in (*TIMES, *halves))

    def _moves_ns(self, crossing: Crossing) -> int:
        names = ["forward_ns", "message_forward_ns", "backward_ns", "message_backward_ns"]
        if self.configuration.schedule.sliced:
            names += ["first_half_ns", "second_half_ns", "message_half_ns", "halved_backward_ns"]
        stages = {crossing.stage, crossing.stage - crossing.begins}
        return sum(self._crossing_ns(crossing, name, stage) for name in names for stage in stages)

    # Solutions

    def solution(self, chosen: Iterator[Node] | list[Node]) -> Solution:
        """What the places of all units stand for, in any order."""
        rows = sorted(chosen)
        stages = [i for _, i, _ in rows]
        cuts = tuple(l for l in self.units[1:] if stages[l] != stages[l - 1])
        last = rows[-1][2] % self.last_options
        return Solution(0, cuts, (*(s for _, _, s in rows[:-1]), last))

    @cached_property
    def last_options(self) -> int:
        """The number of options of the last unit, each once."""
        return len(self.instance.table(self.configuration, self.stages[-1], self.units[-1]).options)

    def once(self, first: int) -> list[int]:
        """The last unit's options that are one parameter with an option of the first unit's, counted once."""
        tied = self.configuration.tied
        assert tied is not None and tied.equal is not None
        return np.flatnonzero(tied.equal[first]).tolist()


_AT_FIRST = {
    "forward_ns": ["head_ns"],
    "first_half_ns": ["head_ns"],
    "second_half_ns": ["head_ns"],
    "backward_ns": ["tail_ns"],
    "halved_backward_ns": ["tail_ns"],
}
_AT_LAST = {"backward_ns": ["turn_ns"], "halved_backward_ns": ["turn_ns"]}


def check_supported(instance: Instance) -> None:
    """Raises Unsuited where a model cannot state the instance."""
    check_additive(instance)
    limits = {instance.limit_bytes(group) for configuration in instance.configurations for group in configuration.device_groups}
    if len(limits) > 1:
        problem = f"have {len(limits)} limits of memory"
        raise Unsuited("instance", "classes", problem, "give `exact`, or classes of equal memory")


def check_additive(instance: Instance) -> None:
    """Raises Unsuited where what a stage takes is no sum of what its units take."""
    if any(configuration.reduction is not None for configuration in instance.configurations):
        problem = "reduces all gradients of a stage together"
        raise Unsuited("instance", "configurations", problem, "give `brute-force`, or `exact` of the problem that it restricts")


def _any(table: OptionTable, names: Iterable[str]) -> bool:
    return any(getattr(table, name).any() for name in names)


def _column(table: OptionTable, name: str, option: int) -> int:
    if name in ("first_half_ns", "second_half_ns", "halved_backward_ns"):
        assert table.halved is not None
        halved = table.halved
        return int(
            halved.backward_ns[option] if name == "halved_backward_ns" else halved.forward_ns[int(name[0] == "s"), option]
        )
    return int(getattr(table, name)[option]) if name in COLUMNS else 0
