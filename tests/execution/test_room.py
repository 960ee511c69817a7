"""Plans that need more memory than they were made for are warned of; where a device has less, they are refused."""

from __future__ import annotations

import re

import pytest
from trainplan.execution.analysis.memory.peak import Walk, memory_walk
from trainplan.execution.launch import memory_check
from trainplan.execution.launch.processes import sound_programs
from trainplan.formulations.plan.plan import Plan, Predicted
from trainplan.profiling.base.errors import InputError, InputWarning
from trainplan.profiling.base.quantities import format_bytes, parse_bytes
from trainplan.profiling.base.torchrun_worker import Launched

import trainplan as tp
from tests.helpers.plans import GPT2, plan_of
from trainplan.api import run_verbs


def walked(memory_bytes: int | None = None) -> tuple[Plan, list[Walk]]:
    plan = plan_of(GPT2, ["dp2"] * len(GPT2.units), 4, 8, 2, cuts=(3,))
    walks = [memory_walk(program) for program in sound_programs(plan, None, "serial")]
    return plan.changed(memory_bytes=memory_bytes or max(walk.peak_bytes for walk in walks)), walks


def test_enough_memory_is_no_word_worth(recwarn: pytest.WarningsRecorder) -> None:
    memory_check.check_memory("plan.json", *walked(), None)
    assert not recwarn.list


def test_a_byte_too_few_is_warned_of_in_one_line() -> None:
    plan, walks = walked()
    less = plan.changed(memory_bytes=plan.memory_bytes - 1)
    with pytest.warns(InputWarning) as warned:
        memory_check.check_memory("plan.json", less, walks, None)
    [text] = [str(each.message) for each in warned]
    assert (
        text.startswith(f"plan.json: memory_bytes is {less.memory_bytes} bytes,") and f"needs {plan.memory_bytes} bytes" in text
    )
    assert "\n" not in text and text.endswith(f"or plan again with memory {less.memory_bytes}B")
    assert parse_bytes(text.rpartition(" ")[2]) == less.memory_bytes


def test_a_smaller_run_warns_of_the_plan_as_it_is_predicted() -> None:
    plan, walks = walked()
    predicted = Predicted(
        step_ns=1, peak_bytes=[8, 10**12], cost_model="executed", backend="serial", profile_origin="estimated"
    )
    with pytest.warns(InputWarning, match=r"rank 1 needs 931\.3 GiB as it is planned"):
        memory_check.check_memory("plan.json", plan.changed(predicted=predicted), walks, None)


def test_a_machine_with_less_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, walks = walked()
    needed = sum(walk.peak_bytes for walk in walks)
    monkeypatch.setattr(memory_check, "available_bytes", lambda read: needed)
    memory_check.check_memory("plan.json", plan, walks, None)
    monkeypatch.setattr(memory_check, "available_bytes", lambda read: needed - 1)
    with pytest.raises(InputError, match=rf"plan.json: needs {re.escape(format_bytes(needed))} for 4 ranks; this machine has"):
        memory_check.check_memory("plan.json", plan, walks, None)


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
    said = r"plan: needs 1\.5 TiB for 2 ranks; .*scale_down, such as 4, or force"
    with pytest.raises(InputError, match=said):
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
    with pytest.raises(InputError, match="for 1 rank;"):
        memory_check.check_predicted("plan", plan, None, Launched(0, 2, 0, 1))


def test_a_gpu_with_less_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    class Properties:
        total_memory = 1000

    plan, walks = walked()
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda gpu: Properties())
    with pytest.raises(InputError, match=r"plan.json: needs .* on rank 0; GPU 3 has 1000 B: plan again with memory 1000B"):
        memory_check.check_memory("plan.json", plan, walks, (3, 2, 1, 0))
