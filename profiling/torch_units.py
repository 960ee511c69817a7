"""The sub-layers in torch, as partial functions of one tensor-parallel rank. What is measured is what is executed.

Each function maps (parameters of the shard, input) to the rank's partial output; the sum over the ranks is the sub-layer's
output (the head's outputs are the shards of the logits instead). No function communicates.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from torch.nn import functional as F
from trainplan.profiling.models import Kind, Model, Parameter, shard_bounds

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Shard:
    """Place of a rank in its tensor-parallel group. Rank 0 also adds what must be added once."""

    tp: int = 1
    index: int = 0

    @property
    def first(self) -> bool:
        return self.index == 0


def forward(model: Model, kind: Kind, parameters: dict[str, Tensor], x: Tensor, shard: Shard) -> Tensor:
    """Partial output, (rows, sequence, hidden); for the head the logits' shard, (rows, sequence, vocabulary / tp)."""
    return _FORWARD[kind](model, parameters, x, shard)


def _normed(model: Model, p: dict[str, Tensor], x: Tensor) -> Tensor:
    return F.layer_norm(x, (model.hidden,), p["norm.weight"], p["norm.bias"], model.norm_epsilon)


def _with_residual(model: Model, y: Tensor, x: Tensor, normed: Tensor, shard: Shard) -> Tensor:
    """y, (tokens, hidden), plus the residual on rank 0. y is no view, so that adding in place costs the backward nothing."""
    if shard.first:
        y.add_((normed if model.post_norm else x).view_as(y))
    return y.view_as(x)


def _embedding(model: Model, p: dict[str, Tensor], tokens: Tensor, shard: Shard) -> Tensor:
    if shard.tp == 1:
        y = F.embedding(tokens, p["tokens.weight"])
    else:
        low, high = shard_bounds(model.vocabulary, shard.tp, shard.index)
        outside = (tokens < low) | (tokens >= high)
        y = F.embedding((tokens - low).masked_fill_(outside, 0), p["tokens.weight"])
        y = y.masked_fill_(outside.unsqueeze(-1), 0.0)
    if shard.first:
        y = y.add_(F.embedding(torch.arange(tokens.shape[1], device=tokens.device), p["positions.weight"]))
        if model.token_types:
            y = y.add_(F.embedding(torch.zeros_like(tokens), p["types.weight"]))
    return y


def _attention(model: Model, p: dict[str, Tensor], x: Tensor, shard: Shard) -> Tensor:
    rows, length, _ = x.shape
    normed = _normed(model, p, x)
    weight, bias = p["qkv.weight"], p["qkv.bias"]
    heads, width = model.heads // shard.tp, model.hidden // model.heads
    qkv = F.linear(normed, weight.flatten(0, 1), bias.flatten())
    q, k, v = qkv.view(rows, length, 3, heads, width).permute(2, 0, 3, 1, 4).unbind(0)
    causal = model.family == "gpt2"
    if model.eager_attention:
        scores = (q @ k.mT).mul_(width**-0.5)
        if causal:
            ahead = torch.ones(length, length, dtype=torch.bool, device=x.device).triu_(1)
            scores = scores.masked_fill_(ahead, float("-inf"))
        mixed = scores.softmax(-1) @ v
    else:
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    mixed = mixed.transpose(1, 2).reshape(rows * length, heads * width)
    y = F.linear(mixed, p["out.weight"], p["out.bias"] if shard.first else None)
    return _with_residual(model, y, x, normed, shard)


def _ffn(model: Model, p: dict[str, Tensor], x: Tensor, shard: Shard) -> Tensor:
    normed = _normed(model, p, x)
    inner = F.linear(normed.view(-1, model.hidden), p["up.weight"], p["up.bias"])
    inner = F.gelu(inner, approximate="tanh" if model.family == "gpt2" else "none")
    y = F.linear(inner, p["down.weight"], p["down.bias"] if shard.first else None)
    return _with_residual(model, y, x, normed, shard)


def _head(model: Model, p: dict[str, Tensor], x: Tensor, shard: Shard) -> Tensor:
    x = _normed(model, p, x)
    if model.family == "bert":
        x = F.gelu(F.linear(x, p["dense.weight"], p["dense.bias"]))
        x = F.layer_norm(x, (model.hidden,), p["dense_norm.weight"], p["dense_norm.bias"], model.norm_epsilon)
    return F.linear(x, p["logits.weight"], p.get("logits.bias"))


_FORWARD = {"embedding": _embedding, "attention": _attention, "ffn": _ffn, "head": _head}


def whole_parameters(model: Model, kind: Kind, seed: int) -> dict[str, Tensor]:
    """Full initial parameters of a unit, the same on every rank for one seed: normal(0, 0.02); norms 1 and 0, biases 0.

    Biases and norms get small noise so that no gradient is compared only at a special point.
    """
    generator = torch.Generator().manual_seed(seed)
    values = {}
    for parameter in model.parameters(kind):
        value = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).mul_(0.02)
        if "norm.weight" in parameter.name:
            value += 1.0
        values[parameter.name] = value.to(DTYPES[model.dtype])
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


def flat_layout(model: Model, kind: Kind, shard: Shard) -> list[tuple[str, int, int, tuple[int, ...]]]:
    """(name, start, end, shape) of each parameter in a rank's flat buffer: split ones first, then the replicated ones."""
    layout, start = [], 0
    for parameter in sorted(model.parameters(kind), key=lambda p: p.split is None):
        shape = parameter.shard_shape(shard.tp, shard.index)
        layout.append((parameter.name, start, start + prod(shape), shape))
        start += prod(shape)
    return layout
