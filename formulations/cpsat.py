"""Parts that the OR-Tools CP-SAT models of several problems share."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ortools.sat.python import cp_model
from trainplan.formulations.schedule.chains import Chain

Terms = list[tuple[cp_model.IntVar, int]]
StageStarts = dict[tuple[int, int], cp_model.IntVar]


def weighted_sum(terms: Iterable[tuple[cp_model.IntVar, int]]) -> cp_model.LinearExpr:
    """The linear expression that sums CP-SAT variables, each multiplied by its whole-number factor. terms: pairs of variable
    and factor."""
    pairs = list(terms)
    return cp_model.LinearExpr.weighted_sum([variable for variable, _ in pairs], [factor for _, factor in pairs])


def state_cuts(model: cp_model.CpModel, chain: Chain) -> StageStarts:
    """Add to a CP-SAT model the Boolean variables Y that cut a chain of layers into p stages, with their constraints.

    Y[x,l] is true if stage x has begun by layer l; Y[0,l] is true and Y[p,l] false for every l. The constraints:

        onward     Y[x,l] implies Y[x,l+1]: a stage that has begun stays begun
        order      Y[x+1,l+1] implies Y[x,l]: every stage has a layer
        memory     Y[x,w-1] implies Y[x+1,l] for every x, l with w > 0, where w = w[x,l] is the least first layer with which
                   stage x fits its memory when l is its last layer (`Memory.first_layers`): a stage that began before w does
                   not hold l

    Returns Y[x,l] by stage x = 0 .. p and layer l; those that are known are constants of the model. chain: the chain of
    layers that is cut into stages.
    """
    stages, layers = range(chain.stages), range(chain.length)
    no, yes = model.new_constant(0), model.new_constant(1)
    y: StageStarts = {(chain.stages, l): no for l in layers}
    for x in stages:
        last = chain.length - chain.stages + x  # every stage has begun by then, the first one at once
        for l in layers:
            y[x, l] = yes if x == 0 or l >= last else no if l < x else model.new_bool_var(f"Y[{x},{l}]")
    for x in stages[1:]:
        for l in layers[:-1]:
            model.add_implication(y[x, l], y[x, l + 1])
            model.add_implication(y[x + 1, l + 1], y[x, l])
    for x, first, l in chain.precedences:
        model.add_implication(y[x, first - 1], y[x + 1, l])
    return y


def solved_cuts(chain: Chain, y: StageStarts, value: Callable[[cp_model.IntVar], bool]) -> tuple[int, ...]:
    """The cuts (index of the first layer of every stage but the first) that a solved CP-SAT model chose.

    y: the variables Y[x,l] of `state_cuts`, true if stage x has begun by layer l. value: returns the solved value of a
    variable. chain: the chain of layers that is cut into stages.
    """
    return tuple(next(l for l in range(chain.length) if value(y[x, l])) for x in range(1, chain.stages))
