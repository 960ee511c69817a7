"""Runs of `trainplan run` that end early, resume, and are started by torchrun."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchmarks.training_runs import (
    begin,
    finish,
    lines_of,
    on_one,
    other_on_two,
    ranks_of,
    small_gpt,
    wait_for_step,
    write_tokens,
)

ROOT = Path(__file__).parents[2]
LIMIT_S = 1800.0


def test_a_run_that_is_requested_to_end_leaves_a_checkpoint_and_can_go_on(tmp_path: Path) -> None:
    plan, metrics, kept = on_one(small_gpt("float64")), tmp_path / "metrics", tmp_path / "kept"
    words = ["--data", write_tokens(tmp_path)[0], "--metrics", metrics, "--checkpoint", kept, "--no-compare"]
    process = begin(plan, tmp_path, "plan", *words, "--steps", 100000, "--checkpoint-every", 1000, stdout=-3)
    assert wait_for_step(process, metrics, 2)
    process.send_signal(signal.SIGTERM)
    assert finish(process, LIMIT_S)[0] == 4
    done = lines_of(metrics)[-1]["step"]
    assert [path.name for path in kept.iterdir()] == [f"step-{done:08d}"]
    again = begin(plan, tmp_path, "plan", *words, "--steps", done + 1, "--resume", kept, stdout=-3)
    assert finish(again, LIMIT_S)[0] == 0
    assert [line["step"] for line in lines_of(metrics)] == list(range(1, done + 2))


@pytest.mark.long
def test_a_step_that_takes_too_long_ends_the_run(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics"
    words = ["--data", write_tokens(tmp_path)[0], "--metrics", metrics, "--steps", 100000]
    process = begin(other_on_two(small_gpt("float64")), tmp_path, "plan", *words, "--step-timeout", 60, stdout=-3)
    assert wait_for_step(process, metrics, 2)
    os.kill(ranks_of(process)[1], signal.SIGSTOP)  # the launcher's own watch, by default of 30 s, is met first
    code, line = finish(process, LIMIT_S)
    assert code == 3 and "process 1 of 2 was stopped for 30 s" in line
    metrics.unlink()  # whose steps are those of the run before
    again = begin(other_on_two(small_gpt("float64")), tmp_path, "plan", *words, "--step-timeout", 1, stdout=-3)
    if wait_for_step(again, metrics, 2):
        for rank in ranks_of(again)[1:2]:  # on a busy machine some step takes a second by itself, and there are none
            with suppress(ProcessLookupError):
                os.kill(rank, signal.SIGSTOP)
    code, line = finish(again, LIMIT_S)
    assert code == 3 and "took longer than 1 s (--step-timeout)" in line


@pytest.mark.long
def test_torchrun_starts_the_ranks_of_a_plan(tmp_path: Path) -> None:
    """As two nodes of one process each: the losses of the same plan on processes of its own; SIGTERM of one ends both."""
    path = tmp_path / "plan.json"
    path.write_text(other_on_two(small_gpt("float64")).model_dump_json())
    train = write_tokens(tmp_path)[0]
    run = ["-m", "trainplan", "run", str(path), "--steps", "2", "--data", str(train), "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def nodes(*words: str) -> list[subprocess.Popen[str]]:
        start = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nnodes",
            "2",
            "--nproc-per-node",
            "1",
            "--master-port",
            "29461",
        ]
        return [
            subprocess.Popen(
                [*start, "--node-rank", str(rank), *run, *words],
                env=environment,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            for rank in range(2)
        ]

    reported = [process.communicate(timeout=LIMIT_S) for process in nodes()]
    assert reported[1][0] == "", reported
    alone = subprocess.run([sys.executable, *run], env=environment, text=True, capture_output=True, check=True)
    assert json.loads(reported[0][0])["losses"] == pytest.approx(json.loads(alone.stdout)["losses"], rel=1e-12)


@pytest.mark.long
def test_a_small_gpt_trains_as_one_process_does_and_across_a_killed_rank(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.training", "--steps", "30", "--folder", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_whatever_ends_a_run_its_checkpoints_load() -> None:
    command = [sys.executable, "-m", "benchmarks.training_faults", "--runs", "5"]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
