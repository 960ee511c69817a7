"""Parts that the mixed-integer linear programs of several problems share, in Pyomo."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyomo.environ as pyo
from trainplan.formulations.schedule.chains import Chain

SIGNIFICANT_BITS = 20


def unit(value: int) -> int:
    """The number of nanoseconds or bytes of one model unit: a power of two that brings `value` near 2^20 units.

    No coefficient loses a bit, and a row's tolerance of 1e-6 units is less than a byte or a nanosecond (up to 2^40 of them).
    """
    return 1 << max(0, value.bit_length() - SIGNIFICANT_BITS)


@dataclass(frozen=True)
class Columns:
    """Where a solver has the variables of a model.

    Attributes:
        indices: the column of each variable, by the variable's name and its index in the model.
        whole: the whole-number variables, each with its column.
    """

    indices: Mapping[str, Mapping[Any, int]]
    whole: Sequence[tuple[Any, int]]

    def values(self, solution: Any) -> dict[str, dict[Any, float]]:
        """The values of a solution, a sequence by column, as the value of every variable by name and index."""
        values = np.asarray(solution).tolist()
        return {name: {index: values[column] for index, column in columns.items()} for name, columns in self.indices.items()}


def columns_of(model: Any, column_of: Mapping[int, int]) -> Columns:
    """The columns of a model's variables. column_of: the column by the `id` of the variable; variables that occur in no row
    have none and are left out."""
    parts = {
        name: [(i, part[i]) for i in part if id(part[i]) in column_of] for name, part in model.component_map(pyo.Var).items()
    }
    whole = [(v, column_of[id(v)]) for variables in parts.values() for _, v in variables if not v.is_continuous()]
    return Columns({name: {i: column_of[id(v)] for i, v in variables} for name, variables in parts.items()}, whole)


def _open(chain: Chain, x: int, l: int) -> bool:
    """Whether it is undecided that stage x has begun by layer l, so that there is a variable Y[x,l]."""
    return 0 < x < chain.stages and x <= l < chain.length - chain.stages + x


def state_cuts(m: Any, chain: Chain, positive: Any) -> Callable[[int, int], Any]:
    """Add the variables Y and the rows `onward`, `order` and `memory` to a Pyomo model of a chain that is cut into p stages.

    Y[x,l] is 1 where stage x has begun by layer l, so l lies in stage x where Y[x,l] - Y[x+1,l] = 1. Its value is known outside
    of l = x .. n-p+x-1, with n layers, since every stage has a layer; Y[0,.] = 1 and Y[p,.] = 0.

            onward     Y[x,l] <= Y[x,l+1]                   a stage that has begun stays so
            order      Y[x+1,l+1] <= Y[x,l]                 every stage has a layer
            memory     Y[x,w[x,l]-1] <= Y[x+1,l]            for every x, l where w[x,l] > 0

    Here w[x,l] is the least first layer with which stage x fits its memory when l is its last one (`Memory.first_layers`).
    positive: a variable that is at least 0, for a row that states that nothing fits. Returns a function of x and l that gives
    Y[x,l], a variable or the number that it must be.
    """
    stages, layers = range(chain.stages), range(chain.length)
    m.Y = pyo.Var([(x, l) for x in stages[1:] for l in layers if _open(chain, x, l)], domain=pyo.Binary)

    def begun(x: int, l: int) -> Any:
        """Y[x,l]: its variable, or the number that it must be."""
        return m.Y[x, l] if _open(chain, x, l) else int(x == 0 or (x in stages and l >= chain.length - chain.stages + x))

    def at_most(less: Any, more: Any) -> Any:
        """The row less <= more, where both sides may be known numbers."""
        if isinstance(less, int) and isinstance(more, int):
            return pyo.Constraint.Feasible if less <= more else positive <= -1
        return less <= more

    m.onward = pyo.Constraint(list(m.Y), rule=lambda m, x, l: at_most(m.Y[x, l], begun(x, l + 1)))
    m.order = pyo.Constraint(
        [(x, l) for x in stages[1:-1] for l in layers[:-1]], rule=lambda m, x, l: at_most(begun(x + 1, l + 1), begun(x, l))
    )
    m.memory = pyo.Constraint(chain.precedences, rule=lambda m, x, first, l: at_most(begun(x, first - 1), begun(x + 1, l)))
    return begun


def solved_cuts(chain: Chain, values: Mapping[str, Mapping[tuple[int, int], float]]) -> tuple[int, ...]:
    """The cuts that solved values of Y stand for: every stage begins at the first layer by which Y says that it has begun."""
    latest, begun = chain.length - chain.stages, values["Y"]
    firsts = [range(x, latest + x) for x in range(1, chain.stages)]
    return tuple(next((l for l in row if begun[x, l] > 0.5), row.stop) for x, row in enumerate(firsts, 1))
