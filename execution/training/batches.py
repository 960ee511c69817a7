"""Which samples a step takes: of a file of tokens in a shuffled order, or made up from a seed, the same in every step.

The order depends on the seed and the number of samples alone, whatever the world and the plan: sample i of a run is window
p(i mod W) of the file's W windows, where p permutes them anew in each epoch i div W. The permutation is never stored: it is a
Feistel network over the least even number of bits that W windows need, walked until it gives a number below W (Black and
Rogaway, 2002, "Ciphers with arbitrary finite domains", cycle walking). So a step reads its samples of any file at once, and a
run goes on anywhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from trainplan.execution.training.tokens import TokenFile
from trainplan.profiling.models.model import Model

if TYPE_CHECKING:
    from torch import Tensor

ROUNDS = 6  # of the Feistel network
MOST_BITS = 24  # of either half of a number: for 2^48 windows
FACTOR = np.uint64(0x9E3779B97F4A7C15)


def permuted(numbers: np.ndarray, count: int, seed: int, epoch: int) -> np.ndarray:
    """Where a permutation of 0 .. count - 1 takes some of these numbers; another one for each seed and epoch."""
    half = max(1, ((count - 1).bit_length() + 1) // 2)
    assert half <= MOST_BITS
    low, shift = np.uint64((1 << half) - 1), np.uint64(half)
    text = f"{seed} {epoch} {count}"
    keys = np.frombuffer(hashlib.blake2b(text.encode(), digest_size=8 * ROUNDS).digest(), "<u8").astype(np.uint64)

    def once(x: np.ndarray) -> np.ndarray:
        left, right = x >> shift, x & low
        for key in keys:
            mixed = (right ^ key) * FACTOR
            mixed = (mixed ^ (mixed >> np.uint64(32))) * FACTOR
            left, right = right, left ^ ((mixed >> np.uint64(64 - MOST_BITS)) & low)
        return left << shift | right

    values = once(numbers.astype(np.uint64))
    while (outside := values >= count).any():
        values[outside] = once(values[outside])
    return values.astype(np.int64)


@dataclass(frozen=True)
class Batches:
    """The samples of a run's steps. file: whose windows they are (None: made up). first: the sample, counted over the run, that
    step 0 would begin with: 0, unless the run went on with batches of another size."""

    model: Model
    samples: int
    seed: int
    file: TokenFile | None = None
    first: int = 0

    def drawn(self, steps: int) -> int:
        """Samples that so many steps have taken."""
        return self.first + steps * self.samples

    def rows(self, step: int, rows: Sequence[int]) -> Tensor:
        """Some of the samples of a step, counted from 0: token ids (rows, sequence + 1), int64. Inputs are all but the last
        token, targets all but the first."""
        import torch
        from trainplan.execution.training.single_process import batch_tokens

        if self.file is None:
            return batch_tokens(self.model, self.samples, self.seed)[list(rows)]
        count = self.file.windows
        epochs, indices = np.divmod(self.drawn(step) + np.asarray(rows, dtype=np.int64), count)
        windows = np.empty_like(indices)
        for epoch in np.unique(epochs):
            of_epoch = epochs == epoch
            windows[of_epoch] = permuted(indices[of_epoch], count, self.seed, int(epoch))
        return torch.from_numpy(self.file.read(windows))

    def whole(self, step: int) -> Tensor:
        """All samples of a step."""
        return self.rows(step, range(self.samples))


@dataclass(frozen=True)
class InOrder(Batches):
    """The windows of a file from its beginning, batch after batch: what a model is evaluated on."""

    def rows(self, step: int, rows: Sequence[int]) -> Tensor:
        """As of Batches; steps are batches of the file."""
        import torch

        assert self.file is not None
        return torch.from_numpy(self.file.read(self.drawn(step) + np.asarray(rows, dtype=np.int64)))
