"""The commands for GPUs, as far as they go without one: that each works, and writes what it finds as it goes."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
import torch.distributed as dist

from tests.gpu import correctness, resources, speed
from tests.gpu.parts import Part, Result, Settings, command, run_parts


@pytest.fixture(autouse=True)
def _no_group_is_left() -> Iterator[None]:
    """The commands open torch's default group in this process, where other tests open their own."""
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


COMMANDS = {"correctness": correctness.PARTS, "resources": resources.PARTS, "speed": speed.PARTS}


def results(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("resources", ["bandwidth", "attention"]),
        pytest.param("correctness", ["one-process", "delays"], marks=pytest.mark.long),
        pytest.param("speed", ["ranks", "step", "host"], marks=pytest.mark.long),
    ],
)
def test_commands_run_what_needs_no_gpu(name: str, parts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    path = tmp_path / "results.jsonl"
    words = ["--device", "cpu", "--quick", "--output", str(path)]
    for part in parts:
        words += ["--part", part]
    assert command(name, COMMANDS[name], words) == 0
    lines = results(path)
    assert lines[0]["part"] == "machine"
    assert {line["part"] for line in lines[1:]} == set(parts)
    for part in COMMANDS[name]:
        ran = [line for line in lines if line["part"] == part.name]
        if part.name in parts and not part.on_cpu:
            assert ran == [{"part": part.name, "not run": "needs a GPU"}]
        elif part.name in parts:
            assert len(ran) > 2
            assert "seconds" in ran[-1]


def test_without_a_gpu_nothing_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    path = tmp_path / "results.jsonl"
    for name, parts in COMMANDS.items():
        assert command(name, parts, ["--output", str(path)]) == 0
        assert "torch finds no GPU" in capsys.readouterr().out
    assert not path.exists()


def test_what_fails_or_has_no_time_left_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    def fails(settings: Settings) -> Iterator[Result]:
        yield {"number": 1}
        raise ArithmeticError("on purpose")

    def wrong(settings: Settings) -> Iterator[Result]:
        yield {"right": False}

    def right(settings: Settings) -> Iterator[Result]:
        yield {"right": True}

    out, settings = io.StringIO(), Settings("cpu")
    assert not run_parts([Part("fails", fails), Part("right", right)], settings, out)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line for line in lines if "number" in line] == [{"part": "fails", "number": 1}]
    assert {"part": "fails", "failed": "ArithmeticError: on purpose"} in lines
    assert {"part": "right", "right": True} in lines
    assert not run_parts([Part("wrong", wrong)], settings, io.StringIO())
    assert run_parts([Part("right", right)], settings, io.StringIO())
    out = io.StringIO()
    assert not run_parts([Part("right", right, least_s=99.0)], settings, out, budget_s=9.0)
    assert "not run" in out.getvalue()


def test_time_in_spans_is_counted_once() -> None:
    kernels, copies = [(0, 10), (5, 20), (30, 40)], [(15, 35)]
    assert resources.merged(kernels) == [(0, 20), (30, 40)]
    assert resources.covered_ns(kernels) == 30
    assert resources.both_ns(kernels, copies) == 10
    assert resources.both_ns(kernels, []) == 0


def test_the_three_commands_have_the_parts_in_their_order_and_time_for_them() -> None:
    names = [part.name for parts in COMMANDS.values() for part in parts]
    assert names == [
        *("one-process", "delays", "synchronisations"),
        *("peaks", "bandwidth", "overlap", "attention"),
        *("ranks", "nccl", "step", "host"),
    ]
