"""Exported files read back: by the targets themselves, by the recorded lists of their keys, and by `import-run`.

Differences and unknown keys are found, and a launch script comes back as the layout that was exported.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from trainplan.execution.runtimes.export_common import Export, write_export
from trainplan.formulations.plan.plan import Plan
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.models.model import load_model

import trainplan as tp
from benchmarks.launch import FILES
from benchmarks.read_back import READ_BY, READER, Exported, answers, differences, wanted
from tests.helpers.exported_plans import random_exported
from tests.helpers.plans import plan_of
from tests.helpers.refusals import refused
from tests.runtimes.test_megatron_bridge import in_bfloat16
from tests.runtimes.test_sharded_exports import random_plan
from trainplan.imported_runs.to_plan import read

TARGETS = os.environ.get("TRAINPLAN_TARGETS")  # an interpreter that has the targets, as benchmarks/read_back.py says
STRATEGIES = {"deepspeed": "sdp4-zero2", "accelerate": "sdp4", "torchtitan": "sdp2-tp2-zero2-sp"}
MISSPELT = {  # the file's text, with a key next to its right one
    "megatron": ("megatron_args.sh", "--sequence-parallel", "--sequence-paralel --sequence-parallel", "--sequence-paralel"),
    "megatron-bridge": ("bridge.yaml", "  hidden_size:", "  hiden_size: 1\n  hidden_size:", "model.hiden_size"),
    "torchtitan": ("torchtitan.toml", "seq_len =", "seq_length = 1\nseq_len =", "training.seq_length"),
    "deepspeed": ("ds_config.json", '"stage"', '"stages": 1, "stage"', "zero_optimization.stages"),
    "accelerate": ("accelerate.yaml", "  fsdp_version:", "  fsdp_versions: 1\n  fsdp_version:", "fsdp_config.fsdp_versions"),
}


@cache
def exported(target: str) -> Export:
    """The export of a small plan, of two stages where the target has them."""
    model, text = load_model("llama3-8b", 1024, "bfloat16"), STRATEGIES.get(target, "sdp2-tp2-zero1-sp")
    cuts = [] if target in ("deepspeed", "accelerate") else [33]
    plan = plan_of(model, [text] * len(model.units), 4 * (1 + len(cuts)), 16, 4, cuts)
    return tp.export(plan.changed(memory_bytes=2**47, precision={"master": "float32"}), target)


def written(target: str, folder: Path) -> Exported:
    write_export(exported(target), folder)
    return Exported(target, exported(target), folder)


@pytest.mark.parametrize("target", list(MISSPELT))
def test_misspelt_keys_are_found(tmp_path: Path, target: str) -> None:
    """Some targets take them without a word."""
    written(target, tmp_path)
    assert read(tmp_path / FILES[target]).unknown == ()
    name, right, wrong, key = MISSPELT[target]
    text = (tmp_path / name).read_text()
    assert right in text
    (tmp_path / name).write_text(text.replace(right, wrong, 1))
    with pytest.raises(InputError) as error:
        read(tmp_path / FILES[target])
    assert error.value.field == key


def test_fields_of_the_classes_are_known_and_what_they_change_is_read(tmp_path: Path) -> None:
    """The keys are those of DeepSpeed 0.19.8, torchtitan 0.2.2 and Accelerate 1.15: none is unknown."""
    for target in ("torchtitan", "deepspeed", "accelerate"):
        written(target, tmp_path)
    zero = {
        "stage": 3,
        "cpu_offload": True,
        "cpu_offload_param": True,
        "zenflow": {"topk_ratio": 0.1},
        "allgather_sequential": True,
    }
    (tmp_path / "ds_config.json").write_text(json.dumps({"bf16": {"enabled": True}, "zero_optimization": zero}))
    configuration = read(tmp_path / "ds_config.json")
    assert configuration.unknown == () and set(configuration.host) == {"optimizer", "parameters"}
    assert any("zenflow" in note for note in configuration.notes)
    text = (tmp_path / "accelerate.yaml").read_text()
    text = text.replace("  fsdp_version:", "  fsdp_activation_checkpointing_offload: true\n  fsdp_version:")
    (tmp_path / "accelerate.yaml").write_text(text)
    configuration = read(tmp_path / "accelerate.yaml")
    assert configuration.unknown == () and any("checkpoints on the host" in note for note in configuration.notes)
    text = (tmp_path / "torchtitan.toml").read_text()
    (tmp_path / "torchtitan.toml").write_text(f"{text}\n[training.dataloader]\nnum_workers = 2\n")
    assert read(tmp_path / "torchtitan.toml").unknown == ()


def test_layers_that_stages_do_not_divide_are_found(tmp_path: Path) -> None:
    """megatron-core's TransformerConfig takes 31 layers on 2 stages."""
    words = "--num-layers 31 --hidden-size 4096 --num-attention-heads 32 --seq-length 1024 --pipeline-model-parallel-size 2"
    (tmp_path / "arguments.txt").write_text(words)
    with refused("--num-layers", problem="31", fix=("2", "--pipeline-model-parallel-layout")):
        read(tmp_path / "arguments.txt")


@pytest.mark.parametrize("reader", [reader for readers in READ_BY.values() for reader in readers])
def test_every_value_is_held_against_the_plan(tmp_path: Path, reader: str) -> None:
    """Any one that is another, or missing where the plan has it, is named."""
    export = written(next(target for target, readers in READ_BY.items() if reader in readers), tmp_path)
    assert export.made.plan is not None
    values: dict[str, Any] = wanted(reader, export.made.plan)
    assert differences(reader, export, {"values": values}) == (len(values), [])
    for key in values:
        count, wrong = differences(reader, export, {"values": {**values, key: "other"}})
        assert (count, len(wrong)) == (len(values), 1) and wrong[0].startswith(f"{key} is 'other'")
    assert differences(reader, export, {"error": "ValueError: no"}) == (0, ["ValueError: no"])


@pytest.mark.long
@pytest.mark.skipif(TARGETS is None, reason="TRAINPLAN_TARGETS names no interpreter with the targets")
@pytest.mark.parametrize("target", ["megatron", "megatron-bridge", "deepspeed", "accelerate"])
def test_targets_read_what_the_plan_says(target: str) -> None:
    words = [sys.executable, "-m", "benchmarks.read_back", "--python", str(TARGETS), "--models", "llama3-8b"]
    words += ["--devices", "8", "--seconds", "5", "--targets", target]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "values equal" in done.stdout and "not read" not in done.stdout


@pytest.mark.long
@pytest.mark.skipif(TARGETS is None, reason="TRAINPLAN_TARGETS names no interpreter with the targets")
@pytest.mark.parametrize("target", ["megatron", "megatron-bridge", "deepspeed", "accelerate"])
def test_targets_read_random_plans(tmp_path: Path, target: str) -> None:
    """Uneven stages, recomputation of modules, copies of shards, of six models: more than the best plans have."""
    rng, exports = random.Random(0), list[Exported]()
    for index in range(12):
        plan = in_bfloat16(random_exported(rng) if target.startswith("megatron") else random_plan(rng, target))
        write_export(made := tp.export(plan, target), tmp_path / str(index))
        exports.append(Exported(str(index), made, tmp_path / str(index)))
    read_by = answers(target, Path(str(TARGETS)), None, exports)
    assert "absent" not in read_by
    found = [differences(target, export, answer) for export, answer in zip(exports, read_by["read"], strict=True)]
    assert [wrong for _, wrong in found] == [[]] * len(exports)


@pytest.mark.long
@pytest.mark.skipif(TARGETS is None, reason="TRAINPLAN_TARGETS names no interpreter with the targets")
def test_deepspeed_takes_a_key_that_it_does_not_have(tmp_path: Path) -> None:
    """Which is why unknown keys are looked for here."""
    path = written("deepspeed", tmp_path).folder / "ds_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "gradient_acumulation_steps": 8}))
    words = [str(TARGETS), str(READER), "deepspeed", f"{tmp_path}:4"]
    done = subprocess.run(words, input="null", capture_output=True, text=True, check=True)
    assert "values" in json.loads(done.stdout)["read"][0]
    with refused("gradient_acumulation_steps", problem=8, fix="gradient_accumulation_steps"):
        read(path)


STRATEGIES_OF_TARGETS = {
    "deepspeed": ("sdp16-zero2", "sdp16-ckpt", "dp16"),
    "accelerate": ("sdp16", "sdp16-zero2-ckpt", "dp16-ckpt"),
    "torchtitan": ("sdp8-tp2-zero2-sp",),
    "megatron": ("sdp4-tp4-zero1-sp",),
    "megatron-bridge": ("sdp4-tp4-zero1-sp", "sdp8-tp2-zero1-ckpt"),
}


def planned(text: str) -> Plan:
    """Two nodes of eight devices, 64 samples of 1024 tokens in two micro-batches."""
    model = load_model("llama3-8b", 1024, "bfloat16")
    plan = plan_of(model, [text] * len(model.units), 16, 64, 2)
    return plan.changed(memory_bytes=2**47, precision={"master": "float32"})


@pytest.mark.parametrize(
    ("target", "text", "script"),
    [(target, text, "slurm.sh") for target, texts in STRATEGIES_OF_TARGETS.items() for text in texts]  # which runs launch.sh
    + [(target, texts[0], "launch.sh") for target, texts in STRATEGIES_OF_TARGETS.items() if target != "torchtitan"],
)
def test_a_launch_script_comes_back_as_what_was_exported(tmp_path: Path, target: str, text: str, script: str) -> None:
    exported = tp.export(planned(text), target)
    write_export(exported, tmp_path)
    run = tp.import_run(tmp_path / script, cluster="h100:8x2", search=False, memory=2**47)
    wanted = exported.plan
    assert wanted is not None and run.configuration.devices in (None, 16)
    assert (run.plan.world, run.plan.batch) == (16, wanted.batch)
    assert [unit.strategy for unit in run.plan.units] == [unit.strategy for unit in wanted.units]
    model, was = run.plan.planned_model(), wanted.planned_model()
    assert (model.sequence, model.dtype, model.units) == (1024, was.dtype, was.units)


@pytest.mark.parametrize("script", ["launch.sh", "slurm.sh"])
def test_a_script_of_an_export_to_torch_says_what_to_give(tmp_path: Path, script: str) -> None:
    write_export(tp.export(planned("sdp16"), "torch"), tmp_path)
    with refused("", problem="train.py", fix="`trainplan simulate`"):
        tp.import_run(tmp_path / script, cluster="h100:8x2", search=False)


def test_a_launch_script_without_what_its_program_reads_names_that(tmp_path: Path) -> None:
    write_export(tp.export(planned("sdp16"), "deepspeed"), tmp_path)
    (tmp_path / "run.json").unlink()
    with refused("", problem=("train.py", "run.json"), fix="export"):
        tp.import_run(tmp_path / "launch.sh", cluster="h100:8x2", search=False)
    (tmp_path / "run.json").write_text("{}")
    with refused("", where=tmp_path / "run.json", problem="'model'", fix="export"):
        tp.import_run(tmp_path / "launch.sh", cluster="h100:8x2", search=False)
