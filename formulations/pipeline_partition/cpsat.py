"""pipeline-partition as an OR-Tools CP-SAT model, on whole nanoseconds.

There are p stages; f(l) and b(l) are the passes of sub-layer l, and c(l) the transfer of the cut before it.

Variables    Y[x,l] bool         stage x has begun by sub-layer l; Y[0,.] = 1, Y[p,.] = 0
             D[k]                f_x, b_x and c_x, numbered as in `end_times`
             S[v]                the moments that are variables, see `end_time_rows`
             T                   the step, not below the least of `bounds`

    minimise   T
    onward     Y[x,l] implies Y[x,l+1]; order: Y[x+1,l+1] implies Y[x,l]
    time       f_x = sum_l f(l) (Y[x,l] - Y[x+1,l]), b_x alike; c_x = sum_l c(l) (Y[x,l] - Y[x,l-1])
    start      S[v] >= each of its sums of an earlier moment and times; T >= the end of the last backward pass of stage 0
    paths      T >= sum_l (f(l) + b(l)) + 2 sum_x c_x plus the stage's own part, for both paths of `bounds` through each stage,
               which propagation alone does not see
    memory     Y[x,w[x,l]-1] implies Y[x+1,l] for every x, l where w[x,l] > 0, with w of `Memory.first_layers`: a stage that
               began before w[x,l] does not reach sub-layer l any more
"""

from __future__ import annotations

from collections.abc import Callable

from ortools.sat.python import cp_model
from trainplan.formulations.cpsat import StageStarts, Terms, solved_cuts, state_cuts, weighted_sum
from trainplan.formulations.pipeline_partition.bounds import least_ns, left_over, most_ns
from trainplan.formulations.pipeline_partition.end_times import one_f_one_b_rows
from trainplan.formulations.pipeline_partition.problem import Instance, Solution
from trainplan.formulations.schedule.end_time_rows import Sum


def build(instance: Instance) -> tuple[cp_model.CpModel, StageStarts]:
    """The CP-SAT model of an instance, and its Boolean variables Y[x,l], true if stage x has begun by sub-layer l. The model's
    constraints are listed at the head of this module. instance: the times of a chain of sub-layers, the numbers of stages
    and micro-batches, and the memory limits.
    """
    model = cp_model.CpModel()
    y = state_cuts(model, instance)
    stages, sublayers, p, m = range(instance.stages), range(instance.sublayers), instance.stages, instance.micro_batches
    most = most_ns(instance)

    def inside(x: int, l: int, ns: int) -> Terms:
        """`ns` where sub-layer l lies in stage x, else 0, as terms."""
        return [(y[x, l], ns), (y[x + 1, l], -ns)]

    times: list[cp_model.IntVar] = []
    for kind, sizes in (("f", instance.forward_ns.tolist()), ("b", instance.backward_ns.tolist())):
        for x in stages:
            times.append(model.new_int_var(0, sum(sizes), f"{kind}[{x}]"))
            model.add(times[-1] == weighted_sum(term for l in sublayers for term in inside(x, l, sizes[l])))
    moves = instance.transfer_ns.tolist()
    for x in stages[1:]:
        times.append(model.new_int_var(0, max(moves), f"c[{x}]"))
        changes = [term for l in sublayers[1:] for term in ((y[x, l], moves[l - 1]), (y[x, l - 1], -moves[l - 1]))]
        model.add(times[-1] == weighted_sum(changes))

    passes = one_f_one_b_rows(p, m)
    starts = [model.new_int_var(0, most, f"S[{v}]") for v in range(len(passes.rows))]
    step = model.new_int_var(min(least_ns(instance), most), most, "T")

    def total(moment: Sum[int]) -> cp_model.LinearExpr:
        """A moment as a sum of model variables."""
        terms = [(times[number], count) for number, count in moment.times]
        return weighted_sum(terms if moment.start is None else [(starts[moment.start], 1), *terms])

    for start, sums in zip(starts, passes.rows, strict=True):
        for moment in sums:
            model.add(start >= total(moment))
    model.add(step >= total(passes.ends[0]))

    moved = weighted_sum((move, 2) for move in times[2 * p :])
    trip = moved + int(instance.forward_ns.sum() + instance.backward_ns.sum())
    for x in stages:
        for forward, backward in {(left_over(instance, x), m - 1), (m - 1, left_over(instance, x))}:
            passes_of_stage = [(times[x], forward), (times[p + x], backward)]
            passes_of_stage += [(times[2 * p + x - 1], forward)] if x > 0 else []
            passes_of_stage += [(times[2 * p + x], backward)] if x < p - 1 else []
            model.add(step >= trip + weighted_sum(passes_of_stage))
    model.minimize(step)
    return model, y


def extract(instance: Instance, y: StageStarts, value: Callable[[cp_model.IntVar], bool]) -> Solution:
    """The solution that a solver's answer stands for. y: the model's variables by (stage, sub-layer), true if the stage has
    begun by that sub-layer. value: returns the value of a variable in the answer, True or False. instance: the times of a
    chain of sub-layers, the numbers of stages and micro-batches, and the memory limits.
    """
    return Solution(solved_cuts(instance, y, value))
