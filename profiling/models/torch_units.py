"""The sub-layers in torch, as partial functions of one tensor-parallel rank. What is measured is what is executed.

Each function maps (parameters of the shard, input) to the rank's partial output; the sum over the ranks is the sub-layer's
output (the head's outputs are the shards of the logits instead). No function communicates.

With sequence parallelism a sub-layer runs in three pieces, of which `forward` is the whole: `enter`, what comes before the
matrices, on the rank's own tokens; `matrices`, on all tokens, a partial output; `leave`, dropout and residual, on the rank's
own tokens of the sum. What is gathered and scattered between them, programs say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right
from trainplan.profiling.models.blockwise import Scores, blockwise_attention
from trainplan.profiling.models.dropout import Draw, Heads, drop, hidden_mask
from trainplan.profiling.models.fused import gated, rms_norm
from trainplan.profiling.models.model import Model
from trainplan.profiling.models.recompute_on_backward import again, forgetting
from trainplan.profiling.models.rotary import rotated
from trainplan.profiling.models.sublayers import (
    Attention,
    FeedForward,
    InputProjection,
    LanguageHead,
    Norm,
    ParallelBlock,
    Parameter,
    PatchMerging,
    Sublayer,
    TokenEmbedding,
    Upsample,
    ValueHead,
    halves,
    shard_bounds,
)

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "relu2": lambda x: F.relu(x).square(),
}


@dataclass(frozen=True)
class Shard:
    """Place of a rank in its tensor-parallel group. Rank 0 also adds what must be added once. piece: of samples that are cut,
    the piece that the rank works on."""

    tp: int = 1
    index: int = 0
    piece: int = 0

    @property
    def first(self) -> bool:
        """Whether this is rank 0 of the group."""
        return self.index == 0


Parameters = dict[str, Tensor]


def forward(
    part: Sublayer,
    parameters: Parameters,
    x: Tensor,
    shard: Shard,
    memory: Tensor | None = None,
    draw: Draw | None = None,
    modules: Collection[str] = (),
    keys: Tensor | None = None,
) -> Tensor:
    """Partial output, (rows, tokens, hidden); for a language head the logits' shard, (rows, tokens, vocabulary / tp).

    x: (rows, tokens, hidden); token indices for a token embedding, (rows, groups, features) for an input projection.
    memory: the hidden states that a cross-attention reads, (rows, memory tokens, hidden). draw: what masks of dropout follow
    from; without it nothing is dropped, as when a model is evaluated. modules: of which the graph keeps nothing, and that the
    backward pass computes again (see `sublayers.modules`). keys: of attention on pieces of samples, what `keys_and_values`
    gives of all of their tokens, in order.
    """
    if isinstance(part, ParallelBlock):
        return _parallel_block(part, parameters, x, shard, draw)
    if not isinstance(part, Attention | FeedForward | LanguageHead | TokenEmbedding):
        return _FORWARD[type(part)](part, parameters, x, shard)
    recipe = None
    if isinstance(part, Attention) and part.by_heads:  # what comes before the core has been
        inside = enter(part, parameters, x, draw) if part.post_norm else x
    elif "norms" not in modules or part.kind == "embedding":
        inside = enter(part, parameters, x, draw)
    else:
        names = [name for name in parameters if name.startswith(("norm.", "dense.", "dense_norm."))]
        inside, recipe = again(partial(_entered, part, names, draw), x, *(parameters[name] for name in names))
    with forgetting(recipe):
        y = matrices(part, parameters, inside, shard, memory, draw, modules, keys)
    residual = residual_of(part, x, inside) if shard.first else None
    if part.sandwich:
        y = _normed(part, parameters, y, "post_norm")
    y = leave(part, y, residual, draw)  # a partial sum is dropped as the whole is: each number on all ranks or none
    return y.view_as(x) if isinstance(part, Attention | FeedForward) else y


def enter(part: Sublayer, p: Parameters, x: Tensor, draw: Draw | None = None) -> Tensor:
    """What the matrices of a sub-layer work on, (rows, tokens, hidden), of any of the tokens; where it has windows, they take
    the place of rows. An embedding's is its input."""
    if isinstance(part, TokenEmbedding):
        return x
    inside = _normed(part, p, x)
    if isinstance(part, Attention):
        inside = drop(inside, draw, "input", part.input_dropout)
        return _into_windows(part, inside) if part.window else inside
    if isinstance(part, LanguageHead):
        if part.transform:
            inside = ACTIVATIONS[part.transform](F.linear(inside, p["dense.weight"], p["dense.bias"]))
            inside = _normed(part, p, inside, "dense_norm")
        if part.scale != 1:
            inside = inside * part.scale
    return inside


def _entered(part: Sublayer, names: Sequence[str], draw: Draw | None, x: Tensor, *values: Tensor) -> Tensor:
    return enter(part, dict(zip(names, values, strict=True)), x, draw)


def matrices(
    part: Sublayer,
    p: Parameters,
    inside: Tensor,
    shard: Shard,
    memory: Tensor | None = None,
    draw: Draw | None = None,
    modules: Collection[str] = (),
    keys: Tensor | None = None,
) -> Tensor:
    """Partial sums of a sub-layer's output on all tokens, before dropout and residual, (rows x tokens, hidden), of an embedding
    (rows, tokens, hidden); a head's logits. They are no view, so that adding in place costs the backward pass nothing."""
    if isinstance(part, TokenEmbedding):
        return _token_embedding(part, p, inside, shard)
    if isinstance(part, Attention):
        if keys is not None and part.by_heads:
            return F.linear(keys.flatten(2).flatten(0, 1), p["out.weight"], p.get("out.bias") if shard.first else None)
        if keys is not None:
            return _attention_of_piece(part, p, inside, keys, shard, draw, "attention" in modules)
        return _attention(part, p, inside, shard, memory, draw, "attention" in modules)
    if isinstance(part, FeedForward):
        return _feed_forward(part, p, inside, shard, "activation" in modules)
    logits = F.linear(inside, p["logits.weight"], p.get("logits.bias"))
    cap = getattr(part, "softcap", 0.0)
    return logits.div_(cap).tanh_() * cap if cap else logits


def residual_of(part: Sublayer, x: Tensor, inside: Tensor) -> Tensor | None:
    """What joins the output behind a sub-layer's matrices: its input, or in post-norm chains what they work on."""
    if isinstance(part, Attention | FeedForward):
        return inside if part.post_norm else x
    return None


def leave(part: Sublayer, y: Tensor, residual: Tensor | None, draw: Draw | None = None) -> Tensor:
    """The output of a sub-layer, in the place of what its matrices have summed: some numbers dropped, and the residual added.
    Of any of the tokens."""
    y = drop(y, draw, "output", 0.0 if isinstance(part, LanguageHead) else part.dropout)
    return y if residual is None else y.add_(residual.view_as(y))


def leave_gradient(part: Sublayer, gradient: Tensor, draw: Draw | None) -> Tensor:
    """The gradient of what `leave` drops numbers of, a copy."""
    assert draw is not None
    return hidden_mask(draw, "output", part.dropout, gradient).drop(gradient.clone(memory_format=torch.contiguous_format))


def _normed(part: Sublayer, p: Parameters, x: Tensor, name: str = "norm") -> Tensor:
    weight = p[f"{name}.weight"]
    if part.norm == "rms":
        return rms_norm(x, weight, part.epsilon)
    return F.layer_norm(x, weight.shape, weight, p.get(f"{name}.bias"), part.epsilon)


def _only_first(y: Tensor, shard: Shard) -> Tensor:
    """The whole of what every rank has computed alike, counted once in the sum over ranks."""
    return y if shard.first else y * 0.0


def _token_embedding(part: TokenEmbedding, p: Parameters, tokens: Tensor, shard: Shard) -> Tensor:
    if shard.tp == 1:
        y = F.embedding(tokens, p["tokens.weight"], part.padding)
    else:
        low, high = shard_bounds(part.vocabulary, shard.tp, shard.index)
        outside = (tokens < low) | (tokens >= high)
        padding = None if part.padding is None or not low <= part.padding < high else part.padding - low
        y = F.embedding((tokens - low).masked_fill_(outside, 0), p["tokens.weight"], padding)
        y = y.masked_fill_(outside.unsqueeze(-1), 0.0)
    if part.scale != 1:
        y = y.mul_(part.scale)
    if shard.first:
        if part.positions:
            parts = halves(shard.piece, part.pieces, part.tokens) if part.pieces > 1 else (range(tokens.shape[1]),)
            places = torch.cat([torch.arange(each.start, each.stop, device=tokens.device) for each in parts])
            y = y.add_(F.embedding(places.add_(part.first_position), p["positions.weight"]))
        if part.token_types:
            y = y.add_(F.embedding(torch.zeros_like(tokens), p["types.weight"]))
    return y


def _input_projection(part: InputProjection, p: Parameters, x: Tensor, shard: Shard) -> Tensor:
    y = F.linear(x, p["patches.weight"], p["patches.bias"]).view(x.shape[0], part.made_tokens, part.hidden)
    if part.class_token:
        y = torch.cat((p["class.weight"].expand(x.shape[0], 1, -1), y), 1)
    if part.positions:
        y = y + p["positions.weight"] if not part.class_token else y.add_(p["positions.weight"])
    if part.normed:
        y = _normed(part, p, y)
    return _only_first(y, shard)


def _attention(
    part: Attention, p: Parameters, inside: Tensor, shard: Shard, memory: Tensor | None, draw: Draw | None, recomputed: bool
) -> Tensor:
    tokens, (heads, kv_heads) = inside.shape[:2], (part.heads // shard.tp, part.kv_heads // shard.tp)
    if part.packed:
        qkv = F.linear(inside, p["qkv.weight"].flatten(0, 1), _flat(p.get("qkv.bias")))
        q, k, v = qkv.view(*tokens, 3, heads, part.width).permute(2, 0, 3, 1, 4).unbind(0)
    else:
        source = inside if memory is None else memory
        q = F.linear(inside, p["q.weight"], p.get("q.bias")).view(*tokens, heads, part.width)
        kv = F.linear(source, p["kv.weight"].flatten(0, 1), _flat(p.get("kv.bias")))
        k, v = kv.view(*source.shape[:2], 2, kv_heads, part.width).unbind(2)
        q, k = _placed(part, p, q, "q_norm"), _placed(part, p, k, "k_norm")
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    mixed = mixed_values(part, p, q, k, v, shard, draw, recomputed)
    y = F.linear(mixed, p["out.weight"], p.get("out.bias") if shard.first else None)
    return _from_windows(part, y).reshape(-1, part.hidden) if part.window else y


def _placed(part: Attention, p: Parameters, x: Tensor, norm: str, piece: int = 0) -> Tensor:
    """Queries or keys, (rows, tokens, heads, width), normed where heads are, and turned by their positions."""
    if part.normed_heads:
        x = _normed(part, p, x, norm)
    return rotated(part, x, piece) if part.rotary else x


def keys_and_values(part: Attention, p: Parameters, x: Tensor, shard: Shard, entered: bool = False) -> Tensor:
    """The keys and values of an attention's own tokens, (rows, tokens, 2, heads, width). entered: whether x is what `enter`
    gave already."""
    inside, name = x if entered else enter(part, p, x), "qkv" if part.packed else "kv"
    weight, bias = p[f"{name}.weight"], p.get(f"{name}.bias")
    if part.packed:  # queries come first
        weight, bias = weight[1:], None if bias is None else bias[1:]
    kv = F.linear(inside, weight.flatten(0, 1), _flat(bias)).view(*inside.shape[:2], 2, -1, part.width)
    if not (part.normed_heads or part.rotary):
        return kv
    k, v = kv.unbind(2)
    return torch.stack((_placed(part, p, k, "k_norm", shard.piece), v), 2)


def queries_keys_and_values(part: Attention, p: Parameters, x: Tensor, shard: Shard, entered: bool = False) -> Tensor:
    """The heads of queries, then keys, then values of an attention's own tokens, (rows, tokens, heads, width). entered: as of
    `keys_and_values`."""
    inside = x if entered else enter(part, p, x)
    if part.packed:
        made = F.linear(inside, p["qkv.weight"].flatten(0, 1), _flat(p.get("qkv.bias")))
        return made.view(*inside.shape[:2], -1, part.width)
    kv = keys_and_values(part, p, inside, shard, entered=True)
    return torch.cat((_queries_of_piece(part, p, inside, shard), kv.flatten(2, 3)), 2)


def core_of_heads(part: Attention, q: Tensor, k: Tensor, v: Tensor, shard: Shard, draw: Draw | None) -> Tensor:
    """The core of an attention on whole samples, of some of its heads, (rows, heads, tokens, width): the values, mixed by their
    probabilities, (rows, tokens, heads, width). shard: which part of the heads these are."""
    whole = replace(part, tokens=part.tokens * part.pieces, pieces=1, by_heads=False)
    return mixed_values(whole, {}, q, k, v, shard, draw, False).view(len(q), q.shape[2], q.shape[1], -1)


def _attention_of_piece(
    part: Attention, p: Parameters, inside: Tensor, keys: Tensor, shard: Shard, draw: Draw | None, recomputed: bool
) -> Tensor:
    """As `_attention`, of the tokens of one piece of each sample, which meet the keys of all."""
    q = _queries_of_piece(part, p, inside, shard)
    q, (k, v) = q.transpose(1, 2), keys.transpose(1, 3).unbind(2)
    if not part.in_halves:
        mixed = mixed_values(part, p, q, k, v, shard, draw, recomputed)
    else:
        indices, columns = halves(shard.piece, part.pieces, part.tokens), q.shape[1] * part.width
        pairs = zip(q.chunk(2, 2), indices, strict=True)
        each = [mixed_values(part, p, half, k, v, shard, draw, recomputed, first.start) for half, first in pairs]
        mixed = torch.cat([half.view(len(q), -1, columns) for half in each], 1).view(-1, columns)
    return F.linear(mixed, p["out.weight"], p.get("out.bias") if shard.first else None)


def _queries_of_piece(part: Attention, p: Parameters, inside: Tensor, shard: Shard) -> Tensor:
    """The queries of the tokens of one piece of each sample, (rows, tokens, heads, width)."""
    weight, bias = (p["qkv.weight"][0], p.get("qkv.bias")) if part.packed else (p["q.weight"], p.get("q.bias"))
    q = F.linear(inside, weight, bias[0] if part.packed and bias is not None else bias)
    return _placed(part, p, q.view(*inside.shape[:2], part.heads // shard.tp, part.width), "q_norm", shard.piece)


def mixed_values(
    part: Attention,
    p: Parameters,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    shard: Shard,
    draw: Draw | None,
    recomputed: bool,
    query: int = 0,
) -> Tensor:
    """The values of all heads, mixed by their probabilities, (rows x tokens, heads x width). query: the place of the first
    query among the keys, of tokens that are consecutive."""
    heads, columns, scale = q.shape[1], q.shape[1] * part.width, part.scale or part.width**-0.5
    dropping = None
    if draw is not None and part.attention_dropout:
        dropping = Heads(draw, part.attention_dropout, shard.index * heads, part.heads, query)
    if dropping is not None or part.blockwise:
        slopes = part.slopes[shard.index * heads :][:heads]
        scores = Scores(scale, part.softcap, slopes, part.causal, part.sliding, query)
        return blockwise_attention(q, k, v, scores, dropping).view(-1, columns)
    bias, causal, grouped = _bias(part, p, q, shard), part.causal and not part.relative, heads != k.shape[1]
    if causal and part.pieces > 1:
        met = query + q.shape[2]
        k, v, bias, causal = k[:, :, :met], v[:, :, :met], _none_later(q.shape[2], met, q.dtype, q.device), False
    if part.shift:  # the mask is of the windows of one image
        q, k, v = (t.unflatten(0, (-1, part.tokens // part.window**2)) for t in (q, k, v))
    options: dict[str, Any] = {"attn_mask": bias, "is_causal": causal, "enable_gqa": grouped, "scale": scale}

    def core(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, **options)

    mixed = again(core, q, k, v)[0] if recomputed else core(q, k, v)
    return mixed.transpose(-2, -3).reshape(-1, columns)


def _flat(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.flatten()


def _bias(part: Attention, p: Parameters, inside: Tensor, shard: Shard) -> Tensor | None:
    """Learned position biases, (heads, queries, keys), of shifted windows (windows, heads, queries, keys); None without."""
    if not part.relative:
        return None
    device, dtype = inside.device, inside.dtype
    table = p.get("relative.weight")
    if table is None:  # another layer's table: its gradient flows through that layer's graph
        table = _zero_table(part.buckets, part.heads // shard.tp, dtype, device)
    if part.relative == "swin":
        bias = table[_window_places(part.window, device)].permute(2, 0, 1)
        if part.shift:
            return bias + _shift_mask(part.tokens, part.window, part.shift, dtype, device).unsqueeze(1)
        return bias
    bias = table[_t5_places(part.tokens, part.buckets, part.relative == "t5", device)].permute(2, 0, 1)
    if part.causal:
        bias = bias + _future(part.tokens, dtype, device)
    return bias


@cache
def _zero_table(buckets: int, heads: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.zeros(buckets, heads, dtype=dtype, device=device)


@cache
def _future(tokens: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.full((tokens, tokens), float("-inf"), dtype=dtype, device=device).triu_(1)


@cache
def _none_later(queries: int, keys: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """What hides the keys behind each query from it, of queries whose last one meets all keys. Kernels of GPUs need no mask in
    memory; on the CPU layers share one."""
    if device.type == "cuda":
        return causal_lower_right(queries, keys)
    return torch.full((queries, keys), float("-inf"), dtype=dtype, device=device).triu_(1 + keys - queries)


@cache
def _t5_places(tokens: int, buckets: int, both: bool, device: torch.device) -> Tensor:
    """Bucket of every (query, key) pair (Raffel et al., 2020, Section 2.1): near ones alone, far ones by logarithm to 128."""
    indices = torch.arange(tokens)
    distance = indices[None, :] - indices[:, None]
    first = torch.zeros_like(distance)
    if both:
        buckets //= 2
        first = (distance > 0).long() * buckets
        distance = distance.abs()
    else:
        distance = -distance.clamp(max=0)
    near = buckets // 2
    far = near + (torch.log(distance.clamp(min=1).float() / near) / math.log(128 / near) * (buckets - near)).long()
    return (first + torch.where(distance < near, distance, far.clamp(max=buckets - 1))).to(device)


@cache
def _window_places(window: int, device: torch.device) -> Tensor:
    """Row of the bias table for every pair of places in a window (Liu et al., 2021, Eq. 4)."""
    indices = torch.cartesian_prod(torch.arange(window), torch.arange(window))
    offset = indices[:, None] - indices[None, :] + window - 1
    return (offset[..., 0] * (2 * window - 1) + offset[..., 1]).to(device)


@cache
def _shift_mask(tokens: int, window: int, shift: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """-100 between places of a shifted window that were not neighbours before the image was rolled; (windows, w^2, w^2)."""
    side = math.isqrt(tokens)
    regions = torch.bucketize(torch.arange(side), torch.tensor([side - window, side - shift]), right=True)
    labels = (regions[:, None] * 3 + regions[None, :]).view(1, side, side, 1)
    flat = _windows(labels, window).squeeze(-1)
    return torch.where(flat[:, None] != flat[:, :, None], -100.0, 0.0).to(device, dtype)


def _windows(x: Tensor, window: int) -> Tensor:
    """(rows, side, side, c) to (rows x windows, window^2, c)."""
    rows, side, _, channels = x.shape
    x = x.view(rows, side // window, window, side // window, window, channels)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, window**2, channels)


def _into_windows(part: Attention, x: Tensor) -> Tensor:
    side = math.isqrt(part.tokens)
    x = x.view(x.shape[0], side, side, x.shape[-1])
    if part.shift:
        x = x.roll((-part.shift, -part.shift), (1, 2))
    return _windows(x, part.window)


def _from_windows(part: Attention, y: Tensor) -> Tensor:
    side, w = math.isqrt(part.tokens), part.window
    rows = y.shape[0] // part.tokens
    y = y.view(rows, side // w, side // w, w, w, -1).permute(0, 1, 3, 2, 4, 5).reshape(rows, side, side, -1)
    return y.roll((part.shift, part.shift), (1, 2)) if part.shift else y


def _feed_forward(part: FeedForward, p: Parameters, inside: Tensor, shard: Shard, recomputed: bool) -> Tensor:
    flat = inside.view(-1, part.hidden)
    inner = [F.linear(flat, p["up.weight"], p.get("up.bias"))]
    if part.gated:
        inner.append(F.linear(flat, p["gate.weight"], p.get("gate.bias")))
    activated, recipe = again(partial(activated_values, part), *inner) if recomputed else (activated_values(part, *inner), None)
    del inner  # a relu's is not kept
    with forgetting(recipe):
        return F.linear(activated, p["down.weight"], p.get("down.bias") if shard.first else None)


def activated_values(part: FeedForward, up: Tensor, gate: Tensor | None = None) -> Tensor:
    """What lies between the matrices of a feed-forward network: the activation, with its gate where there is one."""
    function = ACTIVATIONS[part.activation]
    return function(up) if gate is None else gated(function, up, gate)


def _parallel_block(part: ParallelBlock, p: Parameters, x: Tensor, shard: Shard, draw: Draw | None) -> Tensor:
    inside = _normed(part, p, x)
    y = _attention(part.attention, p, inside, shard, None, draw, False)
    if not part.shared_norm:
        inside = _normed(part, p, x, "ffn_norm")
    y.add_(_feed_forward(part.feed_forward, p, inside, shard, False))
    return (y.add_(x.view_as(y)) if shard.first else y).view_as(x)


def _norm(part: Norm, p: Parameters, x: Tensor, shard: Shard) -> Tensor:
    return _only_first(_normed(part, p, x), shard)


def _patch_merging(part: PatchMerging, p: Parameters, x: Tensor, shard: Shard) -> Tensor:
    """x: (rows, 4 tokens, hidden / 2). Neighbours in the order down, right, as published."""
    rows, side = x.shape[0], math.isqrt(part.tokens)
    x = x.view(rows, side, 2, side, 2, -1).permute(0, 1, 3, 4, 2, 5).reshape(rows, part.tokens, part.gathered)
    normed = _normed(part, p, x)
    low, high = shard_bounds(part.gathered, shard.tp, shard.index)
    return F.linear(normed[..., low:high], p["reduction.weight"])


def _upsample(part: Upsample, p: Parameters, x: Tensor, shard: Shard) -> Tensor:
    """x: (rows, tokens / 4, from_hidden)."""
    rows, side = x.shape[0], math.isqrt(part.tokens) // 2
    image = x.transpose(1, 2).reshape(rows, part.from_hidden, side, side)
    if part.from_hidden == part.hidden:
        image = F.interpolate(image, scale_factor=2, mode="bicubic")
    else:
        image = F.pixel_shuffle(image, 2)
    return _only_first(image.flatten(2).transpose(1, 2) + p["positions.weight"], shard)


def _value_head(part: ValueHead, p: Parameters, x: Tensor, shard: Shard) -> Tensor:
    x = _normed(part, p, x)
    if part.pool != "none":
        x = x[:, 0] if part.pool == "first" else x.mean(1)
    return F.linear(x, p["values.weight"], p["values.bias"])


_FORWARD: dict[type[Sublayer], Callable[..., Tensor]] = {
    InputProjection: _input_projection,
    Norm: _norm,
    PatchMerging: _patch_merging,
    Upsample: _upsample,
    ValueHead: _value_head,
}


def loss_statistics(logits: Tensor, targets: Tensor, vocabulary: int, shard: Shard) -> Tensor:
    """In place: logits become exp(logits - largest). Returns (3, rows, tokens): largest, sum, target's logit of this shard, in
    float32 where the logits are narrower."""
    low, high = shard_bounds(vocabulary, shard.tp, shard.index)
    largest = logits.amax(-1)
    inside = (targets >= low) & (targets < high)
    place = (targets - low).clamp_(0, high - low - 1)
    target = logits.gather(-1, place.unsqueeze(-1)).squeeze(-1) * inside
    logits.sub_(largest.unsqueeze(-1)).exp_()
    if (dtype := _statistic_dtype(logits)) is logits.dtype:
        return torch.stack((largest, logits.sum(-1), target))
    total = torch.cat([block.sum(-1, dtype=dtype) for block in _blocks(logits)]).view_as(largest)
    return torch.stack((largest.to(dtype), total, target.to(dtype)))


def _statistic_dtype(logits: Tensor) -> torch.dtype:
    return logits.dtype if logits.element_size() >= 4 else torch.float32


def _blocks(logits: Tensor) -> tuple[Tensor, ...]:
    """Views, (tokens, vocabulary) each, of logits narrower than the numbers that they are to be combined with. On the CPU that
    makes copies as wide, so that a view is small there."""
    flat = logits.flatten(0, -2)
    tokens = len(flat) if logits.is_cuda else max(1, 2**16 // logits.shape[-1])
    return flat.split(tokens)


def loss_gradient(logits: Tensor, targets: Tensor, everyone: Tensor, vocabulary: int, shard: Shard, scale: float) -> Tensor:
    """Cross-entropy over the vocabulary's shards; in place of the logits their gradient, softmax less one-hot, times `scale`.

    logits: as `loss_statistics` left them. everyone: its results of all shards, (tp, 3, rows, tokens). Returns the sum of the
    losses times `scale`.
    """
    normaliser, mine = _normaliser(everyone), everyone[shard.index]
    factor = ((mine[0] - normaliser).exp() * scale).unsqueeze(-1)
    if factor.dtype is logits.dtype:
        logits.mul_(factor)
    else:
        blocks = _blocks(logits)
        for block, of_block in zip(blocks, factor.view(-1, 1).split(len(blocks[0])), strict=True):
            block.mul_(of_block)
    low, high = shard_bounds(vocabulary, shard.tp, shard.index)
    inside = (targets >= low) & (targets < high)
    flat, places = logits.flatten(0, -2), (targets - low).clamp_(0, high - low - 1).flatten()
    tokens = torch.arange(len(places), device=places.device)
    flat[tokens, places] = (flat[tokens, places] - inside.flatten().to(factor.dtype) * scale).to(logits.dtype)
    return loss_value(everyone, scale)


def loss_value(everyone: Tensor, scale: float) -> Tensor:
    """The sum of the losses times `scale`, of the statistics of all shards, (tp, 3, rows, tokens)."""
    return (_normaliser(everyone) - everyone[:, 2].sum(0)).sum(dtype=torch.float64) * scale


def _normaliser(everyone: Tensor) -> Tensor:
    """The logarithm of the sum of exponentials over the whole vocabulary."""
    largest = everyone[:, 0].amax(0)
    return largest + (everyone[:, 1] * (everyone[:, 0] - largest).exp()).sum(0).log()


def whole_parameters(part: Sublayer, seed: int) -> Parameters:
    """Full initial parameters of a unit, the same on every rank for one seed: normal(0, 0.02); norms 1 and 0, biases 0.

    Biases and norms get small noise so that no gradient is compared only at a special point.
    """
    generator = torch.Generator().manual_seed(seed)
    values = {}
    for parameter in part.parameters():
        value = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).mul_(0.02)
        if "norm.weight" in parameter.name:
            value += 1.0
        values[parameter.name] = value.to(DTYPES[part.dtype])
    return values


def unit_seed(model: Model, position: int, seed: int) -> int:
    """Seed of the unit at `position`; a tied head draws its matrix where the embedding does."""
    return seed * 100_003 + (0 if model.tied and position == len(model.units) - 1 else position)


def sharded(parameter: Parameter, value: Tensor, shard: Shard) -> Tensor:
    """The slice of a full parameter that a tensor-parallel rank holds (a view)."""
    if parameter.split is None:
        return value
    low, high = shard_bounds(parameter.shape[parameter.split], shard.tp, shard.index)
    return value.narrow(parameter.split, low, high - low)


def flat_layout(part: Sublayer, shard: Shard) -> list[tuple[str, int, int, tuple[int, ...]]]:
    """(name, start, end, shape) of each parameter in a rank's flat buffer: split ones first, then the replicated ones."""
    layout, start = [], 0
    for parameter in sorted(part.parameters(), key=lambda p: p.split is None):
        shape = parameter.shard_shape(shard.tp, shard.index)
        layout.append((parameter.name, start, start + prod(shape), shape))
        start += prod(shape)
    return layout
