"""cluster-strategy as a mixed-integer linear program, in Pyomo: one `Degrees` at a time.

The same decisions as in `cpsat`, whose symbols these are. Times are no big-M rows: what a stage costs depends on its span and
on the composition of its group, and both are chosen together, by variables that split the one along the other. Only the shares
of uneven pipelines, which multiply a stage's time, need a big-M.

Sets         j < P stages; i < d pipelines; r < tmp ranks; c classes of devices; g compositions of tmp groups, f their profiles;
             h compositions of data-parallel groups, q kinds of link; spans [a, b) of layers; n micro-batches
Parameters   c[f,a,b] time of a span, e[q,b] transfer after layer b-1, s[q,a,b] all-reduce (in scaled units, see `units`)
Variables    z[j,a,b] in {0,1}     stage j holds the layers a .. b-1
             x[j,i,r,c] in {0,1}   a device of class c has the rank (j, i, r)
             y[j,i,g] in {0,1}     group (j, i) is of composition g
             u[j,r,h] in {0,1}     data-parallel group (j, ., r) is of composition h
             w[j,i,q] >= 0         a link of kind q lies between the stages j and j+1 of pipeline i
             G[i,n] in {0,1}       pipeline i takes n micro-batches
             l[h] in {0,1}         the devices of the first and the last stage are of composition h, where a table is tied
             Y[j,i,f,a,b], U[j,r,q,a,b], W[j,i,q,b] >= 0: z, where the group has that profile or link
             M[i], D, T >= 0

    minimise   T + D                                                                     (objective)             (Eq. 4)
    path       sum_ab z[j,a,b] = 1;  sum_a z[j-1,a,l] = sum_b z[j,l,b]                   for every j, l
    take       sum_c x[j,i,r,c] = 1;  sum_jir x[j,i,r,c] = devices of class c
    compose    sum_r x[j,i,r,c] = sum_g g_c y[j,i,g], sum_g y[j,i,g] = 1                 for every j, i, c
               sum_i x[j,i,r,c] = sum_h h_c u[j,r,h], sum_h u[j,r,h] = 1                 for every j, r, c
    meet       w[j,i,q] >= x[j,i,r,c] + sum_c' x[j+1,i,r,c'] - 1                         c' those that meet c by link q
    split      sum_f Y[j,i,f,a,b] = z[j,a,b], sum_ab Y[j,i,f,a,b] = sum of y of profile f        for every j, i
               sum_q U[j,r,q,a,b] = z[j,a,b], sum_ab U[j,r,q,a,b] = sum of u of link q           for every j, r
               W[j,i,q,b] >= w[j,i,q] + sum_a z[j,a,b] - 1                               for every j, i, q, b
    bottleneck M[i] >= sum c Y[j,i,...]                                                  for every j, i
    pipeline   T >= (n-1) M[i] + sum c Y[.,i,...] + sum_j E[j,i] - (n - n0) M (1 - G[i,n])       for every i, n  (Eq. 5)
    move       E[j,i] >= sum_b e[q,b] W[j,i,q,b]                                         for every j, i, q
    sync       D >= sum s U[j,r,...], plus R for j = 0 and j = P - 1                     for every j, r
    tied       sum x[j,.,.,c] over these two j = sum_h h_c l[h], sum_h l[h] = 1, R = sum_h (reduction over h) l[h]
    share      sum_n G[i,n] = 1;  sum_in n G[i,n] = all micro-batches
    memory     sum z + sum y + sum G <= 2 of spans, compositions and shares that exceed the memory together
    order      of the first stage's classes, as in `cpsat`

M in `pipeline` is the longest time of any stage, n0 the least share: with G[i,n] = 0 the row is that of n0 micro-batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyomo.environ as pyo
from trainplan.formulations.cluster_strategy.compositions import Composition
from trainplan.formulations.cluster_strategy.group_compositions import DegreeCase
from trainplan.formulations.cluster_strategy.problem import Solution
from trainplan.formulations.milp import unit


def units(case: DegreeCase) -> tuple[int, None]:
    """The scales of the MILP: the nanoseconds that one unit of the model's variables stands for, a power of two with which the
    largest objective is near 2^20 units; and None in place of a scale of bytes, since the model has none. case: the
    instance with its degrees of parallelism given.
    """
    return unit(_most_ns(case)), None


def weight(case: DegreeCase) -> int:
    """The largest factor by which the objective multiplies the error of a linear constraint of the model; the solver's
    tolerance is divided by it. case: the instance with its degrees of parallelism given.
    """
    return (_most_ns(case) // units(case)[0] + 1) * case.degrees.pp


def _most_ns(case: DegreeCase) -> int:
    """A time in ns that no step of the case exceeds. case: the instance with its degrees of parallelism given."""
    stages = case.degrees.pp
    times = int(case.times[:, -1].max()) * (case.share_choices[-1] + stages)
    syncs = int(case.sync_ns.max()) + max(case.tied_ns, default=0)
    return times + stages * int(case.transfer_ns.max(initial=0)) + syncs


class _Sets(NamedTuple):
    """The index sets of the Pyomo model, named as at the head of this file: stages j, pipelines i, tensor-parallel ranks r,
    classes c of interchangeable devices, kinds q of link between stages (links) and of gradient reductions (rings), and
    profiles f (all tensor-parallel groups of equal costs are one profile).

    spans: by stage, the pairs (a, b) of first layer and layer after the last. ends: by stage, the layers b that may follow
    its last one. cuts: the indices of all stages but the last.
    """

    stages: range
    pipelines: range
    ranks: range
    classes: range
    links: range
    rings: list[int]
    profiles: list[int]
    spans: dict[int, list[tuple[int, int]]]
    ends: dict[int, list[int]]
    cuts: range

    @classmethod
    def of(cls, case: DegreeCase) -> _Sets:
        """The sets of the model of a case. case: the instance with its degrees of parallelism given."""
        degrees = case.degrees
        spans = {j: case.spans(j) for j in range(degrees.pp)}
        return cls(
            stages=range(degrees.pp),
            pipelines=range(degrees.dp),
            ranks=range(degrees.tmp),
            classes=range(len(case.counts)),
            links=range(len(case.transfer_ns)),
            rings=sorted(set(case.ring_of)),
            profiles=sorted(set(case.profile_of)),
            spans=spans,
            ends={j: sorted({b for _, b in spans[j]}) for j in spans},
            cuts=range(degrees.pp - 1),
        )


def build(case: DegreeCase) -> pyo.ConcreteModel:
    """The Pyomo model of an instance with given degrees; its variables and constraints are listed at the head of this module.
    `extract` reads a solution from its solved values. case: the instance with its degrees of parallelism given.
    """
    m = pyo.ConcreteModel(name=case.instance.name)
    sets = _Sets.of(case)
    _add_variables(m, case, sets)
    _add_placement(m, case, sets)
    _add_products(m, case, sets)
    _add_times(m, case, sets)
    _add_memory_and_order(m, case, sets)
    m.objective = pyo.Objective(expr=m.T + m.D)
    return m


def _add_variables(m: Any, case: DegreeCase, sets: _Sets) -> None:
    """Add the variables to the Pyomo model `m`, except those of a weight table that embedding and head share. sets: the
    model's index sets. case: the instance with its degrees of parallelism given.
    """
    stages, pipelines, ranks, spans = sets.stages, sets.pipelines, sets.ranks, sets.spans
    positive = pyo.NonNegativeReals
    m.z = pyo.Var([(j, a, b) for j in stages for a, b in spans[j]], domain=pyo.Binary)
    m.x = pyo.Var(stages, pipelines, ranks, sets.classes, domain=pyo.Binary)
    m.y = pyo.Var(stages, pipelines, range(len(case.groups)), domain=pyo.Binary)
    m.u = pyo.Var(stages, ranks, range(len(case.replicas)), domain=pyo.Binary)
    m.w = pyo.Var(sets.cuts, pipelines, sets.links, domain=positive)
    m.G = pyo.Var(pipelines, case.share_choices, domain=pyo.Binary)
    m.Y = pyo.Var([(j, i, f, a, b) for j, a, b in m.z for i in pipelines for f in sets.profiles], domain=positive)
    m.U = pyo.Var([(j, r, q, a, b) for j, a, b in m.z for r in ranks for q in sets.rings], domain=positive)
    moves = [(j, i, q, b) for j in sets.cuts for i in pipelines for q in sets.links for b in sets.ends[j]]
    m.W = pyo.Var(moves, domain=positive)
    m.E = pyo.Var(sets.cuts, pipelines, domain=positive)
    m.M = pyo.Var(pipelines, domain=positive)
    m.D, m.T = pyo.Var(domain=positive), pyo.Var(domain=positive)


def _add_placement(m: Any, case: DegreeCase, sets: _Sets) -> None:
    """Add to the Pyomo model `m` the constraints named `path` to `meet` at the head of this module: stages divide the layers,
    every rank has a device, and groups have the compositions (numbers of devices of each class of exchangeable devices) and
    links that follow from that. sets: the model's index sets. case: the instance with its degrees of parallelism given.
    """
    stages, pipelines, ranks, classes, spans = sets.stages, sets.pipelines, sets.ranks, sets.classes, sets.spans
    m.path = pyo.Constraint(stages, rule=lambda m, j: sum(m.z[j, a, b] for a, b in spans[j]) == 1)
    m.onward = pyo.Constraint(
        [(j, l) for j in sets.cuts for l in sets.ends[j]],
        rule=lambda m, j, l: (
            sum(m.z[j, a, b] for a, b in spans[j] if b == l) == sum(m.z[j + 1, a, b] for a, b in spans[j + 1] if a == l)
        ),
    )
    m.take = pyo.Constraint(stages, pipelines, ranks, rule=lambda m, j, i, r: sum(m.x[j, i, r, c] for c in classes) == 1)
    m.devices = pyo.Constraint(
        classes, rule=lambda m, c: sum(m.x[j, i, r, c] for j in stages for i in pipelines for r in ranks) == case.counts[c]
    )
    m.group = pyo.Constraint(stages, pipelines, rule=lambda m, j, i: sum(m.y[j, i, :]) == 1)
    m.compose = pyo.Constraint(
        stages,
        pipelines,
        classes,
        rule=lambda m, j, i, c: sum(m.x[j, i, :, c]) == _devices(case.groups, c, m.y, (j, i)),
    )
    m.replicas = pyo.Constraint(stages, ranks, rule=lambda m, j, r: sum(m.u[j, r, :]) == 1)
    m.replica = pyo.Constraint(
        stages,
        ranks,
        classes,
        rule=lambda m, j, r, c: sum(m.x[j, :, r, c]) == _devices(case.replicas, c, m.u, (j, r)),
    )

    def meet(m: Any, j: int, i: int, r: int, c: int, q: int) -> Any:
        """The row that makes w[j,i,q] true where a device of class c and one of another class meet by a link of kind q."""
        others = [b for b in classes if case.link_of[c, b] == q]
        if not others:
            return pyo.Constraint.Skip
        return m.w[j, i, q] >= m.x[j, i, r, c] + sum(m.x[j + 1, i, r, b] for b in others) - 1

    m.meet = pyo.Constraint(sets.cuts, pipelines, ranks, classes, sets.links, rule=meet)


def _add_products(m: Any, case: DegreeCase, sets: _Sets) -> None:
    """Add to the Pyomo model `m` the constraints by which the variables Y, U and W are products of two binary choices: of a
    stage's layers with the profile (costs) of its group, with the link of its gradient reductions, and with its link to the
    next stage. sets: the model's index sets. case: the instance with its degrees of parallelism given.
    """
    stages, pipelines, ranks, spans = sets.stages, sets.pipelines, sets.ranks, sets.spans
    m.split_time = pyo.Constraint(
        [(j, i, a, b) for j, a, b in m.z for i in pipelines],
        rule=lambda m, j, i, a, b: sum(m.Y[j, i, f, a, b] for f in sets.profiles) == m.z[j, a, b],
    )
    m.of_profile = pyo.Constraint(
        stages,
        pipelines,
        sets.profiles,
        rule=lambda m, j, i, f: (
            sum(m.Y[j, i, f, a, b] for a, b in spans[j])
            == sum(m.y[j, i, g] for g, number in enumerate(case.profile_of) if number == f)
        ),
    )
    m.split_sync = pyo.Constraint(
        [(j, r, a, b) for j, a, b in m.z for r in ranks],
        rule=lambda m, j, r, a, b: sum(m.U[j, r, q, a, b] for q in sets.rings) == m.z[j, a, b],
    )
    m.of_ring = pyo.Constraint(
        stages,
        ranks,
        sets.rings,
        rule=lambda m, j, r, q: (
            sum(m.U[j, r, q, a, b] for a, b in spans[j])
            == sum(m.u[j, r, h] for h, number in enumerate(case.ring_of) if number == q)
        ),
    )
    m.split_move = pyo.Constraint(
        list(m.W),
        rule=lambda m, j, i, q, b: m.W[j, i, q, b] >= m.w[j, i, q] + sum(m.z[j, a, e] for a, e in spans[j] if e == b) - 1,
    )


def _add_times(m: Any, case: DegreeCase, sets: _Sets) -> None:
    """Add to the Pyomo model `m` the constraints of times: stages, transfers, synchronisation of gradients, and pipelines with
    their numbers of micro-batches. sets: the model's index sets. case: the instance with its degrees of parallelism given.
    """
    stages, pipelines, ranks, spans, ns_per_unit = sets.stages, sets.pipelines, sets.ranks, sets.spans, units(case)[0]

    def time(j: int, i: int) -> Any:
        """The time of stage j in pipeline i."""
        times = ((f, a, b, int(case.times[f, b] - case.times[f, a])) for f in sets.profiles for a, b in spans[j])
        return sum(ns / ns_per_unit * m.Y[j, i, f, a, b] for f, a, b, ns in times)

    m.bottleneck = pyo.Constraint(stages, pipelines, rule=lambda m, j, i: m.M[i] >= time(j, i))
    m.move = pyo.Constraint(
        sets.cuts,
        pipelines,
        sets.links,
        rule=lambda m, j, i, q: (
            m.E[j, i] >= sum(int(case.transfer_ns[q, b - 1]) / ns_per_unit * m.W[j, i, q, b] for b in sets.ends[j])
        ),
    )
    tied = _tied(m, case, ns_per_unit)
    m.sync = pyo.Constraint(
        stages,
        ranks,
        rule=lambda m, j, r: (
            sum(int(case.sync_ns[q, a, b]) / ns_per_unit * m.U[j, r, q, a, b] for q in sets.rings for a, b in spans[j])
            + (tied if j in (0, stages[-1]) else 0)
            <= m.D
        ),
    )
    longest, least = int(case.times[:, -1].max()) / ns_per_unit, case.share_choices[0]
    first_ns = {i: sum(time(j, i) for j in stages) + sum(m.E[j, i] for j in sets.cuts) for i in pipelines}
    m.pipeline = pyo.Constraint(
        pipelines,
        case.share_choices,
        rule=lambda m, i, n: (n - 1) * m.M[i] + first_ns[i] - (n - least) * longest * (1 - m.G[i, n]) <= m.T,
    )
    m.share = pyo.Constraint(pipelines, rule=lambda m, i: sum(m.G[i, n] for n in case.share_choices) == 1)
    m.shares = pyo.Constraint(expr=sum(n * m.G[i, n] for i, n in m.G) == case.micro_batches)


def _add_memory_and_order(m: Any, case: DegreeCase, sets: _Sets) -> None:
    """Add to the Pyomo model `m` the constraints of memory, and those that keep only one of several placements that differ by
    an exchange of pipelines or of tensor-parallel ranks. sets: the model's index sets. case: the instance with its degrees
    of parallelism given.
    """
    pipelines, ranks = sets.pipelines, sets.ranks
    m.memory = pyo.ConstraintList()
    for j, over, small, taken in case.excesses():
        for i in pipelines:
            groups = sum(m.Y[j, i, f, a, b] for f in small for a, b in over)
            m.memory.add(groups + sum(m.G[i, n] for n in taken) <= 1)
    first = {(i, r): sum(c * m.x[0, i, r, c] for c in sets.classes) for i in pipelines for r in ranks}
    m.order_pipelines = pyo.Constraint(list(pipelines)[1:], rule=lambda m, i: first[i - 1, 0] <= first[i, 0])
    m.order_ranks = pyo.Constraint(list(ranks)[1:], rule=lambda m, r: first[0, r - 1] <= first[0, r])


def _tied(m: Any, case: DegreeCase, ns_per_unit: int) -> Any:
    """The time, in the model's unit of time, to sum the gradients of a weight table that embedding and head share, as an
    expression; 0 if they share none. Adds the variables and constraints for it to the Pyomo model `m`. ns_per_unit: the
    nanoseconds of the model's unit of time. case: the instance with its degrees of parallelism given.
    """
    if not case.instance.tied_bytes:
        return 0
    last, classes = case.degrees.pp - 1, range(len(case.counts))
    m.l = pyo.Var(range(len(case.ends)), domain=pyo.Binary)
    m.end = pyo.Constraint(expr=sum(m.l[:]) == 1)
    m.ends = pyo.Constraint(
        classes, rule=lambda m, c: sum(sum(m.x[j, :, :, c]) for j in {0, last}) == _devices(case.ends, c, m.l, ())
    )
    return sum(time / ns_per_unit * m.l[index] for index, time in enumerate(case.tied_ns))


def _devices(listed: Sequence[Composition], c: int, variables: Any, group: tuple[int, ...]) -> Any:
    """The number of devices of class `c` in a group, as a Pyomo expression. listed: the possible compositions (numbers of
    devices of each class of exchangeable devices) of such groups. variables: by (*group, index), whether the group has the
    composition of that index. group: the index of the group."""
    return sum(composition[c] * variables[(*group, index)] for index, composition in enumerate(listed) if composition[c])


def extract(case: DegreeCase, values: Mapping[str, Mapping[tuple[int, ...], float]]) -> Solution:
    """The solution that solved values stand for: for every stage, rank and pipeline, the largest value of its variables z, x
    and G decides. values: by name of the variable, the solved values by index. case: the instance with its degrees of
    parallelism given.
    """
    degrees, spans = case.degrees, values["z"]
    path = [max((index for index in spans if index[0] == j), key=spans.__getitem__) for j in range(degrees.pp)]
    ranks = sorted({index[:3] for index in values["x"]})
    classes = [max((values["x"][(*rank, c)], c) for c in range(len(case.counts)))[1] for rank in ranks]
    shares = [max((values["G"][i, n], n) for n in case.share_choices)[1] for i in range(degrees.dp)]
    return case.solution(classes, [a for _, a, _ in path[1:]], shares)
