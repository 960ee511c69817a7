"""Dropout whose masks follow from seed, step, unit, site in the unit, sample, and the position of a number in the sample alone.

So every plan drops the same numbers as a single process does: however samples, heads and micro-batches are split over ranks and
ordered in time, and also when a forward pass is recomputed. A mask is a table with a row for each token of each sample (for
attention also for each head) and a column for each hidden number or key. The number in row i and column j is dropped if

    (a_i xor b_j) (c_i + d_j) mod 2^32  <  p 2^32

where p is the probability, and all others are words of 32 bits: a_i and c_i are the halves of a hash (splitmix64) of the site's
key and the row, b_j and d_j those of a hash of the key and the column. c_i is even and d_j odd, so that the product is uniform,
and the products of any two entries are independent. All arithmetic is on whole numbers: a CPU and a GPU draw the same masks.

Nothing is kept for the backward pass: it draws the mask again, in blocks of `sublayers.DRAWN_AT_ONCE` numbers.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor
from trainplan.profiling.models.sublayers import DRAWN_AT_ONCE, halves

Site = Literal["input", "attention", "output"]  # where in a sub-layer numbers are dropped
GOLDEN = -0x61C8864680B583EB  # 2^64 / golden ratio, as a signed number of 64 bits
ROUNDS = ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15))  # of splitmix64: shifts and factors
LAST_SHIFT = 31
ALL = slice(None)


@dataclass(frozen=True)
class Draw:
    """The inputs that determine all dropout masks of one forward pass of one unit (a sub-layer in the model's chain), so that
    every rank, and the backward pass, draws the same masks.

    seed: the run's seed. step: index of the training step. unit: index of the unit in the model's chain. samples: ids of the
    samples in the rows of a tensor. share: (i, n) if the rank holds part i of n equal parts of each sample along the tokens
    (sequence parallelism). pieces: the number of pieces that context parallelism cuts each sample into; with more than one,
    the ids in `samples` count pieces, sample x pieces + piece, and all rows are the same piece of their samples.
    """

    seed: int
    step: int
    unit: int
    samples: tuple[int, ...]
    share: tuple[int, int] = (0, 1)
    pieces: int = 1

    @property
    def whole(self) -> tuple[int, ...]:
        """The id of the sample of each row of the tensor; if a row is a piece of a sample, the id of the whole sample."""
        return self.samples if self.pieces == 1 else tuple(row // self.pieces for row in self.samples)

    def positions(self, tokens: int, device: torch.device) -> Tensor:
        """Index in its whole sample of each token of a row, as a vector on `device`.

        tokens: the number of tokens in a row, which are one piece of the sample if `pieces` is more than 1: a part of its first
        half and the mirrored part of its second half.
        """
        if self.pieces == 1:
            return numbers(0, tokens, device)
        return torch.cat(
            [numbers(half.start, half.stop, device) for half in halves(self.samples[0] % self.pieces, self.pieces, tokens)]
        )


@dataclass(frozen=True)
class Mask:
    """A dropout mask, a table of booleans, given by hash words from which parts of it are computed when needed. The number in
    row i and column j is dropped if (a_i xor b_j) (c_i + d_j) mod 2^32 < probability x 2^32, where a, b, c and d are 32-bit
    hash words.

    rows: the words a and c of each row, two integer tensors of the shape of the mask without its last dimension. columns: the
    words b and d of each column, two integer vectors.
    """

    probability: float
    rows: tuple[Tensor, Tensor]
    columns: tuple[Tensor, Tensor]

    @property
    def scale(self) -> float:
        """The factor 1 / (1 - probability) on the numbers that are not dropped, which keeps the expected value unchanged."""
        return 1.0 / (1.0 - self.probability)

    def dropped(self, *rows: slice, columns: slice = ALL) -> Tensor:
        """Compute a part of the mask: a boolean tensor, true for the numbers that are dropped.

        rows: one slice for each of the first dimensions of the mask (dimensions without a slice are whole). columns: slice of
        its last dimension.
        """
        a, c = (words[rows].unsqueeze(-1) for words in self.rows)
        b, d = (words[columns] for words in self.columns)
        words = (a ^ b).mul_(c + d)
        return words < min(round(self.probability * 2**32) - 2**31, 2**31 - 1)

    def drop(self, x: Tensor) -> Tensor:
        """Apply the whole mask to x, in place: set dropped numbers to 0 and multiply the others by `scale`. Returns x.

        x: a tensor whose last dimension is the mask's columns, and whose other dimensions have as many entries as the mask
        has rows. The mask is computed in pieces, so that it is never whole in memory.
        """
        flat = x.view(-1, x.shape[-1])
        size = max(1, DRAWN_AT_ONCE // x.shape[-1])
        for begin in range(0, len(flat), size):
            part = slice(begin, begin + size)
            flat[part].masked_fill_(self.dropped(part), 0.0).mul_(self.scale)
        return x


def hidden_mask(draw: Draw, site: Site, probability: float, x: Tensor) -> Mask:
    """The dropout mask at one site of a sub-layer for hidden states x, (samples, tokens, hidden) or (samples x tokens,
    hidden).

    draw: the inputs that determine the mask. site: where in the sub-layer numbers are dropped, such as its output.
    probability: the probability that a number is dropped. x: only its shape and device are read.
    """
    indices = x.numel() // x.shape[-1] // len(draw.samples)
    part, parts = draw.share
    tokens = draw.positions(indices * parts, x.device)[part * indices : (part + 1) * indices]
    rows = _samples(draw.whole, x.device).unsqueeze(1) * (indices * parts * draw.pieces) + tokens
    return _mask(draw, site, probability, rows.flatten(), x.shape[-1])


@dataclass(frozen=True)
class DroppedHeads:
    """Dropout of attention probabilities for the heads of one tensor-parallel rank.

    draw: the inputs that masks are drawn from. probability: the chance that an attention probability is dropped. first: index
    of the rank's first head among `all` heads of the attention. query: index of the first query in its sample.
    """

    draw: Draw
    probability: float
    first: int
    all: int
    query: int = 0

    def mask(self, q: Tensor, k: Tensor) -> Mask:
        """The dropout mask of attention probabilities, (samples, heads, queries, keys), as hash words from which parts are
        computed when needed.

        q: queries, (samples, heads, tokens, width). k: keys, (samples, key heads, keys, width). Only the shapes and q's
        device are read.
        """
        _, heads, tokens, _ = q.shape
        of_heads = numbers(self.first, self.first + heads, q.device)
        head = _samples(self.draw.whole, q.device).unsqueeze(1) * self.all + of_heads
        of_sample = tokens if self.draw.pieces == 1 else k.shape[2]
        rows = head.unsqueeze(2) * of_sample + numbers(self.query, self.query + tokens, q.device)
        return _mask(self.draw, "attention", self.probability, rows, k.shape[2])


def _mask(draw: Draw, site: Site, probability: float, rows: Tensor, columns: int) -> Mask:
    """The dropout mask at one site of a sub-layer, with a row of numbers for each entry of `rows`.

    draw: the inputs that determine the mask. site: where in the sub-layer numbers are dropped. probability: the probability
    that a number is dropped. rows: a whole number for each row, distinct for all rows of the global batch, in any shape.
    columns: number of columns.
    """
    a, c = _words(_key(draw, site, "rows"), rows)
    b, d = _words(_key(draw, site, "columns"), numbers(0, columns, rows.device))
    return Mask(probability, (a, c & -2), (b, d | 1))


def _key(draw: Draw, site: Site, dimension: str) -> int:
    """Hash key for the rows or the columns of the dropout mask at one site: a signed 64-bit integer, equal on every machine.

    draw: the inputs that determine the mask. site: where in the sub-layer numbers are dropped. dimension: "rows" or
    "columns".
    """
    text = f"{draw.seed} {draw.step} {draw.unit} {site} {dimension}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def _words(key: int, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Hash numbers: returns two 32-bit words for each number, the two halves of the splitmix64 hash of key and number.

    key: a signed 64-bit integer. numbers: a tensor of 64-bit integers. Both results are int32 tensors of its shape.
    """
    x = numbers * GOLDEN + key
    for shift, factor in ROUNDS:
        x = (x ^ _shifted(x, shift)) * factor
    words = (x ^ _shifted(x, LAST_SHIFT)).unsqueeze(-1).view(torch.int32)
    return words[..., 0], words[..., 1]


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Shift the 64-bit integers in x to the right by `bits`, as if they were unsigned: zeros come in from the left."""
    return (x >> bits) & ((1 << 64 - bits) - 1)


@cache
def numbers(first: int, end: int, device: torch.device) -> Tensor:
    """The integers from `first` to `end` - 1 as a vector on `device`; cached, so it must not be changed in place."""
    return torch.arange(first, end, device=device)


@cache
def _samples(samples: tuple[int, ...], device: torch.device) -> Tensor:
    """Ids of samples as a vector on `device`; cached, so it must not be changed in place."""
    return torch.tensor(samples, device=device)


def drop(x: Tensor, draw: Draw | None, site: Site, probability: float) -> Tensor:
    """Apply dropout to hidden states x, (samples, tokens, hidden) or (samples x tokens, hidden), in place; returns x.

    draw: the inputs that determine the mask; None, as in evaluation, leaves x unchanged, and so does a probability of 0.
    site: where in the sub-layer the dropout is; every site has its own mask. The backward pass computes the mask again.
    """
    if draw is None or not probability:
        return x
    dropped: Tensor = _Drop.apply(x, draw, site, probability)
    return dropped


class _Drop(torch.autograd.Function):
    """The autograd function of `drop`; nothing is kept for the backward pass, which draws the mask again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, draw: Draw, site: Site, probability: float) -> Tensor:
        """Apply the dropout mask at a site to hidden states x, (samples, tokens, hidden) or (samples x tokens, hidden), in
        place; returns x.

        ctx: autograd's context, in which nothing large is saved. draw: the inputs that determine the mask. site: where in the
        sub-layer the dropout is.
        """
        ctx.arguments = draw, site, probability
        ctx.mark_dirty(x)
        return hidden_mask(draw, site, probability, x).drop(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient of x, in a new tensor: `gradient`, the gradient of the result, with the same dropout mask applied;
        followed by None for the arguments that have no gradient. ctx: autograd's context.
        """
        draw, site, probability = ctx.arguments
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        return hidden_mask(draw, site, probability, gradient).drop(gradient), None, None, None
