"""Every method against every other."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trainplan.formulations.layer_strategies.problem import evaluate
from trainplan.profiling.models.model import load_model
from trainplan.solvers.chain.galvatron_dp import galvatron_dp, granularity
from trainplan.solvers.chain.least_memory import least_memory
from trainplan.solvers.core.search import Search

import trainplan as tp
from tests.helpers.clock import without_alarms
from tests.helpers.instances import paper_instance, random_instance
from tests.helpers.refusals import refused
from tests.helpers.sizes import first_and_others, some_and_all

PROVING = {"brute-force": {}, "label-setting": {}, "milp": {}, "cpsat": {"workers": 1}}


@pytest.mark.parametrize("count", some_and_all(80, 500, 200))
def test_random_instances_agree_to_the_nanosecond(count: int, record_property: Callable[[str, object], None]) -> None:
    """Brute force = label-setting = MILP = CP-SAT; the paper's DP is never below them, and its gap is reported."""
    gaps, missed, statuses = [], 0, {"optimal": 0, "infeasible": 0}
    for seed in range(count):
        instance = random_instance(seed)
        results = {name: tp.solve(instance, name, **options) for name, options in PROVING.items()}
        answers = {(result.status, result.objective, result.bound) for result in results.values()}
        assert len(answers) == 1, (
            seed,
            {name: (r.status, r.objective, r.bound, r.message) for name, r in results.items()},
        )
        status, optimum, _ = answers.pop()
        statuses[status] += 1
        paper = tp.solve(instance, "galvatron-dp", granularity_bytes=max(1, instance.memory_bytes // 1000))
        if status == "infeasible":
            assert paper.status == "infeasible"
            continue
        assert paper.status in ("feasible", "optimal", "unknown"), seed
        if paper.objective is None:
            missed += 1
        else:
            assert paper.objective >= optimum
            gaps.append((paper.objective - optimum) / optimum if optimum else 0.0)
    assert min(statuses.values()) > count // 5
    gaps.sort()
    report = (
        f"galvatron-dp: median gap {gaps[len(gaps) // 2]:.2%}, worst {gaps[-1]:.2%}, not found {missed} of {len(gaps) + missed}"
    )
    print(report)
    record_property("galvatron_dp", report)


@settings(max_examples=300)
@given(st.integers(0, 10**9), st.integers(1, 7), st.integers(1, 6))
def test_label_setting_is_exact(seed: int, layers: int, options: int) -> None:
    instance = random_instance(seed, layers, options)
    exact, brute = tp.solve(instance), tp.solve(instance, "brute-force")
    assert (exact.status, exact.objective, exact.bound) == (brute.status, brute.objective, brute.bound)


@given(st.integers(0, 10**9))
def test_least_memory_is_the_boundary(seed: int) -> None:
    instance = random_instance(seed, 5, 4)
    least, choice = least_memory(instance)
    assert evaluate(instance, choice).peak_bytes == least
    assert tp.solve(instance.with_memory(max(1, least)), "brute-force").status == "optimal"
    if least > 1:
        refused = tp.solve(instance.with_memory(least - 1), "brute-force")
        assert refused.status == "infeasible"
        assert refused.reason is not None
        assert refused.reason.least_memory_bytes == least


@given(st.integers(0, 10**9), st.floats(1e-4, 0.3))
def test_a_gap_is_a_certificate(seed: int, gap: float) -> None:
    instance = random_instance(seed)
    loose, exact = tp.solve(instance, gap=gap), tp.solve(instance)
    if exact.objective is None:
        assert loose.status == "infeasible"
    else:
        assert loose.status == "optimal"
        assert loose.bound <= exact.objective <= loose.objective <= exact.objective * (1 + 2 * gap) + 1


@pytest.mark.parametrize("model", first_and_others(["bert-huge-32", "bert-huge-48"]))
def test_table_1_models_with_all_44_strategies(model: str) -> None:
    """All four trees of 8 devices (2 + 6 + 14 + 22 = 44 strategies), every stage: proven by at least two methods."""
    counts = set()
    for pipeline in (1, 2, 4, 8):
        micro_batches = 4 if pipeline > 1 else 1
        for stage in range(pipeline):
            instance = paper_instance(
                model, batch=8 * micro_batches, pipeline=pipeline, stage=stage, micro_batches=micro_batches
            )
            counts.add((pipeline, max(instance.options)))
            exact = tp.solve(instance)
            other = tp.solve(instance, "cpsat")
            assert (exact.status, other.status) == ("optimal", "optimal")
            assert exact.objective == other.objective == exact.bound == other.bound
            paper = tp.solve(instance, "galvatron-dp")
            assert paper.objective is None or paper.objective >= exact.objective
    assert sum(options for _, options in counts) == 44


@pytest.mark.long
def test_all_strategies_of_one_stage_without_takeaway_3() -> None:
    """42 options a layer in one stage. Takeaway 3 holds here: the mixed strategies change nothing."""
    full, pruned = paper_instance(takeaway3=False), paper_instance()
    assert (max(full.options), max(pruned.options)) == (42, 22)
    results = [tp.solve(full), tp.solve(full, "cpsat"), tp.solve(pruned)]
    assert [result.status for result in results] == ["optimal"] * 3
    assert results[0].objective == results[1].objective <= results[2].objective


def test_less_memory_is_never_faster() -> None:
    instance = paper_instance("bert-huge-48")
    least, _ = least_memory(instance)
    times = [tp.solve(instance.with_memory(int(least * factor))).objective for factor in (1.0, 1.02, 1.1, 1.3, 2.0, 4.0)]
    assert all(later <= earlier for earlier, later in pairwise(times))


def test_galvatron_dp_misses_the_optimum_as_the_paper_states_it() -> None:
    """The search ends at the first forward budget whose answer fails the peak check, before it meets the fast choice."""
    option = {"forward_bytes": 0, "backward_bytes": 0, "state_bytes": 0}
    instance = tp.load(
        {
            "problem": "layer-strategies",
            "version": 1,
            "memory_bytes": 10,
            "layers": [
                {
                    "options": [
                        {**option, "strategy": "slow", "time_ns": 100, "forward_bytes": 1},
                        {**option, "strategy": "peaky", "time_ns": 50, "forward_bytes": 4, "backward_bytes": 9},
                        {**option, "strategy": "fast", "time_ns": 10, "forward_bytes": 9},
                    ]
                }
            ],
            "transitions_ns": [],
        }
    )
    exact, paper = tp.solve(instance), tp.solve(instance, "galvatron-dp", granularity_bytes=1)
    assert (exact.objective, paper.objective) == (10, 100)


def test_galvatron_dp_is_exact_where_nothing_peaks() -> None:
    """Without backward peaks and at a granularity of one byte the paper's DP solves the true problem."""
    for seed in range(200):
        instance = random_instance(seed)
        if instance.memory_bytes > 2000:
            continue
        flat = replace(instance, backward_bytes=tuple(0 * column for column in instance.backward_bytes))
        exact, paper = tp.solve(flat), tp.solve(flat, "galvatron-dp", granularity_bytes=1)
        assert paper.objective == exact.objective
    assert galvatron_dp.__doc__


def test_time_limit_is_an_outcome() -> None:
    instance = paper_instance("bert-huge-48")
    for method in ("milp", "cpsat", "label-setting"):
        result = tp.solve(instance, method, time_limit=0.02 if method == "label-setting" else 1.5)
        assert result.status in ("feasible", "optimal", "unknown"), result
        if result.objective is not None:
            assert result.bound is not None
            assert result.bound <= result.objective
            assert not result.violations


def test_no_time_at_all_leaves_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    without_alarms(monkeypatch)
    assert tp.solve(paper_instance("bert-huge-48"), "galvatron-dp", time_limit=1e-9).status == "feasible"


def test_results_carry_their_history_and_versions() -> None:
    result = tp.solve(paper_instance(), "cpsat", seed=7, workers=1)
    assert result.seed == 7
    assert {"python", "ortools", "highspy", "pyomo"} <= set(result.versions)
    assert len(result.instance_hash) == 64
    objectives = [point.objective for point in result.history if point.objective is not None]
    assert objectives == sorted(objectives, reverse=True)
    assert objectives[-1] == result.objective
    assert set(result.to_dict()) >= {"status", "objective", "bound", "gap", "solution", "history"}
    assert "<table>" in result._repr_html_()


@pytest.mark.parametrize("step", [10**30, 2**53, 181_723])
def test_a_memory_step_beyond_the_memory_is_refused(step: int) -> None:
    instance = random_instance(1).with_memory(181_722)
    with refused("option granularity_bytes", problem=step, fix=(1, 181722, 182)):
        tp.solve(instance, "galvatron-dp", granularity_bytes=step)
    assert tp.solve(instance, "galvatron-dp", granularity_bytes=181_722, explained=False).status != "failed"


def test_the_default_memory_step_is_finer_where_layers_are_many() -> None:
    """Each layer is rounded up to a step: 1,000 of them never fit into 1,000 steps."""
    steps = [granularity(Search(lambda _: 0), 10**9, layers) for layers in (1, 100, 101, 1000)]
    assert steps == [10**6, 10**6, 990_100, 10**5]
    deep = tp.build(
        model=load_model("gpt2-345m", dtype="float32").with_fields(n_layer=998), cluster="a100-16", batch=64, memory="40GiB"
    )
    assert tp.solve(deep.with_memory(60 * 2**30), "galvatron-dp").status == "feasible"


def test_what_is_proven_infeasible_has_no_message_that_proves_nothing() -> None:
    result = tp.solve(paper_instance().with_memory(2**20), "galvatron-dp")
    assert (result.status, result.message) == ("infeasible", None)
    assert result.reason is not None


def test_a_memory_step_with_too_many_levels_is_refused() -> None:
    with refused("option granularity_bytes", problem=1, fix=(2814750, 281474976710656)):
        tp.solve(random_instance(1).with_memory(2**48), "galvatron-dp", granularity_bytes=1)
