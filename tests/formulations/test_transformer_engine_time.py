"""Times of sub-layers by Transformer Engine's kernels: joined products, casts by recipe and device, gathers in few bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from trainplan.formulations.costs.overlapped.analytic_step import streams_step
from trainplan.formulations.costs.overlapped.layout import Framework, RunLayout
from trainplan.formulations.costs.overlapped.links import Links
from trainplan.formulations.costs.overlapped.state_exchange import gathered_bytes
from trainplan.formulations.costs.overlapped.sublayer_time import splittable, unit_times
from trainplan.profiling.clusters.cluster import DeviceKind
from trainplan.profiling.clusters.efficiencies import shipped_efficiencies
from trainplan.profiling.clusters.recipes import RECIPES
from trainplan.profiling.estimate import operator_ns
from trainplan.profiling.models.sublayers import Operator, Sublayer

from tests.validation.test_words import laid

HIDDEN, INNER, TOKENS, KEYS = 4096, 14336, 8192, 1024  # of llama3-8b
ENGINE: dict[str, Any] = {"joins_products": True, "fuses_passes": True, "gathers_in_bits": True}
ROW: dict[str, Any] = {"model": "llama3-8b", "gpu": "H100-80GB-SXM", "gpus": 8, "gbs": 8, "tp": 8, "recompute": "none"}


def run_of(precision: str, gpu: str = "H100-80GB-SXM", **facts: Any) -> tuple[dict[str, Sublayer], RunLayout, DeviceKind]:
    """Sub-layers, layout and device of a llama3-8b on 8 tensor-parallel ranks, in a framework with facts of its kernels."""
    run = laid(**ROW | {"gpu": gpu}, precision=precision, framework="Megatron-Core")
    layout = replace(run.layout, framework=Framework("test", **facts))
    parts = {part.kind: splittable(part, 8) for part in run.model.sublayers.values()}
    return parts, layout, run.kind(shipped_efficiencies())


def slow_links() -> Links:
    """Links whose collectives take far longer than their latency."""
    return Links(8, 1e9, 1e9, within_ns=0)


@pytest.mark.parametrize("backward", [False, True])
def test_joined_products_have_the_sum_of_their_outputs(backward: bool) -> None:
    """On 8 ranks, keys and values are 256 columns wide, with queries 768; both up-projections of a network are 3584."""
    parts, apart, kind = run_of("bf16")
    joined = run_of("bf16", joins_products=True)[1]

    def product_ns(n: int, k: int) -> float:
        """One product of all tokens."""
        return operator_ns(Operator(m=TOKENS, n=n, k=k), kind, "bfloat16", 2, backward)

    saved = {
        "attention": product_ns(HIDDEN // 8, HIDDEN) + product_ns(2 * KEYS // 8, HIDDEN) - product_ns(768, HIDDEN),
        "ffn": 2 * product_ns(INNER // 8, HIDDEN) - product_ns(2 * INNER // 8, HIDDEN),
    }
    for name, expected_ns in saved.items():
        times = [unit_times(parts[name], layout, kind, slow_links()) for layout in (apart, joined)]
        before, after = (time.backward_ns if backward else time.forward_ns for time in times)
        assert expected_ns > 0 and before - after == pytest.approx(expected_ns)


def test_fused_passes_touch_what_they_read_and_write() -> None:
    """An RMS norm saves one reading and writing of the rank's tokens, a gate one of the inner numbers of all tokens."""
    parts, apart, kind = run_of("bf16")
    fused = run_of("bf16", fuses_passes=True)[1]
    reached = kind.reached("memory", "bfloat16")
    assert reached is not None
    rate = kind.memory_bytes_per_s * reached.value / 1e9
    for name, elements in (("attention", TOKENS * HIDDEN / 8), ("ffn", TOKENS * (HIDDEN + INNER) / 8)):
        before, after = (unit_times(parts[name], layout, kind, slow_links()).forward_ns for layout in (apart, fused))
        assert before - after == pytest.approx(2 * 2 * elements / rate)


@pytest.mark.parametrize(("precision", "gathered_bytes"), [("bf16", 2), ("fp8", 1), ("fp8 current scaling", 1)])
def test_gathers_of_sequence_parallel_ranks_are_in_few_bits(precision: str, gathered_bytes: int) -> None:
    """Forward each sub-layer gathers its input and scatters its output, which stays in bfloat16."""
    parts, layout, kind = run_of(precision, **ENGINE)
    for name in ("attention", "ffn"):
        times = unit_times(parts[name], layout, kind, slow_links())
        assert times.collectives_ns == pytest.approx(TOKENS * HIDDEN * (gathered_bytes + 2) * 7 / 8, rel=1e-3)


@pytest.mark.parametrize(
    ("precision", "gpu", "cast_bytes"),
    [
        ("fp8", "H100-80GB-SXM", 2 + 1 + 1),
        ("fp8", "B200", 2 + 1),
        ("fp8 current scaling", "H100-80GB-SXM", 2 * 2 + 1 + 1),
        ("fp8 current scaling", "B200", 2 * 2 + 1),
        ("mxfp8", "B200", 2 + 2 * (1 + 1 / 32)),
    ],
)
def test_an_input_is_cast_once(precision: str, gpu: str, cast_bytes: float) -> None:
    """Forward both inputs of a feed-forward network's products are read and written, those of the up-projections together;
    Hopper needs a transposed copy, as scale factors of blocks do everywhere."""
    parts, layout, kind = run_of(precision, gpu, **ENGINE)
    assert layout.recipe is not None
    rate = RECIPES[layout.recipe.name].product_rate
    sizes = [(2 * INNER // 8, HIDDEN), (HIDDEN, INNER // 8)]
    products = sum(
        operator_ns(Operator(m=TOKENS, n=n, k=k), kind, "float8", layout.recipe.operand_bytes) / rate for n, k in sizes
    )
    reached = kind.reached("memory", "bfloat16")
    assert reached is not None
    numbers = [TOKENS * n for n in (HIDDEN * cast_bytes, INNER / 8 * cast_bytes, 2 * 2 * HIDDEN / 8, 2 * 3 * INNER / 8)]
    numbers.append(TOKENS * 2 * 3 * HIDDEN / 8)  # after the casts: norm, gate, residual
    memory = sum(max(kind.kernel_ns, each / (kind.memory_bytes_per_s * reached.value) * 1e9) for each in numbers)
    assert unit_times(parts["ffn"], layout, kind, slow_links()).forward_ns == pytest.approx(products + memory, rel=1e-6)


@pytest.mark.parametrize(
    ("framework", "precision", "gathered"),
    [
        ("Megatron-Core", "fp8", 2),  # its flag is off unless stated
        ("NeMo", "bf16", 2),
        ("NeMo", "fp8", 1),
        ("Megatron-Bridge", "fp8", 1),
        ("Megatron-Bridge", "mxfp8", 2),  # its factors of blocks are made after the gather
    ],
)
def test_bytes_of_gathered_parameters(framework: str, precision: str, gathered: float) -> None:
    """As `--fp8-param-gather` of Megatron-Core does, which recipes of NeMo 2 and Megatron-Bridge set."""
    layout = laid(**ROW | {"gpu": "B200"}, framework=framework, precision=precision).layout
    assert gathered_bytes(layout) == gathered


def test_recipes_of_megatron_bridge() -> None:
    """Its FP8 is by current scaling, its FP4 without overlap of tensor-parallel collectives, unless stated."""
    row = ROW | {"gpu": "B200", "framework": "Megatron-Bridge"}
    eight, four = (laid(**row, precision=precision).layout for precision in ("fp8", "nvfp4"))
    assert eight.recipe is not None and eight.recipe.name == "fp8-current" and eight.framework.tensor_overlap > 0
    assert four.framework.tensor_overlap == 0 and four.zero == 1
    assert laid(**row, precision="nvfp4", note="tp-comm-overlap True").layout.framework.tensor_overlap > 0


def test_collectives_alongside_kernels_slow_them() -> None:
    """Where fully sharded states are gathered and reduced during longer passes, a quarter of their time is added to these."""
    run = laid(**ROW | {"tp": 1, "fsdp": "full_shard", "gbs": 32, "zero": 3}, precision="bf16", framework="PyTorch FSDP")
    kind, links = run.kind(shipped_efficiencies()), Links(8, 360e9, 50e9, within_ns=0)
    alone = replace(run.layout, framework=replace(run.layout.framework, contention=0.0))
    slowed_ns, alone_ns = (streams_step(run.model, layout, kind, links).passes_ns for layout in (run.layout, alone))
    moved_ns = run.model.total_parameters * (2 * 2 + 4) * 7 / 8 / 360e9 * 1e9  # gathered twice in bfloat16, reduced in float32
    assert (slowed_ns - alone_ns) / run.layout.micro_batches == pytest.approx(moved_ns / 4, rel=0.1)


def test_hidden_reductions_and_gathers_slow_kernels() -> None:
    """Of the reduction and the gather of a distributed optimizer that passes hide, a quarter is added to the step."""
    run = laid(**ROW | {"tp": 1, "zero": 1, "gbs": 32}, precision="bf16", framework="NeMo")
    kind, links = run.kind(shipped_efficiencies()), Links(8, 360e9, 50e9, within_ns=0)
    alone = replace(run.layout, framework=replace(run.layout.framework, contention=0.0))
    slowed, hidden = (streams_step(run.model, layout, kind, links) for layout in (run.layout, alone))
    moved_ns = run.model.total_parameters * 2 * 7 / 8 / 360e9 * 1e9  # in bfloat16, once to reduce and once to gather
    for before_ns, after_ns in ((hidden.reduce_ns, slowed.reduce_ns), (hidden.gather_ns, slowed.gather_ns)):
        assert moved_ns < 8 * before_ns < 1.15 * moved_ns  # one of eight buckets is shown, each with its latency
        assert after_ns - before_ns == pytest.approx(7 * before_ns / 4, rel=0.01)
