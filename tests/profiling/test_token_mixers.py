"""State spaces and delta nets: parameters of transformers' modules, products of its chunked forms as torch counts them, and
what its autograd functions save."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.estimate import operator_ns
from trainplan.profiling.models.sublayers import (
    GatedDeltaNet,
    Operator,
    SelectiveScan,
    StateSpace,
    Sublayer,
    TokenMixer,
    TokenShare,
    modules_of,
    why_not_cut,
    why_not_shared,
)

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

COMMON: dict[str, Any] = {"tokens": 512, "hidden": 256, "dtype": "bfloat16", "norm": "rms"}
MAMBA2 = StateSpace(**COMMON, heads=16, width=32, groups=4, state=64, chunk=128)
MAMBA1 = SelectiveScan(**COMMON, channels=512, state=16, rank=24, normed=True)
DELTA = GatedDeltaNet(**COMMON, key_heads=4, value_heads=8, key_width=32, value_width=48)
MIXERS: tuple[TokenMixer, ...] = (MAMBA2, MAMBA1, DELTA)


def modules() -> list[Any]:
    """Transformers' modules of the same sizes, without memory and without the norm before them."""
    from transformers.models.jamba.modeling_jamba import JambaMambaMixer
    from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHMamba2Mixer
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

    nemotron = transformers.NemotronHConfig(
        hidden_size=256,
        mamba_num_heads=16,
        mamba_head_dim=32,
        n_groups=4,
        ssm_state_size=64,
        layers_block_type=["linear_attention"],
    )
    qwen = transformers.Qwen3NextConfig(
        hidden_size=256, linear_num_key_heads=4, linear_num_value_heads=8, linear_key_head_dim=32, linear_value_head_dim=48
    )
    with torch.device("meta"):
        jamba = JambaMambaMixer(transformers.JambaConfig(hidden_size=256, mamba_dt_rank=24), 0)
        return [NemotronHMamba2Mixer(nemotron, 0), jamba, Qwen3NextGatedDeltaNet(qwen, 0)]


def test_parameters_are_those_of_transformers() -> None:
    for ours, theirs in zip(MIXERS, modules(), strict=True):
        assert ours.parameter_count() - ours.hidden == sum(p.numel() for p in theirs.parameters())


def counted(call: Any) -> int:
    """Floating-point operations of the products of a call on the meta device, as torch counts them."""
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        call(torch.empty)
    return int(counter.get_total_flops())


def small(sublayer: TokenMixer) -> list[Operator]:
    return [operator for operator in sublayer.scan_operators(1, 1) if operator.core == "chunk"]


def test_products_of_a_state_space_are_those_of_the_chunked_form() -> None:
    """transformers repeats B and C for every head, computes whole chunks, and passes states by a product of their decays."""
    from transformers.models.nemotron_h.modeling_nemotron_h import mamba2_chunk_scan

    def call(empty: Any) -> None:
        b = empty(1, 512, 4, 64)
        mamba2_chunk_scan(empty(1, 512, 16, 32), empty(1, 512, 16), empty(16), b, b, chunk_size=128)

    states, scores, read, inside = (operator.flops for operator in small(MAMBA2))
    chunks = 512 // 128
    passed = 2 * (chunks + 1) ** 2 * 16 * 32 * 64
    assert counted(call) == states + 4 * scores + read + 2 * inside + passed


def test_products_of_a_delta_net_are_those_of_the_chunked_form() -> None:
    """transformers solves a triangular system where the kernels invert it, and computes whole blocks of K K'."""
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

    def call(empty: Any) -> None:
        keys, decay = empty(1, 512, 4, 32), empty(1, 512, 8)
        torch_chunk_gated_delta_rule(keys, keys, empty(1, 512, 8, 48), decay, decay, chunk_size=64)

    blocks, corrected_keys, corrected_values, *others = (operator.flops for operator in small(DELTA))
    assert counted(call) == blocks * 16 // 10 + sum(others)
    solved = 8 * 8 * 2 * 64 * 64 * (32 + 48)  # chunks and heads, each with a product by a whole matrix
    assert corrected_keys + corrected_values == solved
    products = sum(operator.flops for operator in DELTA.operators(1, 1))
    assert DELTA.forward_flops(1, 1) - products == 8 * 8 * 2 * 16 * 16**3  # the inverse of each chunk


def test_projections_are_twice_their_parameters() -> None:
    """As Megatron-LM's `mamba_layer_flops` counts them, with a scan of 7 for a channel and a number of its state."""
    projected = 2 * 512 * 256 * (2 * 512 + 2 * 4 * 64 + 16) + 2 * 512 * 512 * 256
    assert sum(o.flops for o in MAMBA2.operators(1, 1) if o.core is None) == projected
    selection = 2 * 512 * 512 * (24 + 2 * 16 + 24)
    assert MAMBA1.forward_flops(1, 1) == 2 * 512 * 256 * 3 * 512 + selection + 7 * 512 * 512 * 16


def test_many_small_products_fill_a_device_together() -> None:
    """The products of all chunks and heads take what one of as many rows takes, unless the memory that they move takes longer;
    half as many take half as long."""
    kind = load_cluster("h100-8").used_kinds[0]
    mixer = replace(MAMBA2, tokens=8192, hidden=2048, heads=64, width=64, state=128)
    for product in small(mixer):
        fewer, more = sorted((product.m, product.n))
        whole = Operator(m=fewer * product.count, n=more, k=product.k)
        ns, one = operator_ns(product, kind, "bfloat16", 2), operator_ns(whole, kind, "bfloat16", 2)
        moved = (product.m * product.k + product.k * product.n + product.m * product.n) * product.count * 2
        assert ns == pytest.approx(max(one, operator_ns(Operator(touched_bytes=moved), kind, "bfloat16", 2)))
    states = small(mixer)[0]
    half = operator_ns(replace(states, count=states.count // 2), kind, "bfloat16", 2)
    assert half == pytest.approx(operator_ns(states, kind, "bfloat16", 2) / 2, rel=0.01)


@pytest.mark.parametrize("mixer", MIXERS, ids=lambda mixer: type(mixer).__name__)
def test_work_and_memory_are_linear_in_the_tokens(mixer: TokenMixer) -> None:
    longer = replace(mixer, tokens=4 * 512)
    assert longer.forward_flops(1, 1) == 4 * mixer.forward_flops(1, 1) == mixer.forward_flops(4, 1)
    assert longer.kept_bytes(1, 1) == 4 * mixer.kept_bytes(1, 1) == mixer.kept_bytes(4, 1)
    assert longer.scan_workspace_bytes(1, 1, True) == 4 * mixer.scan_workspace_bytes(1, 1, True)


def test_a_state_space_keeps_what_its_autograd_function_saves() -> None:
    """`MambaSplitConv1dScanCombinedFn` saves zxbcdt, the scan's result and the norm's deviations; Megatron-Core's norm and
    output projection save their inputs in addition."""
    n, h, d, projected = 512, 256, 512, 2 * 512 + 2 * 4 * 64 + 16
    whole = replace(MAMBA2, whole=True)
    assert whole.kept_bytes(1, 1) == 2 * (n * h + n) + 2 * n * (projected + d) + 4 * n * 4
    assert MAMBA2.kept_bytes(1, 1) - whole.kept_bytes(1, 1) == 2 * n * 2 * d


def test_ranks_split_heads_and_groups() -> None:
    """Megatron-Core requires that the ranks divide the groups; what they hold adds up."""
    assert [tp for tp in (1, 2, 3, 4, 8) if MAMBA2.splits_into(tp)] == [1, 2, 4]
    assert [tp for tp in (1, 2, 4, 8) if DELTA.splits_into(tp)] == [1, 2, 4]
    assert [tp for tp in (1, 2) if MAMBA1.splits_into(tp)] == [1]
    for mixer in (MAMBA2, DELTA):
        split = mixer.parameter_count() - mixer.replicated_count
        assert mixer.parameter_count(2, 0) == split // 2 + mixer.replicated_count
        assert mixer.forward_flops(3, 2) * 2 == mixer.forward_flops(3, 1)
        inside = mixer.inside_bytes(512, 1, 2)
        assert mixer.inside_bytes(512, 2, 2) == inside / 2


@pytest.mark.parametrize("mixer", MIXERS, ids=lambda mixer: type(mixer).__name__)
def test_samples_are_not_cut_and_tokens_are_shared_outside_of_the_scan(mixer: Sublayer) -> None:
    assert "kind" in str(why_not_cut(mixer, 2)) and why_not_shared(mixer, 2) is None
    assert modules_of(mixer) == ("norms",)
    if mixer.splits_into(2):
        shared = TokenShare(mixer, 2).costs_bytes(1)
        assert 0 < shared["kept_bytes"] < mixer.kept_bytes(1, 2)
