"""Engineer's units of plans, the best plan with one strategy next to the optimum, and how both are shown."""

from __future__ import annotations

import random
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from trainplan.execution.analysis.memory.peak import memory_walk, peak_buffers
from trainplan.execution.prediction.evaluate_plan import predict_from_costs
from trainplan.formulations.plan.strategy_words import in_words
from trainplan.formulations.problem import problem_of
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.models.model import load_model
from trainplan.solvers.core.answer import best_answer

import trainplan as tp
from tests.helpers.instances import random_instance, random_pipeline
from tests.helpers.plans import random_plan
from tests.helpers.switch_instances import random_instance as random_switches
from trainplan.planning import single_strategy
from trainplan.planning.result import PlanningResult
from trainplan.prediction.metrics import PARTS, performance, union_ns

SIZES = {"n_embd": 64, "n_head": 4, "n_inner": 256, "n_positions": 32, "n_layer": 4, "vocab_size": 301}
SMALL = load_model("gpt2", 32, "float32").with_fields(**SIZES)
CLUSTER = load_cluster("rtx-titan-8")


@cache
def planned(**options: Any) -> PlanningResult:
    return tp.plan(model=SMALL, cluster=CLUSTER, batch=16, **options)


def test_a_span_of_time_that_is_covered_twice_counts_once() -> None:
    assert union_ns([], []) == 0
    assert union_ns([5, 0, 2, 20], [6, 4, 3, 21]) == 4 + 1 + 1
    rng = random.Random(1)
    for _ in range(200):
        starts = [rng.randrange(30) for _ in range(rng.randint(1, 8))]
        ends = [start + rng.randrange(8) for start in starts]
        covered = {moment for start, end in zip(starts, ends, strict=True) for moment in range(start, end)}
        assert union_ns(starts, ends) == len(covered)


def test_shares_of_the_devices_time_are_those_of_the_simulation() -> None:
    """Instructions of known durations: what runs on one lane adds up, and all that is left is the bubble."""
    rng = random.Random(3)
    for _ in range(10):
        plan = random_plan(rng)
        judged = predict_from_costs(plan, lambda _: lambda _, done: 3 + 4 * (done.stream == "compute"))
        reported, step, compute, rest = performance(plan, judged), judged.step_ns, 0, 0
        for program in judged.time.programs:
            compute += sum(7 for i in program.instructions if i.stream == "compute")
            rest += sum(3 for i in program.instructions if i.stream != "compute")
        assert reported.compute == pytest.approx(compute / plan.world / step)
        assert reported.exposed_communication + reported.exposed_copies == pytest.approx(rest / plan.world / step)
        assert reported.compute + reported.exposed_communication + reported.exposed_copies + reported.bubble == pytest.approx(1)
        assert reported.samples_per_s == pytest.approx(plan.batch.global_samples / step * 1e9)
        assert reported.tokens_per_s_per_device * plan.world == pytest.approx(
            reported.samples_per_s * plan.planned_model().tokens
        )
        assert reported.mfu is None, "no cluster tells the devices' peak"


def test_memory_by_stage_is_the_peak_split_by_what_holds_it() -> None:
    rng = random.Random(4)
    for _ in range(10):
        plan = random_plan(rng)
        judged = predict_from_costs(plan, lambda _: lambda _, done: 1)
        for stage, reported in zip(plan.stages, performance(plan, judged).stages, strict=True):
            assert reported.peak_bytes == max(judged.peak_bytes[rank] for rank in stage.ranks)
            assert sum(getattr(reported, f"{part}_bytes") for part in PARTS) == reported.peak_bytes
            assert reported.parameters_bytes == reported.gradients_bytes == reported.optimizer_bytes // 2 > 0
        for rounds, walk in zip(judged.time.rounds, judged.memory, strict=True):
            assert sum(peak_buffers(rounds.few, walk).values()) == walk.peak_bytes == memory_walk(rounds.few).peak_bytes


def test_mfu_counts_three_forward_passes_of_the_model() -> None:
    reported = planned(micro_batches=4, pipeline=2).performance
    assert reported is not None and reported.mfu is not None
    forward = sum(unit.sublayer.forward_flops(16, 1) for unit in SMALL.units)
    assert reported.mfu == pytest.approx(3 * forward / (reported.step_ns / 1e9 * 8 * CLUSTER.kinds[0].flops_per_s["float32"]))
    assert [row[0] for row in reported.summary()] == ["throughput", "MFU", "device time"]


def test_many_devices_are_judged_by_classes_and_say_the_same_units() -> None:
    found = tp.plan(model="gpt2", cluster="h200-1024", batch=1024, sequence=64, pipeline=1, micro_batches=1, space="dp")
    assert found.performance is not None and found.plan is not None
    assert 0 < found.performance.compute < 1 and found.performance.bubble == pytest.approx(0)
    assert found.plan.one_strategy == "dp1024" and found.uniform is None and found.uniform_excess == 0


def best_of(instance: Any, choices: Any, solution_of: Any) -> int | None:
    """The least objective of all solutions with one choice for all layers, by looking at each."""
    problem = problem_of(instance)
    solutions = [solution_of(choice) for choice in choices]
    fitting = [solution for solution in solutions if not problem.violations(instance, solution)]
    return min((problem.evaluate(instance, solution).objective for solution in fitting), default=None)


def uniform_objective(instance: Any) -> int | None:
    single = problem_of(instance).single_strategy
    instances, method = single.instances(instance), single.method
    return best_answer(instances, method).objective_ns if instances else None


def test_the_best_choice_for_all_layers_of_layer_strategies() -> None:
    seen = 0
    for seed in range(40):
        instance = random_instance(seed)
        shared = set(instance.strategies[0]).intersection(*instance.strategies)
        best = best_of(instance, shared, lambda name, i=instance: tuple(names.index(name) for names in i.strategies))
        assert uniform_objective(instance) == best
        seen += best is not None
    assert seen > 5


def test_the_best_choice_for_all_layers_of_a_pipeline() -> None:
    """Every partition of every configuration with every option."""
    from trainplan.formulations.pipeline.problem import Solution

    seen = 0
    for seed in range(40):
        instance = random_pipeline(seed)
        choices = [
            Solution(index, sizes, (option,) * instance.layers)
            for index, configuration in enumerate(instance.configurations)
            for sizes in product(range(1, instance.layers + 1), repeat=configuration.stages)
            if sum(sizes) == instance.layers
            for option in range(len(configuration.tables.strategies))
        ]
        best = best_of(instance, choices, lambda choice: choice)
        assert uniform_objective(instance) == best
        seen += best is not None
    assert seen > 5


def test_the_best_choice_for_all_layers_of_memory_switches() -> None:
    from trainplan.formulations.memory_switches.problem import Solution

    for seed in range(5):
        instance = random_switches(np.random.default_rng(seed), 4)
        best = best_of(instance, instance.options, lambda option, i=instance: Solution((option,) * i.layers))
        assert uniform_objective(instance) == best


def test_the_best_plan_with_one_strategy_is_shown_with_the_optimum() -> None:
    whole = planned()
    assert whole.plan is not None
    limit = max(whole.walk_bytes) * 3 // 5
    found = planned(memory=limit)
    assert found.plan is not None and found.plan.predicted is not None
    assert found.plan.one_strategy is None, "under this limit the optimum mixes strategies"
    other = found.uniform
    assert other is not None and other.plan is not None and other.plan.predicted is not None and other.plan.claim is not None
    assert other.plan.one_strategy == str(other.plan.units[0].strategy) and max(other.walk_bytes) <= limit
    assert other.plan.claim.objective_ns >= found.plan.claim.objective_ns  # type: ignore[union-attr]
    assert other.plan.claim.bound_ns == found.plan.claim.bound_ns  # type: ignore[union-attr]
    assert found.uniform_excess == other.plan.predicted.step_ns / found.plan.predicted.step_ns - 1
    (text,) = (text for label, text in found.summary() if label == "one strategy")
    assert in_words(other.plan.one_strategy) in text and f"{found.uniform_excess:+.2%}" in text
    reported = found.to_dict()
    assert (
        reported["uniform"]["units"] == [unit.model_dump() for unit in other.plan.units]
        and reported["performance"]["step_ns"] > 0
    )


@pytest.mark.parametrize(("walks", "looks"), [(3, True), (10**12, False)])
def test_one_strategy_is_looked_for_where_there_is_time_to_simulate_it(
    walks: int, looks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time that has to be left is a given multiple of that of the longest simulation."""
    memory = max(planned().walk_bytes) * 3 // 5
    monkeypatch.setattr(single_strategy, "WALKS", walks)
    found = tp.plan(model=SMALL, cluster=CLUSTER, batch=16, memory=memory, time_limit=10_000)
    assert found.plan is not None and (found.uniform is not None) == looks
    assert looks or "none was looked for" in dict(found.summary())["one strategy"]


def test_an_interrupted_search_for_one_strategy_leaves_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    memory = max(planned().walk_bytes) * 3 // 5
    monkeypatch.setattr(single_strategy, "best_answer", interrupted)
    found = tp.plan(model=SMALL, cluster=CLUSTER, batch=16, memory=memory)
    assert found.plan is not None and found.uniform is None


def test_reprs_are_short_and_displays_are_tables() -> None:
    found = planned(micro_batches=4, pipeline=2)
    assert repr(found).startswith("<PlanningResult gpt2 on rtx-titan-8, like joint: ") and len(repr(found)) < 120
    assert (
        repr(found.instance).startswith("<joint 'gpt2 on rtx-titan-8': units 10, configurations ")
        and len(repr(found.instance)) < 120
    )
    assert repr(found.plan) == "<Plan of 'gpt2': 8 devices, 2 stages, 4 micro-batches>"
    for entry in (found, found.instance, found.result):
        assert entry._repr_html_().startswith("<table><tr><th") and "</td></tr></table>" in entry._repr_html_()
        assert entry.__rich__().row_count == len(entry.summary())
    assert " ns" not in found._repr_html_(), "raw nanoseconds are for JSON"


def test_progress_names_what_is_begun() -> None:
    events: list[Any] = []
    tp.plan(model=SMALL, cluster="cpu-4", batch=8, progress=events.append)
    texts = [event for event in events if isinstance(event, str)]
    assert texts[:3] == ["estimating", "solving (exact)", "compiling and simulating the plan's programs"]
    assert not any("measuring" in text for text in texts)
    assert any(not isinstance(event, str) and event.objective for event in events)


def test_a_picture_of_any_plan() -> None:
    found = planned(memory=max(planned().walk_bytes) * 3 // 5)
    assert found.plan is not None
    for plan in (found.plan, found.plan.changed(predicted=None)):
        figure = tp.draw_plan(plan)
        units, *memory = figure.axes
        bars = [patch for patch in units.patches if patch.get_height() > 0]
        assert len(bars) == len(plan.units)
        colours = [bar.get_facecolor() for bar in bars]
        names = [str(unit.strategy) for unit in plan.units]
        pairs = set(zip(names, colours, strict=True))
        assert len(pairs) == len(set(names)) == len(set(colours)), "one colour for each strategy"
        assert len(memory) == (plan.predicted is not None)
        for axes in memory:
            assert sum(bar.get_width() for bar in axes.patches) > 0
            [limit] = [line.get_xdata()[0] for line in axes.lines if line.get_gid() == "limit"]
            figure.canvas.draw()
            for text in axes.texts:
                left, right = (
                    axes.transData.inverted().transform(corner)[0] for corner in text.get_window_extent().get_points()
                )
                assert not left + 1e-6 < limit < right - 1e-6, "no label lies on the line of the limit"
