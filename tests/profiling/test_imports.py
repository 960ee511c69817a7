"""Profiles from other projects' files: numbers as the files have them, plans from them, and one line for each bad input."""

import copy
import json
import os
import pathlib
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from trainplan.formulations.costs.sequential.cost_models import COST_MODELS, unit_costs
from trainplan.formulations.layer_strategies.costs import build
from trainplan.formulations.plan.strategy import parse_strategy
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import parse
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.costs import collective_ns
from trainplan.profiling.imports import import_profile
from trainplan.profiling.imports.galvatron_blocks import SUMMARIES
from trainplan.profiling.imports.source import Source
from trainplan.profiling.profiles import Profile
from trainplan.solvers.core.solve import solve

from tests.helpers.refusals import refused
from tests.helpers.small_models import for_group
from trainplan.papers.galvatron_blocks import derived

DATA = pathlib.Path(os.environ.get("TRAINPLAN_DATA") or pathlib.Path(__file__).parents[2].parent / "shared/data")
MIB, GIB = 2**20, 2**30
PAPER = COST_MODELS["paper"]
Json = dict[str, Any]


def real(*names: str) -> list[pathlib.Path]:
    paths = [DATA / name for name in names]
    if missing := [path for path in paths if not path.exists()]:
        pytest.skip(f"needs the published profile {missing[0].name}: set TRAINPLAN_DATA")
    return paths


def hardware(nodes: int, *kinds: str) -> list[pathlib.Path]:
    return real(*(f"galvatron/hardware/{kind}_{nodes}nodes_8gpus_per_node.json" for kind in kinds))


def bert(**options: Any) -> Profile:
    model = "galvatron/bert-large/{}_profiling_bf16_hidden1024_head16.json"
    overlap = real("galvatron/hardware/overlap_coefficient.json")
    files = real(model.format("computation"), model.format("memory")) + hardware(1, "allreduce_bandwidth") + overlap
    return import_profile(files, **{"layers": 24, "sequence": 512, "memory_bytes": 24 * GIB, **options})


def llama(*more: pathlib.Path) -> Profile:
    model = "galvatron/llama2-7b/{}_profiling_bf16_llama2-7b_all.json"
    files = real(model.format("computation"), model.format("memory"))
    links = more or tuple(hardware(1, "allreduce_bandwidth", "sp_time"))
    return import_profile([*files, *links], layers=32, hidden_size=4096, memory_bytes=40 * GIB)


def h3t(name: str, **options: Any) -> Profile:
    return import_profile(real(f"h3t/{name}.json"), memory_bytes=40 * GIB, **options)


def piper() -> Profile:
    return import_profile(real("piper/bert32a100.json"))


# Fidelity: the files' own numbers.


def test_bert_large_times_and_memory_are_those_of_the_files() -> None:
    profile = bert()
    layer = profile.cost("layer", 1, 1)
    assert layer.forward_ns.value == 1_773_728  # 1.773727989196777 ms
    assert layer.backward_ns.value == pytest.approx(2 * layer.forward_ns.value, abs=1)
    shape = profile.shapes["layer"]
    assert shape.input_bytes == shape.output_bytes == 512 * 1024 * 2
    assert layer.checkpoint_bytes is not None
    assert layer.checkpoint_bytes.value == round(1.25 * MIB)
    assert shape.input_bytes + layer.kept_bytes.value == round(36.85546875 * MIB)
    split = profile.cost("layer", 4, 4)
    assert split.forward_ns.value == layer.forward_ns.value
    assert 4 * shape.input_bytes + split.kept_bytes.value == round(4 * 9.2138671875 * MIB)
    assert shape.shard(2).parameters * 2 == pytest.approx(40.8896484375 * MIB / 4, abs=2)
    ends = profile.cost("embedding", 1, 1), profile.cost("head", 1, 1)
    assert sum(end.forward_ns.value for end in ends) == pytest.approx(3_515_203, abs=1)
    kept = sum(end.kept_bytes.value for end in ends) + 512 * 8 + 512 * 1024 * 2
    assert kept == pytest.approx(170.7119140625 * MIB, abs=2)
    states = 16 * sum(profile.shapes[name].shard(1).parameters for name in ("embedding", "head"))
    assert states == pytest.approx(1181.79296875 * MIB, abs=32)
    assert profile.compute_slowdown.value == profile.communication_slowdown.value == 1.125552573612729
    assert {island.origin for island in profile.network.islands} == {profile.origin} == {"imported"}
    assert profile.dtype == "bfloat16"


def test_memory_of_a_layer_under_strategies_is_that_of_the_file() -> None:
    profile = for_group(llama(), 8, 16)
    shape = profile.shapes["layer"]
    plain = unit_costs(profile, PAPER, "layer", parse_strategy("dp8"), 16)
    assert plain.forward_bytes == round(2 * 514.5634765625 * MIB)
    ckpt = unit_costs(profile, PAPER, "layer", parse_strategy("sdp8-ckpt"), 16)
    assert ckpt.forward_bytes == 2 * 32 * MIB
    assert ckpt.forward_bytes + ckpt.backward_bytes == plain.forward_bytes
    assert ckpt.state_bytes == pytest.approx(4 * 778.2236328125 * MIB / 8, abs=16)
    split = unit_costs(profile, PAPER, "layer", parse_strategy("dp4-tp2"), 16)
    assert split.forward_bytes == round(4 * 273.28173828125 * MIB)
    assert shape.reductions == 2
    assert profile.cost("layer", 1, 2).forward_ns.value == round(2 * 4.295437526702879e6)


def test_summaries_follow_from_raw_blocks_as_published() -> None:
    """`derived` on files that have their summaries: the published code's own results, to rounding."""
    for model, sequences in (("bert-large", (128, 512, 2048)), ("llama2-7b", (2048,))):
        end = {"bert-large": "hidden1024_head16", "llama2-7b": "llama2-7b_all"}[model]
        path = real(f"galvatron/{model}/memory_profiling_bf16_{end}.json")[0]
        data = json.loads(path.read_text())
        for sequence in sequences:
            found = derived(Source(str(path), data), sequence)
            assert tuple(found) == SUMMARIES
            for name, fields in found.items():
                for field, value in data[f"{name}_sp"][str(sequence)].items():
                    assert fields[field] == pytest.approx(value), (model, sequence, name, field)


def test_a_bandwidth_gives_the_time_that_it_was_measured_from() -> None:
    """nccl-tests: bus bandwidth = 2 (n-1)/n M / t."""
    for nodes in (1, 2):
        profile = llama(*hardware(nodes, "allreduce_bandwidth"))
        file = hardware(nodes, "allreduce_bandwidth")[0]
        world = 8 * nodes
        for key, value in json.loads(file.read_text()).items():
            _, _, size, _, consecutive = key.split("_")
            n, message = int(size), 2**28
            ranks = range(n) if consecutive == "1" else range(0, world, world // n)
            measured = 2 * (n - 1) / n * message / value  # GB/s: bytes a nanosecond
            holding = [island for island in profile.network.islands if island.holds(0, max(ranks))]
            error = abs(collective_ns(profile.network, "all-reduce", message, tuple(ranks)) / measured - 1)
            assert error <= holding[0].error + 1e-4, key


def test_groups_share_the_cards_of_a_node() -> None:
    network = llama(*hardware(2, "allreduce_bandwidth", "p2p_bandwidth")).network
    across = network.islands[-2]
    assert (across.devices, across.shared_by, across.bandwidth_bytes_per_s) == (16, 8, 44.682e9)
    assert across.node_bytes_per_s == pytest.approx((8 * 8.13007e9 + 2 * 20.7724e9) / 2)
    assert 0.2 < across.error < 0.23
    assert network.link((0, 8), "p2p").bandwidth_bytes_per_s == pytest.approx((7.65998e9 + 8.76278e9) / 2)
    assert network.link((0, 1), "p2p").bandwidth_bytes_per_s == 155.658e9


def test_measured_times_come_back_within_the_error_of_their_fit() -> None:
    profile = llama(*hardware(1, "allreduce_bandwidth", "sp_time"))
    file = hardware(1, "sp_time")[0]
    for key, ms in json.loads(file.read_text()).items():
        name, _, size, text, _ = key.split("_")
        operation: Any = {"allreduce": "all-reduce", "all2all": "all-to-all"}[name]
        islands = [island for island in profile.network.islands if island.operation == operation]
        error = next(island.error for island in islands if island.devices == int(size))
        found = collective_ns(profile.network, operation, int(text[:-2]) * MIB, range(int(size)))
        assert abs(found / (ms * 1e6) - 1) <= error + 1e-4, key


def test_piper_costs_and_memory_are_those_of_the_graph() -> None:
    profile = piper()
    assert [unit.name for unit in profile.units[:2]] == ["Embedding-1", "ParallelTransformerLayer-3"]
    assert (len(profile.units), profile.devices, profile.memory_bytes) == (34, 10, 80_000_000_000)
    layer = profile.units[1].sublayer
    for tp, plain, recomputed in ((1, 30_492_000, 40_685_000), (8, 9_396_000, 12_056_000)):
        entry = profile.cost(layer, tp, 1)
        assert entry.forward_ns.value + entry.backward_ns.value == plain
        assert plain + entry.forward_without_graph_ns.value == recomputed
    profile = for_group(profile, 8, 8)
    # The mask, a tensor of its own in the graph, goes to the first layer.
    unit = unit_costs(profile, PAPER, profile.units[2].sublayer, parse_strategy("dp8"), 8)
    first = unit_costs(profile, PAPER, layer, parse_strategy("dp8"), 8)
    assert (unit.forward_bytes, first.forward_bytes - unit.forward_bytes) == (606_478_336, 16_777_216)
    assert unit.state_bytes == 353_994_240
    ckpt = unit_costs(profile, PAPER, profile.units[2].sublayer, parse_strategy("dp8-ckpt"), 8)
    assert ckpt.forward_bytes == 48_234_496
    alone = unit_costs(profile, PAPER, layer, parse_strategy("tp8"), 8)
    assert alone.time_ns == 8 * 9_396_000
    assert profile.network.link((0, 7)).bandwidth_bytes_per_s == 25e9


def test_a_published_graph_with_branches_is_a_chain_of_cuts() -> None:
    path = real("piper/gnmt.json")[0]
    profile = import_profile(path)
    graph = json.loads(path.read_text())
    ways = [node["TMPCs"]["1"][0] for node in graph["nodes"]]
    entries = [profile.cost(unit.sublayer, 1, 1) for unit in profile.units]
    total_ns = sum(entry.forward_ns.value + entry.backward_ns.value for entry in entries)
    assert total_ns == pytest.approx(1e9 * sum(way["timePerSample"] for way in ways), abs=len(ways))
    shapes = [profile.shapes[unit.sublayer] for unit in profile.units]
    assert sum(shape.shard(1).parameters for shape in shapes) == sum(way["parameterSize"] for way in ways)
    assert (len(profile.units), profile.units[-3].name) == (29, "node84-67")
    # A decoder layer reads the layer before it, the residual stream, and the context, which the last of them reads last.
    assert [shape.output_bytes for shape in shapes[-5:]] == [26_738_688, 26_738_688, 26_214_400, 13_107_200, 0]
    assert solve(build(for_group(profile, 8, 8), 80 * 10**9, 8), "exact").status == "optimal"


def branching(edges: list[tuple[int, int]], count: int) -> Json:
    """A graph of Piper's, whose node i makes a tensor of 2^i bytes."""
    graph: Json = copy.deepcopy(small()["piper"]["graph"])
    graph["nodes"] = [copy.deepcopy(graph["nodes"][0]) | {"id": i} for i in range(count)]
    graph["edges"] = [{"sourceId": a, "destId": b, "communicationCost": 2.0**a} for a, b in edges]
    return graph


@pytest.mark.parametrize("seed", range(40))
def test_cuts_of_random_graphs_pass_what_is_read_after_them(seed: int, tmp_path: pathlib.Path) -> None:
    """At each cut, the tensors that pass it are those that the next unit reads: nobody pays for another's skip edge."""
    random = Random(seed)
    count = random.randint(2, 12)
    edges = {(random.randrange(b), b) for b in range(1, count)}
    edges |= {(a, b) for a in range(count) for b in range(a + 1, count) if random.random() < 0.15}
    ids = random.sample(range(count), count) if seed % 2 else list(range(count))
    graph = branching(sorted(edges), count)
    graph["nodes"] = [graph["nodes"][i] for i in ids]
    profile = import_profile(written(tmp_path, {"graph": graph}))
    firsts = [int(unit.name.removeprefix("block-")) for unit in profile.units]
    entries = [profile.cost(unit.sublayer, 1, 1) for unit in profile.units]
    assert sum(entry.forward_ns.value for entry in entries) == count * 10_000_000
    if seed % 2:
        return  # the order is not the ids'
    for first, end, before in zip(firsts[1:], [*firsts[2:], count], profile.units, strict=False):
        read = {a for a, b in edges if a < first <= b < end}
        assert profile.shapes[before.sublayer].output_bytes == sum(2**a for a in read)
        assert read == {a for a, b in edges if a < first <= b}


def test_h3t_rates_come_from_its_times() -> None:
    profile = h3t("bert1.8b_n12_8x2080ti_bs128")
    assert (profile.devices, len(profile.units), profile.kinds) == (8, 12, ("device",))
    gathered = collective_ns(profile.network, "all-gather", 75_497_472, range(8))
    scattered = collective_ns(profile.network, "reduce-scatter", 75_497_472, range(8))
    assert gathered == pytest.approx(8_257_536) and scattered == pytest.approx(8_257_536)
    assert profile.host is not None
    assert profile.host.to_device_bytes_per_s.value == pytest.approx(9_437_184 / 0.001179648)
    assert profile.host.optimizer_ns_per_parameter.value == pytest.approx(0.009437184e9 / (9_437_184 / 2))
    entry, shape = profile.cost("layer-0", 1, 1), profile.shapes["layer-0"]
    assert (entry.forward_ns.value, entry.forward_without_graph_ns.value) == (18_706_423, 18_161_576)
    assert entry.backward_ns.value == 36_323_152
    assert (shape.input_bytes, entry.kept_bytes.value) == (16_777_216, 1_375_731_712 - 16_777_216)
    assert shape.shard(1).parameters == 75_497_472 // 2
    assert profile.provenance["nvlink_available"] == "False"
    assert h3t("bert1.8b_n12_8x2080ti_bs128", rows=16).shapes["layer-0"].input_bytes == 2**20


@pytest.mark.parametrize(
    ("name", "memory_bytes", "batch"),
    [("bert", 23 * GIB, 128), ("llama", 36 * GIB, 16), ("piper", 12 * 10**9, 8), ("n12", 10 * GIB, 8), ("n48", 10 * GIB, 8)],
)
def test_imported_profiles_plan(name: str, memory_bytes: int, batch: int) -> None:
    makers: dict[str, Callable[[], Profile]] = {
        "bert": bert,
        "llama": llama,
        "piper": piper,
        "n12": lambda: h3t("bert1.8b_n12_8x2080ti_bs128"),
        "n48": lambda: h3t("bert1.8b_n48_8xA100_bs128"),
    }
    profile = makers[name]()
    assert parse(json.loads(profile.model_dump_json()), Profile) == profile
    instance = build(for_group(profile, 8, batch), memory_bytes, batch)
    result = solve(instance, "exact")
    assert result.status == "optimal" and result.objective is not None and result.bound == result.objective
    assert result.evaluation is not None and result.evaluation["peak_bytes"] <= memory_bytes


def test_older_published_files() -> None:
    model = "galvatron/gpt-1.5b/{}_profiling_bf16_hidden1600_head32_seqlen1024.json"
    files = real(model.format("computation"), model.format("memory")) + hardware(1, "allreduce_bandwidth")
    profile = import_profile(files, layers=48, memory_bytes=24 * GIB)
    layer = profile.cost("layer", 1, 4)
    assert layer.forward_ns.value == pytest.approx(4 * 598_116.93, abs=1)
    assert profile.cost("head", 1, 4).forward_ns.value == pytest.approx((41_484_313.58 - 12 * 4 * 598_116.93) / 2, abs=1)
    assert profile.shapes["layer"].input_bytes == 1024 * 1600 * 2
    assert profile.shapes["layer"].input_bytes + layer.kept_bytes.value / 4 == pytest.approx(58.20361328125 * MIB, abs=1)
    assert profile.tp_degrees(8) == (1, 2, 4, 8)
    assert solve(build(for_group(profile, 8, 32), 24 * GIB, 32), "exact").status == "optimal"


def test_published_files_of_two_types_of_layers() -> None:
    files = real(*(f"galvatron/t5-3b/{kind}_profiling_bf16_t5-3B.json" for kind in ("computation", "memory")))
    profile = import_profile(
        files + hardware(1, "allreduce_bandwidth"), layers=(24, 24), hidden_size=1024, memory_bytes=24 * GIB
    )
    assert len(profile.units) == 50
    costs = [profile.cost(name, 1, 8) for name in ("layer-of-type-0", "layer-of-type-1", "head")]
    wanted = [8 * 447_639.0243, 8 * 627_794.4456, 4 * 801_060.6050]
    assert [cost.forward_ns.value for cost in costs] == pytest.approx(wanted, abs=1)
    sizes = [profile.shapes[f"layer-of-type-{i}"].shard(1).parameters * 4 / MIB for i in range(2)]
    assert sizes == pytest.approx([192.107421875, 258.19140625])
    assert solve(build(for_group(profile, 8, 32), 24 * GIB, 32), "exact").status == "optimal"


def test_partial_files_and_plans_are_refused_for_what_they_are() -> None:
    links = hardware(1, "allreduce_bandwidth")
    for names, field, problem in (
        (("computation_profiling_bf16_llama2-7b_seqlen2048_all", "memory_profiling_bf16_llama2-7b_all"), None, "one"),
        (
            ("computation_profiling_bf16_llama2-7b_all", "memory_profiling_bf16_llama2-7b_seqlen2048_all"),
            "layertype_0",
            ("seq2048", "two"),
        ),
        (("galvatron_config_llama2-7b_1nodes_8gpus_per_node_36GB_bf16",), "", "Galvatron's"),
    ):
        files = real(*(f"galvatron/llama2-7b/{name}.json" for name in names))
        with refused(field, problem) as caught:
            import_profile(files + links, layers=32, hidden_size=4096, memory_bytes=GIB)
        assert "\n" not in str(caught.value)


# Small files of our own, so that all else is tested without the published ones.


def small() -> dict[str, dict[str, Json]]:
    """Files of each format by name: two sizes of two layers, eight devices or four."""
    summary = {"parameter_size": 16.0, "tp_activation_per_bsz_dict": {"1": 8.0, "2": 4.0, "4": 2.0, "checkpoint": 1.0}}
    other = {"model_states": {"1": 64.0, "2": 32.0, "4": 16.0}, "activation": {"1": 4.0, "2": 2.0, "4": 1.0}}
    computation = {"layernum[1]_bsz2_seq64": 6.0, "layernum[2]_bsz2_seq64": 10.0, "layertype_0_bsz2_seq64": 2.0}
    tmpc = {"timePerSample": 0.03, "parameterSize": 1000.0, "memoryUsageA": 900.0, "memoryUsageB": 2000.0}
    again = {"timePerSample": 0.04, "parameterSize": 1000.0, "memoryUsageA": 90.0, "memoryUsageB": 2810.0}
    ways = {"1": [{"id": "vanilla", **tmpc}, {"id": "activation recomp", **again}]}
    nodes = []
    for i in range(4):
        node = {"id": i, "name": "block", "TMPCs": copy.deepcopy(ways)}
        for way in node["TMPCs"]["1"]:  # type: ignore[index]
            way["syncTimeFw"], way["syncTimeBw"] = {str(i - 1): 0.0} if i else {}, {str(i + 1): 0.0} if i < 3 else {}
        nodes.append(node)
    edges = [{"sourceId": i, "destId": i + 1, "communicationCost": 64.0} for i in range(3)]
    runtime = {
        **dict.fromkeys(("forward_no_grad", "forward_with_grad", "gather_parameter", "scatter_gradient"), 0.002),
        **dict.fromkeys(("prefetch_parameter", "offload_gradient", "optimizer_step", "backward"), 0.004),
        **dict.fromkeys(("prefetch_hidden_state", "offload_hidden_state"), 0.001),
    }
    memory = {
        **dict.fromkeys(("input_tensor", "forward_no_grad_delta"), 1024),
        **dict.fromkeys(("gathered_parameter", "gathered_gradient"), 8000),
        **dict.fromkeys(("partitioned_parameter", "partitioned_gradient"), 2000),
        "forward_no_grad_peak": 3000,
        "forward_with_grad_peak": 9000,
        "forward_with_grad_delta": 8000,
        "backward_peak": 2048,
        "backward_delta": -8000,
    }
    return {
        "galvatron": {
            "computation_profiling_bf16_tiny": {**computation, "layertype_other_bsz2_seq64": 1.0},
            "memory_profiling_bf16_tiny": {"layertype_0_sp": {"64": summary}, "other_memory_pp_off_sp": {"64": other}},
            "allreduce_bandwidth_1nodes_4gpus_per_node": {
                "allreduce_size_4_consec_1": 100.0,
                "allreduce_size_2_consec_1": 90.0,
                "allreduce_size_2_consec_0": 80.0,
            },
            "overlap_coefficient": {"overlap_coe": 1.2},
        },
        "piper": {
            "graph": {
                "maxDevices": 4,
                "maxMemoryPerDevice": 1e6,
                "bandwidth": 1e9,
                "mbsInBatch": 4,
                "nodes": nodes,
                "edges": edges,
            }
        },
        "h3t": {"layers": {"nvlink_available": True, "layer_runtime": [runtime] * 2, "layer_memory": [memory] * 2}},
    }


OPTIONS: dict[str, Json] = {
    "galvatron": {"layers": 2, "hidden_size": 8, "memory_bytes": GIB},
    "piper": {},
    "h3t": {"memory_bytes": GIB},
}


def written(folder: pathlib.Path, files: dict[str, Any]) -> list[pathlib.Path]:
    paths = []
    for name, value in files.items():
        paths.append(folder / f"{name}.json")
        paths[-1].write_text(value if isinstance(value, str) else json.dumps(value))
    return paths


@pytest.mark.parametrize("format", OPTIONS)
def test_small_files_of_each_format_plan(format: str, tmp_path: pathlib.Path) -> None:
    paths = written(tmp_path, small()[format])
    profile = import_profile(paths, format=format, name="tiny", **OPTIONS[format])
    assert profile.name == "tiny" and profile.origin == "imported"
    assert all(path.name in profile.provenance["files"] for path in paths)
    assert parse(json.loads(profile.model_dump_json()), Profile) == profile
    result = solve(build(for_group(profile, 4, 8), GIB, 8), "exact")
    assert result.status == "optimal"


def test_paths_may_be_one_text() -> None:
    with refused(""):
        import_profile("absent.json")


def test_older_files_without_batch_and_sequence(tmp_path: pathlib.Path) -> None:
    files = small()["galvatron"]
    files["computation_profiling_bf16_tiny"] = {"layertype_0": 2.0, "layertype_other_0": 1.0}
    memory = files["memory_profiling_bf16_tiny"]
    files["memory_profiling_bf16_tiny"] = {
        "layertype_0": memory["layertype_0_sp"]["64"],
        "other_memory_pp_off": {"model_states": 64.0, "activation": 4.0},
    }
    paths = written(tmp_path, files)
    with refused(""):
        import_profile(paths, **OPTIONS["galvatron"])
    profile = import_profile(paths, sequence=64, **OPTIONS["galvatron"])
    assert profile.cost("layer", 1, 1).forward_ns.value == 2_000_000
    assert profile.tp_degrees(4) == (1, 2, 4)  # the layers' own: of embedding and head every rank has all
    head = profile.shapes["head"]
    assert head.shard(4) == head.shard(1).changed(tp=4) and head.shard(4).replicated_parameters == head.shard(4).parameters
    assert (head.reductions, profile.cost("head", 4, 4).forward_ns.value) == (0, 4 * 500_000)


def test_older_totals_name_a_batch_and_no_sequence(tmp_path: pathlib.Path) -> None:
    """The layertype_0 next to them is of a batch that is not named; the name of a file says what its keys do not."""
    files = small()["galvatron"]
    memory = files["memory_profiling_bf16_tiny"]
    files = {
        "computation_profiling_bf16_hidden8_seqlen64": {
            "layernum[1]_bsz2": 6.0,
            "layernum[2]_bsz2": 10.0,
            "layernum[3]_bsz2": 13.0,
            "layertype_0_bsz2": 1.5,  # of the last two totals
            "layertype_0": 7.0,
        },
        "memory": {
            "layertype_0": memory["layertype_0_sp"]["64"],
            "other_memory_pp_off": memory["other_memory_pp_off_sp"]["64"],
        },
        "links": files["allreduce_bandwidth_1nodes_4gpus_per_node"],
    }
    profile = import_profile(written(tmp_path, files), layers=2, memory_bytes=GIB)
    assert profile.cost("layer", 1, 2).forward_ns.value == 2 * 1_500_000
    assert profile.cost("head", 1, 2).forward_ns.value == 2 * (6.0 / 2 - 1.5) / 2 * 1e6
    assert (profile.shapes["layer"].input_bytes, profile.provenance["sequence"]) == (64 * 8 * 2, "64")


def several() -> dict[str, Json]:
    """Two types of layers: one and a half, and three milliseconds, at 64 and 16 tokens."""
    files = small()["galvatron"]
    layer, ends = (next(iter(table.values())) for table in files[SIZES].values())
    wide = {"parameter_size": 64.0, "tp_activation_per_bsz_dict": {"1": 4.0, "2": 4.2, "4": 1.0, "checkpoint": 0.5}}
    files[TIMES] = {
        "layernum[1,1]_bsz2_seq[64,16]": 13.0,
        "layernum[3,1]_bsz2_seq[64,16]": 19.0,
        "layernum[1,3]_bsz2_seq[64,16]": 25.0,
        "layertype_0_bsz2_seq64": 1.5,
        "layertype_1_bsz2_seq16": 3.0,
        "layertype_other_bsz2_seq[64,16]": 2.0,
    }
    files[SIZES] = {
        "1_1_4_sp": {"layernum[1,1]_bsz8_seq[64,16]_rank0_ms": 434.7},
        "layertype_0_sp": {"64": layer},
        "layertype_1_sp": {"16": wide},
        "other_memory_pp_off_sp": {"[64,16]": ends | {"activation": {"1": 1.0, "2": 9.0, "4": 0.5}}},
    }
    return files


SEVERAL: Json = {"layers": [2, 3], "hidden_size": [8, 16], "memory_bytes": GIB}


def test_several_types_of_layers_follow_each_other(tmp_path: pathlib.Path) -> None:
    """As T5's and Swin's files have them, noise and all."""
    paths = written(tmp_path, several())
    profile = import_profile(paths, **SEVERAL)
    names = ["layer-of-type-0"] * 2 + ["layer-of-type-1"] * 3
    assert [unit.sublayer for unit in profile.units] == ["embedding", *names, "head"]
    assert [profile.cost(names[i], 2, 4).forward_ns.value for i in (0, -1)] == [3_000_000, 6_000_000]
    assert [profile.shapes[names[i]].output_bytes for i in (0, -1)] == [64 * 8 * 2, 16 * 16 * 2]
    assert [profile.shapes[names[i]].shard(2).parameters * 2 * 4 for i in (0, -1)] == [16 * MIB, 64 * MIB]
    assert profile.provenance["layers"] == "2,3"
    assert solve(build(for_group(profile, 4, 8), GIB, 8), "exact").status == "optimal"
    derived_only = several()
    for key in ("layertype_0_bsz2_seq64", "layertype_1_bsz2_seq16", "layertype_other_bsz2_seq[64,16]"):
        del derived_only[TIMES][key]
    assert import_profile(written(tmp_path, derived_only), **SEVERAL).costs == profile.costs


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"layers": 5}, ("layers", (5, 2), (2, "24,24"))),
        ({"layers": [1, 2, 3]}, ("layers", ("1,2,3", 2), (2, "24,24"))),
        ({"layers": [1, 0]}, ("layers", "[1, 0]", (1, 10000))),
        ({"layers": []}, ("layers", "[]", (1, 10000))),
        ({"sequence": 64}, ("sequence", "64,64", "[64,16]")),
        ({"hidden_size": None}, ("", "size", "--hidden-size")),
    ],
)
def test_options_of_several_types(options: Json, problem: tuple[Any, ...], tmp_path: pathlib.Path) -> None:
    with refused(*problem):
        import_profile(written(tmp_path, several()), **{**SEVERAL, **options})


def test_a_batch_whose_layer_takes_no_time_is_left_out(tmp_path: pathlib.Path) -> None:
    files = small()["galvatron"]
    files[TIMES] |= {"layernum[1]_bsz4_seq64": 14.0, "layernum[2]_bsz4_seq64": 13.5}
    profile = import_profile(written(tmp_path, files), **OPTIONS["galvatron"])
    assert {entry.rows for entry in profile.costs if entry.tp == 1} == {2}
    assert profile.provenance["left_out"] == "layertype_0_bsz4_seq64"
    for key in list(files[TIMES]):
        if "bsz2" in key:
            del files[TIMES][key]
    with refused("layertype_0_bsz4_seq64", "time"):
        import_profile(written(tmp_path, files), **OPTIONS["galvatron"])


def test_links_and_memory_may_come_from_a_cluster(tmp_path: pathlib.Path) -> None:
    files = small()["galvatron"]
    del files["allreduce_bandwidth_1nodes_4gpus_per_node"]
    paths, cluster = written(tmp_path, files), load_cluster("rtx-titan-8")
    options: Json = {"layers": 2, "hidden_size": 8}
    with refused(""):
        import_profile(paths, memory_bytes=GIB, **options)
    profile = import_profile(paths, cluster=cluster, **options)
    assert (profile.network, profile.memory_bytes) == (cluster.network, cluster.memory_bytes)
    assert profile.kinds == (cluster.used_kinds[0].name,)


def put(*steps: Any) -> Callable[[Any], None]:
    """Set the value at the place that the other steps lead to; a list's last item by -1."""
    *way, name, value = steps

    def change(found: Any) -> None:
        for step in way:
            found = found[step]
        found[name] = value

    return change


def drop(*way: Any) -> Callable[[Any], None]:
    def change(found: Any) -> None:
        for step in way[:-1]:
            found = found[step]
        del found[way[-1]]

    return change


TIMES, SIZES, LINKS = (
    "computation_profiling_bf16_tiny",
    "memory_profiling_bf16_tiny",
    "allreduce_bandwidth_1nodes_4gpus_per_node",
)
LAYER, ACTIVATION = "layertype_0_bsz2_seq64", "tp_activation_per_bsz_dict"
WAY = ("graph", "nodes", 1, "TMPCs", "1", 0)
NAN = float("nan")
BAD: dict[str, list[Callable[[Any], None]]] = {
    "galvatron": [
        put(TIMES, "layertype_0_bsz4_seq64", 2.0),
        drop(SIZES),
        drop(LINKS),
        put(TIMES, LAYER, -2.0),
        put(TIMES, LAYER, NAN),
        put(TIMES, LAYER, "2.0"),
        put(TIMES, LAYER, True),
        put(TIMES, LAYER, [2.0]),
        put(TIMES, LAYER, 2.5),
        put(TIMES, LAYER, 10**400),
        put(TIMES, "layertype_0_bsz99999999999_seq64", 1.0),
        put(TIMES, "layertype_1_bsz2_seq64", 1.0),
        put(TIMES, "comment", "mine"),
        put(TIMES, '{"layertype_0": 2.0, '),
        put(TIMES, "[]"),
        put(TIMES, {}),
        put(SIZES, "layertype_0_sp", "64", None),
        put(SIZES, "layertype_0_sp", {}),
        put(SIZES, "layertype_0_sp", "64", ACTIVATION, []),
        drop(SIZES, "layertype_0_sp", "64", "parameter_size"),
        drop(SIZES, "layertype_0_sp", "64", ACTIVATION, "checkpoint"),
        drop(SIZES, "layertype_0_sp", "64", ACTIVATION, "1"),
        put(SIZES, "layertype_0_sp", "64", ACTIVATION, "2", 80.0),
        put(SIZES, "layertype_0_sp", "64", ACTIVATION, "two", 4.0),
        put(SIZES, "layertype_0_sp", "64", ACTIVATION, "checkpoint", 80.0),
        put(SIZES, "layertype_0_sp", "64", "parameter_size", 1e30),
        put(SIZES, "other_memory_pp_off_sp", "64", "model_states", "1", -1.0),
        drop(SIZES, "other_memory_pp_off_sp", "64", "activation"),
        put(LINKS, "allreduce_size_4_consec_1", 0),
        put(LINKS, "allreduce_size_4_consec_1", float("inf")),
        put(LINKS, "allreduce_size_3_consec_1", 90.0),
        put(LINKS, "allreduce_size_8_consec_1", 90.0),
        drop(LINKS, "allreduce_size_4_consec_1"),
        put("overlap_coefficient", "overlap_coe", 0.5),
        put("p2p_bandwidth", {"pp_size_8": 10.0}),
        put("sp_time", {"allreduce_size_4_1MB_time": 0.1}),
        put("again", {"overlap_coe": 1.3}),
    ],
    "piper": [
        drop("graph", "bandwidth"),
        drop("graph", "nodes"),
        drop("graph", "edges", 1),
        drop("graph", "edges", 0, "communicationCost"),
        drop(*WAY, "timePerSample"),
        put(*WAY, "timePerSample", -1.0),
        put(*WAY, "timePerSample", NAN),
        put(*WAY, "timePerSample", "0.03"),
        put(*WAY, "timePerSample", 1e9),
        put(*WAY, "timePerSample", 0.05),
        put(*WAY, "memoryUsageA", 10.0),
        put(*WAY, "id", "other"),
        put(*WAY, "syncTimeFw", []),
        put("graph", "nodes", []),
        put("graph", "nodes", 1, "TMPCs", {}),
        put("graph", "nodes", 1, "TMPCs", "1", []),
        put("graph", "nodes", 1, "TMPCs", {"one": []}),
        put("graph", "nodes", 1, "id", 0),
        put("graph", "edges", 0, "destId", 9),
        put("graph", "edges", 2, "destId", 0),
        put("graph", "edges", 2, "destId", 2),
        put("graph", "maxDevices", 10**12),
        put("graph", "maxMemoryPerDevice", 0),
        put("graph", "bandwidth", True),
        put("graph", '{"nodes": [{"id"'),
        put("graph", {"format": "other"}),
    ],
    "h3t": [
        drop("layers", "layer_runtime"),
        drop("layers", "layer_memory"),
        drop("layers", "nvlink_available"),
        drop("layers", "layer_memory", -1),
        drop("layers", "layer_runtime", 0, "backward"),
        put("layers", "layer_runtime", []),
        put("layers", "layer_runtime", 0, "backward", -1.0),
        put("layers", "layer_runtime", 0, "backward", NAN),
        put("layers", "layer_runtime", 0, "backward", "0.1"),
        put("layers", "layer_runtime", 0, "backward", None),
        put("layers", "layer_runtime", 0, "gather_parameter", 0),
        put("layers", "layer_runtime", 0, "gather_parameter", 1e12),
        put("layers", "layer_memory", 0, "input_tensor", 1.5),
        put("layers", "layer_memory", 0, "input_tensor", 10**17),
        put("layers", "layer_memory", 0, "gathered_parameter", 8001),
        put("layers", "layer_memory", 1, "gathered_gradient", 4000),
        put("layers", "layer_memory", 0, "partitioned_parameter", 16000),
        put("layers", "layer_memory", 0, "forward_no_grad_peak", 10),
        put("layers", "layer_memory", 0, "forward_with_grad_delta", 10),
        put("layers", "nvlink_available", "yes"),
        put("layers", '{"layer_runtime": [{"backward": 0.'),
        put("layers", "[1, 2]"),
    ],
}


@pytest.mark.parametrize(("format", "index"), [(format, i) for format, changes in BAD.items() for i in range(len(changes))])
def test_corrupted_files_get_one_line(format: str, index: int, tmp_path: pathlib.Path) -> None:
    files: Any = copy.deepcopy(json.loads(json.dumps(small()[format])))
    BAD[format][index](files)
    with pytest.raises(InputError) as caught:
        import_profile(written(tmp_path, files), **OPTIONS[format])
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600
    assert caught.value.where.startswith(str(tmp_path)) and caught.value.problem and caught.value.fix


def test_options_are_checked(tmp_path: pathlib.Path) -> None:
    galvatron, graph = written(tmp_path, small()["galvatron"]), written(tmp_path, small()["piper"])
    cases: list[tuple[Any, Json, str]] = [
        (galvatron, {}, ("", "layers", "--layers")),
        (galvatron, {"layers": 2}, ("", "hidden size", "--hidden-size")),
        (galvatron, {"layers": 2, "hidden_size": 8}, ("", "memory", "--memory")),
        (galvatron, {**OPTIONS["galvatron"], "sequence": 32}, ("sequence", 32, 64)),
        (galvatron, {**OPTIONS["galvatron"], "layers": 2.0}, ("layers", 2.0, (1, 10000))),
        (galvatron, {**OPTIONS["galvatron"], "layers": 10**6}, ("layers", 1000000, (1, 10000))),
        (galvatron, {**OPTIONS["galvatron"], "cluster": load_cluster("rtx-titan-8")}, ("", ("4 devices", "rtx-titan-8", 8))),
        (graph, {"layers": 2}, ("layers", (2, "piper"))),
        (graph, {"format": "h3t"}, ("", ("piper", "h3t"))),
        (graph, {"format": "other"}, ("format", "other", ("galvatron", "piper", "h3t", "table"))),
        ([*graph, *galvatron], {}, ("", ("galvatron", "piper"))),
        ([], {}, ("files",)),
    ]
    for paths, options, problem in cases:
        with refused(*problem):
            import_profile(paths, **options)


# Plain tables of times.

HEADED = """layer,tp1,TP=2,parameters,output_bytes,kept_bytes
embedding,0.003,0.0015,1e6,2048,100
2,0.03,0.018,12e6,2048,2e6
3,0.03,0.018,12e6,2048,2e6
"""


def table(folder: pathlib.Path, content: str | list[Any], **options: Any) -> Profile:
    if isinstance(content, str):
        path = folder / "times.csv"
        path.write_text(content)
    else:
        path = folder / "times.npy"
        np.save(path, np.array(content))
    return import_profile(path, **{"cluster": load_cluster("rtx-titan-8"), "communication": "included", **options})


def test_a_headed_table_has_times_and_sizes(tmp_path: pathlib.Path) -> None:
    profile = table(tmp_path, HEADED, rows=2)
    assert [(unit.name, unit.sublayer) for unit in profile.units] == [
        ("embedding", "embedding"),
        ("layer-2", "layer-2"),
        ("layer-3", "layer-2"),
    ]
    entry = profile.cost("layer-2", 2, 2)
    assert (entry.forward_ns.value, entry.backward_ns.value, entry.kept_bytes.value) == (6_000_000, 12_000_000, 2_000_000)
    shape = profile.shapes["layer-2"]
    assert (shape.shard(2).parameters, shape.output_bytes, shape.reductions) == (6_000_000, 2048, 0)
    assert "sizes" not in profile.provenance
    assert table(tmp_path, HEADED, communication="excluded").shapes["layer-2"].reductions == 2
    profile = table(tmp_path, HEADED)
    assert solve(build(for_group(profile, 8, 16), GIB, 16), "exact").status == "optimal"


def test_tables_of_all_shapes_say_the_same(tmp_path: pathlib.Path) -> None:
    times = [[0.003, 0.0015], [0.03, 0.018], [0.03, 0.018]]
    by_time = "layer,tp,seconds\n" + "".join(f"{i},{1 << j},{s}\n" for i, row in enumerate(times, 1) for j, s in enumerate(row))
    profiles = [table(tmp_path, text) for text in (times, by_time, "\n".join(",".join(map(str, row)) for row in times))]
    assert profiles[0].costs == profiles[1].costs == profiles[2].costs
    assert profiles[0].provenance["sizes"] == "parameters, output_bytes, kept_bytes: not known, counted as nothing"
    assert table(tmp_path, times, tp=[2, 8]).tp_degrees(8) == (2, 8)
    assert table(tmp_path, [0.1, 0.2], communication=None).tp_degrees(8) == (1,)
    assert table(tmp_path, times, sequence=64, hidden_size=8).shapes["layer-1"].output_bytes == 64 * 8 * 2


@pytest.mark.parametrize(
    ("content", "options", "problem"),
    [
        ([[0.1, 0.2]], {"communication": None}, ("", "tensor parallelism", "--communication")),
        ([[0.1, 0.2]], {"communication": "yes"}, ("communication", "yes", ("included", "excluded"))),
        (
            [[0.1, 0.2]],
            {"communication": "excluded"},
            ("", "tensor parallelism", ("--sequence", "--hidden-size", "output_bytes")),
        ),
        ([[0.1, 0.2]], {"cluster": None}, ("", "links", "--cluster")),
        ([[0.1, 0.2]], {"tp": [1]}, ("tp", "[1]", 2)),
        ([[0.1, 0.2]], {"tp": [0, 1]}, ("tp", "[0, 1]", (1, 1048576))),
        ([[0.1, 0.2]], {"layers": 1}, ("layers", (1, "table"))),
        ([[0.1, 0.2]], {"sequence": [64, 64], "hidden_size": 8}, ("sequence", ("64,64", 1), (1, 1024))),
        (HEADED, {"tp": [1, 2]}, ("tp", "[1, 2]", "times.csv")),
        ([], {}, ("", "layers", "seconds")),
        ([[[0.1]]], {}, ("", ("float64", "(1, 1, 1)"))),
        ([[0.1, -0.2]], {}, ("layer 1 tp2", -0.2, "1e-09")),
        ([[0.1, float("nan")]], {}, ("layer 1 tp2", "NaN", "number")),
        ([["a", "b"]], {}, ("", ("<U1", "(1, 2)"))),
        ([{"a": 1}], {}, ("", "array", "numpy.save")),
        ("", {}, ("", "layers", "seconds")),
        ("layer,tp1\na,0.1\na,0.2\n", {}, ("layer a", "twice")),
        ("layer,tp1\na,0.1,0.2\n", {}, ("row 2", 3, 2)),
        ("layer,tp1\na,fast\n", {}, ("layer a tp1", "fast", "number")),
        ("layer,time\na,0.1\n", {}, ("columns", "layer, time", ("layer,tp1,tp2", "layer,tp,seconds"))),
        ("tp1,tp1,layer\n1,0.1,a\n", {}, ("columns", "tp1, tp1, layer", ("layer,tp1,tp2", "layer,tp,seconds"))),
        ("layer,tp,seconds\na,1,0.1\nb,2,0.1\n", {}, ("layer b", ("[2]", "[1]"))),
        ("layer,tp,seconds\na,0.5,0.1\n", {}, ("layer a tp", 0.5, 1)),
        ("layer,seconds\na,0.1\n", {}, ("columns", "layer, seconds", ("layer,tp1,tp2", "layer,tp,seconds"))),
        ("layer\na\n", {}, ("columns", "layer", ("layer,tp1,tp2", "layer,tp,seconds"))),
        ("\0\x01,2\n1,2\n", {}, (None,)),
    ],
)
def test_tables_that_are_none_get_one_line(
    content: str | list[Any], options: Json, problem: tuple[Any, ...], tmp_path: pathlib.Path
) -> None:
    with refused(*problem) as caught:
        table(tmp_path, content, **options)
    assert "\n" not in str(caught.value)


def test_a_cut_array_gets_one_line(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "cut.npy"
    np.save(path, np.ones((4, 2)))
    for content in (path.read_bytes()[:150], b""):
        path.write_bytes(content)
        with refused(""):
            import_profile(path, cluster=load_cluster("rtx-titan-8"))
    with refused(""):
        import_profile(tmp_path / "absent.csv")
