"""Choices of a configuration with fixed cuts that fit: prices of each device group's memory by bisection, then the remaining
memory is filled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from trainplan.solvers.joint.fixed_cuts.device_group_memory import HELD, KEPT, STATE, WORK
from trainplan.solvers.joint.fixed_cuts.lp_bound import PathKey, Relaxation, priced
from trainplan.solvers.joint.fixed_cuts.priced_chain import BACK, BACKWARD, FORWARD, INTO, NAMES, OF_UNITS, Choice
from trainplan.solvers.joint.stages.option_tables import Floats

HALVINGS = 16  # of each device group's price of memory
LOWEST, HIGHEST = -30.0, 15.0  # exponents of 2 of prices, as multiples of the mean cost of memory


def even_weights(relaxation: Relaxation) -> dict[str, Floats]:
    """Weights for the times of p pipeline stages such that the weighted sum is the step time of a perfectly even pipeline: all
    work of a step divided by the number of device groups. Returns a dict from the name of each stage time (such as forward_ns)
    to (p,). relaxation: the linear program of the configuration."""
    often = dict.fromkeys((FORWARD, BACKWARD, INTO, BACK), relaxation.configuration.micro_batches)
    return {name: np.full(relaxation.chain.stages, often.get(name, 1) / len(relaxation.group_memories)) for name in NAMES}


def at_prices(relaxation: Relaxation, times: Mapping[str, Floats], prices: Floats, slope: float = 0.0) -> Choice:
    """The choice (one option per unit, that is, sub-layer) with the least weighted time plus priced memory.

    relaxation: the units and the memory of the configuration (number of stages and micro-batches, with a schedule). times: a
    dict from the name of each stage time to (p,), the weights. prices: (device groups,), ns per byte of each group's memory at
    its fullest moment. slope: the power of 2 by which the price at a group's last unit exceeds the price at its first one, so
    that equal units do not all change at the same price."""
    base = priced(times, list(zip(relaxation.fullest, prices.tolist(), strict=True)))
    return relaxation.chain.least(
        replace(base, units={name: unit * _slopes(relaxation, slope) for name, unit in base.units.items()})
    )[1]


def _slopes(relaxation: Relaxation, slope: float) -> Floats:
    """A factor for the price of memory at each of the L units (sub-layers), (L,), so that equal units do not all change their
    option at one price: within each device group it rises geometrically by a factor of 2 to the power `slope` from the first
    unit to the last. relaxation: the linear program of the configuration, which has the device groups."""
    factors = np.ones(relaxation.chain.units)
    for memory in relaxation.group_memories:
        factors[memory.units] = np.exp2(slope * np.linspace(-0.5, 0.5, len(memory.units)))
    return factors


def mean_price(relaxation: Relaxation, times: Mapping[str, Floats]) -> float:
    """An estimate of the mean price of a byte of memory, in ns of weighted time: the spread of the options' times divided by
    the spread of their bytes. relaxation: the linear program of the configuration. times: a dict from the name of each stage
    time to (p,), the weights."""
    spread, steps = 0.0, 0.0
    for x, table in zip(relaxation.chain.stage_of, relaxation.chain.tables, strict=True):
        spread += float(np.ptp(table.kept_bytes + table.state_bytes))
        steps += float(np.ptp(times[FORWARD][x] * table.forward_ns + times[BACKWARD][x] * table.backward_ns))
    return max(steps, 1.0) / max(spread, 1.0)


def fitted(relaxation: Relaxation, weights: Mapping[PathKey, float], slope: float, evenness: float) -> Choice | None:
    """A choice (one option per unit, that is, sub-layer) that fits the memory and whose weighted paths are short: the options
    of least weighted time plus priced memory are chosen, where the price of each device group's memory is made as low as the
    memory limit allows, by bisection; memory that is left is then filled. None if nothing fits at the highest price.

    relaxation: the linear program of the configuration. weights: a dict from the key of each path (a chain of passes) to its
    weight. slope: the power of 2 by which the price at a group's last unit exceeds the price at its first one. evenness: the
    share (0 to 1) of a perfectly even pipeline in the weights of times."""
    even, paths = even_weights(relaxation), relaxation.weighted(weights)
    times = {name: (1 - evenness) * paths[name] + evenness * even[name] for name in NAMES}
    low, high = np.full(len(relaxation.group_memories), LOWEST), np.full(len(relaxation.group_memories), HIGHEST)
    mean = mean_price(relaxation, times)
    free = at_prices(relaxation, times, mean * np.exp2(low), slope)
    if not relaxation.over(free).any():
        return free
    for _ in range(HALVINGS):
        tried = (low + high) / 2
        over = relaxation.over(at_prices(relaxation, times, mean * np.exp2(tried), slope))
        low, high = np.where(over, tried, low), np.where(over, high, tried)
    choice = at_prices(relaxation, times, mean * np.exp2(high), slope)
    return None if relaxation.over(choice).any() else _filled(relaxation, choice, times)


def _filled(relaxation: Relaxation, choice: Choice, times: Mapping[str, Floats]) -> Choice:
    """Use the memory that a choice leaves free: change single units (sub-layers) to faster options, as far as these fit and do
    not affect neighbouring units, those that save the most time per byte first. Returns a new choice.

    choice: one option per unit, which fits. relaxation: the linear program of the configuration. times: a dict from the name of
    each stage time to (p,), the weights."""
    chain, sizes = relaxation.chain, relaxation.sizes(choice)
    excess, choice = relaxation.excess(sizes), choice.copy()
    while gains := sorted(_gains(relaxation, choice, times), key=lambda gain: -gain[0]):
        changed = False
        for _, l, option in gains:
            table, group = chain.tables[l], int(chain.stage_of[l]) % len(relaxation.group_memories)
            if relaxation.host_bytes is not None and table.host_bytes[option] > table.host_bytes[choice[l]]:
                continue
            memory = relaxation.group_memories[group]
            index = int(np.searchsorted(memory.units, l))
            before = int(choice[l])
            more = (int(getattr(table, name)[option] - getattr(table, name)[before]) for name in (STATE, HELD, KEPT, WORK))
            after = excess[group] + memory.more(index, *more)
            if (after <= 0).all() and _gain_ns(relaxation, l, before, option, times) > 0:
                excess[group], choice[l], changed = after, option, True
        if not changed:
            break
    return choice


def _gains(relaxation: Relaxation, choice: Choice, times: Mapping[str, Floats]) -> Iterator[tuple[float, int, int]]:
    """For each unit (sub-layer), yield the options that would be faster with the same interface states (layouts of
    activations): the weighted time saved per additional byte, the unit, and the option. relaxation: the linear program of the
    configuration. choice: the present option of each unit. times: a dict from the name of each stage time to (p,), the weights.
    """
    for l, (table, s) in enumerate(zip(relaxation.chain.tables, choice.tolist(), strict=True)):
        alike = (table.enter == table.enter[s]) & (table.leave == table.leave[s])
        more = table.kept_bytes + table.held_bytes + table.state_bytes
        for option in np.flatnonzero(alike).tolist():
            gain = _gain_ns(relaxation, l, s, option, times)
            if gain > 0:
                yield gain / max(float(more[option] - more[s]), 1.0), l, option


def _gain_ns(relaxation: Relaxation, l: int, before: int, option: int, times: Mapping[str, Floats]) -> float:
    """The weighted time in ns that one unit (sub-layer) saves by another option; negative if it takes longer. relaxation: the
    linear program of the configuration. l: the index of the unit. before, option: the old and the new option. times: a dict
    from the name of each stage time to (p,), the weights."""
    table, x = relaxation.chain.tables[l], relaxation.chain.stage_of[l]
    return sum(float(times[name][x]) * int(getattr(table, name)[before] - getattr(table, name)[option]) for name in OF_UNITS)
