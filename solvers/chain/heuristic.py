"""Quick facts about layer-strategies, in milliseconds: a lower bound by a few prices of memory, and the best choice found
with them."""

from __future__ import annotations

import numpy as np
from trainplan.formulations.layer_strategies.problem import Instance
from trainplan.solvers.chain.bounds import Completion
from trainplan.solvers.chain.chain import Floats, MemoryChain, chain_of, cheapest_paths, sums_before
from trainplan.solvers.chain.least_memory import little_memory

SPREAD, COUNT = 64.0, 12  # COUNT prices lie around the mean one, up to this factor away
SOURCE = "time and priced memory of all layers, at a few prices"


def cheap_bound(instance: Instance | MemoryChain) -> tuple[int, str]:
    """A lower bound in ns on the time of all choices (one option per layer) within the memory, and the text that says why it
    holds.

    instance: the layers of one pipeline stage, each with its options (parallel strategies), their times and memory, and one
    memory limit.

    Proof: at any price of a byte, a choice that fits takes no less than its time plus the price of its memory beyond the limit,
    which is not positive (the Lagrangian bound of `Completion`); and no choice is faster than the fastest one."""
    chain = chain_of(instance)
    return max(chain.fastest()[0], Completion(chain, None, _prices(chain)).bound), SOURCE


def first_plan(instance: Instance | MemoryChain) -> tuple[int, ...] | None:
    """A quick choice of options for the layers of one pipeline stage that fits the memory, one option index per layer: for each
    of a few prices per byte, the choice of least time plus priced memory is computed, and the fastest that fits is returned, or
    else a choice that keeps little memory. None if none of these choices fits.

    instance: the layers of one pipeline stage, each with its options (parallel strategies), their times and memory, and one
    memory limit."""
    chain = chain_of(instance)
    priced = Completion(chain, None, _prices(chain))
    choices = cheapest_paths(priced.links, priced.values, priced.sums)
    choices = np.concatenate((choices, [chain.fastest()[1]]))
    fits = np.flatnonzero(chain.peaks(choices) <= chain.memory_bytes)
    if len(fits):
        return tuple(choices[fits[chain.times(choices[fits]).argmin()]].tolist())
    peak, choice = little_memory(chain)
    return choice if peak <= chain.memory_bytes else None


def _prices(chain: MemoryChain) -> Floats:
    """chain: the layers with their options. A few Lagrangian prices of memory in ns per byte, (prices,): a geometric grid
    around the mean price between the fastest choice (one option per layer) and the choice that keeps least memory."""
    kept = [(f + ms)[None] for f, ms in zip(chain.forward_bytes, chain.state_bytes, strict=True)]
    free = [link.free for link in chain.links]
    (least,) = cheapest_paths(free, kept, sums_before(free, kept))
    time, fastest = chain.fastest()
    choices = np.array([least, fastest])
    longest = int(chain.times(choices)[0])
    bytes_of = np.sum([column[0][choices[:, l]] for l, column in enumerate(kept)], axis=0)
    mean = (longest - time) / max(1, int(bytes_of[1] - bytes_of[0]))
    return mean * np.geomspace(1 / SPREAD, SPREAD, COUNT)
