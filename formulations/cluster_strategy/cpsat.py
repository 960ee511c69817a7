"""cluster-strategy as an OR-Tools CP-SAT model, on whole nanoseconds and bytes: one `Degrees` at a time.

A composition of a group of devices is how many devices it has of each class (see `group_compositions`); its profile is what
layers take there.

Sets         j < P stages; i < d pipelines; r < tmp ranks; c classes of devices; g compositions of tmp groups, f their profiles;
             h compositions of data-parallel groups, q kinds of link; spans [a, b) of layers
Variables    z[j,a,b] bool     stage j holds the layers a .. b-1
             x[j,i,r,c] bool   a device of class c has the rank (j, i, r)
             y[j,i,g] bool     group (j, i) is of composition g; p[j,i,f]: of profile f
             u[j,r,h] bool     data-parallel group (j, ., r) is of composition h
             w[j,i,q] bool     a link of kind q lies between the stages j and j+1 of pipeline i
             G[i,n] bool       pipeline i takes n micro-batches
             l[h] bool         the devices of the first and the last stage are of composition h of `ends`, where a table is tied
             t[j,i], e[j,i]    time of stage j in pipeline i, and of its transfer to the next stage
             M[i], D, R, T     slowest stage of a pipeline, synchronisation, reduction of the tied table, slowest pipeline

    minimise   T + D                                                                                     (Eq. 4)
    path       exactly one z[j,.,.] for every j; stage j+1 begins where stage j ends
    take       every rank has one class; every class has as many ranks as devices
    compose    sum_r x[j,i,r,c] = sum_g g_c y[j,i,g],  sum_i x[j,i,r,c] = sum_h h_c u[j,r,h]  for every c
    time       t[j,i] >= sum_ab z[j,a,b] (time of a .. b-1 in profile f)   where p[j,i,f]
    move       e[j,i] >= sum_ab z[j,a,b] (transfer after b-1 on link q)    where w[j,i,q]; w[j,i,q] where any x's meet at q
    sync       D >= sum_ab z[j,a,b] (all-reduce of a .. b-1 on link q)     where group (j, ., r) has such a link
               with R added to the sum for j = 0 and j = P - 1
    tied       sum_jir x[j,i,r,c] over these two j = sum_h h_c l[h];  R = sum_h (reduction over h) l[h]
    bottleneck M[i] >= t[j,i]
    pipeline   T >= (n - 1) M[i] + sum_j e[j,i] + sum_j t[j,i]             where G[i,n]                  (Eq. 5)
    share      exactly one G[i,.]; sum_in n G[i,n] = all micro-batches
    memory     not z[j,a,b] with p[j,i,f] where min(n, P - j) micro-batches of a .. b-1 exceed f's memory and G[i,n]

Pipelines may be exchanged, and tmp ranks: of the first stage's classes, those of the first rank ascend with i and those of the
first pipeline with r. With the least class at (0, 0, 0), sorting one leaves the other as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ortools.sat.python import cp_model
from trainplan.formulations.cluster_strategy.group_compositions import DegreeCase
from trainplan.formulations.cluster_strategy.problem import Solution
from trainplan.formulations.cpsat import weighted_sum

Spans = dict[tuple[int, int, int], cp_model.IntVar]  # by stage, first layer, and the layer after the last
Classes = dict[tuple[int, int, int, int], cp_model.IntVar]  # by stage, pipeline, tensor-parallel rank and class


@dataclass(frozen=True)
class SolutionVariables:
    """The CP-SAT variables that make up a solution; all are Boolean.

    spans: z by (j, a, b), whether stage j holds the layers a to b - 1. classes: x by (j, i, r, c), whether tensor-parallel
    rank r of stage j in pipeline i has a device of class c (devices of one class may be exchanged without changing any
    cost). shares: G by (i, n), whether pipeline i takes n micro-batches.
    """

    spans: Spans
    classes: Classes
    shares: dict[tuple[int, int], cp_model.IntVar]


def build(case: DegreeCase) -> tuple[cp_model.CpModel, SolutionVariables]:
    """The CP-SAT model of an instance with given degrees of parallelism, and those of its variables that make up a solution.
    All variables and constraints are listed at the head of this module. case: the instance with its degrees of parallelism
    given.
    """
    model = cp_model.CpModel()
    degrees = case.degrees
    stages, pipelines, ranks = range(degrees.pp), range(degrees.dp), range(degrees.tmp)
    z = _spans(model, case)
    x = {
        (j, i, r, c): model.new_bool_var(f"x[{j},{i},{r},{c}]")
        for j in stages for i in pipelines for r in ranks for c in range(len(case.counts))
    }  # fmt: skip
    for j in stages:
        for i in pipelines:
            for r in ranks:
                model.add_exactly_one(x[j, i, r, c] for c in range(len(case.counts)))
    for c, count in enumerate(case.counts):
        model.add(sum(x[j, i, r, c] for j in stages for i in pipelines for r in ranks) == count)
    _order(model, case, x)

    most_t = int(case.times[:, -1].max())
    most_e = int(case.transfer_ns.max(initial=0))
    t = {(j, i): model.new_int_var(0, most_t, f"t[{j},{i}]") for j in stages for i in pipelines}
    e = {(j, i): model.new_int_var(0, most_e, f"e[{j},{i}]") for j in stages[:-1] for i in pipelines}
    p = _times(model, case, z, x, t)
    _transfers(model, case, z, x, e)
    sync = _synchronisation(model, case, z, x)

    shares = {(i, n): model.new_bool_var(f"G[{i},{n}]") for i in pipelines for n in case.share_choices}
    for i in pipelines:
        model.add_exactly_one(shares[i, n] for n in case.share_choices)
    model.add(sum(n * variable for (_, n), variable in shares.items()) == case.micro_batches)
    for j, over, small, taken in case.excesses():
        for i in pipelines:
            terms = [z[j, a, b] for a, b in over], [p[j, i, f] for f in small], [shares[i, n] for n in taken]
            model.add(sum(map(sum, terms)) <= 2)

    most = case.share_choices[-1] * most_t + degrees.pp * (most_t + most_e)
    whole = model.new_int_var(0, most, "T")
    for i in pipelines:
        slowest = model.new_int_var(0, most_t, f"M[{i}]")
        for j in stages:
            model.add(slowest >= t[j, i])
        first = [(t[j, i], 1) for j in stages] + [(e[j, i], 1) for j in stages[:-1]]
        for n in case.share_choices:
            model.add(whole >= weighted_sum([(slowest, n - 1), *first])).only_enforce_if(shares[i, n])
    model.minimize(whole + sync)
    return model, SolutionVariables(z, x, shares)


def _spans(model: cp_model.CpModel, case: DegreeCase) -> Spans:
    """The Boolean variables z by (stage, first layer, layer after the last), true if the stage has exactly these layers. Adds
    to the model the constraints that every stage has one such span, and begins where the stage before it ends. case: the
    instance with its degrees of parallelism given.
    """
    stages = range(case.degrees.pp)
    spans = [case.spans(j) for j in stages]
    z = {(j, a, b): model.new_bool_var(f"z[{j},{a},{b}]") for j in stages for a, b in spans[j]}
    for j in stages:
        model.add_exactly_one(z[j, a, b] for a, b in spans[j])
    for j in stages[1:]:
        for border in sorted({a for a, _ in spans[j]}):
            ends = sum(z[j - 1, a, b] for a, b in spans[j - 1] if b == border)
            model.add(ends == sum(z[j, a, b] for a, b in spans[j] if a == border))
    return z


def _times(
    model: cp_model.CpModel, case: DegreeCase, z: Spans, x: Classes, t: Mapping[tuple[int, int], cp_model.IntVar]
) -> dict[tuple[int, int, int], Any]:
    """The Boolean variables p by (stage j, pipeline i, profile f), true if the stage's tensor-parallel group has that profile;
    a profile is the index of a set of groups with equal costs. Adds to the model the constraints by which t is the time of
    the stage's layers in the pipeline.

    case: the instance with its degrees of parallelism given. z: by (stage, first layer, layer after the last), whether the
    stage has these layers. x: by (stage, pipeline, rank, class), whether the rank has a device of the class; devices of one
    class may be exchanged without changing any cost. t: variables for times in ns, by (stage, pipeline).
    """
    p: dict[tuple[int, int, int], Any] = {}
    spans = [case.spans(j) for j in range(case.degrees.pp)]
    for j, i in t:
        of_class = [sum(x[j, i, r, c] for r in range(case.degrees.tmp)) for c in range(len(case.counts))]
        y = _compositions(model, case.groups, of_class, f"y[{j},{i}")
        for f, variable in _merged(model, case.profile_of, y, f"p[{j},{i}").items():
            p[j, i, f] = variable
            time = weighted_sum((z[j, a, b], int(case.times[f, b] - case.times[f, a])) for a, b in spans[j])
            model.add(t[j, i] >= time).only_enforce_if(variable)
    return p


def _transfers(
    model: cp_model.CpModel, case: DegreeCase, z: Spans, x: Classes, e: Mapping[tuple[int, int], cp_model.IntVar]
) -> None:
    """Add to the model the constraints by which e is at least the time of the transfer after stage j in pipeline i, over every
    kind of link that joins devices of both stages.

    case: the instance with its degrees of parallelism given. z: by (stage, first layer, layer after the last), whether the
    stage has these layers. x: by (stage, pipeline, rank, class), whether the rank has a device of the class; devices of one
    class may be exchanged without changing any cost. e: variables for times in ns, by (stage, pipeline).
    """
    classes, spans = range(len(case.counts)), [case.spans(j) for j in range(case.degrees.pp)]
    for j, i in e:
        w = [model.new_bool_var(f"w[{j},{i},{q}]") for q in range(len(case.transfer_ns))]
        for r in range(case.degrees.tmp):
            for a in classes:
                for b in classes:
                    meeting = w[case.link_of[a, b]] if case.link_of[a, b] >= 0 else False
                    model.add_bool_or(~x[j, i, r, a], ~x[j + 1, i, r, b], meeting)
        for q, variable in enumerate(w):
            move = weighted_sum((z[j, a, b], int(case.transfer_ns[q, b - 1])) for a, b in spans[j])
            model.add(e[j, i] >= move).only_enforce_if(variable)


def _synchronisation(model: cp_model.CpModel, case: DegreeCase, z: Spans, x: Classes) -> cp_model.IntVar:
    """A new variable for the longest time in ns that any stage takes to reduce its gradients, with the sum of a shared weight
    table's gradients (D of AMP). Adds the constraints for it to the model.

    case: the instance with its degrees of parallelism given. z: by (stage, first layer, layer after the last), whether the
    stage has these layers. x: by (stage, pipeline, rank, class), whether the rank has a device of the class; devices of one
    class may be exchanged without changing any cost.
    """
    stages, pipelines, ranks = range(case.degrees.pp), range(case.degrees.dp), range(case.degrees.tmp)
    classes, ends = range(len(case.counts)), sorted({0, case.degrees.pp - 1})
    tied = _tied(model, case, [sum(x[j, i, r, c] for j in ends for i in pipelines for r in ranks) for c in classes])
    spans = [case.spans(j) for j in stages]
    sync = model.new_int_var(0, int(case.sync_ns.max()) + max(case.tied_ns, default=0), "D")
    for j in stages:
        for r in ranks:
            of_class = [sum(x[j, i, r, c] for i in pipelines) for c in classes]
            u = _compositions(model, case.replicas, of_class, f"u[{j},{r}")
            for q, variable in _merged(model, case.ring_of, u, f"v[{j},{r}").items():
                reduced = weighted_sum((z[j, a, b], int(case.sync_ns[q, a, b])) for a, b in spans[j])
                model.add(sync >= reduced + (tied if j in ends else 0)).only_enforce_if(variable)
    return sync


def _order(model: cp_model.CpModel, case: DegreeCase, x: Classes) -> None:
    """Add to the model constraints that break symmetry: of all placements that differ only by an exchange of pipelines or of
    tensor-parallel ranks, they keep at least one. x: by (stage, pipeline, rank, class), whether a rank has a device of a
    class. case: the instance with its degrees of parallelism given.
    """
    chosen = {(j, i, r): sum(c * x[j, i, r, c] for c in range(len(case.counts))) for j, i, r, _ in x if not j}
    for i in range(1, case.degrees.dp):
        model.add(chosen[0, i - 1, 0] <= chosen[0, i, 0])
    for r in range(1, case.degrees.tmp):
        model.add(chosen[0, 0, r - 1] <= chosen[0, 0, r])


def _tied(model: cp_model.CpModel, case: DegreeCase, of_class: list[Any]) -> Any:
    """The time in ns to sum the gradients of a weight table that embedding and head share, as an expression; 0 if they share
    none. Adds variables and constraints for it to the model. case: the instance with its degrees of parallelism given.
    of_class: for each class of interchangeable devices, an expression for the number of its devices in the first and the
    last stage together.
    """
    if not case.instance.tied_bytes:
        return 0
    return weighted_sum(zip(_compositions(model, case.ends, of_class, "l[ends"), case.tied_ns, strict=True))


def _compositions(
    model: cp_model.CpModel, listed: list[tuple[int, ...]], of_class: list[Any], name: str
) -> list[cp_model.IntVar]:
    """New Boolean variables for a group of devices, one for each composition (numbers of devices of each class of
    interchangeable devices) that the group may have; exactly the group's own is true. Adds them and their constraints to
    the model.

    listed: the possible compositions. of_class: for each class, an expression for the number of its devices in the group.
    name: the beginning of the variables' names.
    """
    variables = [model.new_bool_var(f"{name},{g}]") for g in range(len(listed))]
    model.add_exactly_one(variables)
    for c, taken in enumerate(of_class):
        model.add(
            taken == weighted_sum((variable, composition[c]) for variable, composition in zip(variables, listed, strict=True))
        )
    return variables


def _merged(
    model: cp_model.CpModel, numbers: list[int], variables: list[cp_model.IntVar], name: str
) -> dict[int, cp_model.IntVar]:
    """Merge variables with equal numbers: returns, by number, one variable that is true exactly if a given variable with that
    number is true. New variables and their constraints are added to the model. numbers: the number of each of `variables`,
    of which at most one is true. name: the beginning of the new variables' names.
    """
    merged = {}
    for number in sorted(set(numbers)):
        same = [variable for variable, other in zip(variables, numbers, strict=True) if other == number]
        if len(same) == 1:
            merged[number] = same[0]
        else:
            merged[number] = model.new_bool_var(f"{name},{number}]")
            model.add(sum(same) == merged[number])
    return merged


def extract(case: DegreeCase, variables: SolutionVariables, value: Callable[[cp_model.IntVar], bool]) -> Solution:
    """The solution that a solver's answer stands for. variables: the model's variables that make up a solution. value: returns
    the value of a variable in the answer, True or False. case: the instance with its degrees of parallelism given.
    """
    cuts = sorted(a for (_, a, _), variable in variables.spans.items() if a and value(variable))
    classes = [c for (*_, c), variable in variables.classes.items() if value(variable)]
    shares = [n for (_, n), variable in variables.shares.items() if value(variable)]
    return case.solution(classes, cuts, shares)
