"""pipeline-partition as a mixed-integer linear program, in Pyomo.

Sets         x = 0 .. p-1 stages; l = 0 .. n-1 sub-layers; v the moments that are variables, see `end_time_rows`
Parameters   f(l), b(l) passes of a sub-layer, c(l) transfer of the cut before it (in scaled units, see `units`); w[x,l] the
             least first sub-layer with which stage x fits its memory when l is its last one (`Memory.first_layers`); B the
             least step by `bounds`
Variables    Y[x,l] in {0,1}     stage x = 1 .. p-1 has begun by sub-layer l; known outside of l = x .. n-p+x-1, since every
                                 stage has a sub-layer. Y[0,.] = 1 and Y[p,.] = 0, so l lies in stage x where
                                 Y[x,l] - Y[x+1,l] = 1
             D[k] >= 0           f_x, b_x and c_x, numbered as in `end_times`, with the largest values that they can have
             S[v] >= 0           a moment
             T >= B              the step

    minimise   T
    onward     Y[x,l] <= Y[x,l+1]                                                       a stage that has begun stays so
    order      Y[x+1,l+1] <= Y[x,l]                                                     every stage has a sub-layer
    time       f_x = sum_l f(l) (Y[x,l] - Y[x+1,l]), and b_x alike
               c_x = sum_l c(l) (Y[x,l] - Y[x,l-1])
    start      S[v] >= each of its sums of an earlier moment and times                   the recurrences
    step       T >= the end of the last backward pass of stage 0
    memory     Y[x,w[x,l]-1] <= Y[x+1,l]                                                for every x, l where w[x,l] > 0

`start` has every path of the simulation in it, also those of `bounds`. The relaxation does not know that a sub-layer is not
shared between stages; B is the least to which the paths through one stage can be kept without sharing. `memory` is all that
memory requires, since a longer stage needs no less.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyomo.environ as pyo
from trainplan.formulations.milp import solved_cuts, state_cuts, unit
from trainplan.formulations.pipeline_partition.bounds import least_ns, most_ns
from trainplan.formulations.pipeline_partition.end_times import one_f_one_b_rows
from trainplan.formulations.pipeline_partition.problem import Instance, Solution, evaluate
from trainplan.formulations.schedule.end_time_rows import Sum


def units(instance: Instance) -> tuple[int, None]:
    """The scales of the MILP: the nanoseconds that one unit of the model's variables stands for, a power of two with which the
    objective of equal stages is near 2^20 units; and None in place of a scale of bytes, since the model has none. HiGHS's
    answers are exact to a millionth of a unit and its constraints to a billionth, so that objectives below 2^38 ns are
    proven to the nanosecond with up to 300 stages and micro-batches in all (see `weight`). instance: the times of a chain
    of sub-layers, the numbers of stages and micro-batches, and the memory limits.
    """
    even = Solution(tuple(instance.sublayers * x // instance.stages for x in range(1, instance.stages)))
    return unit(evaluate(instance, even).time_ns), None


def weight(instance: Instance) -> int:
    """The largest factor by which the objective multiplies the error of a constraint; the solver's tolerance is divided by it.
    It is the number of constraints on the longest path, which has at most 2(m + p) passes for m micro-batches and p stages,
    each with a start, its own time, and its transfer. instance: the times of a chain of sub-layers, the numbers of stages
    and micro-batches, and the memory limits.
    """
    return 6 * (instance.micro_batches + instance.stages)


def build(instance: Instance) -> pyo.ConcreteModel:
    """The Pyomo model of an instance; its variables and constraints are listed at the head of this module. `extract` reads a
    solution from its solved values. instance: the times of a chain of sub-layers, the numbers of stages and micro-batches,
    and the memory limits.
    """
    m = pyo.ConcreteModel(name=instance.name)
    stages, sublayers, p = range(instance.stages), range(instance.sublayers), instance.stages
    ns_per_unit, _ = units(instance)
    f, b = instance.forward_ns / ns_per_unit, instance.backward_ns / ns_per_unit
    c = np.concatenate([[0], instance.transfer_ns]) / ns_per_unit
    least, most = least_ns(instance) / ns_per_unit, most_ns(instance) / ns_per_unit
    passes = one_f_one_b_rows(p, instance.micro_batches)

    longest = [float(f.sum())] * p + [float(b.sum())] * p + [float(c.max())] * (p - 1)
    m.D = pyo.Var(range(3 * p - 1), bounds=lambda m, k: (0, longest[k]))
    m.S = pyo.Var(range(len(passes.rows)), bounds=(0, most))
    m.T = pyo.Var(bounds=(min(least, most), most))
    begun = state_cuts(m, instance, m.T)

    def inside(x: int, l: int) -> Any:
        """Whether sub-layer l lies in stage x: 1 or 0."""
        return begun(x, l) - begun(x + 1, l)

    def total(moment: Sum[int]) -> Any:
        """A moment as a sum of model variables."""
        start = 0 if moment.start is None else m.S[moment.start]
        return start + sum(count * m.D[k] for k, count in moment.times)

    m.time = pyo.ConstraintList()
    for x in stages:
        m.time.add(m.D[x] == sum(float(f[l]) * inside(x, l) for l in sublayers))
        m.time.add(m.D[p + x] == sum(float(b[l]) * inside(x, l) for l in sublayers))
    for x in stages[1:]:
        moved = sum(float(c[l]) * (begun(x, l) - begun(x, l - 1)) for l in sublayers[1:])
        m.time.add(m.D[2 * p + x - 1] == moved)
    m.start = pyo.ConstraintList()
    for v, sums in enumerate(passes.rows):
        for moment in sums:
            m.start.add(m.S[v] >= total(moment))
    m.step = pyo.Constraint(expr=total(passes.ends[0]) <= m.T)
    m.objective = pyo.Objective(expr=m.T)
    return m


def extract(instance: Instance, values: Mapping[str, Mapping[tuple[int, int], float]]) -> Solution:
    """The solution that solved values stand for. values: by name of the variable, the solved values by index, of which those
    of Y (stage x has begun by sub-layer l) are read. instance: the times of a chain of sub-layers, the numbers of stages
    and micro-batches, and the memory limits.
    """
    return Solution(solved_cuts(instance, values))
