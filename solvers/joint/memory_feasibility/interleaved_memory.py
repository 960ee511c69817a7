"""The least memory of configurations with interleaved stages: a lower bound of all solutions, and one solution of little
memory.

The bytes that a device group holds at a moment of its order, while one of its units runs, are a sum over its units and messages
(see `fixed_cuts.device_group_memory`), and no less than the sum of each one's least. So no solution's peak is below the largest
of these sums over all moments and units. The options of that sum are a choice, which changes of single options then make
smaller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
from trainplan.formulations.joint.evaluation import malformed, shares_table
from trainplan.formulations.joint.problem import Configuration, Instance, Solution, Unit
from trainplan.formulations.joint.tables import OptionTable
from trainplan.formulations.numbers import Integers
from trainplan.solvers.joint.closed_form_bound import least_states
from trainplan.solvers.joint.fixed_cuts.device_group_memory import DeviceGroupMemory, Sizes, group_memories
from trainplan.solvers.joint.fixed_cuts.priced_chain import Chain
from trainplan.solvers.joint.memory_feasibility.greedy_fill import LARGEST, excess_bytes, over_hosts
from trainplan.solvers.joint.stages.option_tables import Indices


@dataclass(frozen=True)
class LeanChoice:
    """How little memory a configuration (number of stages and micro-batches, with a schedule) needs. The excess of a solution
    is the bytes by which it exceeds the limits of its devices, negative if it fits. bound_bytes: a lower bound on the excess of
    every solution. solution: one solution of little memory, None if none is known. excess_bytes: its excess."""

    bound_bytes: int
    excess_bytes: int = LARGEST
    solution: Solution | None = None


def leanest(instance: Instance, configuration_index: int) -> LeanChoice:
    """Estimate the least memory that a configuration with an interleaved schedule (each device group runs several stages)
    needs: a lower bound on its excess over the limits, and one solution of little memory. If its cuts are not fixed, or devices
    are of several kinds, only a bound by the model states of all units (sub-layers).

    instance: the units (sub-layers) of a model, their options (parallel strategies) with times and memory, and the
    configurations (number of stages and micro-batches, schedule) to choose from. configuration_index: the configuration's index
    in the instance."""
    configuration = instance.configurations[configuration_index]
    limits = [instance.limit_bytes(group) for group in configuration.device_groups]
    if configuration.cuts is None or len(configuration.tables) > 1:
        return LeanChoice(-(-(least_states(instance, configuration) - sum(limits)) // len(limits)))
    peaks = _peaks(instance, configuration_index)
    bound, excess = (
        max(a - b for a, b in zip(peaks_by_group, limits, strict=True)) for peaks_by_group in (peaks.least, peaks.chosen)
    )
    solution = Solution(configuration_index, configuration.cuts, peaks.options)
    if malformed(instance, solution) or over_hosts(instance, solution):
        return LeanChoice(bound)
    return LeanChoice(
        bound, excess if not shares_table(configuration, peaks.options) else excess_bytes(instance, solution), solution
    )


@dataclass(frozen=True)
class _Peaks:
    """The memory of a configuration (number of stages and micro-batches, with a schedule), whatever its limits, one entry per
    device group. least: a lower bound in bytes on its peak under every choice of options. chosen: its peak in bytes under one
    choice of little memory. options: the options of that choice."""

    units: Sequence[Unit]
    options: tuple[int, ...]
    least: list[int]
    chosen: list[int]


KNOWN: WeakKeyDictionary[Configuration, _Peaks] = WeakKeyDictionary()  # reused under many limits


def _peaks(instance: Instance, configuration_index: int) -> _Peaks:
    """The least and the achieved memory of each device group of an interleaved configuration (number of stages and
    micro-batches, with a schedule) with fixed cuts, whatever the limits; the result is cached for the next call with the same
    units (sub-layers).

    instance: the units (sub-layers) of a model, their options (parallel strategies) with times and memory, and the
    configurations (number of stages and micro-batches, schedule) to choose from. configuration_index: the configuration's index
    in the instance."""
    configuration = instance.configurations[configuration_index]
    known = KNOWN.get(configuration)
    if known is not None and known.units is instance.units:
        return known
    chain, choice, largest = Chain(instance, configuration_index), np.zeros(instance.length, np.intp), list[int]()
    memories = group_memories(chain, 0)
    for memory in memories:
        needed = [_needed(chain.tables[unit], memory.factors(x)) for x, unit in enumerate(memory.units.tolist())]
        least = [unit_bytes.min(axis=1) for unit_bytes in needed]
        if (tied := configuration.tied) is not None and tied.once is not None and memory.units[-1] == instance.length - 1:
            least[-1] = np.minimum(least[-1], _needed(tied.once, memory.factors(len(least) - 1)).min(axis=1))
        messages = _messages(chain, memory)
        sums = np.sum(least, axis=0) + messages
        largest.append(int(sums.max()))
        choice[memory.units] = _leaner(needed, messages, int(sums.argmax()))
    sizes = Sizes.of(chain, choice)
    chosen = [int(memory.excess(sizes).max()) for memory in memories]
    KNOWN[configuration] = computed = _Peaks(instance.units, chain.options(choice), largest, chosen)
    return computed


def _needed(table: OptionTable, factors: Integers) -> Integers:
    """The bytes of each of the S options of a unit (sub-layer) at R moments of its device group's order of passes: (R, S).
    factors: (R, 3), how many times at each moment the unit's bytes count that are held while a micro-batch is in flight, kept
    until its backward pass, or added by a running pass. table: the unit's options. Model states count once.
    """
    needed: Integers = table.state_bytes + factors @ np.stack([table.held_bytes, table.kept_bytes, table.work_bytes])
    return needed


def _messages(chain: Chain, memory: DeviceGroupMemory) -> Integers:
    """The least bytes of the messages that wait in a device group at each of its R moments, over all layouts: (R,). chain: the
    units (sub-layers) and the boundaries between them. memory: the numbers of messages at each moment."""
    total = np.zeros(len(memory.work), np.int64)
    for l, boundary in enumerate(chain.boundaries, 1):
        for counts, sizes in (
            (memory.entering[:, l], boundary.message_forward_bytes),
            (memory.returning[:, l], boundary.message_backward_bytes),
        ):
            if sizes is not None and counts.any():
                total += counts * int(sizes.min())
    return total


def _leaner(needed: Sequence[Integers], messages: Integers, row: int) -> Indices:
    """Choose options of little memory for a device group's units (sub-layers), one index per unit: first the options that need
    the least at one moment; then single options are changed as long as the fullest moment becomes less full.

    needed: for each unit, (R moments, S options), its bytes. messages: (R,), bytes of messages. row: the moment to begin with.
    """
    choice = np.array([unit_bytes[row].argmin() for unit_bytes in needed], np.intp)
    rows = messages + sum(unit_bytes[:, s] for unit_bytes, s in zip(needed, choice, strict=True))
    while True:
        changes = [
            (rows[:, None] + unit_bytes - unit_bytes[:, [s]]).max(axis=0) for unit_bytes, s in zip(needed, choice, strict=True)
        ]
        unit = min(range(len(changes)), key=lambda unit: int(changes[unit].min()))
        option = int(changes[unit].argmin())
        if changes[unit][option] >= rows.max():
            return choice
        rows = rows + needed[unit][:, option] - needed[unit][:, choice[unit]]
        choice[unit] = option
