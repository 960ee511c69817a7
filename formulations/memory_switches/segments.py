"""The synchronised step as a chain of segments (H3T, Section 3.3.2): what layer i costs, given the switches of its neighbours.

Where every segment begins with a synchronisation, the step's time is the sum of its segments' times, and the memory in addition
to a segment's own is what earlier layers keep from their forward to their backward pass. A layer's segments depend on the layer
before by its r = (offload_hidden, partition, lazy_prefetch), and on the one after by lazy_prefetch alone (forward). With

    curr_i = sum_{k<=i} delta_k          delta: input unless offloaded, graph unless recomputed, parameters unless partitioned
    Memory(s) = max_i ( curr_{i-1} + peak_i ) + sum_k resident_k          resident: the shard unless prefetched lazily

as in Algorithm 4 (whose mem_curr and mem_peak include the resident bytes of the layers so far). Head, turn and tail of the step
are parts of the first, last and first layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from trainplan.formulations.memory_switches.problem import Instance, Solution, matrix
from trainplan.formulations.memory_switches.simulation import Booleans, SimulatedStep
from trainplan.formulations.numbers import Integers
from trainplan.formulations.plan.switches import SWITCHES, Switches, SwitchName

# r, as a number of three bits in this order.
SHARED: tuple[SwitchName, ...] = ("offload_hidden", "partition", "lazy_prefetch")
BLOCK = 16
NEIGHBOURS = tuple(Switches(segment_sync=True, **dict(zip(SHARED, r, strict=True))) for r in product((False, True), repeat=3))


@dataclass(frozen=True, eq=False)
class Segments:
    """The costs of every layer, depending on its own switches and on its neighbours'. Layer i of N depends on three switches
    of the layer before (offload_hidden, partition, lazy_prefetch; 8 values, together called r), on its own option (S
    combinations of switches), and on lazy_prefetch of the layer after (2 values).

    Attributes:
        options: the S combinations of switches.
        time_ns: (N, 8, S, 2), the layer's forward, backward and optimizer segments together. A segment is a part of the
            step between two synchronisations of all lanes.
        peak_bytes: (N, 8, S, 2), the peak memory in addition to the bytes that earlier layers keep and the resident shards.
        delta_bytes, resident_bytes: (N, S), bytes kept after the forward pass, and bytes of shards that stay for the whole
            step.
        r: (S,), the three switches of each option as a number from 0 to 7.
        lazy: (S,), lazy_prefetch of each option, 0 or 1.

    The first layer has no layer before it, and the last none after it: their numbers are equal along that axis.
    """

    options: tuple[Switches, ...]
    time_ns: Integers
    peak_bytes: Integers
    delta_bytes: Integers
    resident_bytes: Integers
    r: Integers
    lazy: Integers


def segments(instance: Instance, check_time: Callable[[], None] = lambda: None) -> Segments:
    """The costs of every layer of an instance by its own option (combination of switches) and the switches of the layers before
    and after it. A segment is a part of the step between two synchronisations of all lanes. check_time: called often; an
    exception that it raises is passed on. instance: times and bytes of every layer, and the memory limit."""
    options, count = instance.options, instance.layers
    on = matrix([Solution(options)])[0]  # (S, 7)
    time = np.zeros((count, 8, len(options), 2), np.int64)
    peak = np.zeros((count, 8, len(options), 2), np.int64)
    first_alike = alike_layers(instance)
    for layers in _blocks(np.unique(first_alike), count):
        check_time()
        forward, backward = _forward(instance, layers, on), _backward(instance, layers, on)
        time[layers] = forward[0][:, None] + backward[0][..., None]
        peak[layers] = np.maximum(forward[1][:, None], backward[1][..., None])
    time, peak = time[first_alike], peak[first_alike]
    return Segments(options, time, peak, *kept_bytes(instance, on), *shared_switches(on))


def kept_bytes(instance: Instance, on: Booleans) -> tuple[Integers, Integers]:
    """Two arrays (N, S) for N layers and S options (combinations of switches): bytes that a layer keeps after its forward
    pass, and bytes of its shards that stay on the device for the whole step. on: (S, 7), whether each of the seven switches
    is on in each option. instance: times and bytes of every layer, and the memory limit.
    """

    def without(number: str, switch: SwitchName) -> Integers:
        """(N, S): the bytes `number` of each of the N layers; 0 for those of the S options that have `switch` on."""
        return instance[number][:, None] * ~on[:, SWITCHES.index(switch)]

    delta = without("input_bytes", "offload_hidden") + without("graph_bytes", "ckpt")
    delta = delta + without("gathered_parameter_bytes", "partition")
    return delta, without("partitioned_parameter_bytes", "lazy_prefetch")


def shared_switches(on: Booleans) -> tuple[Integers, Integers]:
    """Two arrays (S,) with those switches of each of S options on which neighbouring layers depend: offload_hidden, partition
    and lazy_prefetch, as a number from 0 to 7, which matter to the layer after; and lazy_prefetch alone, 0 or 1, which
    matters to the layer before.

    on: (S, 7), whether each of the seven switches is on in each option.
    """
    r = on[:, [SWITCHES.index(name) for name in SHARED]] @ np.array([4, 2, 1])
    return r, r % 2


def alike_layers(instance: Instance) -> Integers:
    """(N,): for each layer, the index of the first layer that has equal numbers (times and bytes) and whose layers before and
    after have equal numbers, so that both layers have equal costs. instance: times and bytes of every layer, and the memory
    limit."""
    numbers = np.stack([*instance.columns.values()])
    padded = np.pad(numbers, ((0, 0), (1, 1)), constant_values=-1)  # before the first layer and after the last one
    numbers = np.concatenate((padded[:, :-2], padded[:, 1:-1], padded[:, 2:]))
    _, firsts, alike = np.unique(numbers, axis=1, return_index=True, return_inverse=True)
    return firsts[alike.reshape(-1)]


def _blocks(layers: Integers, count: int) -> list[Integers]:
    """Group layers so that all layers of a group have, or lack, a layer before and a layer after: the first layer of the model
    alone, inner layers (in blocks of at most BLOCK, to keep arrays small), the last layer alone. layers: the indices of the
    layers to group. count: the number of all layers.
    """
    inner = layers[(layers > 0) & (layers < count - 1)]
    blocks = [inner[start : start + BLOCK] for start in range(0, len(inner), BLOCK)]
    return [np.array([0]), *blocks, *([np.array([count - 1])] if count > 1 else [])]


def _simulate(
    instance: Instance,
    layers: Integers,
    before: Booleans | None,
    of_layer: Booleans,
    after: Booleans | None,
    run: Callable[[SimulatedStep, int], None],
) -> tuple[Integers, Integers]:
    """Simulate one segment (the part of the step for one layer and pass) of several layers, with every choice of switches.
    Returns two arrays (layers, choices): its time in ns, and the most bytes held in it.

    instance: times and bytes of every layer, and the memory limit. layers: the indices of the layers. before, of_layer,
    after: (choices, 7), whether each switch is on in the layer before, in the layer and in the layer after; None if there
    is no such layer. run: issues the segment of the layer with a given index in a simulated chain of these two or three
    layers.
    """
    chain = [switches for switches in (before, of_layer, after) if switches is not None]
    index = int(before is not None)
    rows = layers + np.arange(-index, len(chain) - index)[:, None]  # (neighbours, layers)
    choices = len(of_layer)
    columns = {name: np.repeat(column[rows], choices, axis=1) for name, column in instance.columns.items()}
    step = SimulatedStep(columns, instance.nvlink, np.tile(np.stack(chain, axis=1), (len(layers), 1, 1)))
    run(step, index)
    shape = (len(layers), choices)
    return step.time_ns.reshape(shape), step.most_held()[0].reshape(shape)


def _forward(instance: Instance, layers: Integers, on: Booleans) -> tuple[Integers, Integers]:
    """Two arrays (layers, S, 2): the time in ns and the peak bytes of each layer's forward segment, by its option and
    lazy_prefetch of the layer after; the first layer's include the work before it. layers: the indices of the layers: the first
    layer of the model, the last one, or inner layers only. on: (S, 7), whether each switch is on in each option. instance:
    times and bytes of every layer, and the memory limit."""
    first, last = layers[0] == 0, layers[-1] == instance.layers - 1
    of_layer = np.repeat(on, 2, axis=0)
    after = np.tile(matrix([Solution((NEIGHBOURS[0], NEIGHBOURS[1]))])[0], (len(on), 1))
    before = None if first else np.tile(matrix([Solution(NEIGHBOURS[:1])])[0], (len(of_layer), 1))

    def forward(step: SimulatedStep, i: int) -> None:
        """Simulate the forward segment of layer i, from what is held at its beginning."""
        _hold(step, step.number("input_bytes", i) + step.number("gathered_parameter_bytes", i))
        step.forward(i)

    def head(step: SimulatedStep, i: int) -> None:
        """Simulate what comes before the first forward segment, from what is held at its beginning."""
        _hold(step, step.number("input_bytes", i))
        step.head()

    time, peak = _simulate(instance, layers, before, of_layer, None if last else after, forward)
    if first:
        more, high = _simulate(instance, layers, before, of_layer, None if last else after, head)
        time, peak = time + more, np.maximum(peak, high)
    shape = (len(layers), len(on), 2)
    return time.reshape(shape), peak.reshape(shape)


def _backward(instance: Instance, layers: Integers, on: Booleans) -> tuple[Integers, Integers]:
    """Two arrays (layers, 8, S): the time in ns and the peak bytes of each layer's backward and optimizer segments, by the
    three switches of the layer before that matter, and the layer's option; the last and the first layer's include the work
    before and after the backward pass. layers: the indices of the layers: the first layer of the model, the last one, or inner
    layers only. on: (S, 7), whether each switch is on in each option. instance: times and bytes of every layer, and the memory
    limit."""
    first, last = layers[0] == 0, layers[-1] == instance.layers - 1
    of_layer = np.tile(on, (8, 1))
    before = None if first else np.repeat(matrix([Solution(NEIGHBOURS)])[0], len(on), axis=0)
    after = None if last else np.tile(matrix([Solution(NEIGHBOURS[:1])])[0], (len(of_layer), 1))

    def hold_forward(step: SimulatedStep, i: int) -> None:
        """Hold what the layer's forward pass kept: its input, graph and parameters, and its output, or the output's
        gradient."""
        kept = step.number("graph_bytes", i) * ~step.on(i, "ckpt")
        _hold(step, step.number("input_bytes", i) + kept + step.number("gathered_parameter_bytes", i))
        _hold(step, step.number("output_bytes", i))

    def turn(step: SimulatedStep, i: int) -> None:
        """Simulate the segment between forward and backward pass, from what is held at its beginning."""
        hold_forward(step, i)
        step.turn()

    def backward(step: SimulatedStep, i: int) -> None:
        """Simulate the backward segment of layer i, from what is held at its beginning."""
        hold_forward(step, i)
        if not last:
            _hold(step, step.number("gathered_parameter_bytes", i + 1) + step.number("gathered_gradient_bytes", i + 1))
        step.backward(i)

    def tail(step: SimulatedStep, i: int) -> None:
        """Simulate the segment after the backward pass, from what is held at its beginning."""
        _hold(step, step.number("gathered_parameter_bytes", i) + step.number("gathered_gradient_bytes", i))
        step.tail()

    def optimizer(step: SimulatedStep, i: int) -> None:
        """Simulate the optimizer's segment of layer i."""
        _hold(step, 0)
        step.optimizer(i)
        if last:
            step.copy_back(i)

    runs = [backward, optimizer, *([turn] if last else []), *([tail] if first else [])]
    times, peaks = zip(*(_simulate(instance, layers, before, of_layer, after, run) for run in runs), strict=True)
    time, peak = np.sum(times, axis=0), np.max(peaks, axis=0)
    shape = (len(layers), 8, len(on))
    return time.reshape(shape), peak.reshape(shape)


def _hold(step: SimulatedStep, size: Any) -> None:
    """Record in the simulation `step` that `size` bytes are held from the beginning of its segment."""
    step.change(step.clocks["compute"], size)
