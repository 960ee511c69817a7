"""joint as a mixed-integer linear program, in Pyomo: one configuration, with p stages and m micro-batches, at a time.

A plan is a path through nodes (l, i, s): unit l lies in stage i and takes option s. From unit to unit the path crosses a
boundary, from an interface state a to another b, and stays in its stage or begins the next one.

Sets         l units; i stages; s options; q crossings (l, i, a, b, begins): into unit l of stage i from state a to state b
             t times of stages, by name and stage (see `simulation`); v ends of passes that are variables, see `end_time_rows`
Parameters   of tables, in scaled units, see `units`; n_i micro-batches in flight; E memory, H memory of the host
Variables    x[l,i,s] in {0,1}   unit l lies in stage i and takes option s
             z[q] >= 0           the crossing is the path's
             h[l,i,s], e[l,i,s]  the node begins a stage, or ends one, where that takes longer
             D[t] >= 0           the time of a stage
             S[v] >= 0           the end of a pass
             F[l,i] >= 0         activations of one micro-batch held by stage i after the forward pass of unit l
             J >= 0              the step

    minimise   J
    first      sum_s x[0,0,s] = 1                                                       the path begins
    leave      sum of z[q] that leave node (l, i) in state a = sum of x[l,i,s] that leave in a     for every l < L-1, i, a
    enter      sum of z[q] that enter node (l, i) in state b = sum of x[l,i,s] that enter in b     for every l > 0, i, b
    ends       h[l,i,s] <= x[l,i,s], and the sum of those that enter in b = sum of z[q] that begin stage i so; e alike
    time       D[t] = the times of the nodes and crossings that count for it
    start      S[v] >= each of its sums of an earlier end and times                     the simulation
    step       J >= the end of each stage with D of the work after it, and the tied table's sum between both ends
    hold       F[l,i] = F[l-1,i] + sum_s kept x[l,i,s]
    peak       F[l,i] + sum_s work x[l,i,s] + sum_ks (state + n_i held + (n_i - 1) kept) x[k,i,s] <= E   for every l, i
    host       sum_ls host x[l,i,s] <= H                                                where hosts have a limit
    once       where the last unit has options as one table with the first unit's: these are taken with those alone

With x integer, z is integer as well: it fixes both ends of every crossing. Where Eq. 8 or Eq. 5 judges the step, `start` and
`step` are left out. Where chunks share a device group, `peak` has a row for every unit and every moment of the group's order
with other micro-batches in flight, with all bytes that the group's other chunks hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyomo.environ as pyo
from trainplan.formulations.joint.integer_model import Crossing, Node, Nodes, check_supported
from trainplan.formulations.joint.problem import Instance, Solution
from trainplan.formulations.joint.simulation import graph_of
from trainplan.formulations.joint.stage_memory import moments_of
from trainplan.formulations.milp import unit
from trainplan.formulations.schedule.end_time_rows import Sum, end_time_rows
from trainplan.formulations.schedule.graph import Symbol


def units(instance: Instance) -> tuple[int, int]:
    """The scales of the MILP, as (nanoseconds, bytes) that one unit of the model's variables stands for: powers of two chosen
    by a time that no step exceeds and by the memory limit, so that the solver's tolerances are small. instance: the
    configurations to choose from, with costs and memory limits.
    """
    nodes = Nodes(instance)
    return unit(nodes.most_ns() // 4), unit(instance.limit_bytes(nodes.configuration.device_groups[0]))


def weight(instance: Instance) -> int:
    """The largest factor by which the objective multiplies the error of a single constraint; the solver's tolerance is divided
    by it. It is 6 (m v + p) for m micro-batches, v stages on each device group and p stages in all: the number of
    constraints along a path of passes, each with an end, a time and a message. instance: the configurations to choose from,
    with costs and memory limits.
    """
    (configuration,) = instance.configurations
    return 6 * (configuration.micro_batches * configuration.schedule.chunks + configuration.stages)


def build(instance: Instance) -> pyo.ConcreteModel:
    """The Pyomo model of an instance with one configuration (schedule, number of micro-batches and device groups); its
    variables and constraints are listed at the head of this module. `extract` reads a solution from its solved values. Raises
    Unsupported if the model cannot state the instance."""
    check_supported(instance)
    m, nodes = pyo.ConcreteModel(name=instance.name), Nodes(instance)
    ns_per_unit, bytes_per_unit = units(instance)
    crossings = list(enumerate(nodes.crossings))
    m.x = pyo.Var(nodes.all_nodes, domain=pyo.Binary)
    m.z = pyo.Var([q for q, _ in crossings], domain=pyo.NonNegativeReals)
    m.D = pyo.Var(pyo.Any, dense=False, domain=pyo.NonNegativeReals)
    m.J = pyo.Var(domain=pyo.NonNegativeReals)

    m.first = pyo.Constraint(expr=sum(m.x[node] for node in nodes.all_nodes if node[:2] == (0, 0)) == 1)
    m.path = pyo.ConstraintList()
    for l in nodes.units:
        for i in nodes.stages_of(l):
            table = nodes.table(l, i)
            for side, states in (("leave", table.leave), ("enter", table.enter)):
                if l == (len(nodes.units) - 1 if side == "leave" else 0):
                    continue
                for state in sorted(set(states.tolist())):
                    if side == "leave":
                        over = [q for q, c in crossings if c.unit == l + 1 and c.stage - c.begins == i and c.before == state]
                    else:
                        over = [q for q, c in crossings if c.unit == l and c.stage == i and c.after == state]
                    options = nodes.options(l, i, state, side)
                    m.path.add(sum(m.z[q] for q in over) == sum(m.x[l, i, s] for s in options))
    _add_ends(m, nodes)
    numbers = {crossing: q for q, crossing in crossings}
    m.time = pyo.ConstraintList()

    def time(symbol: Symbol) -> Any:
        """The variable of a time of a stage; its row is added when the time is first used."""
        if symbol not in m.D:
            parts = [value / ns_per_unit * m.x[node] for node, value in nodes.node_times(symbol)]
            parts += [value / ns_per_unit * m.h[node] for node, value in nodes.end_times(symbol, True)]
            parts += [value / ns_per_unit * m.e[node] for node, value in nodes.end_times(symbol, False)]
            parts += [value / ns_per_unit * m.z[numbers[crossing]] for crossing, value in nodes.crossing_times(symbol)]
            m.time.add(m.D[symbol] == sum(parts))
        return m.D[symbol]

    _add_tied_once(m, nodes)
    _ADD[instance.step](m, nodes, time, ns_per_unit)
    _add_memory(m, nodes, numbers, bytes_per_unit)
    m.objective = pyo.Objective(expr=m.J)
    return m


def _add_ends(m: Any, nodes: Nodes) -> None:
    """Add to the Pyomo model `m` the variables h and e, which are 1 for nodes (unit, stage, option) that begin or end a stage,
    and the constraints that tie them to the chosen nodes and to the boundaries at which stages begin. nodes: the instance's
    nodes and boundaries."""
    crossings = [(q, crossing) for q, crossing in enumerate(nodes.crossings) if crossing.begins]
    m.h = pyo.Var(nodes.firsts, domain=pyo.NonNegativeReals)
    m.e = pyo.Var(nodes.lasts, domain=pyo.NonNegativeReals)
    m.ends = pyo.ConstraintList()
    for node in nodes.firsts:
        m.ends.add(m.h[node] <= m.x[node])
    for node in nodes.lasts:
        m.ends.add(m.e[node] <= m.x[node])
    for l, i in sorted({node[:2] for node in nodes.firsts}):
        for state in sorted(set(nodes.table(l, i).enter.tolist())):
            over = [q for q, c in crossings if (c.unit, c.stage, c.after) == (l, i, state)]
            m.ends.add(sum(m.z[q] for q in over) == sum(m.h[l, i, s] for s in nodes.options(l, i, state, "enter")))
    for l, i in sorted({node[:2] for node in nodes.lasts}):
        for state in sorted(set(nodes.table(l, i).leave.tolist())):
            over = [q for q, c in crossings if (c.unit, c.stage, c.before) == (l + 1, i + 1, state)]
            m.ends.add(sum(m.z[q] for q in over) == sum(m.e[l, i, s] for s in nodes.options(l, i, state, "leave")))


def _tied(m: Any, nodes: Nodes, ns_per_unit: int) -> Any:
    """The time, in the model's unit of time, in which the first and the last stage sum the gradients of a weight table that
    embedding and head share, as an expression of the Pyomo model `m`: 0 if there is none, or if under the chosen options
    the table is one parameter.

    nodes: the instance's choices (unit, stage, option) and boundaries. ns_per_unit: the nanoseconds of the model's unit of
    time.
    """
    tied = nodes.configuration.tied
    if tied is None:
        return 0
    last = nodes.units[-1]
    whole = [m.x[l, i, s] for l, i, s in nodes.all_nodes if l == last and s >= nodes.last_options]
    return tied.reduce_ns / ns_per_unit * (1 - sum(whole))


def _add_tied_once(m: Any, nodes: Nodes) -> None:
    """Add to the Pyomo model `m` the constraints by which the last unit (sub-layer or layer) takes an option with the shared
    parameter table as one parameter exactly where the first unit's option allows it. nodes: the instance's nodes and
    boundaries."""
    m.once = pyo.ConstraintList()
    if not nodes.has_tied_options:
        return
    last, count = nodes.units[-1], nodes.last_options
    firsts = [s for l, _, s in nodes.all_nodes if l == 0]
    for s in range(count):
        equal = sum(m.x[0, 0, first] for first in firsts if s in nodes.once(first))
        m.once.add(m.x[last, 0, count + s] <= equal)
        m.once.add(m.x[last, 0, s] <= 1 - equal)


def _add_simulated(m: Any, nodes: Nodes, time: Any, ns_per_unit: int) -> None:
    """Add to the Pyomo model `m` the variables and constraints of the simulated schedule: the end of every pass, and the step.
    time: a function that gives the variable of a stage's time for (name, stage). ns_per_unit: the nanoseconds of the model's
    unit of time. nodes: the instance's nodes and boundaries."""
    passes = end_time_rows(graph_of(nodes.configuration), lambda duration: duration)
    m.S = pyo.Var(range(len(passes.rows)), domain=pyo.NonNegativeReals)
    m.start, m.step = pyo.ConstraintList(), pyo.ConstraintList()

    def total(moment: Sum[Symbol]) -> Any:
        start = 0 if moment.start is None else m.S[moment.start]
        return start + sum(count * time(symbol) for symbol, count in moment.times)

    for v, sums in enumerate(passes.rows):
        for moment in sums:
            m.start.add(m.S[v] >= total(moment))
    group_count, tied = len(nodes.configuration.device_groups), _tied(m, nodes, ns_per_unit)
    for x in range(group_count):
        ends = x in (0, group_count - 1) and nodes.configuration.tied is not None
        after_passes = sum(time(("optimizer_ns", y)) for y in nodes.stages[x::group_count]) + (tied if ends else 0)
        for other in {0, group_count - 1} if ends else {x}:
            reduced = sum(time(("reduce_ns", y)) for y in nodes.stages[other::group_count])
            m.step.add(total(passes.ends[other]) + reduced + after_passes <= m.J)


def _add_eq_8(m: Any, nodes: Nodes, time: Any, ns_per_unit: int) -> None:
    """Add to the Pyomo model `m` the constraints by which the step is that of Galvatron-BMW's Eq. 8 instead of the simulated
    one. time: a function that gives the variable of a stage's time for (name, stage). ns_per_unit: the nanoseconds of the
    model's unit of time. nodes: the instance's nodes and boundaries."""
    m.V = pyo.Var(domain=pyo.NonNegativeReals)
    running = [_sum(time, ("forward_ns", "backward_ns", "message_forward_ns", "message_backward_ns"), x) for x in nodes.stages]
    syncs = sum(_sum(time, ("last_ns", "reduce_ns", "optimizer_ns"), x) for x in nodes.stages)
    m.step = pyo.ConstraintList()
    for whole in running:
        m.step.add(whole <= m.V)
    rest = (nodes.configuration.micro_batches - 1) * m.V
    m.step.add(rest + sum(running) + syncs + _tied(m, nodes, ns_per_unit) <= m.J)


def _add_eq_5(m: Any, nodes: Nodes, time: Any, ns_per_unit: int, after_passes: Any = 0) -> None:
    """Add to the Pyomo model `m` the constraints by which the step is that of AMP's Eq. 5 instead of the simulated one. time: a
    function that gives the variable of a stage's time for (name, stage). ns_per_unit: unused; part of the signature that all
    objectives share. after_passes: an expression that is added to the step. nodes: the instance's nodes and boundaries."""
    m.V = pyo.Var(domain=pyo.NonNegativeReals)
    running = [_sum(time, ("forward_ns", "backward_ns"), x) for x in nodes.stages]
    moves = sum(_sum(time, ("message_forward_ns", "message_backward_ns"), x) for x in nodes.stages)
    m.step = pyo.ConstraintList()
    for whole in running:
        m.step.add(whole <= m.V)
    m.step.add((nodes.configuration.micro_batches - 1) * m.V + sum(running) + moves + after_passes <= m.J)


def _add_eq_4(m: Any, nodes: Nodes, time: Any, ns_per_unit: int) -> None:
    """Add to the Pyomo model `m` the constraints by which the step is that of AMP's Eq. 4 instead of the simulated one. time: a
    function that gives the variable of a stage's time for (name, stage). ns_per_unit: the nanoseconds of the model's unit of
    time. nodes: the instance's nodes and boundaries."""
    m.W = pyo.Var(domain=pyo.NonNegativeReals)
    m.after_passes = pyo.ConstraintList()
    for x in nodes.stages:
        tied = _tied(m, nodes, ns_per_unit) if x in (0, nodes.stages[-1]) else 0
        m.after_passes.add(_sum(time, ("reduce_ns", "optimizer_ns"), x) + tied <= m.W)
    _add_eq_5(m, nodes, time, ns_per_unit, m.W)


_ADD = {"simulated": _add_simulated, "eq8": _add_eq_8, "eq5": _add_eq_5, "eq4": _add_eq_4}


def _sum(time: Any, names: Iterable[str], stage: int) -> Any:
    """The sum of the variables of several times of a stage, as a Pyomo expression. time: returns the variable of a stage's
    time, given (name, stage). names: fields of `StageTimes`.
    """
    return sum(time((name, stage)) for name in names)


def _add_memory(m: Any, nodes: Nodes, numbers: Mapping[Crossing, int], bytes_per_unit: int) -> None:
    """Add to the Pyomo model `m` the constraints by which no device and no host holds more bytes than it has. numbers: for each
    possible boundary crossing, the index of its variable z. bytes_per_unit: the bytes that one unit of the model's memory
    variables stands for. nodes: the instance's nodes and boundaries."""
    configuration, instance = nodes.configuration, nodes.instance
    m.F = pyo.Var([(l, i) for l in nodes.units for i in nodes.stages_of(l)], domain=pyo.NonNegativeReals)

    def column(chosen: Iterable[Node], name: str, factor: int = 1) -> Any:
        return sum(factor * int(getattr(nodes.table(l, i), name)[s]) / bytes_per_unit * m.x[l, i, s] for l, i, s in chosen)

    of_stage = {x: [node for node in nodes.all_nodes if node[1] == x] for x in nodes.stages}
    at = {(l, i): [node for node in of_stage[i] if node[0] == l] for l, i in m.F}
    m.hold = pyo.Constraint(
        list(m.F),
        rule=lambda m, l, i: (
            m.F[l, i] == (m.F[l - 1, i] if i in nodes.stages_of(l - 1) else 0) + column(at[l, i], "kept_bytes")
        ),
    )
    m.peak, m.host = pyo.ConstraintList(), pyo.ConstraintList()
    for moment in moments_of(configuration):
        counts, x = dict(moment.counts), moment.stage
        base = sum(
            column(of_stage[y], "state_bytes")
            + (column(of_stage[y], "held_bytes", n) if n else 0)
            + (column(of_stage[y], "kept_bytes", n - (y == x)) if n > (y == x) else 0)
            for y, n in counts.items()
        )
        base += sum(
            n * size / bytes_per_unit * m.z[numbers[crossing]]
            for message, n in moment.messages
            for crossing, size in nodes.message_bytes(message)
        )
        limit = instance.limit_bytes(configuration.device_group(min(counts))) / bytes_per_unit
        if x is None:
            m.peak.add(base <= limit)
        for l, i in m.F if x is not None else ():
            if i == x:
                m.peak.add(m.F[l, i] + column(at[l, i], "work_bytes") + base <= limit)
    for x in nodes.stages:
        host_limit = instance.host_limit_bytes(configuration.device_group(x))
        if host_limit is not None:
            host = column(of_stage[x], "host_bytes")
            if not isinstance(host, int):
                m.host.add(host <= host_limit / bytes_per_unit)


def extract(instance: Instance, values: Mapping[str, Mapping[Any, float]]) -> Solution:
    """The solution that solved values stand for: for every unit (sub-layer or layer), the node (unit, stage, option) whose
    variable x has the largest value. values: by name of the variable, the solved values by index, of which those of `x` are
    read. instance: the configurations to choose from, with costs and memory limits.
    """
    nodes = Nodes(instance)
    rows = [[node for node in nodes.all_nodes if node[0] == l] for l in nodes.units]
    return nodes.solution([max(row, key=lambda node: values["x"].get(node, 0.0)) for row in rows])
