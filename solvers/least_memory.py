"""The least memory that any choice of a layer-strategies instance needs: exact, and the reason when nothing fits.

Labels run from the last layer to the first: H the peak of the suffix with everything in it resident, M its model states.
Adding a layer gives M' = M + ms and H' = ms + f + max(b + M, H). Of two labels the one with smaller H and M is as good;
where M + b cannot exceed H for any earlier layer, M no longer counts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from trainplan.formulations.layer_strategies.problem import Instance, evaluate
from trainplan.solvers.result import Infeasibility


def least_memory(instance: Instance) -> tuple[int, tuple[int, ...]]:
    """Smallest peak of Eq. 2 over all choices, in bytes, and a choice that has it."""
    layers = instance.layers
    added = [f + ms for f, ms in zip(instance.forward_bytes, instance.state_bytes, strict=True)]
    before = np.concatenate(([0], np.cumsum([int(a.min()) for a in added])))
    largest_backward = np.concatenate(([0], np.maximum.accumulate([int(b.max()) for b in instance.backward_bytes])))
    greedy = [tuple(int(v) for v in choice) for choice in (
        [a.argmin() for a in added],
        [(a + b).argmin() for a, b in zip(added, instance.backward_bytes, strict=True)],
        [(a + b / layers).argmin() for a, b in zip(added, instance.backward_bytes, strict=True)],
    )]  # fmt: skip
    best = min(greedy, key=lambda choice: evaluate(instance, choice).peak_bytes)
    upper = evaluate(instance, best).peak_bytes

    held, states = np.zeros(1, np.int64), np.zeros(1, np.int64)
    trail: list[tuple[np.ndarray, np.ndarray]] = []
    for l in range(layers - 1, -1, -1):
        f, b, ms = instance.forward_bytes[l], instance.backward_bytes[l], instance.state_bytes[l]
        peak = (ms + f)[:, None] + np.maximum(b[:, None] + states, held)
        total = ms[:, None] + states
        total = np.maximum(total, peak - largest_backward[l])
        option, parent = np.nonzero(peak + before[l] < upper)
        peak, total = peak[option, parent], total[option, parent]
        order = np.lexsort((total, peak))
        sorted_total = total[order]
        lowest = np.minimum.accumulate(np.concatenate(([np.iinfo(np.int64).max], sorted_total[:-1])))
        keep = order[sorted_total < lowest]
        held, states = peak[keep], total[keep]
        trail.append((option[keep], parent[keep]))
        if not keep.size:
            return upper, best  # no choice is below the greedy one
    place, choice = 0, []  # sorted by peak: the first is the least
    for option, parent in reversed(trail):
        choice.append(int(option[place]))
        place = int(parent[place])
    return int(held[0]), tuple(choice)


def explain(instance: Instance) -> Infeasibility | None:
    """Why no choice fits, in the user's terms; None where one does."""
    least, choice = least_memory(instance)
    if least <= instance.memory_bytes:
        return None
    result = evaluate(instance, choice)
    over = least - instance.memory_bytes
    advice = [f"give memory_bytes of at least {least}"]
    batch: Any = instance.provenance.get("batch")
    if result.state_bytes > instance.memory_bytes:
        advice.append("use more devices, or fewer layers in this stage: the model states alone do not fit")
    elif result.state_bytes >= least - result.state_bytes:
        advice.append("use more devices to shard the model states, which are the larger part")
    else:
        smaller = f" than {batch}" if isinstance(batch, int) else ""
        advice.append(f"take a smaller batch{smaller}, or more micro-batches: the activations are the larger part")
    if over * 20 < instance.memory_bytes:
        advice.append(f"free {over} bytes elsewhere on the device")
    return Infeasibility(
        instance.memory_bytes,
        least,
        result.peak_layer,
        instance.layer_names[result.peak_layer],
        result.state_bytes,
        least - result.state_bytes,
        tuple(advice),
    )
