"""Dropout whose masks are a function of the seed, the step, the unit, the site in it, the sample and the number's coordinates.

So every plan drops the same numbers as a single process does: however samples, heads and micro-batches are split, in whatever
order they come, and also when a forward pass is recomputed. A mask is a table with a row for each token of each sample (for
attention also for each head) and a column for each hidden number or key. The number in row i and column j is dropped where

    (a_i xor b_j) (c_i + d_j) mod 2^32  <  p 2^32

with words of 32 bits: a_i and c_i are a hash (splitmix64) of the key and the row, b_j and d_j one of the key and the column.
c_i is even and d_j odd, so that the product is uniform, and those of any two entries are independent. These are whole numbers:
a CPU and a GPU draw the same masks.

Nothing is kept for the backward pass, which draws the mask again, in blocks of `sublayers.DRAWN_AT_ONCE` numbers.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor
from trainplan.profiling.models.sublayers import DRAWN_AT_ONCE, halves

Site = Literal["input", "attention", "output"]  # of dropout in a sub-layer
GOLDEN = -0x61C8864680B583EB  # 2^64 / golden ratio, as a signed number of 64 bits
ROUNDS = ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15))  # of splitmix64: shifts and factors
LAST_SHIFT = 31
ALL = slice(None)


@dataclass(frozen=True)
class Draw:
    """The inputs of all masks of one forward pass of a unit.

    unit: index in the chain. samples: ids of the rows. share: (i, n) if hidden states are part i of n equal parts of each
    sample along the tokens. pieces: the number of pieces that samples are cut into; rows are then numbered piece by piece, and
    all of them have the same piece of their samples.
    """

    seed: int
    step: int
    unit: int
    samples: tuple[int, ...]
    share: tuple[int, int] = (0, 1)
    pieces: int = 1

    @property
    def whole(self) -> tuple[int, ...]:
        """For each row, the id of the sample that it is, or is a piece of."""
        return self.samples if self.pieces == 1 else tuple(row // self.pieces for row in self.samples)

    def positions(self, tokens: int, device: torch.device) -> Tensor:
        """The index in its sample of each of the `tokens` tokens of a row."""
        if self.pieces == 1:
            return numbers(0, tokens, device)
        return torch.cat(
            [numbers(half.start, half.stop, device) for half in halves(self.samples[0] % self.pieces, self.pieces, tokens)]
        )


@dataclass(frozen=True)
class Mask:
    """A mask that is not drawn yet: the words (a, c) of its rows, in any shape, and (b, d) of its columns, as in this
    module's formula."""

    probability: float
    rows: tuple[Tensor, Tensor]
    columns: tuple[Tensor, Tensor]

    @property
    def scale(self) -> float:
        """The factor on numbers that are kept, which preserves the expectation."""
        return 1.0 / (1.0 - self.probability)

    def dropped(self, *rows: slice, columns: slice = ALL) -> Tensor:
        """Which numbers are dropped, as booleans, in these rows and columns (default: all columns)."""
        a, c = (words[rows].unsqueeze(-1) for words in self.rows)
        b, d = (words[columns] for words in self.columns)
        words = (a ^ b).mul_(c + d)
        return words < min(round(self.probability * 2**32) - 2**31, 2**31 - 1)

    def drop(self, x: Tensor) -> Tensor:
        """x, (.., columns), with its numbers dropped in place and the others scaled."""
        flat = x.view(-1, x.shape[-1])
        size = max(1, DRAWN_AT_ONCE // x.shape[-1])
        for begin in range(0, len(flat), size):
            part = slice(begin, begin + size)
            flat[part].masked_fill_(self.dropped(part), 0.0).mul_(self.scale)
        return x


def hidden_mask(draw: Draw, site: Site, probability: float, x: Tensor) -> Mask:
    """The mask of hidden states, (rows, tokens, hidden) or (rows x tokens, hidden)."""
    indices = x.numel() // x.shape[-1] // len(draw.samples)
    part, parts = draw.share
    tokens = draw.positions(indices * parts, x.device)[part * indices : (part + 1) * indices]
    rows = _samples(draw.whole, x.device).unsqueeze(1) * (indices * parts * draw.pieces) + tokens
    return _mask(draw, site, probability, rows.flatten(), x.shape[-1])


@dataclass(frozen=True)
class Heads:
    """The heads of a rank, from index `first` on, among `all` heads of an attention whose probabilities are dropped. query:
    index of the first query in its sample."""

    draw: Draw
    probability: float
    first: int
    all: int
    query: int = 0

    def mask(self, q: Tensor, k: Tensor) -> Mask:
        """The mask of the probabilities of queries q and keys k, both (rows, heads, tokens, width)."""
        _, heads, tokens, _ = q.shape
        of_heads = numbers(self.first, self.first + heads, q.device)
        head = _samples(self.draw.whole, q.device).unsqueeze(1) * self.all + of_heads
        of_sample = tokens if self.draw.pieces == 1 else k.shape[2]
        rows = head.unsqueeze(2) * of_sample + numbers(self.query, self.query + tokens, q.device)
        return _mask(self.draw, "attention", self.probability, rows, k.shape[2])


def _mask(draw: Draw, site: Site, probability: float, rows: Tensor, columns: int) -> Mask:
    """The mask of a site. rows: numbers of its rows, in any shape; columns: how many there are."""
    a, c = _words(_key(draw, site, "rows"), rows)
    b, d = _words(_key(draw, site, "columns"), numbers(0, columns, rows.device))
    return Mask(probability, (a, c & -2), (b, d | 1))


def _key(draw: Draw, site: Site, of: str) -> int:
    """The hash key of a draw's rows or columns at a site: a signed number of 64 bits."""
    text = f"{draw.seed} {draw.step} {draw.unit} {site} {of}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def _words(key: int, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Two words of 32 bits for each number: the halves of its hash."""
    x = numbers * GOLDEN + key
    for shift, factor in ROUNDS:
        x = (x ^ _shifted(x, shift)) * factor
    words = (x ^ _shifted(x, LAST_SHIFT)).unsqueeze(-1).view(torch.int32)
    return words[..., 0], words[..., 1]


def _shifted(x: Tensor, bits: int) -> Tensor:
    """x shifted to the right, with zeros from the left."""
    return (x >> bits) & ((1 << 64 - bits) - 1)


@cache
def numbers(first: int, end: int, device: torch.device) -> Tensor:
    """The whole numbers from `first` to below `end` as a tensor, which is kept for later calls."""
    return torch.arange(first, end, device=device)


@cache
def _samples(samples: tuple[int, ...], device: torch.device) -> Tensor:
    """The ids of samples as a tensor."""
    return torch.tensor(samples, device=device)


def drop(x: Tensor, draw: Draw | None, site: Site, probability: float) -> Tensor:
    """Hidden states with some numbers dropped, in place. Without a draw, or with a probability of 0, they stay as they are."""
    if draw is None or not probability:
        return x
    dropped: Tensor = _Drop.apply(x, draw, site, probability)
    return dropped


class _Drop(torch.autograd.Function):
    """The autograd function of `drop`."""

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
