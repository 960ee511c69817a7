"""A clock that counts how often searches read it, so that the effect of a time limit does not depend on the machine."""

from contextlib import nullcontext

import pytest
from trainplan.solvers.core.search import Search

TICK_S = 0.1
ALARMED = ("trainplan.solvers.core.solve", "trainplan.solvers.core.incumbents", "trainplan.planning.shortage")


def count_the_clock(monkeypatch: pytest.MonkeyPatch, tick_s: float = TICK_S) -> None:
    """Makes searches count time by their readings of the clock: each reading takes `tick_s` seconds, and all else none.

    Solvers keep their own clocks. Alarms, which follow the machine's clock, are switched off.
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
    """Switches off the alarms that end searches by the machine's clock, so that only their own readings of time end them."""
    for module in ALARMED:
        monkeypatch.setattr(f"{module}.ended_after", lambda _: nullcontext())
