"""Checkpoints of lowered plans: resumed under other plans, left whole by a killed rank, refused where they do not fit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from trainplan.execution.launch.report import RunReport
from trainplan.formulations.plan.plan import Plan

import trainplan as tp
from tests.helpers.calls import call
from tests.helpers.plans import GPT2, UNTIED, plan_of
from tests.helpers.refusals import refused

pytest.importorskip("torch")

UNITS = len(GPT2.units)
MIXED = ["sdp2-tp2", "dp2-tp2-sp", "sdp4-zero1", "dp4", "tp4", "sdp2-tp2-ckpt", "dp2-sdp2", "tp2-sdp2"]
assert len(MIXED) == UNITS


def mixed() -> Plan:
    return plan_of(GPT2, MIXED, 4, 8, 2)


def equal(report: RunReport) -> None:
    """The run, with the steps before it, is what one process does in all of them."""
    for difference in (report.gradient_difference, report.parameter_difference, report.loss_difference):
        assert difference is not None and difference < 1e-9


@pytest.mark.long
def test_a_run_goes_on_under_any_plan(tmp_path: Path) -> None:
    begun = tp.run(mixed(), steps=2, checkpoint=tmp_path, checkpoint_every=1)
    assert begun.runtime == "torch" and sorted(os.listdir(tmp_path)) == ["step-00000001", "step-00000002"]
    pipeline = plan_of(GPT2, ["single"] * UNITS, 2, 8, 4, [3])
    further = tp.run(pipeline, steps=3, resume=tmp_path, checkpoint=tmp_path)
    alone = tp.run(plan_of(GPT2, ["single-ckpt"] * UNITS, 1, 8), steps=4, resume=tmp_path)
    again = tp.run(mixed(), steps=2, resume=tmp_path / "step-00000001")
    for report in (begun, further, alone, again):
        equal(report)
    assert [len(report.losses) for report in (begun, further, alone, again)] == [2, 1, 1, 1]
    assert again.losses == pytest.approx(begun.losses[1:], abs=1e-12)
    with refused("seed", problem=(0, 1), fix="seed 0"):
        tp.run(pipeline, steps=4, resume=tmp_path, seed=1)
    with refused("model_digest"):
        tp.run(plan_of(UNTIED, ["single"] * len(UNTIED.units), 1), steps=4, resume=tmp_path)
    with refused("steps", problem=(3, "step-00000003"), fix=3):
        tp.run(pipeline, steps=3, resume=tmp_path)


@pytest.mark.long
def test_a_killed_rank_leaves_whole_checkpoints(tmp_path: Path) -> None:
    path, folder = tmp_path / "plan.json", tmp_path / "kept"
    path.write_text(mixed().model_dump_json())
    command = [sys.executable, "-m", "trainplan", "run", str(path), "--steps", "100000", "--no-compare"]
    command += ["--checkpoint", str(folder), "--checkpoint-every", "1"]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while running.poll() is None and not (folder / "step-00000003").exists():
        time.sleep(0.1)
    (launcher,) = _children(running.pid)
    os.kill(_children(launcher)[-1], signal.SIGKILL)
    _, reported = running.communicate()
    assert running.returncode != 0 and "was killed (SIGKILL)" in reported
    done = max(int(name.removeprefix("step-")) for name in os.listdir(folder) if name.startswith("step-"))
    assert done >= 3
    equal(tp.run(plan_of(GPT2, ["tp2-sp"] * UNITS, 2, 8, 2), steps=done + 2, resume=folder))


def _children(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def test_what_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    plan = plan_of(UNTIED, ["dp2"] * len(UNTIED.units), 2)
    (tmp_path / "step-00000005").mkdir()  # without what says that it is whole
    with refused("resume", problem=tmp_path, fix="--checkpoint"):
        tp.run(plan, resume=tmp_path)
    with refused("checkpoint_every", problem=2, fix="--checkpoint"):
        tp.run(plan, checkpoint_every=2)
    with refused("checkpoint_every", problem=0, fix=1):
        tp.run(plan, checkpoint=tmp_path, checkpoint_every=0)
    with refused("checkpoint", problem="--by program", fix="--by torch"):
        tp.run(plan, checkpoint=tmp_path, by="program")
    shared = plan_of(UNTIED, ["dp2"] * len(UNTIED.units), 2, 6, 2, shares=[2, 1])
    with refused("batch.shares", problem=("[2, 1]", "torch")):
        tp.run(shared, checkpoint=tmp_path)


def test_the_command_goes_on_from_a_folder_under_another_plan(tmp_path: Path) -> None:
    """Three steps in all: two under one plan on two ranks, the third under another on one."""
    two, one, kept = tmp_path / "two.json", tmp_path / "one.json", tmp_path / "kept"
    two.write_text(plan_of(UNTIED, ["dp2"] * len(UNTIED.units), 2).model_dump_json())
    one.write_text(plan_of(UNTIED, ["single"] * len(UNTIED.units), 1).model_dump_json())
    first = call("run", two, "--steps", "2", "--no-compare", "--checkpoint", kept)
    assert first.returncode == 0, first.stderr
    second = call("run", one, "--steps", "3", "--no-compare", "--resume", kept, "--json")
    assert second.returncode == 0, second.stderr
    whole = call("run", one, "--steps", "3", "--no-compare", "--json")
    (last,), losses = (json.loads(entry.stdout)["losses"] for entry in (second, whole))
    assert last == pytest.approx(losses[2], rel=1e-12)
