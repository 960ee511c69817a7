"""The joint search on several cores: the answer of one, within the same limits, and no process that outlives it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from trainplan.formulations.joint.problem import Solution
from trainplan.profiling.models.model import load_model
from trainplan.solvers.core.search import Search, judge
from trainplan.solvers.joint import branch_and_bound
from trainplan.solvers.joint.branch_and_bound import decomposition

import trainplan as tp
from tests.helpers.joint_instances import random_instance
from tests.helpers.refusals import refused

MODEL = load_model("gpt2", 64, "float32").with_fields(
    n_embd=128, n_head=4, n_inner=512, n_positions=64, vocab_size=1009, n_layer=4
)
REQUEST: dict[str, Any] = {"model": MODEL, "cluster": "rtx-titan-8", "batch": 16}
LONG = """
import trainplan as tp
answer = tp.plan(model="bert-xhuge", cluster="a100-64", batch=64, sequence=512, jobs=2)
print("step", answer.step_ns, answer.result.stopped, flush=True)
"""
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that are forked")


def children(number: int) -> list[int]:
    """The processes that a process has started, and that have not ended."""
    living = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == number and state != "Z":
            living.append(int(stat.parent.name))
    return living


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    """None but those that earlier tests keep for all."""
    before = children(os.getpid())
    yield
    ends = time.monotonic() + 60  # a process that was signalled to end takes its time on a busy machine
    while set(children(os.getpid())) - set(before) and time.monotonic() < ends:
        time.sleep(0.05)
    assert not set(children(os.getpid())) - set(before)


def answered(instance: Any, jobs: int, gap: float = 0.0) -> tuple[Any, ...]:
    """All that is the same on any number of cores."""
    search = Search(judge(instance), gap=gap, options={"jobs": jobs})
    outcome = decomposition(instance, search)
    return search.best, search.objective, outcome.bound, outcome.bound_source, outcome.infeasible, outcome.statistics


@pytest.mark.parametrize("seed", range(12))
def test_any_number_of_processes_gives_the_same_answer_of_tiny_instances(seed: int) -> None:
    instance = random_instance(random.Random(seed))
    assert answered(instance, 1) == answered(instance, 2)


@pytest.mark.parametrize(("gap", "memory"), [(0.0, "24GiB"), (1e-2, "5MiB")])
def test_any_number_of_processes_gives_the_same_answer(gap: float, memory: str) -> None:
    instance = tp.build("joint", **REQUEST, memory=memory, schedule="all")
    first = answered(instance, 1, gap)
    assert isinstance(first[0], Solution) and first[-1]["coarse"] > 3
    for jobs in (2, 3):
        assert answered(instance, jobs, gap) == first


def test_a_limit_ends_the_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = tp.build("joint", **REQUEST)
    monkeypatch.setattr(branch_and_bound._Run, "advanced", lambda run, bound, entry: time.sleep(1000))
    result = tp.solve(instance, time_limit=0.5, jobs=2)
    assert result.stopped == "time limit" and result.objective is not None


def test_an_error_in_a_process_is_the_search_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(run: Any, bound: float, entry: Any) -> float:
        raise ArithmeticError("no such bound")

    monkeypatch.setattr(branch_and_bound._Run, "advanced", broken)
    result = tp.solve(tp.build("joint", **REQUEST), jobs=2)
    assert result.status == "failed" and result.message == "ArithmeticError: no such bound"

    monkeypatch.setattr(branch_and_bound._Run, "advanced", lambda run, bound, entry: os._exit(1))
    result = tp.solve(tp.build("joint", **REQUEST), jobs=2)
    assert result.status == "failed" and "broke off" in str(result.message)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_no_process_outlives_the_one_that_plans(number: int) -> None:
    with subprocess.Popen([sys.executable, "-c", LONG], stdout=subprocess.PIPE, text=True, start_new_session=True) as planning:
        assert planning.stdout is not None
        while len(workers := children(planning.pid)) < 2:
            assert planning.poll() is None, "it planned without others"
            time.sleep(0.02)
        if number == signal.SIGINT:
            os.killpg(planning.pid, number)  # as a terminal does
            reported = planning.stdout.read()
            assert "step" in reported and "interrupt" in reported
        else:
            os.kill(planning.pid, number)
        planning.wait()
        for worker in workers:
            while Path(f"/proc/{worker}").exists() and worker in _alive():
                time.sleep(0.02)


def _alive() -> set[int]:
    """Processes that have not ended, by number."""
    return {
        int(stat.parent.name)
        for stat in Path("/proc").glob("[0-9]*/stat")
        if stat.exists() and " Z " not in stat.read_text().rpartition(")")[2][:4]
    }


def test_jobs_are_for_who_can_use_them() -> None:
    with refused("jobs", problem=(2, "amp", "exact")):
        tp.plan(like="amp", **REQUEST, jobs=2)
    with refused("jobs", problem=0, fix=(1, 1024)):
        tp.plan(**REQUEST, jobs=0)
    one, two = (tp.plan(**REQUEST, jobs=jobs) for jobs in (1, 2))
    assert one.plan is not None and two.plan is not None and one.plan.units == two.plan.units
    assert (one.answer.objective_ns, one.answer.bound_ns) == (two.answer.objective_ns, two.answer.bound_ns)
