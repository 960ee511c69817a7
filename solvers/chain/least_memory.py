"""The least memory that any choice of a chain needs, exactly; and the reason for users where nothing fits.

Labels run from the last layer to the first: H is the peak of the layers from one to the last with everything in them resident,
M their model states. For a layer, f is the memory that it keeps for its backward pass, b what its own pass adds, and ms its
model states (as in `chain`). Adding a layer gives M' = M + ms and H' = ms + f + max(b + M, H). Of two labels that can follow
the same options the one with smaller H and M is as good; where M + b cannot exceed H for any earlier layer, M no longer counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from trainplan.formulations.layer_strategies.problem import Instance, evaluate
from trainplan.solvers.chain.chain import LOWEST, Indices, MemoryChain, chain_of, cheapest_paths, sums_before, traced
from trainplan.solvers.chain.dominance import undominated
from trainplan.solvers.core.result import Infeasibility, short_of_memory


def least_memory(
    instance: Instance | MemoryChain, check_time: Callable[[], None] = lambda: None
) -> tuple[int, tuple[int, ...]]:
    """The smallest peak memory in bytes over all choices of one option per layer, exactly, and a choice that has it.
    check_time: called for every layer; an exception that it raises is passed on.

    instance: the layers of one pipeline stage, each with its options (parallel strategies), their times and memory, and one
    memory limit."""
    chain = chain_of(instance)
    upper, best = little_memory(chain)
    peak, states, option = np.full(1, LOWEST), np.zeros(1, np.int64), np.zeros(1, np.intp)
    trail: list[tuple[Indices, Indices]] = []
    for l in range(chain.layers - 1, -1, -1):
        check_time()
        f, b, ms = chain.forward_bytes[l], chain.backward_bytes[l], chain.state_bytes[l]
        parts = []
        for options, indices in chain.pairs(l, option):
            added, m = ms[options][:, None], states[indices]
            h = added + f[options][:, None] + np.maximum(b[options][:, None] + m, peak[indices])
            row, column = np.nonzero(h + chain.least.added[l][options][:, None] < upper)
            parts.append((options[row], indices[column], h[row, column], added[row, 0] + m[column]))
        option, parent, peak, states = (np.concatenate(values) for values in zip(*parts, strict=True))
        if not option.size:
            return upper, best  # no choice is below the greedy one
        states = np.maximum(states, peak - chain.least.reach[l][option])
        kinds = chain.links[l - 1].enters if l else np.zeros(chain.options[l], np.int64)  # costs do not count here
        keep = undominated(kinds[option], peak, [states])
        option, peak, states = option[keep], peak[keep], states[keep]
        trail.append((option, parent[keep]))
    return int(peak.min()), traced(trail, int(peak.argmin()))


def little_memory(chain: MemoryChain) -> tuple[int, tuple[int, ...]]:
    """A quick estimate of the least peak memory: the best of three greedy choices (one option per layer) that keep little
    memory, as its peak in bytes, which is an upper bound on the least possible peak, and the choice. chain: the layers with
    their options."""
    weights, links = np.array([[0], [1], [1 / chain.layers]]), [link.free for link in chain.links]
    columns = zip(chain.forward_bytes, chain.state_bytes, chain.backward_bytes, strict=True)
    values = [f + ms + weights * b for f, ms, b in columns]
    choices = cheapest_paths(links, values, sums_before(links, values))
    peaks = chain.peaks(choices)
    index = int(peaks.argmin())
    return int(peaks[index]), tuple(choices[index].tolist())


def explain(instance: Instance) -> Infeasibility | None:
    """The reason, for users, why no choice of one option per layer of a layer-strategies instance fits its memory; None if one
    fits.

    instance: the layers of one pipeline stage, each with its options (parallel strategies), their times and memory, and one
    memory limit."""
    least, choice = least_memory(instance)
    if least <= instance.memory_bytes:
        return None
    result = evaluate(instance, choice)
    batch: Any = instance.provenance.get("batch")
    if result.state_bytes > instance.memory_bytes:
        advice = "use a --cluster of more devices, or fewer layers in this stage: the model states alone do not fit"
    elif result.state_bytes >= least - result.state_bytes:
        advice = "use a --cluster of more devices to shard the model states, which are the larger part"
    else:
        smaller = f" than {batch}" if isinstance(batch, int) else ""
        advice = f"take a smaller --batch{smaller}, or more --micro-batches: the activations are the larger part"
    layer = result.peak_layer
    return short_of_memory(instance.memory_bytes, least, layer, instance.layer_names[layer], result.state_bytes, advice)
