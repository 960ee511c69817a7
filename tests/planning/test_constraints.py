"""Constraints of users on a joint plan, and their cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from trainplan.formulations.joint.definition import PROBLEM
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.request import Request
from trainplan.profiling.base.quantities import format_share
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.models.model import load_model

import trainplan as tp
from tests.helpers.calls import call
from tests.helpers.refusals import refused
from trainplan.api import plan_verbs
from trainplan.planning import constraint_costs
from trainplan.planning.result import PlanningResult
from trainplan.planning.result_price import Price

MODEL = load_model("gpt2", 64, "float32").with_fields(
    n_embd=128, n_head=4, n_inner=512, n_positions=64, vocab_size=1009, n_layer=4
)
TWELVE_LAYERS = MODEL.with_fields(n_layer=12)
REQUEST: dict[str, Any] = {"model": MODEL, "cluster": "rtx-titan-8", "batch": 16}


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches for prices end with their proof, however slow the machine is."""
    monkeypatch.setattr(constraint_costs, "LEAST_SECONDS", 1e6)


def made(**constraints: Any) -> tuple[PlanningResult, Plan]:
    answer = tp.plan(**REQUEST, **constraints)
    assert answer.plan is not None and answer.plan.predicted is not None
    return answer, answer.plan


def degrees(plan: Plan, paradigm: Any) -> set[int]:
    return {strategy.degree(paradigm) for strategy in plan.strategies()}


@pytest.mark.parametrize(
    "constraints",
    [
        {"tp": 2},
        {"dp": 4, "pipeline": 2},
        {"sdp": 2},
        {"forbid": ["dp"]},
        {"forbid": ["dp8", "dp4"]},
        {"one_strategy": True},
        {"cuts": ["block2.attention"]},
        {"reserve": "22GiB"},
        {"pipeline": 4},
        {"micro_batches": 16},
        {"zero": "0"},
    ],
)
@pytest.mark.usefixtures("unhurried")
def test_constraints_hold_and_cost_what_is_reported(constraints: dict[str, Any]) -> None:
    answer, plan = made(**constraints)
    free, best = made()
    for paradigm in ("tp", "dp", "sdp"):
        if paradigm in constraints:
            assert degrees(plan, paradigm) == {constraints[paradigm]}
    for word in constraints.get("forbid", ()):
        assert not any(level.startswith(word) for strategy in plan.strategies() for level in str(strategy).split("-"))
    if "one_strategy" in constraints:
        assert plan.one_strategy is not None
    if "cuts" in constraints:
        assert [plan.units[stage.first_unit].name for stage in plan.stages[1:]] == constraints["cuts"]
    assert len(answer.prices) == len(constraints)
    assert free.prices == ()
    for price in answer.prices:
        bound, step = price.steps_ns
        assert bound == step is not None and answer.step_ns is not None and step <= answer.step_ns
        if len(constraints) == 1:
            assert best.predicted is not None and step == best.predicted.step_ns


def test_tensor_parallelism_stays_inside_nodes() -> None:
    """Two nodes of two devices: the slow network forbids nothing, and the node does."""
    cluster = load_cluster("cpu-4")
    node = cluster.nodes[0]
    island = node.islands[0]
    nodes = [node.changed(count=2, devices=2, islands=[island.changed(devices=2)])]
    two = cluster.changed(name="two", nodes=nodes, islands=[island.changed(devices=4)])
    request: dict[str, Any] = {"model": MODEL, "cluster": two, "batch": 4, "pipeline": 1}
    free, inside = tp.plan(**request, tp=4), tp.plan(**request, tp_in_node=True)
    assert free.plan is not None and inside.plan is not None
    assert degrees(free.plan, "tp") == {4}
    for strategy in inside.plan.strategies():
        assert all(len({peer // 2 for peer in strategy.peers(rank, "tp")}) == 1 for rank in range(4))
    with refused("batch", problem=4, fix=4):
        tp.plan(**request, tp_in_node=True, tp=4)


@pytest.mark.parametrize(
    ("constraints", "refusal"),
    [
        ({"tp": 3}, ("tp", 3, (1, 2, 4))),
        (
            {"model": "falcon-40b", "cluster": "h100:8x2", "tp": 16},
            ("tp", (16, 128, 8), (1, 2, 4, 8)),
        ),
        ({"dp": 5}, ("dp", 5, (1, 2, 4, 8))),
        ({"forbid": ["tpx"]}, ("forbid", "tpx", ("dp2-tp4-ckpt", "ckpt"))),
        ({"cuts": ["nothing"]}, ("cuts", "nothing", "block2.attention")),
        ({"cuts": ["block2.ffn", "block1.ffn"]}, ("cuts", "block2.ffn, block1.ffn", "order")),
        ({"cuts": ["block1.ffn", "block2.ffn"]}, ("cuts", ("3 stages", 8), "--pipeline")),
        ({"cuts": ["block1.ffn"], "pipeline": 4}, ("cuts", ("2 stages", 8), "--pipeline")),
        ({"cuts": ["block1.ffn"], "by_unit": False}, ("cuts", "--no-by-unit", "--no-by-unit")),
        (
            {"dp": 2, "sdp": 2},
            ("sdp", (2, "--dp 2"), "--hybrid"),
        ),
        ({"schedule": "interleaved", "pipeline": 1}, ("schedule", (), ("1f1b", "--pipeline", 2, "--micro-batches"))),
        (
            {"schedule": "interleaved", "pipeline": 4, "micro_batches": 2},
            ("schedule", (), ("1f1b", "--pipeline", 2, "--micro-batches")),
        ),
        ({"schedule": "interleaved", "pipeline": 8}, ("schedule", "interleaved", ("1f1b", "--chunks"))),
        ({"model": TWELVE_LAYERS, "schedule": "interleaved", "pipeline": 4}, ("schedule", "interleaved", "--chunks 3")),
        (
            {"schedule": "interleaved", "cuts": ["block2.attention"]},
            ("schedule", "interleaved", ("--cuts", "--pipeline", "--chunks")),
        ),
    ],
)
def test_constraints_that_cannot_be_are_reported(constraints: dict[str, Any], refusal: tuple[Any, ...]) -> None:
    with refused(*refusal):
        tp.plan(**REQUEST | constraints)


def test_copies_of_shards_are_for_who_asks_for_hybrids() -> None:
    plan = made(dp=2, sdp=2, hybrid=True)[1]
    assert degrees(plan, "dp") == degrees(plan, "sdp") == {2}


@pytest.mark.usefixtures("unhurried")
def test_constraints_that_leave_nothing_say_what_each_takes() -> None:
    answer = tp.plan(**REQUEST, memory="2MB", forbid=["sdp"], tp=1)
    assert answer.plan is None and answer.result.status == "infeasible"
    assert [price.constraint for price in answer.prices] == ["--tp 1", "--forbid sdp"]
    rows = dict(answer.summary(flags=True))
    for price, alone in zip(answer.prices, ({"forbid": ["sdp"]}, {"tp": 1}), strict=True):
        other = tp.plan(**REQUEST, memory="2MB", **alone).answer
        assert price.steps_ns == (other.bound_ns, other.objective_ns)
        assert "without it" in rows[f"price of {price.constraint}"]


@pytest.mark.long
def test_where_nothing_fits_the_fewest_devices_are_named() -> None:
    """In whole nodes: with as many there is a plan, with one node less there is none."""
    cluster = load_cluster("cpu-4")
    node = cluster.nodes[0]
    island = node.islands[0]
    nodes = [node.changed(count=2, devices=2, islands=[island.changed(devices=2)])]
    two = cluster.changed(name="two", nodes=nodes, islands=[island.changed(devices=4)])
    request: dict[str, Any] = {"model": MODEL, "batch": 24, "pipeline": None, "by_unit": False}
    needed = tp.plan(cluster=two, **request, memory=1000).needed_bytes
    assert needed is not None
    short = tp.plan(cluster=two, **request, memory=needed * 3 // 4)
    assert short.plan is None and short.needed_devices is not None and short.needed_devices % 2 == 0
    enough = tp.plan(cluster=two.with_nodes(short.needed_devices // 2), **request, memory=needed * 3 // 4)
    assert enough.plan is not None
    if short.needed_devices > 6:
        less = two.with_nodes(short.needed_devices // 2 - 1)
        assert tp.plan(cluster=less, **request, memory=needed * 3 // 4).result.status == "infeasible"
    assert f"{short.needed_devices}, in whole nodes" in dict(short.summary())["devices needed"]
    alone = tp.plan(cluster="cpu-4", **request, memory=1000)
    assert alone.needed_devices is None and "has one node" in dict(alone.summary())["devices needed"]


def test_the_command_says_what_constraints_cost() -> None:
    words = ["--model", "gpt2", "--cluster", "cpu-4", "--batch", "8", "--sequence", "64"]
    done = call("plan", *words, "--tp", "2", "--forbid", "ckpt", "--forbid", "sdp4", "--details")
    assert done.returncode == 0
    assert "price of --tp 2" in done.stdout and "price of --forbid ckpt,sdp4" in done.stdout
    assert "a step without it" in done.stdout


@pytest.mark.usefixtures("unhurried")
def test_prices_are_exact_only_where_both_steps_are_proven() -> None:
    exact, _ = made(pipeline=2)
    (price,) = exact.prices
    share = price.share(exact.answer)
    assert share is not None and share[0] == share[1] == exact.answer.objective_ns / made()[0].answer.objective_ns - 1  # type: ignore[operator]
    assert dict(exact.summary(flags=True))["price of --pipeline 2"].startswith(f"{format_share(share[0])}: ")
    rough, _ = made(pipeline=2, gap=0.3)
    (price,) = rough.prices
    between = price.share(rough.answer)
    assert between is not None and between[1] is not None and between[0] <= share[0] <= between[1] and between[0] < between[1]
    text = dict(rough.summary(flags=True))["price of --pipeline 2"]
    assert (
        f"{format_share(between[1])}: " in text and text.endswith("by the bounds of both") and " to " in text.split("a step")[0]
    )
    assert rough.to_dict()["prices"][0]["share"] == between
    unbounded = replace(rough.answer, bound_ns=None)
    assert price.share(unbounded) == (0.0, between[1])
    known = exact.prices[0]
    assert known.without is not None and share[0] > 0
    open_ended = Price(known.constraint, replace(known.without, bound_ns=None))
    assert open_ended.share(exact.answer) == (share[0], None)
    assert "less than" in open_ended.text(exact.answer) and "at least" in open_ended.text(exact.answer)
    open_ended = Price(known.constraint, replace(exact.answer, bound_ns=None))
    assert "nothing more was proven" in open_ended.text(exact.answer)


@pytest.mark.parametrize("fixed", [{"pipeline": 4}, {"micro_batches": 8}, {"schedule": "interleaved", "pipeline": 2}])
def test_what_a_constraint_leaves_out_is_searched_alone(fixed: dict[str, Any]) -> None:
    """The space that is left is known from the plan: every configuration is of one of the two instances, with the same
    tables."""
    name, problem, scope = next(iter(fixed)), PROBLEM, PROBLEM.scope
    left = {key: value for key, value in fixed.items() if key != name} | ({"schedule": "all"} if name == "schedule" else {})
    wide, narrow = (problem.instance(tp.plan(**REQUEST, **entry, comparisons=False).request) for entry in (left, fixed))
    rest = scope.outside(wide, narrow, name)
    assert rest is not None and rest.configurations
    assert len(rest.configurations) + len(narrow.configurations) == len(wide.configurations)
    for configuration in narrow.configurations:
        (index,) = [index for index, other in enumerate(wide.configurations) if str(other) == str(configuration)]
        assert narrow.only([narrow.configurations.index(configuration)]).digest == wide.only([index]).digest
    assert scope.outside(wide, wide, name) is None and scope.outside(wide, narrow, "tp") is wide


def test_a_schedule_is_priced_against_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    without: dict[str, tuple[str, Callable[[], Request]]] = {}
    monkeypatch.setattr(plan_verbs, "priced", lambda best, relaxed, *settings, **named: without.update(relaxed) or best)
    made(schedule="gpipe", pipeline=2, micro_batches=4)
    assert [text for text, _ in without.values()] == ["--pipeline 2", "--micro-batches 4", "--schedule gpipe"]
    options = {name: relaxed().options for name, (_, relaxed) in without.items()}
    assert options["schedule"]["schedule"] == "all" and options["schedule"]["pipeline"] == 2
    assert options["pipeline"]["schedule"] == "gpipe" and options["pipeline"]["pipeline"] is None
    monkeypatch.undo()
    for schedule in ("all", "1f1b"):  # neither leaves out what is not left out anyway
        assert made(schedule=schedule, pipeline=1, micro_batches=1, gap=0.5)[0].prices[-1].constraint == "--micro-batches 1"


def test_what_is_proven_says_under_which_restrictions() -> None:
    answer, _ = made(pipeline=2, forbid=["sdp", "tp4"], sequence_parallel=False, hybrid=True)
    under = "--pipeline 2, --schedule 1f1b, --sliced 0, --no-sequence-parallel, no --modules, --host none, --forbid sdp,tp4"
    assert dict(answer.summary(flags=True))["search space"] == under
    assert "pipeline 2, schedule 1f1b, sliced 0, sequence_parallel=False, no modules" in dict(answer.summary())["search space"]
    assert ", ".join(answer.restrictions) == under
    certified = tp.certify(answer).plan
    assert certified is not None
    claim = tp.check(certified).claim  # type: ignore[union-attr]
    assert claim is not None and f"no plan of the problem under {under} within " in claim.verdict
    wide = {**answer.request.options, "schedule": "all", "pipeline": 1, "sliced": 1, "modules": True, "sequence_parallel": True}
    reported = answer.problem.scope.restrictions(replace(answer.request, options=wide), "executed")
    assert reported == ["--pipeline 1", "--sliced 1", "--host none", "--forbid sdp,tp4", "--chunks 2"]
    of_streams = tp.plan(model="llama3-8b", cluster="h100:8", batch=16, sequence=1024, gap=1e-2)
    assert of_streams.restrictions[-2:] == ["one strategy for all sub-layers", "in pipelines ZeRO 0 and 1"]
