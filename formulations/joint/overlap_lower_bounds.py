"""Lower bounds of the step under overlap, by unit: the times that tables have under the cost model `streams`.

A device has two lanes. The lane of computations runs the device's passes one after the other, in the schedule's order, with the
collectives of tensor-parallel ranks and, where each device has one stage, the messages that it receives. (Messages of
interleaved stages overlap passes and take nothing.) The other lane moves parameters and gradients in the order in which
programs issue that. For a unit l let f and b be its forward and backward pass, r the reduction of its gradients, o its
optimizer, and u the part of the gathering of its updated parameters that the next step's forward passes do not hide. After the
passes of a device come, in every plan,

- `optimizer`: sum o_l, after the last pass on its lane;
- `updates`: sum u_l, since every gathering waits for an optimizer, and these for the last pass;
- `reductions`: sum (r_l - b_l) + sum u_l, the first over the units before the head. When unit j's last backward pass is done,
  those before it are still to be computed, and all up to j to be reduced: reductions end at least sum_{l <= j} r_l -
  sum_{l < j} b_l after the last pass, with j the stage's last unit before the head at least sum (r_l - b_l); every gathering
  comes after all of them on its lane. Taken only where r_l >= b_l for every unit before the head, so that it holds of any
  stage, and each device has one: between the last passes of two stages it may wait, and reduce meanwhile.

In ZeRO stages 2 and 3, the other lane also works in every micro-batch, and a step is no shorter than that work:

- `collectives`: all work of that lane, including the gathering of updated parameters; in ZeRO stage 2, where it has nothing to
  do before the first backward pass, after sum f_l.

A layout's tables have the times of the bound with the largest sum over the model. Of `collectives` they have a mean with a
share of the passes that costs the bound no more than a hundredth (MIXED), so that options that compute less are better, too.
With Muon whole gradients are summed, which is r, and nothing hides the gathering, so u is all of it.

The hidden part of u is not linear: it is h = max(G / B, G - F), with G the gathering of all updated parameters of a device, F
the forward passes that overlap it, and at least B buckets. For one stage the share h / G of every unit's gathering is exact;
else u_l is the larger in sum of G_l / B and of G_l - F_l, the latter only where it is positive for every unit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Literal, NamedTuple

from trainplan.formulations.costs.overlapped.analytic_step import LEAST_BUCKETS, exposed_gather_ns
from trainplan.formulations.costs.overlapped.instruction_costs import InstructionCosts
from trainplan.formulations.joint.cost_tables import Setting
from trainplan.formulations.plan.strategy import COPIES, Strategy, without_cp
from trainplan.profiling.profiles import Profile

MIXED = 0.01  # the share of the bound that a mean of both lanes may cost it
Lane = Literal["optimizer", "updates", "reductions", "collectives"]
ROUNDED_NS = 1  # that rounding may take off a unit's part of the gathering


class EndOfStepTimes(NamedTuple):
    """Times in ns of a sub-layer's work after its last backward pass.

    scattered: the reduce-scatter of its gradients to shards. summed: the sum of its gradients over copies of the model
    states. optimizer: the optimizer's step. updated: the all-gather of its updated parameters, whether or not forward
    passes hide it.
    """

    scattered: int
    summed: int
    optimizer: int
    updated: int


def layout_of(strategy: Strategy) -> Strategy:
    """The layout of a strategy: the strategy without recomputation, which says only how ranks share work and states.
    dp2-tp4-ckpt -> dp2-tp4."""
    return replace(strategy, ckpt=False, modules=())


class LaneTimes:
    """Times of one model's sub-layers on the two lanes of a device, from which lower bounds of the step under overlap are
    made. A lane runs its work one after the other: the first has the computations and the collectives of tensor-parallel
    ranks, the second moves parameters and gradients; both run at the same time.

    A layout is a strategy without recomputation. There are four lower bounds, each named after the work that it counts
    after the last pass: `optimizer`, `updates` (the gathering of updated parameters), `reductions` (of gradients), and
    `collectives` (all work of the second lane). A setting holds the devices of a stage and the samples per micro-batch.
    """

    def __init__(
        self,
        profile: Profile,
        element_bytes: int,
        key_of: Mapping[str, str],
        batch: int,
        prices: Callable[[Strategy, Setting], InstructionCosts],
    ) -> None:
        """profile: the model's profile. element_bytes: bytes of one parameter in the model's dtype. key_of: for each sub-layer
        of the profile, its name in the model. batch: samples per step. prices: a function that gives the costs of instructions
        under a layout in a setting (devices of a stage, samples per micro-batch)."""
        self.profile, self.key_of, self.batch, self.prices = profile, key_of, batch, prices
        self.counts = Counter(unit.sublayer for unit in profile.units)
        self.element_bytes = element_bytes
        self.computed_ns = cache(self._computed_ns)
        self.moved_ns = cache(self._moved_ns)
        self.end_of_step = cache(self._end_of_step)
        self.exposed = cache(self._exposed)
        self.lane = cache(self._lane)

    def relaxed_ns(self, sublayer: str, strategy: Strategy, setting: Setting, once: bool) -> tuple[int, int, int]:
        """Three times in ns of a sub-layer: forward pass of a micro-batch, backward pass of a micro-batch, and work done once
        in a step. Their sums over all sub-layers and micro-batches of a plan are a lower bound of its step under overlap.
        setting: the devices of a stage and samples per micro-batch. once: whether the sub-layer is a head whose parameter
        table is also the embedding's, as one parameter. sublayer: the sub-layer's name in the profile.
        """
        layout = layout_of(strategy)
        lane, share = self.lane(layout, setting)
        computed = self.computed_ns(sublayer, strategy, setting)
        end = 0 if once and self.profile.tied_parameters else self.end_ns(sublayer, layout, setting, lane)
        if lane != "collectives":
            return (*computed, end)
        moved = self.moved_ns(sublayer, layout, setting)
        forward, backward = (int(share * own + (1 - share) * other) for own, other in zip(computed, moved, strict=True))
        return forward, backward, int((1 - share) * end)

    def end_ns(self, sublayer: str, layout: Strategy, setting: Setting, lane: Lane) -> int:
        """The time in ns of a sub-layer's work after the last pass, as one of the four lower bounds of the step counts it.
        lane: the name of the lower bound: `optimizer`, `updates`, `reductions` or `collectives`. sublayer: the sub-layer's
        name in the profile.
        """
        end, head = self.end_of_step(sublayer, layout, setting), self.profile.shapes[sublayer].kind == "head"
        if lane == "optimizer":
            return end.optimizer
        updated = self._exposed_ns(sublayer, layout, setting)
        if lane == "reductions" and not head:
            return updated + max(0, self._unhidden_reduction_ns(sublayer, layout, setting))
        if lane == "collectives":
            first = self.computed_ns(sublayer, layout, setting)[0] if layout.zero_stage == 2 else 0
            return updated + end.summed + first
        return updated

    def _lane(self, layout: Strategy, setting: Setting) -> tuple[Lane, float]:
        """The largest of the four lower bounds of the step for a layout, as (name, weight). The weight, from 0 to 1, is the
        share with which computations count in it: below 1 if the bound is a weighted mean of the work on both lanes.
        """
        counts, micro_batches = self.counts, self.batch // setting.samples

        def total(lane: Lane) -> int:
            times = self.moved_ns if lane == "collectives" else self.computed_ns
            parts = {name: (sum(times(name, layout, setting)), self.end_ns(name, layout, setting, lane)) for name in counts}
            return sum(count * (micro_batches * parts[name][0] + parts[name][1]) for name, count in counts.items())

        before = [name for name in counts if self.profile.shapes[name].kind != "head"]
        lanes: list[Lane] = ["optimizer", "updates"]
        if setting.chunks == 1 and min(self._unhidden_reduction_ns(name, layout, setting) for name in before) >= 0:
            lanes.append("reductions")
        passes, lane = max((total(lane), lane) for lane in lanes)
        if layout.zero_stage >= 2 and (collectives := total("collectives")) > passes:
            return "collectives", min(0.5, MIXED * collectives / (collectives - passes))
        return lane, 1.0

    def _unhidden_reduction_ns(self, sublayer: str, layout: Strategy, setting: Setting) -> int:
        """The time in ns to reduce a sub-layer's gradients, less the time of its own backward pass with full recomputation,
        which may hide it; negative if the backward pass takes longer. sublayer: the sub-layer's name in the profile.
        """
        end = self.end_of_step(sublayer, layout, setting)
        whole = self.computed_ns(sublayer, replace(layout, ckpt=True), setting)
        return end.scattered + end.summed - whole[1]

    def _computed_ns(self, sublayer: str, strategy: Strategy, setting: Setting) -> tuple[int, int]:
        """The forward and the backward pass in ns of a sub-layer for one micro-batch on the lane of computations, with the
        collectives of tensor-parallel ranks and with recomputation. setting: the devices of a stage and samples per
        micro-batch. sublayer: the sub-layer's name in the profile.
        """
        name, kind = self.key_of[sublayer], self.profile.shapes[sublayer].kind
        prices = self.prices(layout_of(strategy), setting)
        forward_sums, end = prices.sums(kind)
        forward = prices.forward_ns(name) + forward_sums * prices.sum_ns(name, kind, False)
        backward = prices.backward_ns(name, strategy.modules) + end * prices.sum_ns(name, kind, True)
        return forward, backward + (prices.recompute_ns(name) if strategy.ckpt else 0)

    def _moved_ns(self, sublayer: str, layout: Strategy, setting: Setting) -> tuple[int, int]:
        """The time in ns of a sub-layer for one micro-batch on the lane that moves parameters and gradients, in the forward
        and in the backward pass; for ZeRO stages 2 and 3. The head's parameters are still gathered when its backward pass
        begins, so they are gathered once. setting: the devices of a stage and samples per micro-batch. sublayer: the
        sub-layer's name in the profile.
        """
        alone, prices, shape = without_cp(layout), self.prices(layout, setting), self.profile.shapes[sublayer]
        ranks, stride, parameters = alone.degree("sdp"), alone.strides()["sdp"], self.parameters(sublayer, layout)
        gather, scatter = 0, self.end_of_step(sublayer, layout, setting).scattered
        if layout.zero_stage == 3:
            gather = prices.in_layer_ns(self.key_of[sublayer], parameters * self.element_bytes, ranks, stride)
        return gather, scatter + (0 if shape.kind == "head" else gather)

    def _end_of_step(self, sublayer: str, layout: Strategy, setting: Setting) -> EndOfStepTimes:
        """The times in ns of a sub-layer after its last backward pass: reductions, optimizer and gathering of updated
        parameters. setting: the devices of a stage and samples per micro-batch. sublayer: the sub-layer's name in the
        profile.
        """
        alone, prices, name = without_cp(layout), self.prices(layout, setting), self.key_of[sublayer]
        shared, copies, strides = alone.degree("sdp"), alone.copies, alone.strides()
        parameters, stage = self.parameters(sublayer, layout), layout.zero_stage
        gradient_bytes = prices.layout.framework.gradient_bytes
        scattered = summed = updated = 0
        if stage == 1:
            phases, size = 1 + prices.layout.sums_gradients, parameters * gradient_bytes
            scattered = prices.bucketed_ns(name, phases, size, shared, strides["sdp"])
        elif stage >= 2:
            scattered = prices.in_layer_ns(name, parameters * gradient_bytes, shared, strides["sdp"])
        if layout.gathers_updates:
            updated = prices.bucketed_ns(name, 1, parameters * self.element_bytes, shared, strides["sdp"])
        if copies > 1:
            part = parameters // shared if stage else parameters
            summed = prices.bucketed_ns(name, 2, part * gradient_bytes, copies, min(strides[x] for x in COPIES if x in strides))
        stepped = parameters // prices.ranks_sharing_states(name)
        return EndOfStepTimes(scattered, summed, prices.optimizer_ns(name, stepped), updated)

    def _exposed_ns(self, sublayer: str, layout: Strategy, setting: Setting) -> int:
        """A lower bound in ns of the part of the gathering of a sub-layer's updated parameters that the next step's forward
        passes do not hide. setting: the devices of a stage and samples per micro-batch. sublayer: the sub-layer's name in
        the profile.
        """
        updated = self.end_of_step(sublayer, layout, setting).updated
        share, hidden = self.exposed(layout, setting)
        return max(0, int(share * updated - hidden * self._forward_ns(sublayer, layout, setting)) - ROUNDED_NS)

    def _exposed(self, layout: Strategy, setting: Setting) -> tuple[float, float]:
        """Two factors (a, n) from which the unhidden part of gathering a sub-layer's updated parameters is computed: a times
        the time of the gathering, less n times the time of the sub-layer's forward pass.
        """
        counts, alone = self.counts, setting.group == self.profile.devices and setting.chunks == 1
        updated = {name: self.end_of_step(name, layout, setting).updated for name in counts}
        if alone and self.profile.tied_parameters:
            updated |= {name: 0 for name in counts if self.profile.shapes[name].kind == "head"}
        forward = {name: self._forward_ns(name, layout, setting) for name in counts}
        total, room = (sum(count * times[name] for name, count in counts.items()) for times in (updated, forward))
        prices = self.prices(layout, setting)
        if not total:
            return 0.0, 0.0
        if alone or not prices.layout.framework.overlaps_parameters:
            return exposed_gather_ns(total, [room], prices.layout) / total, 0.0
        passes = prices.layout.pp if setting.chunks > 1 else 1
        least = 1 / max(setting.chunks, LEAST_BUCKETS)
        longer = total - passes * room > least * total
        return (1.0, passes) if longer and all(updated[x] >= passes * forward[x] for x in counts) else (least, 0.0)

    def _forward_ns(self, sublayer: str, layout: Strategy, setting: Setting) -> float:
        """The time in ns of a sub-layer's forward pass during which the gathering of parameters can go on. setting: the
        devices of a stage and samples per micro-batch. sublayer: the sub-layer's name in the profile.
        """
        prices = self.prices(layout, setting)
        return prices.times(self.key_of[sublayer]).forward_with_collectives_ns * prices.jitter

    def parameters(self, sublayer: str, layout: Strategy) -> int:
        """The number of a sub-layer's parameters on one tensor-parallel rank, before any sharding over data-parallel ranks.
        sublayer: the sub-layer's name in the profile.
        """
        return self.profile.shapes[sublayer].shard(layout.degree("tp")).parameters
