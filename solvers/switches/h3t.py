"""The planners that H3T compares its dynamic program with (Sections B.1, B.2, 4.1, C.3): random, greedy, manual, ZeRO-2 and -3.

Each simulates whole steps, many at once, and takes the fastest of its own choices that fits; of equal ones the first. A layer
has 48 legal combinations, or 64 (see `switches.combinations`): every segment is synchronised, as the paper has it for its
dynamic program, and not for these.

ZeRO-2 and ZeRO-3 are settings of all layers alike. The paper runs Megatron-DeepSpeed with the optimizer on the host and with
recomputation (Section C.3). What these are in switches is read from the authors' published code: there `zero_level` is the
switch `partition`, and all else is at its default: recomputation, shards and hidden states on the device (where ZeRO-Offload
too keeps the half precision parameters), economical backward, segments synchronised. So ZeRO-2 keeps gathered parameters from
forward to backward pass, and ZeRO-3 gathers them twice. (DeepSpeed's ZeRO-2 gathers them after the optimizer's step instead of
layer by layer in the forward pass: as many bytes, and as many held when the backward pass begins.)
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
AT_ONCE, LONG = 2**15, 512  # layers simulated in one go; fewer in chains longer than this, of which each takes long
ZERO_2 = Switches(ckpt=True, eco_backward=True, segment_sync=True)
ZERO_3 = replace(ZERO_2, partition=True)

Choices = Callable[[Integers], Integers]


def random(instance: Instance, search: Search) -> Outcome:
    """Algorithm 1: the best of `samples` (T, 1000) choices, uniformly at random by the seed.

    Option answer: best, as printed; or last, the last one that fits, which is the answer of the published code.
    """
    count, last = search.options.get("samples") or SAMPLES, search.options.get("answer") == "last"
    generator = np.random.default_rng(search.seed)

    def drawn(numbers: Integers) -> Integers:
        return generator.integers(len(instance.options), size=(len(numbers), instance.layers))

    return _simulated(instance, search, count, drawn, last)


def h3t_greedy(instance: Instance, search: Search) -> Outcome:
    """Algorithm 2: the best choice of all switches on, but one combination in n layers, floor(N / n) apart from the first on.

    All n and all combinations are simulated.
    """
    options, layers = instance.options, np.arange(instance.layers)

    def spread(numbers: Integers) -> Integers:
        before, combination = np.divmod(numbers[:, None], len(options))
        gap = instance.layers // (before + 1)
        return np.where((layers % gap == 0) & (layers // gap <= before), combination, options.index(ALL_ON))

    return _simulated(instance, search, instance.layers * len(options), spread)


def manual(instance: Instance, search: Search) -> Outcome:
    """The best combination for all layers alike (Section 4.1)."""

    def alike(numbers: Integers) -> Integers:
        return np.repeat(numbers[:, None], instance.layers, axis=1)

    return _simulated(instance, search, len(instance.options), alike)


def zero_2(instance: Instance, search: Search) -> Outcome:
    """ZeRO-2 with host optimizer and recomputation."""
    return _setting(instance, search, ZERO_2, "ZeRO-2")


def zero_3(instance: Instance, search: Search) -> Outcome:
    """ZeRO-3 with host optimizer and recomputation."""
    return _setting(instance, search, ZERO_3, "ZeRO-3")


def at_once(layers: int) -> int:
    """Choices for a chain of so many layers that are simulated between two looks at the clock."""
    return max(1, AT_ONCE // layers // (1 + layers // LONG))


def _setting(instance: Instance, search: Search, switches: Switches, name: str) -> Outcome:
    solution = Solution((switches,) * instance.layers)
    if broken := violations(instance, solution):
        return Outcome(message=f"{name} does not fit: {broken[0]}")
    search.report(solution)
    return Outcome()


def _simulated(instance: Instance, search: Search, count: int, choices: Choices, last: bool = False) -> Outcome:
    """The best or the last of `count` choices that fits. choices: from their numbers (K,) to options of all layers (K, N)."""
    on, batch = matrix([Solution(instance.options)])[0], at_once(instance.layers)
    simulated = fitting = 0
    solution: Solution | None = None
    if search.time_limit is not None and instance.layers > LONG:
        first_plan(instance)  # simulated now and kept by `evaluate`, it takes no time when time is over
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
