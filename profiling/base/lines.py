"""Lines through measured points, by least relative squares: small messages count as much as large ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def relative_line(x: Any, y: Any, scale: Any) -> tuple[float, float]:
    """(a, b) of y = a + b x that makes the squares of (a + b x - y) / scale least. x, y, scale: arrays of one length."""
    design = np.stack([1 / scale, x / scale], axis=1)
    (a, b), *_ = np.linalg.lstsq(design, y / scale, rcond=None)
    return float(a), float(b)


def fitted_link(points: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """The link that (bytes, seconds) of single steps show: its bandwidth, latency, and the fit's largest relative error."""
    alpha, beta, error = fit_line(points)
    return {"bandwidth_bytes_per_s": 1 / max(beta, 1e-15), "latency_ns": round(alpha * 1e9), "error": round(error, 4)}


def fitted_copies(
    there: Sequence[tuple[float, float]], back: Sequence[tuple[float, float]]
) -> tuple[tuple[float, float], tuple[float, float], tuple[float, float]]:
    """Bytes a second to a device and back, and the nanoseconds that each copy takes beside, from (bytes, seconds) of copies.

    Each comes with its fit's largest relative error.
    """
    lines = [fit_line(points) for points in (there, back)]
    to_device, to_host = ((1 / max(beta, 1e-12), error) for _, beta, error in lines)  # a level fit gives no infinite rate
    return to_device, to_host, (max(alpha for alpha, _, _ in lines) * 1e9, max(error for _, _, error in lines))


def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """(alpha, beta, error) of y = alpha + beta x with least relative squares; alpha, beta >= 0; error: largest relative one.

    Points of one x tell no alpha: their line is that of the rate in the middle.
    """
    x, y = np.array([p[0] for p in points]), np.array([p[1] for p in points])
    if len(set(x)) == 1:
        rates = x / y
        middle = float(rates.min() + rates.max()) / 2
        return 0.0, 1 / middle, float(rates.max()) / middle - 1
    through_origin = float(np.sum(x / y) / np.sum((x / y) ** 2))
    level = float(np.sum(1 / y) / np.sum(1 / y**2))
    candidates = [line for line in (relative_line(x, y, y), (0.0, through_origin), (level, 0.0)) if min(line) >= 0]

    def errors(line: tuple[float, float]) -> Any:
        return np.abs((line[0] + line[1] * x) / y - 1)

    best = min(candidates, key=lambda line: float(np.sum(errors(line) ** 2)))
    return *best, float(errors(best).max())
