"""Commands with DeepSpeed's own arguments: --deepspeed alone, and the file by --deepspeed_config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from trainplan.execution.launch_files.run_configuration import RunConfiguration, UserSettings
from trainplan.profiling.models.precision import MASTERS

from tests.helpers.refusals import Facts, refused
from trainplan.imported_runs.to_plan import read

FILE: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "fp16": {"enabled": True},
    "zero_optimization": {"stage": 2},
}
MODEL = "--model_name_or_path facebook/opt-6.7b --max_seq_len 1024"


def started(folder: Path, arguments: str, file: dict[str, Any] = FILE, **stated: Any) -> RunConfiguration:
    (folder / "ds.json").write_text(json.dumps(file, indent=1))
    path = folder / "run.sh"
    path.write_text(f"deepspeed --num_gpus=8 train.py {arguments}\n")
    return read(path, user=UserSettings(**stated))


@pytest.mark.parametrize("flag", ["--deepspeed --deepspeed_config ds.json", "--deepspeed_config=ds.json --deepspeed"])
def test_the_file_says_batch_precision_and_stage(tmp_path: Path, flag: str) -> None:
    made = started(tmp_path, f"{flag} {MODEL} --gradient_checkpointing")
    assert (made.runtime, made.dtype, made.precision, made.zero) == ("deepspeed", "float16", MASTERS, 2)
    assert (made.micro_samples, made.accumulation, made.devices, made.sequence) == (4, 2, 8, 1024)
    assert (made.model, made.recomputed.of) == ("facebook/opt-6.7b", "full")
    sources = {setting.key: setting.source for setting in made.taken}
    assert sources["zero_optimization.stage"].endswith("ds.json:8"), "the line of the file"
    assert sources["max_seq_len"].endswith("run.sh:1")


def test_a_file_that_the_script_writes_is_read_with_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    text = json.dumps(FILE, indent=1)
    path.write_text(
        f"cat > own.json <<EOF\n{text}\nEOF\ndeepspeed --num_gpus=8 train.py --deepspeed --deepspeed_config own.json\n"
    )
    made = read(path, user=UserSettings(recompute="full"))
    assert (made.zero, made.dtype) == (2, "float16")
    assert next(setting for setting in made.taken if setting.key == "zero_optimization.stage").source == "own.json:8"


def test_recomputation_may_be_stated_where_no_argument_says_it(tmp_path: Path) -> None:
    alone = "--deepspeed --deepspeed_config ds.json"
    assert started(tmp_path, alone, recompute="full").recomputed.of == "full"
    with refused("recompute", problem=("none", "run.sh")):
        started(tmp_path, f"{alone} --gradient_checkpointing", recompute="none")


@pytest.mark.parametrize(
    ("argument", "field", "problem", "fix"),
    [
        (
            "--per_device_train_batch_size 8",
            "train_micro_batch_size_per_gpu",
            ("4", "per_device_train_batch_size", "8"),
            '"auto"',
        ),
        ("--zero_stage 3", "zero_optimization.stage", ("2", "zero_stage", "3"), '"auto"'),
        ("--bf16", "fp16.enabled", ("true", "bf16.enabled"), ()),
        ("--lora_dim 128", "lora_dim", "128", "--ignore lora_dim"),
        ("--hidden_layers 12", "hidden_layers", "12", "--ignore hidden_layers"),
        ("--block_size 2048 --max_seq_len 1024", "block_size", ("2048", "max_seq_len", "1024"), ()),
    ],
)
def test_arguments_that_say_otherwise_are_refused(
    tmp_path: Path, argument: str, field: str, problem: Facts, fix: Facts
) -> None:
    with refused(field, problem=problem, fix=fix):
        started(tmp_path, f"--deepspeed --deepspeed_config ds.json {argument}")


def test_what_starts_the_program_is_named_before_options_are_refused(tmp_path: Path) -> None:
    """No note names arguments of Megatron-LM where the command has none."""
    path = tmp_path / "run.sh"
    path.write_text("accelerate launch --num_processes 8 train.py --name x\n")
    with refused("", problem=("train.py", "run.sh:1"), fix=("configuration", "log")):
        read(path, user=UserSettings(recompute="full"))
