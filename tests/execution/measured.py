"""What runs of plans measured, against what the walks say."""

from __future__ import annotations

from collections.abc import Iterable

from trainplan.execution.run.report import RunReport

MEDIAN = 0.01


def memory_follows_the_walk(reports: Iterable[RunReport], worst: float = 0.05) -> None:
    """Fails where what ranks allocated is further from the memory walk than 1 % in the median, or than `worst` anywhere."""
    errors = []
    for report in reports:
        assert report.peak_bytes is not None
        errors += [abs(a / b - 1) for a, b in zip(report.predicted_peak_bytes, report.peak_bytes, strict=True)]
    errors.sort()
    print(f"memory walk against torch: median error {errors[len(errors) // 2]:.2%}, worst {errors[-1]:.2%}")
    assert errors[len(errors) // 2] < MEDIAN
    assert errors[-1] < worst
