"""Trials on real processes: what runs is timed, what goes wrong is a result."""

from pathlib import Path
from typing import Any

import pytest
import torch
from trainplan.execution.launch import trials
from trainplan.execution.launch.processes import run_plans
from trainplan.execution.launch.trials import Trial, fastest, run_trials
from trainplan.execution.run.settings import gpus
from trainplan.formulations.plan.plan import Plan, Predicted

from tests.helpers.faulty import FULL, HANGING, KILLED, RAISING, SPOILED
from tests.helpers.plans import GPT2, plan_of, uneven_plan
from tests.helpers.refusals import refused

ROOT = Path(__file__).parents[2]


def _plan(samples: int = 4) -> Plan:
    return plan_of(GPT2, ["dp2"] * len(GPT2.units), 2, samples)


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many plans each start of processes was given."""
    found: list[int] = []
    run_workers = trials.run_workers

    def counted(target: str, world: int, job: Any, **options: Any) -> Any:
        found.append(len(job["jobs"]))
        return run_workers(target, world, job, **options)

    monkeypatch.setattr(trials, "run_workers", counted)
    return found


def test_plans_that_run_take_one_start(starts: list[int]) -> None:
    predicted = Predicted(step_ns=123, peak_bytes=[1], cost_model="executed", backend="serial", profile_origin="estimated")
    large = GPT2.with_fields(n_embd=256, n_inner=1024, vocab_size=2000)
    plans = [
        plan_of(large, ["dp2"] * len(large.units), 2, 16).changed(predicted=predicted),
        uneven_plan(GPT2, [2, 1]),
        plan_of(GPT2, ["single"] * len(GPT2.units), 2, 4, 2, cuts=[3]),
    ]
    events: list[dict[str, Any]] = []
    found = run_trials(plans, steps=5, warmup=2, seed=3, progress=events.append)
    assert starts == [3]
    assert [trial.index for trial in found] == [0, 1, 2]
    assert {trial.status for trial in found} == {"ran"}
    assert [trial.predicted_step_ns for trial in found] == [123, None, None]
    for trial, report in zip(found, run_plans(plans, steps=7, seed=3, compare=False), strict=True):
        assert trial.losses == report.losses, "seven steps, of which two are not timed"
        assert trial.message is None
        assert trial.spread is not None
        seen = [event["seconds"] * 1e9 for event in events if event["plan"] == trial.index and "seconds" in event]
        assert len(seen) == 7
        # The slowest rank's median is at least rank 0's, and the ranks meet in each step.
        assert sorted(seen[2:])[2] - 1 <= trial.step_ns <= 2 * sum(seen)  # type: ignore[operator]
        assert {"plan": trial.index, "status": "ran", "step_ns": trial.step_ns} in events
    best = fastest(found)
    assert best is not None
    assert best.index != 0, "two hundred times the work"
    assert best.step_ns == min(trial.step_ns or 0 for trial in found)


@pytest.mark.long
def test_a_plan_that_hangs_is_a_result(starts: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(trials, "TARGET", "tests.helpers.faulty:try_rank")
    found = run_trials([_plan(HANGING), _plan(4)], steps=2, warmup=0, timeout=1000)
    assert [(trial.status, trial.message) for trial in found] == [
        ("timed-out", "2 steps took longer than 1000 s"),
        ("ran", None),
    ]
    assert starts == [2, 1]


@pytest.mark.long
def test_what_goes_wrong_is_a_result_and_the_others_go_on(starts: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Real processes that are killed, raise, hang or lack memory, and one that would run if none had run there before."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(trials, "TARGET", "tests.helpers.faulty:try_rank")
    plans = [_plan(samples) for samples in (4, KILLED, SPOILED, RAISING, FULL, 8, HANGING, 4)]
    found = run_trials(plans, steps=2, warmup=0, timeout=1000)
    expected = ["ran", "out-of-memory", "ran", "failed", "out-of-memory", "ran", "timed-out", "ran"]
    assert [trial.status for trial in found] == expected
    assert [trial.index for trial in found] == list(range(8))
    # 0 runs; 1 fails again first; 2 runs; 3 fails again first; 4 fails first; 5 runs and 6 takes too long; 7 runs.
    assert starts == [8, 7, 6, 5, 4, 3, 1]
    reported = [trial.message for trial in found]
    assert "process 1 of 2 was killed (SIGKILL)" in str(reported[1])
    assert reported[3] == "process 1 of 2: ValueError: no such luck"
    assert "MemoryError" in str(reported[4])
    assert reported[6] == "2 steps took longer than 1000 s"
    for trial in found:
        ran = trial.status == "ran"
        assert (trial.message is None) == (trial.step_ns is not None) == (trial.spread is not None) == ran
        assert len(trial.losses) == (2 if ran else 0)
    assert found[0].losses == found[7].losses


@pytest.mark.long
def test_a_model_that_no_machine_holds_is_out_of_memory(starts: list[int]) -> None:
    """torch's own words: an embedding of more bytes than addresses."""
    huge = GPT2.with_fields(vocab_size=10**7, n_embd=2**23)
    assert huge.units[0].sublayer.parameter_count(1, 0) * 8 > 2**48
    plans = [plan_of(huge, ["dp2"] * len(huge.units), 2, 4), _plan()]
    found = run_trials(plans, steps=1, warmup=0)
    assert [trial.status for trial in found] == ["out-of-memory", "ran"]
    assert "allocate memory" in str(found[0].message)
    assert starts == [2, 1]
    assert fastest(found) == found[1]
    assert fastest(found[:1]) is None


@pytest.mark.long
def test_processes_that_cannot_start_fail_every_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "TARGET", "trainplan.execution.launch.trials:no_such_function")
    found = run_trials([_plan(), _plan()], steps=1)
    assert [trial.status for trial in found] == ["failed"] * 2
    assert "no_such_function" in str(found[0].message)


def test_the_fastest_is_the_earlier_of_equals() -> None:
    made = [Trial(index, "ran", step, 0.0, [1.0], None, None) for index, step in enumerate((7, 5, 5))]
    assert fastest(made) == made[1]
    assert fastest([]) is None
    assert run_trials([]) == []


def test_bad_arguments_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for options, refusal in (
        ({"steps": 0}, ("steps", 0, 1)),
        ({"warmup": -1}, ("warmup", -1, 0)),
        ({"timeout": 0}, ("timeout", 0, 0)),
        ({"timeout": float("inf")}, ("timeout", "inf", 600)),
        ({"device": "cuda"}, ("device", ("cuda", 1, 2), ("cpu", "--transport staged"))),
        ({"device": "cuda", "backend": "fused"}, ("backend", "fused", ("--backend serial", "--device cpu"))),
        ({"device": "tpu"}, ("device", "tpu", ("cpu", "cuda"))),
    ):
        if "device" in options:
            with refused(*refusal):
                run_plans([_plan()], **options)  # type: ignore[arg-type]
        with refused(*refusal):
            run_trials([_plan()], **options)  # type: ignore[arg-type]


def test_placements_name_the_gpus_of_one_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes keep their GPU: plans of other placements wait for another start. On the CPU a placement is nothing."""
    plans = [_plan(), _plan().changed(placement=[1, 0]), _plan().changed(placement=[0, 1])]
    assert [gpus(plan, "cuda") for plan in plans] == [(0, 1), (1, 0), (0, 1)]
    assert [gpus(plan, "cpu") for plan in plans] == [None] * 3
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with refused("placement"):
        run_plans(plans, device="cuda")

    def started(target: str, world: int, job: Any, *, backend: str, progress: Any, **options: Any) -> None:
        groups.append((job["gpus"], len(job["jobs"]), backend))
        for number in range(len(job["jobs"])):
            progress({"ended": number, "losses": [1.0], "seconds": [0.5]})

    groups: list[Any] = []
    monkeypatch.setattr(trials, "run_workers", started)
    found = run_trials(plans, steps=1, warmup=0, device="cuda")
    assert groups == [((0, 1), 2, "cpu:gloo,cuda:nccl"), ((1, 0), 1, "cpu:gloo,cuda:nccl")]
    assert [trial.step_ns for trial in found] == [500_000_000] * 3
