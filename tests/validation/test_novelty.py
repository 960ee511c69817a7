"""Widths of intervals by what is new in a run, against errors drawn from distributions whose widths are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from trainplan.profiling.clusters.efficiencies import shipped_efficiencies
from trainplan.profiling.clusters.step_errors import FEW, FittedRun, StepErrors, in_common, new_words, newness

from trainplan.validation.calibration_report import report, splits_text
from trainplan.validation.novelty import ASSUMED, held_by_split, held_elsewhere, left_out_errors, step_errors_of
from trainplan.validation.splits import SPLITS, kept_counts


def runs_with(usual: float, kind: float, count: int = 240, seed: int = 0, **fields: object) -> list[FittedRun]:
    """Runs of up to 12 sources and 24 kinds, whose errors have the spread `usual`, and in addition `kind` where theirs is left
    out, or its share where only a source is.
    """
    generator = np.random.default_rng(seed)
    share = FEW / (FEW + count // 24 - 1)

    def error(spread: float) -> float:
        return float(np.expm1(generator.normal(0, spread)))

    runs = []
    for index in range(count):
        run = FittedRun(
            id=str(index), source=f"s{index // 24 % 12}", device=f"kind{index % 24}", devices=8,
            precision="bfloat16", framework="f", error=error(usual),
            left_out={"source": error(math.hypot(usual, kind * math.sqrt(share))), "kind": error(math.hypot(usual, kind))},
        )  # fmt: skip
        runs.append(run.changed(**fields))
    return runs


def test_widths_that_made_the_errors_are_found_and_hold_four_fifths() -> None:
    runs = runs_with(0.05, 0.2)
    left_out = left_out_errors(runs)
    widths = step_errors_of(left_out, 0.0)
    assert left_out.held(widths) == pytest.approx(0.8, abs=0.01)
    usual, kind, few = 0.05, 0.2, FEW / (FEW + 9)
    for share in (few, 1.0):  # where sources are left out, and where kinds are
        found = widths.half_width({"kind": share, "scale": share, "precision": 0.0, "framework": 0.0})
        assert found == pytest.approx(1.2816 * math.hypot(usual, kind * math.sqrt(share)), rel=0.2)
    assert held_by_split(runs, widths)["source"] == pytest.approx(0.8, abs=0.08)
    assert held_by_split(runs, widths)["kind"] == pytest.approx(0.8, abs=0.08)


def test_widths_hold_on_errors_that_they_were_not_fitted_to() -> None:
    widths = step_errors_of(left_out_errors(runs_with(0.06, 0.15, seed=1)), 0.0)
    assert left_out_errors(runs_with(0.06, 0.15, seed=2)).held(widths) == pytest.approx(0.8, abs=0.06)
    assert held_elsewhere(runs_with(0.06, 0.15, seed=3)) == pytest.approx(0.8, abs=0.06)


def test_what_adds_nothing_to_errors_widens_no_interval() -> None:
    widths = step_errors_of(left_out_errors(runs_with(0.08, 0.0)), 0.0)
    new = widths.half_width(newness({"kind": 0, "scale": 0, "precision": 100, "framework": 100}))
    assert new == pytest.approx(widths.usual, rel=0.15)


def test_coverage_is_the_share_within_the_interval_counted_by_hand() -> None:
    runs = runs_with(0.1, 0.1, count=48)
    widths = StepErrors(usual=0.1, kind=0.1, scale=0.02, framework=0.05, difference=0.0)
    for name in ("source", "kind"):
        inside = 0
        for run in runs:
            kept = [other for other in runs if SPLITS[name].fold_of(other) != SPLITS[name].fold_of(run)]
            kind = sum(other.device == run.device for other in kept)
            framework = sum(other.framework == run.framework for other in kept)
            square = 0.1**2 + (0.1**2 + 0.02**2) * FEW / (FEW + kind) + 0.05**2 * FEW / (FEW + framework)
            inside += abs(math.log(1 + run.left_out[name])) <= math.sqrt(square)
        assert held_by_split(runs, widths)[name] == pytest.approx(inside / len(runs))


def test_runs_left_out_together_do_not_count_for_each_other() -> None:
    runs = runs_with(0.1, 0.1, count=48)
    for run, counts in zip(runs, kept_counts(SPLITS["kind"], runs), strict=True):
        assert counts["kind"] == counts["scale"] == 0 and counts["framework"] == 46, run.id


def test_an_interval_is_the_wider_the_fewer_runs_have_something_in_common() -> None:
    widths = StepErrors(usual=0.1, kind=0.1, scale=0.1, precision=0.1, framework=0.1, difference=0.0)
    runs = [run.changed(device="h100") for run in runs_with(0.1, 0.1, count=48)]
    common = in_common(runs, "h100", 16, "bfloat16", "f")
    assert common == {"kind": 48, "scale": 48, "precision": 48, "framework": 48}
    assert in_common(runs, "h100", 17, "bfloat16", "f")["scale"] == 0
    usual = widths.half_width(newness(common))
    for others in (
        ("a100", 8, "bfloat16", "f"),
        ("h100", 64, "bfloat16", "f"),
        ("h100", 8, "float8", "f"),
        ("h100", 8, "bfloat16", "g"),
    ):
        counts = in_common(runs, *others)
        assert widths.half_width(newness(counts)) > usual + 0.01, others
        assert new_words(counts, widths) and not new_words(common, widths)


def test_open_fields_widen_an_interval_beside_the_rest() -> None:
    widths = StepErrors(usual=0.3, difference=0.0)
    assert widths.half_width({}, 0.4) == pytest.approx(0.5)


def test_without_errors_the_assumed_widths_stand() -> None:
    assert step_errors_of(left_out_errors([]), 0.1) == ASSUMED.changed(difference=0.1)


def test_the_report_counts_errors_as_numpy_does() -> None:
    runs = runs_with(0.1, 0.1, count=48)
    table = shipped_efficiencies().changed(runs=runs, step_errors=StepErrors(usual=0.1, difference=0.0), choices=None)
    line = next(line for line in splits_text(table).splitlines() if line.startswith("each source left out"))
    errors = np.array([run.left_out["source"] for run in runs])
    numbers = [float(word) for word in line.split()[-6:]]
    expected = [48, 100 * errors.mean(), 100 * np.abs(errors).mean(), 100 * np.median(np.abs(errors))]
    assert numbers[:4] == pytest.approx(expected, abs=0.051)
    texts = report(table, ["0"])
    worst = max(runs, key=lambda run: abs(math.log(1 + run.left_out["source"])))
    assert texts["worst"].splitlines()[1].split()[0] == worst.id and "not known" in texts["worst"]
    assert not report(table.changed(runs=[]))
