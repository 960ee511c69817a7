"""joint as an OR-Tools CP-SAT model, in whole nanoseconds and bytes: one configuration at a time.

The path through nodes (l, i, s), unit l in stage i with option s, whose symbols and rows `milp` states.

Variables    x[l,i,s] bool       unit l lies in stage i and takes option s
             z[q] bool           crossing q is on the path
             h[l,i,s], e[l,i,s]  the node begins a stage, or ends one, where that takes longer
             D[t]                a time of a stage
             S[v]                the end of a pass that is a variable, see `end_time_rows`
             J                   the step
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ortools.sat.python import cp_model
from trainplan.formulations.cpsat import Terms, weighted_sum
from trainplan.formulations.joint.integer_model import Node, Nodes, check_supported
from trainplan.formulations.joint.problem import Instance, Solution
from trainplan.formulations.joint.simulation import graph_of
from trainplan.formulations.joint.stage_memory import moments_of
from trainplan.formulations.schedule.end_time_rows import Sum, end_time_rows
from trainplan.formulations.schedule.graph import Symbol

Variables = dict[Node, cp_model.IntVar]


def build(instance: Instance) -> tuple[cp_model.CpModel, Variables]:
    """The CP-SAT model of an instance with one configuration (schedule, number of micro-batches and device groups), and its
    variables x by node (unit, stage, option), which are true where the unit (sub-layer or layer) lies in that stage and takes
    that option. Raises Unsupported if the model cannot state the instance."""
    check_supported(instance)
    stated = _Model(instance)
    stated.path()
    stated.ends()
    stated.once()
    stated.model.minimize(_STEP[instance.step](stated))
    stated.memory()
    return stated.model, stated.x


class _Model:
    """A CP-SAT model that is being built for an instance with one configuration (schedule, number of micro-batches and device
    groups). A unit is a sub-layer or layer that has one option.

    nodes: the triples (unit, stage, option) that can be chosen, each with a Boolean variable x. crossings: the possible
    boundaries between neighbouring units, from one interface state (how ranks share hidden states) to another, within a
    stage or between two stages, each with a variable z. h, e: by node, whether it is chosen and begins, or ends, a stage.
    most: a time in ns that no step exceeds.
    """

    def __init__(self, instance: Instance) -> None:
        self.instance, self.nodes, self.model = instance, Nodes(instance), cp_model.CpModel()
        self.most = self.nodes.most_ns()
        self.x: Variables = {(l, i, s): self.model.new_bool_var(f"x[{l},{i},{s}]") for l, i, s in self.nodes.all_nodes}
        self.z = {c: self.model.new_bool_var(f"z[{q}]") for q, c in enumerate(self.nodes.crossings)}
        self.h: Variables = {node: self.model.new_bool_var(f"h{list(node)}") for node in self.nodes.firsts}
        self.e: Variables = {node: self.model.new_bool_var(f"e{list(node)}") for node in self.nodes.lasts}
        self.times: dict[Symbol, cp_model.IntVar] = {}

    def path(self) -> None:
        """Add the constraints of the path: every unit has exactly one node, and the nodes of neighbouring units are joined by
        exactly one crossing that has their stages and interface states."""
        nodes, last = self.nodes, len(self.nodes.units) - 1
        for l in nodes.units:
            self.model.add_exactly_one(x for node, x in self.x.items() if node[0] == l)
            if l:
                self.model.add_exactly_one(z for c, z in self.z.items() if c.unit == l)
            for i in nodes.stages_of(l):
                if l < last:
                    for state in sorted(set(nodes.table(l, i).leave.tolist())):
                        over = [
                            z for c, z in self.z.items() if c.unit == l + 1 and c.stage - c.begins == i and c.before == state
                        ]
                        self.model.add(sum(over) == sum(self.x[l, i, s] for s in nodes.options(l, i, state, "leave")))
                if l:
                    for state in sorted(set(nodes.table(l, i).enter.tolist())):
                        over = [z for c, z in self.z.items() if c.unit == l and c.stage == i and c.after == state]
                        self.model.add(sum(over) == sum(self.x[l, i, s] for s in nodes.options(l, i, state, "enter")))
        self.model.add(sum(x for node, x in self.x.items() if node[:2] == (0, 0)) == 1)

    def ends(self) -> None:
        """Add the constraints that tie the variables h and e, whether a node begins or ends a stage, to the chosen nodes and to
        the crossings at which stages begin."""
        for variables in (self.h, self.e):
            for node, variable in variables.items():
                self.model.add_implication(variable, self.x[node])
        for l, i in sorted({node[:2] for node in self.h}):
            for state in sorted(set(self.nodes.table(l, i).enter.tolist())):
                over = [z for c, z in self.z.items() if c.begins and (c.unit, c.stage, c.after) == (l, i, state)]
                self.model.add(sum(over) == sum(self.h[l, i, s] for s in self.nodes.options(l, i, state, "enter")))
        for l, i in sorted({node[:2] for node in self.e}):
            for state in sorted(set(self.nodes.table(l, i).leave.tolist())):
                over = [z for c, z in self.z.items() if c.begins and (c.unit, c.stage, c.before) == (l + 1, i + 1, state)]
                self.model.add(sum(over) == sum(self.e[l, i, s] for s in self.nodes.options(l, i, state, "leave")))

    def once(self) -> None:
        """Add the constraints for a weight table that the first unit (embedding) and the last unit (head) share. The last
        unit's options stand twice in the model, the second time with the table as one parameter; the last unit takes a
        second one exactly if the first unit's option allows one parameter.
        """
        if not self.nodes.has_tied_options:
            return
        last, count = self.nodes.units[-1], self.nodes.last_options
        for s in range(count):
            equal = _sum([x for (l, _, first), x in self.x.items() if l == 0 and s in self.nodes.once(first)])
            self.model.add(self.x[last, 0, count + s] <= equal)
            self.model.add(self.x[last, 0, s] + equal <= 1)

    def time(self, symbol: Symbol) -> cp_model.IntVar:
        """The variable of a time of a stage in ns; it is created, with the constraint that defines it, at its first use.
        symbol: the time's name, a field of `StageTimes`, and the stage."""
        if symbol not in self.times:
            terms: Terms = [(self.x[node], value) for node, value in self.nodes.node_times(symbol)]
            terms += [(self.z[crossing], value) for crossing, value in self.nodes.crossing_times(symbol)]
            terms += [(self.h[node], value) for node, value in self.nodes.end_times(symbol, True)]
            terms += [(self.e[node], value) for node, value in self.nodes.end_times(symbol, False)]
            variable = self.model.new_int_var(0, self.most, f"{symbol[0]}[{symbol[1]}]")
            self.model.add(variable == weighted_sum(terms))
            self.times[symbol] = variable
        return self.times[symbol]

    def total(self, names: Iterable[str], stage: int) -> cp_model.LinearExpr:
        """The sum in ns of several times of one stage, as an expression. names: fields of `StageTimes`."""
        return weighted_sum((self.time((name, stage)), 1) for name in names)

    def tied(self) -> Any:
        """The time in ns in which the first and the last stage sum the gradients of a weight table that embedding and head
        share, as an expression: 0 if there is none, or if under the chosen options the table is one parameter.
        """
        tied = self.nodes.configuration.tied
        if tied is None:
            return 0
        last, count = self.nodes.units[-1], self.nodes.last_options
        return tied.reduce_ns * (1 - sum(x for (l, _, s), x in self.x.items() if l == last and s >= count))

    def memory(self) -> None:
        """Add the constraints by which no device and no host holds more bytes than it has, at any moment of the schedule."""
        nodes, configuration = self.nodes, self.nodes.configuration
        of_stage = {x: [node for node in nodes.all_nodes if node[1] == x] for x in nodes.stages}

        def column(of: Iterable[Node], name: str, factor: int = 1) -> Terms:
            return [(self.x[l, i, s], factor * int(getattr(nodes.table(l, i), name)[s])) for l, i, s in of]

        for moment in moments_of(configuration):
            base: Terms = []
            for y, n in moment.counts:
                base += column(of_stage[y], "state_bytes") + column(of_stage[y], "held_bytes", n)
                base += column(of_stage[y], "kept_bytes", n - (y == moment.stage))
            for message, n in moment.messages:
                base += [(self.z[crossing], n * size) for crossing, size in nodes.message_bytes(message)]
            limit = self.instance.limit_bytes(configuration.device_group(moment.counts[0][0]))
            if moment.stage is None:
                self.model.add(weighted_sum(base) <= limit)
                continue
            for l in sorted({node[0] for node in of_stage[moment.stage]}):
                here = [node for node in of_stage[moment.stage] if node[0] == l]
                base += column(here, "kept_bytes")
                self.model.add(weighted_sum([*base, *column(here, "work_bytes")]) <= limit)
        for x in nodes.stages:
            host_limit = self.instance.host_limit_bytes(configuration.device_group(x))
            if host_limit is not None:
                self.model.add(weighted_sum(column(of_stage[x], "host_bytes")) <= host_limit)


def _simulated(stated: _Model) -> Any:
    """An integer variable for the step in ns, with the constraints that hold it at or above the simulated end of every device
    group. stated: the model, to which variables and constraints are added."""
    model, nodes = stated.model, stated.nodes
    passes = end_time_rows(graph_of(nodes.configuration), lambda duration: duration)
    starts = [model.new_int_var(0, stated.most, f"S[{v}]") for v in range(len(passes.rows))]
    step = model.new_int_var(0, stated.most, "J")

    def total(moment: Sum[Symbol]) -> Any:
        terms: Terms = [(stated.time(symbol), count) for symbol, count in moment.times]
        return weighted_sum(terms if moment.start is None else [(starts[moment.start], 1), *terms])

    for start, sums in zip(starts, passes.rows, strict=True):
        for moment in sums:
            model.add(start >= total(moment))
    group_count, tied = len(nodes.configuration.device_groups), stated.tied()
    for x in range(group_count):
        ends = x in (0, group_count - 1) and nodes.configuration.tied is not None
        after_passes = [*(stated.time(("optimizer_ns", y)) for y in nodes.stages[x::group_count]), *([tied] if ends else [])]
        for other in {0, group_count - 1} if ends else {x}:
            reduced = [stated.time(("reduce_ns", y)) for y in nodes.stages[other::group_count]]
            model.add(step >= _sum([total(passes.ends[other]), *reduced, *after_passes]))
    return step


def _eq_8(stated: _Model) -> Any:
    """The step in ns by Galvatron-BMW's Eq. 8, as an expression of the CP-SAT model. stated: the model, to which variables and
    constraints are added."""
    names = ("forward_ns", "backward_ns", "message_forward_ns", "message_backward_ns")
    slowest, running = _slowest(stated, names)
    syncs = [stated.total(("last_ns", "reduce_ns", "optimizer_ns"), x) for x in stated.nodes.stages]
    return _sum([(stated.nodes.configuration.micro_batches - 1) * slowest, *running, *syncs, stated.tied()])


def _eq_5(stated: _Model) -> Any:
    """The step in ns by AMP's Eq. 5, as an expression of the CP-SAT model. stated: the model, to which variables and
    constraints are added."""
    slowest, running = _slowest(stated, ("forward_ns", "backward_ns"))
    moves = [stated.total(("message_forward_ns", "message_backward_ns"), x) for x in stated.nodes.stages]
    return _sum([(stated.nodes.configuration.micro_batches - 1) * slowest, *running, *moves])


def _eq_4(stated: _Model) -> Any:
    """The step in ns by AMP's Eq. 4, as an expression of the CP-SAT model. stated: the model, to which variables and
    constraints are added."""
    longest, last = stated.model.new_int_var(0, stated.most, "W"), stated.nodes.stages[-1]
    for x in stated.nodes.stages:
        after_passes = stated.total(("reduce_ns", "optimizer_ns"), x)
        stated.model.add(_sum([after_passes, *([stated.tied()] if x in (0, last) else [])]) <= longest)
    return _sum([_eq_5(stated), longest])


def _slowest(stated: _Model, names: Iterable[str]) -> tuple[cp_model.IntVar, list[Any]]:
    """A new variable that is at least the sum of the named times of every stage, in ns, and the list of these sums by stage.
    names: fields of `StageTimes`. stated: the model, to which the variable and its constraints are added."""
    running: list[Any] = [stated.total(names, x) for x in stated.nodes.stages]
    slowest = stated.model.new_int_var(0, stated.most, "V")
    for whole in running:
        stated.model.add(whole <= slowest)
    return slowest, running


def _sum(parts: Sequence[Any]) -> Any:
    """The sum of linear expressions, variables and numbers of a CP-SAT model; 0 for an empty list."""
    return cp_model.LinearExpr.sum(list(parts))


_STEP: dict[str, Callable[[_Model], Any]] = {"simulated": _simulated, "eq8": _eq_8, "eq5": _eq_5, "eq4": _eq_4}


def extract(instance: Instance, x: Variables, value: Callable[[cp_model.IntVar], bool]) -> Solution:
    """The solution that a solver's answer stands for. x: the model's variables by node (unit, stage, option). value: returns
    the value of a variable in the answer, True or False. instance: the configurations to choose from, with costs and memory
    limits.
    """
    return Nodes(instance).solution([node for node, variable in x.items() if value(variable)])
