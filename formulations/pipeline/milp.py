"""pipeline as a mixed-integer linear program, in Pyomo: one configuration, P stages and m micro-batches, at a time.

A plan is a path through nodes (l, i, s): layer l lies in stage i and takes option s. From layer to layer the path stays in its
stage, paying a re-layout, or enters the next stage, paying its entry. Memory needs no big-M: a row for every layer and every
stage that may hold it has the stage's own micro-batches in flight, and adds nothing where the layer lies elsewhere.

Sets         l layers; i stages; s options; (a, b) pairs of layout classes at the boundary after layer l
             stage i may hold layers i .. L-P+i; every index (l, i) below is one of these
Parameters   c time with synchronisation, g synchronisation, R transition, Y entry, O_f, O_b, O_ms bytes,
             n_i micro-batches in flight, E memory (in scaled units, see `units`)
Variables    x[l,i,s] in {0,1}   layer l lies in stage i and takes option s
             z[l,i,a,b] >= 0     layers l and l+1 lie in stage i, the boundary goes from class a to class b
             e[l,i,b] >= 0       stage i > 0 begins with layer l, of class b
             F[l,i] >= 0         activations of one micro-batch held by stage i after the forward pass of layer l
             M[i] >= 0           bytes of stage i that are held throughout
             T[i] >= 0           time of one micro-batch in stage i, with synchronisation
             V >= 0              time of the slowest stage without synchronisation

    minimise   (m - 1) V + sum_i T[i]                                                   (objective)              (Eq. 8)
    first      sum_s x[0,0,s] = 1                                                       the path begins
    onward     sum_s x[l,i,s] = sum_ab z[l,i,a,b] + sum_b e[l+1,i+1,b]                  for every l < L-1, i
    leave      sum_b z[l,i,a,b] <= sum_{s in a} x[l,i,s]                                for every l < L-1, i, a
    enter      sum_a z[l-1,i,a,b] + e[l,i,b] = sum_{s in b} x[l,i,s]                    for every l > 0, i, b
    stage      T[i] = sum_ls c x[l,i,s] + sum R z[.,i,.,.] + sum Y e[.,i,.]             for every i
    slowest    T[i] - sum_ls g x[l,i,s] <= V                                            for every i
    hold       F[l,i] = F[l-1,i] + sum_s O_f x[l,i,s]                                   for every l, i
    states     M[i] = sum_ls (O_ms + (n_i - 1) O_f) x[l,i,s]                            for every i
    peak       F[l,i] + sum_s O_b x[l,i,s] + M[i] <= E                                  for every l, i           (Eq. 2)

With x integer, z and e are integer as well: x fixes which of them may differ from 0, and that they sum to 1. Where layer l does
not lie in stage i, its peak row follows from that of the stage's last layer. The path ends in stage P-1, the only one that may
hold the last layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyomo.environ as pyo
from trainplan.formulations.milp import unit
from trainplan.formulations.pipeline.instance import Instance
from trainplan.formulations.pipeline.layouts import boundaries, most_ns, only, solution, stages_of
from trainplan.formulations.pipeline.problem import Solution


def units(instance: Instance) -> tuple[int, int]:
    """The scales of the MILP, as (nanoseconds, bytes) that one unit of the model's variables stands for: powers of two chosen
    by the largest objective and by the memory limit.

    In finer units HiGHS's first linear program stalls on some instances of 50 layers. instance: the configurations (numbers
    of stages and micro-batches) to choose from, with the costs of layers under each strategy, and the memory limit.
    """
    return unit(only(instance).micro_batches * most_ns(instance)), unit(instance.memory_bytes)


def weight(instance: Instance) -> int:
    """The largest factor by which the objective multiplies the error of a constraint on times; the solver's tolerance is
    divided by it. instance: the configurations (numbers of stages and micro-batches) to choose from, with the costs of
    layers under each strategy, and the memory limit.
    """
    return only(instance).micro_batches


def build(instance: Instance) -> pyo.ConcreteModel:
    """The Pyomo model of an instance of one configuration (numbers of stages and micro-batches); its variables and constraints
    are listed at the head of this module. `extract` reads a solution from its solved values. instance: the configurations
    (numbers of stages and micro-batches) to choose from, with the costs of layers under each strategy, and the memory
    limit.
    """
    m = pyo.ConcreteModel(name=instance.name)
    configuration, borders = only(instance), boundaries(instance)
    kinds, tables = instance.layer_kinds, configuration.tables
    layers, stages, options = range(instance.layers), range(configuration.stages), range(len(tables.strategies))
    indices = [(l, i) for l in layers for i in stages_of(instance, l)]
    not_last = [(l, i) for l, i in indices if l + 1 in layers]
    stays = [(l, i) for l, i in not_last if i in stages_of(instance, l + 1)]
    before = [range(len(border.before)) for border in borders]
    after = [range(len(border.after)) for border in borders]

    ns_per_unit, bytes_per_unit = units(instance)
    c, g = tables.time_ns / ns_per_unit, tables.sync_ns / ns_per_unit
    o_f, o_b, o_ms = (v / bytes_per_unit for v in (tables.forward_bytes, tables.backward_bytes, tables.state_bytes))
    others = [configuration.in_flight(i) - 1 for i in stages]  # micro-batches in flight but one

    m.x = pyo.Var([(l, i, s) for l, i in indices for s in options], domain=pyo.Binary)
    m.z = pyo.Var([(l, i, a, b) for l, i in stays for a in before[l] for b in after[l]], domain=pyo.NonNegativeReals)
    m.e = pyo.Var([(l, i, b) for l, i in indices if i for b in after[l - 1]], domain=pyo.NonNegativeReals)
    m.F = pyo.Var(indices, domain=pyo.NonNegativeReals)
    m.M = pyo.Var(stages, domain=pyo.NonNegativeReals)
    m.T = pyo.Var(stages, domain=pyo.NonNegativeReals)
    m.V = pyo.Var(domain=pyo.NonNegativeReals)

    def in_stage(i: int, values: Any) -> Any:
        """The sum of a column of the tables over the layers of stage i."""
        return sum(float(values[kinds[l], s]) * m.x[l, i, s] for l, j in indices if j == i for s in options)

    def of_layer(l: int, i: int, values: Any) -> Any:
        """The value of a column of the tables for layer l, where it lies in stage i."""
        return sum(float(values[kinds[l], s]) * m.x[l, i, s] for s in options)

    def stay(l: int, i: int) -> Any:
        """Whether the path stays in stage i after layer l."""
        return sum(m.z[l, i, a, b] for a in before[l] for b in after[l]) if (l, i) in stays else 0

    m.first = pyo.Constraint(expr=sum(m.x[0, 0, s] for s in options) == 1)
    m.onward = pyo.Constraint(
        not_last,
        rule=lambda m, l, i: (
            sum(m.x[l, i, s] for s in options)
            == stay(l, i) + (sum(m.e[l + 1, i + 1, b] for b in after[l]) if i + 1 in stages else 0)
        ),
    )
    m.leave = pyo.Constraint(
        [(l, i, a) for l, i in stays for a in before[l]],
        rule=lambda m, l, i, a: sum(m.z[l, i, a, b] for b in after[l]) <= sum(m.x[l, i, s] for s in borders[l].before[a]),
    )
    m.enter = pyo.Constraint(
        [(l, i, b) for l, i in indices if l for b in after[l - 1]],
        rule=lambda m, l, i, b: (
            (sum(m.z[l - 1, i, a, b] for a in before[l - 1]) if (l - 1, i) in stays else 0) + (m.e[l, i, b] if i else 0)
            == sum(m.x[l, i, s] for s in borders[l - 1].after[b])
        ),
    )
    m.stage = pyo.Constraint(
        stages,
        rule=lambda m, i: (
            m.T[i]
            == in_stage(i, c)
            + sum(borders[l].costs_ns[a][b] / ns_per_unit * m.z[l, j, a, b] for l, j, a, b in m.z if j == i)
            + sum(borders[l - 1].entries_ns[b] / ns_per_unit * m.e[l, j, b] for l, j, b in m.e if j == i)
        ),
    )
    m.slowest = pyo.Constraint(stages, rule=lambda m, i: m.T[i] - in_stage(i, g) <= m.V)
    m.hold = pyo.Constraint(
        indices, rule=lambda m, l, i: m.F[l, i] == (m.F[l - 1, i] if (l - 1, i) in stays else 0) + of_layer(l, i, o_f)
    )
    m.states = pyo.Constraint(stages, rule=lambda m, i: m.M[i] == in_stage(i, o_ms + others[i] * o_f))
    m.peak = pyo.Constraint(
        indices, rule=lambda m, l, i: m.F[l, i] + of_layer(l, i, o_b) + m.M[i] <= instance.memory_bytes / bytes_per_unit
    )
    m.objective = pyo.Objective(expr=(configuration.micro_batches - 1) * m.V + sum(m.T[i] for i in stages))
    return m


def extract(instance: Instance, values: Mapping[str, Mapping[tuple[int, int, int], float]]) -> Solution:
    """The solution that solved values stand for: for each layer, the stage and option whose variable x has the largest value.
    values: by name of the variable, the solved values by index, of which those of `x` are read. instance: the
    configurations (numbers of stages and micro-batches) to choose from, with the costs of layers under each strategy, and
    the memory limit.
    """
    options = range(len(only(instance).tables.strategies))
    rows = [[(l, i, s) for i in stages_of(instance, l) for s in options] for l in range(instance.layers)]
    return solution(instance, (max(row, key=values["x"].__getitem__) for row in rows))
