"""`plan` without a preset solves the joint problem, or uses the preset that takes what the joint problem does not."""

from __future__ import annotations

import random
from typing import Any

import pytest
from trainplan.execution.prediction.compiled_plan import compiled
from trainplan.formulations.plan.request import Request
from trainplan.profiling.clusters.cluster import Cluster, load_cluster
from trainplan.profiling.clusters.network import Matrix
from trainplan.profiling.models.model import Model, load_model

import trainplan as tp
from tests.helpers.calls import call
from tests.helpers.refusals import refused
from tests.helpers.sizes import some_and_all
from trainplan.planning.presets import MIXED, OTHERWISE, PRESETS
from trainplan.planning.result import PlanningResult
from trainplan.planning.single_strategy import SOURCE as ONE_STRATEGY

GPT2 = {"n_embd": 128, "n_head": 4, "n_inner": 512, "n_positions": 64, "vocab_size": 1009}
LLAMA = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 352}
REQUEST: dict[str, Any] = {"model": "gpt2", "cluster": "cpu-4", "batch": 8, "sequence": 64}


def small(layers: int, tied: bool = True) -> Model:
    return load_model("gpt2", 64, "float32").with_fields(**GPT2, n_layer=layers, tie_word_embeddings=tied)


def step_ns(answer: PlanningResult) -> int:
    assert answer.plan is not None and answer.plan.predicted is not None
    return answer.plan.predicted.step_ns


def test_equal_devices_are_planned_jointly() -> None:
    answer = tp.plan(**REQUEST)
    assert (answer.preset.name, answer.instead) == ("joint", None)
    assert answer.plan is not None and answer.plan.claim is not None
    assert answer.plan.claim.problem == "joint" and answer.plan.claim.objective_ns == step_ns(answer)
    assert answer.uniform_excess is not None and answer.uniform_excess >= 0


@pytest.mark.parametrize(
    ("requested", "why"),
    [
        ({"space": "no-ckpt"}, "--space is no option of joint"),
        ({"takeaway3": False}, "--takeaway3 is no option of joint"),
    ],
)
def test_what_joint_does_not_take_is_planned_as_before_and_says_why(requested: dict[str, Any], why: str) -> None:
    given = REQUEST | requested
    answer = tp.plan(**given)
    assert answer.preset.name == OTHERWISE and answer.instead is not None and why in answer.instead
    alike = tp.plan(like=OTHERWISE, **given)
    assert alike.instead is None and alike.plan is not None and answer.plan is not None
    assert alike.plan.content == answer.plan.content


@pytest.mark.parametrize("method", ["milp", "cpsat", "decomposition", "exact"])
def test_a_method_plans_the_same_problem_as_without_it(method: str) -> None:
    tiny: dict[str, Any] = {"model": small(1), "cluster": "cpu-4", "batch": 2}
    answer, without = tp.plan(**tiny, method=method), tp.plan(**tiny)
    assert (answer.preset.name, answer.instead) == ("joint", None)
    assert answer.instance.digest == without.instance.digest
    assert answer.answer.status == "optimal" and answer.answer.objective_ns == without.answer.objective_ns


@pytest.mark.parametrize(("method", "like"), [("galvatron-bmw", "galvatron-bmw"), ("amp", "amp"), ("h3t-dp", "h3t")])
def test_a_method_of_another_problem_is_refused_with_what_would_work(method: str, like: str) -> None:
    with refused("method", problem=method, fix=(f"--like {like}", f"--method {method}", "exact", "decomposition")):
        tp.plan(**REQUEST, method=method)
    assert call("plan", "gpt2", "cpu-4", "--batch", "8", "--method", method).returncode == 2
    assert tp.plan(model=small(2), cluster="cpu-4", batch=8, like=like, method=method).preset.name == like


@pytest.mark.parametrize("method", ["milp", "cpsat"])
def test_a_problem_too_large_for_a_method_is_refused(method: str) -> None:
    large: dict[str, Any] = {"model": "llama3-8b", "cluster": "h100:8x8", "batch": 512, "sequence": 8192}
    with refused("method", problem="100,000", fix="exact"):
        tp.plan(**large, method=method, time_limit=600)  # which a slow machine does not need either


def test_devices_of_several_kinds_are_placed_as_amp_does() -> None:
    """Which devices a stage has decides most there: Galvatron-BMW, which takes them for equal, is far slower by the
    simulations."""
    requested: dict[str, Any] = {"model": "gpt2-xl", "dtype": "float32", "cluster": "amp-heterogeneous-16", "batch": 16}
    answer = tp.plan(**requested, gap=0.05)
    assert (answer.preset.name, answer.instead is not None) == (MIXED, True) and "devices are of 2 kinds" in str(answer.instead)
    assert step_ns(answer) < 0.8 * step_ns(tp.plan(**requested, like=OTHERWISE, gap=0.05))


def test_defaults_of_the_other_preset_change_nothing() -> None:
    assert tp.plan(**REQUEST, takeaway3=True).preset.name == "joint"
    assert tp.plan(**REQUEST, space=None).preset.name == "joint"
    with refused("sliced", problem=2, fix=("galvatron-bmw", "--space")):
        tp.plan(**REQUEST, sliced=2, space="full")


def test_links_that_are_unlike_are_planned_as_before() -> None:
    rates = [[0.0 if a == b else 1e9 * (1 + (a + b) % 3) for b in range(4)] for a in range(4)]
    uneven = load_cluster("cpu-4")
    nodes = [uneven.nodes[0].changed(islands=[])]
    cluster = uneven.changed(name="uneven", nodes=nodes, matrix=Matrix(bandwidth_bytes_per_s=rates))
    answer = tp.plan(model=small(2), cluster=cluster, batch=8)
    assert answer.preset.name == OTHERWISE and answer.instead is not None and "are unlike" in answer.instead
    for name in ("cpu-4", "rtx-titan-8", "h100-64", "autopipe-3090-16"):
        request = Request(None, load_cluster(name), 8)
        assert PRESETS["joint"].problem.scope.unsupported_reason(request) is None


def test_islands_of_72_devices_are_planned_jointly_and_say_what_is_left_out() -> None:
    answer = tp.plan(model="llama3-8b", cluster="gb200:72x2", batch=144, sequence=4096, dtype="bfloat16", gap=0.05)
    assert answer.preset.name == "joint" and answer.instead is None
    assert any("no stages or groups with unlike links (links between" in text for text in answer.restrictions)
    uniform = tp.plan(model="llama3-8b", cluster="h100:8x2", batch=32, sequence=4096, dtype="bfloat16", gap=0.05)
    assert not any("unlike" in text for text in uniform.restrictions)


def test_the_command_says_which_and_why() -> None:
    words = ["--model", "gpt2", "--cluster", "cpu-4", "--batch", "8", "--sequence", "64"]
    assert "like      joint\n" in call("plan", *words, "--details").stdout
    done = call("plan", *words, "--space", "full", "--details")
    assert "like      galvatron-bmw, since --space is no option of joint\n" in done.stdout
    assert "reordering passes gains at most" in call("plan", *words, "--pipeline", "2", "--details").stdout


@pytest.mark.parametrize("requests", some_and_all(4, 24, 12))
def test_the_default_is_never_worse_than_the_preset_it_replaced(requests: int) -> None:
    """By the simulations, on random models, clusters, batches and memories, tight ones among them."""
    rng, better, tried = random.Random(3), 0, 0
    for _ in range(requests):
        cluster: Cluster = load_cluster(rng.choice(["cpu-4", "rtx-titan-8", "a100-16"]))
        model = small(rng.randint(2, 5), rng.random() < 0.5)
        if rng.random() < 0.4:
            fields = {**LLAMA, "num_hidden_layers": rng.randint(2, 5), "vocab_size": 1009}
            model = load_model("llama2-7b", 64, "float32").with_fields(**fields)
        memory = round(16 * model.total_parameters * rng.choice([0.2, 0.4, 1.2, 8]) + 2**20 * rng.choice([1, 4, 64]))
        request = {"model": model, "cluster": cluster, "batch": cluster.devices * rng.choice([2, 4]), "memory": memory}
        options: dict[str, Any] = rng.choice([{}, {}, {"schedule": "gpipe"}, {"pipeline": 2}, {"micro_batches": 2}])
        before, now = tp.plan(like=OTHERWISE, **request, **options), tp.plan(**request, **options)
        assert now.preset.name == "joint"
        if before.plan is None:
            continue
        tried += 1
        assert now.plan is not None, (request, options)
        assert step_ns(now) <= step_ns(before), (request, options)
        better += step_ns(now) < step_ns(before)
    assert tried > requests // 2 and better > requests // 8


def test_a_published_model_gains() -> None:
    request: dict[str, Any] = {"model": "gpt2-345m", "cluster": "autopipe-3090-16", "batch": 128, "dtype": "float32"}
    before, now = tp.plan(like=OTHERWISE, **request), tp.plan(**request, gap=1e-4)
    assert step_ns(now) < 0.95 * step_ns(before)


def test_the_best_plan_with_one_strategy_counts_where_the_search_ends_with_less() -> None:
    """With a wide gap the search of all plans ends early, that of plans with one strategy does not."""
    taken = 0
    for batch in (8, 16, 32):
        for layers in (2, 4):
            answer = tp.plan(model=small(layers), cluster="rtx-titan-8", batch=batch, gap=0.9)
            assert answer.plan is not None and answer.plan.claim is not None
            assert answer.uniform_excess is not None and answer.uniform_excess >= 0
            if answer.result.solution_source != ONE_STRATEGY:
                continue
            taken += 1
            assert answer.plan.one_strategy is not None
            assert answer.plan.claim.objective_ns == step_ns(answer) == answer.result.objective
            assert answer.plan.claim.bound_ns is not None and answer.plan.claim.bound_ns <= step_ns(answer)
            checked = tp.check(tp.certify(answer).plan)
            assert checked.violations == () and checked.claim is not None  # type: ignore[union-attr]
    assert taken > 0


@pytest.mark.parametrize(("dtype", "master"), [("bfloat16", "float32"), ("float16", "float32"), ("float32", None)])
@pytest.mark.parametrize("like", [None, OTHERWISE])
def test_models_in_half_precision_keep_the_masters_that_their_memory_is_counted_with(
    like: str | None, dtype: str, master: str | None
) -> None:
    """16 bytes a parameter: 2 + 2, a master copy and two moments of 4 each; else 4 x 4."""
    requested = REQUEST | {"dtype": dtype, "cluster": "h100-8", "pipeline": 1} | ({"dp": 8} if like is None else {})
    plan = tp.plan(like=like, **requested).plan
    assert plan is not None and plan.precision.master == master
    if like is None:
        assert plan.one_strategy == "dp8"
        peak = max(walk.peak_bytes for walk in compiled(plan, "serial").memory("serial"))
        assert 16 * plan.planned_model().total_parameters < peak


def test_twelve_nodes_are_planned_with_degrees_that_divide_them() -> None:
    """Every plan of 96 devices is judged by classes of ranks, and each tensor-parallel group is on one node."""
    answer = tp.plan(model="llama3-8b", cluster="h100:8x12", batch=192, sequence=4096, pipeline=2, micro_batches=4)
    assert answer.plan is not None and answer.plan.world == 96 and answer.plan.regular
    assert {strategy.group for strategy in answer.plan.strategies()} == {48}
    assert all(strategy.strides().get("tp", 1) == 1 and strategy.degree("tp") <= 8 for strategy in answer.plan.strategies())
    claim = answer.plan.claim  # of streams: no simulation over lanes takes less
    assert claim is not None and claim.bound_ns is not None and claim.bound_ns <= claim.objective_ns <= step_ns(answer)


@pytest.mark.parametrize("found", [(), ("rank 0: is wrong",)])
def test_programs_of_the_answer_alone_are_checked(monkeypatch: pytest.MonkeyPatch, found: tuple[str, ...]) -> None:
    """Several plans are simulated, and the programs of one of them are checked."""
    checked = []

    def check(classes: Any) -> tuple[str, ...]:
        checked.append(classes[0].plan)
        return found

    monkeypatch.setattr("trainplan.execution.prediction.compiled_plan.check_classes", check)
    request: dict[str, Any] = {"model": "llama3-8b", "cluster": "h100:8x8", "batch": 512, "sequence": 8192, "gap": 0.01}
    if found:
        with pytest.raises(AssertionError, match="rank 0: is wrong"):
            tp.plan(**request)
    else:
        made = tp.plan(**request)
        assert made.plan is not None and made.judged is not None and made.spent is not None
        assert made.plan.one_strategy is not None, "else that of one strategy is checked, too"
        assert made.judged.unchecked is None and made.spent.walks > 1
    assert len(checked) == 1
