"""Times of the instructions of one unit under the cost model `streams`, for the simulation of programs and for tables alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from trainplan.formulations.costs.overlapped.analytic_step import jitter_of, muon_part, optimizer_ns
from trainplan.formulations.costs.overlapped.kernel_time import UnitTimes
from trainplan.formulations.costs.overlapped.layout import RunLayout, recompute_of
from trainplan.formulations.costs.overlapped.links import Links
from trainplan.formulations.costs.overlapped.state_exchange import buckets_of
from trainplan.formulations.costs.overlapped.sublayer_time import unit_times
from trainplan.profiling.clusters.cluster import DeviceKind
from trainplan.profiling.models.model import Model
from trainplan.profiling.models.optimizers import moments_saved, ranks_sharing_states


class SublayerTimes:
    """Times of a model's sub-layers on one kind of device, computed once and kept. Layouts that differ only in data-parallel
    and pipeline degrees, batch and ZeRO stage share them. A sub-layer is given by its name in the model.
    """

    def __init__(self, model: Model, kind: DeviceKind, links: Links) -> None:
        self.model, self.kind, self.links = model, kind, links
        self.parameters = cache(self._parameters)
        self._times: dict[tuple[object, ...], UnitTimes] = {}
        layers: dict[int, list[str]] = {}
        for unit in model.units:
            layers.setdefault(unit.layer, []).append(model.key_of(unit))
        self.siblings = {name: layer for layer in layers.values() for name in layer}  # sub-layers of the same layer, by name

    def _parameters(self, sublayer: str, tp: int) -> int:
        """The number of parameters of a sub-layer on one of `tp` tensor-parallel ranks."""
        part = self.model.sublayers[sublayer]
        return part.parameter_count(part.degree(tp))

    def of(self, sublayer: str, layout: RunLayout) -> UnitTimes:
        """The times of a sub-layer for one micro-batch on one rank in a layout. They do not depend on the layout's
        data-parallel and pipeline degrees, its batch and its ZeRO stage, so layouts that differ in these alone get one
        result. layout: how the run is laid out on its devices: degrees, batch, precision and framework.
        """
        degrees = (layout.tp, layout.cp, layout.exchange, layout.micro, layout.sequence_parallel, layout.recompute)
        key = (sublayer, *degrees, layout.base, layout.precision, layout.recipe, layout.framework, layout.frozen)
        if key not in self._times:
            self._times[key] = unit_times(self.model.sublayers[sublayer], layout, self.kind, self.links)
        return self._times[key]


class InstructionCosts:
    """Times in ns of instructions of a model's sub-layers in one layout, for one micro-batch on one rank, with the jitter of
    large jobs (a factor by which steps on several nodes take longer). A sub-layer is given by its name in the model. Raises
    KeyError if the kind of device has no rate for a precision."""

    def __init__(self, sublayers: SublayerTimes, layout: RunLayout) -> None:
        self.sublayers, self.layout = sublayers, layout
        self.model, self.kind, self.links = sublayers.model, sublayers.kind, sublayers.links
        self.jitter = jitter_of(layout, self.links)
        self.times = cache(self._times)
        self.by_muon = cache(self._by_muon)

    def _times(self, sublayer: str, modules: tuple[str, ...] = ()) -> UnitTimes:
        """The times of a sub-layer for one micro-batch, without jitter. modules: the names of its modules that are
        recomputed."""
        return self.sublayers.of(sublayer, replace(self.layout, recompute=recompute_of(modules)))

    def whole(self, time_ns: float) -> int:
        """A time in whole ns, multiplied by the factor by which steps on several nodes take longer (jitter). time_ns: the time
        without jitter."""
        return round(time_ns * self.jitter)

    def sums(self, kind: str) -> tuple[int, int]:
        """The numbers of collectives of tensor-parallel ranks in the forward and in the backward pass of a sub-layer. kind:
        the kind of sub-layer, such as `embedding` or `attention`.
        """
        if self.layout.sequence_parallel:
            return {"embedding": (1, 1), "head": (1, 2)}.get(kind, (2, 3))
        return (0 if kind == "head" else 1, 0 if kind == "embedding" else 1)

    def sum_ns(self, sublayer: str, kind: str, back: bool) -> int:
        """The time in ns of one tensor-parallel collective of a sub-layer's pass, without what computations overlap: the time
        that all collectives of the pass add, divided equally among them. kind: the kind of sub-layer, such as `head`. back:
        True for the backward pass, False for the forward pass.
        """
        times, count = self.times(sublayer), max(1, self.sums(kind)[back])
        return self.whole((times.backward_collectives_ns if back else times.collectives_ns) / count)

    def forward_ns(self, sublayer: str) -> int:
        """The time in ns of the computations of a sub-layer's forward pass, without collectives of tensor-parallel ranks."""
        return self.whole(self.times(sublayer).forward_ns)

    def recompute_ns(self, sublayer: str) -> int:
        """The time in ns of a sub-layer's whole forward pass when the backward pass repeats it, with its collectives."""
        return self.whole(self.times(sublayer).forward_with_collectives_ns)

    def backward_ns(self, sublayer: str, modules: Sequence[str]) -> int:
        """The time in ns of the computations of a sub-layer's backward pass, with what it recomputes. modules: the names of the
        modules that are recomputed."""
        times = self.times(sublayer, tuple(modules))
        return self.whole(times.backward_ns + (times.recompute_ns if modules else 0.0))

    def message_ns(self, message_bytes: float) -> int:
        """The time in ns of a message of one rank to the next stage, in either direction. message_bytes: the bytes of the
        hidden states that the rank holds. Where tensor-parallel ranks have the same tokens, each of them sends a part. 0 for
        interleaved stages whose messages travel in parallel with passes."""
        layout = self.layout
        if layout.chunks > 1 and layout.framework.overlaps_messages:
            return 0
        parts = 1 if layout.sequence_parallel else layout.tp
        return self.whole(self.links.message_ns(message_bytes / parts, layout.dp * layout.tp * layout.cp))

    def collective_ns(self, phases: int, message_bytes: float, ranks: int, stride: int) -> int:
        """The time in ns of a collective of data-parallel ranks. phases: 1 for all-gather or reduce-scatter, 2 for all-reduce.
        message_bytes: the bytes of the whole message. ranks, stride: the number of ranks, and the distance between the numbers
        of consecutive ranks."""
        return self.whole(self.links.collective_ns(phases, message_bytes, ranks, stride))

    def relayout_ns(self, message_bytes: float, group: Sequence[int]) -> int:
        """The time in ns of an all-gather of hidden states between two neighbouring units of unlike layouts. message_bytes: the
        bytes that each rank of the group then has. group: the numbers of the ranks, ascending; those in between count as if
        the distances were equal."""
        if len(group) < 2:
            return 0
        stride = -(-(group[-1] - group[0]) // (len(group) - 1))
        return self.collective_ns(1, message_bytes, len(group), stride)

    def bucketed_ns(self, sublayer: str, phases: int, message_bytes: float, ranks: int, stride: int) -> int:
        """The time in ns, once per step, of one sub-layer's part of reducing gradients (2 phases for an all-reduce, 1 for a
        reduce-scatter) or of gathering updated parameters (1 phase). Frameworks move buckets of many sub-layers, so the
        sub-layer's share of a bucket's latency is its share of the bucket's parameters.

        phases: 1 or 2. message_bytes: the sub-layer's bytes. ranks, stride: the number of ranks, and the distance between
        the numbers of consecutive ranks.
        """
        share = min(1.0, buckets_of(self.sublayers.parameters(sublayer, self.layout.tp), self.layout))
        return self.whole(self.links.collective_ns(phases, message_bytes, ranks, stride, share))

    def copy_ns(self, message_bytes: float) -> int:
        """The time in ns of a copy of `message_bytes` bytes between a device and its host."""
        return self.whole(self.links.copy_ns(message_bytes))

    def in_layer_ns(self, sublayer: str, message_bytes: float, ranks: int, stride: int) -> int:
        """The time in ns, per micro-batch, of one sub-layer's part of gathering the parameters of its layer, or of reducing
        their gradients (ZeRO stages 2 and 3).

        Frameworks move whole layers, one in advance, while plans' programs move sub-layers. A sub-layer gets the part of
        the layer's time that corresponds to the share of the layer's computations that the sub-layer before it has, since
        these run in parallel; so as much is hidden as with whole layers. message_bytes: the sub-layer's bytes. ranks,
        stride: the number of ranks, and the distance between the numbers of consecutive ranks.
        """
        siblings = self.sublayers.siblings[sublayer]
        counts = {name: self.sublayers.parameters(name, self.layout.tp) for name in siblings}
        computed = {name: self.times(name).forward_with_collectives_ns for name in siblings}
        before = [computed[siblings[index - 1]] for index, name in enumerate(siblings) if name == sublayer]
        share = sum(before) / len(before) / sum(computed[name] for name in siblings)
        whole_bytes = message_bytes * sum(counts[name] for name in siblings) / counts[sublayer]
        return self.whole(self.links.collective_ns(1, whole_bytes, ranks, stride) * share)

    def optimizer_ns(self, sublayer: str, parameters: float) -> int:
        """The time in ns of the optimizer's step on some of a sub-layer's parameters. parameters: their number."""
        count, orthogonal = self.by_muon(sublayer)
        saved = moments_saved(self.layout.optimizer, parameters, count)
        return self.whole(optimizer_ns(parameters, self.layout, self.kind, saved, orthogonal))

    def ranks_sharing_states(self, sublayer: str) -> int:
        """The number of ranks among which the optimizer's master copy of a sub-layer's parameters, and their moments, are
        divided."""
        return ranks_sharing_states(self.layout.optimizer, self.model.sublayers[sublayer], self.layout.sharing)

    def _by_muon(self, sublayer: str) -> tuple[int, float]:
        """Two numbers for a sub-layer: the number of its parameters that one rank steps by Muon, and the time in ns to make
        their momentum orthogonal; (0, 0.0) without Muon.
        """
        return muon_part(self.model.sublayers[sublayer], self.layout, self.kind)
