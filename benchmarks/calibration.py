"""A device kind's rates fitted to measured times: how well the roofline of `profiling.estimate` can describe a machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Any

from trainplan.profiling.clusters.cluster import DeviceKind
from trainplan.profiling.estimate import sublayer_ns
from trainplan.profiling.models.sublayers import Sublayer


@dataclass(frozen=True)
class Sample:
    """A measured time of a sub-layer: what `calibrate` fits a kind's rates to."""

    part: Sublayer
    tp: int
    rows: int
    forward_ns: float
    backward_ns: float


# Fields that `calibrate` fits, with their bounds.
FITTED = {"efficiency": (1e-6, 1.0), "memory_bytes_per_s": (1e3, 1e15), "half_size": (0, 2**16), "kernel_ns": (0, 10**8)}


def calibrate(kind: DeviceKind, samples: Sequence[Sample]) -> DeviceKind:
    """The kind with efficiency, memory bandwidth, half size and kernel time fitted to measured times.

    Least squares of the logarithms of predicted over measured times, by coordinate descent with shrinking steps. A peak rate
    below what some sample reached is raised to it first.
    """
    rates = dict(kind.flops_per_s)
    for sample in samples:
        reached = 3 * sample.part.forward_flops(sample.rows, sample.tp) / (sample.forward_ns + sample.backward_ns) * 1e9
        dtype: Any = sample.part.dtype
        rates[dtype] = max(rates.get(dtype, 0.0), reached)

    def error(candidate: DeviceKind) -> float:
        total = 0.0
        for sample in samples:
            forward, backward = sublayer_ns(sample.part, candidate, sample.rows, sample.tp)
            total += log(forward / sample.forward_ns) ** 2 + log(backward / sample.backward_ns) ** 2
        return total

    best = kind.changed(flops_per_s=rates)
    least, step = error(best), log(2.0)
    while step > 0.005:
        improved = False
        for name, (low, high) in FITTED.items():
            for sign in (step, -step):
                old = getattr(best, name)
                value = old * exp(sign)
                if name in ("half_size", "kernel_ns"):
                    value = round(value) if round(value) != old else old + (1 if sign > 0 else -1)
                candidate = best.changed(**{name: min(high, max(low, value))})
                if (value := error(candidate)) < least:
                    best, least, improved = candidate, value, True
        if not improved:
            step /= 2
    return best
