"""A clock that counts how often searches look at it, so that what a time limit leaves does not depend on the machine."""

from contextlib import nullcontext

import pytest
from trainplan.solvers.core.search import Search

TICK_S = 0.1
ALARMED = ("trainplan.solvers.core.solve", "trainplan.solvers.core.incumbents", "trainplan.planning.shortage")


def count_the_clock(monkeypatch: pytest.MonkeyPatch, tick_s: float = TICK_S) -> None:
    """Every look of a search at the time elapsed takes `tick_s`, and nothing else takes any. Solvers keep their own clocks.

    Alarms, which go by the machine's clock, end nothing.
    """
    looks = 0
    begins: dict[int, tuple[Search, int]] = {}

    def elapsed(search: Search) -> float:
        nonlocal looks
        looks += 1
        _, began = begins.setdefault(id(search), (search, looks - 1))
        return (looks - began) * tick_s

    monkeypatch.setattr(Search, "elapsed", elapsed)
    without_alarms(monkeypatch)


def without_alarms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches end by their own looks at the time alone, however slow the machine is."""
    for module in ALARMED:
        monkeypatch.setattr(f"{module}.ended_after", lambda _: nullcontext())
