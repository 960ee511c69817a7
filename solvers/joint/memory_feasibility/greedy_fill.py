"""Fills stages from the last one to the first with as many units as fit, to find out whether a limit of memory suffices.

A stage needs what its first unit adds to the rest of it: from the last unit to the first, with B the bytes that are held
throughout, G the largest pass with the bytes stacked below it, and n micro-batches in flight,

    B' = B + state + n held + (n - 1) kept,    G' = kept + max(work, G),    and a stage needs B + G at its first unit,

so labels (B, G, host bytes) with dominance give the least need of every stage that ends at a unit, the longer stages after the
shorter. A longer stage needs no less. So a limit suffices where every stage, from the last one, takes as many units as fit, and
the least limit is found by bisection. Where device groups are unequal, all first units of a stage are followed; where options
of neighbours may disagree, each with its interface states. Interleaved chunks, which share devices, have `interleaved_memory`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from trainplan.formulations.joint.evaluation import bytes_of_stages
from trainplan.formulations.joint.problem import Configuration, Instance, Solution
from trainplan.formulations.joint.stage_memory import peaks
from trainplan.formulations.joint.tables import FORBIDDEN, Boundary, OptionTable
from trainplan.formulations.numbers import Integers

LARGEST = 1 << 60

Chosen = tuple[int, "Chosen"] | None  # the option of a unit, and those of all units after it
ANY = -1  # the interface state where states need not be distinguished


class Label(NamedTuple):
    """A label: one choice of options for the units (sub-layers) from some unit to the end of its pipeline stage. base: the
    bytes that these units hold all the time; peak: the bytes that the fullest pass adds to them; host: bytes on the host;
    chosen: the options of these units and of the stages after, as a linked list from the first of these units on."""

    base: int
    peak: int
    host: int
    chosen: Chosen


class Suffix(NamedTuple):
    """The last stages of a pipeline, each of which fits the memory limit. cuts: their first units (sub-layers). chosen: the
    options of their units."""

    cuts: tuple[int, ...]
    chosen: Chosen


Start = tuple[int, int]  # the first unit of a stage, and the state that it is entered in


def excess_bytes(instance: Instance, solution: Solution) -> int:
    """The memory excess of a solution, in bytes: the largest amount by which a stage exceeds its memory limit; negative if all
    stages fit.

    instance: the units (sub-layers) of a model, their options (parallel strategies) with times and memory, and the
    configurations (number of stages and micro-batches, schedule) to choose from. solution: the cuts and options."""
    configuration = instance.configurations[solution.configuration]
    by_stage = peaks(configuration, bytes_of_stages(instance, solution))
    return max(most - instance.limit_bytes(configuration.device_group(x)) for x, (most, _) in enumerate(by_stage))


def over_hosts(instance: Instance, solution: Solution) -> bool:
    """Whether a solution keeps more on hosts than their memory allows, for some stage; False if hosts have no limit.

    instance: the units (sub-layers) of a model, their options (parallel strategies) with times and memory, and the
    configurations (number of stages and micro-batches, schedule) to choose from. solution: the cuts and options."""
    configuration = instance.configurations[solution.configuration]
    host_limits = [instance.host_limit_bytes(configuration.device_group(x)) for x in range(configuration.stages)]
    if all(host_limit is None for host_limit in host_limits):
        return False
    needs = [int(stage.host.sum()) for stage in bytes_of_stages(instance, solution)]
    return any(host_limit is not None and need > host_limit for host_limit, need in zip(host_limits, needs, strict=True))


def fill_orders(instance: Instance, configuration_index: int) -> Iterator[FillOrder]:
    """Divide the search for a solution within memory over the options of one configuration (number of stages and micro-batches,
    with a schedule) into searches that together cover all solutions. Mostly that is a single search. If embedding and head may
    share a table as one parameter, there are two searches for each group of options of the first unit (sub-layer): one with the
    options of the last unit with which the table is one parameter, and one with its other options.

    instance: the units (sub-layers) of a model, their options (parallel strategies) with times and memory, and the
    configurations (number of stages and micro-batches, schedule) to choose from. configuration_index: the configuration's index
    in the instance."""
    configuration = instance.configurations[configuration_index]
    tied = configuration.tied
    if tied is None or tied.equal is None:
        yield FillOrder(instance, configuration, configuration_index)
        return
    for row in np.unique(tied.equal, axis=0):
        firsts = tuple(np.flatnonzero((tied.equal == row).all(axis=1)).tolist())
        for once in (True, False):
            if lasts := tuple(np.flatnonzero(row == once).tolist()):
                yield FillOrder(instance, configuration, configuration_index, firsts, lasts, once)


@dataclass(frozen=True)
class FillOrder:
    """A search over the cuts and options of one configuration (number of stages and micro-batches, with a schedule), from the
    last stage to the first, for a solution within a memory limit. Units are the model's sub-layers; an interface state is the
    layout of the activations between two units; the excess of a solution is the bytes by which its fullest stage exceeds its
    limit, negative if it fits.

    firsts, lasts: indices of the options of the first and the last unit that are allowed, None for all. once: whether embedding
    and head, with these options, hold their shared table as one parameter, so that it counts only once. undominated_rows:
    results of removing dominated options, kept for reuse. least_overrun: a list of one entry, which `within` sets: the least
    excess in bytes at which it would have found more to try."""

    instance: Instance
    configuration: Configuration
    configuration_index: int
    firsts: tuple[int, ...] | None = None
    lasts: tuple[int, ...] | None = None
    once: bool = False
    undominated_rows: dict[tuple[Any, ...], list[Any]] = field(default_factory=dict, repr=False, compare=False)
    least_overrun: list[int] = field(default_factory=lambda: [LARGEST], repr=False, compare=False)

    def better(self, best: tuple[int, Solution] | None) -> tuple[int, Solution] | None:
        """Find the solution of least excess in this configuration. Returns its excess in bytes and the solution; or `best`
        itself if no solution has a smaller excess. best: a pair (excess in bytes, solution) known from other configurations, or
        None."""
        better = self.within(LARGEST if best is None else best[0] - 1)
        low = self.least_excess
        while better is not None:
            best = excess_bytes(self.instance, better), better
            high, better = best[0] - 1, None
            while better is None and low <= high:
                middle = (low + high) // 2
                better = self.within(middle)
                low = low if better is not None else max(middle + 1, self.least_overrun[0])
        return best

    def improve_by_at_least(self, best: tuple[int, Solution] | None, by: int) -> tuple[int, Solution] | None:
        """Improve on the best solution so far in coarse steps: as long as this configuration has a solution whose excess is
        smaller by at least `by` bytes, replace the best solution by it. best: a pair (excess in bytes, solution), or None.
        Returns the last such pair."""
        while best is None or self.least_excess <= best[0] - by:
            better = self.within(LARGEST if best is None else best[0] - by)
            if better is None:
                return best
            best = excess_bytes(self.instance, better), better
        return best

    @cached_property
    def least_excess(self) -> int:
        """A lower bound in bytes on the excess of every solution over its limits: every unit alone with its least bytes, and
        the model states of all units shared evenly among the stages."""
        count, length = self.configuration.stages, self.instance.length
        limit = max(self.instance.limit_bytes(group) for group in self.configuration.device_groups)
        alone = states = 0
        alike = Counter((unit.kind, l == 0, l == length - 1) for l, unit in enumerate(self.instance.units))
        indices = {(unit.kind, l == 0, l == length - 1): l for l, unit in enumerate(self.instance.units)}
        for key, units in alike.items():
            tables = [self._table(indices[key], x) for x in range(count if len(self.configuration.tables) > 1 else 1)]
            columns = [(t.state_bytes[list(p)], (t.held_bytes + t.kept_bytes + t.work_bytes)[list(p)]) for t, p in tables]
            alone = max(alone, min(int((state + rest).min()) for state, rest in columns))
            states += units * min(int(state.min()) for state, _ in columns)
        return max(alone, -(-states // count)) - limit

    def within(self, excess: int) -> Solution | None:
        """A solution whose stages exceed their memory limits by at most `excess` bytes (which may be negative); None if there
        is none; `least_overrun` is then set to a larger excess, and no solution has an excess below that."""
        self.least_overrun[0] = LARGEST
        reached: dict[Start, Suffix] = {(self.instance.length, ANY): Suffix((), None)}
        for x in reversed(range(self.configuration.stages)):
            begun: dict[Start, Suffix] = {}
            for (end, state), suffix in reached.items():
                for first, labels in self._stages(x, end, state, suffix, excess):
                    if self._may_begin(x, first):
                        begun |= {(first, key): Suffix((first, *suffix.cuts), label[0].chosen) for key, label in labels.items()}
            if begun and self._alike and not self._apart:
                earliest = min(begun)
                begun = {earliest: begun[earliest]}
            reached = begun
        for suffix in reached.values():
            choice, chosen = [], suffix.chosen
            while chosen is not None:
                choice.append(chosen[0])
                chosen = chosen[1]
            return Solution(self.configuration_index, suffix.cuts[1:], tuple(choice))
        return None

    def _stages(
        self, stage: int, end: int, state: int, suffix: Suffix, excess: int
    ) -> Iterator[tuple[int, dict[int, list[Label]]]]:
        """Yield all possible stages that end before the unit `end` and exceed the limit by at most `excess` bytes, from the
        shortest to the longest: the stage's first unit and, by the interface state in which it is entered, the labels (choices
        of options) that no other dominates.

        stage: the stage's index. state: the interface state in which the unit `end` is entered. suffix: the stages after this
        stage."""
        group = self.configuration.device_group(stage)
        limit = self.instance.limit_bytes(group) + excess
        host_limit = self.instance.host_limit_bytes(group) if self._host_counts else None
        labels = {state: [Label(0, 0, 0, suffix.chosen)]}
        for unit in reversed(range(stage, end)):
            extended: dict[int, list[Label]] = {}
            for after, rest in labels.items():
                for key, base, kept, work, host, s in self._options(unit, stage, after):
                    for label in rest:
                        peak = kept + max(work, label.peak)
                        grown = Label(base + label.base, peak, host + label.host, (s, label.chosen))
                        if host_limit is not None and grown.host > host_limit:
                            continue
                        if grown.base + peak <= limit:
                            extended.setdefault(key, []).append(grown)
                        else:
                            self.least_overrun[0] = min(self.least_overrun[0], excess + grown.base + peak - limit)
            if not extended:
                return
            labels = {key: _undominated(candidates) for key, candidates in extended.items()}
            yield unit, labels

    def _options(self, unit: int, stage: int, after: int) -> Iterator[tuple[int, int, int, int, int, int]]:
        """The options of a unit that may be followed by a unit entered in the interface state `after`, without options that
        need at least as much memory of every kind as another option.

        Yields for each option six numbers: the interface state in which it is entered, the bytes that it holds all the time,
        the bytes that it keeps for one micro-batch until the backward pass, the bytes of its running pass, its bytes on the
        host, and its index. unit: the unit's index. stage: the index of its stage. after: the interface state in which the next
        unit is entered."""
        table, indices = self._table(unit, stage)
        if after != ANY:
            indices = tuple(s for s in indices if self._agree(unit, stage, int(table.leave[s]), after))
        n = self.configuration.in_flight(stage)
        key = id(table), n, indices
        if key not in self.undominated_rows:
            bases = table.state_bytes + n * table.held_bytes + (n - 1) * table.kept_bytes
            enters = table.enter if self._apart else np.full(len(table.options), ANY)
            hosts = table.host_bytes if self._host_counts else np.zeros_like(bases)
            columns = (enters, bases, table.kept_bytes, table.work_bytes, hosts)
            rows = sorted((*(int(column[s]) for column in columns), s) for s in indices)
            lean: list[tuple[int, ...]] = []
            for row in rows:
                if not any(
                    row[0] == other[0] and all(a <= b for a, b in zip(other[1:5], row[1:5], strict=True)) for other in lean
                ):
                    lean.append(row)
            self.undominated_rows[key] = lean
        yield from self.undominated_rows[key]

    def _table(self, unit: int, stage: int) -> tuple[OptionTable, tuple[int, ...]]:
        """Look up the options of a unit if it is in a given stage: the table of all of its options, and the indices of the
        options that this search allows, ascending. unit, stage: their indices."""
        table, tied = self.instance.table(self.configuration, stage, unit), self.configuration.tied
        counted = set(range(len(table.options)))
        if unit == 0 and self.firsts is not None:
            counted &= set(self.firsts)
        if unit == self.instance.length - 1 and self.lasts is not None:
            counted &= set(self.lasts)
            if self.once:
                assert tied is not None and tied.once is not None
                table = tied.once
        return table, tuple(sorted(counted))

    def _may_begin(self, stage: int, first: int) -> bool:
        """Whether stage `stage` may begin with the unit `first`: a cut is allowed there, and enough cuts are allowed before it
        for the earlier stages."""
        cuts, cuttable = self.configuration.cuts, self.instance.cuttable
        if stage == 0:
            return first == 0
        if cuts is not None and cuts[stage - 1] != first:
            return False
        return cuttable[first - 1] and sum(cuttable[: first - 1]) >= stage - 1

    @cached_property
    def _host_counts(self) -> bool:
        """Whether the host's memory could be too small for some stage: true if the sum over all units of their largest host
        bytes exceeds the smallest limit. If not, hosts are ignored."""
        host_limits = [self.instance.host_limit_bytes(group) for group in self.configuration.device_groups]
        least = min((host_limit for host_limit in host_limits if host_limit is not None), default=None)
        tables = self.configuration.tables
        most = (max(int(table.units[unit.kind].host_bytes.max()) for table in tables) for unit in self.instance.units)
        return least is not None and sum(most) > least

    @cached_property
    def _alike(self) -> bool:
        """Whether all device groups have equal tables and limits, so that filling each stage as far as possible is optimal. If
        not, a small stage may need units that a later one would take."""
        groups = self.configuration.device_groups
        host_limits = {
            (group.kind, self.instance.limit_bytes(group), self.instance.host_limit_bytes(group)) for group in groups
        }
        return len(host_limits) == 1

    @cached_property
    def _apart(self) -> bool:
        """Whether interface states must be distinguished, because some pairs of them are forbidden at some boundary."""
        boundaries = [boundary for tables in self.configuration.tables for boundary in tables.boundaries]
        return any(int(matrix.max(initial=0)) >= FORBIDDEN for boundary in boundaries for matrix in _relayouts(boundary))

    def _agree(self, unit: int, stage: int, leave: int, after: int) -> bool:
        """Whether a unit of a stage that is left in interface state `leave` may be followed by a unit entered in state
        `after`."""
        if after == ANY:
            return True
        boundary = self.instance.boundary(self.configuration, stage, unit + 1)
        return all(int(matrix[leave, after]) < FORBIDDEN for matrix in _relayouts(boundary))


def _relayouts(boundary: Boundary) -> tuple[Integers, Integers]:
    """The re-layout times at a boundary between two units (sub-layers): two arrays in ns, forward and backward, each (states
    before, states after) by interface states (layouts of activations)."""
    return boundary.relayout_forward_ns, boundary.relayout_backward_ns


def _undominated(labels: list[Label]) -> list[Label]:
    """Pareto filter: the labels (choices of options) that no other label equals or undercuts in base, peak and host bytes; of
    equal labels the first."""
    kept: list[Label] = []
    for label in sorted(labels, key=_needs):
        _, peak, host, _ = label
        if not any(other.peak <= peak and other.host <= host for other in kept):
            kept.append(label)
    return kept


def _needs(label: Label) -> tuple[int, int, int]:
    """The three numbers of bytes by which labels (choices of options for the units up to a stage's end) are compared: base
    (held all the time), peak (added by the fullest pass) and host."""
    return label[:3]
