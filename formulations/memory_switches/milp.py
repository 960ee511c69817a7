"""memory-switches as a mixed-integer linear program, in Pyomo: a path through states.

Sets         i = 0 .. N-1 layers; q = (r_i, lazy_{i+1}) states between two layers, 16 in all (see `segment_columns`);
             (s, q, q') columns of a layer: option s, entering in state q and leaving in q'
Parameters   t time, d delta, o resident, p peak of a column, M memory (in scaled units, see `units`)
Variables    x[i,s,q,q'] in {0,1}    layer i takes the column
             H[i] >= 0               what the layers before i keep from their forward to their backward pass
             R >= 0                  resident bytes of all layers

    minimise   sum t x                                                                  (objective)              (Eq. 3)
    begin      sum x[0,.] = 1                                                           the first layer takes one column
    agree      sum_{s,q} x[i,s,q,q'] = sum_{s,q''} x[i+1,s,q',q'']                      for every i < N-1 and state q'
    hold       H[i+1] = H[i] + sum d x[i,.]                                             for every i < N-1
    stay       R = sum o x
    peak       H[i] + sum p x[i,.] + R <= M                                             for every i      (Algorithm 4)

Without `peak` this is a shortest path, whose relaxation is integral. Agreement is stated for each of 16 states, not for each
pair of options; sums H keep the rows short. Columns that cannot fit are left out (see `segment_columns.within`), which makes
small instances smaller, but kept the relaxation where it was in all cases that were tried.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import pyomo.environ as pyo
from trainplan.formulations.memory_switches.problem import Instance, Solution
from trainplan.formulations.memory_switches.segment_columns import undominated, within
from trainplan.formulations.memory_switches.segments import segments
from trainplan.formulations.milp import unit

Column = tuple[int, int, int, int]


def units(instance: Instance) -> tuple[int, int]:
    """The scales of the MILP, as (nanoseconds, bytes) that one unit of the model's variables stands for: powers of two chosen
    by the time of all operations one after the other and by the memory limit. instance: times and bytes of every layer, and
    the memory limit.
    """
    longest = sum(int(column.sum()) for name, column in instance.columns.items() if name.endswith("_ns"))
    return unit(longest), unit(instance.memory_bytes)


def build(instance: Instance) -> pyo.ConcreteModel:
    """The Pyomo model of an instance; its variables and constraints are listed at the head of this module. `extract` reads a
    solution from its solved values. instance: times and bytes of every layer, and the memory limit.
    """
    m = pyo.ConcreteModel(name=instance.name)
    ns_per_unit, bytes_per_unit = units(instance)
    layers, memory = range(instance.layers), instance.memory_bytes / bytes_per_unit
    time: dict[Column, float] = {}
    size: dict[str, dict[Column, float]] = {"peak": {}, "delta": {}, "resident": {}}
    of_layer: list[list[Column]] = []
    for i, columns in enumerate(within(undominated(segments(instance)), instance.memory_bytes)):
        keys = zip(*(numbers.tolist() for numbers in (columns.option, columns.enters, columns.leaves)), strict=True)
        of_layer.append([(i, *key) for key in keys])
        time |= zip(of_layer[i], (columns.time_ns / ns_per_unit).tolist(), strict=True)
        for name, sizes in size.items():
            sizes |= zip(of_layer[i], (getattr(columns, f"{name}_bytes") / bytes_per_unit).tolist(), strict=True)

    def total(name: str, chosen: list[Column]) -> Any:
        """The sum of one kind of bytes over chosen columns."""
        return pyo.quicksum(size[name][column] * m.x[column] for column in chosen if size[name][column])

    m.x = pyo.Var(list(time), domain=pyo.Binary)
    m.H = pyo.Var(layers, bounds=lambda m, i: (0, memory if i else 0))
    m.R = pyo.Var(bounds=(0, memory))

    m.begin = pyo.Constraint(expr=pyo.quicksum(m.x[column] for column in of_layer[0]) == 1 if time else m.R <= -1)
    entering, leaving = defaultdict[tuple[int, int], list[Any]](list), defaultdict[tuple[int, int], list[Any]](list)
    for i, s, q, after in time:
        entering[i, q].append(m.x[i, s, q, after])
        leaving[i, after].append(m.x[i, s, q, after])
    m.agree = pyo.Constraint(
        [(i, q) for i, q in leaving if i + 1 in layers],  # each state that is left is entered: others are not within
        rule=lambda m, i, q: pyo.quicksum(leaving[i, q]) == pyo.quicksum(entering[i + 1, q]),
    )
    m.hold = pyo.Constraint(layers[:-1], rule=lambda m, i: m.H[i + 1] == m.H[i] + total("delta", of_layer[i]))
    m.stay = pyo.Constraint(expr=total("resident", list(time)) == m.R)
    m.peak = pyo.Constraint(layers, rule=lambda m, i: m.H[i] + total("peak", of_layer[i]) + m.R <= memory)
    m.objective = pyo.Objective(expr=pyo.quicksum(ns * m.x[column] for column, ns in time.items()))
    return m


def extract(instance: Instance, values: Mapping[str, Mapping[Column, float]]) -> Solution:
    """The solution that solved values stand for: for every layer, the combination of switches of the column whose variable x
    has the largest value. A column is a combination with those switches of the layers before and after that affect the layer's
    cost. values: by name of the variable, the solved values by index, of which those of `x` are read. instance: times and bytes
    of every layer, and the memory limit."""
    columns = sorted(values["x"], key=values["x"].__getitem__)
    best = {column[0]: column for column in columns}
    return Solution(tuple(instance.options[best[i][1]] for i in range(instance.layers)))
