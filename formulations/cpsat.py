"""What the OR-Tools CP-SAT models of several problems share."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ortools.sat.python import cp_model
from trainplan.formulations.schedule.chains import Chain

Terms = list[tuple[cp_model.IntVar, int]]
Begun = dict[tuple[int, int], cp_model.IntVar]


def weighted_sum(terms: Iterable[tuple[cp_model.IntVar, int]]) -> cp_model.LinearExpr:
    """The sum of variables, each with its factor."""
    pairs = list(terms)
    return cp_model.LinearExpr.weighted_sum([variable for variable, _ in pairs], [factor for _, factor in pairs])


def state_cuts(model: cp_model.CpModel, chain: Chain) -> Begun:
    """Y[x,l] by stage and layer: stage x has begun by layer l; Y[0,.] = 1, Y[p,.] = 0.

    onward     Y[x,l] implies Y[x,l+1]; order: Y[x+1,l+1] implies Y[x,l]
    memory     Y[x,w[x,l]-1] implies Y[x+1,l] for every x, l where w[x,l] > 0, with w of `Memory.first_layers`: a stage that
               began before w[x,l] does not reach layer l any more
    """
    stages, layers = range(chain.stages), range(chain.length)
    no, yes = model.new_constant(0), model.new_constant(1)
    y: Begun = {(chain.stages, l): no for l in layers}
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


def solved_cuts(chain: Chain, y: Begun, value: Callable[[cp_model.IntVar], bool]) -> tuple[int, ...]:
    """The cuts that Y stands for, by the value of each variable."""
    return tuple(next(l for l in range(chain.length) if value(y[x, l])) for x in range(1, chain.stages))
