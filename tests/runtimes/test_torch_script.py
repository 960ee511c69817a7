"""The script that a plan becomes for torch: it trains as one process of transformers does, and has what the plan uses alone."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from trainplan.execution.runtimes.export_common import write_export
from trainplan.execution.runtimes.torch.source_text import numbers
from trainplan.formulations.plan.plan import Plan, load_plan
from trainplan.profiling.models.model import model_from_config

import trainplan as tp
from tests.helpers.refusals import refused
from tests.helpers.sizes import some_and_all
from tests.helpers.torch_scripts import EPSILON

STEPS, RATE, SEED = 3, 3e-2, 5
SIZES: dict[str, Any] = {"num_hidden_layers": 3, "hidden_size": 16, "num_attention_heads": 4, "intermediate_size": 32}
LLAMA = {**SIZES, "vocab_size": 41, "max_position_embeddings": 8, "num_key_value_heads": 2, "pad_token_id": None}
TINY: dict[str, dict[str, Any]] = {
    "gpt2": {"model_type": "gpt2", "n_layer": 3, "n_embd": 16, "n_head": 2, "vocab_size": 40, "n_positions": 8}
    | dict.fromkeys(("attn_pdrop", "resid_pdrop", "embd_pdrop"), 0.0),
    "llama": {"model_type": "llama", **LLAMA},
    "tied": {"model_type": "llama", **LLAMA, "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", **LLAMA, "head_dim": 6, "tie_word_embeddings": True},
    **{family: {"model_type": family, **LLAMA} for family in ("mistral", "qwen2", "phi3", "nemotron")},
    "glm": {"model_type": "glm", **LLAMA, "head_dim": 4},
    "windows": {"model_type": "mistral", **LLAMA, "sliding_window": 3},
    "some windows": {"model_type": "qwen2", **LLAMA, "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
}


def plan_of(
    family: str,
    strategy: str,
    world: int,
    micro_batches: int = 1,
    cuts: Sequence[int] = (),
    *,
    again: Sequence[int] = (),
    modules: str = "",
    chunks: int = 1,
    samples: int = 8,
    dtype: str = "float64",
    **fields: Any,
) -> Plan:
    """A plan of a tiny model. cuts: first units of stages after the first; again: units that are recomputed; modules: of
    layers."""
    model = model_from_config(TINY[family], "config", name=family).in_dtype(dtype)
    texts = [strategy + "-ckpt" * (index in again) for index in range(len(model.units))]
    if modules:
        texts[1:-1] = [f"{strategy}-ckpt:{modules}"] * (len(texts) - 2)
    bounds, depth = [0, *cuts, len(model.units)], (len(cuts) + 1) // chunks
    size = world // depth
    stages = [
        {"ranks": list(range(x % depth * size, (x % depth + 1) * size)), "first_unit": first, "last_unit": end - 1}
        for x, (first, end) in enumerate(pairwise(bounds))
    ]
    plan = {
        "model": model.shape(),
        "model_digest": model.digest,
        "world": world,
        "memory_bytes": 2**34,
        "batch": {"global_samples": samples, "micro_batches": micro_batches},
        "schedule": "interleaved-1f1b" if chunks > 1 else "1f1b",
        "stages": stages,
        "units": [{"name": unit.name, "strategy": text} for unit, text in zip(model.units, texts, strict=True)],
    }
    return load_plan({**plan, **fields})


MASTERS = {"dtype": "bfloat16", "precision": {"master": "float32"}}
QUICK = {
    "dp2": plan_of("gpt2", "dp2", 2, 2),
    "two stages, recomputation": plan_of("gpt2", "single", 2, 4, [4], again=(1, 2, 5)),
    "tied table, two stages, tp2": plan_of("tied", "tp2", 4, 2, [4]),
    "windows": plan_of("windows", "sdp2", 2, 2),
}
OTHERS = {
    "one": plan_of("tied", "single", 1, 2),
    "sdp2": plan_of("gpt2", "sdp2", 2, 2),
    "sdp2-zero2": plan_of("llama", "sdp2-zero2", 2, 2),
    "sdp2-zero1": plan_of("tied", "sdp2-zero1", 2, 2, again=(3, 7)),
    "tp2": plan_of("llama", "tp2", 2, 2),
    "tp2, tied": plan_of("tied", "tp2", 2, modules="activation"),
    "tp2-sp": plan_of("llama", "tp2-sp", 2, 2, modules="activation+attention"),
    "tp2-sp, tied, norms of heads": plan_of("qwen3", "tp2-sp", 2),
    "dp2-sdp2": plan_of("gpt2", "dp2-sdp2", 4, 2, modules="activation+attention"),
    "dp2-tp2": plan_of("llama", "dp2-tp2", 4, 2),
    "sdp2-tp2": plan_of("tied", "sdp2-tp2", 4, 2),
    "tp2-sdp2-zero2-sp": plan_of("llama", "tp2-sdp2-zero2-sp", 4, 2),
    "tied table, two stages, dp2-tp2-sp": plan_of("tied", "dp2-tp2-sp", 8, 2, [4]),
    "windows, tp2-sp": plan_of("windows", "tp2-sp", 2, modules="attention"),
    "some windows": plan_of("some windows", "single", 2, 2, [4], again=(1, 3)),
    "gpipe": plan_of("llama", "sdp2", 4, 4, [4], again=range(1, 7), schedule="gpipe"),
    "interleaved": plan_of("gpt2", "dp2", 4, 4, [2, 4, 6], chunks=2),
    "fewer micro-batches than stages": plan_of("gpt2", "single", 4, 2, [2, 4, 6]),
    "stages, shards, tensors, tied": plan_of("tied", "sdp2-tp2-zero2-sp", 8, 2, [4], again=(1, 2)),
    **{family: plan_of(family, "sdp2", 2, modules="activation") for family in ("phi3", "glm", "nemotron")},
    **{f"{family}, tp2": plan_of(family, "tp2-sp", 2) for family in ("mistral", "qwen2")},
}
MIXED = {
    "masters": plan_of("llama", "dp2-sdp2-zero2", 4, 2, **MASTERS),
    "masters, copies, stages": plan_of("llama", "dp2", 4, 4, [3], **MASTERS),
}
LARGEST = plan_of(
    "qwen3", "tp2-dp2-sdp2-zero2-sp", 16, 4, [2, 4, 6], chunks=2, samples=16, modules="activation+attention", **MASTERS
)


def reference(folder: Path, plan: Plan, data: Path | None) -> list[float]:
    """Losses of one process by transformers alone, which leaves the weights that it began with in `folder`/weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    tokens, count = plan.planned_model().tokens, plan.batch.global_samples
    torch.manual_seed(1)
    dtype = torch.float64 if plan.model["dtype"] == "float64" else torch.float32
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=dtype, attn_implementation="sdpa")
    for parameter in model.parameters():
        parameter.data.normal_(0.5 * (parameter.ndim == 1), 0.3)
    model.save_pretrained(folder / "weights")
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1, eps=EPSILON)
    losses, file = [], None if data is None else torch.from_numpy(np.fromfile(data, np.uint16).astype(np.int64))
    for step in range(STEPS):
        samples = range(step * count, (step + 1) * count)
        if file is None:
            drawn = [torch.Generator().manual_seed(SEED + sample) for sample in samples]
            ids = [torch.randint(model.config.vocab_size, (tokens + 1,), generator=source) for source in drawn]
        else:
            ids = [file[sample * tokens :][: tokens + 1] for sample in samples]
        batch = torch.stack(ids)
        logits = model(batch[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def ran(folders: dict[Path, tuple[int, str]]) -> dict[Path, list[float]]:
    """The losses that the scripts in these folders print on a given number of ranks with these arguments."""
    command = [sys.executable, str(Path(__file__).parents[1] / "helpers" / "torch_scripts.py")]
    for folder, (world, arguments) in folders.items():
        command += [str(folder), str(world), f"--steps {STEPS} --lr {RATE} --seed {SEED} {arguments}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=500)
    outputs = {folder: (folder / "out.txt").read_text() for folder in folders}
    assert done.returncode == 0, done.stderr + "\n".join(outputs.values())[-3000:]
    return {
        folder: list(map(float, re.findall(r"^step \d loss (\S+) seconds", text, re.M))) for folder, text in outputs.items()
    }


def check_losses(plans: dict[str, Plan], where: Path, largest: float) -> None:
    """Each script's losses are those of one process; the first plan reads its tokens from a file."""
    folders, wanted = dict[Path, tuple[int, str]](), dict[Path, list[float]]()
    data = where / "tokens.bin"
    np.random.default_rng(0).integers(40, size=STEPS * 8 * 8 + 9).astype(np.uint16).tofile(data)
    for index, (name, plan) in enumerate(plans.items()):
        folder = where / name.replace(" ", "-")
        write_export(tp.export(plan, "torch"), folder)
        wanted[folder] = reference(folder, plan, None if index else data)
        folders[folder] = plan.world, f"--weights {folder / 'weights'}" + ("" if index else f" --data {data}")
    for folder, losses in ran(folders).items():
        assert losses == pytest.approx(wanted[folder], abs=largest), folder.name
        assert max(losses) - min(losses) > 0.02


def test_scripts_train_as_one_process_does(tmp_path: Path) -> None:
    check_losses(QUICK, tmp_path, 1e-8)  # as many digits as they print


@pytest.mark.parametrize("target", ["torch", "torchtitan"])
def test_float16_is_refused_where_no_loss_is_scaled(target: str) -> None:
    with refused("model.dtype", problem="float16", fix=("bfloat16", "float32")):
        tp.export(plan_of("llama", "sdp2", 2, dtype="float16"), target)


@pytest.mark.long
def test_all_kinds_of_scripts_train_as_one_process_does(tmp_path: Path) -> None:
    check_losses(OTHERS, tmp_path, 1e-8)


@pytest.mark.long
def test_scripts_in_two_precisions_train_nearly_as_one_process_does(tmp_path: Path) -> None:
    check_losses(MIXED, tmp_path, 5e-3)


@pytest.mark.long
def test_what_a_seed_begins_with_does_not_depend_on_the_layout(tmp_path: Path) -> None:
    folders = {tmp_path / name: (OTHERS[name].world, "") for name in ("one", "sdp2-tp2")}
    for folder in folders:
        write_export(tp.export(OTHERS[folder.name], "torch"), folder)
    one, other = ran(folders).values()
    assert one == pytest.approx(other, abs=1e-8) and one[0] > one[-1] + 1e-3


# --- the text

USED = {  # words that stand in a script if the plan is of the kind that needs them, and only then
    "fully_shard": lambda plan: plan.units[0].strategy.degree("sdp") > 1 or plan.precision.master is not None,
    "MixedPrecisionPolicy": lambda plan: plan.precision.master is not None,
    "parallelize_module": lambda plan: plan.units[0].strategy.degree("tp") > 1,
    "SequenceParallel": lambda plan: plan.units[0].strategy.sequence_parallel
    or (plan.units[0].strategy.degree("tp") > 1 and plan.planned_model().family == "qwen3"),
    "PipelineStage": lambda plan: len(plan.stages) > 1,
    "checkpoint(": lambda plan: any(unit.strategy.ckpt or unit.strategy.modules for unit in plan.units),
    "sum_copies": lambda plan: plan.units[0].strategy.degree("dp") > 1 and plan.units[0].strategy.degree("sdp") == 1
    and plan.precision.master is None,
    "MICRO_BATCHES": lambda plan: plan.batch.micro_batches > 1 or len(plan.stages) > 1,
    "rotary_emb": lambda plan: plan.planned_model().family != "gpt2",
    "new_group": lambda plan: plan.planned_model().tied and len(plan.stages) > 1,
    "class Table": lambda plan: plan.planned_model().tied and len(plan.stages) == 1,
    "mesh": lambda plan: plan.world > 1 or plan.precision.master is not None,
    "trainplan": lambda plan: False,
}  # fmt: skip
IMPORTED = {"argparse", "numpy", "os", "pathlib", "safetensors", "time", "torch", "transformers", "zlib"}


def random_plan(rng: random.Random) -> Plan:
    """A random plan of any kind that the script carries."""
    levels = [("dp", rng.choice([1, 2])), ("sdp", rng.choice([1, 2])), ("tp", rng.choice([1, 2]))]
    rng.shuffle(levels)
    family = rng.choice(["llama", "tied", "qwen3"] if ("tp", 2) in levels else list(TINY))
    text = "-".join(f"{axis}{degree}" for axis, degree in levels if degree > 1) or "single"
    text += rng.choice(["", "-zero1", "-zero2"]) * (("sdp", 2) in levels) + rng.choice(["", "-sp"]) * (("tp", 2) in levels)
    cuts, chunks = rng.choice([([], 1), ([4], 1), ([1, 4, 5], 1), ([2, 4, 6], 2)])
    size = np.prod([degree for _, degree in levels])
    again = rng.sample(range(8), rng.choice([0, 2, 8]))
    modules = rng.choice(["", "activation", "attention", "activation+attention"]) if not again else ""
    fields = {} if chunks > 1 else {"schedule": rng.choice(["1f1b", "gpipe"])}
    count, more = rng.choice([2, 4]), rng.choice([{}, MASTERS])
    return plan_of(
        family, text, int(size) * (len(cuts) + 1) // chunks, count, cuts,
        again=again, modules=modules, chunks=chunks, samples=32, **more, **fields,
    )  # fmt: skip


@pytest.mark.parametrize("count", some_and_all(4, 100, 25))
def test_scripts_are_short_formatted_and_have_what_they_use_alone(tmp_path: Path, count: int) -> None:
    rng = random.Random(0)
    made = [*QUICK.values(), *MIXED.values(), LARGEST, *(OTHERS.values() if count > 4 else [])]
    plans = [*made, *(random_plan(rng) for _ in range(count))]
    for index, plan in enumerate(plans):
        text = tp.export(plan, "torch").files["train.py"]
        assert len(text.splitlines()) <= 200, str(plan.units[0])
        assert set(re.findall(r"^(?:import|from) (\w+)", text, re.M)) <= IMPORTED
        for word, needed in USED.items():
            assert (word in text) == needed(plan), (word, str(plan.units[1]), plan)
        compile(text, "train.py", "exec")
        (tmp_path / f"train{index}.py").write_text(text)
    ruff = Path(sys.executable).with_name("ruff")
    if not ruff.exists():
        pytest.skip("ruff is not installed")
    options = ["--isolated", "--line-length", "128"]
    for command in (["format", "--check"], ["check", "--select", "E,F,I,B,UP"]):
        done = subprocess.run([ruff, *command, *options, tmp_path], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([3], "{3}"),
        ([1, 2], "{1, 2}"),
        ([1, 2, 3, 4], "range(1, 5)"),
        ([0, 2, 4, 6, 9], "{*range(0, 7, 2), 9}"),
        ([1, 2, 5, 8, 11, 12], "{1, *range(2, 12, 3), 12}"),
    ],
)
def test_numbers_are_written_as_ranges(values: list[int], text: str) -> None:
    assert numbers(values) == text and sorted(eval(text)) == values


def test_long_lists_of_numbers_are_written_in_lines() -> None:
    values = sorted(random.Random(0).sample(range(1000), 200))
    text = numbers(values)
    assert sorted(eval(text)) == values and max(map(len, text.splitlines())) <= 110
