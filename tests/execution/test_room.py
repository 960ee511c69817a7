"""Plans that need more memory than they were made for are warned of; where a device has less, they are refused."""

from __future__ import annotations

import pytest
from trainplan.execution.analysis.memory.peak import Walk, memory_walk
from trainplan.execution.launch import memory_check
from trainplan.execution.launch.processes import sound_programs
from trainplan.formulations.plan.plan import Plan, Predicted
from trainplan.profiling.base.errors import InputWarning
from trainplan.profiling.base.quantities import format_bytes, parse_bytes
from trainplan.profiling.base.torchrun_worker import Launched

import trainplan as tp
from tests.helpers.plans import GPT2, plan_of
from tests.helpers.refusals import assert_refusal, cautioned, refused
from trainplan.api import run_verbs


def plan_and_memory(memory_bytes: int | None = None) -> tuple[Plan, list[Walk]]:
    plan = plan_of(GPT2, ["dp2"] * len(GPT2.units), 4, 8, 2, cuts=(3,))
    analyses = [memory_walk(program) for program in sound_programs(plan, None, "serial")]
    return plan.changed(memory_bytes=memory_bytes or max(analysis.peak_bytes for analysis in analyses)), analyses


def test_enough_memory_is_no_word_worth(recwarn: pytest.WarningsRecorder) -> None:
    memory_check.check_memory("plan.json", *plan_and_memory(), None)
    assert not recwarn.list


def test_a_byte_too_few_is_warned_of_in_one_line() -> None:
    plan, analyses = plan_and_memory()
    less = plan.changed(memory_bytes=plan.memory_bytes - 1)
    with pytest.warns(InputWarning) as warned:
        memory_check.check_memory("plan.json", less, analyses, None)
    [warning] = [entry.message for entry in warned]
    assert isinstance(warning, InputWarning) and "\n" not in str(warning)
    bytes_of = [f"{entry.memory_bytes} bytes" for entry in (less, plan)]
    assert_refusal(warning.error, "memory_bytes", bytes_of, f"--memory {less.memory_bytes}B", where="plan.json")
    assert parse_bytes(str(warning).rpartition(" ")[2]) == less.memory_bytes


def test_a_smaller_run_warns_of_the_plan_as_it_is_predicted() -> None:
    plan, analyses = plan_and_memory()
    predicted = Predicted(
        step_ns=1, peak_bytes=[8, 10**12], cost_model="executed", backend="serial", profile_origin="estimated"
    )
    with cautioned("memory_bytes", problem=("rank 1", "931.3 GiB")):
        memory_check.check_memory("plan.json", plan.changed(predicted=predicted), analyses, None)


def test_a_machine_with_less_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, analyses = plan_and_memory()
    needed = sum(analysis.peak_bytes for analysis in analyses)
    monkeypatch.setattr(memory_check, "available_bytes", lambda read: needed)
    memory_check.check_memory("plan.json", plan, analyses, None)
    monkeypatch.setattr(memory_check, "available_bytes", lambda read: needed - 1)
    with refused("", where="plan.json", problem=(format_bytes(needed), 4), fix=("--scale-down", "--force")):
        memory_check.check_memory("plan.json", plan, analyses, None)


def test_a_plan_that_this_machine_cannot_hold_is_refused_before_it_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its own prediction, in a moment; a smaller model, or force, goes on."""
    peaks = [2**40, 2**39]
    predicted = Predicted(step_ns=1, peak_bytes=peaks, cost_model="executed", backend="serial", profile_origin="estimated")
    plan = plan_of(GPT2, ["single"] * len(GPT2.units), 2, 8, 2, cuts=(3,)).changed(predicted=predicted)
    monkeypatch.setattr(memory_check, "available_bytes", lambda read: sum(peaks) - 1)
    compiled: list[bool] = []

    def stop(plans: list[Plan], *, force: bool, **_: object) -> None:
        compiled.append(force)
        raise KeyboardInterrupt

    monkeypatch.setattr(run_verbs, "run_plans", stop)
    with refused("", where="plan", problem=("1.5 TiB", 2), fix=("1.5 TiB", "--scale-down", 4, "--force")):
        tp.run(plan)
    assert not compiled
    for more in ({"scale_down": 4}, {"force": True}):
        with pytest.raises(KeyboardInterrupt):
            tp.run(plan, **more)
    assert compiled == [False, True]
    monkeypatch.setattr(memory_check, "available_bytes", lambda read: sum(peaks))
    with pytest.raises(KeyboardInterrupt):
        tp.run(plan)


def test_ranks_of_other_machines_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = [2**40, 2**39]
    predicted = Predicted(step_ns=1, peak_bytes=peaks, cost_model="executed", backend="serial", profile_origin="estimated")
    plan = plan_of(GPT2, ["single"] * len(GPT2.units), 2, 8, 2, cuts=(3,)).changed(predicted=predicted)
    monkeypatch.setattr(memory_check, "available_bytes", lambda read: 2**39)
    memory_check.check_predicted("plan", plan, None, Launched(1, 2, 0, 1))
    with refused("", problem=("1 TiB", "1 rank"), fix="512 GiB"):
        memory_check.check_predicted("plan", plan, None, Launched(0, 2, 0, 1))


def test_a_gpu_with_less_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    class Properties:
        total_memory = 1000

    plan, analyses = plan_and_memory()
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda gpu: Properties())
    with refused("", where="plan.json", problem="rank 0", fix=("GPU 3", "1000 B", "--memory 1000B")):
        memory_check.check_memory("plan.json", plan, analyses, (3, 2, 1, 0))
