"""Dropout whose masks follow from what they are for: the seed, the step, the unit, the place in it, the sample and the number.

So every plan drops the same numbers as one process does: however samples, heads and micro-batches are split, in whatever order
they come, and again where a forward pass is recomputed. A mask is a table with a row for each token of each sample (for
attention also for each head) and a column for each hidden number or key. The number in row i and column j is dropped where

    (a_i xor b_j) (c_i + d_j) mod 2^32  <  p 2^32

with words of 32 bits: a_i and c_i are a hash (splitmix64) of the key and the row, b_j and d_j one of the key and the column.
c_i is even and d_j odd, so that the product is uniform, and those of any two places are independent. These are whole numbers: a
CPU and a GPU draw the same masks.

Nothing is kept for the backward pass, which draws the mask again, in blocks of `sublayers.DRAWN_AT_ONCE` numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any, Literal

import torch
from torch import Tensor
from trainplan.profiling.models.sublayers import DRAWN_AT_ONCE, attention_block

Site = Literal["input", "attention", "output"]  # where in a sub-layer
GOLDEN = -0x61C8864680B583EB  # 2^64 / golden ratio, as a signed number of 64 bits
ROUNDS = ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15))  # of splitmix64: shifts and factors
LAST_SHIFT = 31


@dataclass(frozen=True)
class Draw:
    """What all masks of one forward pass of a unit follow from. unit: its place in the chain. samples: ids of the rows.

    share: of hidden states that are split along the tokens, which of how many equal parts of each sample these are.
    """

    seed: int
    step: int
    unit: int
    samples: tuple[int, ...]
    share: tuple[int, int] = (0, 1)


@dataclass(frozen=True)
class Mask:
    """A mask that is not drawn yet: words of its rows, in any shape, and of its columns."""

    probability: float
    rows: tuple[Tensor, Tensor]
    columns: tuple[Tensor, Tensor]

    @property
    def scale(self) -> float:
        """The factor of what is kept, with which the expectation stays as it was."""
        return 1.0 / (1.0 - self.probability)

    def dropped(self, *places: slice, columns: int | None = None) -> Tensor:
        """Which numbers are dropped in these rows, of the first so many columns (default: of all)."""
        a, c = (words[places].unsqueeze(-1) for words in self.rows)
        b, d = (words[:columns] for words in self.columns)
        words = (a ^ b).mul_(c + d)
        return words < min(round(self.probability * 2**32) - 2**31, 2**31 - 1)

    def drop(self, x: Tensor) -> Tensor:
        """x, (.., columns), with its numbers dropped in place, and what is kept of them scaled."""
        flat = x.view(-1, x.shape[-1])
        size = max(1, DRAWN_AT_ONCE // x.shape[-1])
        for begin in range(0, len(flat), size):
            part = slice(begin, begin + size)
            flat[part].masked_fill_(self.dropped(part), 0.0).mul_(self.scale)
        return x


def hidden_mask(draw: Draw, site: Site, probability: float, x: Tensor) -> Mask:
    """The mask of hidden states, (rows, tokens, hidden) or (rows x tokens, hidden)."""
    places = x.numel() // x.shape[-1] // len(draw.samples)
    part, parts = draw.share
    tokens = _numbers(part * places, (part + 1) * places, x.device)
    rows = _samples(draw.samples, x.device).unsqueeze(1) * (places * parts) + tokens
    return _mask(draw, site, probability, rows.flatten(), x.shape[-1])


@dataclass(frozen=True)
class Heads:
    """The heads of a rank, from `first` on, among `all` heads of an attention whose probabilities are dropped."""

    draw: Draw
    probability: float
    first: int
    all: int

    def mask(self, q: Tensor, k: Tensor) -> Mask:
        """The mask of the probabilities of queries q and keys k, (rows, heads, tokens, width)."""
        _, heads, tokens, _ = q.shape
        numbers = _numbers(self.first, self.first + heads, q.device)
        head = _samples(self.draw.samples, q.device).unsqueeze(1) * self.all + numbers
        rows = head.unsqueeze(2) * tokens + _numbers(0, tokens, q.device)
        return _mask(self.draw, "attention", self.probability, rows, k.shape[2])


def _mask(draw: Draw, site: Site, probability: float, rows: Tensor, columns: int) -> Mask:
    a, c = _words(_key(draw, site, "rows"), rows)
    b, d = _words(_key(draw, site, "columns"), _numbers(0, columns, rows.device))
    return Mask(probability, (a, c & -2), (b, d | 1))


def _key(draw: Draw, site: Site, of: str) -> int:
    """A number of 64 bits, with its sign."""
    text = f"{draw.seed} {draw.step} {draw.unit} {site} {of}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def _words(key: int, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Two words of 32 bits for each number."""
    x = numbers * GOLDEN + key
    for shift, factor in ROUNDS:
        x = (x ^ _shifted(x, shift)) * factor
    words = (x ^ _shifted(x, LAST_SHIFT)).unsqueeze(-1).view(torch.int32)
    return words[..., 0], words[..., 1]


def _shifted(x: Tensor, bits: int) -> Tensor:
    """To the right, with zeros from the left."""
    return (x >> bits) & ((1 << 64 - bits) - 1)


@cache
def _numbers(first: int, end: int, device: torch.device) -> Tensor:
    return torch.arange(first, end, device=device)


@cache
def _samples(samples: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(samples, device=device)


def drop(x: Tensor, draw: Draw | None, site: Site, probability: float) -> Tensor:
    """Hidden states with some numbers dropped, in their place. Without a draw, or a probability of 0, they stay as they are."""
    if draw is None or not probability:
        return x
    dropped: Tensor = _Drop.apply(x, draw, site, probability)
    return dropped


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, draw: Draw, site: Site, probability: float) -> Tensor:
        ctx.of = draw, site, probability
        ctx.mark_dirty(x)
        return hidden_mask(draw, site, probability, x).drop(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        draw, site, probability = ctx.of
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        return hidden_mask(draw, site, probability, gradient).drop(gradient), None, None, None


def dropped_attention(q: Tensor, k: Tensor, v: Tensor, heads: Heads, causal: bool, scale: float | None) -> Tensor:
    """Scaled dot-product attention with its probabilities dropped, (rows, tokens, heads, width), block by block.

    q: (rows, heads, tokens, width); k and v: the same, or of a divisor of its heads. As fused kernels do, it keeps its inputs
    alone, and the backward pass makes the probabilities again.
    """
    mixed: Tensor = _Attention.apply(q, k, v, heads, causal, scale or q.shape[-1] ** -0.5)
    return mixed


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, heads: Heads, causal: bool, scale: float) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.of, mask = (heads, causal, scale), heads.mask(q, k)
        mixed = q.new_empty(q.shape[0], q.shape[2], q.shape[1], q.shape[3])
        for block in _blocks(q, k, causal):
            block.of(mixed.transpose(1, 2)).copy_(block.mixed(q, k, v, mask, scale))
        return mixed

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (q, k, v), (heads, causal, scale) = ctx.saved_tensors, ctx.of
        gradients = [t.new_zeros(t.shape[0], t.shape[2], t.shape[1], t.shape[3]).transpose(1, 2) for t in (q, k, v)]
        mask = heads.mask(q, k)
        for block in _blocks(q, k, causal):
            block.add_gradients(gradients, gradient.transpose(1, 2), q, k, v, mask, scale)
        return (*gradients, None, None, None)


@dataclass(frozen=True)
class _Block:
    """Some rows, heads and queries, and the first so many keys that any of these queries meets. shared: heads of one key."""

    places: tuple[slice, slice, slice]
    keys: int
    shared: int
    causal: bool

    def of(self, x: Tensor) -> Tensor:
        """The block's part of what every query has, (rows, heads, tokens, width)."""
        return x[self.places]

    def of_keys(self, x: Tensor) -> Tensor:
        """The block's part of what every key has, for each of the block's heads."""
        rows, heads, _ = self.places
        part = x[rows, :, : self.keys]
        return part[:, heads] if self.shared == 1 else part.index_select(1, self._heads(x))

    def add(self, gradient: Tensor, part: Tensor) -> None:
        """The block's part of a gradient of what every key has."""
        rows, heads, _ = self.places
        whole = gradient[rows, :, : self.keys]
        if self.shared == 1:
            whole[:, heads] += part
        else:
            whole.index_add_(1, self._heads(gradient), part)

    def mixed(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
        """The block's part of the result."""
        probabilities = self.probabilities(q, k, scale)
        probabilities.masked_fill_(mask.dropped(*self.places, columns=self.keys), 0.0)
        return (probabilities @ self.of_keys(v)).mul_(mask.scale)

    def add_gradients(
        self, gradients: Sequence[Tensor], gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float
    ) -> None:
        """Make the gradient of the block's queries, and add the block's part to those of keys and values."""
        probabilities = self.probabilities(q, k, scale)
        dropped = mask.dropped(*self.places, columns=self.keys)
        incoming = self.of(gradient) * mask.scale
        self.add(gradients[2], probabilities.masked_fill(dropped, 0.0).mT @ incoming)
        scores = (incoming @ self.of_keys(v).mT).masked_fill_(dropped, 0.0).mul_(probabilities)
        scores.sub_(probabilities.mul_(scores.sum(-1, keepdim=True)))
        self.of(gradients[0]).copy_((scores @ self.of_keys(k)).mul_(scale))
        self.add(gradients[1], scores.mT @ (self.of(q) * scale))

    def _heads(self, x: Tensor) -> Tensor:
        """Of the block's heads, which keys they have."""
        return _numbers(self.places[1].start, self.places[1].stop, x.device) // self.shared

    def probabilities(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        """The softmax of the scores."""
        scores = (self.of(q) * scale) @ self.of_keys(k).mT
        if self.causal:
            queries = _numbers(self.places[2].start, self.places[2].stop, q.device)
            scores.masked_fill_(queries.unsqueeze(1) < _numbers(0, self.keys, q.device), float("-inf"))
        return scores.softmax(-1)


def _blocks(q: Tensor, k: Tensor, causal: bool) -> Iterator[_Block]:
    """What is worked on at once, one after the other."""
    sizes, keys = q.shape[:3], k.shape[2]
    block = attention_block(q.shape[0], q.shape[1], q.shape[2], keys)
    for begins in product(*(range(0, size, step) for size, step in zip(sizes, block, strict=True))):
        ends = [min(begin + step, size) for begin, step, size in zip(begins, block, sizes, strict=True)]
        rows, heads, queries = (slice(begin, end) for begin, end in zip(begins, ends, strict=True))
        yield _Block((rows, heads, queries), ends[2] if causal else keys, sizes[1] // k.shape[1], causal)
