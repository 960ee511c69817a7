"""Screens of what fits, of the fewest devices and of other numbers of a cluster, at 80, 100 and 160 columns; run as a module,
this writes them anew."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

import trainplan as tp
from tests.command.test_screen import SCREENS, WIDTHS
from trainplan.command import printing, render
from trainplan.command.planning import Near
from trainplan.planning.what_if import better_batch
from trainplan.screens.fit import fit_screen
from trainplan.screens.plan import Row, screen

LLAMA: dict[str, Any] = {"model": "llama-3.1-70b", "cluster": "h100:8x8", "sequence": 8192}
GPT2: dict[str, Any] = {"model": "gpt2", "batch": 16, "sequence": 1024}


def fitting(**request: Any) -> list[Row]:
    return fit_screen(tp.fit(**request), "batch" in request, "trainplan plan ...")


def fewest(devices: str, **request: Any) -> list[Row]:
    sizes = tp.plan_sizes(**request, devices=devices)
    near = Near(sizes.first, sizes)
    found = near.rows([] if sizes.first is None else screen(sizes.first))
    return [row for row in found if row[0] in ("DEVICES", "MORE", "NEXT")]  # the plan's own rows have screens of theirs


def faster(factors: str, **request: Any) -> list[Row]:
    made = tp.plan(**request)
    return Near(made, None, tp.what_if(made, factors), better_batch(made, 100.0)).rows(screen(made))


SHOWN: dict[str, Callable[[], list[Row]]] = {
    "fit-70b": lambda: fitting(**LLAMA, for_="megatron"),
    "fit-not": lambda: fitting(model="gpt2", cluster="cpu-4", batch=8, sequence=64, memory="300MiB"),
    "fit-not-405b": lambda: fitting(model="llama-3.1-405b", cluster="h100:8x11", sequence=8192, batch=88),
    "fewest-devices": lambda: fewest("1-3", **GPT2, cluster="h100", memory="1.2GiB"),
    "no-devices": lambda: fewest("1-1", **GPT2, cluster="h100", memory="1.2GiB"),
    "what-if": lambda: faster("network=1.2", **{**GPT2, "batch": 60}, cluster="h100:2x4"),
    "what-if-not": lambda: faster("memory=0.08", **GPT2, cluster="h100:2"),
}
LONG = ("fit-not-405b",)


@cache
def rows(name: str) -> list[Row]:
    return SHOWN[name]()


def printed(name: str, width: int) -> str:
    """A screen as wide as a terminal."""
    text = StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(printing, "out", Console(file=text, width=width, highlight=False, soft_wrap=True, emoji=False))
        patch.setenv("COLUMNS", str(width))
        render.rows_of_screen(rows(name))
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.long if name in LONG else ()) for name in SHOWN])
def test_the_screen_is_as_it_was(name: str) -> None:
    for width in WIDTHS:
        text = printed(name, width)
        assert max(map(len, text.splitlines())) <= width
        assert text == (SCREENS / f"{name}-{width}.txt").read_text()


if __name__ == "__main__":
    for entry in SHOWN:
        for columns in WIDTHS:
            (SCREENS / f"{entry}-{columns}.txt").write_text(printed(entry, columns))
