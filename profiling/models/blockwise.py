"""Scaled dot-product attention computed block by block, for variants that torch's fused kernels lack.

These are: dropout of probabilities by the masks of `models.dropout`, soft-capped scores (Gemma Team, 2024, Section 2), ALiBi's
slopes (Press et al., 2022), and keys within a sliding window (Beltagy et al., 2020), where distant blocks are not computed at
all. As with fused kernels, only the inputs are kept for the backward pass, which computes the probabilities again.

Shapes: q is (samples, heads, tokens, width); k and v are (samples, key heads, keys, width), where the number of key heads
divides that of heads (grouped-query attention).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import torch
from torch import Tensor
from trainplan.profiling.models.dropout import DroppedHeads, Mask, numbers
from trainplan.profiling.models.sublayers import attention_block


@dataclass(frozen=True)
class Scores:
    """How attention scores are computed: the product of query and key times `scale`, then changed as the other fields state,
    in their order.

    softcap: the bound c of soft-capping, by which a score becomes c tanh(score / c); 0 for none. slopes: ALiBi's slopes, one
    per head: the amount that a score is reduced by per token of distance between query and key; empty without ALiBi. causal:
    whether a query sees no later keys. sliding: a query sees only this number of latest keys, including its own; 0 for all.
    query: index of the first query among the keys.
    """

    scale: float
    softcap: float = 0.0
    slopes: tuple[float, ...] = ()
    causal: bool = False
    sliding: int = 0
    query: int = 0


def blockwise_attention(q: Tensor, k: Tensor, v: Tensor, scores: Scores, dropped_heads: DroppedHeads | None = None) -> Tensor:
    """Attention computed block by block: values weighted by the softmax of their scores, (samples, tokens, heads, width).

    q: queries, (samples, heads, tokens, width), with one row per sample. k and v: keys and values, (samples, key heads, keys,
    width), where the number of key heads divides the number of heads. scores: how scores are computed from queries and keys.
    dropped_heads: the heads' dropout of probabilities; None for no dropout.
    """
    mixed: Tensor = _Attention.apply(q, k, v, scores, dropped_heads)
    return mixed


class _Attention(torch.autograd.Function):
    """The autograd function of `blockwise_attention`; it saves q, k and v alone, and its backward pass computes probabilities
    again."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scores: Scores, dropped_heads: DroppedHeads | None) -> Tensor:
        """Compute attention block by block: returns values weighted by the softmax of their scores, (samples, tokens, heads,
        width). Saves q, k and v in ctx, autograd's context, for the backward pass.

        q: queries, (samples, heads, tokens, width). k and v: keys and values, (samples, key heads, keys, width). scores: how
        scores are computed. dropped_heads: the heads' dropout of probabilities; None for no dropout.
        """
        ctx.save_for_backward(q, k, v)
        ctx.arguments, mask = (scores, dropped_heads), None if dropped_heads is None else dropped_heads.mask(q, k)
        mixed = q.new_empty(q.shape[0], q.shape[2], q.shape[1], q.shape[3])
        for block in _blocks(q, k, scores):
            block.part_of_queries(mixed.transpose(1, 2)).copy_(block.mixed(q, k, v, mask))
        return mixed

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of q, k and v, in their shapes, from `gradient`, the gradient of the result, (samples, tokens, heads,
        width).

        They are followed by None twice, for scores and dropped_heads, which have no gradient. ctx: autograd's context.
        """
        (q, k, v), (scores, dropped_heads) = ctx.saved_tensors, ctx.arguments
        gradients = [t.new_zeros(t.shape[0], t.shape[2], t.shape[1], t.shape[3]).transpose(1, 2) for t in (q, k, v)]
        mask = None if dropped_heads is None else dropped_heads.mask(q, k)
        for block in _blocks(q, k, scores):
            block.add_gradients(gradients, gradient.transpose(1, 2), q, k, v, mask)
        return (*gradients, None, None)


@dataclass(frozen=True)
class _Block:
    """One block of attention's computation: some samples, heads and queries, and all the keys that any of these queries sees.

    slices: the block's samples, query heads and queries, as slices of the first three dimensions of q, (samples, heads, tokens,
    width). keys: the block's keys, as a slice of the third dimension of k and v, (samples, key heads, keys, width). shared:
    number of query heads per key head. scores: how scores are computed.
    """

    slices: tuple[slice, slice, slice]
    keys: slice
    shared: int
    scores: Scores

    def part_of_queries(self, x: Tensor) -> Tensor:
        """View of the block's samples, heads and queries in x, a tensor shaped like the queries: (samples, heads, tokens,
        width)."""
        return x[self.slices]

    def part_of_keys(self, x: Tensor) -> Tensor:
        """The block's part of keys or values, with one head for every query head of the block: (samples, heads, keys, width).

        x: all keys or all values, (samples, key heads, keys, width). The result is a copy if several query heads share a key
        head, else a view.
        """
        rows, heads, _ = self.slices
        part = x[rows, :, self.keys]
        return part[:, heads] if self.shared == 1 else part.index_select(1, self._heads(x))

    def add_to_keys(self, gradient: Tensor, part: Tensor) -> None:
        """Add the block's contribution to a gradient of keys or values, in place.

        gradient: the whole gradient, (samples, key heads, keys, width), changed in place. part: the block's contribution, with
        one head for every query head of the block, (samples, heads, keys, width); contributions of query heads that share a key
        head are summed.
        """
        rows, heads, _ = self.slices
        whole = gradient[rows, :, self.keys]
        if self.shared == 1:
            whole[:, heads] += part
        else:
            whole.index_add_(1, self._heads(gradient), part)

    def mixed(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask | None) -> Tensor:
        """The block's part of attention's result, (samples, heads, queries, width): values weighted by probabilities.

        q: all queries, (samples, heads, tokens, width). k and v: all keys and values, (samples, key heads, keys, width). mask:
        the dropout mask of all probabilities; None for no dropout.
        """
        probabilities, _ = self.probabilities(q, k)
        if mask is None:
            return probabilities @ self.part_of_keys(v)
        probabilities.masked_fill_(mask.dropped(*self.slices, columns=self.keys), 0.0)
        return (probabilities @ self.part_of_keys(v)).mul_(mask.scale)

    def add_gradients(
        self, gradients: Sequence[Tensor], gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Mask | None
    ) -> None:
        """Write the gradient of the block's queries, and add the block's contributions to the gradients of keys and values.

        gradients: the gradients of q, k and v, of their shapes, changed in place. gradient: the gradient of attention's result,
        (samples, heads, tokens, width). mask: the dropout mask of all probabilities; None for no dropout.
        """
        probabilities, slope = self.probabilities(q, k, slope=True)
        if mask is None:
            incoming = self.part_of_queries(gradient)
            self.add_to_keys(gradients[2], probabilities.mT @ incoming)
            scores = (incoming @ self.part_of_keys(v).mT).mul_(probabilities)
        else:
            dropped = mask.dropped(*self.slices, columns=self.keys)
            incoming = self.part_of_queries(gradient) * mask.scale
            self.add_to_keys(gradients[2], probabilities.masked_fill(dropped, 0.0).mT @ incoming)
            scores = (incoming @ self.part_of_keys(v).mT).masked_fill_(dropped, 0.0).mul_(probabilities)
        scores.sub_(probabilities.mul_(scores.sum(-1, keepdim=True)))
        if slope is not None:
            scores.mul_(slope)
        self.part_of_queries(gradients[0]).copy_((scores @ self.part_of_keys(k)).mul_(self.scores.scale))
        self.add_to_keys(gradients[1], scores.mT @ (self.part_of_queries(q) * self.scores.scale))

    def _heads(self, x: Tensor) -> Tensor:
        """For each query head of the block, the index of the key head that it uses: a vector on the device of x, the keys or
        values.
        """
        return numbers(self.slices[1].start, self.slices[1].stop, x.device) // self.shared

    def probabilities(self, q: Tensor, k: Tensor, slope: bool = False) -> tuple[Tensor, Tensor | None]:
        """The attention probabilities of the block, (samples, heads, queries, keys), which are the softmax of its scores; and
        the derivative of soft-capping.

        q: all queries, (samples, heads, tokens, width). k: all keys, (samples, key heads, keys, width). slope: whether to
        compute the derivative of each soft-capped score with respect to the score before capping, of the probabilities'
        shape. The derivative is None if `slope` is false, or without soft-capping.
        """
        products, derivative = (self.part_of_queries(q) * self.scores.scale) @ self.part_of_keys(k).mT, None
        if cap := self.scores.softcap:
            products.div_(cap).tanh_()
            derivative = (products * products).neg_().add_(1.0) if slope else None
            products.mul_(cap)
        _, heads, queries = self.slices
        if not (self.scores.slopes or self.scores.causal or self.scores.sliding):
            return products.softmax(-1), derivative
        first, end = self.scores.query + queries.start, self.scores.query + queries.stop
        away = numbers(first, end, q.device).unsqueeze(1) - numbers(self.keys.start, self.keys.stop, q.device)
        if self.scores.slopes:
            slopes = _slopes(self.scores.slopes[heads], q.dtype, q.device)
            products.sub_(slopes.view(-1, 1, 1) * away)
        if self.scores.causal:
            products.masked_fill_(away < 0, float("-inf"))
        if self.scores.sliding:
            products.masked_fill_(away >= self.scores.sliding, float("-inf"))
        return products.softmax(-1), derivative


@cache
def _slopes(slopes: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """ALiBi's slopes, one per head, as a vector of this dtype on this device; cached, so it must not be changed in place."""
    return torch.tensor(slopes, dtype=dtype, device=device)


def _blocks(q: Tensor, k: Tensor, scores: Scores) -> Iterator[_Block]:
    """Divide the computation of an attention into blocks that together cover all samples, heads and queries exactly once, and
    yield them. Every block is small enough for its probabilities to be in memory at once.

    q: queries, (samples, heads, tokens, width). k: keys, (samples, key heads, keys, width). scores: how scores are computed,
    which decides the keys that a block needs.
    """
    sizes, keys = q.shape[:3], k.shape[2]
    block = attention_block(q.shape[0], q.shape[1], q.shape[2], keys)
    for begins in product(*(range(0, size, step) for size, step in zip(sizes, block, strict=True))):
        ends = [min(begin + step, size) for begin, step, size in zip(begins, block, sizes, strict=True)]
        rows, heads, queries = (slice(begin, end) for begin, end in zip(begins, ends, strict=True))
        first = max(0, scores.query + queries.start - scores.sliding + 1) if scores.sliding else 0
        seen = slice(first, scores.query + queries.stop if scores.causal else keys)
        yield _Block((rows, heads, queries), seen, sizes[1] // k.shape[1], scores)
