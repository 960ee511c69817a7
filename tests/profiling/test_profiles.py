"""Profiles: estimates, what completes them, and their way through files into instances."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from trainplan.formulations.costs.sequential.cost_models import COST_MODELS, layer_costs, unit_costs
from trainplan.formulations.joint.options import with_tables
from trainplan.formulations.layer_strategies.costs import build
from trainplan.formulations.plan.strategy import decision_tree, parse_strategy
from trainplan.profiling.base.dtypes import DTYPE_BYTES
from trainplan.profiling.base.files import parse
from trainplan.profiling.base.quantities import parse_bytes
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.costs import overlapped_ns, ring_ns
from trainplan.profiling.estimate import estimate_shapes, sublayer_ns
from trainplan.profiling.interpolate import complete
from trainplan.profiling.models.model import load_model
from trainplan.profiling.profiles import Number, Profile, Shape, load_profile
from trainplan.profiling.shipped import shipped

import trainplan as tp
from benchmarks.calibration import Sample, calibrate
from tests.helpers.refusals import refused
from tests.helpers.sizes import first_and_others, one_in
from tests.helpers.small_models import estimate, for_group


def test_paper_costs_by_hand() -> None:
    """One attention unit under dp2-tp2 and its relatives, computed from the profile with Section V's rules."""
    model, cluster = load_model("bert-huge-32"), load_cluster("rtx-titan-8")
    profile, paper, part = estimate(model, cluster, 4, 8), COST_MODELS["paper"], model.sublayers["attention"]
    link = cluster.network.link((0, 1))
    entry = profile.cost("attention", 2, 4)
    forward, back = entry.forward_ns.value, entry.backward_ns.value
    boundary, weights = part.boundary_bytes(4), part.parameter_count(2) * 4
    across = ring_ns("all-reduce", boundary, 2, link)
    compute = forward + across
    dp = unit_costs(profile, paper, "attention", parse_strategy("tp2-dp2"), 8)
    gradients = ring_ns("all-reduce", weights, 2, link)
    # In tp2-dp2 the data-parallel ranks are neighbours; the tensor-parallel ones are two apart, on the larger island.
    far = ring_ns("all-reduce", boundary, 2, cluster.network.link((0, 2)))
    assert dp.time_ns == pytest.approx(forward + far + overlapped_ns(back, gradients, 1.3) + far)
    slow = ring_ns("all-reduce", weights, 2, cluster.network.link((0, 2)))
    near = unit_costs(profile, paper, "attention", parse_strategy("dp2-tp2"), 8)
    assert near.time_ns == pytest.approx(compute + overlapped_ns(back, slow, 1.3) + across)
    ckpt = unit_costs(profile, paper, "attention", parse_strategy("dp2-tp2-ckpt"), 8)
    assert ckpt.time_ns == pytest.approx(compute + overlapped_ns(back + forward, slow, 1.3) + 2 * across)
    assert (near.forward_bytes, near.backward_bytes) == (boundary + entry.kept_bytes.value, 0)
    assert (ckpt.forward_bytes, ckpt.backward_bytes) == (boundary, entry.kept_bytes.value)
    assert near.state_bytes == 16 * part.parameter_count(2)
    sdp = unit_costs(profile, paper, "attention", parse_strategy("sdp2-tp2"), 8)
    assert sdp.state_bytes == near.state_bytes // 2


def test_a_layer_of_two_units_peaks_as_its_units_do() -> None:
    model, cluster = load_model("gpt2", 256, "float32"), load_cluster("cpu-4")
    profile = estimate(model, cluster, 4, 8)
    for strategy in decision_tree(4):
        parts = [unit_costs(profile, COST_MODELS["executed"], name, strategy, 8) for name in ("attention", "ffn")]
        layer, (a, b) = layer_costs(parts), parts
        peak = max(a.forward_bytes + a.backward_bytes, a.forward_bytes + b.forward_bytes + b.backward_bytes)
        assert layer.forward_bytes + layer.backward_bytes == peak


@pytest.mark.parametrize("model_name", ["gpt2", "llama2-7b"])
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.long)])
@pytest.mark.parametrize("by_unit", [pytest.param(False, marks=pytest.mark.long), True])
@pytest.mark.parametrize("batch", [(8, 1), pytest.param((16, 4), marks=pytest.mark.long)])
def test_a_program_never_needs_more_than_its_plan_says(
    model_name: str, dtype: str, by_unit: bool, batch: tuple[int, int]
) -> None:
    """Over many memory limits: tables of what programs hold at most bound the memory analysis of every rank, closely."""
    model, cluster = load_model(model_name, 128, dtype), load_cluster("cpu-4")
    if model_name != "gpt2":
        sizes = {"hidden_size": 768, "intermediate_size": 2048, "num_attention_heads": 12, "num_key_value_heads": 4}
        model = model.with_fields(num_hidden_layers=12, head_dim=64, **sizes)
    ratios = []
    for memory in one_in(2, range(3 * 2**28, 5 * 2**30, 2**29)):
        found = tp.plan(model=model, cluster=cluster, batch=batch[0], memory=memory, micro_batches=batch[1], by_unit=by_unit)
        if found.plan is None:
            assert found.result.status == "infeasible"
            continue
        at_most = found.problem.instance(with_tables(found.request, "most"))
        claimed = found.problem.evaluate(at_most, found.answer.solution).peak_bytes
        ratios.append(max(found.walk_bytes) / claimed)
        assert max(found.walk_bytes) <= min(claimed, memory)
        assert found.plan.predicted is not None
        assert found.plan.predicted.most_bytes == max(found.walk_bytes)
    assert len(ratios) >= 3
    # A table that embedding and head share is planned for both, and is one where their strategies turn out alike.
    assert min(ratios) > (0.9 if model_name != "gpt2" else 0.7)


def test_shorter_pipelines_hold_fewer_micro_batches() -> None:
    options: dict[str, Any] = {
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


@pytest.mark.parametrize("cluster_name", first_and_others(sorted(shipped("clusters"), key=lambda name: name != "h100-64"), 3))
def test_every_model_on_every_cluster_is_a_valid_instance(cluster_name: str) -> None:
    """Hundreds of pairs: the instance loads, every option costs something, and each layer has as many as its strategies."""
    cluster = load_cluster(cluster_name)
    dtypes = set.intersection(set(DTYPE_BYTES), *(set(kind.flops_per_s) for kind in cluster.used_kinds))
    for name in shipped("models"):
        model, batch = load_model(name), 2 * cluster.devices
        # Longer samples take a CPU longer than a profile may say.
        sequence = 4096 if model.vocabulary and model.tokens > 4096 else None
        instance = tp.build(model=name, cluster=cluster, batch=batch, dtype=sorted(dtypes)[-1], sequence=sequence)
        assert instance.layers == model.layers + 2
        assert all((times > 0).all() for times in instance.time_ns)
        assert all((states >= 0).all() for states in instance.state_bytes)
        assert max(instance.options) > 1


def test_mixed_kinds_work_at_the_pace_of_the_slowest() -> None:
    """A group over V100 and T4 nodes: each number is the larger of the two kinds', and the memory the smaller."""
    model, cluster = load_model("amp-gpt2"), load_cluster("amp-heterogeneous-16")
    profile = estimate(model, cluster, 16, 32)
    assert len(profile.kinds) == 2
    for name in model.sublayers:
        both = [profile.cost(name, 1, 2, kind) for kind in profile.kinds]
        merged = profile.cost(name, 1, 2)
        assert merged.forward_ns.value == max(entry.forward_ns.value for entry in both)
        assert both[0].forward_ns.value != both[1].forward_ns.value
    assert profile.memory_bytes == min(kind.memory_bytes for kind in cluster.used_kinds)


def test_profiles_round_trip_through_files(tmp_path: Path) -> None:
    for name, where in (("gpt2", "cpu-4"), ("t5-512-4-32", "a100-16"), ("amp-gpt2", "amp-heterogeneous-16")):
        profile = estimate(load_model(name), load_cluster(where), 4, 8)
        path = tmp_path / f"{name}.json"
        path.write_text(profile.model_dump_json())
        assert load_profile(path) == profile
        assert build(load_profile(path), 2**35, 8).digest == build(profile, 2**35, 8).digest


def test_profiles_refuse_other_models() -> None:
    model, cluster = load_model("gpt2", 128, "float32"), load_cluster("cpu-4")
    profile = estimate(model, cluster, 4, 8)
    with refused("model", where="profile", problem="gpt2", fix="bert-huge-32"):
        tp.plan(model=load_model("bert-huge-32", 128), cluster=cluster, batch=8, profile=profile)
    with refused("model.sequence", where="profile", problem=128, fix=256):
        tp.plan(model=load_model("gpt2", 256, "float32"), cluster=cluster, batch=8, profile=profile)
    with refused("embedding with tp 1 and 3 rows", fix="batch"):
        build(profile, 2**30, 12)


def test_a_measurement_never_blocks_a_plan() -> None:
    """Two sizes at tp 1 plan any batch and any degree: rows by a line, degrees by the estimate scaled to what is known."""
    model, cluster = load_model("gpt2", 128, "float32"), load_cluster("cpu-4")
    few = estimate_shapes(model, cluster, [(1, 1), (1, 4)])
    few = few.changed(costs=[entry.changed(**twice(entry)) for entry in few.costs])
    full = for_group(few, 4, 24)
    truth = estimate(model, cluster, 4, 24)
    for entry in truth.costs:
        found = full.cost(entry.sublayer, entry.tp, entry.rows)
        assert found.forward_ns.origin == "estimated"
        assert found.forward_ns.value == pytest.approx(2 * entry.forward_ns.value, rel=0.12)
        assert found.kept_bytes.value == pytest.approx(entry.kept_bytes.value, rel=0.001, abs=64)
    assert tp.plan(model=model, cluster=cluster, batch=24, profile=few).result.status == "optimal"


def twice(entry: Any) -> dict[str, Number]:
    """A machine that takes twice as long as its data sheet says, `measured`."""
    names = ("forward_ns", "forward_without_graph_ns", "backward_ns")
    return {name: Number(value=2 * getattr(entry, name).value, origin="measured") for name in names}


def test_profiles_refuse_other_clusters_and_imported_ones_other_models() -> None:
    model = load_model("gpt2", 128, "float32")
    here = estimate(model, load_cluster("cpu-4"), 4, 8)
    with refused("cluster", where="profile", problem=("cpu-4", "CPU process"), fix=("h100:8", "--cluster")):
        tp.plan(model=model, cluster=load_cluster("h100-8"), batch=8, profile=here)
    with refused("cluster", where="profile", problem="cpu-4", fix=("rtx-titan-8", "--cluster")):
        tp.build(model="gpt2", cluster="rtx-titan-8", batch=8, sequence=128, profile=here)
    with refused("name", where="profile", problem="gpt2", fix="--model"):
        tp.plan(model=model, cluster=load_cluster("cpu-4"), batch=8, profile=here.changed(model=None))
    with refused("sequence", problem=64):
        tp.build(profile=here, batch=8, sequence=64)
    with refused("dtype", problem="bfloat16", fix="float32"):
        tp.build(profile=here, batch=8, dtype="bfloat16")
    named = tp.build(model="gpt2", cluster="cpu-4", batch=8, profile=here)  # its sequence and dtype are the profile's
    assert named.digest == tp.build(profile=here, batch=8).digest


@pytest.mark.parametrize("cost_model", ["paper", "executed"])
def test_no_plan_uses_what_did_not_fit(cost_model: str) -> None:
    """dp4 puts four rows of this FFN on a device: measured out of memory, it is in no plan, whole or split less."""
    model, cluster = load_model("gpt2", 128, "float32"), load_cluster("cpu-4")
    profile = estimate_shapes(model, cluster, [(1, 1), (1, 2), (2, 2), (2, 4)])
    failed = [Shape(sublayer="ffn", device="CPU process", tp=2, rows=4)]
    instance = tp.build(
        profile=profile.changed(out_of_memory=failed), batch=16, memory="4GiB", by_unit=True, cost_model=cost_model
    )
    needed = instance.forward_bytes[2] + instance.backward_bytes[2]
    for name, size in zip(instance.strategies[2], needed, strict=True):
        strategy = parse_strategy(name)
        too_large = strategy.degree("tp") <= 2 and 16 // strategy.data_degree >= 4
        assert (size >= 2**32) == too_large, name
    assert tp.solve(instance).status == "optimal"


def test_what_did_not_fit_when_profiled_is_no_option() -> None:
    model, cluster = load_model("gpt2", 128, "float32"), load_cluster("cpu-4")
    profile = estimate_shapes(model, cluster, [(1, 1), (1, 2)])
    large = [Shape(sublayer="ffn", device="CPU process", tp=1, rows=4)]
    found = complete(profile.changed(out_of_memory=large), [(1, 3), (1, 4), (1, 8)])
    assert found.cost("ffn", 1, 8).backward_workspace_bytes.value == profile.memory_bytes, "nor did more"
    assert found.cost("ffn", 1, 3).backward_workspace_bytes.value < profile.memory_bytes
    assert found.cost("ffn", 1, 4).backward_workspace_bytes.value == profile.memory_bytes
    assert found.cost("attention", 1, 4).backward_workspace_bytes.value < profile.memory_bytes


def test_calibration_finds_the_rates_again() -> None:
    """Times made with known rates, three sizes: the fit predicts two sizes that it has not seen within 3 %."""
    base = load_cluster("cpu-4").used_kinds[0]
    true = base.changed(efficiency=0.4, memory_bytes_per_s=9e9, half_size=40, kernel_ns=9000)
    sizes = {
        hidden: load_model("gpt2", 128, "float32").with_fields(n_embd=hidden, n_head=8) for hidden in (128, 192, 256, 384, 512)
    }

    def samples(hidden: int) -> list[Sample]:
        parts = [sizes[hidden].sublayers[name] for name in ("attention", "ffn")]
        return [Sample(part, 1, rows, *sublayer_ns(part, true, rows, 1)) for part in parts for rows in (1, 4)]

    fitted = calibrate(base, [sample for hidden in (128, 256, 512) for sample in samples(hidden)])
    for hidden in (192, 384):
        for sample in samples(hidden):
            found = sublayer_ns(sample.part, fitted, sample.rows, 1)
            assert found == pytest.approx((sample.forward_ns, sample.backward_ns), rel=0.03)


def bad(**change: Any) -> dict[str, Any]:
    return {**json.loads(json.dumps(GOOD)), **change}


GOOD: dict[str, Any] = estimate(load_model("gpt2", 64, "float32"), load_cluster("cpu-4"), 2, 2).model_dump(mode="json")
ENTRY, SHAPE, UNIT = GOOD["costs"][0], GOOD["sublayers"][0], GOOD["units"][0]
BAD: list[tuple[dict[str, Any], tuple[Any, ...]]] = [
    ({"version": 1}, ("version", 1, 2)),
    ({"units": []}, ("units", "[]", 1)),
    ({"units": [{**UNIT, "sublayer": "mlp"}]}, ("units[0].sublayer", "mlp", ("embedding", "attention", "ffn"))),
    ({"units": [{**UNIT, "layer": 3}]}, ("units[0].layer", 3, (0, 1))),
    ({"costs": [{**ENTRY, "tp": 0}]}, ("costs[0].tp", 0, 1)),
    ({"costs": [{**ENTRY, "forward_ns": 12}]}, ("costs[0].forward_ns", 12, "{...}")),
    ({"costs": [{**ENTRY, "forward_ns": {"value": -1, "origin": "measured"}}]}, ("costs[0].forward_ns.value", -1, 0)),
    (
        {"costs": [{**ENTRY, "forward_ns": {"value": 5, "origin": "guessed"}}]},
        ("costs[0].forward_ns.origin", "guessed", ("measured", "estimated", "imported")),
    ),
    ({"costs": [{**ENTRY, "kept_bytes": {"value": 5.5, "origin": "measured"}}]}, ("costs[0].kept_bytes.value", 5.5, 1000)),
    ({"costs": [{**ENTRY, "sublayer": "x"}]}, ("costs[0].sublayer", "x", ("embedding", "attention", "ffn"))),
    ({"sublayers": [{**SHAPE, "shards": []}]}, ("sublayers[0].shards", "[]", 1)),
    ({"devices": "four"}, ("devices", "four", 1000)),
    ({"memory_bytes": 0}, ("memory_bytes", 0, 0)),
    ({"network": {"islands": []}}, ("network.islands", "matrix")),
    ({"network": {"islands": [{"devices": 1, "bandwidth_bytes_per_s": 1e9}]}}, ("network", "2 devices")),
    (
        {"optimizer_ns_per_parameter": {"value": float("nan"), "origin": "measured"}},
        ("optimizer_ns_per_parameter.value", "NaN"),
    ),
    ({"model": {"name": "x", "config": {"model_type": "mamba"}}}, ("model.config.model_type", "mamba")),
    ({"colour": "red"}, ("colour",)),
]


@pytest.mark.parametrize(("change", "refusal"), BAD, ids=[refusal[0] for _, refusal in BAD])
def test_bad_profiles_get_one_line(change: dict[str, Any], refusal: tuple[Any, ...], tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(bad(**change)))
    with refused(*refusal, where=path) as caught:
        load_profile(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "size"), [("8GiB", 8 * 2**30), ("500 MB", 500 * 10**6), ("1.5G", 3 * 2**29), ("123 bytes", 123), ("2kib", 2048)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "8", "8 GiBs", "-1GiB", "nan", "GiB", "1e9"])
def test_bad_sizes(text: str) -> None:
    with refused("memory", fix="8GiB"):
        parse_bytes(text)


def test_a_profile_is_checked_as_a_record() -> None:
    assert parse(GOOD, Profile).total_parameters == load_model("gpt2", dtype="float32").total_parameters
