"""layer-strategies as an OR-Tools CP-SAT model, on whole nanoseconds and bytes.

Symbols are those of `problem` (c time, R re-layout, O_f, O_b, O_ms bytes, E memory).

Variables    x[l,s] bool         layer l takes option s
             z[l,a,b] bool       boundary l goes from layout class a to class b (see `layout_classes`)

    minimise   sum c x + sum R z
    choose     exactly one x[l,s] for every l
    cross      exactly one z[l,a,b] for every boundary l; z[l,a,b] only where x[l] lies in a and x[l+1] in b
    peak       sum_{k<=l} O_f x[k] + O_b x[l] + sum_k O_ms x[k] <= E     for every l                    (Eq. 2)

Bytes are first divided by their greatest common divisor, which changes no solution and shortens the propagation.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd

from ortools.sat.python import cp_model
from trainplan.formulations.layer_strategies.layout_classes import boundaries
from trainplan.formulations.layer_strategies.problem import Instance

Choice = list[list[cp_model.IntVar]]


def build(instance: Instance) -> tuple[cp_model.CpModel, Choice]:
    """The CP-SAT model of an instance, and its Boolean variables x by layer and option, true if the layer takes that option.
    The model's constraints are listed at the head of this module. instance: the costs of each layer under each of its
    options (strategies), and the memory limit.
    """
    model = cp_model.CpModel()
    x = [[model.new_bool_var(f"x[{l},{s}]") for s in range(count)] for l, count in enumerate(instance.options)]
    for row in x:
        model.add_exactly_one(row)

    cost = [int(c) * v for l, row in enumerate(x) for c, v in zip(instance.time_ns[l], row, strict=True)]
    for l, border in enumerate(boundaries(instance)):
        if border.free:
            continue
        z = [[model.new_bool_var(f"z[{l},{a},{b}]") for b in range(len(border.after))] for a in range(len(border.before))]
        for a, members in enumerate(border.before):
            model.add(sum(z[a]) == sum(x[l][s] for s in members))
        for b, members in enumerate(border.after):
            model.add(sum(row[b] for row in z) == sum(x[l + 1][s] for s in members))
        cost += [border.costs_ns[a][b] * v for a, row in enumerate(z) for b, v in enumerate(row)]
    model.minimize(sum(cost))

    step = gcd(
        *(
            int(v)
            for column in (instance.forward_bytes, instance.backward_bytes, instance.state_bytes)
            for a in column
            for v in a
        )
    )
    step = step or 1
    memory = instance.memory_bytes // step

    def bytes_of(values: tuple, l: int) -> cp_model.LinearExpr:
        """Bytes of layer l under its chosen option, in steps."""
        return cp_model.LinearExpr.weighted_sum(x[l], [int(v) // step for v in values[l]])

    states = sum(bytes_of(instance.state_bytes, l) for l in range(instance.layers))
    forward = 0
    for l in range(instance.layers):
        forward = forward + bytes_of(instance.forward_bytes, l)
        model.add(forward + bytes_of(instance.backward_bytes, l) + states <= memory)
    return model, x


def extract(instance: Instance, x: Choice, value: Callable[[cp_model.IntVar], bool]) -> tuple[int, ...]:
    """For every layer, the index of the option that a solver's answer chooses. x: the model's variables by layer and option.
    value: returns the value of a variable in the answer, True or False. instance: the costs of each layer under each of its
    options (strategies), and the memory limit.
    """
    return tuple(next(s for s, v in enumerate(row) if value(v)) for row in x)
