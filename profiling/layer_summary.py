"""Where time and memory go: a profile's numbers added up layer by layer."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import groupby

from trainplan.profiling.base.errors import InputError
from trainplan.profiling.clusters.efficiencies import Kernel, Precision
from trainplan.profiling.profiles import Profile


@dataclass(frozen=True)
class LayerSummary:
    """One unit of the chain on one device. name: of the unit; bytes are of its activations and of its model states."""

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
        """Forward and backward pass together."""
        return self.forward_ns + self.backward_ns

    @property
    def activation_bytes(self) -> int:
        """What the unit leaves for the backward pass: its input and kept bytes."""
        return self.input_bytes + self.kept_bytes

    @property
    def memory_bytes(self) -> int:
        """Bytes of activations and model states together."""
        return self.activation_bytes + self.state_bytes


def summary(profile: Profile, tp: int, rows: int, device: str | None = None) -> list[LayerSummary]:
    """Every unit with tensor-parallel degree `tp` and `rows` samples at once. Raises InputError where a number is missing."""
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
    """For each kind of device whose times are estimated with efficiencies by class of kernels: what products and attention
    reach of the peak of the profile's dtype, the error of a time, and where that is from; none of other profiles. products:
    the precision of the layers' products, where it is another one."""
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
            if (each := kind.reached(kernel, precision)) is not None:
                parts.append(f"{name} {each.value:.1%}, time ±{each.error:.0%} ({each.origin_for(kind.name)})")
        if parts:
            texts.append(f"of the peak of {kind.name}: {'; '.join(parts)}")
    return texts


def profiled_shapes(profile: Profile) -> list[tuple[int, int]]:
    """(tp, rows) that every sub-layer has costs for, on every kind of device."""
    counts = Counter((entry.tp, entry.rows) for entry in profile.costs)
    return sorted(shape for shape, count in counts.items() if count == len(profile.shapes) * len(profile.kinds))


def runs(units: list[LayerSummary]) -> list[tuple[list[LayerSummary], int]]:
    """Consecutive equal layers as one: the units of the first of them, and how many there are."""
    layers = [list(group) for _, group in groupby(units, key=lambda unit: unit.layer)]

    def looks(layer: list[LayerSummary]) -> list[object]:
        return [(unit.kind, unit.forward_ns, unit.backward_ns, unit.memory_bytes) for unit in layer]

    return [(group[0], len(group)) for group in (list(g) for _, g in groupby(layers, key=looks))]
