"""Scaled dot-product attention computed block by block, for variants that torch's fused kernels lack.

These are: dropout of probabilities by the masks of `dropout.py`, soft-capped scores (Gemma Team, 2024, Section 2), slopes of
ALiBi (Press et al., 2022), and keys within a sliding window (Beltagy et al., 2020), where distant blocks are not computed at
all. As fused kernels do, it keeps only its inputs for the backward pass, which computes the probabilities again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import torch
from torch import Tensor
from trainplan.profiling.models.dropout import Heads, Mask, numbers
from trainplan.profiling.models.sublayers import attention_block


@dataclass(frozen=True)
class Scores:
    """How the scores of queries and keys are computed: products times `scale`, then the other fields in their order.

    softcap: c of c tanh(score / c); 0 for none. slopes: per head, the amount that a score loses for each token of distance to
    its key; empty without ALiBi. causal: a query meets no later keys. sliding: a query meets only this number of latest keys,
    its own included; 0 for all. query: index of the first query among the keys.
    """

    scale: float
    softcap: float = 0.0
    slopes: tuple[float, ...] = ()
    causal: bool = False
    sliding: int = 0
    query: int = 0


def blockwise_attention(q: Tensor, k: Tensor, v: Tensor, scores: Scores, heads: Heads | None = None) -> Tensor:
    """The result of attention, (rows, tokens, heads, width).

    q: (rows, heads, tokens, width); k and v: the same, or with a number of heads that divides q's. heads: those whose
    probabilities are dropped; None drops none.
    """
    mixed: Tensor = _Attention.apply(q, k, v, scores, heads)
    return mixed


class _Attention(torch.autograd.Function):
    """The autograd function of `blockwise_attention`."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scores: Scores, heads: Heads | None) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.of, mask = (scores, heads), None if heads is None else heads.mask(q, k)
        mixed = q.new_empty(q.shape[0], q.shape[2], q.shape[1], q.shape[3])
        for block in _blocks(q, k, scores):
            block.of(mixed.transpose(1, 2)).copy_(block.mixed(q, k, v, mask))
        return mixed

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (q, k, v), (scores, heads) = ctx.saved_tensors, ctx.of
        gradients = [t.new_zeros(t.shape[0], t.shape[2], t.shape[1], t.shape[3]).transpose(1, 2) for t in (q, k, v)]
        mask = None if heads is None else heads.mask(q, k)
        for block in _blocks(q, k, scores):
            block.add_gradients(gradients, gradient.transpose(1, 2), q, k, v, mask)
        return (*gradients, None, None)


@dataclass(frozen=True)
class _Block:
    """A block of attention: some rows, heads and queries (`slices`), and the keys that any of these queries meets. shared:
    number of query heads per key head."""

    slices: tuple[slice, slice, slice]
    keys: slice
    shared: int
    scores: Scores

    def of(self, x: Tensor) -> Tensor:
        """The block's part of a tensor of queries, (rows, heads, tokens, width)."""
        return x[self.slices]

    def of_keys(self, x: Tensor) -> Tensor:
        """The block's part of a tensor of keys or values, repeated for each of the block's query heads."""
        rows, heads, _ = self.slices
        part = x[rows, :, self.keys]
        return part[:, heads] if self.shared == 1 else part.index_select(1, self._heads(x))

    def add(self, gradient: Tensor, part: Tensor) -> None:
        """Add the block's part to a gradient of keys or values, (rows, key heads, keys, width)."""
        rows, heads, _ = self.slices
        whole = gradient[rows, :, self.keys]
        if self.shared == 1:
            whole[:, heads] += part
        else:
            whole.index_add_(1, self._heads(gradient), part)

    def mixed(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask | None) -> Tensor:
        """The block's part of the result: values weighted by probabilities."""
        probabilities, _ = self.probabilities(q, k)
        if mask is None:
            return probabilities @ self.of_keys(v)
        probabilities.masked_fill_(mask.dropped(*self.slices, columns=self.keys), 0.0)
        return (probabilities @ self.of_keys(v)).mul_(mask.scale)

    def add_gradients(
        self, gradients: Sequence[Tensor], gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Mask | None
    ) -> None:
        """Write the gradient of the block's queries, and add the block's part to the gradients of keys and values.
        gradients: of q, k and v; gradient: of the result."""
        probabilities, slope = self.probabilities(q, k, slope=True)
        if mask is None:
            incoming = self.of(gradient)
            self.add(gradients[2], probabilities.mT @ incoming)
            scores = (incoming @ self.of_keys(v).mT).mul_(probabilities)
        else:
            dropped = mask.dropped(*self.slices, columns=self.keys)
            incoming = self.of(gradient) * mask.scale
            self.add(gradients[2], probabilities.masked_fill(dropped, 0.0).mT @ incoming)
            scores = (incoming @ self.of_keys(v).mT).masked_fill_(dropped, 0.0).mul_(probabilities)
        scores.sub_(probabilities.mul_(scores.sum(-1, keepdim=True)))
        if slope is not None:
            scores.mul_(slope)
        self.of(gradients[0]).copy_((scores @ self.of_keys(k)).mul_(self.scores.scale))
        self.add(gradients[1], scores.mT @ (self.of(q) * self.scores.scale))

    def _heads(self, x: Tensor) -> Tensor:
        """The indices of the key heads of the block's query heads."""
        return numbers(self.slices[1].start, self.slices[1].stop, x.device) // self.shared

    def probabilities(self, q: Tensor, k: Tensor, slope: bool = False) -> tuple[Tensor, Tensor | None]:
        """The softmax of the scores, and if `slope` is set the derivative of the soft-capping (None without soft-capping)."""
        products, derivative = (self.of(q) * self.scores.scale) @ self.of_keys(k).mT, None
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
    """The slopes of ALiBi as a tensor."""
    return torch.tensor(slopes, dtype=dtype, device=device)


def _blocks(q: Tensor, k: Tensor, scores: Scores) -> Iterator[_Block]:
    """The blocks that are computed in turn, and together cover all queries."""
    sizes, keys = q.shape[:3], k.shape[2]
    block = attention_block(q.shape[0], q.shape[1], q.shape[2], keys)
    for begins in product(*(range(0, size, step) for size, step in zip(sizes, block, strict=True))):
        ends = [min(begin + step, size) for begin, step, size in zip(begins, block, sizes, strict=True)]
        rows, heads, queries = (slice(begin, end) for begin, end in zip(begins, ends, strict=True))
        first = max(0, scores.query + queries.start - scores.sliding + 1) if scores.sliding else 0
        met = slice(first, scores.query + queries.stop if scores.causal else keys)
        yield _Block((rows, heads, queries), met, sizes[1] // k.shape[1], scores)
