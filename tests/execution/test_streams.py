"""The cost model `streams`: its step without programs is that of the time simulation over programs, and its parts are right."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from trainplan.execution.analysis.timing.overlapped_costs import StreamsCosts
from trainplan.execution.analysis.timing.simulate import time_walk
from trainplan.execution.compile.compiler import compile_plan
from trainplan.execution.instructions import Op
from trainplan.execution.prediction.compiled_plan import programs_of
from trainplan.execution.prediction.evaluate_plan import predict_from_saved_costs
from trainplan.execution.prediction.overlap import layout_of as layout_of_plan
from trainplan.execution.prediction.overlap import predict_overlapped
from trainplan.execution.program import Instruction, Program
from trainplan.formulations.costs.overlapped.analytic_fsdp import Block, sharded_ns
from trainplan.formulations.costs.overlapped.analytic_memory import run_memory
from trainplan.formulations.costs.overlapped.analytic_pipeline import pipeline_ns
from trainplan.formulations.costs.overlapped.analytic_step import chunks_of, streams_step
from trainplan.formulations.costs.overlapped.instruction_costs import InstructionCosts, SublayerTimes
from trainplan.formulations.costs.overlapped.layout import Framework, RecomputePolicy, RunLayout
from trainplan.formulations.costs.overlapped.links import Links
from trainplan.formulations.costs.overlapped.sublayer_time import _on_share, unit_times
from trainplan.formulations.costs.overlapped.unit_memory import exchanged_bytes
from trainplan.formulations.plan.plan import Plan, load_plan
from trainplan.profiling.clusters.cluster import DeviceKind, load_cluster
from trainplan.profiling.clusters.efficiencies import shipped_efficiencies
from trainplan.profiling.clusters.recipes import RECIPES
from trainplan.profiling.clusters.sheets import sheet
from trainplan.profiling.models.model import Model, load_model

from tests.helpers.refusals import refused
from trainplan.prediction.simulate import simulate

KIND: DeviceKind = load_cluster("h100:8").kinds[0]
LINKS = Links(8, 360e9, 50e9)
MODEL: Model = load_model("llama2-7b", 2048, "bfloat16").with_fields(num_hidden_layers=8, vocab_size=32768)


def layout_of(**fields: Any) -> RunLayout:
    about: dict[str, Any] = {"dp": 1, "tp": 1, "pp": 1, "cp": 1, "chunks": 1, "zero": 0, "shard": 1, "sequence_parallel": False}
    about |= {"recompute": RecomputePolicy(), "base": "bfloat16", "precision": "bfloat16", "micro": 2, "batch": 16}
    return RunLayout(**{**about, "framework": Framework("plain", ends_ns=0), **fields})


def plan_of(layout: RunLayout) -> Plan:
    """The plan of the layout, of pipelines of tensor-parallel ranks."""
    words = [f"tp{layout.tp}" if layout.tp > 1 else "single"]
    words += ["sp"] * layout.sequence_parallel
    again = {
        unit.name
        for chunk in chunks_of(MODEL, layout)
        for unit in chunk.units
        if unit.kind not in ("embedding", "head") and layout.recompute.share(unit.layer - chunk.first_layer)
    }
    strategies = ["-".join([*words, *["ckpt"] * (unit.name in again)]) for unit in MODEL.units]
    ends = [len(chunk.units) for chunk in chunks_of(MODEL, layout)]
    cuts = [sum(ends[:index]) for index in range(len(ends) + 1)]
    ranks = [list(range(index * layout.tp, (index + 1) * layout.tp)) for index in range(layout.pp)]
    stages = [
        {"ranks": ranks[index % layout.pp], "first_unit": first, "last_unit": after - 1}
        for index, (first, after) in enumerate(pairwise(cuts))
    ]
    return load_plan(
        {
            "model": MODEL.shape(),
            "model_digest": MODEL.digest,
            "world": layout.tp * layout.pp,
            "memory_bytes": 2**50,
            "batch": {"global_samples": layout.batch, "micro_batches": layout.micro_batches},
            "schedule": "interleaved-1f1b" if layout.chunks > 1 else "1f1b",
            "stages": stages,
            "units": [{"name": u.name, "strategy": s} for u, s in zip(MODEL.units, strategies, strict=True)],
        }
    )


@pytest.mark.parametrize("recompute", [RecomputePolicy(), RecomputePolicy(layers=1.0), RecomputePolicy(first=1)])
@pytest.mark.parametrize(("tp", "shared"), [(1, False), (2, False), (4, False), (2, True), (4, True)])
@pytest.mark.parametrize("pp", [1, 2, 4])
def test_the_step_is_that_of_the_simulation(tp: int, shared: bool, pp: int, recompute: RecomputePolicy) -> None:
    """The cases are pipelines of tensor-parallel ranks, plain, with shared tokens, and with all layers or the first ones
    recomputed."""
    layout = layout_of(tp=tp, pp=pp, sequence_parallel=shared, recompute=recompute)
    step = streams_step(MODEL, layout, KIND, LINKS)
    assert simulated_ns(layout) == pytest.approx(step.passes_ns * step.jitter, rel=1e-6)


@pytest.mark.parametrize("layers", [(1, 7), (3, 2, 2, 1), (0, 4, 4, 0)])
def test_stages_of_named_sizes_have_the_step_of_the_simulation(layers: tuple[int, ...]) -> None:
    layout = layout_of(pp=len(layers), stage_layers=layers)
    assert [chunk.layers for chunk in chunks_of(MODEL, layout)] == list(layers)
    step = streams_step(MODEL, layout, KIND, LINKS)
    assert simulated_ns(layout) == pytest.approx(step.passes_ns * step.jitter, rel=1e-6)


@pytest.mark.parametrize(
    ("pp", "chunks", "micro_batches", "first"),
    [(2, 2, 2, 0), (2, 2, 8, 0), (2, 4, 6, 0), (4, 2, 8, 0), (2, 2, 2, 1), (2, 2, 8, 1)],
)
def test_interleaved_steps_are_those_of_the_simulation(pp: int, chunks: int, micro_batches: int, first: int) -> None:
    """On lanes, whose messages take no time: with it, they wait for each other in an order that programs alone have. first: of
    the two layers of each stage that number is recomputed; of the last one, programs begin that before its gradient is
    there."""
    layout = layout_of(pp=pp, chunks=chunks, batch=2 * micro_batches, recompute=RecomputePolicy(first=first))
    expected = max(pipeline_ns(*passes_of(layout), 0, micro_batches, chunks))
    assert simulated_ns(layout, "streams", messages=False) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("slower", [1, 10])
@pytest.mark.parametrize("batch", [16, 64])
@pytest.mark.parametrize(("word", "zero"), [("sdp8", 3), ("sdp8-zero1", 1), ("dp8", 0)])
def test_overlap_is_that_of_the_lanes(word: str, zero: Any, batch: int, slower: int) -> None:
    """Gathering ahead, and gradients reduced after the backward pass, by blocks in place of programs' units: within 5 % of the
    simulation of their programs on lanes, with quick links and with slow ones. Updated parameters are gathered ahead of the
    next step, where programs gather them at the end: they are left out."""
    overlaps = Framework("both", ends_ns=0, overlaps_gradients=True, overlaps_parameters=True, gradient_bytes=2)
    layout = layout_of(dp=8, zero=zero, shard=8 if zero else 1, batch=batch, framework=overlaps)
    links = Links(8, 360e9 / slower, 50e9 / slower)
    costs, step = StreamsCosts(MODEL, layout, KIND, links), streams_step(MODEL, layout, KIND, links)
    about = {"world": 8, "batch": {"global_samples": batch, "micro_batches": layout.micro_batches}}
    about |= {"stages": [{"ranks": list(range(8)), "first_unit": 0, "last_unit": len(MODEL.units) - 1}]}
    units = [{"name": unit.name, "strategy": word} for unit in MODEL.units]
    model = {"model": MODEL.shape(), "model_digest": MODEL.digest, "memory_bytes": 2**50}
    left_out = (Op.OPTIMIZER_STEP, Op.GATHER_UPDATED)
    walk = time_walk(
        programs_of(load_plan({**model, **about, "units": units}), "streams"),
        lambda program, instruction: 0 if instruction.op in left_out else costs(program, instruction),
        "streams",
    )
    assert walk.step_ns == pytest.approx(step.passes_ns + step.reduce_ns, rel=0.05)
    assert walk.step_ns > step.computing_ns


def simulated_ns(layout: RunLayout, backend: Any = "serial", messages: bool = True) -> int:
    """The step of the layout's programs, without the optimizer."""
    costs = StreamsCosts(MODEL, layout, KIND, LINKS)

    def durations(program: Program, instruction: Instruction) -> int:
        left_out = instruction.op is Op.OPTIMIZER_STEP or (instruction.op.spec.kind == "message" and not messages)
        return 0 if left_out else costs(program, instruction)

    return time_walk(compile_plan(plan_of(layout)), durations, backend).step_ns


def passes_of(layout: RunLayout) -> tuple[list[int], list[int]]:
    """Forward and backward pass of each stage, as the step has them: one stage alone takes both."""
    costs = StreamsCosts(MODEL, layout, KIND, LINKS)
    forward, backward = [], []
    for chunk in chunks_of(MODEL, layout):
        times = [(unit, costs._prices.times(MODEL.key_of(unit))) for unit in chunk.units]
        forward.append(round(sum(time.forward_with_collectives_ns for _, time in times)))
        inner = [(unit.layer - chunk.first_layer, time) for unit, time in times if unit.kind not in ("embedding", "head")]
        again = sum(layout.recompute.share(index) * entry.forward_with_collectives_ns for index, entry in inner)
        backward.append(round(sum(time.backward_ns + time.backward_collectives_ns for _, time in times) + again))
    return forward, backward


def test_messages_next_to_passes_shorten_the_step_by_what_they_hide() -> None:
    """Where messages travel during passes they cost at the start and the end alone."""
    forward, backward, transfer, micro = [10] * 4, [20] * 4, 3, 8
    waiting, overlapped = (pipeline_ns(forward, backward, transfer, micro, 2, hidden) for hidden in (False, True))
    free = pipeline_ns(forward, backward, 0, micro, 2)
    assert max(free) < max(overlapped) < max(waiting)
    assert max(free) == micro * 60 + 30, "the bubble of the first and the last forward and backward pass: 1F1B's, halved"
    assert max(waiting) >= max(free) + micro * 2 * transfer


def test_sharded_blocks_hide_what_they_gather() -> None:
    """One lane computes, one gathers and reduces: the slower one counts, with the first gathering and the last reduction."""
    quick = [Block(10, 20, 3, 3)] * 5
    assert sharded_ns(quick, 1) == 3 + 5 * 30 + 3
    later = sharded_ns(quick, 4) - sharded_ns(quick, 3)
    assert 150 <= later <= 150 + 3 + 3, "a further micro-batch may wait for its first gathering, behind the last reduction"
    slow = [Block(1, 2, 50, 60)] * 5
    moved = 5 * 50 + 4 * 50 + 5 * 60  # the last block's parameters are there for its backward pass
    assert moved <= sharded_ns(slow, 1) <= moved + 5 * 3
    assert sharded_ns(quick, 2, gathers_again=False) < sharded_ns(quick, 2)


def test_copies_of_shards_are_summed_once_a_step() -> None:
    blocks = [Block(10, 20, 3, 3, copies_ns=100)] * 5
    assert sharded_ns(blocks, 3) > sharded_ns([replace(block, copies_ns=0) for block in blocks], 3) + 100


@pytest.mark.parametrize(
    ("change", "longer"),
    [
        ({"recompute": RecomputePolicy(layers=1.0)}, True),
        ({"recompute": RecomputePolicy(layers=0.5)}, True),
        ({"recompute": RecomputePolicy(first=3)}, True),
        ({"recompute": RecomputePolicy(attention=True)}, True),
        ({"recompute": RecomputePolicy(operations=True)}, True),
        ({"recompute": RecomputePolicy(norms=True, activation=True)}, True),
        *(({"recipe": recipe}, False) for recipe in RECIPES.values() if recipe.precision == "float8"),
        ({"batch": 32}, True),
        ({"tp": 2, "sequence_parallel": True}, False),
        ({"dp": 2, "shard": 2}, False),
        ({"cp": 2}, False),
        ({"cp": 2, "exchange": "heads"}, False),
        ({"framework": Framework("eager", ends_ns=0, memory_passes=2.0)}, True),
        ({"framework": Framework("slow", ends_ns=10**8)}, True),
    ],
)
def test_options_make_steps_longer_or_shorter(change: dict[str, Any], longer: bool) -> None:
    plain, changed = (streams_step(MODEL, layout, KIND, LINKS).step_ns for layout in (layout_of(), layout_of(**change)))
    assert (changed > plain) == longer and changed != plain


def test_overlap_hides_reductions_and_gathering() -> None:
    """Distributed optimizer on 64 ranks of 8 nodes; what is hidden leaves a bucket at the end."""
    apart = layout_of(dp=64, zero=1, shard=64, batch=512)
    together = replace(apart, framework=Framework("both", ends_ns=0, overlaps_gradients=True, overlaps_parameters=True))
    first, second = (streams_step(MODEL, layout, KIND, LINKS) for layout in (apart, together))
    assert first.reduce_ns > 8 * second.reduce_ns * 0.99 > 0 and first.gather_ns > second.gather_ns > 0
    assert first.passes_ns == second.passes_ns and first.optimizer_ns == second.optimizer_ns


def test_links_count_the_ports_of_a_node() -> None:
    assert LINKS.bytes_per_s(8, 1) == 360e9
    assert LINKS.bytes_per_s(64, 1) == 360e9, "eight ports carry more than NVLink feeds them"
    assert LINKS.bytes_per_s(8, 8) == 50e9 and LINKS.bytes_per_s(16, 4) == 100e9
    assert LINKS.collective_ns(2, 1e9, 8, 8) > LINKS.collective_ns(1, 1e9, 8, 8) > LINKS.collective_ns(1, 1e9, 8, 1) > 0
    assert LINKS.collective_ns(1, 1e9, 1, 1) == 0


@pytest.mark.parametrize(
    "links", [LINKS, Links(8, 360e9, 50e9, meshed=8), Links(4, 20e9, 10e9, bridged=2, bridge_bytes_per_s=50e9)]
)
def test_an_all_to_all_takes_what_its_slowest_rank_sends(links: Links) -> None:
    """Counted message by message: those of each rank within its node, and those through the network."""
    for stride in (1, 2, 4, 8, 16):
        for ranks in (2, 4, 6, 8, 16, 64):
            members = [index * stride for index in range(ranks)]
            times = []
            for rank in members:
                near = [other for other in members if other // links.node == rank // links.node and other != rank]
                far = ranks - 1 - len(near)
                speed = links.within_bytes_per_s / (links.meshed - 1) * len(near) if links.meshed else links.within_bytes_per_s
                if (ranks - 1) * stride < links.bridged:
                    speed = links.bridge_bytes_per_s
                within = len(near) * 1e8 / speed * 1e9 + links.within_ns if near else 0
                across = far * 1e8 / links.across_bytes_per_s * 1e9 + links.across_ns if far else 0
                times.append(max(within, across))
            took = links.all_to_all_ns(ranks * 1e8, ranks, stride)
            assert took - max(times) == pytest.approx(15_000), (stride, ranks)
    assert links.all_to_all_ns(1e9, 1, 1) == links.all_to_all_ns(0, 8, 1) == 0


def test_heads_are_exchanged_by_their_bytes() -> None:
    """The time that an exchange adds to a step on links of no latency, against bytes counted by head: of 32 heads of queries
    with 8, 32 and 2 of keys over 4 ranks, each of which has at least one. Twice as slow links take twice as long."""
    for keys, of_a_rank in ((8, 2), (32, 8), (2, 1)):
        model = MODEL.with_fields(num_key_value_heads=keys)
        part = next(unit.sublayer for unit in model.units if unit.kind == "attention")
        layout = layout_of(cp=4, exchange="heads", micro=1)
        times = [
            unit_times(part, layout, KIND, Links(8, rate, rate, within_ns=0)) for rate in (1e9, 2e9)
        ]  # so slow that kernels take nothing in comparison
        heads, numbers = 32 // 4, 2048 * 128 * 2  # bytes of a head of all tokens
        sent = (heads + 2 * of_a_rank + heads) * numbers * 3 / 4
        for slower, faster in ((times[0].forward_ns, times[1].forward_ns), (times[0].backward_ns, times[1].backward_ns)):
            assert slower - faster == pytest.approx(sent * (1 - 1 / 2), rel=1e-9)
        again = replace(layout, recompute=RecomputePolicy(attention=True))
        assert unit_times(part, again, KIND, Links(8, 1e9, 1e9)).recompute_ns > sent, (
            "a core that is computed again exchanges again"
        )


@pytest.mark.parametrize(("keys", "copies"), [(8, 0), (2, 2), (32, 0)])
def test_an_attention_keeps_its_heads_and_the_results_of_its_tokens(keys: int, copies: int) -> None:
    """Each of 4 ranks keeps, in addition to what ranks that exchange keys keep, results once more and the copies of keys and
    values; nothing where the core is computed again. An all-to-all holds what it sends twice for a while."""
    model = MODEL.with_fields(num_key_value_heads=keys)
    layouts = [layout_of(cp=4, exchange=exchange, micro=1, batch=1) for exchange in ("keys", "heads")]
    head = 2048 // 4 * 128 * 2  # bytes of one, of a rank's tokens
    (one,), (other,) = (run_memory(model, layout) for layout in layouts)
    assert other.activation_bytes - one.activation_bytes == 8 * head * (32 + 2 * copies)
    again = [replace(layout, recompute=RecomputePolicy(attention=True)) for layout in layouts]
    assert len({run_memory(model, layout)[0].activation_bytes for layout in again}) == 1
    unit = next(unit for unit in model.units if unit.kind == "attention")
    assert [exchanged_bytes(unit, layout) for layout in layouts] == [0, 2 * head * (32 + 2 * (keys + copies))]


def test_a_core_by_heads_is_a_whole_core_of_fewer_heads() -> None:
    """With links that take no time, an attention on a rank's heads takes a part of the whole attention's time."""
    part = next(unit.sublayer for unit in MODEL.units if unit.kind == "attention")
    whole, cores = layout_of(micro=1), part.core_operators(1, 1)  # type: ignore[union-attr]
    share = [_on_share(core, replace(whole, cp=4, exchange="heads")) for core in cores]
    assert [(entry.m, entry.n, entry.k, 4 * entry.count) for entry in share] == [(e.m, e.n, e.k, e.count) for e in cores]


def test_layers_are_cut_evenly_and_embedding_and_head_may_take_places() -> None:
    model = MODEL.with_fields(num_hidden_layers=6)
    assert [chunk.layers for chunk in chunks_of(model, layout_of(pp=4))] == [2, 2, 1, 1]
    assert [chunk.layers for chunk in chunks_of(model, layout_of(pp=4, reserved=True))] == [1, 2, 2, 1]
    for pp in (1, 2, 3, 6):
        units = [unit for chunk in chunks_of(model, layout_of(pp=pp)) for unit in chunk.units]
        assert units == list(model.units)


def uniform(word: str, **fields: Any) -> Plan:
    """A plan of eight devices with one strategy."""
    model = MODEL.with_fields(num_hidden_layers=2)
    about = {"world": 8, "batch": {"global_samples": 32, "micro_batches": 2}, "memory_bytes": 2**40}
    about |= {"stages": [{"ranks": list(range(8)), "first_unit": 0, "last_unit": len(model.units) - 1}]}
    units = [{"name": unit.name, "strategy": fields.get(unit.name, word)} for unit in model.units]
    return load_plan({"model": model.shape(), "model_digest": model.digest, **about, "units": units})


@pytest.mark.parametrize("word", ["sdp8", "dp8", "sdp4-tp2", "dp2-sdp2-tp2-zero1-sp", "sdp8-ckpt", "sdp8-ckpt:attention+norms"])
def test_plans_are_simulated_under_streams(word: str) -> None:
    """With the same layout as the step without programs has; recomputation takes longer."""
    plan, cluster = uniform(word), load_cluster("h100:8")
    judged = predict_overlapped(plan, cluster)
    simulation = simulate(plan, cluster=cluster, cost_model="streams")
    assert simulation.step_ns == judged.step_ns > 0 and simulation.performance is not None
    layout, plain = layout_of_plan(plan), word.partition("-ckpt")[0]
    assert (layout.devices, layout.micro_batches) == (8, 2)
    plainly = replace(layout.framework, ends_ns=0)
    alike = replace(layout, recompute=replace(layout.recompute, layers=float(word.endswith("-ckpt"))), framework=plainly)
    step = streams_step(plan.planned_model(), alike, cluster.used_kinds[0], Links.of_cluster(cluster))
    assert judged.step_ns == pytest.approx(step.step_ns, rel=0.1)
    if plain != word:
        assert judged.step_ns > predict_overlapped(uniform(plain), cluster).step_ns


@pytest.mark.parametrize(
    ("plan", "cluster", "refusal"),
    [
        (uniform("sdp4-cp2", head="dp8"), "h100:8", (re.compile(r"units\[5\].*"), "dp8", "context parallelism")),
        (uniform("tp2-dp4"), "h100:8", ("units[0].strategy", "tp2-dp4", "tp")),
        (uniform("sdp8"), "h100:4", ("cluster", 4, 8)),
        (uniform("sdp8"), "v100:8", ("Tesla V100-SXM2 16 GB.flops_per_s", "bfloat16", ("float32", "float64", "float16"))),
        (uniform("sdp8"), "amp-heterogeneous-16", ("kinds", 2, "--cost-model")),
    ],
)
def test_what_streams_does_not_take_is_refused_in_words(plan: Plan, cluster: str, refusal: tuple[Any, ...]) -> None:
    with refused(*refusal) as caught:
        simulate(plan, cluster=cluster, cost_model="streams")
    assert len(str(caught.value).splitlines()) == 1


def test_what_is_gathered_for_a_unit_takes_its_part_of_the_layer_by_what_runs_next_to() -> None:
    """The parts of a layer's units are its whole time, by the computations of the unit before each: as much is hidden as where
    whole layers are gathered one ahead."""
    prices = InstructionCosts(SublayerTimes(MODEL, KIND, LINKS), layout_of(dp=8, zero=3, shard=8))
    names = next(names for names in prices.sublayers.siblings.values() if len(names) == 2)
    sizes = {name: 2 * prices.sublayers.parameters(name, 1) for name in names}
    parts = {name: prices.in_layer_ns(name, sizes[name], 8, 1) for name in names}
    assert sum(parts.values()) == pytest.approx(prices.collective_ns(1, sum(sizes.values()), 8, 1), abs=2)
    first, second = names
    computed = {name: prices.times(name).forward_with_collectives_ns for name in names}
    assert computed[first] != computed[second]
    assert parts[second] / parts[first] == pytest.approx(computed[first] / computed[second], rel=1e-3)


@pytest.mark.parametrize("word", ["sdp4-tp2-zero1-sp", "sdp4-tp2-sp-ckpt", "sdp4-tp2", "dp4-tp2-sp-ckpt:attention+norms"])
def test_a_plan_carries_what_instructions_take(word: str) -> None:
    """Sums of a backward pass hide more than those of a forward pass: a plan's own table gives the same step."""
    judged = predict_overlapped(uniform(word), load_cluster("h100:8x1"))
    assert predict_from_saved_costs(judged.plan, judged.carried()).step_ns == judged.step_ns


def test_groups_of_a_mesh_use_the_links_among_their_members_alone() -> None:
    table = shipped_efficiencies()
    mesh, switched = (Links.of(sheet(name), table, 16) for name in ("mi300x", "h100"))
    rates = [mesh.bytes_per_s(ranks, 1) for ranks in (2, 4, 8)]
    assert [rates[2] / rate for rate in rates] == pytest.approx([7, 7 / 3, 1])
    assert switched.bytes_per_s(2, 1) == switched.bytes_per_s(8, 1)
    cluster = Links.of_cluster(load_cluster("mi300x:8x2"))
    assert [cluster.bytes_per_s(ranks, 1) for ranks in (2, 4, 8)] == pytest.approx(rates)
    assert mesh.message_ns(1e9, 1) > 6 * mesh.collective_ns(1, 1e9, 8, 1)


def test_a_bridge_joins_neighbours_alone() -> None:
    links = Links.of(sheet("h100-nvl"), shipped_efficiencies(), 8)
    assert links.bytes_per_s(2, 1) > 4 * links.bytes_per_s(4, 1) == 4 * links.bytes_per_s(2, 2)
    assert links.message_ns(1e9, 1) < links.message_ns(1e9, 2)
