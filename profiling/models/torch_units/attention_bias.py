"""Numbers added to attention scores (learned position biases, masks of later tokens), and the windows of Swin Transformers.

Everything that depends on shapes alone is computed once and cached; callers must not change it in place.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from trainplan.profiling.models.sublayers import Attention
from trainplan.profiling.models.torch_units.parameters import Parameters, Shard


def position_bias(attention: Attention, parameters: Parameters, q: Tensor, shard: Shard) -> Tensor | None:
    """Numbers to add to a rank's attention scores: learned position biases, and the masks of T5 and Swin; None without such
    biases.

    Shape (heads, queries, keys), or with shifted windows (windows, heads, queries, keys). parameters: the rank's slices of
    the sub-layer's parameters, by name; if the table of biases, `relative.weight`, is not among them, because another layer
    owns it, all biases are 0. q: a tensor whose dtype and device the result has. shard: the rank's index in its
    tensor-parallel group, and the group's size.
    """
    if not attention.relative:
        return None
    device, dtype = q.device, q.dtype
    table = parameters.get("relative.weight")
    if table is None:  # another layer's table: its gradient flows through that layer's graph
        table = _zero_table(attention.buckets, attention.heads // shard.tp, dtype, device)
    if attention.relative == "swin":
        bias = table[_window_rows(attention.window, device)].permute(2, 0, 1)
        if attention.shift:
            return bias + _shift_mask(attention.tokens, attention.window, attention.shift, dtype, device).unsqueeze(1)
        return bias
    bias = table[t5_buckets(attention.tokens, attention.buckets, attention.relative == "t5", device)].permute(2, 0, 1)
    if attention.causal:
        bias = bias + _causal_mask(attention.tokens, dtype, device)
    return bias


@cache
def _zero_table(buckets: int, heads: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A table of position biases that are all 0, (buckets, heads); cached, so it must not be changed in place."""
    return torch.zeros(buckets, heads, dtype=dtype, device=device)


@cache
def _causal_mask(tokens: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Mask to add to scores, (tokens, tokens): minus infinity if the key comes after the query, else 0. Cached."""
    return torch.full((tokens, tokens), float("-inf"), dtype=dtype, device=device).triu_(1)


@cache
def causal_mask_of_last(queries: int, keys: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Causal mask to add to scores, (queries, keys), if the queries are the last tokens of those that have keys.

    It is minus infinity for keys after the query, else 0. Kernels of GPUs need no such mask in memory: there the result is
    torch's symbol for it, a subclass of Tensor. Cached, so it must not be changed in place.
    """
    if device.type == "cuda":
        return causal_lower_right(queries, keys)
    return torch.full((queries, keys), float("-inf"), dtype=dtype, device=device).triu_(1 + keys - queries)


@cache
def t5_buckets(tokens: int, buckets: int, both_directions: bool, device: torch.device) -> Tensor:
    """Row of T5's bias table for every (query, key) pair, (tokens, tokens) (Raffel et al., 2020, Section 2.1).

    buckets: rows of the table. Half of the rows are for single distances, the others for ranges of distances that grow
    logarithmically up to 128. With `both_directions` earlier and later keys have half of the table each; without it all later
    keys count as distance 0. Cached, so it must not be changed in place.
    """
    indices = torch.arange(tokens)
    distance = indices[None, :] - indices[:, None]
    first = torch.zeros_like(distance)
    if both_directions:
        buckets //= 2
        first = (distance > 0).long() * buckets
        distance = distance.abs()
    else:
        distance = -distance.clamp(max=0)
    near = buckets // 2
    far = near + (torch.log(distance.clamp(min=1).float() / near) / math.log(128 / near) * (buckets - near)).long()
    return (first + torch.where(distance < near, distance, far.clamp(max=buckets - 1))).to(device)


@cache
def _window_rows(window: int, device: torch.device) -> Tensor:
    """Row of Swin's bias table for every (query, key) pair of a window of side `window`, (window^2, window^2) (Liu et al.,
    2021, Eq. 4)."""
    indices = torch.cartesian_prod(torch.arange(window), torch.arange(window))
    offset = indices[:, None] - indices[None, :] + window - 1
    return (offset[..., 0] * (2 * window - 1) + offset[..., 1]).to(device)


@cache
def _shift_mask(tokens: int, window: int, shift: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Mask to add to the scores of shifted windows, (windows, window^2, window^2) (Liu et al., 2021, Section 3.2).

    It is -100 between tokens that were not neighbours before the image of `tokens` was rolled by `shift`, else 0.
    """
    side = math.isqrt(tokens)
    regions = torch.bucketize(torch.arange(side), torch.tensor([side - window, side - shift]), right=True)
    labels = (regions[:, None] * 3 + regions[None, :]).view(1, side, side, 1)
    flat = _windows(labels, window).squeeze(-1)
    return torch.where(flat[:, None] != flat[:, :, None], -100.0, 0.0).to(device, dtype)


def _windows(x: Tensor, window: int) -> Tensor:
    """Cut images, (samples, side, side, channels), into square windows: (samples x windows, window^2, channels). window: a
    window's side."""
    rows, side, _, channels = x.shape
    x = x.view(rows, side // window, window, side // window, window, channels)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, window**2, channels)


def into_windows(attention: Attention, x: Tensor) -> Tensor:
    """Roll the tokens of square images and cut them into the attention's windows: (samples x windows, window^2, channels).

    attention: has the side of windows and the shift by which images are rolled. x: tokens of the images in row order, (samples,
    tokens, channels).
    """
    side = math.isqrt(attention.tokens)
    x = x.view(x.shape[0], side, side, x.shape[-1])
    if attention.shift:
        x = x.roll((-attention.shift, -attention.shift), (1, 2))
    return _windows(x, attention.window)


def from_windows(attention: Attention, y: Tensor) -> Tensor:
    """The inverse of `into_windows`: put the tokens of windows together to images again, (samples, side, side, channels).

    attention: has the side of windows and the shift by which images were rolled. y: tokens ordered by image and window,
    (samples x tokens, channels).
    """
    side, w = math.isqrt(attention.tokens), attention.window
    rows = y.shape[0] // attention.tokens
    y = y.view(rows, side // w, side // w, w, w, -1).permute(0, 1, 3, 2, 4, 5).reshape(rows, side, side, -1)
    return y.roll((attention.shift, attention.shift), (1, 2)) if attention.shift else y
