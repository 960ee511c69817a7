"""Rotary position embeddings (Su et al., 2021) in torch, and their stretching to sequences longer than those of
pre-training."""

from __future__ import annotations

import math
from functools import cache
from itertools import chain

import torch
from torch import Tensor
from trainplan.profiling.models.sublayers import Attention, RotaryScaling, halves


def rotated(attention: Attention, x: Tensor, piece: int = 0) -> Tensor:
    """Apply rotary position embedding to queries or keys x, (samples, tokens, heads, width): pairs of numbers in each head are
    rotated by angles that depend on the token's position. Returns a new tensor of the shape of x.

    attention: the sub-layer, whose fields state the kind of embedding. Pairs are formed of the first `attention.rotated`
    numbers of a head: the i-th number of their first half with the i-th of their second half, or two adjacent numbers if
    `attention.interleaved`. piece: index of the piece of each sample that x has, if context parallelism cuts samples into
    pieces."""
    turned = attention.rotated
    indices = halves(piece, attention.pieces, attention.tokens) if attention.pieces > 1 else (range(attention.tokens),)
    cosine, sine = _angles(indices, turned, attention.rotary, attention.scaling, x.dtype, x.device)
    still = [x[..., turned:]] if turned < attention.width else []
    if attention.interleaved:
        a, b = x[..., :turned].unflatten(-1, (-1, 2)).unbind(-1)
        pairs = torch.stack((a * cosine - b * sine, b * cosine + a * sine), -1).flatten(-2)
        return torch.cat((pairs, *still), -1) if still else pairs
    a, b = x[..., :turned].chunk(2, -1)
    return torch.cat((a * cosine - b * sine, b * cosine + a * sine, *still), -1)


@cache
def _angles(
    indices: tuple[range, ...],
    width: int,
    theta: float,
    scaling: RotaryScaling | None,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """Cosines and sines, two tensors (tokens, 1, width / 2), of the angles by which rotary embedding turns the pairs of each
    token.

    indices: the tokens' indices in their sample, as ranges one after the other. width: count of numbers of a head that are
    turned, two per pair. theta: the base of the rates; pair i turns theta^(-2 i / width) radians per token. scaling: how rates
    are slowed down for long sequences; None for unchanged rates. Cached, so the results must not be changed in place.
    """
    rates = theta ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)
    if scaling is not None:
        rates = _stretched(rates, scaling, theta)
    angles = torch.outer(torch.tensor([*chain(*indices)], dtype=torch.float32), rates)
    amplitude = 1.0 if scaling is None else scaling.amplitude
    return tuple((part * amplitude).unsqueeze(1).to(device, dtype) for part in (angles.cos(), angles.sin()))


def _stretched(rates: Tensor, scaling: RotaryScaling, theta: float) -> Tensor:
    """Rates of turning of all pairs, in radians per token, slowed down for long sequences by a published method; a new vector.

    rates: the rates before, one per pair. theta: their base. A rate becomes kept x rate + (1 - kept) x rate / factor, with a
    share `kept` from 0 to 1 that depends on the scaling's kind. linear: kept is 0 for all pairs (Chen et al., 2023). llama3:
    kept rises with the number of turns that a pair makes within the original positions, from 0 at `low` turns to 1 at `high`.
    yarn: kept falls linearly with the index of the pair, from 1 at the pair that makes `high` turns to 0 at the pair that makes
    `low` turns (Peng et al., 2023). longrope instead divides each rate by a factor of its own (Ding et al., 2024).
    """
    if scaling.kind == "longrope":
        return rates / torch.tensor(scaling.factors, dtype=rates.dtype)
    if scaling.kind == "linear":
        return rates / scaling.factor
    if scaling.kind == "llama3":
        turns = scaling.positions * rates / (2 * math.pi)
        kept = ((turns - scaling.low) / max(scaling.high - scaling.low, 1e-6)).clamp(0, 1)  # Llama 4's are equal
    else:
        ends = (_pair_that_turns(times, 2 * len(rates), scaling.positions, theta) for times in (scaling.high, scaling.low))
        first, last = ends
        if scaling.whole_pairs:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, 2 * len(rates) - 1)
        last += 0.001 if first == last else 0
        kept = 1 - ((torch.arange(len(rates), dtype=torch.float32) - first) / (last - first)).clamp(0, 1)
    return rates * kept + rates / scaling.factor * (1 - kept)


def _pair_that_turns(times: float, width: int, positions: int, theta: float) -> float:
    """Index, as a real number, of the rotary pair that turns `times` times within the sequence length of pre-training.

    width: count of numbers of a head that are turned, two per pair. positions: tokens of that sequence length. theta: the base
    of the rates: pair i turns theta^(-2 i / width) radians per token.
    """
    return width * math.log(positions / (times * 2 * math.pi)) / (2 * math.log(theta))
