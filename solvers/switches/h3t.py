"""The planners that H3T compares its dynamic program with (Sections B.1, B.2, 4.1, C.3): random, greedy, manual, ZeRO-2 and -3.

Each simulates whole steps, many in one call, and takes the fastest of its own choices that fits; among equal ones the first. A
layer has 48 legal combinations of switches, or 64 (see `switches.combinations`): every segment is synchronised here, which the
paper requires for its dynamic program alone. ZeRO-2 and ZeRO-3 are the same setting in all layers. The paper runs
Megatron-DeepSpeed with the optimizer on the host and with recomputation (Section C.3). Their switches are read from the
authors' published code: there `zero_level` is the switch `partition`, and all else is at its default: recomputation, shards and
hidden states on the device (where ZeRO-Offload too keeps the half precision parameters), economical backward, segments
synchronised. So ZeRO-2 keeps gathered parameters from forward to backward pass, and ZeRO-3 gathers them twice. (DeepSpeed's
ZeRO-2 gathers them after the optimizer's step instead of layer by layer in the forward pass: as many bytes, and as many held
when the backward pass begins.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from trainplan.formulations.layer_strategies.problem import Integers
from trainplan.formulations.memory_switches.problem import Instance, Solution, matrix, violations
from trainplan.formulations.memory_switches.simulation import simulate
from trainplan.formulations.plan.switches import ALL_ON, Switches
from trainplan.solvers.core.heuristic import first_plan
from trainplan.solvers.core.search import Outcome, Search

SAMPLES = 1000
AT_ONCE, LONG = 2**15, 512  # layers simulated in one call; fewer for chains of more layers than LONG
ZERO_2 = Switches(ckpt=True, eco_backward=True, segment_sync=True)
ZERO_3 = replace(ZERO_2, partition=True)

Choices = Callable[[Integers], Integers]


def random(instance: Instance, search: Search) -> Outcome:
    """The method `random` of the problem `memory-switches`, H3T's Algorithm 1: draw choices of memory switches (for each layer,
    which of recomputation, offloading, and others are on) uniformly at random, simulate them, and keep the fastest that fits
    the memory. The outcome has no lower bound.

    instance: the times and bytes of each layer of a model on one device, and the device's memory. search: the run's limits and
    options, and its best solution so far, to which better ones are reported. Its seed decides the draws; its option `samples`
    is their number (1000); its option `answer` is `best`, as printed in the paper, or `last`: the last choice that fits, which
    the published code returns."""
    count, last = search.options.get("samples") or SAMPLES, search.options.get("answer") == "last"
    generator = np.random.default_rng(search.seed)

    def drawn(numbers: Integers) -> Integers:
        """Random options of all N layers for K choices, (K, N). numbers: of the choices, (K,)."""
        return generator.integers(len(instance.options), size=(len(numbers), instance.layers))

    return _simulated(instance, search, count, drawn, last)


def h3t_greedy(instance: Instance, search: Search) -> Outcome:
    """The method `h3t-greedy` of the problem `memory-switches`, H3T's Algorithm 2. It simulates choices in which n of the N
    layers share one combination of memory switches, and all other layers have every switch (such as recomputation or
    offloading) on; the n layers are the first one and then every floor(N / n)-th. All n and all combinations are tried; the
    result is the fastest choice that fits the memory.

    instance: the times and bytes of each layer of a model on one device, and the device's memory. search: the run's limits and
    options, and its best solution so far, to which better ones are reported."""
    options, layers = instance.options, np.arange(instance.layers)

    def spread(numbers: Integers) -> Integers:
        """The options of all N layers for K choices, (K, N): all switches on, except in evenly spaced layers. numbers: of
        the choices, (K,), which state the number of these layers and their combination."""
        before, combination = np.divmod(numbers[:, None], len(options))
        gap = instance.layers // (before + 1)
        return np.where((layers % gap == 0) & (layers // gap <= before), combination, options.index(ALL_ON))

    return _simulated(instance, search, instance.layers * len(options), spread)


def manual(instance: Instance, search: Search) -> Outcome:
    """The method `manual` of the problem `memory-switches`: simulate every combination of memory switches (such as
    recomputation or offloading) applied to all layers alike, and keep the fastest that fits the memory (H3T, Section 4.1).

    instance: the times and bytes of each layer of a model on one device, and the device's memory. search: the run's limits and
    options, and its best solution so far, to which better ones are reported."""

    def alike(numbers: Integers) -> Integers:
        """The options of all N layers for K choices, (K, N): one option in every layer of a choice. numbers: of the choices,
        (K,), and of their options."""
        return np.repeat(numbers[:, None], instance.layers, axis=1)

    return _simulated(instance, search, len(instance.options), alike)


def zero_2(instance: Instance, search: Search) -> Outcome:
    """The method `zero-2` of the problem `memory-switches`: the solution in which every layer runs as ZeRO-2 does, with the
    optimizer on the host and recomputation, if it fits the memory.

    instance: the times and bytes of each layer of a model on one device, and the device's memory. search: the run's limits and
    options, and its best solution so far, to which better ones are reported."""
    return _setting(instance, search, ZERO_2, "ZeRO-2")


def zero_3(instance: Instance, search: Search) -> Outcome:
    """The method `zero-3` of the problem `memory-switches`: the solution in which every layer runs as ZeRO-3 does, with the
    optimizer on the host and recomputation, if it fits the memory.

    instance: the times and bytes of each layer of a model on one device, and the device's memory. search: the run's limits and
    options, and its best solution so far, to which better ones are reported."""
    return _setting(instance, search, ZERO_3, "ZeRO-3")


def at_once(layers: int) -> int:
    """The number of solutions to simulate in one batch, between two checks of the clock, so that a batch takes a moment only.
    layers: the number of layers of the simulated model."""
    return max(1, AT_ONCE // layers // (1 + layers // LONG))


def _setting(instance: Instance, search: Search, switches: Switches, name: str) -> Outcome:
    """Report the solution in which all layers have the same memory switches (such as recomputation or offloading) on, if it
    fits the memory; if not, the outcome's message says so.

    switches: the switches that are on. name: the setting's name, for the message, such as "ZeRO-2". instance: the times and
    bytes of each layer of a model on one device, and the device's memory. search: the run's limits and options, and its best
    solution so far, to which better ones are reported."""
    solution = Solution((switches,) * instance.layers)
    if broken := violations(instance, solution):
        return Outcome(message=f"{name} does not fit: {broken[0]}")
    search.report(solution)
    return Outcome()


def _simulated(instance: Instance, search: Search, count: int, choices: Choices, last: bool = False) -> Outcome:
    """Simulate a number of choices of memory switches (for each layer, which of recomputation, offloading, and others are on),
    and report the best one that fits the memory.

    count: the number of choices. choices: a function that returns, for an array of K choice numbers from 0 to count - 1, an
    array (K, N) for the N layers: the index of each layer's combination of switches. last: report the last choice that fits
    instead of the best. instance: the times and bytes of each layer on one device, and the device's memory. search: the run's
    limits and options, and its best solution so far, to which better ones are reported."""
    on, batch = matrix([Solution(instance.options)])[0], at_once(instance.layers)
    simulated = fitting = 0
    solution: Solution | None = None
    if search.time_limit is not None and instance.layers > LONG:
        first_plan(instance)  # simulated and cached by `evaluate` now, so that it costs no time after the limit
    while simulated < count:
        rows = choices(np.arange(simulated, min(simulated + batch, count)))
        try:
            times, peaks = simulate(instance.columns, instance.nvlink, on[rows], search.check_time)
        except TimeoutError:
            break
        (fits,) = np.nonzero(peaks <= instance.memory_bytes)
        simulated, fitting = simulated + len(rows), fitting + len(fits)
        if not len(fits):
            continue
        index = fits[-1] if last else fits[times[fits].argmin()]
        solution = Solution(tuple(instance.options[option] for option in rows[index]))
        if not last and search.betters(times[index]):
            search.report(solution)
    if last and solution:
        search.report(solution)
    statistics = {"simulated": simulated, "fitting": fitting}
    if simulated < count:
        return Outcome(message=f"time ran out after {simulated} of {count} choices", statistics=statistics)
    return Outcome(message=None if fitting else f"none of {count} choices fits", statistics=statistics)
