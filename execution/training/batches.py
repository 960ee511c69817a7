"""Which samples a step takes: of a file of tokens in a shuffled order, or made up from a seed, the same in every step.

The order depends on the seed and the number of samples alone, whatever the world and the plan: sample i of a run is window
p(i mod W) of the file's W windows, where p permutes them anew in each epoch i div W. The permutation is never stored: it is a
Feistel network over the least even number of bits that W windows need, applied until it gives a number below W (Black and
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
    """The images of some numbers under a pseudo-random permutation of 0 .. count - 1, which differs for each seed and epoch:
    an array of their shape, computed without storing the permutation."""
    half = max(1, ((count - 1).bit_length() + 1) // 2)
    assert half <= MOST_BITS
    low, shift = np.uint64((1 << half) - 1), np.uint64(half)
    text = f"{seed} {epoch} {count}"
    keys = np.frombuffer(hashlib.blake2b(text.encode(), digest_size=8 * ROUNDS).digest(), "<u8").astype(np.uint64)

    def feistel(x: np.ndarray) -> np.ndarray:
        """The network, applied to all numbers a single time."""
        high, right = x >> shift, x & low
        for key in keys:
            mixed = (right ^ key) * FACTOR
            mixed = (mixed ^ (mixed >> np.uint64(32))) * FACTOR
            high, right = right, high ^ ((mixed >> np.uint64(64 - MOST_BITS)) & low)
        return high << shift | right

    values = feistel(numbers.astype(np.uint64))
    while (outside := values >= count).any():
        values[outside] = feistel(values[outside])
    return values.astype(np.int64)


@dataclass(frozen=True)
class Batches:
    """The samples of a run's steps. samples: number per step. file: the token file whose windows they are; None: synthetic
    samples from the seed, the same in every step. first: the sample, counted over the run, with which step 0 would begin: 0,
    unless the run was resumed with batches of another size."""

    model: Model
    samples: int
    seed: int
    file: TokenFile | None = None
    first: int = 0

    def drawn(self, steps: int) -> int:
        """Number of samples of the file that the first `steps` steps have taken."""
        return self.first + steps * self.samples

    def rows(self, step: int, rows: Sequence[int]) -> Tensor:
        """Token ids, (len(rows), sequence + 1), int64, of some samples of a step (counted from 0). rows: indices of samples
        within the step's batch. Inputs are all but the last token, targets all but the first."""
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
        """Token ids of all samples of a step (counted from 0), (samples, sequence + 1), int64."""
        return self.rows(step, range(self.samples))


@dataclass(frozen=True)
class InOrder(Batches):
    """The samples of evaluation: the windows of a token file from its beginning, batch after batch, unshuffled."""

    def rows(self, step: int, rows: Sequence[int]) -> Tensor:
        """Token ids, (len(rows), sequence + 1), int64, of some samples of a batch of the file. step: the index of the batch.
        rows: indices of samples within it."""
        import torch

        assert self.file is not None
        return torch.from_numpy(self.file.read(self.drawn(step) + np.asarray(rows, dtype=np.int64)))
