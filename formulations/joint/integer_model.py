"""The part that both integer models (`milp`, `cpsat`) share: a configuration's solutions as paths through nodes and crossings.

A node of a unit is a pair (stage, option). Every stage has at least one unit, so stage i can hold units i .. L-p+i only. A
crossing is a possible boundary between neighbouring units: both lie in one stage, or a stage begins, from one interface state
to another.

Where a table that embedding and head share may be one parameter within one stage, the last unit has each of its options twice:
with the table as two parameters, and as one. The first unit's option decides which of the two applies.
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
from trainplan.profiling.base.errors import Unsupported

Node = tuple[int, int, int]  # unit, stage, option


class Crossing(NamedTuple):
    """A boundary between two neighbouring units as a solution crosses it. unit: the unit after the boundary. stage: the stage
    that holds that unit. before, after: the interface states (how ranks share hidden states) in which the unit before leaves
    its output, and in which this unit takes its input. begins: whether the stage begins with the unit."""

    unit: int
    stage: int
    before: int
    after: int
    begins: bool


@dataclass(frozen=True, eq=False)
class Nodes:
    """The choices of an instance with one configuration (schedule, number of micro-batches and device groups), as integer
    models (MILP, CP-SAT) state them. A unit is a sub-layer or layer that has one option.

    A node is a triple (unit, stage, option) that can be chosen: the unit lies in that stage and takes that option. A
    crossing is a possible boundary between neighbouring units, from one interface state (how ranks share hidden states) to
    another: either both units lie in one stage, or a stage begins between them. A solution is a path through one node for
    each unit. L is the number of units, p the number of stages.
    """

    instance: Instance

    @cached_property
    def configuration(self) -> Configuration:
        """The instance's only configuration."""
        (configuration,) = self.instance.configurations
        return configuration

    @property
    def units(self) -> range:
        """The indices of the units, 0 to L - 1."""
        return range(self.instance.length)

    @property
    def stages(self) -> range:
        """The indices of the stages, 0 to p - 1."""
        return range(self.configuration.stages)

    @cached_property
    def has_tied_options(self) -> bool:
        """Whether the last unit has each option twice: with the weight table that it shares with the first unit as two
        parameters, and as one."""
        return self.configuration.tied is not None and self.configuration.tied.once is not None

    def stages_of(self, unit: int) -> range:
        """The indices of the stages that may hold a unit if every stage has at least one unit and, where the configuration
        fixes the cuts, these are kept. unit: the unit's index; an index below 0 has no stages.
        """
        if unit < 0:
            return range(0)
        count, fixed = self.configuration.stages, self.configuration.cuts
        if fixed is not None:
            stage = sum(cut <= unit for cut in fixed)
            return range(stage, stage + 1)
        return range(max(0, unit - (self.instance.length - count)), min(unit + 1, count))

    def table(self, unit: int, stage: int) -> OptionTable:
        """The options of a unit in a stage, with their costs. The last unit's options are followed by the same options with the
        table that it shares with the first unit as one parameter, if it has those."""
        table, tied = self.instance.table(self.configuration, stage, unit), self.configuration.tied
        if not self.has_tied_options or unit < self.instance.length - 1 or tied is None or tied.once is None:
            return table
        columns: dict[str, Any] = {name: np.concatenate([getattr(table, name), getattr(tied.once, name)]) for name in COLUMNS}
        return OptionTable.of((*table.options, *tied.once.options), **columns)

    @cached_property
    def all_nodes(self) -> list[Node]:
        """All nodes, as (unit, stage, option), sorted."""
        return [(l, i, s) for l in self.units for i in self.stages_of(l) for s in range(len(self.table(l, i).options))]

    @cached_property
    def crossings(self) -> list[Crossing]:
        """All crossings whose two interface states neighbouring units may have, by unit and stage."""
        return [crossing for l in self.units[1:] for i in self.stages_of(l) for crossing in self._into(l, i)]

    def _into(self, unit: int, stage: int) -> Iterator[Crossing]:
        """The crossings into a unit that lies in a given stage, from the unit before it in the same stage or in the stage
        before."""
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
        """Whether a stage other than the first may begin with a unit. unit: the unit's index, at least 1."""
        fixed = self.configuration.cuts
        return self.instance.cuttable[unit - 1] if fixed is None else unit in fixed

    def boundary(self, unit: int, stage: int) -> Boundary:
        """The costs of the boundary between unit `unit` - 1 and unit `unit`, where the latter lies in stage `stage`."""
        return self.instance.boundary(self.configuration, stage, unit)

    def options(self, unit: int, stage: int, state: int, side: str) -> list[int]:
        """The indices of the options of a unit in a stage that have a given interface state. state: the number of the interface
        state. side: `enter` for the state in which the unit takes its input, `leave` for the state of its output."""
        return np.flatnonzero(getattr(self.table(unit, stage), side) == state).tolist()

    def message_bytes(self, message: Message) -> list[tuple[Crossing, int]]:
        """The bytes of a message between two stages as a linear expression: each crossing that may send it, with the bytes that
        the message then has. message: its direction (`forward` or `backward`), and the stage at whose beginning it crosses."""
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
        """A time of a stage as a linear expression: the nodes (unit, stage, option) that contribute to it, each with its
        contribution in ns; contributions of 0 are left out. symbol: the time's name, a field of `StageTimes`, and the stage.
        Without what units add because they begin or end a stage, except for the model's first and last unit."""
        name, stage = symbol
        terms = []
        for l, i, s in self.all_nodes:
            if i == stage and (value := self._node_ns(name, l, i, s)):
                terms.append(((l, i, s), value))
        return terms

    def _node_ns(self, name: str, unit: int, stage: int, option: int) -> int:
        """The contribution in ns of one option to a time of its stage. name: the time's name, a field of `StageTimes`. The
        model's first unit always begins a stage and its last unit always ends one, so what they add for that is included.
        option: a strategy, and what of the unit is kept on the host.
        """
        names = [name]
        if unit == 0:
            names += _AT_FIRST.get(name, [])
        if unit == self.instance.length - 1:
            names += _AT_LAST.get(name, [])
        return sum(_column(self.table(unit, stage), column, option) for column in names)

    def end_times(self, symbol: Symbol, first: bool) -> list[tuple[Node, int]]:
        """The times that units add because they begin, or end, a stage, to a time of that stage, as a linear expression: the
        nodes (unit, stage, option) with their times in ns. The model's first and last unit are left out, since `node_times`
        includes their times.

        symbol: the time's name, a field of `StageTimes`, and the stage. first: True for units that begin the stage, False
        for units that end it.
        """
        name, stage = symbol
        names = (_AT_FIRST if first else _AT_LAST).get(name, [])
        ends = [node for node in (self.firsts if first else self.lasts) if node[1] == stage]
        return [(node, sum(_column(self.table(*node[:2]), column, node[2]) for column in names)) for node in ends if names]

    @cached_property
    def firsts(self) -> list[Node]:
        """The nodes (unit, stage, option) that may begin a stage, of all units in which some option takes longer when it begins
        a stage; the model's first unit is left out."""
        return [
            p for p in self.all_nodes if p[0] > 0 and _any(self.table(*p[:2]), ("head_ns", "tail_ns")) and self.may_begin(p[0])
        ]

    @cached_property
    def lasts(self) -> list[Node]:
        """The nodes (unit, stage, option) that may end a stage, of all units in which some option takes longer when it ends a
        stage; the model's last unit is left out."""
        ends = self.units[:-1]
        return [
            p for p in self.all_nodes if p[0] in ends and _any(self.table(*p[:2]), ("turn_ns",)) and self.may_begin(p[0] + 1)
        ]

    def crossing_times(self, symbol: Symbol) -> list[tuple[Crossing, int]]:
        """The times that re-layouts and messages add to a time of a stage, as a linear expression: the crossings with their
        contributions in ns; contributions of 0 are left out. symbol: the time's name, a field of `StageTimes`, and the
        stage."""
        name, stage = symbol
        terms = []
        for crossing in self.crossings:
            if value := self._crossing_ns(crossing, name, stage):
                terms.append((crossing, value))
        return terms

    def _crossing_ns(self, crossing: Crossing, name: str, stage: int) -> int:
        """The contribution in ns of a crossing to a time of a stage; 0 if it adds nothing to it. name: the time's name, a field
        of `StageTimes`. stage: the index of the stage."""
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
        """An upper bound in ns on every step of the instance: all passes of all micro-batches one after the other, every unit
        under its slowest option."""
        units = sum(max(self._whole_ns(l, i, s) for l, i, s in self.all_nodes if l == unit) for unit in self.units)
        moves = sum(
            max((self._moves_ns(crossing) for crossing in self.crossings if crossing.unit == l), default=0) for l in self.units
        )
        tied = 0 if self.configuration.tied is None else self.configuration.tied.reduce_ns
        return 2 * self.configuration.micro_batches * (units + moves) + tied

    def _whole_ns(self, unit: int, stage: int, option: int) -> int:
        """The sum in ns of all times of one option of a unit in a stage; where the schedule slices micro-batches, the passes
        of halves are included. option: a strategy, and what of the unit is kept on the host.
        """
        halves = ("first_half_ns", "second_half_ns", "halved_backward_ns") if self.configuration.schedule.sliced else ()
        return sum(_column(self.table(unit, stage), name, option) for name in (*TIMES, *halves))

    def _moves_ns(self, crossing: Crossing) -> int:
        """The sum in ns of all re-layouts and messages of a crossing, for both stages that it joins."""
        names = ["forward_ns", "message_forward_ns", "backward_ns", "message_backward_ns"]
        if self.configuration.schedule.sliced:
            names += ["first_half_ns", "second_half_ns", "message_half_ns", "halved_backward_ns"]
        stages = {crossing.stage, crossing.stage - crossing.begins}
        return sum(self._crossing_ns(crossing, name, stage) for name in names for stage in stages)

    # Solutions

    def solution(self, chosen: Iterator[Node] | list[Node]) -> Solution:
        """The solution that nodes stand for. chosen: one node (unit, stage, option) for every unit, in any order."""
        rows = sorted(chosen)
        stages = [i for _, i, _ in rows]
        cuts = tuple(l for l in self.units[1:] if stages[l] != stages[l - 1])
        last = rows[-1][2] % self.last_options
        return Solution(0, cuts, (*(s for _, _, s in rows[:-1]), last))

    @cached_property
    def last_options(self) -> int:
        """The number of options of the last unit. Each counts only once, although the last unit's table may have each option
        twice: with the shared weight table as two parameters, and as one.
        """
        return len(self.instance.table(self.configuration, self.stages[-1], self.units[-1]).options)

    def once(self, first: int) -> list[int]:
        """The indices of the last unit's options (in the table with each option twice) with which the weight table that first
        and last unit share is one parameter. first: the index of the first unit's option.
        """
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
    """Raise Unsupported if the integer models (MILP, CP-SAT) cannot state an instance: stages reduce all of their gradients
    together, or devices have different memory limits."""
    check_additive(instance)
    limits = {instance.limit_bytes(group) for configuration in instance.configurations for group in configuration.device_groups}
    if len(limits) > 1:
        problem = f"have {len(limits)} limits of memory"
        raise Unsupported("instance", "classes", problem, "give `exact`, or classes of equal memory")


def check_additive(instance: Instance) -> None:
    """Raise Unsupported if some time of a stage is not a sum over its units (sub-layers or layers), because a stage reduces
    all of its gradients together. instance: the configurations to choose from, with costs and memory limits.
    """
    if any(configuration.reduction is not None for configuration in instance.configurations):
        problem = "reduces all gradients of a stage together"
        raise Unsupported(
            "instance", "configurations", problem, "give `brute-force`, or `exact` of the problem that it restricts"
        )


def _any(table: OptionTable, names: Iterable[str]) -> bool:
    """Whether any option of a table of costs has a number above 0 in one of the named columns. names: columns such as
    `head_ns`."""
    return any(getattr(table, name).any() for name in names)


def _column(table: OptionTable, name: str, option: int) -> int:
    """One option's number in a named column of its table, such as `forward_ns`, or in its times of half micro-batches; 0 for a
    name that options do not have, such as a message's time. option: a strategy, and what of the unit is kept on the host.
    """
    if name in ("first_half_ns", "second_half_ns", "halved_backward_ns"):
        assert table.halved is not None
        halved = table.halved
        return int(
            halved.backward_ns[option] if name == "halved_backward_ns" else halved.forward_ns[int(name[0] == "s"), option]
        )
    return int(getattr(table, name)[option]) if name in COLUMNS else 0
