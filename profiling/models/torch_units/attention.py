"""Attention sub-layers in torch: projections, scaled dot-product attention of a rank's heads, output projection.

Symbols of shapes: samples (of windowed attention, windows), heads of one tensor-parallel rank, width the size of one head. With
context parallelism samples are cut into pieces along their tokens; a rank then has the queries of one piece of each sample and
gets the keys and values of all pieces (see `sublayers.pieces`), or exchanges heads (`sublayers.head_share`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from trainplan.profiling.models.blockwise import Scores, blockwise_attention
from trainplan.profiling.models.dropout import Draw, DroppedHeads
from trainplan.profiling.models.recompute_on_backward import recomputed_on_backward
from trainplan.profiling.models.rotary import rotated
from trainplan.profiling.models.sublayers import Attention, halves
from trainplan.profiling.models.torch_units.attention_bias import causal_mask_of_last, from_windows, position_bias
from trainplan.profiling.models.torch_units.entry import enter, normed
from trainplan.profiling.models.torch_units.parameters import Parameters, Shard


def attention_of_whole_samples(
    attention: Attention,
    parameters: Parameters,
    entered: Tensor,
    shard: Shard,
    memory: Tensor | None,
    draw: Draw | None,
    recompute: bool,
) -> Tensor:
    """Attention of a tensor-parallel rank's heads on whole samples: the partial output, (samples x tokens, hidden), to be
    summed over the tensor-parallel ranks.

    parameters: the rank's slices of the sub-layer's parameters, by name. entered: the sub-layer's normed input, (samples,
    tokens, hidden); with windows, (samples x windows, tokens of a window, hidden). shard: the rank's index in its
    tensor-parallel group, and the group's size. memory: the hidden states that a cross-attention takes keys and values from,
    (samples, memory tokens, hidden); None for self-attention. draw: seed, step and samples that determine the dropout masks;
    None for no dropout. recompute: whether the backward pass computes scores and probabilities again.
    """
    tokens, heads, kv_heads = entered.shape[:2], attention.heads // shard.tp, attention.kv_heads // shard.tp
    if attention.packed:
        qkv = F.linear(entered, parameters["qkv.weight"].flatten(0, 1), _flat(parameters.get("qkv.bias")))
        q, k, v = qkv.view(*tokens, 3, heads, attention.width).permute(2, 0, 3, 1, 4).unbind(0)
    else:
        source = entered if memory is None else memory
        q = F.linear(entered, parameters["q.weight"], parameters.get("q.bias")).view(*tokens, heads, attention.width)
        kv = F.linear(source, parameters["kv.weight"].flatten(0, 1), _flat(parameters.get("kv.bias")))
        k, v = kv.view(*source.shape[:2], 2, kv_heads, attention.width).unbind(2)
        q, k = _normed_and_rotated(attention, parameters, q, "q_norm"), _normed_and_rotated(attention, parameters, k, "k_norm")
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    mixed = mixed_values(attention, parameters, q, k, v, shard, draw, recompute)
    y = output_projection(parameters, mixed, shard)
    return from_windows(attention, y).reshape(-1, attention.hidden) if attention.window else y


def attention_of_piece(
    attention: Attention,
    parameters: Parameters,
    entered: Tensor,
    keys: Tensor,
    shard: Shard,
    draw: Draw | None,
    recompute: bool,
) -> Tensor:
    """Attention of a tensor-parallel rank's heads on one piece of each sample, under context parallelism: partial output,
    (samples x tokens, hidden).

    attention: the sub-layer, with its sizes. parameters: the rank's slices of the sub-layer's parameters, by name. entered:
    the normed input of the piece's tokens, (samples, tokens, hidden). keys: keys and values of all tokens of the whole
    samples, in order, (samples, all tokens, 2, heads, width), as `keys_and_values` computes them by piece. shard: the rank's
    index in its tensor-parallel group, and the group's size, and the index of its piece. draw: seed, step and samples that
    determine the dropout masks; None for no dropout. recompute: whether the backward pass computes scores and probabilities
    again.
    """
    q = _queries(attention, parameters, entered, shard).transpose(1, 2)
    k, v = keys.transpose(1, 3).unbind(2)
    if not attention.in_halves:
        mixed = mixed_values(attention, parameters, q, k, v, shard, draw, recompute)
    else:  # the two halves of a piece lie apart in the sample, and meet different keys
        indices, columns = halves(shard.piece, attention.pieces, attention.tokens), q.shape[1] * attention.width
        pairs = zip(q.chunk(2, 2), indices, strict=True)
        results = [
            mixed_values(attention, parameters, half, k, v, shard, draw, recompute, first.start) for half, first in pairs
        ]
        mixed = torch.cat([result.view(len(q), -1, columns) for result in results], 1).view(-1, columns)
    return output_projection(parameters, mixed, shard)


def keys_and_values(attention: Attention, parameters: Parameters, x: Tensor, shard: Shard, entered: bool = False) -> Tensor:
    """Keys and values of the tokens in x, (samples, tokens, 2, heads, width), for the heads of one tensor-parallel rank.

    attention: the sub-layer, with its sizes. parameters: the rank's slices of the sub-layer's parameters, by name. x: the
    sub-layer's input, (samples, tokens, hidden), or if `entered` its normed input, as `enter` returns it. shard: the rank's
    index in its tensor-parallel group, and the group's size, and the index of the piece of each sample that x has.
    """
    inside, name = x if entered else enter(attention, parameters, x), "qkv" if attention.packed else "kv"
    weight, bias = parameters[f"{name}.weight"], parameters.get(f"{name}.bias")
    if attention.packed:  # queries come first
        weight, bias = weight[1:], None if bias is None else bias[1:]
    kv = F.linear(inside, weight.flatten(0, 1), _flat(bias)).view(*inside.shape[:2], 2, -1, attention.width)
    if not (attention.normed_heads or attention.rotary):
        return kv
    k, v = kv.unbind(2)
    return torch.stack((_normed_and_rotated(attention, parameters, k, "k_norm", shard.piece), v), 2)


def queries_keys_and_values(
    attention: Attention, parameters: Parameters, x: Tensor, shard: Shard, entered: bool = False
) -> Tensor:
    """Queries, keys and values of the tokens in x as one tensor: (samples, tokens, heads of all three, width), in this order.

    attention: the sub-layer, with its sizes. parameters: the rank's slices of the sub-layer's parameters, by name. x: the
    sub-layer's input, (samples, tokens, hidden), or if `entered` its normed input, as `enter` returns it. shard: the rank's
    index in its tensor-parallel group, and the group's size, and the index of the piece of each sample that x has.
    """
    inside = x if entered else enter(attention, parameters, x)
    if attention.packed:
        qkv = F.linear(inside, parameters["qkv.weight"].flatten(0, 1), _flat(parameters.get("qkv.bias")))
        return qkv.view(*inside.shape[:2], -1, attention.width)
    kv = keys_and_values(attention, parameters, inside, shard, entered=True)
    return torch.cat((_queries(attention, parameters, inside, shard), kv.flatten(2, 3)), 2)


def _queries(attention: Attention, parameters: Parameters, entered: Tensor, shard: Shard) -> Tensor:
    """Queries of the tokens in a normed input, (samples, tokens, heads, width), for the heads of one tensor-parallel rank.

    attention: the sub-layer, with its sizes. parameters: the rank's slices of the sub-layer's parameters, by name. entered:
    the normed input, (samples, tokens, hidden). shard: the rank's index in its tensor-parallel group, and the group's size,
    and the index of the piece of each sample that `entered` has.
    """
    packed = attention.packed
    name = "qkv" if packed else "q"
    weight, bias = parameters[f"{name}.weight"], parameters.get(f"{name}.bias")
    if packed:  # queries come first
        weight, bias = weight[0], None if bias is None else bias[0]
    q = F.linear(entered, weight, bias)
    q = q.view(*entered.shape[:2], attention.heads // shard.tp, attention.width)
    return _normed_and_rotated(attention, parameters, q, "q_norm", shard.piece)


def _normed_and_rotated(attention: Attention, parameters: Parameters, x: Tensor, norm: str, piece: int = 0) -> Tensor:
    """Queries or keys x, (samples, tokens, heads, width), normed per head and turned by rotary positions if the model has
    these.

    attention: the sub-layer, with its sizes. norm: the beginning of the names of the norm's parameters, "q_norm" or "k_norm".
    piece: index of the piece of each sample that the tokens are, if context parallelism cuts samples; else 0.
    """
    if attention.normed_heads:
        x = normed(attention, parameters, x, norm)
    return rotated(attention, x, piece) if attention.rotary else x


def core_of_heads(attention: Attention, q: Tensor, k: Tensor, v: Tensor, shard: Shard, draw: Draw | None) -> Tensor:
    """Scaled dot-product attention on whole samples for some of the heads, after context-parallel ranks have exchanged heads.

    attention: the sub-layer, as it is on one piece of each sample. q, k, v: queries, keys and values of all tokens, (samples,
    heads, tokens, width). shard: index and size that state which of all heads they are (heads are divided equally). draw:
    seed, step and samples that determine the dropout masks; None for no dropout. Returns the values weighted by their
    probabilities, (samples, tokens, heads, width).
    """
    whole = replace(attention, tokens=attention.tokens * attention.pieces, pieces=1, by_heads=False)
    return mixed_values(whole, {}, q, k, v, shard, draw, False).view(len(q), q.shape[2], q.shape[1], -1)


def mixed_values(
    attention: Attention,
    parameters: Parameters,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    shard: Shard,
    draw: Draw | None,
    recompute: bool,
    first_query: int = 0,
) -> Tensor:
    """Scaled dot-product attention of a tensor-parallel rank's heads: values weighted by their probabilities, (samples x
    tokens, heads * head width).

    q: queries, (samples, heads, tokens, width). k and v: keys and values, (samples, key heads, keys, width). parameters: the
    rank's slices of the sub-layer's parameters, by name, of which only the table of position biases is read. shard: the rank's
    index in its tensor-parallel group, and the group's size. draw: seed, step and samples that determine the dropout masks;
    None for no dropout. recompute: whether the backward pass computes scores and probabilities again. first_query: index, among
    the keys, of the first query; queries are consecutive."""
    heads, columns, scale = q.shape[1], q.shape[1] * attention.width, attention.scale or attention.width**-0.5
    dropping = None
    if draw is not None and attention.attention_dropout:
        dropping = DroppedHeads(draw, attention.attention_dropout, shard.index * heads, attention.heads, first_query)
    if dropping is not None or attention.blockwise:
        slopes = attention.slopes[shard.index * heads :][:heads]
        scores = Scores(scale, attention.softcap, slopes, attention.causal, attention.sliding, first_query)
        return blockwise_attention(q, k, v, scores, dropping).view(-1, columns)
    bias, grouped = position_bias(attention, parameters, q, shard), heads != k.shape[1]
    causal = attention.causal and not attention.relative  # a learned bias has the mask in it
    if causal and attention.pieces > 1:
        seen_keys = first_query + q.shape[2]
        k, v, causal = k[:, :, :seen_keys], v[:, :, :seen_keys], False
        bias = causal_mask_of_last(q.shape[2], seen_keys, q.dtype, q.device)
    if attention.shift:  # the mask is of the windows of one image
        q, k, v = (t.unflatten(0, (-1, attention.tokens // attention.window**2)) for t in (q, k, v))
    options: dict[str, Any] = {"attn_mask": bias, "is_causal": causal, "enable_gqa": grouped, "scale": scale}

    def core(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Values weighted by their probabilities, (.., heads, tokens, width), by torch's kernel."""
        return F.scaled_dot_product_attention(q, k, v, **options)

    mixed = recomputed_on_backward(core, q, k, v)[0] if recompute else core(q, k, v)
    return mixed.transpose(-2, -3).reshape(-1, columns)


def output_projection(parameters: Parameters, mixed: Tensor, shard: Shard) -> Tensor:
    """Attention's output projection: a tensor-parallel rank's partial output, (samples x tokens, hidden), to be summed over the
    tensor-parallel ranks.

    parameters: the rank's slices of the sub-layer's parameters, by name. mixed: weighted values of the rank's heads, (samples x
    tokens, heads * head width). shard: the rank's index in its tensor-parallel group, and the group's size; rank 0 alone adds
    the bias."""
    return F.linear(mixed, parameters["out.weight"], parameters.get("out.bias") if shard.first else None)


def _flat(bias: Tensor | None) -> Tensor | None:
    """A bias of several projections, (projections, columns), as one vector; None stays None."""
    return None if bias is None else bias.flatten()
