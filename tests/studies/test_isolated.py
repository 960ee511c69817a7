"""One cell in a process of its own: whatever happens to the process is a row, and nothing of it stays."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import trainplan as tp
from tests.helpers.faulty_methods import gone, installed, marked
from trainplan.studies import isolated
from trainplan.studies.cells import NO_LIMITS, Cell
from trainplan.studies.pace import Pace
from trainplan.studies.rows import COLUMNS

REQUEST = {"model": "gpt2", "cluster": "cpu-4", "batch": 8, "memory": "2GiB"}
MARK = f"TRAINPLAN_TEST_MARK={os.getpid()}"
SMALL = 2**26

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc"), reason="processes are looked at by /proc")


@pytest.fixture(scope="module", autouse=True)
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The faulty methods are on the path of the servers, whose environment has the mark."""
    folder = installed(tmp_path_factory.mktemp("site"))
    isolated.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(folder)))))
        patch.setenv(*MARK.split("="))
        yield
        isolated.close()
        assert gone(MARK)


def cell(method: str = "exact", *, request: Any = REQUEST, limits: Any = None, **more: Any) -> dict[str, Any]:
    more = {"task": "solve", "problem": "layer-strategies", **more}
    return Cell(request=request, method=method, limits={**NO_LIMITS, **(limits or {})}, **more).to_dict()


def test_a_row_is_what_solving_gives() -> None:
    instance = tp.build("layer-strategies", **REQUEST)
    for method in ("exact", "galvatron-dp", "milp", "cpsat"):
        row, result = isolated.run_cell(cell(method)), tp.solve(instance, method)
        assert (row["status"], row["value_ns"], row["bound_ns"]) == (result.status, result.objective, result.bound)
        assert (row["instance_hash"], row["gap"], row["bound_source"]) == (instance.digest, result.gap, result.bound_source)
        assert row["peak_bytes"] == result.evaluation["peak_bytes"]
        assert [*row] == [*COLUMNS, "files"]
        assert row["wall_seconds"] >= row["seconds"] > 0
        assert row["processor_seconds"] > 0
        assert row["process_peak_bytes"] > 2**24
        assert {"solution_path", "history_path"} <= set(row["files"])


@pytest.mark.parametrize(
    ("method", "limits", "more", "status", "reason"),
    [
        ("aborts", {}, {}, "crashed", "SIGABRT): something is wrong"),
        ("segfaults", {}, {}, "crashed", "SIGSEGV"),
        ("leaves", {}, {}, "crashed", "exit code 7"),
        ("raises", {}, {}, "failed", "no such thing"),
        ("refuses", {}, {}, "refused", "layers is odd"),
        ("grows", {"memory": SMALL}, {"cold": True}, "out of memory", "memory ran out"),
        ("grows_below", {"memory": SMALL}, {}, "out of memory", "bad_alloc"),
        ("sleeps", {"time_limit": 0.2, "grace": 0.3}, {}, "timed out", "0.2 s"),
        ("no-such-method", {}, {}, "refused", "no-such-method"),
        ("exact", {}, {"options": {"no_such_option": 1}}, "refused", "no_such_option"),
        ("exact", {}, {"request": {**REQUEST, "memory": "100MiB"}}, "infeasible", "100 MiB"),
        ("exact", {}, {"request": {**REQUEST, "batch": 0}}, "refused", "batch is 0"),
        ("exact", {}, {"request": {**REQUEST, "memory": "much"}}, "refused", "much"),
        ("exact", {}, {"request": {**REQUEST, "memory": "9000000000000GiB"}}, "refused", "memory"),
        ("exact", {}, {"request": {"instance": "no-such-file.json"}}, "refused", "no-such-file.json"),
    ],
)
def test_every_end_is_a_row(method: str, limits: Any, more: Any, status: str, reason: str) -> None:
    row = isolated.run_cell(cell(method, limits=limits, **more))
    assert (row["status"], row["value_ns"]) == (status, None)
    assert reason in row["reason"]
    assert "\n" not in row["reason"]
    assert isolated.run_cell(cell())["status"] == "optimal"  # and the next cell is as if nothing had been


def test_a_killed_solver_is_a_row() -> None:
    """Somebody kills the process of a cell; and then all of its server's processes."""
    isolated.run_cell(cell())
    for everything in (False, True):
        before = set(marked(MARK))
        rows: list[dict[str, Any]] = []
        thread = threading.Thread(target=lambda rows=rows: rows.append(isolated.run_cell(cell("waits"))))
        thread.start()
        until = time.monotonic() + 30
        while not (new := set(marked(MARK)) - before):
            assert time.monotonic() < until
        for number in new | (before if everything else set()):
            os.kill(number, signal.SIGKILL)
        thread.join()
        assert rows[0]["status"] == "crashed"
        assert isolated.run_cell(cell())["status"] == "optimal"


def test_a_plan_has_its_prediction(tmp_path: Path) -> None:
    request = {"model": "gpt2", "cluster": "h100:2", "batch": 8, "sequence": 256}
    row = isolated.run_cell(cell(request=request, task="plan", problem=None, runtime="megatron"), str(tmp_path))
    planned = tp.plan(**request, for_="megatron", comparisons=False)
    assert planned.plan is not None
    assert planned.plan.predicted is not None
    assert planned.performance is not None
    assert (row["predicted_step_ns"], row["predicted_peak_bytes"]) == (
        planned.plan.predicted.step_ns,
        planned.plan.predicted.most_bytes,
    )
    assert (row["mfu"], row["tokens_per_second"]) == (planned.performance.mfu, planned.performance.tokens_per_s)
    assert (row["status"], row["bound_ns"], row["devices"]) == (planned.answer.status, planned.answer.bound_ns, 2)
    assert tp.explain(str(tmp_path / row["plan_path"]))
    refused = isolated.run_cell(cell(request=request, task="plan", problem=None, runtime="torchtitan"))
    assert (refused["status"], refused["problem"]) == ("refused", row["problem"])  # so that both are of one method's line
    pace = Pace()
    pace.add(row)
    assert pace.of(cell(request=request, task="plan", problem=None, runtime="megatron")) == (row["wall_seconds"], True)


def test_keys_know_what_decides_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    instance = tp.build("layer-strategies", **REQUEST)
    file = tmp_path / "instance.json"
    file.write_text(json.dumps(instance.to_dict()))
    first = isolated.run_cell(cell("galvatron-dp"))["key"]
    assert isolated.run_cell(cell("galvatron-dp"))["key"] == first
    assert isolated.run_cell(cell("galvatron-dp", request={"instance": str(file)}))["key"] == first  # the same instance
    changed = [
        cell(),
        cell("galvatron-dp", limits={"time_limit": 10.0}),
        cell("galvatron-dp", options={"granularity_bytes": 2**20}),
        cell("galvatron-dp", seed=1),
        cell("galvatron-dp", repeat=1),
        cell("galvatron-dp", request={**REQUEST, "batch": 16}),
    ]
    keys = [first, *(isolated.run_cell(other)["key"] for other in changed)]
    monkeypatch.setattr(isolated, "versions", lambda: {"trainplan": "another"})
    keys.append(isolated.run_cell(cell("galvatron-dp"))["key"])
    assert len(set(keys)) == len(keys)
