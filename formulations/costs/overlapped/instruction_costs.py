"""Times of the instructions of one unit under the cost model `streams`, for the simulation of programs and for tables alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from trainplan.formulations.costs.overlapped.analytic_step import buckets_of, jitter_of, muon_part, optimizer_ns
from trainplan.formulations.costs.overlapped.layout import RunLayout, recompute_of
from trainplan.formulations.costs.overlapped.links import Links
from trainplan.formulations.costs.overlapped.sublayer_time import UnitTimes, unit_times
from trainplan.profiling.clusters.cluster import DeviceKind
from trainplan.profiling.models.model import Model
from trainplan.profiling.models.optimizers import states_sharing


class SublayerTimes:
    """Times of a model's sub-layers on one kind of device, kept by all that they depend on and shared by all layouts of the
    model."""

    def __init__(self, model: Model, kind: DeviceKind, links: Links) -> None:
        self.model, self.kind, self.links = model, kind, links
        self.parameters = cache(self._parameters)
        self._times: dict[tuple[object, ...], UnitTimes] = {}
        layers: dict[int, list[str]] = {}
        for unit in model.units:
            layers.setdefault(unit.layer, []).append(model.key_of(unit))
        self.siblings = {name: layer for layer in layers.values() for name in layer}  # sub-layers of the same layer, by name

    def _parameters(self, sublayer: str, tp: int) -> int:
        """The number of parameters of a sub-layer on one tensor-parallel rank."""
        part = self.model.sublayers[sublayer]
        return part.parameter_count(part.degree(tp))

    def of(self, sublayer: str, layout: RunLayout) -> UnitTimes:
        """Times of a sub-layer in a layout. The layout's data-parallel and pipeline degrees, batch and ZeRO stage change
        nothing."""
        degrees = (layout.tp, layout.cp, layout.exchange, layout.micro, layout.sequence_parallel, layout.recompute)
        key = (sublayer, *degrees, layout.base, layout.precision, layout.recipe, layout.framework, layout.frozen)
        if key not in self._times:
            self._times[key] = unit_times(self.model.sublayers[sublayer], layout, self.kind, self.links)
        return self._times[key]


class InstructionCosts:
    """Times in ns of instructions of a model's sub-layers in one layout, with the jitter of large jobs. Raises KeyError where
    the kind of device has no rate for a precision."""

    def __init__(self, sublayers: SublayerTimes, layout: RunLayout) -> None:
        self.sublayers, self.layout = sublayers, layout
        self.model, self.kind, self.links = sublayers.model, sublayers.kind, sublayers.links
        self.jitter = jitter_of(layout, self.links)
        self.times = cache(self._times)
        self.by_muon = cache(self._by_muon)

    def _times(self, sublayer: str, modules: tuple[str, ...] = ()) -> UnitTimes:
        """Times of a sub-layer whose modules are recomputed, without jitter."""
        return self.sublayers.of(sublayer, replace(self.layout, recompute=recompute_of(modules)))

    def whole(self, time_ns: float) -> int:
        """A time with jitter, in whole ns."""
        return round(time_ns * self.jitter)

    def sums(self, kind: str) -> tuple[int, int]:
        """The number of collectives of tensor-parallel ranks in the forward and in the backward pass of a kind of sub-layer."""
        if self.layout.sequence_parallel:
            return {"embedding": (1, 1), "head": (1, 2)}.get(kind, (2, 3))
        return (0 if kind == "head" else 1, 0 if kind == "embedding" else 1)

    def sum_ns(self, sublayer: str, kind: str, back: bool) -> int:
        """An equal part, for one such collective, of the time that nothing hides of all those of its pass. back: of the
        backward pass."""
        times, count = self.times(sublayer), max(1, self.sums(kind)[back])
        return self.whole((times.backward_collectives_ns if back else times.collectives_ns) / count)

    def forward_ns(self, sublayer: str) -> int:
        """The computation of a sub-layer's forward pass, without collectives."""
        return self.whole(self.times(sublayer).forward_ns)

    def recompute_ns(self, sublayer: str) -> int:
        """A sub-layer's forward pass that is run again, with its collectives."""
        return self.whole(self.times(sublayer).forward_with_collectives_ns)

    def backward_ns(self, sublayer: str, modules: Sequence[str]) -> int:
        """The computation of a sub-layer's backward pass, with what these modules compute again."""
        times = self.times(sublayer, tuple(modules))
        return self.whole(times.backward_ns + (times.recompute_ns if modules else 0.0))

    def message_ns(self, message_bytes: float) -> int:
        """A message of one rank to the next stage, in either direction. Where tensor-parallel ranks have the same tokens, each
        of them sends a part. 0 for interleaved stages whose messages travel in parallel with passes."""
        layout = self.layout
        if layout.chunks > 1 and layout.framework.overlaps_messages:
            return 0
        parts = 1 if layout.sequence_parallel else layout.tp
        return self.whole(self.links.message_ns(message_bytes / parts, layout.dp * layout.tp * layout.cp))

    def collective_ns(self, phases: int, message_bytes: float, ranks: int, stride: int) -> int:
        """A collective of data-parallel ranks. phases: 1 for all-gather or reduce-scatter, 2 for all-reduce; stride: the
        distance of ranks."""
        return self.whole(self.links.collective_ns(phases, message_bytes, ranks, stride))

    def bucketed_ns(self, sublayer: str, phases: int, message_bytes: float, ranks: int, stride: int) -> int:
        """One unit's part of reducing gradients (2 phases), or of gathering updated parameters (1), once a step. Frameworks
        move buckets of many units: a unit has the share of a bucket's latency that it has of the bucket's parameters."""
        share = min(1.0, buckets_of(self.sublayers.parameters(sublayer, self.layout.tp), self.layout))
        return self.whole(self.links.collective_ns(phases, message_bytes, ranks, stride, share))

    def copy_ns(self, message_bytes: float) -> int:
        """A copy between a device and its host."""
        return self.whole(self.links.copy_ns(message_bytes))

    def in_layer_ns(self, sublayer: str, message_bytes: float, ranks: int, stride: int) -> int:
        """One unit's part of gathering the parameters of its layer, or of reducing its gradients, in every micro-batch (ZeRO's
        stages 2 and 3).

        Frameworks move whole layers, one in advance, where programs move units: a unit gets the part of the layer's time that
        the unit before it has of the layer's computations, which run in parallel, so that as much is hidden as with layers.
        message_bytes: of the unit.
        """
        siblings = self.sublayers.siblings[sublayer]
        counts = {name: self.sublayers.parameters(name, self.layout.tp) for name in siblings}
        computed = {name: self.times(name).forward_with_collectives_ns for name in siblings}
        before = [computed[siblings[index - 1]] for index, name in enumerate(siblings) if name == sublayer]
        share = sum(before) / len(before) / sum(computed[name] for name in siblings)
        whole_bytes = message_bytes * sum(counts[name] for name in siblings) / counts[sublayer]
        return self.whole(self.links.collective_ns(1, whole_bytes, ranks, stride) * share)

    def optimizer_ns(self, sublayer: str, parameters: float) -> int:
        """The optimizer's step on a number of parameters of a sub-layer."""
        return self.whole(optimizer_ns(parameters, self.layout, self.kind, *self.by_muon(sublayer)))

    def states_sharing(self, sublayer: str) -> int:
        """The number of ranks among which a sub-layer's master copy and moments are divided."""
        return states_sharing(self.layout.optimizer, self.model.sublayers[sublayer], self.layout.sharing)

    def _by_muon(self, sublayer: str) -> tuple[int, float]:
        """The parameters of a sub-layer that a rank steps by Muon, and the time for them (see `muon_part`)."""
        return muon_part(self.model.sublayers[sublayer], self.layout, self.kind)
