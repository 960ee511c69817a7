"""Memory that one sub-layer keeps on a rank from its forward to its backward pass.

Of each unit the graph keeps what fused kernels of today's frameworks keep: a norm's input and result, the inputs of products,
one number for each query and head of a fused attention core, and what the activation and the gate need. trainplan's programs
keep the same within a few percent (tests/formulations/test_streams_memory.py). Products in few bits keep their operands in
these, and their weights in both orientations. Where context-parallel ranks exchange heads, an attention keeps queries, keys
with their copies, values and results of its heads, and in addition the results of its tokens; of a core that is computed again,
its inputs before they are exchanged. What frameworks keep beyond that is in `framework_memory`.
"""

from __future__ import annotations

from trainplan.formulations.costs.overlapped.expert_memory import experts_again_bytes, experts_kept_bytes, latent_kept_bytes
from trainplan.formulations.costs.overlapped.layout import RunLayout
from trainplan.formulations.costs.overlapped.sublayer_time import splittable
from trainplan.profiling.base.dtypes import DTYPE_BYTES
from trainplan.profiling.models.model import Unit
from trainplan.profiling.models.sublayers import (
    Attention,
    Experts,
    FeedForward,
    HeadShare,
    LatentAttention,
    Sublayer,
    TokenJoin,
    TokenMixer,
    attention_of,
)
from trainplan.profiling.models.sublayers.parallel import ParallelBlock

COPY_BYTES = 4  # of a copy in fp32


def kept_bytes(unit: Unit, layout: RunLayout) -> float:
    """Bytes that a sub-layer keeps on one rank for one micro-batch from its forward to its backward pass: its input and what
    its kernels save, less what is recomputed module by module. unit: the sub-layer in the model. layout: how the run is
    laid out on its devices: degrees, batch, precision and framework.
    """
    part, element = splittable(unit.sublayer, layout.tp), DTYPE_BYTES[layout.base]
    tokens = layout.micro * part.tokens / layout.cp
    own = tokens / layout.tp if layout.sequence_parallel else tokens
    hidden = own * part.hidden * element
    gathered = layout.framework.memory.keeps_gathered and layout.sequence_parallel
    normed = (
        (tokens if gathered else own)
        * part.hidden
        * (operand_bytes(layout) + _composed_norm_bytes(part, layout))
        * (not layout.recompute.norms)
        * part.pre_norm
    )
    entered = hidden + normed + own * part.hidden * _cast_bytes(part, layout)  # a norm's input, and its result
    norm_after = part.sandwich * (hidden + own * part.hidden * _composed_norm_bytes(part, layout))
    if isinstance(part, Experts):
        return (
            hidden
            + own * part.hidden * DTYPE_BYTES[layout.base] * (not layout.recompute.norms)
            + experts_kept_bytes(part, layout, operand_bytes(layout))
        )
    if isinstance(part, LatentAttention):
        return entered + latent_kept_bytes(part, tokens, own, layout, operand_bytes(layout))
    if isinstance(part, ParallelBlock):
        entered += normed * (not part.shared_norm)
        inner = _attention_bytes(part.attention, tokens, layout) + _network_bytes(part.feed_forward, tokens, layout)
        return entered + inner
    if isinstance(part, Attention):
        return (
            entered
            + norm_after
            + _attention_bytes(part, tokens, layout)
            + _masks_bytes(part, own, layout.framework.memory.drops_hidden)
        )
    if isinstance(part, FeedForward):
        return (
            entered
            + norm_after
            + _network_bytes(part, tokens, layout)
            + _masks_bytes(part, own, layout.framework.memory.drops_hidden)
        )
    if isinstance(part, TokenMixer):
        return entered + norm_after + part.inside_bytes(tokens, layout.tp, element)
    if part.kind == "embedding":
        return hidden + _masks_bytes(part, own, layout.framework.memory.drops_hidden)
    normed = (tokens if gathered else own) * part.hidden * element
    if isinstance(part, TokenJoin):  # the embeddings, and what its projection joins
        return 2 * hidden + 2 * own * part.hidden * operand_bytes(layout)
    return hidden + normed + own * part.hidden * (_composed_norm_bytes(part, layout) + _cast_bytes(part, layout))


def _cast_bytes(part: Sublayer, layout: RunLayout) -> int:
    """Bytes per element of the hidden states that autocast adds before matrix multiplications: the wider input, and a copy in
    the model's dtype for each multiplication except one (queries, keys and values count as one, and so do both
    up-projections); 0 without autocast. part: the sub-layer. layout: how the run is laid out on its devices: degrees,
    batch, precision and framework.
    """
    if not layout.held.autocast:
        return 0
    element = DTYPE_BYTES[layout.base]
    products = 3 if isinstance(part, Attention) else 2 if isinstance(part, FeedForward) and part.gated else 1
    return COPY_BYTES - element + element * (products - 1)


def _composed_norm_bytes(part: Sublayer, layout: RunLayout) -> int:
    """Bytes per element of the hidden states that an RMS norm made of several kernels keeps: a copy in fp32 in place of the
    input, and the result before the norm's weights; 0 for other norms and for fused ones. part: the sub-layer whose norm it
    is. layout: how the run is laid out on its devices: degrees, batch, precision and framework.
    """
    return COPY_BYTES * (layout.framework.composed and part.norm == "rms")


def operand_bytes(layout: RunLayout) -> float:
    """Bytes per element of the input that a matrix multiplication keeps, from which the gradient of its weights is computed:
    those of the multiplication's precision (of the model's dtype, if the framework casts again), and 0 if the weights are
    frozen. layout: how the run is laid out on its devices: degrees, batch, precision and framework.
    """
    if layout.frozen:
        return 0.0
    wide = layout.recipe is None or layout.framework.memory.wide_operands
    return DTYPE_BYTES[layout.base] if wide or layout.recipe is None else layout.recipe.operand_bytes


def _masks_bytes(part: object, own: float, always: bool) -> float:
    """Bytes of a sub-layer's dropout mask for one micro-batch; 0 without dropout. part: the sub-layer. own: the number of
    tokens that the rank holds between matrix multiplications. always: whether the framework drops hidden states of any model.
    """
    return own * part.hidden * (part.dropout > 0 or always)  # type: ignore[attr-defined]


def _attention_bytes(part: Attention, tokens: float, layout: RunLayout) -> float:
    """Bytes that an attention keeps on one rank for some tokens: queries, keys, values and the result; queries and keys before
    their norm, if there is one; for unfused kernels the attention probabilities, and with dropout also their mask and the
    dropped probabilities. tokens: the number of tokens. part: the attention. layout: how the run is laid out on its
    devices: degrees, batch, precision and framework.
    """
    element, tp = DTYPE_BYTES[layout.base], layout.tp
    query, key = part.heads // tp * part.width, max(1, part.kv_heads // tp) * part.width
    normed = (element + COPY_BYTES * layout.framework.composed) * part.normed_heads
    eager = layout.framework.composed and part.keeps_scores  # which has keys and values of all heads
    size = tokens * ((2 * query + 2 * (query if eager else key)) * element + (query + key) * normed)
    size += tokens * part.heads // tp * 4 * (not eager) + tokens * 2 * query * element * part.gated
    if layout.framework.memory.copies_heads:  # queries, keys and values by heads, and keys joined with values
        size += tokens * (query + 2 * key + 2 * key) * element
    if layout.exchanges_heads and not layout.recompute.attention:
        copied = HeadShare(part, tp, layout.cp).copied_key_heads * part.width
        size += tokens * (query + 2 * copied) * element
    if part.keeps_scores and not layout.recompute.attention:
        dropped = part.attention_dropout > 0
        widened = COPY_BYTES * (eager and element < COPY_BYTES)  # the softmax's result
        size += tokens * part.keys * (part.heads // tp) * (element + widened + dropped * (1 + (0 if widened else element)))
    return size


def score_gradient_bytes(unit: Unit, layout: RunLayout) -> float:
    """Bytes that an unfused attention holds only during its backward pass, in addition to what is kept, for the gradients of
    its scores: those of the softmax's results in both dtypes, or, with dropout, in the wider one alone. 0 if the attention
    is fused or keeps no scores. unit: the sub-layer in the model. layout: how the run is laid out on its devices: degrees,
    batch, precision and framework.
    """
    attention = attention_of(splittable(unit.sublayer, layout.tp))
    if attention is None or not attention.keeps_scores or not layout.framework.composed:
        return 0.0
    tokens, element = layout.micro * attention.tokens / layout.cp, DTYPE_BYTES[layout.base]
    element_bytes = COPY_BYTES + element * (attention.attention_dropout == 0)
    return tokens * attention.keys * (attention.heads // layout.tp) * element_bytes


def exchanged_bytes(unit: Unit, layout: RunLayout) -> int:
    """Bytes that an all-to-all of attention heads among context-parallel ranks holds only during the exchange, in addition to
    what is sent: one micro-batch ordered by rank, and the micro-batch as it arrives. 0 for other sub-layers and layouts.
    unit: the sub-layer in the model. layout: how the run is laid out on its devices: degrees, batch, precision and
    framework.
    """
    attention = attention_of(splittable(unit.sublayer, layout.tp))
    if not layout.exchanges_heads or attention is None:
        return 0
    return 2 * HeadShare(attention, layout.tp, layout.cp).entering_bytes(layout.micro, DTYPE_BYTES[layout.base])


def _network_bytes(part: FeedForward, tokens: float, layout: RunLayout) -> float:
    """Bytes that a feed-forward network keeps on one rank for some tokens: the inputs of the activation function, of the gate
    and of the second matrix multiplication; a ReLU keeps only its result. 0 for a network that is recomputed as a whole.
    tokens: the number of tokens. part: the feed-forward network. layout: how the run is laid out on its devices: degrees,
    batch, precision and framework.
    """
    return 0.0 if layout.recompute.network else _inner_bytes(part, tokens, layout)


def _inner_bytes(part: FeedForward, tokens: float, layout: RunLayout) -> float:
    """Bytes that a feed-forward network keeps on one rank between its matrix multiplications, for some tokens. tokens: the
    number of tokens. part: the feed-forward network. layout: how the run is laid out on its devices: degrees, batch,
    precision and framework.
    """
    products = 2 if part.gated else 0 if part.activation == "relu" and not layout.recompute.activation else 1
    apart = layout.framework.composed or layout.framework.memory.keeps_activation
    products += part.gated and apart and not layout.recompute.activation  # the activation's result
    copies = products * DTYPE_BYTES[layout.base] + operand_bytes(layout) * (not layout.recompute.activation)
    return tokens * (part.inner // layout.tp) * copies


def network_again_bytes(unit: Unit, layout: RunLayout) -> float:
    """Bytes on one rank, for one micro-batch, that a feed-forward network which is recomputed as a whole holds only during its
    own backward pass; 0 for other sub-layers and layouts. unit: the sub-layer in the model. layout: how the run is laid out
    on its devices: degrees, batch, precision and framework.
    """
    part = splittable(unit.sublayer, layout.tp)
    if isinstance(part, Experts):
        return experts_again_bytes(part, layout, operand_bytes(layout))
    network = part.feed_forward if isinstance(part, ParallelBlock) else part
    if not layout.recompute.network or not isinstance(network, FeedForward):
        return 0.0
    return _inner_bytes(network, layout.micro * part.tokens / layout.cp, layout)
