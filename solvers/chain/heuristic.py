"""Quick facts about layer-strategies, in milliseconds: a lower bound by a few prices of memory, and the best choice found with
them."""

from __future__ import annotations

import numpy as np
from trainplan.formulations.layer_strategies.problem import Instance
from trainplan.solvers.chain.bounds import Completion
from trainplan.solvers.chain.chain import Floats, MemoryChain, chain_of, cheapest_paths, sums_before
from trainplan.solvers.chain.least_memory import little_memory

SPREAD, COUNT = 64.0, 12  # prices lie around the mean one, up to this factor away, so many of them
SOURCE = "time and priced memory of all layers, at a few prices"


def cheap_bound(instance: Instance | MemoryChain) -> tuple[int, str]:
    """A lower bound in ns on all choices within the memory, with its reason.

    Proof: a choice that fits takes no less than its time plus, at any price of a byte, its memory beyond the limit (which is
    not positive; see `Completion`), and no choice is faster than the fastest one.
    """
    chain = chain_of(instance)
    return max(chain.fastest()[0], Completion(chain, None, _prices(chain)).bound), SOURCE


def first_plan(instance: Instance | MemoryChain) -> tuple[int, ...] | None:
    """A choice within the memory: the fastest of those that are cheapest at some price of a byte, or else one that keeps little
    memory; None where none of these fits."""
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
    """A few prices of a byte in ns, around the mean price between the fastest choice and the one that keeps least."""
    kept = [(f + ms)[None] for f, ms in zip(chain.forward_bytes, chain.state_bytes, strict=True)]
    free = [link.free for link in chain.links]
    (least,) = cheapest_paths(free, kept, sums_before(free, kept))
    time, fastest = chain.fastest()
    choices = np.array([least, fastest])
    longest = int(chain.times(choices)[0])
    bytes_of = np.sum([column[0][choices[:, l]] for l, column in enumerate(kept)], axis=0)
    mean = (longest - time) / max(1, int(bytes_of[1] - bytes_of[0]))
    return mean * np.geomspace(1 / SPREAD, SPREAD, COUNT)
