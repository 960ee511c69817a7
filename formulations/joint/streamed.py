"""From a model and a cluster to a joint instance under the cost model `streams`: what the lanes of frameworks take at least.

All units of a plan have one layout (degrees, ZeRO stage, sequence parallelism), as in today's frameworks; what is recomputed
may differ. So each configuration has one layout, and nothing is laid out anew between units. In pipelines of several stages,
states are copies, or shared in ZeRO's stage 1, as frameworks have it there.

The numbers are relaxed where lanes run beside each other, so that the problem's step is at most the walk over the plan's
programs (`execution.streams`), whatever the plan:

- The lane of computations does the passes of a device one after the other, in the schedule's order, with the collectives of
  tensor-parallel ranks and, where each device has one stage, the messages that it receives. (Those of interleaved stages, which
  travel beside, take nothing.) Tables have just these. The walk adds to that what this lane waits for the other one.
- In ZeRO's stages 2 and 3 the other lane gathers parameters and reduces gradients in every micro-batch, and the step is no
  shorter than either lane's work, nor than any mean of both. Tables have that of the lane with more to do, or, where that is
  the one of collectives, a mean with as much of the other as costs the bound no more than a hundredth (MIXED), so that what
  computes less is better, too; the same mean for all units of a layout.
- Other gradients are reduced behind the last micro-batch's backward pass. Let r, b and o be what a unit's reduction, its
  backward pass and its optimizer take. When unit j's backward pass is done, those before it are still to be computed, and all
  up to j to be reduced: reductions end at least sum_{l <= j} r_l - sum_{l < j} b_l behind the last pass. With j the stage's
  last unit before the head that is at least the sum of r_l - b_l. The optimizer's steps end at least sum o_l behind it. Tables
  have the one or the other, whichever sums up to more over the model, and the first only where r_l >= b_l for every unit
  before the head, so that it holds of every stage.
- Updated parameters are gathered behind all that: in the walk alone, as is what the ends of a pipeline do with a table that
  they share.

Memory is that of trainplan's own programs, as under `executed`, without room for re-layouts, and with room for what is
gathered ahead; of plans with context parallelism or products in 8 bits, that
of the programs that stand for them (`execution.standing_in`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from trainplan.formulations.joint.borders import Borders, message_bytes
from trainplan.formulations.joint.costs import NAMES, JointCosts, Setting, strategy_of
from trainplan.formulations.joint.problem import Schedule
from trainplan.formulations.joint.space import Space
from trainplan.formulations.joint.tables import Boundary, Option, Tied
from trainplan.formulations.strategies import TREE, Paradigm, Strategy, without_cp
from trainplan.formulations.streams.frameworks import OVERLAPPED
from trainplan.formulations.streams.layout import Recompute, RunLayout
from trainplan.formulations.streams.links import Links
from trainplan.formulations.streams.prices import Prices, SublayerTimes
from trainplan.formulations.work.memory import unit_bytes
from trainplan.formulations.work.moves import moved_bytes
from trainplan.profiling.base.dtypes import DTYPE_BYTES
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.models.model import Model
from trainplan.profiling.profiles import Profile

COST_MODEL = "streams"
LEFT_OUT = ("one layout for all units", "in pipelines ZeRO 0 and 1")  # the cost model's own restrictions, beside options
MIXED = 0.01  # of the bound, that a mean of both lanes may cost it


def layout_of(strategy: Strategy) -> Strategy:
    """A strategy without what it recomputes."""
    return replace(strategy, ckpt=False, modules=())


class OneLayout(Borders):
    """Boundaries between units of one layout, whose messages take what `streams` says."""

    state_of = staticmethod(layout_of)
    state_name = staticmethod(str)

    def __init__(self, costs: StreamedCosts) -> None:
        super().__init__(costs.profile)
        self.costs = costs

    def boundary(
        self, size: int, strategies: Sequence[Strategy], group: int, samples: int, sliced: bool, chunks: int = 1
    ) -> Boundary:
        """As of `Borders`, of one interface state."""
        assert not sliced, "halves of micro-batches have no walk on these lanes"
        (layout,) = map(layout_of, strategies)
        sent, none = message_bytes(layout, samples, size), np.zeros((1, 1), np.int64)
        prices = self.costs.prices(layout, Setting(group, samples, chunks=chunks, layout=layout))
        message = np.full((len(self.pairs(group)), 1, 1), prices.message_ns(sent), np.int64)
        return Boundary(
            message_forward_bytes=none + sent,
            message_backward_bytes=none + sent,
            relayout_forward_ns=none,
            relayout_backward_ns=none.copy(),
            message_forward_ns=message,
            message_backward_ns=message.copy(),
        )


class StreamedCosts(JointCosts):
    """The tables of one model on one cluster of equal devices, under `streams`."""

    cost_model = COST_MODEL

    def __init__(
        self,
        profile: Profile,
        space: Space,
        tp_degrees: Sequence[int],
        model: Model,
        cluster: Cluster,
        batch: int,
        cp: int = 1,
        few_bits: bool = False,
    ) -> None:
        """profile: of the model, for memory; with context parallelism of degree cp, of a cp-th of its tokens. few_bits: whether
        products of transformer layers are in 8 bits. Raises InputError."""
        super().__init__(profile, space, tp_degrees)
        self.model, self.cluster, self.batch, self.cp, self.few_bits = model, cluster, batch, cp, few_bits
        self.borders = OneLayout(self)
        self.by_layout = cache(self._by_layout)
        self.prices = cache(self._prices)
        self.lanes = cache(self._lanes)
        self.computed_ns = cache(self._computed_ns)
        self.gathered_ns = cache(self._gathered_ns)
        self.ends_ns = cache(self._ends_ns)
        self.sublayers = SublayerTimes(model, cluster.used_kinds[0], Links.of_cluster(cluster))
        self.counts = Counter(unit.sublayer for unit in profile.units)
        names: dict[str, set[str]] = {}
        for unit, profiled in zip(model.units, profile.units, strict=True):
            names.setdefault(profiled.sublayer, set()).add(model.key_of(unit))
        if any(len(each) > 1 for each in names.values()):
            problem = f"is {cp}: layers that differ in what they attend to would be alike with a {cp}th of the tokens"
            raise InputError("command line", "--cp", problem, "give a smaller degree, or 1")
        self.key_of = {name: each.pop() for name, each in names.items()}

    # What is possible

    def _every_strategy(self, group: int) -> list[Strategy]:
        possible = [strategy for strategy in super()._every_strategy(group) if _in_order(strategy)]
        if group < self.profile.devices:
            possible = [strategy for strategy in possible if strategy.zero_stage < 2]
        return [strategy for each in possible if (strategy := _with_cp(each, self.cp)) is not None]

    def _settings(self, schedule: Schedule, group: int, samples: int) -> Sequence[Setting]:
        """One for each layout that all kinds of units can have."""
        setting = Setting(group, samples, chunks=schedule.chunks)
        return [setting._replace(layout=layout) for layout in self.by_layout(group, samples)]

    def _options(self, setting: Setting) -> tuple[tuple[Option, ...], ...]:
        if setting.layout is None:
            return super()._options(setting)
        return self.by_layout(setting.group, setting.samples)[setting.layout]

    def _by_layout(self, group: int, samples: int) -> dict[Strategy, tuple[tuple[Option, ...], ...]]:
        """The options by kind of unit, of each layout that all kinds can have."""
        every = self.options(Setting(group, samples))
        of_kinds: list[dict[Strategy, list[Option]]] = [{} for _ in every]
        for options, of_layout in zip(every, of_kinds, strict=True):
            for option in options:
                of_layout.setdefault(layout_of(strategy_of(option)), []).append(option)
        layouts = [layout for layout in of_kinds[0] if all(layout in each for each in of_kinds)]
        return {layout: tuple(tuple(each[layout]) for each in of_kinds) for layout in layouts}

    # Numbers

    def _prices(self, layout: Strategy, setting: Setting) -> Prices:
        precision: Any = "float8" if self.few_bits else self.model.dtype
        run = RunLayout(
            dp=layout.data_degree,
            tp=layout.degree("tp"),
            pp=self.profile.devices // setting.group,
            cp=self.cp,
            chunks=setting.chunks,
            zero=layout.zero_stage,
            shard=layout.degree("sdp"),
            sequence_parallel=layout.sequence_parallel,
            recompute=Recompute(),
            base=self.model.dtype,  # type: ignore[arg-type]
            precision=precision,
            micro=setting.samples // layout.data_degree,
            batch=self.batch,
            framework=OVERLAPPED,
        )
        return Prices(self.sublayers, run)

    def _part(self, sublayer: str, strategy: Strategy, setting: Setting, once: bool) -> dict[str, int]:
        profile, samples = self.profile, setting.samples
        computed = self.computed_ns(sublayer, strategy, setting)
        times = self._relaxed_ns(sublayer, strategy, setting, computed, once)
        alone, group = without_cp(strategy), strategy.group
        kept, work, state = unit_bytes(profile, True, sublayer, alone, samples * self.cp, once, relaid=False)
        exchanged = 2 * samples * self.cp * moved_bytes(profile, sublayer)[1] if group == 1 else 0
        work = max(exchanged, work) + self._ahead_bytes(layout_of(strategy))
        return dict(zip(NAMES, (*times, kept, work, state, 0), strict=True))

    def _ahead_bytes(self, layout: Strategy) -> int:
        """Room for the parameters of another unit, which are gathered ahead in ZeRO's stage 3."""
        if layout.zero_stage < 3:
            return 0
        return max(self._parameters(unit, layout) for unit in self.key_of) * DTYPE_BYTES[self.model.dtype]

    def _computed_ns(self, sublayer: str, strategy: Strategy, setting: Setting) -> tuple[int, int]:
        """Both passes on the lane of computations, as instructions are charged."""
        name, kind = self.key_of[sublayer], self.profile.shapes[sublayer].kind
        prices = self.prices(layout_of(strategy), setting)
        ahead, behind = prices.sums(kind)
        forward = prices.forward_ns(name) + ahead * prices.sum_ns(name, kind, False)
        backward = prices.backward_ns(name, strategy.modules) + behind * prices.sum_ns(name, kind, True)
        return forward, backward + (prices.recompute_ns(name) if strategy.ckpt else 0)

    def _relaxed_ns(
        self, sublayer: str, strategy: Strategy, setting: Setting, computed: tuple[int, int], once: bool
    ) -> tuple[int, int, int, int]:
        """Forward and backward pass, reduction and optimizer, relaxed as the module says."""
        layout, kind = layout_of(strategy), self.profile.shapes[sublayer].kind
        lane, share = self.lanes(layout, setting)
        reduction, optimizer = self.ends_ns(sublayer, layout, setting)
        if lane == "communication":
            pairs = zip(computed, self.gathered_ns(sublayer, layout, setting), strict=True)
            forward, backward = (int(share * compute + (1 - share) * gather) for compute, gather in pairs)
            return forward, backward, 0, 0
        if lane == "reductions":
            again = self.computed_ns(sublayer, _whole(layout), setting)[1]
            return (*computed, 0 if kind == "head" or once else max(0, reduction - again), 0)
        return (*computed, 0, 0 if once and self.profile.tied_parameters else optimizer)

    def _lanes(self, layout: Strategy, setting: Setting) -> tuple[str, float]:
        """What a layout's tables have: `communication` in place of passes, with the share of these in the mean; or, behind
        passes, `reductions` or the `optimizer`."""
        counts = self.counts
        if layout.zero_stage >= 2:
            computed = sum(count * sum(self.computed_ns(name, layout, setting)) for name, count in counts.items())
            gathered = sum(count * sum(self.gathered_ns(name, layout, setting)) for name, count in counts.items())
            if gathered <= computed:
                return "optimizer", 1.0
            return "communication", min(0.5, MIXED * gathered / (gathered - computed))
        before = [name for name in counts if self.profile.shapes[name].kind != "head"]
        ends = {name: self.ends_ns(name, layout, setting) for name in counts}
        left = {name: ends[name][0] - self.computed_ns(name, _whole(layout), setting)[1] for name in before}
        longer = sum(counts[name] * left[name] for name in before) > sum(counts[name] * ends[name][1] for name in counts)
        return ("reductions" if longer and min(left.values()) >= 0 else "optimizer"), 1.0

    def _gathered_ns(self, sublayer: str, layout: Strategy, setting: Setting) -> tuple[int, int]:
        """What the other lane does for a micro-batch in ZeRO's stages 2 and 3, in each pass; the last unit's parameters are
        still there for its backward pass."""
        alone, prices, shape = without_cp(layout), self.prices(layout, setting), self.profile.shapes[sublayer]
        ranks, stride, parameters = alone.degree("sdp"), alone.strides()["sdp"], self._parameters(sublayer, layout)
        name = self.key_of[sublayer]
        gather = prices.in_layer_ns(name, parameters * DTYPE_BYTES[self.model.dtype], ranks, stride)
        gather = gather if layout.zero_stage == 3 else 0
        scatter = prices.in_layer_ns(name, parameters * self._gradient_bytes, ranks, stride)
        return gather, scatter + (0 if shape.kind == "head" else gather)

    def _ends_ns(self, sublayer: str, layout: Strategy, setting: Setting) -> tuple[int, int]:
        """What the reduction of a unit's gradients takes behind the last micro-batch, and its optimizer."""
        alone, prices = without_cp(layout), self.prices(layout, setting)
        shared, copies, strides = alone.degree("sdp"), alone.degree("dp"), alone.strides()
        parameters, time = self._parameters(sublayer, layout), 0
        if layout.zero_stage == 1:
            time += prices.collective_ns(1, parameters * self._gradient_bytes, shared, strides["sdp"])
        if copies > 1:
            part = parameters // shared if layout.zero_stage else parameters
            time += prices.collective_ns(2, part * self._gradient_bytes, copies, strides["dp"])
        return time, prices.optimizer_ns(parameters // shared)

    @property
    def _gradient_bytes(self) -> int:
        return self.profile.precision.gradient_bytes(DTYPE_BYTES[self.model.dtype])

    def _parameters(self, sublayer: str, layout: Strategy) -> int:
        """Those of a tensor-parallel rank."""
        return self.profile.shapes[sublayer].shard(layout.degree("tp")).parameters

    def _tied(self, setting: Setting) -> Tied | None:
        tied = super()._tied(setting)
        return None if tied is None else replace(tied, reduce_ns=0)


def _whole(layout: Strategy) -> Strategy:
    """The layout with everything recomputed, whose backward passes take longest."""
    return replace(layout, ckpt=True)


def _in_order(strategy: Strategy) -> bool:
    """Whether levels are in the order of frameworks' ranks: copies, shards, then tensor parallelism on the fastest links."""
    axes = [paradigm for paradigm, _ in strategy.levels]
    return axes == [paradigm for paradigm in TREE if paradigm in axes]


def _with_cp(strategy: Strategy, degree: int) -> Strategy | None:
    """The strategy for which another one stands (see `without_cp`), with this degree of context parallelism; None where its
    ranks do not have as many."""
    if degree == 1:
        return strategy
    data: Paradigm = "sdp" if strategy.degree("sdp") > 1 else "dp"
    degrees = dict(strategy.levels)
    if degrees.get(data, 1) % degree:
        return None
    degrees[data] //= degree
    if data == "sdp" and degrees["sdp"] == 1:
        return None  # ranks share states with others of their own samples alone: not written yet
    order: tuple[Paradigm, ...] = ("dp", "sdp", "cp", "tp")
    degrees["cp"] = degree
    return replace(strategy, levels=tuple((each, degrees[each]) for each in order if degrees.get(each, 1) > 1))
