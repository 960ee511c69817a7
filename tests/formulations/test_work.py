"""The one model of what units cost: pieces, their sums by cost model, and the numbers that other problems take from it."""

from __future__ import annotations

import pytest
from trainplan.formulations.cluster_strategy import costs as cluster_costs
from trainplan.formulations.costs.sequential.communication import moved_bytes, slice_gather_ns, tied_ns
from trainplan.formulations.costs.sequential.cost_models import COST_MODELS, times_of, transition_ns, unit_costs
from trainplan.formulations.costs.sequential.primitives import collective, device_step, host_copy, host_step
from trainplan.formulations.costs.sequential.sublayer_time import reductions, unit_work
from trainplan.formulations.memory_switches import costs as switch_costs
from trainplan.formulations.plan.strategy import Strategy, decision_tree, gather_groups, parse_strategy
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.clusters.network import Island, Network
from trainplan.profiling.costs import collective_ns, overlapped_ns
from trainplan.profiling.estimate import estimate_shapes
from trainplan.profiling.models.model import load_model

from tests.helpers.refusals import refused
from tests.helpers.small_models import estimate

CLUSTER = load_cluster("cpu-4")
PROFILE = estimate(load_model("gpt2", 128, "float32"), CLUSTER, 4, 8)
SHARED = ("sdp4-zero1", "sdp4-zero2", "dp2-sdp2-zero1", "sdp2-tp2-zero1-ckpt", "tp2-sdp2-zero2")
TREE = [*decision_tree(4, takeaway3=False), *map(parse_strategy, SHARED)]
KINDS = ("embedding", "attention", "ffn", "head")


@pytest.mark.parametrize("sublayer", KINDS)
@pytest.mark.parametrize("strategy", TREE, ids=str)
def test_the_executed_model_is_the_sum_of_its_pieces(sublayer: str, strategy: Strategy) -> None:
    work, costs = unit_work(PROFILE, sublayer, strategy, 8), unit_costs(PROFILE, COST_MODELS["executed"], sublayer, strategy, 8)
    pieces = [getattr(work, name) for name in work.__dataclass_fields__]
    assert all(isinstance(piece, int) for piece in pieces)
    assert costs.time_ns == sum(pieces) + work.gather_ns, "parameters of ZeRO stage 3 are gathered for both passes"
    assert bool(work.gather_ns) == (strategy.zero_stage == 3) and bool(work.update_ns) == (strategy.zero_stage in (1, 2))
    assert bool(work.scatter_ns) == (strategy.zero_stage > 0)
    times = times_of(PROFILE, sublayer, strategy, 8)
    assert costs.forward_ns == times.forward_ns == work.forward_ns + work.partial_ns + work.gather_ns
    assert costs.sync_ns == times.sync_ns + times.tied_ns == times.sync_ns + work.tied_ns
    assert costs.time_ns == times.forward_ns + times.backward_ns + costs.sync_ns


@pytest.mark.parametrize("sublayer", KINDS)
@pytest.mark.parametrize("strategy", TREE, ids=str)
def test_the_paper_model_overlaps_the_same_pieces(sublayer: str, strategy: Strategy) -> None:
    """Galvatron-BMW, Section V: gradient communication overlapping the backward computation, each 1.3 times slower."""
    work, costs = unit_work(PROFILE, sublayer, strategy, 8), unit_costs(PROFILE, COST_MODELS["paper"], sublayer, strategy, 8)
    communication_ns = work.gather_ns + work.scatter_ns + work.reduce_ns
    again = work.partial_ns if strategy.ckpt else 0
    backward = overlapped_ns(work.recompute_ns + work.backward_ns, communication_ns, 1.3) + work.partial_back_ns + again
    assert costs.time_ns == pytest.approx(costs.forward_ns + backward + work.update_ns)
    assert work.update_ns <= costs.sync_ns + 1 <= work.scatter_ns + work.reduce_ns + work.update_ns + 2


def test_pieces_are_what_the_profile_says_each_rounded_once() -> None:
    strategy, network = parse_strategy("dp2-tp2-ckpt"), PROFILE.network
    entry, shape = PROFILE.cost("ffn", 2, 4), PROFILE.shapes["ffn"]
    work = unit_work(PROFILE, "ffn", strategy, 8)
    assert work.compute_ns == entry.forward_without_graph_ns.value + entry.forward_ns.value + entry.backward_ns.value
    message = 4 * shape.output_bytes
    assert work.partial_ns == work.partial_back_ns == round(collective_ns(network, "all-reduce", message, (0, 1)))
    gradient = shape.shard(2).parameters * 4
    assert work.reduce_ns == round(collective_ns(network, "all-reduce", gradient, (0, 2)))
    assert (work.gather_ns, work.scatter_ns) == (0, 0)
    assert work.optimizer_ns == device_step(PROFILE, shape.shard(2).parameters)
    sharded = unit_work(PROFILE, "ffn", parse_strategy("sdp4"), 8)
    whole = -(-shape.shard(1).parameters // 4) * 4 * 4
    assert sharded.gather_ns == sharded.scatter_ns == round(collective_ns(network, "all-gather", whole, range(4)))
    assert sharded.partial_ns == sharded.reduce_ns == sharded.replicated_ns == 0


def test_a_head_reduces_nothing_forward_and_an_embedding_nothing_back() -> None:
    assert [reductions(PROFILE.shapes[kind]) for kind in KINDS] == [(1, 0), (1, 1), (1, 1), (0, 1)]


def test_a_device_computes_at_the_pace_of_its_kind() -> None:
    slow = [entry.changed(device="slow", forward_ns=entry.backward_ns) for entry in PROFILE.costs]
    mixed = PROFILE.changed(costs=[*PROFILE.costs, *slow])
    single = Strategy()
    both = [unit_work(mixed, "ffn", single, 2, kind).forward_ns for kind in (PROFILE.kinds[0], "slow")]
    assert both == [unit_work(PROFILE, "ffn", single, 2).forward_ns, unit_work(PROFILE, "ffn", single, 2).backward_ns]
    assert unit_work(mixed, "ffn", single, 2).forward_ns == max(both)


def test_a_tied_table_is_reduced_over_the_first_and_the_last_stage() -> None:
    table = PROFILE.tied_parameters * PROFILE.parameter_bytes
    assert table > 0
    assert tied_ns(PROFILE, 4) == collective(PROFILE, "all-reduce", table, range(4))
    assert tied_ns(PROFILE, 1, 4) == collective(PROFILE, "all-reduce", table, (0, 3))
    assert tied_ns(PROFILE, 2, 2) == collective(PROFILE, "all-reduce", table, range(4))
    assert tied_ns(PROFILE, 1) == tied_ns(PROFILE.changed(tied_parameters=0), 4) == 0


def test_a_re_layout_costs_its_slowest_group() -> None:
    before, after = parse_strategy("dp4"), parse_strategy("tp2-dp2")
    size = moved_bytes(PROFILE, "ffn")[1]
    groups = list(gather_groups(before, after))
    islands = [Island(devices=2, first=0, bandwidth_bytes_per_s=1e10), Island(devices=4, bandwidth_bytes_per_s=1e7)]
    uneven = PROFILE.changed(network=Network(islands=islands))
    messages = [collective_ns(uneven.network, "all-gather", 8 // 4 * size * len(group), group) for group in groups]
    assert slice_gather_ns(uneven, before, after, 8, size) == max(messages)
    assert slice_gather_ns(uneven, after, after, 8, size) == 0
    there, back = slice_gather_ns(PROFILE, before, after, 8, size), slice_gather_ns(PROFILE, after, before, 8, size)
    executed, paper = COST_MODELS["executed"], COST_MODELS["paper"]
    assert transition_ns(PROFILE, executed, before, after, 8, size) == round(there) + round(back) > 0
    assert transition_ns(PROFILE, paper, before, after, 8, size) == round(there + back)


def test_the_other_problems_take_their_times_from_these_pieces() -> None:
    instance = switch_costs.build(PROFILE, 8, 2**40)
    layer, work = instance.to_dict()["layers"][2], unit_work(PROFILE, "ffn", parse_strategy("sdp4-ckpt"), 8)
    assert layer["forward_without_graph_ns"] == work.forward_ns and layer["forward_ns"] == work.recompute_ns
    assert layer["backward_ns"] == work.backward_ns
    assert (layer["all_gather_ns"], layer["reduce_scatter_ns"]) == (work.gather_ns, work.scatter_ns)
    assert layer["optimizer_ns"] == host_step(PROFILE, layer["partitioned_parameter_bytes"] // PROFILE.parameter_bytes)
    assert layer["offload_gradient_ns"] == host_copy(PROFILE, "to_host", layer["partitioned_gradient_bytes"])
    model = load_model("gpt2", 128, "float32")
    profile = estimate_shapes(model, CLUSTER, cluster_costs.shapes_of_strategies((1, 2, 4), 4, 4))
    recomputed = cluster_costs.build(profile, CLUSTER, 4, recompute=True, by_unit=True)
    ckpt = Strategy((("tp", 2),), True)
    assert recomputed.tables[2, 2].layer_ns[0][2] == unit_work(profile, "ffn", ckpt, 2).compute_ns


def test_a_profile_without_its_host_says_so() -> None:
    with refused("host", fix="`host`"):
        host_copy(PROFILE.changed(host=None), "to_host", 1)
