"""Commands that name the file of a trainer, and override what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
from trainplan.execution.launch_files.run_configuration import RunConfiguration, UserSettings

import trainplan as tp
from tests.configurations.test_settings import LLAMA_FACTORY, folder
from tests.helpers.refusals import Facts, refused
from trainplan.imported_runs.to_plan import read

__all__ = ["folder"]
ZERO3 = """compute_environment: LOCAL_MACHINE
deepspeed_config: {zero_stage: 3, offload_optimizer_device: none, offload_param_device: none}
distributed_type: DEEPSPEED
mixed_precision: bf16
num_machines: 1
num_processes: 8
"""
PLAIN = LLAMA_FACTORY.replace("deepspeed: ds.json\n", "")


def of(folder: Path, command: str, **variables: str) -> RunConfiguration:
    (folder / "zero3.yaml").write_text(ZERO3)
    (folder / "plain.yaml").write_text(PLAIN)
    (folder / "go.sh").write_text(command + "\n")
    return read(folder / "go.sh", None, UserSettings(variables))


@pytest.mark.parametrize(
    ("command", "tool", "has"),
    [
        ("llamafactory-cli train llamafactory.yaml", "LLaMA-Factory", {"micro_samples": 2, "sequence": 4096, "zero": 2}),
        (
            "llamafactory-cli train llamafactory.yaml per_device_train_batch_size=1 cutoff_len=2048",
            "LLaMA-Factory",
            {"micro_samples": 1, "sequence": 2048, "zero": 2},
        ),
        ("llamafactory-cli train plain.yaml", "LLaMA-Factory", {"zero": 0, "undecided": {}}),  # which starts torchrun
        ("accelerate launch --config_file accelerate.yaml src/train.py plain.yaml", "LLaMA-Factory", {"zero": 3, "devices": 8}),
        ("torchrun --nproc_per_node 4 src/train.py plain.yaml", "LLaMA-Factory", {"zero": 0, "devices": 4}),
        ("axolotl train axolotl.yaml --micro-batch-size 2", "axolotl", {"micro_samples": 2, "zero": 3}),
        ("accelerate launch -m axolotl.cli.train axolotl.yaml --micro_batch_size=4", "axolotl", {"micro_samples": 4}),
        ("axolotl train axolotl.yaml --launcher torchrun --sequence-len 2048", "axolotl", {"sequence": 2048}),
        (
            "accelerate launch --config_file zero3.yaml scripts/run_sft.py sft.yaml --gradient_accumulation_steps=2",
            "transformers",
            {"accumulation": 2, "zero": 3, "devices": 8, "runtime": "deepspeed"},
        ),
        (
            "accelerate launch --config_file zero3.yaml -m trl.scripts.sft --config sft.yaml --gradient_accumulation_steps 2",
            "transformers",
            {"accumulation": 2, "zero": 3, "devices": 8, "micro_samples": 16},
        ),
        (  # arguments by which a program is known to be one of transformers
            "torchrun --nproc_per_node 8 sft.py --config sft.yaml --per_device_train_batch_size 4 --output_dir x",
            "transformers",
            {"micro_samples": 4, "sequence": 2048, "devices": 8},
        ),
    ],
)
def test_the_file_that_a_command_names_is_read_with_what_overrides_it(
    folder: Path, command: str, tool: str, has: dict[str, object]
) -> None:
    made = of(folder, command)
    assert made.tool == tool and {name: getattr(made, name) for name in has} == has


def test_what_overrides_a_file_is_of_the_script(folder: Path) -> None:
    made = of(folder, "MBS=4\naxolotl train axolotl.yaml --micro-batch-size $MBS", MBS="2")
    taken = next(setting for setting in made.taken if setting.key == "micro_batch_size")
    assert taken.value == 2 and "go.sh:2" in taken.source
    assert "axolotl.yaml:3" in next(setting.source for setting in made.taken if setting.key == "sequence_len")


@pytest.mark.parametrize(
    ("command", "field", "problem", "fix"),
    [
        ("llamafactory-cli train llamafactory.yaml cutoff_len=$LENGTH", "cutoff_len", "$LENGTH", "--set LENGTH=VALUE"),
        ("axolotl train axolotl.yaml --micro-batch-size $MBS", "--micro-batch-size", "$MBS", "--set MBS=VALUE"),
        ("llamafactory-cli train llamafactory.yaml $MORE", "", "$MORE", "--set MORE=''"),
        ("axolotl train nowhere.yaml --micro-batch-size 2", "", ("axolotl", "nowhere.yaml"), "--set micro_batch_size=2"),
        (
            "cat > own.yaml <<E\na: 1\nE\naxolotl train own.yaml --bf16 true",
            "",
            ("axolotl", "go.sh:4", "own.yaml", "script"),
            "--set bf16=true",
        ),
        (
            "python train.py nemo.yaml model.micro_batch_size=2",
            "",
            "train.py",
            ("nemo.yaml", "--set model.micro_batch_size=2", "log"),
        ),
        ("axolotl train axolotl.yaml --launcher torchrun -- --nproc_per_node=8", "--", "options", "--cluster"),
        ("accelerate launch --use_fsdp sft.py sft.yaml --bf16=true", "--use_fsdp", "accelerate launch", "--config_file"),
        ("torchrun --nproc_per_node 8 run_dpo.py --config sft.yaml --output_dir x", "", ("run_dpo.py", "DPO"), "next-token"),
        (
            "axolotl train axolotl.yaml --expert-parallel-sizes 2",
            "expert_parallel_sizes",
            2,
            ("--ignore expert_parallel_sizes", "expert_parallel_size"),
        ),
    ],
)
def test_what_is_not_known_of_such_a_command_is_named(
    folder: Path, command: str, field: str, problem: Facts, fix: Facts
) -> None:
    with refused(field, problem=problem, fix=fix):
        of(folder, command)


def test_options_of_accelerate_launch_win_over_its_file(folder: Path) -> None:
    assert of(folder, "accelerate launch --config_file zero3.yaml --num_processes 4 sft.py sft.yaml --bf16=true").devices == 4


def test_nodes_that_a_command_starts_are_those_of_the_cluster(folder: Path) -> None:
    assert of(folder, "NNODES=2 NPROC_PER_NODE=8 llamafactory-cli train plain.yaml").devices == 16
    (folder / "go.sh").write_text("FORCE_TORCHRUN=1 NNODES=2 llamafactory-cli train plain.yaml\n")
    with refused("cluster", problem=("1 node", 2), fix=2):
        tp.import_run(folder / "go.sh", cluster="h100:8", search=False)
