"""memory-switches as an OR-Tools CP-SAT model, on whole nanoseconds and bytes.

Each column c of a layer (see `segment_columns`) has a time t, a delta d of kept bytes, resident bytes o and a peak p; M is the
memory of a device, and a state q is what two neighbouring layers must agree upon.

Variables    x[i,c] bool         layer i takes column c
             H[i], R             bytes kept by the layers before i until their backward pass, and resident bytes of all layers

    minimise   sum t x                                                                                           (Eq. 3)
    choose     exactly one x[i,c] for every i
    agree      sum of x[i,c] that leave in q = sum of x[i+1,c] that enter in q     for every i < N-1 and state q
    hold       H[0] = 0, H[i+1] = H[i] + sum d x[i,.] for every i < N-1, and R = sum o x
    peak       H[i] + sum p x[i,.] + R <= M                                        for every i                (Algorithm 4)

Agreement in sums of literals and memory in running sums keep the linear relaxation small enough for CP-SAT to use: with one
boolean for each state, or without H and R, its bounds were some percent lower after 15 s on 12 layers. Bytes are first divided
by their greatest common divisor, which changes no solution and shortens the propagation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from math import gcd

import numpy as np
from ortools.sat.python import cp_model
from trainplan.formulations.memory_switches.problem import Instance, Solution
from trainplan.formulations.memory_switches.segment_columns import STATES, Columns, undominated, within
from trainplan.formulations.memory_switches.segments import segments
from trainplan.formulations.numbers import Integers

LayerVariables = list[tuple[Columns, list[cp_model.IntVar]]]


def build(instance: Instance) -> tuple[cp_model.CpModel, LayerVariables]:
    """The CP-SAT model of an instance, and for every layer its columns with one variable each. A column is a combination of the
    layer's switches with those switches of the layers before and after that affect its cost, and their cost. instance: times
    and bytes of every layer, and the memory limit."""
    chain = undominated(segments(instance))
    sizes = {int(v) for c in chain for values in (c.peak_bytes, c.delta_bytes, c.resident_bytes) for v in values}
    step = gcd(*sizes) or 1
    chain = within(chain, instance.memory_bytes // step * step)  # which raises peaks to whole steps only

    model = cp_model.CpModel()
    layers = [
        (columns, [model.new_bool_var(f"x[{i},{','.join(map(str, key))}]") for key in _keys(columns)])
        for i, columns in enumerate(chain)
    ]
    for _, x in layers:
        model.add_exactly_one(x)
    for (columns, x), (following, x_following) in pairwise(layers):
        for q in range(STATES):
            leaving, entering = np.flatnonzero(columns.leaves == q), np.flatnonzero(following.enters == q)
            model.add(_sum([x[c] for c in leaving]) == _sum([x_following[c] for c in entering]))
    model.minimize(_sum([_weighted(x, columns.time_ns) for columns, x in layers]))

    memory = instance.memory_bytes // step
    resident = model.new_int_var(0, memory, "R")
    model.add(_sum([_weighted(x, columns.resident_bytes // step) for columns, x in layers]) == resident)
    kept = model.new_constant(0)
    for i, (columns, x) in enumerate(layers):
        model.add(_sum([kept, _weighted(x, columns.peak_bytes // step), resident]) <= memory)
        if i + 1 < len(layers):
            before, kept = kept, model.new_int_var(0, memory, f"H[{i + 1}]")
            model.add(_sum([before, _weighted(x, columns.delta_bytes // step)]) == kept)
    return model, layers


def _keys(columns: Columns) -> Iterator[tuple[int, int, int]]:
    """For each column of a layer (an option with the choices of neighbouring layers), its name in the model as three numbers:
    the option (combination of switches), the state shared with the layer before, and the state shared with the layer after. A
    state is a number from 0 to 15 for those switches at a boundary on which both neighbouring layers depend; 0 at the ends of
    the model.
    """
    return zip(*(numbers.tolist() for numbers in (columns.option, columns.enters, columns.leaves)), strict=True)


def _sum(terms: Sequence[cp_model.LinearExprT]) -> cp_model.LinearExpr:
    """The sum of linear expressions, variables and numbers of a CP-SAT model."""
    return cp_model.LinearExpr.sum(terms)


def _weighted(x: list[cp_model.IntVar], values: Integers) -> cp_model.LinearExpr:
    """The sum of variables, each multiplied by its value. values: (len(x),)."""
    return cp_model.LinearExpr.weighted_sum(x, values.tolist())


def extract(instance: Instance, layers: LayerVariables, value: Callable[[cp_model.IntVar], bool]) -> Solution:
    """The solution that a solver's answer stands for. layers: for every layer, its columns (a combination of switches with the
    those switches of the layers before and after that affect its cost) and one variable for each. value: returns the value of a
    variable in the answer, True or False. instance: times and bytes of every layer, and the memory limit."""
    options = (columns.option[next(c for c, variable in enumerate(x) if value(variable))] for columns, x in layers)
    return Solution(tuple(instance.options[option] for option in options))
