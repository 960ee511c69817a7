"""`compare` of three plans and `explain` of one and of two, as they are printed at 80 and 100 columns; run as a module, this
writes them anew."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from trainplan.formulations.plan.plan import Plan

import trainplan as tp
from trainplan.command import printing, render_plans

SCREENS = Path(__file__).parent / "screens"
WIDTHS = (80, 100)
GPT2: dict[str, Any] = {"model": "gpt2", "cluster": "cpu-4", "batch": 8, "sequence": 64, "time_limit": None}
REQUESTS: dict[str, dict[str, Any]] = {
    "free": GPT2,
    "pipeline": GPT2 | {"pipeline": 2},
    "tight": GPT2 | {"memory": "560MB"},
    "megatron": GPT2 | {"cluster": "h100:2x1", "sequence": 1024, "memory": "6GiB", "for_": "megatron"},
}


@cache
def plan(name: str) -> Plan:
    """The plan of a request, as its file has it."""
    answer = tp.certify(tp.plan(**REQUESTS[name], comparisons=False), time_limit=2)
    assert answer.plan is not None
    return answer.plan


def compared(*names: str) -> Callable[[], None]:
    """The screens that print these plans side by side, but for gaps, which depend on the machine's speed."""
    rows = tp.compare_plans([plan(name) for name in names])
    made = {row["step_ns"]: row for row in rows}
    for name in names:
        predicted = plan(name).predicted
        assert predicted is not None
        made[predicted.step_ns] |= {"name": f"{name}.json", "gap": 0.0}
    return lambda: render_plans.side_by_side(rows)


def explained(name: str) -> Callable[[], None]:
    """The screens that print why a plan is as it is, but for its bound."""
    found = replace(tp.explain(plan(name), time_limit=None), bound_ns=None)
    return lambda: render_plans.explained(found)


def differences(first: str, second: str) -> Callable[[], None]:
    """The screens that print the differences of two plans."""
    rows = [row | {"name": f"{name}.json"} for name in (first, second) for row in tp.compare_plans([plan(name)])]
    parted = tp.differences(plan(first), plan(second))
    return lambda: render_plans.two_plans(rows, parted, (f"{first}.json", f"{second}.json"))


SHOWN = {
    "compare-three": lambda: compared("free", "pipeline", "tight"),
    "explain-tight": lambda: explained("tight"),
    "explain-megatron": lambda: explained("megatron"),
    "explain-two": lambda: differences("free", "pipeline"),
}


def printed(show: Callable[[], None], width: int) -> str:
    """The text printed at a width."""
    text = StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(printing, "out", Console(file=text, width=width, highlight=False, soft_wrap=True, emoji=False))
        patch.setenv("COLUMNS", str(width))
        show()
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


@pytest.mark.parametrize("name", SHOWN)
def test_the_screen_is_as_it_was(name: str) -> None:
    show = SHOWN[name]()
    for width in WIDTHS:
        text = printed(show, width)
        assert max(map(len, text.splitlines())) <= width
        assert text == (SCREENS / f"{name}-{width}.txt").read_text()


def test_compare_has_a_row_for_each_plan_and_says_once_what_all_share() -> None:
    text = printed(compared("free", "pipeline", "tight"), 100)
    above, below = text.split("\n\n", 1)
    assert "best" in below
    assert "gpt2 · 4 GPUs · 8 samples a step" in above and "gpt2" not in below
    rows = [line for line in below.splitlines() if line.strip().startswith(("free", "tight", "pipeline"))]
    assert [row.split()[0] for row in rows] == ["free", "tight", "pipeline"]
    assert "the best" in rows[0] and all(re.search(r"\+\d+\.\d\d %", row) for row in rows[1:])


@pytest.mark.parametrize("name", ["tight", "megatron"])
def test_no_change_that_needs_more_than_is_free_is_reported_to_fit(name: str) -> None:
    """By the free memory that is printed of each stage."""
    found = tp.explain(plan(name), time_limit=None)
    rows = [
        change for one_change in found.changes for change in (one_change.next_best, one_change.prevented) if change is not None
    ]
    assert rows or found.neighbours
    for change in rows:
        free = [stage.limit_bytes - stage.peak_bytes for stage in found.stages]
        lacks = max(more - free[x % len(free)] for x, more in enumerate(change.more_bytes))
        assert found.lacking_bytes(change) == max(0, lacks)
        if lacks > 0:
            assert render_plans._fits(found, change).endswith(" over")
    text = printed(lambda: render_plans.explained(found), 160)
    for neighbour in found.neighbours:
        if neighbour.what in text:
            row = next(line for line in text.splitlines() if neighbour.what in line)
            assert row.rstrip().endswith(" over") == (neighbour.peak_bytes > found.limit_bytes)
    assert not re.search(r"\bsdp\d|\d-(tp|dp|sp)", text), "strategies are in the words of the field"


if __name__ == "__main__":
    for value, made in SHOWN.items():
        showing = made()
        for columns in WIDTHS:
            (SCREENS / f"{value}-{columns}.txt").write_text(printed(showing, columns))
