"""layer-strategies as a mixed-integer linear program, in Pyomo.

Sets         l layers; s options of a layer; (a, b) pairs of layout classes at the boundary after layer l
Parameters   c time, R transition, O_f, O_b, O_ms bytes, E memory (in scaled units, see below)
Variables    x[l,s] in {0,1}     layer l takes option s
             z[l,a,b] >= 0       boundary l goes from class a to class b
             F[l] >= 0           activations held after the forward pass of layer l
             M >= 0              model states of all layers

    minimise   sum c x + sum R z                                                        (objective)
    choose     sum_s x[l,s] = 1                                                         for every l
    leave      sum_b z[l,a,b] = sum_{s in a} x[l,s]                                     for every l, a
    enter      sum_a z[l,a,b] = sum_{s in b} x[l+1,s]                                   for every l, b
    hold       F[l] = F[l-1] + sum_s O_f x[l,s]                                         for every l
    states     M = sum O_ms x
    peak       F[l] + sum_s O_b x[l,s] + M <= E                                         for every l      (Eq. 2)

With x integer, z is integer in every vertex (a transport between two unit vectors), so it needs no integrality. Running sums
F keep the peak rows short. Raw nanoseconds and bytes mislead floating-point solvers: the model is stated in powers of two of
them (see `units`), and its answers are checked on the integers afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyomo.environ as pyo
from trainplan.formulations.layer_strategies.layout_classes import boundaries
from trainplan.formulations.layer_strategies.problem import Instance
from trainplan.formulations.milp import unit


def units(instance: Instance) -> tuple[int, int]:
    """The scales of the MILP, as (nanoseconds, bytes) that one unit of the model's variables stands for: powers of two chosen
    by the largest time and by the memory limit.

    Since an integrality error is multiplied by the coefficient of its variable, the solver's adapter sets the tolerance to
    1e-9. instance: the costs of each layer under each of its options (strategies), and the memory limit.
    """
    largest = sum(int(c.max()) for c in instance.time_ns) + sum(int(table.max()) for table in instance.transitions_ns)
    return unit(largest), unit(instance.memory_bytes)


def build(instance: Instance) -> pyo.ConcreteModel:
    """The Pyomo model of an instance; its variables and constraints are listed at the head of this module. `extract` reads the
    chosen option of every layer from the solved values. instance: the costs of each layer under each of its options
    (strategies), and the memory limit.
    """
    m = pyo.ConcreteModel(name=instance.name)
    layers = range(instance.layers)
    borders = boundaries(instance)
    options = [(l, s) for l in layers for s in range(instance.options[l])]
    flows = [
        (l, a, b)
        for l, border in enumerate(borders)
        if not border.free
        for a in range(len(border.before))
        for b in range(len(border.after))
    ]
    crossed = sorted({l for l, _, _ in flows})

    ns_per_unit, bytes_per_unit = units(instance)

    def time(value: int) -> float:
        """A time in model units."""
        return value / ns_per_unit

    def size(value: int) -> float:
        """A size in model units."""
        return value / bytes_per_unit

    m.x = pyo.Var(options, domain=pyo.Binary)
    m.z = pyo.Var(flows, domain=pyo.NonNegativeReals)
    m.F = pyo.Var(layers, domain=pyo.NonNegativeReals)
    m.M = pyo.Var(domain=pyo.NonNegativeReals)

    m.choose = pyo.Constraint(layers, rule=lambda m, l: sum(m.x[l, s] for s in range(instance.options[l])) == 1)
    m.leave = pyo.Constraint(
        [(l, a) for l in crossed for a in range(len(borders[l].before))],
        rule=lambda m, l, a: (
            sum(m.z[l, a, b] for b in range(len(borders[l].after))) == sum(m.x[l, s] for s in borders[l].before[a])
        ),
    )
    m.enter = pyo.Constraint(
        [(l, b) for l in crossed for b in range(len(borders[l].after))],
        rule=lambda m, l, b: (
            sum(m.z[l, a, b] for a in range(len(borders[l].before))) == sum(m.x[l + 1, s] for s in borders[l].after[b])
        ),
    )
    m.hold = pyo.Constraint(
        layers,
        rule=lambda m, l: (
            m.F[l] == (m.F[l - 1] if l else 0) + sum(size(int(f)) * m.x[l, s] for s, f in enumerate(instance.forward_bytes[l]))
        ),
    )
    m.states = pyo.Constraint(expr=sum(size(int(instance.state_bytes[l][s])) * m.x[l, s] for l, s in options) == m.M)
    m.peak = pyo.Constraint(
        layers,
        rule=lambda m, l: (
            m.F[l] + sum(size(int(b)) * m.x[l, s] for s, b in enumerate(instance.backward_bytes[l])) + m.M
            <= size(instance.memory_bytes)
        ),
    )
    m.objective = pyo.Objective(
        expr=sum(time(int(instance.time_ns[l][s])) * m.x[l, s] for l, s in options)
        + sum(time(borders[l].costs_ns[a][b]) * m.z[l, a, b] for l, a, b in flows)
    )
    return m


def extract(instance: Instance, values: Mapping[str, Mapping[tuple[int, int], float]]) -> tuple[int, ...]:
    """For each layer, the index of the option whose variable x has the largest value. values: by name of the variable, the
    solved values by index, of which those of `x` are read. instance: the costs of each layer under each of its options
    (strategies), and the memory limit.
    """
    return tuple(max(range(count), key=lambda s: values["x"][l, s]) for l, count in enumerate(instance.options))
