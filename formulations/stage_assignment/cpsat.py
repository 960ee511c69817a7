"""stage-assignment as an OR-Tools CP-SAT model, on whole nanoseconds.

There are k stages and gas micro-batches; c[i,l] is the time of layer l in stage i, e[i,l] that of sending from layer l to stage
i + 1.

Variables    Y[i,l] bool         stage i has begun by layer l; Y[0,.] = 1, Y[k,.] = 0
             T[i]                time of one micro-batch in stage i
             V                   time of the slowest stage

    minimise   (gas - 1) V + sum_i T[i] + sum_{i>0,l} e[i-1,l-1] (Y[i,l] - Y[i,l-1])                             (Eq. 5)
    onward     Y[i,l] implies Y[i,l+1]; order: Y[i+1,l+1] implies Y[i,l]
    stage      T[i] = sum_l c[i,l] (Y[i,l] - Y[i+1,l]) <= V for every i
    whole      sum_i c[i,l] (Y[i,l] - Y[i+1,l]) <= V for every l, and sum_i T[i] <= k V, which propagation alone does not see
    memory     Y[i,w[i,l]-1] implies Y[i+1,l] for every i, l where w[i,l] > 0, with w of `first_layers`: a stage that began
               before w[i,l] does not reach layer l any more
"""

from __future__ import annotations

from collections.abc import Callable

from ortools.sat.python import cp_model
from trainplan.formulations.cpsat import StageStarts, Terms, solved_cuts, state_cuts, weighted_sum
from trainplan.formulations.stage_assignment.problem import Instance, Solution, most_ns


def build(instance: Instance) -> tuple[cp_model.CpModel, StageStarts]:
    """The CP-SAT model of an instance, and its variables Y[i,l]: whether stage i has begun by layer l. Its constraints are
    listed at the head of this module. instance: the times of all layers in each stage, and the memory limits.
    """
    model = cp_model.CpModel()
    y = state_cuts(model, instance)
    stages, layers = range(instance.stages), range(instance.layers)

    def inside(i: int, l: int) -> Terms:
        """The time of layer l where it lies in stage i, else 0, as terms."""
        ns = int(instance.layer_ns[i, l])
        return [(y[i, l], ns), (y[i + 1, l], -ns)]

    most = most_ns(instance)
    slowest = model.new_int_var(0, most, "V")
    time = [model.new_int_var(0, most, f"T[{i}]") for i in stages]
    for i in stages:
        model.add(time[i] == weighted_sum(term for l in layers for term in inside(i, l)))
        model.add(time[i] <= slowest)
    for l in layers:
        model.add(weighted_sum(term for i in stages for term in inside(i, l)) <= slowest)
    model.add(sum(time) <= instance.stages * slowest)

    objective: Terms = [(slowest, instance.micro_batches - 1), *((t, 1) for t in time)]
    for i in stages[1:]:
        for l in layers[1:]:
            ns = int(instance.transfer_ns[i - 1, l - 1])
            objective += [(y[i, l], ns), (y[i, l - 1], -ns)]
    model.minimize(weighted_sum(objective))
    return model, y


def extract(instance: Instance, y: StageStarts, value: Callable[[cp_model.IntVar], bool]) -> Solution:
    """The solution that a solver's answer stands for. y: the model's variables by (stage, layer), true where the stage has
    begun by that layer. value: a function that says whether a variable is true in the answer. instance: the times of all
    layers in each stage, and the memory limits.
    """
    return Solution(solved_cuts(instance, y, value))
