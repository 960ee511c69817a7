"""Exports in their own runtimes, which an environment apart has: TRAINPLAN_RUNTIMES names its Python.

Such a one has torch, transformers, accelerate 1.15 and torchtitan 0.3; a runtime that it does not have is skipped.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from trainplan.execution.runtimes.export_common import write_export
from trainplan.formulations.plan.plan import Plan
from trainplan.profiling.models.model import load_model

import trainplan as tp
from tests.helpers.plans import plan_of
from tests.runtimes.test_torch_script import plan_of as tiny

SHIMS, STEPS, RATE = Path(__file__).parents[1] / "helpers" / "runtimes", 3, 3e-3  # larger ones make much of gradients near 0
PYTHON = os.environ.get("TRAINPLAN_RUNTIMES", "")
KINDS: dict[str, Plan] = {
    "ZeRO-3": tiny("llama", "sdp2", 2, 2, dtype="float32"),
    "ZeRO-2, recomputed": tiny("llama", "sdp2-zero2", 2, 2, again=range(1, 7), dtype="float32"),
    "tied": tiny("tied", "sdp2", 2, 2, dtype="float32"),
    "GPT-2": tiny("gpt2", "sdp2", 2, dtype="float32"),
    "copies": tiny("llama", "dp2", 2, 2, again=range(1, 7), dtype="float32"),
    "HSDP": tiny("llama", "dp2-sdp2", 4, 2, dtype="float32"),
}


def having(module: str) -> str:
    """The Python of the environment, where it has a module; else the test is skipped."""
    if not PYTHON or subprocess.run([PYTHON, "-c", f"import {module}"], capture_output=True, check=False).returncode:
        pytest.skip(f"TRAINPLAN_RUNTIMES={PYTHON or '(unset)'} names no Python with {module}")
    return PYTHON


def of_one_process(folder: Path, world: int, data: Path) -> list[float]:
    """The output of the script's first rank, by one process that goes through all ranks; its weights are left in `weights`."""
    from transformers import AutoConfig, AutoModelForCausalLM

    run: dict[str, Any] = json.loads((folder / "run.json").read_text())
    rows, parts, length = run["micro_batch_samples"], run["micro_batches"], run["sequence"]
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**run["model"], use_cache=False), dtype=torch.float32)
    model.save_pretrained(folder / "weights")
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1)
    tokens, losses = torch.from_numpy(np.fromfile(data, np.uint16).astype(np.int64)), []
    for step in range(STEPS):
        for part in range(parts):
            for rank in range(world):
                first = ((step * parts + part) * world + rank) * rows
                batch = torch.stack([tokens[(first + row) * length % (len(tokens) - length) :][:length] for row in range(rows)])
                loss = model(input_ids=batch, labels=batch).loss
                (loss / world / parts).backward()
                if rank == 0:
                    last = loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(last)
    return losses


@pytest.mark.long
@pytest.mark.parametrize("name", list(KINDS))
def test_accelerate_trains_as_one_process_does(tmp_path: Path, name: str) -> None:
    """Filled from stored weights, and from none: the model is on no device until it is sharded."""
    python, plan, folder, data = having("accelerate"), KINDS[name], tmp_path / "run", tmp_path / "tokens.bin"
    write_export(tp.export(plan, "accelerate"), folder)
    np.random.default_rng(0).integers(40, size=999).astype(np.uint16).tofile(data)
    wanted = of_one_process(folder, plan.world, data)
    launch = (folder / "launch.sh").read_text()
    shimmed = launch.replace('"$HERE/train.py"', f'"{SHIMS / "accelerate_on_cpu.py"}" "$HERE/train.py"')
    assert shimmed != launch
    (folder / "launch.sh").write_text(shimmed)
    environment = {**os.environ, "PATH": f"{Path(python).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    environment |= {"GPUS_PER_NODE": str(plan.world), "MASTER_PORT": "0"}
    for weights in (["--weights", str(folder / "weights")], []):
        command = ["bash", str(folder / "launch.sh"), "--steps", str(STEPS), "--lr", str(RATE), "--data", str(data), *weights]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
        losses = [float(loss) for loss in re.findall(r"^step \d loss (\S+)$", done.stdout, re.MULTILINE)]
        assert len(losses) == STEPS and max(losses) < 5
        assert not weights or losses == pytest.approx(wanted, abs=1e-4)


@pytest.mark.long
@pytest.mark.parametrize(("strategy", "cuts"), [("sdp4", []), ("sdp4-tp2-zero2-sp", []), ("sdp2", [31]), ("sdp2", [31, 63])])
def test_torchtitans_own_classes_take_what_is_exported(tmp_path: Path, strategy: str, cuts: list[int]) -> None:
    """A pipeline, and one of fewer micro-batches than stages, with an order of its own."""
    python, model = having("torchtitan"), load_model("llama3-8b", 1024, "bfloat16")
    size = 8 if "tp2" in strategy else 4 if not cuts else 2
    plan = plan_of(model, [strategy] * len(model.units), size * (len(cuts) + 1), 8, 2, cuts)
    plan = plan.changed(memory_bytes=2**47, precision={"master": "float32"})
    write_export(tp.export(plan, "torchtitan", tokenizer="/llama", steps=500, learning_rate=1e-4), tmp_path)
    command = [python, str(SHIMS / "torchtitan_configuration.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    stated = {"stages": len(cuts) + 1, "steps": 500, "tokenizer": "/llama", "dataset": "c4", "rate": 1e-4}
    assert json.loads(done.stdout.splitlines()[-1]) == stated
