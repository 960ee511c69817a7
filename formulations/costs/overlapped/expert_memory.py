"""Memory that units of experts and latent attention keep on a rank from their forward to their backward pass.

A unit of experts keeps, for each row that its rank's experts work on, the row, the results of the first product and those of
the activation, which are multiplied by the router's probabilities before the second product (Megatron-Core since 0.12,
`weighted_bias_swiglu_impl`), so that results of experts are not kept; where probabilities multiply results, these are, too.
Rows are those of the fullest rank, at the run's imbalance or capacity.

What modules recompute: the activation (`moe_act`) its result; shared experts all but their input; the whole unit (`moe`) all
but the result of its norm, and it exchanges tokens again; the up-projections of latent attention (`mla_up_proj`) queries, keys
and values of heads (`megatron/core/transformer/transformer_config.py`, `recompute_modules`, core 0.13).
"""

from __future__ import annotations

from trainplan.formulations.costs.overlapped.expert_work import LOGIT_BYTES, routed_of, rows_of
from trainplan.formulations.costs.overlapped.layout import RunLayout
from trainplan.profiling.base.dtypes import DTYPE_BYTES
from trainplan.profiling.models.sublayers import Experts, LatentAttention

# Of each token and expert: scores and chosen probabilities in fp32, and the map of rows (`topk_routing_with_score_function`).
ROUTER_BYTES = 2 * LOGIT_BYTES + 1
ROW_BYTES = 12  # of each row: its place before and after the permutation, and its probability
STATISTIC_BYTES = 4  # of a query and head of a fused core


def experts_kept_bytes(part: Experts, layout: RunLayout, operand: float) -> float:
    """Bytes that a unit of experts keeps on the fullest rank for one micro-batch, in addition to its input and its norm's
    result, less what is recomputed module by module. part: the unit. layout: how the run is laid out on its devices. operand:
    bytes of a number of a product's input that is kept."""
    if layout.recompute.experts:
        return 0.0
    return _inner_bytes(part, layout, operand)


def experts_again_bytes(part: Experts, layout: RunLayout, operand: float) -> float:
    """Bytes on the fullest rank that a unit of experts holds only during its own backward pass, of a micro-batch: what is
    recomputed as a whole; and rows of the exchange, with their gradients and those of the first product's results. Arguments
    as of `experts_kept_bytes`."""
    rows, element = rows_of(part, layout), DTYPE_BYTES[layout.base]
    passing = rows * (2 * part.width + part.ups * part.inner / layout.experts.etp) * element
    return passing + layout.recompute.experts * _inner_bytes(part, layout, operand)


def _inner_bytes(part: Experts, layout: RunLayout, operand: float) -> float:
    """Bytes that a unit of experts keeps between its norm and its residual. Arguments as of `experts_kept_bytes`."""
    tokens, rows, element = routed_of(part, layout).tokens, rows_of(part, layout), DTYPE_BYTES[layout.base]
    inner, recompute = part.inner / layout.experts.etp, layout.recompute
    row = part.width * operand + part.ups * inner * element + inner * operand * (not recompute.experts_activation)
    if layout.framework.pads == 1 and part.weighted == "output":
        row += part.width * element
    kept = rows * (row + ROW_BYTES) + tokens * part.experts * ROUTER_BYTES + 2 * tokens * part.latent * element
    if part.shared_inner and not recompute.shared_experts:
        whole, width = layout.micro * part.tokens / layout.cp, part.shared_inner / layout.tp
        kept += whole * width * (part.ups * element + operand)
        kept += tokens * part.hidden * operand * (operand != element)  # its input in few bits
    return kept


def latent_kept_bytes(part: LatentAttention, tokens: float, own: float, layout: RunLayout, operand: float) -> float:
    """Bytes that a latent attention keeps on one tensor-parallel rank, in addition to its input and its norm's result: latents
    before and after their norms, queries, keys and values of heads, and the core's result.

    part: the attention. tokens: the number of tokens. own: of these, the rank's own between products. layout: how the run is
    laid out on its devices. operand: bytes of a number of a product's input that is kept.
    """
    element, tp = DTYPE_BYTES[layout.base], layout.tp
    normed = part.query_latent + part.latent
    latents = own * ((normed + part.turned) * element + normed * operand)
    heads = tokens * part.head_elements(tp) * element * (not layout.recompute.latent)
    if not layout.framework.fused_attention:
        dropped = part.attention_dropout > 0
        heads += tokens * part.keys * part.heads / tp * (element + dropped * (1 + element))
    result = tokens * part.heads / tp * (part.value_width * element + STATISTIC_BYTES)
    if operand != element:  # in few bits for the gradient of the output's weights, besides what the core keeps
        result += tokens * part.heads / tp * part.value_width * operand
    return latents + heads + result
