"""Joint instances under the cost model `streams` in which every unit of a plan may have a layout of its own.

A layout is a strategy without recomputation: how the devices of a stage share the work and the states of a unit (a sub-layer or
layer). Only trainplan's executor runs such plans. Their step is the simulated step of their programs
(`execution.prediction.overlap`): parameters are gathered one unit ahead and gradients reduced while the next units are
computed; between units of unlike layouts, computations wait for an all-gather of the hidden states. The tables relax it (see
`overlap_units_weights`), so that the problem's step is never longer than the simulated one.

In pipelines of several stages, states are copies or sharded in ZeRO stage 1, as where all units have one layout. Context
parallelism, low-precision recipes, interleaved stages and other optimizers than AdamW stay with one layout for all units.
Memory is that of trainplan's own programs: a lower bound (`MEMORY_TABLES`); or an upper bound, in which every unit has room for
re-layouts, and for prefetched parameters and late gradients of neighbours of any layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from trainplan.formulations.costs.overlapped.analytic_step import LEAST_BUCKETS
from trainplan.formulations.joint.boundaries import Boundaries, message_bytes
from trainplan.formulations.joint.cost_tables import JointCosts, Setting, strategy_of
from trainplan.formulations.joint.overlap_cost_tables import StreamedCosts
from trainplan.formulations.joint.overlap_lower_bounds import ROUNDED_NS, layout_of
from trainplan.formulations.joint.overlap_units_weights import CORNERS, UnitTimes, Weights, best_weights
from trainplan.formulations.joint.problem import Schedule
from trainplan.formulations.joint.tables import FORBIDDEN, Boundary, Option
from trainplan.formulations.numbers import Integers
from trainplan.formulations.plan.rank_grid import common_digits
from trainplan.formulations.plan.strategy import Strategy, gather_groups


class UnitLayoutBoundaries(Boundaries):
    """Boundaries between units that may have unlike layouts, with the times of the cost model `streams`."""

    def __init__(self, costs: UnitLayoutCosts) -> None:
        super().__init__(costs.profile)
        self.costs = costs

    def boundary(
        self, size: int, strategies: Sequence[Strategy], group: int, samples: int, sliced: bool, chunks: int = 1
    ) -> Boundary:
        """The costs of one kind of boundary between two units: the re-layout between each pair of interface states, as far as
        the lower bound of the step counts it, and the message where a stage begins after the boundary.

        size: bytes of one sample's hidden states. strategies: one strategy for each interface state, in the order of the
        states' numbers. group: the number of devices of a stage. samples: samples per micro-batch. sliced, chunks: must be
        False and 1, since such plans have one layout.
        """
        assert not sliced and chunks == 1, "unlike layouts are not of interleaved stages, nor of halves of micro-batches"
        boundary = super().boundary(size, strategies, group, samples, sliced, chunks)
        setting = Setting(group, samples)
        weights, micro_batches = self.costs.weights(setting), self.costs.batch // samples
        return replace(
            boundary,
            relayout_forward_ns=_shares(boundary.relayout_forward_ns, weights.of_computations),
            relayout_backward_ns=_shares(boundary.relayout_backward_ns, weights.of_backward(micro_batches)),
        )

    def _relayouts(self, size: int, strategies: Sequence[Strategy], samples: int) -> Integers:
        """(C, C): the time in ns to bring the hidden states of `samples` samples from the interface state of one strategy (row)
        into that of another (column), as simulations of programs have it; FORBIDDEN where neighbouring units may not have the
        two states. size: bytes of one sample's hidden states. strategies: one for each of the C interface states."""
        times = np.zeros((len(strategies), len(strategies)), np.int64)
        for a, before in enumerate(strategies):
            for b, after in enumerate(strategies):
                times[a, b] = (
                    FORBIDDEN if common_digits([before, after]) is None else self._relayout(before, after, samples, size)
                )
        return times

    def _relayout(self, before: Strategy, after: Strategy, samples: int, size: int) -> int:
        """The time in ns of the re-layout of `samples` samples of `size` bytes from one strategy to another: the all-gather of
        the tokens that ranks share, and that of the samples that they lack."""
        prices = self.costs.prices(layout_of(before), Setting(before.group, samples))
        rows_bytes, time = samples // before.data_degree * size, 0
        if before.token_digit is not None and (before.layout, before.token_digit) != (after.layout, after.token_digit):
            time += prices.relayout_ns(rows_bytes, before.peers(0, "tp"))
        ranks = next(gather_groups(before, after), ())
        return time + prices.relayout_ns(rows_bytes * len(ranks), ranks)

    def _messages(self, size: int, strategies: Sequence[Strategy], group: int, samples: int) -> Integers:
        """(K, C): the time in ns to send the hidden states of `samples` samples to the next stage, by kind of link (K kinds)
        and by the interface state of each strategy (C strategies). size: bytes of one sample's hidden states. group: the number
        of devices of a stage. strategies: one for each of the C interface states.
        """
        times = [
            self.costs.prices(layout_of(strategy), Setting(group, samples)).message_ns(message_bytes(strategy, samples, size))
            for strategy in strategies
        ]
        return np.array([times] * len(self.pairs(group)), np.int64).reshape(-1, len(strategies))


def _shares(times: Integers, share: float) -> Integers:
    """The share of times in ns, rounded down; FORBIDDEN ones stay as they are."""
    return np.where(times == FORBIDDEN, FORBIDDEN, (times * share).astype(np.int64))


class UnitLayoutCosts(StreamedCosts):
    """The tables of costs of one model on one cluster of equal devices under the cost model `streams`, where the units of one
    configuration (schedule, number of micro-batches and device groups) may have unlike layouts.

    memory_bytes: the memory of one device, by which the weights of the lower bounds of the step are chosen. fixed: these
    weights, if they are not to be chosen.
    """

    relaid = True

    def __init__(self, *arguments: Any, memory_bytes: int, fixed: Weights | None = None) -> None:
        super().__init__(*arguments)
        self.memory_bytes, self.fixed = memory_bytes, fixed
        self.boundary_costs = UnitLayoutBoundaries(self)
        self.weights = cache(self._weights)
        self.unit_times = cache(self._unit_times)
        self.room_bytes = cache(self._room_bytes)

    def _settings(self, schedule: Schedule, group: int, samples: int) -> Sequence[Setting]:
        """The one setting on which tables of costs depend under a schedule, for units of any layouts. group: the number of
        devices of a stage. samples: samples per micro-batch."""
        return [Setting(group, samples)]

    def _options(self, setting: Setting) -> tuple[tuple[Option, ...], ...]:
        """For each kind of unit, its options, of all layouts. setting: the devices of a stage and samples per micro-batch."""
        return JointCosts._options(self, setting._replace(layout=None))

    def _part(self, sublayer: str, strategy: Strategy, setting: Setting, once: bool) -> dict[str, int]:
        """The costs of one sub-layer under a strategy, by column names of `OptionTable`; its times are parts of a lower bound
        of the step. sublayer: the sub-layer's name in the profile. setting: the devices of a stage and samples per micro-batch.
        once: True for a head whose weight table is the embedding's, as one parameter."""
        numbers = self._memory_part(sublayer, strategy, setting, once)
        own = Setting(setting.group, setting.samples)
        times = self.unit_times(sublayer, strategy, own)
        if once and self.profile.tied_parameters:
            times = times._replace(scattered=0, reduced=0, updated=0, optimizer=0)
        weighted = times.weighted(self.weights(own), self.batch // setting.samples)
        numbers |= dict(zip(("forward_ns", "backward_ns", "optimizer_ns"), weighted, strict=True))
        if not self.space.least_memory:
            numbers["work_backward_bytes"] += self.room_bytes(own)
        return numbers

    def _room_bytes(self, setting: Setting) -> int:
        """The most bytes on one device that units of any layout need for parameters gathered ahead and for gradients that are
        freed late. setting: the devices of a stage and samples per micro-batch."""
        memory, most = self.overlap_memory, 0
        for strategy in {layout_of(strategy_of(option)) for kind in self.options(setting) for option in kind}:
            ahead = memory.largest_bytes(strategy) * strategy.shares_parameters
            late = (memory.delayed_free_bytes(name, strategy, setting) for name in self.lanes.counts)
            most = max(most, ahead + max(late))
        return most

    def _unit_times(self, sublayer: str, strategy: Strategy, setting: Setting) -> UnitTimes:
        """The times of a sub-layer under a strategy. sublayer: its name in the profile. setting: the devices of a stage and
        samples per micro-batch."""
        lanes, layout = self.lanes, layout_of(strategy)
        forward, backward = lanes.computed_ns(sublayer, strategy, setting)
        end, in_turn = lanes.end_of_step(sublayer, layout, setting), layout.zero_stage >= 2
        moved = lanes.moved_ns(sublayer, layout, setting) if in_turn else (0, 0)
        share = 1 / LEAST_BUCKETS if self.framework.overlaps_parameters else 1.0
        return UnitTimes(
            forward=forward,
            backward=backward,
            moved_forward=moved[0],
            moved_backward=moved[1],
            scattered=end.scattered if in_turn else 0,
            reduced=end.summed + (0 if in_turn else end.scattered),
            updated=max(0, int(share * end.updated) - ROUNDED_NS),
            optimizer=end.optimizer,
            is_head=self.profile.shapes[sublayer].kind == "head",
        )

    def _weights(self, setting: Setting) -> Weights:
        """The weights of the lower bounds of the step in a setting. setting: the devices of a stage and samples per
        micro-batch."""
        alone, depth = setting.group == self.profile.devices, self.profile.devices // setting.group
        of_kinds = [{strategy_of(option) for option in kind} for kind in self.options(setting)]
        common = of_kinds[0].intersection(*of_kinds)
        if self.fixed is not None or not common:
            fixed = self.fixed or CORNERS[0]
            return fixed if alone or fixed in CORNERS[:2] else CORNERS[0]
        counts, plans, fits = self.lanes.counts, list[list[UnitTimes]](), list[bool]()
        for strategy in sorted(common, key=str):
            plans.append([self.unit_times(name, strategy, setting) for name in counts])
            parts = [(self._memory_part(name, strategy, setting, False), count) for name, count in counts.items()]
            size = sum(count * (part["state_bytes"] + part["kept_bytes"]) for part, count in parts)
            fits.append(size <= depth * self.memory_bytes)
        return best_weights(list(counts.values()), plans, fits, self.batch // setting.samples, alone)

    def _memory_part(self, sublayer: str, strategy: Strategy, setting: Setting, once: bool) -> dict[str, int]:
        """The bytes that a sub-layer has in the tables, with times that count for nothing. sublayer: its name in the profile.
        once: True for a head whose weight table is the embedding's, as one parameter. setting: the devices of a stage and
        samples per micro-batch."""
        return super()._part(sublayer, strategy, setting, once)
