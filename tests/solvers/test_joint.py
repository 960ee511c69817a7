"""The decomposition of the joint problem against brute force, and every bound that it rests on against simulation."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, pairwise, product
from typing import Any

import numpy as np
import pytest
from trainplan.formulations.joint.enumeration import cuts_of, improving, solution_count, solutions
from trainplan.formulations.joint.evaluation import Evaluation, evaluate, violations
from trainplan.formulations.joint.problem import (
    Configuration,
    DeviceGroup,
    Instance,
    Reduction,
    Schedule,
    ScheduleName,
    Solution,
    Step,
)
from trainplan.formulations.joint.simulation import graph_of
from trainplan.formulations.joint.tables import Boundary, OptionTable
from trainplan.profiling.base.errors import Unsupported
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.models.model import load_model
from trainplan.solvers.core.search import Search, judge
from trainplan.solvers.core.solve import solve
from trainplan.solvers.joint.branch_and_bound import decomposition
from trainplan.solvers.joint.free_cuts.configuration_bounds import GROUPS
from trainplan.solvers.joint.free_cuts.configuration_search import Candidate
from trainplan.solvers.joint.free_cuts.critical_path_bounds import gpipe_ns, one_f_one_b_ns, sliced_ns, slope
from trainplan.solvers.joint.free_cuts.pareto_fronts import Front, front
from trainplan.solvers.joint.free_cuts.pipeline_columns import Passes, pass_ends_ns, passes_of, steps_ns
from trainplan.solvers.joint.heuristics import cheap_bound, first_plan, quick_bound_ns, quick_plan
from trainplan.solvers.joint.stages.option_tables import stage_tables

import trainplan as tp
from tests.helpers.joint_instances import random_instance
from tests.helpers.refusals import refused
from tests.helpers.sizes import one_in

TINY = 20_000  # solutions


def tiny_instance(seed: int, plain: bool = False) -> Instance:
    """A random instance that brute force ends with in moments."""
    rng = random.Random(seed)
    while solution_count(instance := random_instance(rng, plain=plain)) > TINY:
        pass
    return instance


def least_step_ns(instance: Instance) -> int | None:
    """By brute force; None where nothing fits."""
    best = None
    for solution in improving(instance):
        best = solution or best
    return None if best is None else evaluate(instance, best).time_ns


def some_solutions(rng: random.Random, instance: Instance, count: int) -> Iterator[tuple[Solution, Evaluation]]:
    """Random solutions that fit, with what they cost."""
    for _ in range(count):
        index = rng.randrange(len(instance.configurations))
        configuration = instance.configurations[index]
        cuts = rng.choice(list(cuts_of(instance, configuration)) or [()])
        units = configuration.tables[0].units
        choice = tuple(rng.randrange(len(units[unit.kind].options)) for unit in instance.units)
        solution = Solution(index, cuts, choice)
        if not violations(instance, solution):
            yield solution, evaluate(instance, solution)


def assert_proven(seed: int, plain: bool = False) -> None:
    instance = tiny_instance(seed, plain)
    search, least = Search(judge(instance)), least_step_ns(instance)
    outcome = decomposition(instance, search)
    assert outcome.infeasible == (least is None)
    if least is not None:
        assert (search.objective, outcome.bound) == (least, least)


@pytest.mark.parametrize("seed", range(60))
def test_the_decomposition_is_brute_force_to_the_nanosecond(seed: int) -> None:
    assert_proven(seed)


def test_of_two_beginnings_of_a_stage_neither_beats_the_other_before_its_head_counts() -> None:
    """The first unit's head and tail depend on its option: 497 needs the one that is slower without them."""
    assert_proven(1419, plain=True)


@pytest.mark.long
@pytest.mark.parametrize("part", range(20))
def test_the_decomposition_is_brute_force_on_500_more(part: int) -> None:
    for seed in range(1000 + 25 * part, 1025 + 25 * part):
        assert_proven(seed, plain=seed % 3 == 0)


@pytest.mark.parametrize("seed", range(20))
def test_a_cutoff_hides_exactly_what_is_not_below_it(seed: int) -> None:
    instance = tiny_instance(3_000 + seed)
    if (least := least_step_ns(instance)) is None:
        return
    nothing = solve(instance, cutoff_ns=least)
    assert nothing.bound == least and (nothing.objective or least) >= least
    best = solve(instance, cutoff_ns=least + 1)
    assert (best.status, best.objective, best.bound) == ("optimal", least, least)


def assert_bounds_are_below(seed: int) -> None:
    """No bound on the way is above the optimum: closed forms, masters by coarse and fine bounds, with classes of cuts, and with
    stages solved."""
    instance = tiny_instance(seed)
    least = least_step_ns(instance)
    for index, configuration in enumerate(instance.configurations):
        if configuration.stages == 1:
            continue
        alone = least_step_ns(instance.only([index]))
        below = np.inf if alone is None else alone
        assert quick_bound_ns(instance, configuration) <= below
        candidate = Candidate(instance, index, Search(judge(instance)))
        for coarse, groups in ((True, 1), (False, 1), (False, GROUPS)):
            candidate.prepare(np.inf, coarse, groups)
            bound, path = candidate.path_search.bound(np.inf, 1e-3)
            assert bound <= below
            for _ in range(3):
                if coarse or path is None:
                    break
                candidate.refine(path, 0.0)
                bound, path = candidate.path_search.bound(np.inf, 1e-3)
                assert bound <= below
            if alone is not None:
                candidate.prepare(alone, coarse, groups)
                assert candidate.path_search.possible(alone) is not None
    if least is not None:
        assert cheap_bound(instance)[0] <= least


@pytest.mark.parametrize("seed", range(40))
def test_no_bound_is_above_brute_force(seed: int) -> None:
    assert_bounds_are_below(10_000 + seed)


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
def test_no_bound_is_above_brute_force_on_5000_more(part: int) -> None:
    """Of 5,000 instances that are drawn, one in seven; `make test-all` has all."""
    for seed in one_in(7, range(20_000, 25_000))[part::10]:
        assert_bounds_are_below(seed)


# Path bounds, one by one


def random_passes(rng: random.Random, stages: int) -> Passes:
    """Random times of the passes of one pipeline: large, small, and zero."""

    def draw(*shape: int) -> np.ndarray:
        most = rng.choice([1, 3, 100])
        return np.array([rng.randint(0, most) for _ in range(int(np.prod(shape)))], np.int64).reshape(*shape, 1)

    names = ("forward_ns", "backward_ns", "last_ns", "reduce_ns", "optimizer_ns")
    columns = {name: draw(stages) for name in names}
    return Passes(halves_ns=draw(2, stages), halved_backward_ns=draw(stages), **columns)


def pipelines(count: int, sliced: int = 0) -> Iterator[tuple[Passes, int, int, int]]:
    """Random passes with stages, micro-batches, and micro-batches in halves."""
    rng = random.Random(count + sliced)
    for _ in range(count):
        stages, m = rng.randint(2, 5), rng.randint(1, 8)
        yield random_passes(rng, stages), stages, m, min(sliced, stages - 1, m - 1)


@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
def test_bounds_of_single_paths_are_below_simulated_ends(name: ScheduleName) -> None:
    """`one_f_one_b_ns`, `gpipe_ns`: with H before, the end of stage 0; with forward passes alone before, that of the stage."""
    for passes, stages, m, _ in pipelines(1500):
        ends = pass_ends_ns(passes, Schedule(name), m)[:, 0]
        forward, backward = passes.forward_ns[:, 0], passes.backward_ns[:, 0]
        u = (forward + backward).astype(float)
        for x in range(stages):
            w, before, after = stages - 1 - x, float(u[:x].sum()), float(u[x + 1 :].sum())
            bound = gpipe_ns(u[x], after, w, m) if name == "gpipe" else one_f_one_b_ns(u[x], after, w, m)
            assert before + bound <= ends[0]
            assert forward[:x].sum() + bound <= ends[x]


def test_bounds_of_sliced_paths_are_below_simulated_ends() -> None:
    for sliced in (1, 2, 3):
        for passes, stages, m, halved in pipelines(600, sliced):
            if not halved:
                continue
            ends = pass_ends_ns(passes, Schedule("1f1b", halved), m)[:, 0]
            first, second = passes.halves_ns[:, :, 0]
            forward = np.minimum(passes.forward_ns[:, 0], first + second)
            backward = np.minimum(passes.backward_ns[:, 0], passes.halved_backward_ns[:, 0])
            head = np.minimum(passes.forward_ns[:, 0], first)
            u = (forward + backward).astype(float)
            for x in range(stages):
                w, trip = stages - 1 - x, float((head + backward)[x:].sum())
                bound = sliced_ns(u[x], float(u[x + 1 :].sum()), w, m, trip)
                assert (head + backward)[:x].sum() + bound <= ends[0]
                assert head[:x].sum() + bound <= ends[x]


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "sliced"])
def test_bounds_rise_with_u_at_least_by_their_slope(schedule: str) -> None:
    rng = random.Random(7)
    for _ in range(2000):
        w, m = rng.randint(0, 6), rng.randint(1, 12)
        u, more, after, trip = (rng.randint(0, 50) for _ in range(4))

        def bound(u: int, w: int = w, m: int = m, after: int = after, trip: int = trip) -> float:
            if schedule == "sliced":
                return float(sliced_ns(u, after, w, m, trip))
            return float(gpipe_ns(u, after, w, m) if schedule == "gpipe" else one_f_one_b_ns(u, after, w, m))

        assert bound(u + more) - bound(u) >= slope(schedule, w, m) * more


# Simulation


@pytest.mark.parametrize("schedule", [Schedule("1f1b"), Schedule("gpipe"), Schedule("1f1b", 1), Schedule("1f1b", 2)])
def test_arrays_of_pipelines_end_as_their_passes_one_by_one(schedule: Schedule) -> None:
    """With longer last backward passes, against the formulation's simulation for any order of passes."""
    for passes, stages, m, _ in pipelines(150):
        if schedule.sliced > min(stages - 1, m):
            continue
        configuration = Configuration(
            schedule=schedule,
            micro_batches=m,
            device_groups=(DeviceGroup((1,)),) * stages,
            links=(0,) * (stages - 1),
            make_tables=tuple,
        )
        times = {name: getattr(passes, name)[:, 0] for name in ("forward_ns", "backward_ns", "last_ns", "halved_backward_ns")}
        times |= {"first_half_ns": passes.halves_ns[0, :, 0], "second_half_ns": passes.halves_ns[1, :, 0]}

        graph = graph_of(configuration)
        ends = graph.ends_ns(lambda duration: sum(int(times[name][x]) for name, x in duration if name in times))  # noqa: B023
        assert pass_ends_ns(passes, schedule, m)[:, 0].tolist() == [ends[index] for index in graph.last]


@pytest.mark.parametrize("seed", range(40))
def test_many_pipelines_are_simulated_as_the_formulation_does(seed: int) -> None:
    """`steps_ns` of columns, with what crosses their cuts, against `evaluate` of the solutions that they stand for."""
    rng, instance = random.Random(seed), tiny_instance(seed)
    for solution, evaluation in some_solutions(rng, instance, 30):
        configuration = instance.configurations[solution.configuration]
        if configuration.stages == 1:
            continue
        candidate = Candidate(instance, solution.configuration, Search(judge(instance)))
        columns = []
        for first, last in solution.spans():
            options = []
            for unit in range(first, last + 1):
                indices = candidate.tables.kinds[candidate.kinds[unit]].indices.tolist()
                if solution.choice[unit] not in indices:
                    break
                options.append(indices.index(solution.choice[unit]))
            columns.append(candidate.exact.column(first, options) if len(options) == last - first + 1 else None)
        if any(column is None for column in columns):
            continue
        cuts = [instance.boundary_kinds[cut - 1] for cut in solution.cuts]
        passes = passes_of(candidate.tables, [columns], cuts, configuration.links)  # type: ignore[list-item]
        assert int(steps_ns(passes, configuration, candidate.tied_ns)[0]) == evaluation.time_ns


@pytest.mark.parametrize("seed", range(20))
def test_first_plans_fit_and_cost_what_the_planner_says(seed: int) -> None:
    instance = tiny_instance(500 + seed)
    for index, configuration in enumerate(instance.configurations):
        planned = quick_plan(instance, index)
        if planned is not None and (configuration.tied is None or configuration.tied.equal is None):
            assert not violations(instance, planned[1])
            assert evaluate(instance, planned[1]).time_ns == planned[0]
    plan = first_plan(instance)
    assert plan is None or not violations(instance, plan)


# Parts


def _tables_of(instance: Instance, solution: Solution) -> tuple[tuple[OptionTable, ...], tuple[Boundary, ...]]:
    tables = instance.configurations[solution.configuration].tables[0]
    return tables.units, tables.boundaries


@pytest.mark.parametrize("seed", range(30))
def test_fronts_hold_a_column_as_good_as_any_choice_of_a_stage(seed: int) -> None:
    """Each stage of a solution that fits has a column in its front that is entered and left alike and is nowhere longer."""
    rng, instance = random.Random(seed), tiny_instance(700 + seed)
    for solution, evaluation in some_solutions(rng, instance, 10):
        configuration = instance.configurations[solution.configuration]
        if configuration.stages == 1 or configuration.schedule.sliced:
            continue
        candidate = Candidate(instance, solution.configuration, Search(judge(instance)))
        tables = stage_tables(configuration.tables[0])
        for x, (first, last) in enumerate(solution.spans()):
            span = np.array([first], np.intp), np.array([last], np.intp), np.array([np.inf]), 1, np.array([np.inf])
            columns = front(candidate.exact, Front(*span, candidate.in_flight[x], False, ends_apart=True), 10**6).columns
            times, units, boundaries = evaluation.stages[x].times, *_tables_of(instance, solution)
            ends = units[instance.units[first].kind], units[instance.units[last].kind]
            enter = tables.enter_state[ends[0].enter[solution.choice[first]]]
            leave = tables.leave_state[ends[1].leave[solution.choice[last]]]
            crossed = [0, 0]
            for index, (a, b) in enumerate(pairwise((0, *solution.cuts, instance.length))):
                if index == x and a:
                    pair = units[instance.units[a - 1].kind].leave[solution.choice[a - 1]], ends[0].enter[solution.choice[a]]
                    crossed[0] = int(boundaries[instance.boundary_kinds[a - 1]].relayout_forward_ns[pair])
                if index == x and b < instance.length:
                    pair = ends[1].leave[solution.choice[b - 1]], units[instance.units[b].kind].enter[solution.choice[b]]
                    crossed[1] = int(boundaries[instance.boundary_kinds[b - 1]].relayout_backward_ns[pair])
            own = (
                times.forward_ns - crossed[0],
                times.backward_ns - crossed[1],
                times.last_ns,
                times.reduce_ns,
                times.optimizer_ns,
            )
            assert any(
                (c.enter, c.leave) == (enter, leave)
                and all(
                    mine <= theirs
                    for mine, theirs in zip(
                        (c.forward_ns, c.backward_ns, c.last_ns, c.reduce_ns, c.optimizer_ns), own, strict=True
                    )
                )
                for c in columns
            )


@pytest.mark.parametrize("seed", range(25))
def test_exact_stages_are_the_least_of_all_choices(seed: int) -> None:
    """For spans in the middle of solutions, F by label-setting against all choices of the span, hosts' memory included."""
    instance = tiny_instance(900 + seed)
    for index, configuration in enumerate(instance.configurations):
        if configuration.stages == 1 or configuration.schedule.sliced:
            continue
        search = Search(judge(instance))
        candidate = Candidate(instance, index, search)
        for cuts in islice(cuts_of(instance, configuration), 3):
            for x, (first, end) in enumerate(pairwise((0, *cuts, instance.length))):
                for weight in ((1, 0), (1, 1), (3, 1)):
                    depth, least = candidate.in_flight[x], np.inf
                    solved = candidate.exact.solve(first, end - 1, depth, weight, (0, 0), None, search, 0.0)
                    chain, forbidden = candidate.exact.chain(first, end - 1, depth, weight, (0, 0), None)
                    for options in product(*(range(len(times)) for times in chain.time_ns)):
                        value = chain.objective(options)
                        column = candidate.exact.column(first, options) if value is not None and value < forbidden else None
                        host = candidate.host_bytes
                        if column is not None and (host is None or column.host_bytes <= host):
                            least = min(least, value if value is not None else np.inf)
                    assert solved.bound == least


@pytest.mark.parametrize("seed", range(8))
def test_interleaved_chunks_are_solved_where_they_are_few(seed: int) -> None:
    """Together with a configuration of another schedule, which may be better or worse."""
    rng = random.Random(seed)
    while (instance := random_instance(rng, units=5, options=2, plain=True)).length < 4 or not all(instance.cuttable):
        pass
    other = instance.configurations[0]
    chunked = replace(
        other,
        schedule=Schedule("interleaved", chunks=2),
        micro_batches=rng.choice([2, 4]),
        device_groups=(DeviceGroup((1,)),) * 2,
        links=tuple(rng.randrange(2) for _ in range(3)),
        cuts=None,
    )
    instance = replace(instance, configurations=(other, chunked))
    search, least = Search(judge(instance)), least_step_ns(instance)
    outcome = decomposition(instance, search)
    assert outcome.infeasible == (least is None)
    assert least is None or (search.objective, outcome.bound) == (least, least)


def test_large_interleaved_configurations_leave_an_honest_gap() -> None:
    instance = tp.build("joint", model="bert-huge-32", cluster="rtx-titan-8", batch=16, memory="8GiB", schedule="interleaved")
    assert solution_count(instance) > TINY
    result = solve(instance)
    assert result.status == "feasible" and result.gap is not None and 0 < result.gap < 1


def test_what_is_not_bounded_is_refused_in_one_line() -> None:
    instance = tiny_instance(3)
    with refused("step", problem="eq8", fix="simulated", kind=Unsupported):
        solve(replace(instance, step="eq8"), "decomposition")
    configuration = next(each for seed in range(99) for each in tiny_instance(seed).configurations if each.stages > 1)
    groups = (replace(configuration.device_groups[0], kind=1), *configuration.device_groups[1:])
    with refused("configurations[0]", "kinds", kind=Unsupported):
        solve(replace(instance, configurations=(replace(configuration, device_groups=groups),)), "decomposition")


def test_what_bounds_do_not_count_is_refused() -> None:
    """Boundaries that are not re-laid at cuts, and gradients that a stage reduces together: bounds would be too high."""
    instance = next(entry for entry in map(tiny_instance, range(99)) if entry.boundary_kinds)
    configuration = instance.configurations[0]
    tables = tuple(
        replace(table, boundaries=tuple(replace(boundary, relayout_at_cut=False) for boundary in table.boundaries))
        for table in configuration.tables
    )
    for changed in (
        replace(configuration, make_tables=lambda: tables),
        replace(configuration, reduction=Reduction(load_cluster("cpu-4").network, (0, 1))),
    ):
        with refused("configurations", fix=("milp", "cpsat", "brute-force"), kind=Unsupported):
            solve(replace(instance, configurations=(changed,)), "decomposition")


@pytest.mark.parametrize("step", ["eq8", "eq5", "eq4"])
def test_cheap_bounds_of_other_steps_are_below_all_solutions(step: Step) -> None:
    for seed in range(30):
        instance = replace(tiny_instance(seed), step=step)
        least = least_step_ns(instance)
        assert least is None or cheap_bound(instance)[0] <= least


def test_partitions_that_bounds_leave_are_solved_one_by_one() -> None:
    """Where the columns of a stage are too many: two stages of GPT-2, of which MILP proves the same optimum."""
    instance = tp.build("joint", model="gpt2", cluster="cpu-4", batch=8, sequence=256, pipeline=2, micro_batches=4)
    result, proven = solve(instance, gap=1e-5), solve(instance, "milp", gap=1e-6)
    assert result.status == proven.status == "optimal"
    assert result.bound is not None and proven.bound is not None
    assert proven.bound <= (result.objective or 0) and result.bound <= (proven.objective or 0)


def test_limits_on_the_first_stage_do_not_displace_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two paths may leave one first stage different largest times; what is proven under one still holds under the other."""
    sizes = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 32, "intermediate_size": 256}
    model = load_model("llama2-7b", 64, "float32").with_fields(**sizes, num_hidden_layers=5, vocab_size=2003)
    instance = tp.build("joint", model=model, cluster="rtx-titan-8", batch=32, memory=4_992_955, pipeline=4)
    refine_first, rounds = Candidate.refine_first, []

    def counted(*arguments: Any) -> bool:
        rounds.append(refine_first(*arguments))
        assert len(rounds) < 100, "the search goes round"
        return rounds[-1]

    monkeypatch.setattr(Candidate, "refine_first", counted)
    result = solve(instance)
    assert result.status == "optimal" and sum(rounds) > 1


def test_the_gap_that_is_left_comes_in_parts() -> None:
    instance = tp.build("joint", model="bert-huge-32", cluster="rtx-titan-8", batch=32, memory="8GiB")
    result = solve(instance, gap=1e-2)
    assert result.objective is not None and result.bound is not None and result.bound < result.objective
    parts = result.statistics["gap_ns"]
    assert set(parts) == {"tolerance of stages", "step above its longest path", "left to search"} and min(parts.values()) >= 0
    assert sum(parts.values()) == result.objective - result.bound


# As a method


def test_a_gap_requested_is_kept_and_proven() -> None:
    instance = tp.build("joint", model="bert-huge-32", cluster="rtx-titan-8", batch=16, memory="8GiB")
    rough, fine = solve(instance, gap=1e-2), solve(instance, gap=1e-5)
    assert rough.status == fine.status == "optimal"
    assert rough.gap is not None and fine.gap is not None and rough.gap <= 1e-2 and fine.gap <= 1e-5
    assert rough.bound is not None and fine.objective is not None and rough.objective is not None
    assert fine.objective <= rough.objective and rough.bound <= fine.objective


def test_what_fits_nowhere_is_infeasible_with_a_reason() -> None:
    instance = tp.build("joint", model="bert-huge-32", cluster="rtx-titan-8", batch=16, memory="1MiB")
    result = solve(instance)
    assert result.status == "infeasible" and result.reason is not None


def test_incumbents_and_bounds_come_with_their_sources() -> None:
    instance = tp.build("joint", model="bert-huge-32", cluster="rtx-titan-8", batch=32, memory="8GiB")
    result = solve(instance, gap=1e-4)
    assert all(point.source for point in result.history)
    objectives = [point.objective for point in result.history if point.objective is not None]
    bounds = [point.bound for point in result.history if point.bound is not None]
    assert objectives == sorted(objectives, reverse=True) and bounds == sorted(bounds)


def test_all_solutions_of_tiny_instances_are_many() -> None:
    """The instances above are no trivial ones: most have solutions that fit and others that do not."""
    mixed = 0
    for seed in range(30):
        instance = tiny_instance(seed)
        fit = [not violations(instance, solution) for solution in islice(solutions(instance), 400) if solution is not None]
        mixed += any(fit) and not all(fit)
    assert mixed >= 10
