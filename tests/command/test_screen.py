"""The first screen of a plan, as it is printed at 80, 100 and 160 columns; run as a module, this writes the screens anew."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import trainplan as tp
from tests.helpers.calls import call
from trainplan.command import printing, render
from trainplan.planning.every_runtime import SECONDS, RuntimePlan, by_runtime
from trainplan.planning.result import PlanningResult
from trainplan.screens.plan import screen

SCREENS = Path(__file__).parent / "screens"
WIDTHS = (80, 100, 160)
QUICK: dict[str, dict[str, Any]] = {
    "gpt2": {"model": "gpt2", "cluster": "cpu-4", "batch": 8, "sequence": 64},
    "longest-sequence": {"model": "gpt2", "cluster": "64xA100", "batch": 64, "gap": 0.1},
    "no-programs": {"model": "t5-large", "cluster": "a100:8", "batch": 16, "sequence": 512},
    "does-not-fit": {"model": "gpt2", "cluster": "cpu-4", "batch": 8, "sequence": 64, "memory": "300MiB"},
    "one-device": {"model": "qwen3-0.6b", "cluster": "1xH100", "batch": 4, "sequence": 4096},
}
LLAMA = {"model": "llama-3.1-8b", "sequence": 8192, "batch": 64}
LONG: dict[str, dict[str, Any]] = {
    "megatron-70b": {"model": "llama-3.1-70b", "cluster": "h100:8x8", "batch": 512, "sequence": 8192, "for_": "megatron"},
    "runtimes-70b": {"model": "llama-3.1-70b", "cluster": "h100:8x8", "batch": 512, "sequence": 8192},
    "torchtitan-8b": {**LLAMA, "cluster": "8xH100", "for_": "torchtitan"},
    "deepspeed-8b": {**LLAMA, "cluster": "8xH200", "for_": "deepspeed"},
    "accelerate-8b": {"model": "qwen3-8b", "cluster": "8xH200", "batch": 64, "sequence": 4096, "for_": "accelerate"},
    "fp8": {**LLAMA, "cluster": "h100:8", "precision": "fp8", "for_": "megatron"},
    "405b-does-not-fit": {"model": "llama-3.1-405b", "cluster": "h100:8x4", "batch": 64, "sequence": 8192},
    "mixed-devices": {"like": "amp", "model": "amp-gpt2", "cluster": "amp-p3-16", "batch": 32, "dtype": "float16"},
}
LIMITLESS = 1e6
TIMED = ("in any runtime", "without --")  # what is found of prices depends on the machine's speed


@cache
def answer(name: str) -> PlanningResult:
    """The answer to a request."""
    return tp.plan(**{"time_limit": None, **(QUICK | LONG)[name]})  # which a slow machine would reach


@cache
def runtimes(name: str) -> tuple[RuntimePlan, ...]:
    """The best plans of all runtimes for a request, however long they take."""
    return by_runtime(answer(name), LIMITLESS)


def printed(name: str, width: int) -> str:
    """The screen of a request as wide as a terminal, without what depends on the machine's speed."""
    text = StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(printing, "out", Console(file=text, width=width, highlight=False, soft_wrap=True, emoji=False))
        patch.setenv("COLUMNS", str(width))
        render.answered(answer(name), Path("plan.json"))
        render.runtimes(runtimes(name), SECONDS)
    lines = text.getvalue().splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines if not line.strip().startswith(TIMED))


def test_attention_that_keeps_scores_is_reported(tmp_path: Path) -> None:
    """On the first screen, in all of the answer, and of the model alone."""
    path = tmp_path / "config.json"
    sizes = {
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_attention_heads": 8,
        "num_hidden_layers": 2,
        "vocab_size": 4096,
    }
    kind = {"model_type": "internlm2", "max_position_embeddings": 2048, "attn_implementation": "eager"}
    path.write_text(json.dumps(kind | sizes | {"num_key_value_heads": 8, "vocab_size": 4096, "bias": False}))
    request = ("plan", path, "h100:2", "--batch", "8", "--sequence", "1024")
    for words in (request, (*request, "--details"), ("model", "show", path, "--sequence", "1024")):
        assert "eager, as attn_implementation of its configuration says" in " ".join(call(*words).stdout.split())


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.long) for name in LONG)])
def test_the_screen_is_as_it_was(name: str) -> None:
    for width in WIDTHS:
        text = printed(name, width)
        assert max(map(len, text.splitlines())) <= width
        assert text == (SCREENS / f"{name}-{width}.txt").read_text()


def test_a_search_that_its_time_limit_ended_says_so() -> None:
    made = answer("gpt2")
    stopped = replace(made, answer=replace(made.answer, result=replace(made.result, stopped="time limit")))
    shown = [dict(screen(entry)).get("STOPPED") for entry in (made, stopped)]
    assert shown == [None, [["by the time limit, before the search was done: this is the best known until then"]]]


def test_the_screen_says_what_simulate_says(tmp_path: Path) -> None:
    """Step and memory are the same in both, in the digits of both."""
    path = tmp_path / "plan.json"
    shown = call("plan", "gpt2", "cpu-4", "--batch", "8", "--sequence", "64", "-o", path)
    assert shown.returncode == 0 and "\x1b" not in shown.stdout
    rows = dict(line.split(maxsplit=1) for line in shown.stdout.splitlines() if line[:1].isupper())
    step = next(line for line in call("simulate", path).stdout.splitlines() if line.startswith("step"))
    assert rows["SPEED"].split(" a step")[0] in step
    assert f"trainplan run {path} --steps 3" in rows["NEXT"]
    assert "independent check" in rows["BEST?"]
    detailed = call("plan", "gpt2", "cpu-4", "--batch", "8", "--sequence", "64", "--details").stdout
    assert "FITS" not in detailed and "proven lower bound" in detailed


if __name__ == "__main__":
    SCREENS.mkdir(exist_ok=True)
    for entry in QUICK | LONG:
        for columns in WIDTHS:
            (SCREENS / f"{entry}-{columns}.txt").write_text(printed(entry, columns))
