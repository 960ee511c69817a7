"""Choices among measured layouts of one job, against every choice tried by hand."""

from __future__ import annotations

import random

import pytest
from trainplan.profiling.clusters.efficiencies import shipped_efficiencies

from tests.validation.test_calibrate import laid_runs, measured_by
from trainplan.validation.calibrate import predicted_choices
from trainplan.validation.choices import DIFFERENCE, Alternatives, choices_of, difference_of, jobs, with_predictions
from trainplan.validation.efficiency_fit import Fit
from trainplan.validation.layouts import laid_run
from trainplan.validation.rows import Run


def test_regret_is_what_the_chosen_layout_takes_more_than_the_best() -> None:
    draw = random.Random(0)
    groups = []
    for _ in range(200):
        names = tuple(str(index) for index in range(draw.randint(2, 6)))
        measured = tuple(draw.uniform(1, 2) for _ in names)
        groups.append(Alternatives(names, measured, tuple(draw.uniform(1, 2) for _ in names)))
    by_hand = []
    for group in groups:
        first = sorted(zip(group.predicted_s, group.measured_s, strict=True))[0]
        by_hand.append(first[1] / min(group.measured_s) - 1)
        assert group.regret == pytest.approx(by_hand[-1])
    found = choices_of(groups)
    assert found is not None and found.groups == 200 and found.best == sum(regret == 0 for regret in by_hand)
    assert found.regret == pytest.approx(sum(by_hand) / 200, abs=1e-4) and found.worst == pytest.approx(max(by_hand), abs=1e-4)
    assert choices_of([]) is None


def test_errors_that_layouts_have_in_common_cancel() -> None:
    group = Alternatives(("a", "b", "c"), (1.0, 2.0, 3.0), (1.3, 2.6, 3.9))
    assert group.differences == pytest.approx([0, 0, 0]) and group.regret == 0
    assert difference_of([group] * 3) == 0


def test_the_difference_holds_four_fifths_of_pairs_and_every_job_counts_alike() -> None:
    draw = random.Random(1)
    pairs = [Alternatives(("a", "b"), (1.0, 1.0), (1.0, 1.0 + draw.random())) for _ in range(500)]
    width = difference_of(pairs)
    assert sum(pair.differences[0] <= width + 1e-4 for pair in pairs) / 500 == pytest.approx(0.8, abs=0.005)
    large = Alternatives(tuple("abcdefgh"), (1.0,) * 8, tuple(float(index + 1) for index in range(8)))
    assert difference_of([*pairs, large]) == pytest.approx(width, abs=0.01)
    unclear = Alternatives(("a", "b"), (1.0, 1.0), (1.0, 9.0), open=True)
    assert difference_of([*pairs, *[unclear] * 500]) == width
    assert difference_of(pairs[:2]) == DIFFERENCE


def test_layouts_of_one_job_are_found_and_predicted_without_their_source() -> None:
    about = {
        "model": "llama3-8b",
        "gpu": "a100",
        "gpus": 16,
        "seq": 4096,
        "gbs": 64,
        "mbs": 1,
        "source": "0",
        "recompute": "none",
        "fsdp": "no",
    }
    options = [{"tp": 1}, {"tp": 2}, {"tp": 4, "pp": 2}]
    own = [laid_run(Run(id=f"job{i}", framework="Megatron-Core", zero=1, **about, **more)) for i, more in enumerate(options)]
    rows = measured_by([*own, *laid_runs()], shipped_efficiencies())
    groups = jobs(rows)
    assert [[row.run.id for row in group] for group in groups] == [["job0", "job1", "job2"]]
    fit = Fit(rows, shipped_efficiencies())
    fitted = fit.run()
    (found,) = predicted_choices(fit, fitted, [])
    alone = fit.kept_table(fitted, [index for index, row in enumerate(rows) if row.run.source != "0"])
    assert found.names == ("job0", "job1", "job2") and not found.open
    for index in range(3):
        assert found.predicted_s[index] == pytest.approx(found.measured_s[index] * 2.718281828 ** fit.residual(alone, index))


def test_runs_that_differ_in_nothing_stated_are_one_alternative() -> None:
    steps = {"a": 4.0, "b": 4.5, "c": 4.2}
    group = [laid_run(Run(id=name, model="llama3-8b", gpu="a100", gpus=8, gbs=8, step_s=step)) for name, step in steps.items()]
    found = with_predictions(group, {"a": 3.0, "b": 2.0, "c": 2.0})
    assert found.names == ("a", "c") and found.measured_s == (4.0, 4.2) and found.regret == pytest.approx(0.05)
