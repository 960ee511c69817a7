"""stage-assignment as a mixed-integer linear program, in Pyomo.

Sets         i = 0 .. k-1 stages; l = 0 .. L-1 layers
Parameters   c[i,l] time of a layer, e[i,l] time of sending from layer l to stage i + 1 (in scaled units, see `units`);
             w[i,l] the least first layer with which stage i fits its memory when layer l is its last (see `first_layers`)
Variables    Y[i,l] in {0,1}     stage i = 1 .. k-1 has begun by layer l; known outside of l = i .. L-k+i-1, since every stage
                                 has a layer. Y[0,.] = 1 and Y[k,.] = 0, so layer l lies in stage i where Y[i,l] - Y[i+1,l] = 1
             T[i] >= 0           time of one micro-batch in stage i, at most that of all layers there
             V >= 0              time of the slowest stage, at most the largest of these

    minimise   (gas - 1) V + sum_i T[i] + sum_{i>0,l} e[i-1,l-1] (Y[i,l] - Y[i,l-1])    (objective)              (Eq. 5)
    onward     Y[i,l] <= Y[i,l+1]                                                       a stage that has begun stays so
    order      Y[i+1,l+1] <= Y[i,l]                                                     every stage has a layer
    stage      T[i] = sum_l c[i,l] (Y[i,l] - Y[i+1,l])                                  for every i
    slowest    T[i] <= V                                                                for every i
    whole      sum_i c[i,l] (Y[i,l] - Y[i+1,l]) <= V                                    for every l: one stage has all of it
    memory     Y[i,w[i,l]-1] <= Y[i+1,l]                                                for every i, l where w[i,l] > 0

`memory`: where stage i began before w[i,l], it does not reach layer l any more. That is all that memory asks, since a longer
stage needs no less; there are no bytes in the model. Onward, order and memory are differences of two variables, so without V
the relaxation is integral.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyomo.environ as pyo
from trainplan.formulations.milp import solved_cuts, state_cuts, unit
from trainplan.formulations.stage_assignment.problem import Instance, Solution, evaluate


def units(instance: Instance) -> tuple[int, None]:
    """The scales of the MILP: the nanoseconds that one unit of the model's variables stands for, a power of two with which the
    objective of equal stages is near 2^20 units; and None in place of a scale of bytes, since the model has none. HiGHS's
    answers are exact to a millionth of a unit, so that objectives below 2^40 ns are proven to the nanosecond. instance: the
    times of all layers in each stage, and the memory limits.
    """
    even = Solution(tuple(instance.layers * i // instance.stages for i in range(1, instance.stages)))
    return unit(evaluate(instance, even).time_ns), None


def weight(instance: Instance) -> int:
    """The largest factor by which the objective multiplies the error of a constraint on times; the solver's tolerance is
    divided by it. instance: the times of all layers in each stage, and the memory limits.
    """
    return instance.micro_batches


def build(instance: Instance) -> pyo.ConcreteModel:
    """The Pyomo model of an instance; its variables and constraints are listed at the head of this module. `extract` reads a
    solution from its solved values. instance: the times of all layers in each stage, and the memory limits.
    """
    m = pyo.ConcreteModel(name=instance.name)
    stages, layers = range(instance.stages), range(instance.layers)
    ns_per_unit, _ = units(instance)
    c, e = instance.layer_ns / ns_per_unit, instance.transfer_ns / ns_per_unit

    longest = [float(row.sum()) for row in c]  # without these bounds HiGHS 1.13.1 fixed variables wrongly (it is in the tests)
    m.T = pyo.Var(stages, bounds=lambda m, i: (0, longest[i]))
    m.V = pyo.Var(bounds=(0, max(longest)))
    begun = state_cuts(m, instance, m.V)

    def inside(i: int, l: int) -> Any:
        """Whether layer l lies in stage i: 1 or 0."""
        return begun(i, l) - begun(i + 1, l)

    m.stage = pyo.Constraint(stages, rule=lambda m, i: m.T[i] == sum(float(c[i, l]) * inside(i, l) for l in layers))
    m.slowest = pyo.Constraint(stages, rule=lambda m, i: m.T[i] <= m.V)
    m.whole = pyo.Constraint(layers, rule=lambda m, l: sum(float(c[i, l]) * inside(i, l) for i in stages) <= m.V)
    moves = sum(float(e[i - 1, l - 1]) * (begun(i, l) - begun(i, l - 1)) for i in stages[1:] for l in layers[1:])
    m.objective = pyo.Objective(expr=(instance.micro_batches - 1) * m.V + sum(m.T[i] for i in stages) + moves)
    return m


def extract(instance: Instance, values: Mapping[str, Mapping[tuple[int, int], float]]) -> Solution:
    """The solution that solved values stand for. values: by name of the variable, the solved values by index, of which those
    of Y (stage i has begun by layer l) are read. instance: the times of all layers in each stage, and the memory limits.
    """
    return Solution(solved_cuts(instance, values))
