"""A lower bound and a first plan of memory-switches in a fraction of a second: the busiest lane, and a few settings of all
layers."""

from __future__ import annotations

import numpy as np
from trainplan.formulations.memory_switches.problem import Instance, Solution, matrix, violations
from trainplan.formulations.memory_switches.segments import kept_bytes
from trainplan.formulations.plan.switches import ALL_ON, Switches, SwitchName

SOURCE = "the streams' least work, one after the other"
SETTINGS: tuple[tuple[SwitchName, ...], ...] = (
    (),
    ("partition",),
    ("ckpt",),
    ("ckpt", "eco_backward"),
    ("ckpt", "eco_backward", "partition"),
    ("ckpt", "eco_backward", "partition", "lazy_prefetch"),
    ("ckpt", "eco_forward", "eco_backward", "partition", "offload_hidden"),
    ALL_ON.names,
)


def cheap_bound(instance: Instance) -> tuple[int, str]:
    """A lower bound in ns on the step time, ignoring memory, and the text that says why it holds. The problem `memory-switches`
    chooses for every layer which switches are on, such as recomputation or offloading.

    instance: the times and bytes of each layer of a model on one device, and the device's memory.

    Proof: the step begins with the first layer's all-gather of parameters, and ends with its reduce-scatter of gradients, the
    copy of its gradient to the host and then all optimizer steps. In between, each stream (compute or communication) runs at
    least the work that no switch can remove, and every segment takes at least as long as its busiest stream."""
    number = instance.columns
    forward, backward = number["forward_ns"], number["backward_ns"]
    gather, scatter, offload = (number[name] for name in ("all_gather_ns", "reduce_scatter_ns", "offload_gradient_ns"))
    ends = int(gather[0] + scatter[0] + offload[0] + number["optimizer_ns"].sum())
    # During layer i's forward pass the next layer's parameters are gathered; during its backward pass that one's gradient is
    # scattered and then offloaded.
    gathered, scattered = np.append(gather[1:], 0), np.append((scatter + offload)[1:], 0)
    kept = np.maximum(forward, gathered) + np.maximum(backward, scattered)
    recomputed = np.maximum(number["forward_without_graph_ns"], gathered) + np.maximum(forward + backward, scattered)
    return ends + int(np.minimum(kept, recomputed).sum()), SOURCE


def first_plan(instance: Instance) -> Solution | None:
    """A quick solution of the problem `memory-switches`: the first of a few settings, such as "recompute all layers", each with
    the same memory switches in all layers, that fits the memory; None if none of them fits.

    Settings that keep more activations from the forward to the backward pass than the memory can hold are skipped without being
    simulated. instance: the times and bytes of each layer of a model on one device, and the device's memory."""
    settings = [Switches.of({*names, "segment_sync"}) for names in SETTINGS]
    kept, resident = kept_bytes(instance, matrix([Solution(tuple(settings))])[0])
    for switches, size in zip(settings, (kept + resident).sum(axis=0).tolist(), strict=True):
        plan = Solution((switches,) * instance.layers)
        if size <= instance.memory_bytes and not violations(instance, plan):
            return plan
    return None
