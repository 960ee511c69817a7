"""Processes that are stopped or stuck are noticed; those that are merely slow are not."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from trainplan.profiling.base.processes import WorkerError, run_workers
from trainplan.profiling.base.watchdog import Activity, Position, Stall, Watchdog, activity

STALL_S = 10.0


@pytest.fixture
def positions(tmp_path: Path) -> list[Position]:
    both = [Position(tmp_path / f"position.{rank}") for rank in range(2)]
    for position in both:
        position.set(0, 1, 0)
    return both


def looks(
    positions: list[Position], seen: Callable[[float, int], Activity | None], seconds: int = 60, step: int = 1
) -> tuple[Stall | None, float]:
    """The first stall, and when: looked for every `step` seconds at two processes, of which `seen` says what they do."""
    now = 0.0
    watchdog = Watchdog(positions, STALL_S, lambda process: seen(now, process))
    while now < seconds:
        if stall := watchdog.look(now, {0: 0, 1: 1}):
            return stall, now
        now += step
    return None, now


def test_a_stopped_process_is_noticed_though_others_go_on(positions: list[Position]) -> None:
    def seen(now: float, process: int) -> Activity:
        positions[0].set(0, 1, int(now))
        return Activity("T" if process == 1 and now >= 5 else "R", now)

    assert looks(positions, seen) == (Stall("stopped", 1), 15)


def test_a_process_that_is_stopped_now_and_then_is_not(positions: list[Position]) -> None:
    def seen(now: float, process: int) -> Activity:
        return Activity("T" if process == 1 and now % 10 else "S", now)

    assert looks(positions, seen)[0] is None


def test_processes_that_wait_for_each_other_are_noticed(positions: list[Position]) -> None:
    rng = random.Random(0)

    def seen(now: float, process: int) -> Activity:
        if now < 7:
            positions[1].set(0, 1, int(now))
        return Activity("S", now * 0.002 + 0.001 * rng.random())

    assert looks(positions, seen) == (Stall("stuck"), 16)


@pytest.mark.parametrize(
    "slow",
    [
        lambda now: Activity("S", 0.02 * now),  # a fiftieth of a processor, and no instruction ends
        lambda now: Activity("R", 0.0),  # it gets no processor at all
        lambda now: Activity("D", 0.0),  # swapped out and in
        lambda now: Activity("S", 100.0 - now),  # a process ends with its time, while another works
        lambda now: None,  # the system says nothing of processes
    ],
)
def test_a_slow_step_is_no_halt(positions: list[Position], slow: Callable[[float], Activity | None]) -> None:
    assert looks(positions, lambda now, process: slow(now))[0] is None


def test_progress_without_work_is_no_halt(positions: list[Position]) -> None:
    def seen(now: float, process: int) -> Activity:
        positions[1].set(0, 1, int(now) // 9)
        return Activity("S", 0.0)

    assert looks(positions, seen)[0] is None


def test_processes_that_have_not_begun_their_work_are_not_stuck(positions: list[Position]) -> None:
    positions[1].set(0, 0, 0)
    assert looks(positions, lambda now, process: Activity("S", 0.0))[0] is None


def test_time_in_which_nobody_looked_does_not_count(positions: list[Position]) -> None:
    """As where the watching process was itself stopped."""
    assert looks(positions, lambda now, process: Activity("T", 0.0), step=6)[0] is None
    assert looks(positions, lambda now, process: Activity("S", 0.0), step=6)[0] is None


def test_positions_are_shared(tmp_path: Path) -> None:
    here, there = (Position(tmp_path / "position") for _ in range(2))
    assert there.get() == (0, 0, 0)
    here.set(1, 2, 2**40)
    assert there.get() == (1, 2, 2**40)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are seen through /proc")
def test_what_this_process_does() -> None:
    before = activity(os.getpid())
    begin = time.process_time()
    while time.process_time() - begin < 0.05:
        pass
    after = activity(os.getpid())
    assert before is not None and after is not None
    assert after.state == "R"
    assert after.busy_s > before.busy_s
    assert activity(2**30) is None


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are seen through /proc")
@pytest.mark.parametrize(
    ("fault", "code", "line"),
    [
        ("SIGKILL", -9, r"process 1 of 2 was killed \(SIGKILL\), by hand or by the system for lack of memory, at \(0, 2, 5\)$"),
        ("SIGSTOP", None, r"process 1 of 2 was stopped for 1 s, at \(0, 2, 5\): by SIGSTOP or a debugger; all .* ended$"),
        ("waits", None, r"nothing has moved for 3 s, process 1 of 2 least of all, at \(0, 2, 5\): .*; all were ended$"),
        ("raises", 1, r"process 1 of 2 failed, at \(0, 2, 5\): ArithmeticError: of two lines$"),
    ],
)
def test_a_fault_of_a_process_ends_all_with_its_place_and_cause(
    fault: str, code: int | None, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))  # where the processes find `tests`
    limits = {"stall_timeout": 3.0 if fault == "waits" else 1.0}
    with pytest.raises(WorkerError, match=line) as raised:
        run_workers(
            "tests.helpers.halting:meet",
            2,
            {"fault": fault},
            describe_position=lambda rank, position: f"at {position}",
            **limits,
        )
    assert raised.value.code == code
