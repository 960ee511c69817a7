"""Reports of processes are read line by line, and a line that a kill cuts short is nobody's news."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from trainplan.profiling.base import processes

LINES = b'began 0 41\nbegan 1 42\n{"step": 1}\nended 1 -9\n'


@pytest.mark.parametrize("length", range(len(LINES) + 1))
def test_lines_cut_anywhere_are_read_as_far_as_they_are_whole(tmp_path: Path, length: int) -> None:
    workers, events = processes._Workers(tmp_path, 2, lambda rank, position: ""), list[dict[str, Any]]()
    processes._relay(cast(Any, SimpleNamespace(stdout=io.BytesIO(LINES[:length]))), workers, events.append)
    whole = LINES[:length].count(b"\n")
    assert workers.ids == [{}, {0: 41}, {0: 41, 1: 42}, {0: 41, 1: 42}, {0: 41}][whole]
    assert (events, workers.codes) == ([{"step": 1}] * (whole > 2), {1: -9} if whole > 3 else {})


@pytest.mark.parametrize(
    ("codes", "first"),
    [({0: -11, 1: 124}, 1), ({0: 1, 1: -9}, 1), ({0: 124, 1: -6}, 0), ({0: 1, 1: -11}, 1), ({0: 0, 1: 1}, 1)],
)
def test_the_process_that_failed_first_is_named(tmp_path: Path, codes: dict[int, int], first: int) -> None:
    """One that ended itself for its step, before those that crash because it has gone; a signal before what others raise."""
    workers = processes._Workers(tmp_path, 2, lambda rank, position: "")
    workers.codes |= codes
    assert workers.first_failed() == (first, codes[first])
