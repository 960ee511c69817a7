"""Estimates, measurements and cost primitives."""

import pytest
from trainplan.formulations.layer_strategies.costs import COST_MODELS, build, layer_costs, unit_costs
from trainplan.formulations.strategies import decision_tree, parse_strategy
from trainplan.profiling.clusters import Cluster, Island, load_cluster, slowest_link
from trainplan.profiling.costs import overlapped_ns, ring_ns
from trainplan.profiling.errors import InputError
from trainplan.profiling.files import parse
from trainplan.profiling.models import load_model
from trainplan.profiling.profiles import Profile, estimate
from trainplan.profiling.quantities import parse_bytes

import trainplan as tp
from trainplan.planning import make_plan

LINK = Island(devices=8, bandwidth_bytes_per_s=1e9, latency_ns=0)


def test_ring_volumes() -> None:
    assert ring_ns("all-reduce", 8e6, 8, LINK) == pytest.approx(2 * 7 / 8 * 8e6)
    assert ring_ns("all-gather", 8e6, 8, LINK) == pytest.approx(7 / 8 * 8e6)
    sharded = 2 * ring_ns("all-gather", 8e6, 8, LINK) + ring_ns("reduce-scatter", 8e6, 8, LINK)
    assert sharded == pytest.approx(1.5 * ring_ns("all-reduce", 8e6, 8, LINK))


def test_overlap_slows_both_down() -> None:
    assert overlapped_ns(10, 4, 1.3) == pytest.approx(11.2)
    assert overlapped_ns(4, 10, 1.3) == overlapped_ns(10, 4, 1.3)


def test_the_slowest_link_of_the_actual_group_counts() -> None:
    islands = [Island(devices=4, bandwidth_bytes_per_s=1e11), Island(devices=16, bandwidth_bytes_per_s=1e10)]
    assert slowest_link(islands, (4, 5, 6)) is islands[0]
    assert slowest_link(islands, (3, 4)) is islands[1]


def test_paper_costs_by_hand() -> None:
    """One attention unit under dp2-tp2 and its relatives, computed from the profile with Section V's rules."""
    model, cluster = load_model("bert-huge-32"), load_cluster("rtx-titan-8")
    profile, paper = estimate(model, cluster, 4, 8), COST_MODELS["paper"]
    link = cluster.islands[-1]
    entry = profile.cost("attention", 2, 4)
    boundary, weights = model.boundary_bytes(4), model.parameter_count("attention", 2) * 4
    across = ring_ns("all-reduce", boundary, 2, link)
    compute = entry.forward_ns + across
    dp = unit_costs(model, profile, paper, "attention", parse_strategy("dp2-tp2"), 8)
    gradients = ring_ns("all-reduce", weights, 2, link)
    assert dp.time_ns == pytest.approx(compute + overlapped_ns(entry.backward_ns, gradients, 1.3) + across)
    ckpt = unit_costs(model, profile, paper, "attention", parse_strategy("dp2-tp2-ckpt"), 8)
    rebuilt = entry.backward_ns + entry.forward_ns
    assert ckpt.time_ns == pytest.approx(compute + overlapped_ns(rebuilt, gradients, 1.3) + 2 * across)
    assert (dp.forward_bytes, dp.backward_bytes) == (boundary + entry.kept_bytes, 0)
    assert (ckpt.forward_bytes, ckpt.backward_bytes) == (boundary, entry.kept_bytes)
    assert dp.state_bytes == 16 * model.parameter_count("attention", 2)
    sdp = unit_costs(model, profile, paper, "attention", parse_strategy("sdp2-tp2"), 8)
    assert sdp.state_bytes == dp.state_bytes // 2


def test_a_layer_of_two_units_peaks_as_its_units_do() -> None:
    model, cluster = load_model("gpt2", 256), load_cluster("cpu-4")
    profile = estimate(model, cluster, 4, 8)
    for strategy in decision_tree(4):
        parts = [unit_costs(model, profile, COST_MODELS["executed"], kind, strategy, 8) for kind in ("attention", "ffn")]
        layer, (a, b) = layer_costs(parts), parts
        peak = max(a.forward_bytes + a.backward_bytes, a.forward_bytes + b.forward_bytes + b.backward_bytes)
        assert layer.forward_bytes + layer.backward_bytes == peak


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("by_unit", [False, True])
@pytest.mark.parametrize("batch", [(8, 1), (16, 4)])
def test_a_program_never_needs_more_than_its_plan_says(dtype: str, by_unit: bool, batch: tuple[int, int]) -> None:
    """Over many memory limits: Eq. 2 with the executed cost model bounds the memory walk of every rank, closely."""
    model, cluster = load_model("gpt2", 128, dtype), load_cluster("cpu-4")
    ratios = []
    for memory in range(3 * 2**28, 5 * 2**30, 2**29):
        found = make_plan(model, cluster, batch[0], memory, micro_batches=batch[1], by_unit=by_unit)
        if found.plan is None:
            assert found.result.status == "infeasible"
            continue
        assert found.plan.predicted is not None
        ratios.append(max(found.walk_bytes) / found.plan.predicted.peak_bytes)
        assert max(found.walk_bytes) <= found.plan.predicted.peak_bytes <= memory
    assert len(ratios) >= 3
    assert min(ratios) > 0.9


def test_shorter_pipelines_hold_fewer_micro_batches() -> None:
    options = {
        "model": "bert-huge-32",
        "cluster": "rtx-titan-8",
        "batch": 64,
        "memory": "8GiB",
        "pipeline": 4,
        "micro_batches": 8,
    }
    first, last = (tp.build(stage=stage, **options) for stage in (1, 3))
    # Stage 1 holds three micro-batches, the last stage one.
    extra = int(first.state_bytes[0][0]) - int(last.state_bytes[0][0])
    assert extra == 2 * int(first.forward_bytes[0][0])


def test_profiles_round_trip_and_refuse_other_models() -> None:
    model, cluster = load_model("gpt2", 128), load_cluster("cpu-4")
    profile = estimate(model, cluster, 4, 8)
    assert parse(profile.model_dump(), Profile) == profile
    with pytest.raises(InputError, match=r"profile: model is 'gpt2'"):
        make_plan(load_model("bert-huge-32", 128), cluster, 8, profile=profile)
    with pytest.raises(InputError, match="measure or estimate it for this batch"):
        build(model, profile, 2**30, 12)


def test_measured_on_processes() -> None:
    """Two real processes: every entry is positive and measured, and it plans."""
    from dataclasses import replace

    from trainplan.profiling.measure import measure

    model = replace(load_model("gpt2"), hidden=64, heads=4, inner=256, layers=2, vocabulary=512, positions=64, sequence=64)
    cluster = load_cluster("cpu-4").model_copy(update={"devices": 2, "islands": [Island(devices=2, bandwidth_bytes_per_s=1e9)]})
    events: list[dict] = []
    profile = measure(model, cluster, 4, budget_seconds=4, progress=events.append)
    assert {unit.origin for unit in profile.units} == {"measured"}
    assert profile.links_origin == "measured"
    assert all(unit.forward_ns > 0 and unit.backward_ns > 0 for unit in profile.units)
    assert len(events) == len(profile.units) + 2
    for unit in profile.units:
        assert unit.kept_bytes == pytest.approx(model.kept_bytes(unit.kind, unit.rows, unit.tp), rel=0.02, abs=64)
    assert make_plan(model, cluster, 4, 2**30, profile=profile).result.status == "optimal"


@pytest.mark.parametrize(
    ("text", "size"), [("8GiB", 8 * 2**30), ("500 MB", 500 * 10**6), ("1.5G", 3 * 2**29), ("123", 123), ("2kib", 2048)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "8 GiBs", "-1GiB", "nan", "GiB", "1e9"])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(InputError, match="give a size such as 8GiB"):
        parse_bytes(text)


def test_bad_clusters() -> None:
    good = load_cluster("rtx-titan-8").model_dump()
    for change, told in (
        (
            {"devices": 6, "islands": [{**good["islands"][0], "devices": 6}]},
            "devices is 6; give a power of two, such as 4",
        ),
        ({"islands": [{**good["islands"][0], "devices": 4}]}, "give all devices, 8"),
        ({"device": {**good["device"], "efficiency": 1.5}}, "device.efficiency is 1.5"),
        ({"device": {**good["device"], "flops_per_s": float("inf")}}, "device.flops_per_s is inf"),
        ({"islands": []}, "give at least 1 items"),
    ):
        with pytest.raises(InputError, match=told):
            parse({**good, **change}, Cluster)
