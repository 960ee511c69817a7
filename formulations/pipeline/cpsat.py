"""pipeline as an OR-Tools CP-SAT model, on whole nanoseconds and bytes: one configuration at a time.

The same path through nodes (l, i, s), layer l in stage i with option s, as in `milp`, whose symbols these are.

Variables    x[l,i,s] bool       layer l lies in stage i and takes option s
             z[l,i,a,b] bool     layers l and l+1 lie in stage i, the boundary goes from layout class a to class b
             e[l,i,b] bool       stage i > 0 begins with layer l, of class b
             V                   time of the slowest stage without synchronisation

    minimise   (m - 1) V + sum c x + sum R z + sum Y e                                                            (Eq. 8)
    choose     exactly one x[l,i,s] for every l
    cross      exactly one z[l,.,.,.] or e[l+1,.,.] for every boundary l; z and e only where x takes their classes at both ends
    slowest    sum (c - g) x + sum R z + sum Y e <= V in every stage
    share      P V is at least the sum of the left sides of all stages, which propagation alone does not see
    peak       sum_{k<=l} O_f x[k,i] + O_b x[l,i] + sum_k (O_ms + (n_i - 1) O_f) x[k,i] <= E  for every l, i      (Eq. 2)

Bytes are first divided by their greatest common divisor, which changes no solution and shortens the propagation.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from math import gcd

import numpy as np
from ortools.sat.python import cp_model
from trainplan.formulations.cpsat import Terms, weighted_sum
from trainplan.formulations.numbers import Integers
from trainplan.formulations.pipeline.instance import Instance
from trainplan.formulations.pipeline.layouts import boundaries, most_ns, only, solution, stages_of
from trainplan.formulations.pipeline.problem import Solution

Nodes = dict[tuple[int, int, int], cp_model.IntVar]


def build(instance: Instance) -> tuple[cp_model.CpModel, Nodes]:
    """The CP-SAT model of an instance of one configuration (numbers of stages and micro-batches), and its variables x by
    (layer, stage, option): whether the layer lies in that stage and takes that option. Its constraints are listed at the
    head of this module. instance: the configurations (numbers of stages and micro-batches) to choose from, with the costs
    of layers under each strategy, and the memory limit.
    """
    model = cp_model.CpModel()
    configuration, borders = only(instance), boundaries(instance)
    kinds, tables = instance.layer_kinds, configuration.tables
    layers, stages, options = range(instance.layers), range(configuration.stages), range(len(tables.strategies))
    indices = [(l, i) for l in layers for i in stages_of(instance, l)]

    x = {(l, i, s): model.new_bool_var(f"x[{l},{i},{s}]") for l, i in indices for s in options}
    for l in layers:
        model.add_exactly_one(x[l, i, s] for i in stages_of(instance, l) for s in options)

    moves: list[Terms] = [[] for _ in stages]
    for l, border in enumerate(borders):
        crossings = []
        for i in stages_of(instance, l + 1):
            into: list[list[cp_model.IntVar]] = [[] for _ in border.after]
            if i:
                for b, cost in enumerate(border.entries_ns):
                    into[b].append(model.new_bool_var(f"e[{l + 1},{i},{b}]"))
                    moves[i].append((into[b][-1], cost))
                model.add(sum(row[0] for row in into) <= sum(x[l, i - 1, s] for s in options))
            if i in stages_of(instance, l):
                for a, members in enumerate(border.before):
                    z = [model.new_bool_var(f"z[{l},{i},{a},{b}]") for b in range(len(border.after))]
                    model.add(sum(z) <= sum(x[l, i, s] for s in members))
                    for b, v in enumerate(z):
                        into[b].append(v)
                        moves[i].append((v, border.costs_ns[a][b]))
            for b, members in enumerate(border.after):
                model.add(sum(into[b]) == sum(x[l + 1, i, s] for s in members))
            crossings += [v for row in into for v in row]
        model.add_exactly_one(crossings)

    def in_stage(i: int, values: Integers) -> Terms:
        """The sum of a column of the tables over the layers of stage i."""
        return [(x[l, i, s], int(values[kinds[l], s])) for l, j in indices if j == i for s in options]

    running = [in_stage(i, tables.time_ns - tables.sync_ns) + moves[i] for i in stages]
    last = [term for i in stages for term in in_stage(i, tables.sync_ns)]
    slowest = model.new_int_var(0, most_ns(instance), "V")
    for terms in running:
        model.add(weighted_sum(terms) <= slowest)
    model.add(weighted_sum(chain(*running)) <= configuration.stages * slowest)
    model.minimize(weighted_sum([(slowest, configuration.micro_batches - 1), *chain(*running), *last]))

    columns = (tables.forward_bytes, tables.backward_bytes, tables.state_bytes)
    step = gcd(*(int(v) for column in columns for v in np.unique(column))) or 1
    o_f, o_b, o_ms = (column // step for column in columns)
    for i in stages:
        terms = in_stage(i, o_ms + (configuration.in_flight(i) - 1) * o_f)
        for l in (l for l, j in indices if j == i):
            terms += [(x[l, i, s], int(o_f[kinds[l], s])) for s in options]
            backward = [(x[l, i, s], int(o_b[kinds[l], s])) for s in options]
            model.add(weighted_sum(terms + backward) <= instance.memory_bytes // step)
    return model, x


def extract(instance: Instance, x: Nodes, value: Callable[[cp_model.IntVar], bool]) -> Solution:
    """The solution that a solver's answer stands for. x: the model's variables by (layer, stage, option), true if the layer
    lies in that stage and takes that option. value: returns the value of a variable in the answer, True or False. instance:
    the configurations (numbers of stages and micro-batches) to choose from, with the costs of layers under each strategy,
    and the memory limit.
    """
    return solution(instance, (node for node, v in x.items() if value(v)))
