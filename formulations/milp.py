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
    """The nanoseconds or bytes that one unit of a MILP model's variables stands for: the power of two that scales the largest
    number, `value`, to about 2^20 units.

    Dividing by a power of two loses no bit of a coefficient. A solver's tolerance of 1e-6 units is then less than a byte or
    a nanosecond as long as `value` is below 2^40.
    """
    return 1 << max(0, value.bit_length() - SIGNIFICANT_BITS)


@dataclass(frozen=True)
class Columns:
    """Where a solver keeps the variables of a Pyomo model: solvers number variables as columns.

    Attributes:
        indices: by a variable's name and its index in the model, its column number.
        whole: pairs of a whole-number variable and its column number.
    """

    indices: Mapping[str, Mapping[Any, int]]
    whole: Sequence[tuple[Any, int]]

    def values(self, solution: Any) -> dict[str, dict[Any, float]]:
        """The solved value of every variable, by its name and then its index in the model. solution: the solver's values in
        the order of its columns.
        """
        values = np.asarray(solution).tolist()
        return {name: {index: values[column] for index, column in columns.items()} for name, columns in self.indices.items()}


def columns_of(model: Any, column_of: Mapping[int, int]) -> Columns:
    """Find the solver's column number of each variable of a Pyomo model.

    model: the Pyomo model. column_of: by the Python `id` of the variable, its column number; variables that no constraint
    contains have no column and are left out.
    """
    parts = {
        name: [(i, part[i]) for i in part if id(part[i]) in column_of] for name, part in model.component_map(pyo.Var).items()
    }
    whole = [(v, column_of[id(v)]) for variables in parts.values() for _, v in variables if not v.is_continuous()]
    return Columns({name: {i: column_of[id(v)] for i, v in variables} for name, variables in parts.items()}, whole)


def _open(chain: Chain, x: int, l: int) -> bool:
    """Whether the model needs a variable Y[x,l] ("stage x has begun by layer l"): False if the answer is equal in all
    solutions. chain: the chain of layers that is cut into stages.
    """
    return 0 < x < chain.stages and x <= l < chain.length - chain.stages + x


def state_cuts(m: Any, chain: Chain, positive: Any) -> Callable[[int, int], Any]:
    """Add to a Pyomo model the binary variables Y that cut a chain of n layers into p stages, and their constraints.

    Y[x,l] is 1 if stage x has begun by layer l, so layer l lies in stage x if Y[x,l] - Y[x+1,l] = 1. Every stage has a layer,
    so Y[x,l] is a variable only for l = x .. n-p+x-1 and known elsewhere; Y[0,l] = 1 and Y[p,l] = 0 for every l.

            onward     Y[x,l] <= Y[x,l+1]                   a stage that has begun stays begun
            order      Y[x+1,l+1] <= Y[x,l]                 every stage has a layer
            memory     Y[x,w[x,l]-1] <= Y[x+1,l]            for every x, l where w[x,l] > 0

    Here w[x,l] is the least first layer with which stage x fits its memory when l is its last one (`Memory.first_layers`).

    positive: any nonnegative variable of the model; if a constraint between known numbers is false, the model gets the
    unsatisfiable constraint positive <= -1. Returns a function of x and l that gives Y[x,l]: the variable, or the known
    number. chain: the chain of layers that is cut into stages.
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
    """The cuts (index of the first layer of every stage but the first) that a solved model chose.

    values: the solved value of every variable by name and index, where Y[x,l] > 0.5 means that stage x has begun by layer
    l. chain: the chain of layers that is cut into stages.
    """
    latest, begun = chain.length - chain.stages, values["Y"]
    firsts = [range(x, latest + x) for x in range(1, chain.stages)]
    return tuple(next((l for l in row if begun[x, l] > 0.5), row.stop) for x, row in enumerate(firsts, 1))
