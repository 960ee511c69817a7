"""Fields of a measured run that say how its mixture of experts is made, laid out and routed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from trainplan.profiling.base.files import Record

Count = Annotated[int, Field(ge=1, le=2**40)]
Number = Annotated[int, Field(ge=0, le=2**40)]
Ratio = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
Text = Annotated[str, Field(max_length=10_000)]


class MixtureFields(Record):
    """The fields of a row of a table that are about a mixture of experts; one that is null or missing is not stated.

    Attributes:
        experts, topk: the number of routed experts, and how many of them process a token.
        moe_ffn: the inner width of a routed expert; shared_ffn: of all shared experts together; shared_experts: their number.
        dense_first: the number of first layers without experts; moe_layer_freq: which layers have experts, as Megatron-LM's
            argument of that name: every k-th, or a list such as ([0]*3+[1]*13).
        window, window_every: the keys that a sliding window sees, and that every
            k-th layer has one.
        mla: sizes of latent attention: q_lora, kv_lora, qk_nope, qk_rope, v_head.
        mtp: the number of layers that predict further tokens.
        untied: whether head and embedding are matrices of their own; swiglu: whether networks are gated.
        etp: the number of ranks that share each expert's inner width.
        dispatcher: how tokens come to their experts: alltoall, allgather, deepep or hybridep.
        ep_overlap: whether their exchange runs in parallel with another micro-batch's passes.
        grouped_gemm: whether the products of a rank's experts are one kernel.
        capacity_factor, pad_to_capacity: the most tokens of an expert over the mean, and whether all have as many.
        routing: forced balance, or real; imbalance: tokens of the fullest rank over the mean.
        pp_layout: the layers of each stage, as Megatron-LM's `--pipeline-model-parallel-layout` writes them.
    """

    experts: Count | None = None
    topk: Count | None = None
    moe_ffn: Count | None = None
    shared_ffn: Number | None = None
    shared_experts: Number | None = None
    dense_first: Number | None = None
    moe_layer_freq: Count | Text | None = None
    window: Count | None = None
    window_every: Count | None = None
    mla: Mapping[str, int | None] | None = None
    mtp: Number | None = None
    untied: bool | None = None
    swiglu: bool | None = None
    etp: Count | None = None
    dispatcher: Text | None = None
    ep_overlap: bool | None = None
    grouped_gemm: bool | None = None
    capacity_factor: Ratio | None = None
    pad_to_capacity: bool | None = None
    routing: Text | None = None
    imbalance: Ratio | None = None
    pp_layout: Text | None = None


MIXTURE_TEXTS = frozenset(("dispatcher", "routing", "pp_layout", "moe_layer_freq"))
MIXTURE_WHOLE = frozenset(("moe_ffn", "shared_ffn", "shared_experts", "dense_first", "window", "window_every", "mtp", "etp"))
