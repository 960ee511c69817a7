"""Fit lines through measured points by least relative squares, so that small messages count as much as large ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def relative_line(x: Any, y: Any, scale: Any) -> tuple[float, float]:
    """Fit a straight line a + b x to points by weighted least squares: returns the intercept a and slope b for which the sum
    of squares of (a + b x - y) / scale is least. x, y, scale: arrays of equal length.
    """
    design = np.stack([1 / scale, x / scale], axis=1)
    (a, b), *_ = np.linalg.lstsq(design, y / scale, rcond=None)
    return float(a), float(b)


def fitted_link(points: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Fit bandwidth and latency of a link to measured transfers. points: (bytes, seconds), one pair per transfer. Returns a
    dict with bandwidth_bytes_per_s, latency_ns and error, the largest relative error of the fit.
    """
    alpha, beta, error = fit_line(points)
    return {"bandwidth_bytes_per_s": 1 / max(beta, 1e-15), "latency_ns": round(alpha * 1e9), "error": round(error, 4)}


def fitted_copies(
    there: Sequence[tuple[float, float]], back: Sequence[tuple[float, float]]
) -> tuple[tuple[float, float], tuple[float, float], tuple[float, float]]:
    """Fit rates and latency of copies between host and device to measured copies. there, back: (bytes, seconds) of each copy
    to the device, and of each copy to the host.

    Returns three pairs, whose second number is the largest relative error of the fit: bytes per second to the device, bytes
    per second to the host, and the latency of a copy in nanoseconds (the larger of the two directions).
    """
    lines = [fit_line(points) for points in (there, back)]
    to_device, to_host = ((1 / max(beta, 1e-12), error) for _, beta, error in lines)  # a level fit gives no infinite rate
    return to_device, to_host, (max(alpha for alpha, _, _ in lines) * 1e9, max(error for _, _, error in lines))


def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """Fit a straight line to points (x, y) by least squares of relative errors. Returns its intercept and slope, both at least
    0, and its largest relative error.

    If all points have the same x, the intercept is 0 and the slope is the reciprocal of the mean of the smallest and the
    largest rate x / y.
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
        """The relative error of a line (intercept, slope) at every point, as an array."""
        return np.abs((line[0] + line[1] * x) / y - 1)

    best = min(candidates, key=lambda line: float(np.sum(errors(line) ** 2)))
    return *best, float(errors(best).max())
