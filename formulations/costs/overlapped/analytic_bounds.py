"""Lower bounds of the step that `analytic_step` predicts, and the spans of layers that fit by `analytic_memory`, over all ways
to cut a model into pipeline stages.

A layout fixes everything but the stages. Let stage x of p hold some of the sub-layers, with passes f and b of a micro-batch,
to which the message is added that the stage waits for (forward on all stages but the first, backward on all but the last), S
the sum of f + b over the stages before x, R that over the stages after x, m micro-batches, and q = min(m, p - x) of them
in flight on x. Then under 1F1B the first device ends its last pass no earlier than each of

    S + m (f + b)                   the stage's passes, after the first micro-batch came, and before the last one is back
    S + m b + (m - q + 1) f + R     its first backward pass waits for all later stages, when it has run q forward passes
    S + m f + (m - q + 1) b + R     after its last forward pass, all later stages are still to be passed twice
    S + (m - q + 1) (f + b) + 2 R   both, if q < m

The first device then reduces its gradients, at least the part that its backward pass does not hide, and the step adds the
longest optimizer step and gathering of parameters of any device: at least those of the first device, and of the mean. All
bounds hold for every cut, so the least over all cuts, by dynamic programming over spans of sub-layers, bounds every plan of
the layout. Sub-layers may be cut where the caller allows it, and a stage may hold only what fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Any

import numpy as np
from trainplan.formulations.costs.overlapped.analytic_memory import memory_of_rank
from trainplan.formulations.costs.overlapped.analytic_shards import accumulated_ns
from trainplan.formulations.costs.overlapped.analytic_step import (
    Chunk,
    blocks_of,
    chunk_ns,
    data_ns,
    jitter_of,
    muon_part,
    optimizer_ns,
    parameters_of,
    stepped_parameters,
)
from trainplan.formulations.costs.overlapped.layout import RunLayout
from trainplan.formulations.costs.overlapped.links import Links
from trainplan.formulations.costs.overlapped.sublayer_time import unit_times
from trainplan.profiling.base.dtypes import DTYPE_BYTES
from trainplan.profiling.clusters.cluster import DeviceKind
from trainplan.profiling.models.model import Model, Unit
from trainplan.profiling.models.optimizers import moments_saved

ROUNDED_NS = 4  # by which passes and messages of a micro-batch, rounded to whole ns, may be below the sums of their parts
Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class ModelRows:
    """The sub-layers of a model, counted by kind.

    Attributes:
        first: the first sub-layer of each kind; those of one kind have equal costs.
        before: [n, k], how many of the first n sub-layers are of kind k.
    """

    first: tuple[Unit, ...]
    before: Floats

    @classmethod
    def of(cls, model: Model) -> ModelRows:
        """The rows of a model."""
        kinds: dict[tuple[str, str], int] = {}
        first, rows = list[Unit](), list[int]()
        for unit in model.units:
            key = model.key_of(unit), unit.kind
            if key not in kinds:
                kinds[key] = len(kinds)
                first.append(unit)
            rows.append(kinds[key])
        counts = np.zeros((len(rows) + 1, len(kinds)))
        counts[np.arange(1, len(rows) + 1), rows] = 1
        return cls(tuple(first), np.cumsum(counts, axis=0))


@dataclass(frozen=True)
class LayoutBounds:
    """Lower bounds of a run's predicted step in a layout, whatever its pipeline stages are.

    Attributes:
        model: the model.
        layout: the layout, whose `stage_layers` does not matter.
        kind: the kind of all devices.
        links: their links.
        ends: the places where stages may begin and end, as numbers of sub-layers before them: from 0 to all of them.
        rows: the model's sub-layers, counted by kind.
    """

    model: Model
    layout: RunLayout
    kind: DeviceKind
    links: Links
    ends: tuple[int, ...]
    rows: ModelRows

    # Times of spans

    def stage_ns(self, first: int, end: int) -> tuple[int, int]:
        """The forward and the backward pass in ns of a micro-batch through the sub-layers from number `first` to before number
        `end`. Where only the first layers of a stage are recomputed, without that."""
        forward, backward = (self.rows.before[end] - self.rows.before[first]) @ self._kinds_ns
        return round(forward), round(backward)

    @cached_property
    def _passes(self) -> tuple[Floats, Floats]:
        """The forward and the backward passes in ns of a micro-batch through all sub-layers before each of `ends`."""
        sums = self.rows.before[list(self.ends)] @ self._kinds_ns
        return sums[:, 0], sums[:, 1]

    @cached_property
    def _kinds_ns(self) -> Floats:
        """[k]: the forward and the backward pass in ns of a micro-batch through a sub-layer of kind k. Where only the first
        layers of a stage are recomputed, nothing is."""
        layout = self.layout
        if layout.recompute.first is not None:
            layout = replace(layout, recompute=replace(layout.recompute, first=None, layers=0.0))
        layout = replace(layout, framework=replace(layout.framework, issue_ns=0))
        times = {name: unit_times(part, layout, self.kind, self.links) for name, part in self.model.sublayers.items()}
        passes: Floats = np.array([chunk_ns(self.model, Chunk((unit,)), layout, times) for unit in self.rows.first])
        passes[:, 1] += [accumulated_ns(parameters, layout, self.kind) for parameters in self._parameters]
        return passes

    @cached_property
    def message_ns(self) -> float:
        """The time in ns of a message between two stages, as `streams_step` has it; 0 where stages are interleaved, whose
        messages may travel in parallel with passes."""
        layout, model = self.layout, self.model
        if layout.pp == 1 or layout.chunks > 1:
            return 0.0
        element = DTYPE_BYTES[layout.base]
        hidden = layout.micro * model.tokens * model.units[-1].sublayer.hidden * element / layout.cp / layout.tp
        return round(self.links.message_ns(hidden, layout.dp * layout.tp * layout.cp))

    @property
    def jitter(self) -> float:
        """The factor by which the step on several nodes takes longer than its parts."""
        return jitter_of(self.layout, self.links)

    @cached_property
    def least_end_ns(self) -> float:
        """Time in ns, in every plan, outside of passes and of what the first device has to do: the optimizer's step on the mean
        of the devices, and what the framework does once a step."""
        layout, fixed = self.layout, float(self.layout.framework.ends_ns)
        if layout.frozen or "optimizer" in layout.on_host:
            return fixed
        stepped = stepped_parameters(self.model, [Chunk(tuple(self.model.units))], layout) / layout.pp
        by_muon = np.array([muon_part(unit.sublayer, layout, self.kind) for unit in self.rows.first])
        count, orthogonal = (float(total) / layout.pp for total in self.rows.before[-1] @ by_muon)
        return fixed + optimizer_ns(stepped, layout, self.kind, moments_saved(layout.optimizer, stepped, count), orthogonal)

    def closed_ns(self) -> float:
        """A lower bound in ns of the step of every plan, in closed form. Some device has an even share of the passes or more,
        or all those of one span that is not cut. Where it has one stage, the mean of the first and the last of the bounds in
        the head of this module, or of the two others, is R + S + (m - (q - 1) / 2) (f + b), which grows with f + b."""
        forward, backward = self._passes
        both = forward + backward
        longest = max(float(both[-1]) / self.layout.pp, float(np.diff(both).max()))
        micro = self.layout.micro_batches
        if self.layout.chunks > 1:
            passes = micro * longest
        else:
            passes = float(both[-1]) + (micro - 1 - (min(micro, self.layout.pp) - 1) / 2) * longest
        return self.jitter * (passes - ROUNDED_NS * (micro + 2 * self.layout.pp) + self.least_end_ns)

    # Stages

    @cached_property
    def _span_ns(self) -> Floats:
        """[x, i, j]: the least time in ns at which the first device ends its last pass, by the bounds of stage x where it holds
        the sub-layers between the ends i and j; infinite where i >= j."""
        layout, (forward, backward) = self.layout, self._passes
        depth, micro, message = layout.pp, layout.micro_batches, self.message_ns
        both, count = forward + backward, len(self.ends)
        total = both[-1] + 2 * (depth - 1) * message
        bounds = np.full((depth, count, count), inf)
        for x in range(depth):
            begins, ends = int(x > 0), int(x < depth - 1)
            before = both + (2 * x - begins) * message  # of all stages before, with the messages that these wait for
            own_forward = forward[None, :] - forward[:, None] + begins * message
            own_backward = backward[None, :] - backward[:, None] + ends * message
            own = own_forward + own_backward
            after = total - before[:, None] - own
            flight = min(micro, depth - x)
            rest = micro - flight + 1
            options = [
                before[:, None] + micro * own,
                before[:, None] + micro * own_backward + rest * own_forward + after,
                before[:, None] + micro * own_forward + rest * own_backward + after,
            ]
            if flight < micro:
                options.append(before[:, None] + rest * own + 2 * after)
            bounds[x] = np.where(np.triu(np.ones((count, count), bool), 1), np.maximum.reduce(options), inf)
        return bounds - ROUNDED_NS * (micro + 2 * depth)

    @cached_property
    def _first_end_ns(self) -> Floats:
        """[j]: the time in ns, at least, that the first device takes to reduce its gradients and gather its parameters, beyond
        its passes, where its stage ends at the end j."""
        layout, (forward, backward) = self.layout, self._passes
        found = np.zeros(len(self.ends))
        if layout.framework.stays_whole and layout.zero >= 2 and layout.sharing > 1:
            return self._whole_ns
        parameters = self.rows.before[list(self.ends)] @ np.array(self._parameters)
        for j in range(1, len(self.ends)):
            passes = [(float(forward[j]), float(backward[j]))]
            found[j] = sum(data_ns(round(parameters[j]), 0, passes, layout, self.links))
        return found

    @cached_property
    def _whole_ns(self) -> Floats:
        """[j]: as `_first_end_ns`, where shards of parameters stay whole once they are gathered: the first device reduces all
        of its gradients after its passes, and every stage waits at least for the first of its blocks."""
        layout = self.layout
        times = {name: unit_times(part, layout, self.kind, self.links) for name, part in self.model.sublayers.items()}
        blocks = blocks_of(self.model, self.model.units, layout, self.kind, self.links, times)
        least = blocks[0].gather_ns + (layout.pp - 1) * min(block.gather_ns for block in blocks)
        reduced = np.cumsum([0.0, *(block.reduce_ns + block.copies_ns for block in blocks)])
        layers = sorted({unit.layer for unit in self.model.units})
        whole = [layers.index(self.model.units[end].layer) if end < len(self.model.units) else len(layers) for end in self.ends]
        return least + np.array([reduced[count] for count in whole])

    @cached_property
    def _parameters(self) -> list[int]:
        """The number of parameters of a sub-layer of each kind on one tensor-parallel rank."""
        return [parameters_of(self.model, Chunk((unit,)), self.layout) for unit in self.rows.first]

    def stages(self, fitting: Sequence[Sequence[int]] | None = None) -> StageBounds:
        """The bounds by stage. fitting: for each stage and each end at which it may begin, the last end that it may reach so
        that it fits into memory; None if stages are not limited."""
        span = self._span_ns.copy()
        depth, count = span.shape[0], len(self.ends)
        for x in range(depth):
            if x:
                span[x, 0] = inf
            else:
                span[x, 1:] = inf
            if x < depth - 1:
                span[x, :, -1] = inf
            else:
                span[x, :, :-1] = inf
            if fitting is not None:
                span[x][np.arange(count)[None, :] > np.array(fitting[x])[:, None]] = inf
        return StageBounds(span, self._first_end_ns, self.least_end_ns, self.jitter)


@dataclass(frozen=True)
class StageBounds:
    """Lower bounds of a step for every way to cut its stages.

    Attributes:
        span_ns: [x, i, j], the bound of the passes by stage x where it lies between the ends i and j; infinite if it may not.
        first_ns: [j], what the first device adds where its stage ends at j.
        least_ns: what every plan adds.
        jitter: the factor on the sum.
    """

    span_ns: Floats
    first_ns: Floats
    least_ns: float
    jitter: float

    @cached_property
    def rest_ns(self) -> Floats:
        """[x, i]: the least bound, over all ways to cut, of the stages from x on, where they begin at the end i."""
        depth, count = self.span_ns.shape[:2]
        rest = np.full((depth + 1, count), inf)
        rest[depth, -1] = 0.0
        for x in range(depth - 1, -1, -1):
            rest[x] = np.maximum(self.span_ns[x], rest[x + 1][None, :]).min(axis=1)
        return rest

    @cached_property
    def _by_first(self) -> Floats:
        """[j]: the bound of the step where the first stage ends at j."""
        passes = np.maximum(self.span_ns[0, 0], self.rest_ns[1])
        bounds: Floats = self.jitter * (passes + self.first_ns + self.least_ns)
        return bounds

    @property
    def bound_ns(self) -> float:
        """The least bound over all ways to cut; infinite if there is none that fits."""
        return float(self._by_first.min())

    def cuts(self, below_ns: float, most: int) -> list[tuple[float, tuple[int, ...]]]:
        """The ways to cut whose bound is below `below_ns`, each as its bound in ns and the ends at which stages after the first
        begin, by rising bound as far as they are found so; `most` at most."""
        depth, found = self.span_ns.shape[0], list[tuple[float, tuple[int, ...]]]()
        if depth == 1:
            return [(self.bound_ns, ())] if self.bound_ns < below_ns else []

        def follow(x: int, i: int, passes: float, cut: tuple[int, ...], added: float) -> None:
            if len(found) >= most:
                return
            if x == depth - 1:
                bound = self.jitter * (max(passes, float(self.span_ns[x, i, -1])) + added)
                if bound < below_ns:
                    found.append((bound, cut))
                return
            reached = np.maximum(self.span_ns[x, i], self.rest_ns[x + 1])
            allowed = below_ns / self.jitter - added
            possible = np.flatnonzero((reached < allowed) & (passes < allowed))
            for j in possible[np.argsort(reached[possible], kind="stable")]:
                follow(x + 1, int(j), max(passes, float(self.span_ns[x, i, j])), (*cut, int(j)), added)

        for j in np.argsort(self._by_first, kind="stable"):
            if self._by_first[j] < below_ns:
                first = float(self.span_ns[0, 0, j])
                follow(1, int(j), first, (int(j),), float(self.first_ns[j]) + self.least_ns)
        return sorted(found)


def rank_bytes(model: Model, layout: RunLayout, rank: int, units: Sequence[int]) -> float:
    """The peak bytes of one device of a pipeline rank that holds one stage. rank: the index of the pipeline rank. units: the
    indices of the first sub-layer of the stage and of the first one after it. layout: how the run is laid out.
    """
    chunk = Chunk(tuple(model.units[units[0] : units[1]]))
    return memory_of_rank(model, layout, [chunk], rank).peak_bytes
