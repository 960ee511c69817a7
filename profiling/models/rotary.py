"""Rotary positions (Su et al., 2021) in torch, and what stretches them to longer sequences."""

from __future__ import annotations

import math
from functools import cache
from itertools import chain

import torch
from torch import Tensor
from trainplan.profiling.models.sublayers import Attention, RotaryScaling, halves


def rotated(part: Attention, x: Tensor, piece: int = 0) -> Tensor:
    """x, (rows, tokens, heads, width), with pairs of its first `rotated` numbers turned by the angles of their positions.

    A pair is a number of the first half and its like of the second; or, where interleaved, two neighbours. piece: of a sample
    that is cut, the piece that the tokens are of.
    """
    turned = part.rotated
    indices = halves(piece, part.pieces, part.tokens) if part.pieces > 1 else (range(part.tokens),)
    cosine, sine = _angles(indices, turned, part.rotary, part.scaling, x.dtype, x.device)
    still = [x[..., turned:]] if turned < part.width else []
    if part.interleaved:
        a, b = x[..., :turned].unflatten(-1, (-1, 2)).unbind(-1)
        pairs = torch.stack((a * cosine - b * sine, b * cosine + a * sine), -1).flatten(-2)
        return torch.cat((pairs, *still), -1) if still else pairs
    a, b = x[..., :turned].chunk(2, -1)
    return torch.cat((a * cosine - b * sine, b * cosine + a * sine, *still), -1)


@cache
def _angles(
    places: tuple[range, ...], width: int, theta: float, scaling: RotaryScaling | None, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    rates = theta ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)
    if scaling is not None:
        rates = _stretched(rates, scaling, theta)
    angles = torch.outer(torch.tensor([*chain(*places)], dtype=torch.float32), rates)
    amplitude = 1.0 if scaling is None else scaling.amplitude
    return tuple((part * amplitude).unsqueeze(1).to(device, dtype) for part in (angles.cos(), angles.sin()))


def _stretched(rates: Tensor, scaling: RotaryScaling, theta: float) -> Tensor:
    """Of each pair, its rate or a `factor`-th of it, or something between: `kept` is the rate's share.

    linear: a factor-th for all (Chen et al., 2023). llama3: by how often a pair turns within the original positions, from
    `low` turns or fewer to `high` or more. yarn: by the pair's number, from that which turns `high` times to that which turns
    `low` times (Peng et al., 2023). longrope: each pair by a factor of its own (Ding et al., 2024).
    """
    if scaling.kind == "longrope":
        return rates / torch.tensor(scaling.factors, dtype=rates.dtype)
    if scaling.kind == "linear":
        return rates / scaling.factor
    if scaling.kind == "llama3":
        turns = scaling.positions * rates / (2 * math.pi)
        kept = ((turns - scaling.low) / (scaling.high - scaling.low)).clamp(0, 1)
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
    """The number, not always a whole one, of the pair that turns so often within the original positions."""
    return width * math.log(positions / (times * 2 * math.pi)) / (2 * math.log(theta))
