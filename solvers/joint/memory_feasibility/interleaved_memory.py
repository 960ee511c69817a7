"""The least memory of interleaved configurations: a lower bound of all solutions, and one solution of little memory.

The bytes that a device group holds at a moment of its order, while one of its units runs, are a sum over its units and their
messages (see `fixed_cuts.device_group_memory`), and no less than the sum of each unit's and message's least. So no solution's
peak is below the largest of these sums over all moments and units. The options of that sum are a choice, which changes of
single options then make smaller.
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
    """By how many bytes solutions are over the limits of their devices, below 0 where they fit. bound_bytes: no solution of a
    configuration is over them by less; excess_bytes: what the solution is, if one is known."""

    bound_bytes: int
    excess_bytes: int = LARGEST
    solution: Solution | None = None


def leanest(instance: Instance, configuration_index: int) -> LeanChoice:
    """What is known of an interleaved configuration. Where no cuts are fixed, or devices are of several kinds, it is a bound by
    what the states of all units need."""
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
    """What memory a configuration needs, whatever its limits. options: of a lean choice; least, chosen: of each site, the
    largest of the sums, and the choice's peak."""

    units: Sequence[Unit]
    options: tuple[int, ...]
    least: list[int]
    chosen: list[int]


KNOWN: WeakKeyDictionary[Configuration, _Peaks] = WeakKeyDictionary()  # they are asked for under many limits


def _peaks(instance: Instance, configuration_index: int) -> _Peaks:
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
    """(R, S): the bytes of each option in rows with factors, (R, 3), of what it holds, keeps, and works in."""
    needed: Integers = table.state_bytes + factors @ np.stack([table.held_bytes, table.kept_bytes, table.work_bytes])
    return needed


def _messages(chain: Chain, memory: DeviceGroupMemory) -> Integers:
    """(R,): the bytes that the messages of a site's rows have at least."""
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
    """Options of a site's units: those that need the least in a row, and then others, one by one, as long as the fullest row
    becomes less full. needed: (R, S) of each unit."""
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
