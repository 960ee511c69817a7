"""The screen of `import-run`, as it is printed at 80, 100 and 160 columns; run as a module, this writes the screens anew."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from rich.console import Console

import trainplan as tp
from tests.helpers.calls import call
from trainplan.command import printing, render
from trainplan.imported_runs.assess import JudgedRun
from trainplan.screens.run import run_screen

SCREENS, WIDTHS = Path(__file__).parent / "screens", (80, 100, 160)
FILES = {
    "megatron.sh": """#!/bin/bash
torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 4 --sequence-parallel \\
  --use-distributed-optimizer --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \\
  --group-query-attention --num-query-groups 8 --seq-length 4096 --max-position-embeddings 8192 --swiglu \\
  --normalization RMSNorm --disable-bias-linear --position-embedding-type rope --rotary-base 500000 \\
  --untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0 --vocab-size 128256 --bf16 --lr \\
  3e-4 --train-iters 1000 --micro-batch-size 1 --global-batch-size 64 --recompute-granularity full \\
  --recompute-method uniform --recompute-num-layers 1
""",
    "torchtitan.toml": """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
steps = 1000
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 1
[activation_checkpoint]
mode = "full"
""",
    "deepspeed.json": """{"bf16": {"enabled": true}, "zero_optimization": {"stage": 3, "overlap_comm": true},
 "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 4}
""",
}
LARGE: dict[str, dict[str, Any]] = {"model": "llama3-8b", "sequence": 4096, "recompute": "none"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "import-deepspeed": ("deepspeed.json", {"cluster": "a100:8", "model": "gpt2-xl", "sequence": 1024, "recompute": "none"}),
    "import-megatron": ("megatron.sh", {"cluster": "h100:8"}),
    "import-torchtitan": ("torchtitan.toml", {"cluster": "h100:8"}),
    "import-does-not-fit": ("deepspeed.json", {"cluster": "a100:8", **LARGE}),
}


@cache
def judged(name: str) -> JudgedRun:
    """A judged file; without the independent check, whose evidence is gathered for a given number of seconds."""
    file, requested = CASES[name]
    with TemporaryDirectory() as folder:
        (path := Path(folder) / file).write_text(FILES[file])
        run = tp.import_run(path, time_limit=None, **requested)
    return replace(run, configuration=replace(run.configuration, where=file), checked_ns=None)


def printed(name: str, width: int) -> str:
    """The screen of a run, as wide as a terminal."""
    text = StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(printing, "out", Console(file=text, width=width, highlight=False, soft_wrap=True, emoji=False))
        patch.setenv("COLUMNS", str(width))
        render.rows_of_screen(run_screen(judged(name), []))
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.long) if n else name for n, name in enumerate(CASES)])
def test_the_screen_is_as_it_was(name: str) -> None:
    for width in WIDTHS:
        text = printed(name, width)
        assert max(map(len, text.splitlines())) <= width
        assert text == (SCREENS / f"{name}-{width}.txt").read_text()


def test_the_command_prints_the_screen_and_keeps_the_best_plan(tmp_path: Path) -> None:
    """At most 80 columns in a pipe; the plan that it keeps is predicted to take what the screen says."""
    path, best = tmp_path / "deepspeed.json", tmp_path / "best.json"
    path.write_text(FILES["deepspeed.json"])
    requested = ("--cluster", "a100:8", "--model", "gpt2-xl", "--seq", "1k", "--recompute", "full", "--gap", "0.05")
    done = call("import-run", path, *requested, "--best-output", best)
    labels = [line.split("  ")[0] for line in done.stdout.splitlines() if line[:1].isupper()]
    assert labels[:5] == ["FITS", "RUN", "SPEED", "BEST?", "CHANGE"] and "NEXT" in labels
    shown = [line for line in done.stdout.splitlines() if str(tmp_path) not in line]
    assert max(map(len, shown)) <= 80 and "(independent check)" in " ".join(done.stdout.split())
    step = call("simulate", best, "--cluster", "a100:8").stdout.split("step", 1)[1].split()
    assert f"best known for DeepSpeed: {step[0]} {step[1].rstrip(chr(44))} (" in " ".join(done.stdout.split())


def test_a_search_that_was_cut_off_says_so() -> None:
    """By the time limit, with what would find more; a search that was done has no such row."""
    whole = judged("import-deepspeed")
    assert whole.best is not None and whole.best is whole.within
    done = replace(whole.best, answer=replace(whole.best.answer, result=replace(whole.best.result, stopped=None)))
    cut = replace(done, answer=replace(done.answer, result=replace(done.result, stopped="time limit")))
    assert "STOPPED" not in dict(run_screen(replace(whole, best=done, within=done), []))
    rows = dict(run_screen(replace(whole, best=cut, within=cut), []))
    assert "time limit" in str(rows["STOPPED"]) and "longer --time-limit" in str(rows["STOPPED"])


if __name__ == "__main__":
    for case in CASES:
        for columns in WIDTHS:
            (SCREENS / f"{case}-{columns}.txt").write_text(printed(case, columns))
