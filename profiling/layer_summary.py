"""Time and memory of a model by layer: a profile's numbers added up."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import groupby

from trainplan.profiling.base.errors import InputError
from trainplan.profiling.clusters.efficiencies import Kernel, Precision
from trainplan.profiling.profiles import Profile


@dataclass(frozen=True)
class LayerSummary:
    """Costs on one device of one unit, which is a sub-layer at its position in the model.

    name: the unit's name. layer: index of its layer. kind: kind of its sub-layer, such as attention. input_bytes: bytes of
    the unit's input; kept_bytes: bytes of the activations that it keeps for the backward pass in addition. state_bytes: bytes
    of its model states. origins: origins of its numbers, such as `measured`. spread: the larger of the relative spreads of
    its two times.
    """

    name: str
    layer: int
    kind: str
    forward_ns: int
    backward_ns: int
    input_bytes: int
    kept_bytes: int
    state_bytes: int
    parameters: int
    origins: tuple[str, ...]
    spread: float

    @property
    def time_ns(self) -> int:
        """Time in ns of the forward and backward pass together."""
        return self.forward_ns + self.backward_ns

    @property
    def activation_bytes(self) -> int:
        """Bytes held from the forward to the backward pass: the unit's input and its kept tensors."""
        return self.input_bytes + self.kept_bytes

    @property
    def memory_bytes(self) -> int:
        """Bytes of activations and model states together."""
        return self.activation_bytes + self.state_bytes


def summary(profile: Profile, tp: int, rows: int, device: str | None = None) -> list[LayerSummary]:
    """Summarise the costs of every unit of the model on one device, in the model's order, at tensor-parallel degree `tp` with
    `rows` samples per pass.

    device: the kind of device; None for the slowest kind. Raises InputError if the profile lacks a number or has no such kind.
    """
    if device is not None and device not in profile.kinds:
        raise InputError("command line", "--kind", f"is {device!r}", f"give one of: {', '.join(profile.kinds)}")
    summaries = []
    for unit in profile.units:
        shape, entry = profile.shapes[unit.sublayer], profile.cost(unit.sublayer, tp, rows, device)
        shard = shape.shard(tp)
        summaries.append(
            LayerSummary(
                name=unit.name,
                layer=unit.layer,
                kind=shape.kind,
                forward_ns=entry.forward_ns.value,
                backward_ns=entry.backward_ns.value,
                input_bytes=rows * shape.input_bytes,
                kept_bytes=entry.kept_bytes.value,
                state_bytes=shard.parameters * profile.state_bytes_per_parameter,
                parameters=shard.parameters,
                origins=tuple(sorted({entry.forward_ns.origin, entry.backward_ns.origin, entry.kept_bytes.origin})),
                spread=max(entry.forward_ns.spread, entry.backward_ns.spread),
            )
        )
    return summaries


def reached(profile: Profile, products: Precision | None = None) -> list[str]:
    """Describe the share of the peak rate that matrix multiplications and attention reach, the error of estimated times, and
    the source of these numbers: one line of text per kind of device with estimated times. Empty for measured and imported
    profiles.

    products: the precision of the layers' matrix multiplications; None for the profile's dtype.
    """
    if "estimated" not in profile.origin:
        return []
    in_few = f"matrix multiplications in {products}" if products else "matrix multiplications"
    kernels: tuple[tuple[str, Kernel, Precision], ...] = (
        (in_few, "matrix-product", products or profile.dtype),
        ("attention", "attention", profile.dtype),
    )
    texts = []
    for kind in profile.device_kinds:
        parts = []
        for name, kernel, precision in kernels:
            if (efficiency := kind.reached(kernel, precision)) is not None:
                share, error = f"{efficiency.value:.1%}", f"{efficiency.error:.0%}"
                parts.append(f"{name} {share}, time ±{error} ({efficiency.origin_for(kind.name)})")
        if parts:
            texts.append(f"of the peak of {kind.name}: {'; '.join(parts)}")
    return texts


def profiled_shapes(profile: Profile) -> list[tuple[int, int]]:
    """The pairs of a tensor-parallel degree and a number of rows (samples on one device) for which every sub-layer has costs on
    every kind of device, sorted.
    """
    counts = Counter((entry.tp, entry.rows) for entry in profile.costs)
    return sorted(shape for shape, count in counts.items() if count == len(profile.shapes) * len(profile.kinds))


def runs(units: list[LayerSummary]) -> list[tuple[list[LayerSummary], int]]:
    """Group consecutive equal layers. Returns pairs of the units of the first layer of a group, and the number of layers in
    the group. units: all units of the model, in order.
    """
    layers = [list(group) for _, group in groupby(units, key=lambda unit: unit.layer)]

    def looks(layer: list[LayerSummary]) -> list[object]:
        """The kinds, times and memory of a layer's units, by which layers are compared."""
        return [(unit.kind, unit.forward_ns, unit.backward_ns, unit.memory_bytes) for unit in layer]

    return [(group[0], len(group)) for group in (list(g) for _, g in groupby(layers, key=looks))]
