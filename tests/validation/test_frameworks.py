"""What frameworks do that decides a step's time: each term against its framework's own code, counted by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainplan.formulations.costs.overlapped.analytic_fsdp import Block
from trainplan.formulations.costs.overlapped.analytic_pipeline import costed_stages
from trainplan.formulations.costs.overlapped.analytic_shards import (
    accumulated_ns,
    copied_ns,
    sliced_ns,
    tensors_of,
    whole_stages_ns,
)
from trainplan.formulations.costs.overlapped.analytic_step import chunks_of
from trainplan.formulations.costs.overlapped.frameworks import FLASH_2_RATES
from trainplan.formulations.costs.overlapped.links import Links
from trainplan.formulations.costs.overlapped.state_exchange import buckets_of
from trainplan.formulations.costs.overlapped.sublayer_time import unit_times
from trainplan.formulations.costs.overlapped.torch_rings import merged_bytes
from trainplan.profiling.clusters.cluster import DeviceKind
from trainplan.profiling.clusters.efficiencies import shipped_efficiencies

from tests.validation.test_words import laid
from trainplan.validation.layouts import LaidRun
from trainplan.validation.predict import predict_laid, step_of

EIGHT_B: dict[str, Any] = {
    "model": "llama3-8b",
    "gpu": "H100-80GB-SXM",
    "gpus": 8,
    "gbs": 16,
    "mbs": 2,
    "seq": 8192,
    "precision": "bf16",
    "recompute": "none",
    "framework": "torchtitan",
    "fsdp": "fsdp8",
    "note": None,
}
TABLE = shipped_efficiencies()


def run(**fields: Any) -> LaidRun:
    """A run of Llama-3 8B on eight H100, with some fields replaced."""
    return laid(**EIGHT_B | fields)


def step_ns(run: LaidRun, **framework: Any) -> float:
    """Its predicted step in ns, with some settings of its framework replaced."""
    changed = replace(run.layout, framework=replace(run.layout.framework, **framework))
    return step_of(replace(run, layout=changed), TABLE).step_ns


def memory_rate(kind: DeviceKind) -> float:
    """Bytes per ns that a device's memory-bound kernels reach."""
    reached = kind.reached("memory", "bfloat16")
    assert reached is not None
    return kind.memory_bytes_per_s * reached.value / 1e9


def greedy(costs: list[int], stages: int) -> list[int]:
    """The stage of each block by nanotron's rule, block by block: a block is placed, and the next stage begins once all blocks
    so far cost more than the stages so far should."""
    whole, done, stage, placed = sum(costs), 0, 0, []
    for cost in costs:
        placed.append(stage)
        done += cost
        stage += done > whole * (stage + 1) / stages
    return placed


@given(st.integers(1, 60), st.integers(1, 2000), st.integers(0, 4000), st.integers(1, 16))
def test_stages_are_cut_as_nanotron_cuts_them(layers: int, cost: int, head: int, stages: int) -> None:
    """`build_model`: the head is a block like others, and the last stage has it, or nanotron does not train."""
    placed = greedy([cost] * layers + [head], stages)
    cut = costed_stages([cost] * layers, head, stages)
    counts = tuple(placed[:-1].count(stage) for stage in range(stages))
    if cut is None:
        assert placed[-1] < stages - 1 or 0 in counts[:-1]
    else:
        assert cut == counts and placed[-1] == stages - 1


def test_a_nanotron_run_has_its_head_among_its_stages() -> None:
    """A layer of 4 x 2048^2 + 3 x 8192 x 2048 numbers and a head of four times that: ten blocks of twenty to each stage, of
    which the first has one more, for nanotron passes its threshold before it goes on."""
    sizes = {"layers": 16, "hidden": 2048, "heads": 32, "kv_heads": 32, "ffn": 8192, "vocab": 131072}
    given = run(model="llama-1.34B", **sizes, framework="nanotron v0.5", pp=2, fsdp="no", zero=1, seq=4096, mbs=1)
    assert given.layout.stage_layers == (11, 5)
    assert [tensors_of(chunk.units) for chunk in chunks_of(given.model, given.layout)] == [11 * 6 + 1, 5 * 6 + 2]
    even = replace(given, layout=replace(given.layout, stage_layers=(8, 8)))
    assert step_ns(given) < step_ns(even)


def test_nanotron_pays_its_slices_copies_and_buckets() -> None:
    """After the step: a slice of each tensor for each rank, and three copies of all parameters; in each micro-batch 10 bytes of
    each to add gradients; and buckets of 25 MB to reduce."""
    given = run(framework="nanotron v0.5", fsdp="no", zero=1)
    layout, kind = given.layout, given.kind(TABLE)
    rate, slice_ns = memory_rate(kind), layout.framework.slice_ns
    assert sliced_ns(7, 1e9, layout, kind) == pytest.approx(7 * 8 * slice_ns + 12e9 / rate)
    assert sliced_ns(7, 1e9, replace(layout, zero=0), kind) == 0.0
    assert accumulated_ns(1e9, layout, kind) == pytest.approx(10e9 / rate)
    assert buckets_of(1e9, layout) == pytest.approx(2e9 / (25 * 2**20))
    flat = {"slice_ns": 0, "gathered_bytes": 0}
    tensors = tensors_of(given.model.units)
    longer = sliced_ns(tensors, given.model.total_parameters, layout, kind)
    assert step_ns(given) - step_ns(given, **flat) == pytest.approx(longer, rel=1e-6)


def test_fsdp2_copies_parameters_and_gradients() -> None:
    """Two passes over gathered parameters, before each pass; then gradients read in bfloat16 and written in fp32."""
    given = run()
    kind = given.kind(TABLE)
    rate = memory_rate(kind)
    assert copied_ns(1e9, given.layout, kind) == pytest.approx((4e9 / rate, (4 + 2 + 4) * 1e9 / rate))
    assert copied_ns(1e9, replace(given.layout, zero=2), kind) == pytest.approx((4e9 / rate, 6e9 / rate))
    composer = run(framework="Composer/PyTorch FSDP")
    assert copied_ns(1e9, composer.layout, kind) == (0.0, 0.0)
    added = step_ns(given) - step_ns(given, copies_gathered=False)
    assert added == pytest.approx(14 * given.model.total_parameters / rate, rel=0.1)


def test_stages_whose_parameters_stay_whole_gather_on_their_way() -> None:
    """Two blocks of 10 ns that each gather for 8: the first pass ends 8 ns late; of 4 ns each, after 8 + 8 + 4, so 12 late."""
    stages = [[Block(10, 20, 8, 3), Block(10, 20, 8, 3, 1)], [Block(4, 8, 8, 3), Block(4, 8, 8, 5)]]
    assert whole_stages_ns(stages, 2) == (8.0 + 12.0, (7.0, 8.0))
    assert whole_stages_ns(stages, 1) == (20.0, (15.0,))
    given = run(gpus=64, pp=4, gbs=64, mbs=1, model="llama3-70b", fsdp="fsdp16")
    sharded = step_of(given, TABLE)
    assert sharded.reduce_ns > step_of(replace(given, layout=replace(given.layout, zero=0)), TABLE).reduce_ns


def test_what_flash_attention_2_reaches_depends_on_the_device() -> None:
    """torchtitan calls cuDNN's kernels on Blackwell; what an A100 reaches is of FlashAttention-2's already."""
    rates = {gpu: run(gpu=gpu).layout.framework.attention_rate for gpu in ("H100-80GB-SXM", "B200", "A100-80GB-SXM")}
    assert list(rates.values()) == [FLASH_2_RATES["hopper"], 1.0, 1.0]
    for fields in ({"framework": "NeMo"}, {"note": "cudnn attention"}, {"note": "FA3"}, {"framework": "MaxText"}):
        assert run(**fields).layout.framework.attention_rate == 1.0, fields
    for name in ("nanotron", "Composer/PyTorch FSDP", "DeepSpeed", "PyTorch FSDP (Accelerate)"):
        assert run(framework=name, zero=1 if name == "nanotron" else 3, fsdp=None).layout.framework.attention_rate < 1.0
    given = run(note="flash attention")
    attention = next(part for part in given.model.sublayers.values() if part.kind == "attention")
    links, kind = Links.of(given.sheet, TABLE, 8), given.kind(TABLE)
    fast = replace(given.layout, framework=replace(given.layout.framework, attention_rate=1.0))
    slower = [
        getattr(unit_times(attention, given.layout, kind, links), name)
        - getattr(unit_times(attention, fast, kind, links), name)
        for name in ("forward_ns", "backward_ns")
    ]
    assert slower[1] == pytest.approx(2.5 * slower[0], rel=0.01), "the backward pass of a core is two and a half times its work"


def test_a_ring_of_torch_reads_and_writes_beyond_attention() -> None:
    """Four ranks. Forward, for each number of queries: 4 copies to fp32 and one back of 6 bytes; 3 merges of 12, 8 and 12; and
    twice as many keys and values concatenated three times. Backward: queries added (10), keys and values added and concatenated
    (2 x 18), the kernels' own (14), four times; keys and values concatenated three times."""
    assert merged_bytes(4, 2) == (5 * 6 + 3 * (12 + 8 + 12) + 3 * 8, 4 * (10 + 36 + 14) + 3 * 8)
    given = run(seq=131072, gbs=2, mbs=1, cp=4)
    assert step_ns(given) > step_ns(given, merges_rings=False)
    assert step_ns(run()) == step_ns(run(), merges_rings=False)


def test_tensor_parallel_ranks_of_torch_gather_once_and_in_eight_bits() -> None:
    """Backward: an all-gather and a reduce-scatter, where Megatron-LM gathers the inputs again. By float8 per tensor, gathers
    have half the bytes; by rows and by blocks they have all."""
    fields: dict[str, Any] = {"gpus": 64, "tp": 8, "gbs": 8, "mbs": 1, "model": "llama3-70b", "note": "torch.compile"}
    times = {}
    for name, more in {
        "bf16": {},
        "float8": {"precision": "fp8"},
        "blocks": {"precision": "mxfp8", "gpu": "B200"},
        "rows": {"precision": "fp8", "note": "torch.compile; float8 rowwise"},
    }.items():
        given = run(**fields | more)
        links, network = Links.of(given.sheet, TABLE, 64), next(p for p in given.model.sublayers.values() if p.kind == "ffn")
        unit = unit_times(network, given.layout, given.kind(TABLE), links)
        times[name] = unit.collectives_ns, unit.backward_collectives_ns
        if name == "blocks":
            whole = links.collective_ns(1, 8192 * 8192 * 2, 8, 1)
            assert times.pop(name) == pytest.approx((2 * whole, 2 * whole))
    one = links.collective_ns(1, 8192 * 8192 * 2, 8, 1), links.collective_ns(1, 8192 * 8192, 8, 1)
    assert times["bf16"] == times["rows"] == pytest.approx((2 * one[0], 2 * one[0]))
    megatron = run(**fields | {"precision": "mxfp8", "framework": "Megatron-Core", "fsdp": "no", "zero": 1, "gpu": "B200"})
    assert megatron.layout.gathered_share < 0.6, "Transformer Engine gathers whatever it has cast"
    assert times["float8"] == pytest.approx((one[0] + one[1], one[0] + one[1]))


def test_float8_all_gathers_of_fsdp() -> None:
    """`--float8.enable_fsdp_float8_all_gather` gathers a layer's parameters in half the bytes, which shows where gathers do."""
    fields: dict[str, Any] = {"gpus": 64, "gbs": 64, "mbs": 1, "seq": 1024, "precision": "fp8"}
    whole, few = (run(**fields, note=note) for note in ("torch.compile", "torch.compile; enable_fsdp_float8_all_gather"))
    assert not whole.layout.framework.shards_in_bits and few.layout.framework.shards_in_bits
    assert step_of(few, TABLE).step_ns < 0.97 * step_of(whole, TABLE).step_ns


def test_pipelines_of_torchtitan_had_as_many_micro_batches_as_stages_until_april_2025() -> None:
    """32 samples of a rank by 8 stages: 8 micro-batches of 4 before `pipeline_parallel_microbatch_size`, 32 of one since."""
    fields: dict[str, Any] = {"model": "llama3.1-405b", "gpus": 512, "tp": 8, "pp": 8, "gbs": 256, "mbs": None}
    before, since = (run(**fields, date=date) for date in ("2024-12-26", "2025-06-01"))
    assert (before.layout.micro, before.layout.micro_batches) == (4, 8) and "until April 2025" in before.assumed["mbs"]
    assert (since.layout.micro, since.layout.micro_batches) == (1, 32)
    assert predict_laid(before, TABLE).step_s > 1.3 * predict_laid(since, TABLE).step_s  # type: ignore[operator]
    assert run(**fields | {"mbs": 1}, date="2024-12-26").layout.micro == 1, "as the row states it"
    interleaved = [run(**fields | {"vpp": 2}, date=date).layout.micro_batches for date in ("2024-12-26", "2025-02-01")]
    assert interleaved == [8, 16], "by pipeline ranks until January 2025"
    stages = [run(**fields | {"pp": 4, "gpus": 256}, date=date).layout.stage_layers for date in ("2025-04-01", "2025-05-01")]
    assert stages == [(31, 32, 32, 31), (31, 32, 32, 31)]
    seventy = fields | {"model": "llama3-70b", "gpus": 48, "tp": 4, "pp": 3, "gbs": 12}
    assert [run(**seventy, date=date).layout.stage_layers for date in ("2025-04-01", "2025-05-01")] == [
        (26, 27, 27),
        (27, 27, 26),
    ], "stages count embedding and head since April 2025"


def test_a_fused_loss_passes_over_logits_once_and_liger_fuses_layers() -> None:
    """Liger's loss is one kernel; its norms, gates and rotations are single kernels, too."""
    fields = {"framework": "DeepSpeed", "fsdp": "ZeRO-3", "zero": 3}
    plain, loss, liger = (run(**fields, note=note) for note in (None, "fused linear cross entropy", "liger kernel"))
    assert step_ns(plain) > step_ns(loss) > step_ns(liger)
    assert step_ns(loss) == step_ns(loss, loss_passes=1.0)
    assert step_ns(loss, memory_passes=1.0) == step_ns(liger)


def test_torchtitan_compiles_its_loss_since_2025() -> None:
    before, since = (run(note="torch.compile", date=date).layout.framework for date in ("2024-12-26", "2025-02-01"))
    assert before.loss_passes == run().layout.framework.loss_passes > since.loss_passes
    assert before.memory_passes == since.memory_passes == 1.0
