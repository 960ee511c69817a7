"""The least memory of interleaved configurations, between what none needs less than and what one needs.

What a site holds at a moment of its order, while one of its units runs, is a sum over its units and their messages
(`site_memory`), and no less than the sum of the least of each: so no solution's peak is below the largest of these sums, over
all moments and units. The options that make up that sum are a choice, which changes of single options then make leaner.
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
from trainplan.solvers.joint.fixed_cuts.priced_chain import Chain
from trainplan.solvers.joint.fixed_cuts.site_memory import SiteMemory, Sizes, site_memories
from trainplan.solvers.joint.memory_feasibility.greedy_fill import LARGEST, excess_bytes, over_hosts
from trainplan.solvers.joint.stages.option_tables import Places


@dataclass(frozen=True)
class Lean:
    """By how many bytes solutions are over the limits of their devices, below 0 where they fit. bound_bytes: no solution of a
    configuration is over them by less; excess_bytes: what the solution is, if one is known."""

    bound_bytes: int
    excess_bytes: int = LARGEST
    solution: Solution | None = None


def leanest(instance: Instance, place: int) -> Lean:
    """What is known of an interleaved configuration. Where no cuts are fixed, or devices are of several kinds, it is a bound by
    what the states of all units need."""
    configuration = instance.configurations[place]
    limits = [instance.limit_bytes(site) for site in configuration.sites]
    if configuration.cuts is None or len(configuration.tables) > 1:
        return Lean(-(-(least_states(instance, configuration) - sum(limits)) // len(limits)))
    peaks = _peaks(instance, place)
    bound, excess = (max(a - b for a, b in zip(each, limits, strict=True)) for each in (peaks.least, peaks.chosen))
    solution = Solution(place, configuration.cuts, peaks.options)
    if malformed(instance, solution) or over_hosts(instance, solution):
        return Lean(bound)
    return Lean(bound, excess if not shares_table(configuration, peaks.options) else excess_bytes(instance, solution), solution)


@dataclass(frozen=True)
class _Peaks:
    """What memory a configuration needs, whatever its limits. options: of a lean choice; least, chosen: of each site, the
    largest of the sums, and the choice's peak."""

    units: Sequence[Unit]
    options: tuple[int, ...]
    least: list[int]
    chosen: list[int]


KNOWN: WeakKeyDictionary[Configuration, _Peaks] = WeakKeyDictionary()  # they are asked for under many limits


def _peaks(instance: Instance, place: int) -> _Peaks:
    configuration = instance.configurations[place]
    known = KNOWN.get(configuration)
    if known is not None and known.units is instance.units:
        return known
    chain, choice, largest = Chain(instance, place), np.zeros(instance.length, np.intp), list[int]()
    memories = site_memories(chain, 0)
    for memory in memories:
        needed = [_needed(chain.tables[unit], memory.factors(x)) for x, unit in enumerate(memory.units.tolist())]
        least = [each.min(axis=1) for each in needed]
        if (tied := configuration.tied) is not None and tied.once is not None and memory.units[-1] == instance.length - 1:
            least[-1] = np.minimum(least[-1], _needed(tied.once, memory.factors(len(least) - 1)).min(axis=1))
        messages = _messages(chain, memory)
        sums = np.sum(least, axis=0) + messages
        largest.append(int(sums.max()))
        choice[memory.units] = _leaner(needed, messages, int(sums.argmax()))
    sizes = Sizes.of(chain, choice)
    chosen = [int(memory.excess(sizes).max()) for memory in memories]
    KNOWN[configuration] = made = _Peaks(instance.units, chain.options(choice), largest, chosen)
    return made


def _needed(table: OptionTable, factors: Integers) -> Integers:
    """(R, S): the bytes of each option in rows with factors, (R, 3), of what it holds, keeps, and works in."""
    needed: Integers = table.state_bytes + factors @ np.stack([table.held_bytes, table.kept_bytes, table.work_bytes])
    return needed


def _messages(chain: Chain, memory: SiteMemory) -> Integers:
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


def _leaner(needed: Sequence[Integers], messages: Integers, row: int) -> Places:
    """Options of a site's units: those that need the least in a row, and then others, one by one, as long as the fullest row
    becomes less full. needed: (R, S) of each unit."""
    choice = np.array([each[row].argmin() for each in needed], np.intp)
    rows = messages + sum(each[:, s] for each, s in zip(needed, choice, strict=True))
    while True:
        changes = [(rows[:, None] + each - each[:, [s]]).max(axis=0) for each, s in zip(needed, choice, strict=True)]
        unit = min(range(len(changes)), key=lambda unit: int(changes[unit].min()))
        option = int(changes[unit].argmin())
        if changes[unit][option] >= rows.max():
            return choice
        rows = rows + needed[unit][:, option] - needed[unit][:, choice[unit]]
        choice[unit] = option
