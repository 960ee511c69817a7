"""The drawing of a plan's stages on screens: layers by rank and chunk, in at most 80 columns."""

from __future__ import annotations

import random

import pytest
from trainplan.profiling.models.model import load_model

from tests.helpers.plans import plan_of
from trainplan.screens.stages import COLUMNS, stage_lines

LEGEND = "layers; E: embedding, L: head"


def drawn(name: str, cuts: list[int], depth: int | None = None) -> list[str]:
    model = load_model(name, 1024)
    plan = plan_of(model, ["single"] * len(model.units), len(cuts) + 1, 64, 32, cuts)
    if depth is not None:
        stages = [stage.changed(ranks=[index % depth]) for index, stage in enumerate(plan.stages)]
        plan = plan.changed(stages=stages, world=depth, schedule="interleaved-1f1b")
    return [" · ".join(pieces) for pieces in stage_lines(plan)]


def test_equal_stages_are_not_drawn() -> None:
    assert drawn("llama3-8b", []) == drawn("llama3-8b", [33]) == drawn("llama3-8b", [17, 33, 49], 2) == []


def test_stages_of_ranks_and_chunks() -> None:
    assert drawn("llama3-8b", [11, 29, 47]) == [
        "rank      0  1-2    3",
        "layers  E+5    9  9+L",
        f"{LEGEND} · Et*5|t*9|t*9|t*9L",
    ]
    assert drawn("llama3-8b", [7, 15, 23, 31, 39, 47, 55], 4) == [
        "rank       0  1-2    3",
        "chunk 0  E+3    4    4",
        "chunk 1    4    4  5+L",
        f"{LEGEND} · Et*3|(t*4|)*6t*5L",
    ]


def test_halves_of_layers_have_no_layout_string() -> None:
    assert drawn("llama3-8b", [32]) == ["rank         0       1", "layers  E+15.5  16.5+L", LEGEND]


@pytest.mark.parametrize("stages", [2, 16, 64, 120])
def test_any_stages_fit_and_sum_to_the_model(stages: int) -> None:
    rng = random.Random(stages)
    lines = drawn("llama3-405b", sorted(rng.sample(range(1, 252), stages - 1)))
    assert max(map(len, lines)) <= COLUMNS and lines[-1].startswith(LEGEND)
    ranks, cells = (
        [text for line in lines if line.startswith(label) for text in line.split()[1:]] for label in ("rank", "layers ")
    )
    sizes = [sum(float(part) for part in cell.split("+") if part not in ("E", "L")) for cell in cells]
    ends = [name.split("-") for name in ranks]
    total = sum(size * (int(end[-1]) - int(end[0]) + 1) for size, end in zip(sizes, ends, strict=True))
    assert total == 126 or lines[-2].startswith("and ranks")
