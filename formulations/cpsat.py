"""Parts that the OR-Tools CP-SAT models of several problems share."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ortools.sat.python import cp_model
from trainplan.formulations.schedule.chains import Chain

Terms = list[tuple[cp_model.IntVar, int]]
StageStarts = dict[tuple[int, int], cp_model.IntVar]


def weighted_sum(terms: Iterable[tuple[cp_model.IntVar, int]]) -> cp_model.LinearExpr:
    """The sum of variables, each multiplied by its factor."""
    pairs = list(terms)
    return cp_model.LinearExpr.weighted_sum([variable for variable, _ in pairs], [factor for _, factor in pairs])


def state_cuts(model: cp_model.CpModel, chain: Chain) -> StageStarts:
    """Add the variables Y of a chain that is cut into p stages to a CP-SAT model; returns Y[x,l] by stage x and layer l.

    Y[x,l] is true where stage x has begun by layer l; Y[0,.] = 1 and Y[p,.] = 0.

        onward     Y[x,l] implies Y[x,l+1]; order: Y[x+1,l+1] implies Y[x,l]
        memory     Y[x,w[x,l]-1] implies Y[x+1,l] for every x, l where w[x,l] > 0, with w of `Memory.first_layers`: a stage that
                   began before w[x,l] does not reach layer l any more
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
    """The cuts (first layer of every stage but the first) that Y stands for. value: the solved value of a variable."""
    return tuple(next(l for l in range(chain.length) if value(y[x, l])) for x in range(1, chain.stages))
