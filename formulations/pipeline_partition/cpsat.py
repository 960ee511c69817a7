"""pipeline-partition as an OR-Tools CP-SAT model, on whole nanoseconds.

Variables    Y[x,l] bool         stage x has begun by sub-layer l; Y[0,.] = 1, Y[p,.] = 0
             D[k]                f_x, b_x and c_x, numbered as in `moments`
             S[v]                the starts of passes that `moments` does not know
             T                   the step, not below the least of `bounds`

    minimise   T
    onward     Y[x,l] implies Y[x,l+1]; order: Y[x+1,l+1] implies Y[x,l]
    time       f_x = sum_l f(l) (Y[x,l] - Y[x+1,l]), b_x alike; c_x = sum_l c(l) (Y[x,l] - Y[x,l-1]), c(l) of the cut before l
    start      S[v] >= each of its sums of an earlier start and times; T >= the end of the last backward pass of stage 0
    paths      T >= sum_l (f(l) + b(l)) + 2 sum_x c_x plus the stage's own part, for both paths of `bounds` through each stage,
               which propagation alone does not see
    memory     Y[x,w[x,l]-1] implies Y[x+1,l] for every x, l where w[x,l] > 0, with w of `Memory.first_layers`: a stage that
               began before w[x,l] does not reach sub-layer l any more
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ortools.sat.python import cp_model
from trainplan.formulations.pipeline_partition.bounds import least_ns, left_over, most_ns
from trainplan.formulations.pipeline_partition.moments import Sum, moments
from trainplan.formulations.pipeline_partition.problem import Instance, Solution

Begun = dict[tuple[int, int], cp_model.IntVar]
Terms = list[tuple[cp_model.IntVar, int]]


def build(instance: Instance) -> tuple[cp_model.CpModel, Begun]:
    """The model, and Y by stage and sub-layer."""
    model = cp_model.CpModel()
    y = _begun(model, instance)
    stages, sublayers, p, m = range(instance.stages), range(instance.sublayers), instance.stages, instance.micro_batches
    most = most_ns(instance)

    def inside(x: int, l: int, ns: int) -> Terms:
        """ns, if sub-layer l lies in stage x."""
        return [(y[x, l], ns), (y[x + 1, l], -ns)]

    times: list[cp_model.IntVar] = []
    for kind, sizes in (("f", instance.forward_ns.tolist()), ("b", instance.backward_ns.tolist())):
        for x in stages:
            times.append(model.new_int_var(0, sum(sizes), f"{kind}[{x}]"))
            model.add(times[-1] == _sum(term for l in sublayers for term in inside(x, l, sizes[l])))
    moves = instance.transfer_ns.tolist()
    for x in stages[1:]:
        times.append(model.new_int_var(0, max(moves), f"c[{x}]"))
        changes = [term for l in sublayers[1:] for term in ((y[x, l], moves[l - 1]), (y[x, l - 1], -moves[l - 1]))]
        model.add(times[-1] == _sum(changes))

    passes = moments(p, m)
    starts = [model.new_int_var(0, most, f"S[{v}]") for v in range(len(passes.rows))]
    step = model.new_int_var(min(least_ns(instance), most), most, "T")

    def total(moment: Sum) -> cp_model.LinearExpr:
        terms = [(time, count) for time, count in zip(times, moment.counts, strict=True) if count]
        return _sum(terms if moment.start is None else [(starts[moment.start], 1), *terms])

    for start, sums in zip(starts, passes.rows, strict=True):
        for moment in sums:
            model.add(start >= total(moment))
    model.add(step >= total(passes.end))

    moved = _sum((move, 2) for move in times[2 * p :])
    trip = moved + int(instance.forward_ns.sum() + instance.backward_ns.sum())
    for x in stages:
        for forward, backward in {(left_over(instance, x), m - 1), (m - 1, left_over(instance, x))}:
            own = [(times[x], forward), (times[p + x], backward)]
            own += [(times[2 * p + x - 1], forward)] if x > 0 else []
            own += [(times[2 * p + x], backward)] if x < p - 1 else []
            model.add(step >= trip + _sum(own))
    model.minimize(step)
    return model, y


def _begun(model: cp_model.CpModel, instance: Instance) -> Begun:
    """Y, onward, in order and within the memory."""
    stages, sublayers, memory = range(instance.stages), range(instance.sublayers), instance.memory
    no, yes = model.new_constant(0), model.new_constant(1)
    y: Begun = {(instance.stages, l): no for l in sublayers}
    for x in stages:
        last = instance.sublayers - instance.stages + x  # every stage has begun by then, the first one at once
        for l in sublayers:
            y[x, l] = yes if x == 0 or l >= last else no if l < x else model.new_bool_var(f"Y[{x},{l}]")
    for x in stages[1:]:
        for l in sublayers[:-1]:
            model.add_implication(y[x, l], y[x, l + 1])
            model.add_implication(y[x + 1, l + 1], y[x, l])
    for x, first, l in [] if memory is None else memory.precedences([instance.in_flight(x) for x in stages]):
        model.add_implication(y[x, first - 1], y[x + 1, l])
    return y


def _sum(terms: Iterable[tuple[cp_model.IntVar, int]]) -> cp_model.LinearExpr:
    pairs = list(terms)
    return cp_model.LinearExpr.weighted_sum([variable for variable, _ in pairs], [factor for _, factor in pairs])


def extract(instance: Instance, y: Begun, value: Callable[[cp_model.IntVar], bool]) -> Solution:
    """The solution that Y stands for, by the value of each variable."""
    sublayers = range(instance.sublayers)
    return Solution(tuple(next(l for l in sublayers if value(y[x, l])) for x in range(1, instance.stages)))
