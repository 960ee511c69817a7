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
    return {"bandwidth_bytes_per_s": 1 / max(beta, 1e-15), "latency_ns": round(alpha * 1e9), "error": error}


def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """(alpha, beta, error) of y = alpha + beta x with least relative squares; alpha, beta >= 0; error: largest relative one."""
    x, y = np.array([p[0] for p in points]), np.array([p[1] for p in points])
    through_origin = float(np.sum(x / y) / np.sum((x / y) ** 2))
    level = float(np.sum(1 / y) / np.sum(1 / y**2))
    candidates = [line for line in (relative_line(x, y, y), (0.0, through_origin), (level, 0.0)) if min(line) >= 0]

    def errors(line: tuple[float, float]) -> Any:
        return np.abs((line[0] + line[1] * x) / y - 1)

    best = min(candidates, key=lambda line: float(np.sum(errors(line) ** 2)))
    return *best, float(errors(best).max())
