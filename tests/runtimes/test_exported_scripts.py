"""The launch scripts that exports write come back as the layout that was exported, or are named for what they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from trainplan.execution.runtimes.export_common import write_export
from trainplan.formulations.plan.plan import Plan
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.models.model import load_model

import trainplan as tp
from tests.helpers.plans import plan_of

STRATEGIES = {
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
    [(target, text, "slurm.sh") for target, texts in STRATEGIES.items() for text in texts]  # which runs launch.sh
    + [(target, texts[0], "launch.sh") for target, texts in STRATEGIES.items() if target != "torchtitan"],
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
    with pytest.raises(InputError, match=r"an export to torch.*`trainplan simulate`"):
        tp.import_run(tmp_path / script, cluster="h100:8x2", search=False)


def test_a_launch_script_without_what_its_program_reads_names_that(tmp_path: Path) -> None:
    write_export(tp.export(planned("sdp16"), "deepspeed"), tmp_path)
    (tmp_path / "run.json").unlink()
    with pytest.raises(InputError, match=r"starts train.py, which reads run.json, and that is not there"):
        tp.import_run(tmp_path / "launch.sh", cluster="h100:8x2", search=False)
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(InputError, match=r"run.json.*export the plan again"):
        tp.import_run(tmp_path / "launch.sh", cluster="h100:8x2", search=False)
