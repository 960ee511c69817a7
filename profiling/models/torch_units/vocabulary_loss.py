"""Cross-entropy of logits whose vocabulary is split over tensor-parallel ranks (Shoeybi et al., 2019, Section 3).

Each rank reduces its columns of the logits to three numbers per token (`loss_statistics`). These are all-gathered, and every
rank computes the loss and the gradient of its own logits from them (`loss_value`, `loss_gradient`).
"""

from __future__ import annotations

import torch
from torch import Tensor
from trainplan.profiling.models.sublayers import shard_bounds
from trainplan.profiling.models.torch_units.parameters import Shard


def loss_statistics(logits: Tensor, targets: Tensor, vocabulary: int, shard: Shard) -> Tensor:
    """Reduce a tensor-parallel rank's logits to three numbers per token: the largest logit, the sum of exp(logit - largest),
    and the target's logit.

    logits: (samples, tokens, the rank's columns), overwritten with exp(logit - largest). targets: (samples, tokens), token
    ids of the whole vocabulary, of which the rank has an equal part of the columns; a target of another rank counts as logit
    0. vocabulary: its size. shard: the rank's index in its tensor-parallel group, and the group's size. Returns (3, samples,
    tokens), in float32 if the logits are narrower.
    """
    low, high = shard_bounds(vocabulary, shard.tp, shard.index)
    largest = logits.amax(-1)
    inside = (targets >= low) & (targets < high)
    column = (targets - low).clamp_(0, high - low - 1)
    target = logits.gather(-1, column.unsqueeze(-1)).squeeze(-1) * inside
    logits.sub_(largest.unsqueeze(-1)).exp_()
    if (dtype := _statistic_dtype(logits)) is logits.dtype:
        return torch.stack((largest, logits.sum(-1), target))
    total = torch.cat([block.sum(-1, dtype=dtype) for block in _blocks(logits)]).view_as(largest)
    return torch.stack((largest.to(dtype), total, target.to(dtype)))


def _statistic_dtype(logits: Tensor) -> torch.dtype:
    """The dtype in which the loss's statistics per token are computed: the dtype of the logits, but at least float32."""
    return logits.dtype if logits.element_size() >= 4 else torch.float32


def _blocks(logits: Tensor) -> tuple[Tensor, ...]:
    """Split logits into views, (tokens of the block, vocabulary), that together cover all tokens in order.

    Combining logits with wider numbers copies them to the wider dtype on a CPU, so blocks are small there; on a GPU one block
    has all tokens.
    """
    flat = logits.flatten(0, -2)
    tokens = len(flat) if logits.is_cuda else max(1, 2**16 // logits.shape[-1])
    return flat.split(tokens)


def loss_gradient(logits: Tensor, targets: Tensor, statistics: Tensor, vocabulary: int, shard: Shard, scale: float) -> Tensor:
    """Overwrite a tensor-parallel rank's logits with the gradient of `scale` times the summed cross-entropy: (softmax -
    one-hot target) x scale.

    logits: (samples, tokens, the rank's columns), as `loss_statistics` overwrote them, with exp(logit - largest). targets:
    token ids, (samples, tokens). statistics: the results of `loss_statistics` of all tensor-parallel ranks, (tp, 3, samples,
    tokens). vocabulary: its size. shard: the rank's index in its tensor-parallel group, and the group's size. Returns the
    loss summed over tokens, times `scale`, as a scalar tensor.
    """
    normaliser, own = _normaliser(statistics), statistics[shard.index]
    factor = ((own[0] - normaliser).exp() * scale).unsqueeze(-1)
    if factor.dtype is logits.dtype:
        logits.mul_(factor)
    else:
        blocks = _blocks(logits)
        for block, block_factor in zip(blocks, factor.view(-1, 1).split(len(blocks[0])), strict=True):
            block.mul_(block_factor)
    low, high = shard_bounds(vocabulary, shard.tp, shard.index)
    inside = (targets >= low) & (targets < high)
    flat, columns = logits.flatten(0, -2), (targets - low).clamp_(0, high - low - 1).flatten()
    tokens = torch.arange(len(columns), device=columns.device)
    flat[tokens, columns] = (flat[tokens, columns] - inside.flatten().to(factor.dtype) * scale).to(logits.dtype)
    return loss_value(statistics, scale)


def loss_value(statistics: Tensor, scale: float) -> Tensor:
    """Cross-entropy summed over all tokens, times `scale`, as a scalar in float64.

    statistics: the results of `loss_statistics` of all tensor-parallel ranks, (tp, 3, samples, tokens).
    """
    return (_normaliser(statistics) - statistics[:, 2].sum(0)).sum(dtype=torch.float64) * scale


def _normaliser(statistics: Tensor) -> Tensor:
    """Logarithm of the sum of exp(logit) over the whole vocabulary, (samples, tokens).

    statistics: the results of `loss_statistics` of all tensor-parallel ranks, (tp, 3, samples, tokens).
    """
    largest = statistics[:, 0].amax(0)
    return largest + (statistics[:, 1] * (statistics[:, 0] - largest).exp()).sum(0).log()
