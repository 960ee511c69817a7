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
    """Costs of every layer i, by r of the layer before (8 values), the layer's option (S) and lazy_prefetch of the layer after
    (2).

    Attributes:
        options: the S combinations of switches.
        time_ns: (N, 8, S, 2), forward and backward segment and the optimizer's.
        peak_bytes: (N, 8, S, 2), above curr_{i-1} and the resident shards.
        delta_bytes, resident_bytes: (N, S).
        r: (S,), r of each option as a number from 0 to 7; lazy: (S,), its lazy_prefetch, 0 or 1.

    The first layer has nothing before it and the last nothing after it: their numbers are equal along that axis.
    """

    options: tuple[Switches, ...]
    time_ns: Integers
    peak_bytes: Integers
    delta_bytes: Integers
    resident_bytes: Integers
    r: Integers
    lazy: Integers


def segments(instance: Instance, check_time: Callable[[], None] = lambda: None) -> Segments:
    """The segments of an instance. check_time: called often; an exception that it raises is passed on."""
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
    """Delta and resident bytes of every layer with every option: two arrays (N, S). on: (S, 7), the options' switches."""

    def without(number: str, switch: SwitchName) -> Integers:
        """(N, S): a number of every layer, or 0 where the option has a switch on."""
        return instance[number][:, None] * ~on[:, SWITCHES.index(switch)]

    delta = without("input_bytes", "offload_hidden") + without("graph_bytes", "ckpt")
    delta = delta + without("gathered_parameter_bytes", "partition")
    return delta, without("partitioned_parameter_bytes", "lazy_prefetch")


def shared_switches(on: Booleans) -> tuple[Integers, Integers]:
    """r and lazy_prefetch of every option, as in `Segments`: two arrays (S,). on: (S, 7), the options' switches."""
    r = on[:, [SWITCHES.index(name) for name in SHARED]] @ np.array([4, 2, 1])
    return r, r % 2


def alike_layers(instance: Instance) -> Integers:
    """(N,): for each layer the index of the first layer that equals it in all its numbers and in those of both neighbours."""
    numbers = np.stack([*instance.columns.values()])
    padded = np.pad(numbers, ((0, 0), (1, 1)), constant_values=-1)  # before the first layer and after the last one
    numbers = np.concatenate((padded[:, :-2], padded[:, 1:-1], padded[:, 2:]))
    _, firsts, alike = np.unique(numbers, axis=1, return_index=True, return_inverse=True)
    return firsts[alike.reshape(-1)]


def _blocks(layers: Integers, count: int) -> list[Integers]:
    """The given layers grouped by the neighbours that they have: the first, inner ones (in blocks, to keep their arrays small),
    the last. count: the number of all layers."""
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
    """Time in ns and most memory in bytes of one segment of every layer, with every choice of switches: two arrays (layers,
    choices).

        before, of_layer, after: (choices, 7), switches of the layer before, of the layer and of the one after; None where there
            is none.
        run: issues the segment of the layer with a given index in a simulated chain of these two or three layers.
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
    """Time and peak of head and forward segment, by layer, its option and lazy_prefetch of the layer after: two arrays (layers,
    S, 2)."""
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
    """Time and peak of turn, backward segment, tail and the optimizer's segment, by layer, r of the layer before and the
    layer's option: two arrays (layers, 8, S)."""
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
    """Hold a number of bytes from the beginning of the segment."""
    step.change(step.clocks["compute"], size)
