"""Whose a file is: none is taken for another tool's, and each refusal names the tool and what to give in its place."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from trainplan.execution.launch_files.documents import read_document, uncommented
from trainplan.execution.launch_files.lines import lines_of
from trainplan.execution.launch_files.run_configuration import UserSettings
from trainplan.execution.runtimes.export_common import write_export
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.models.model import load_model

import trainplan as tp
from tests.helpers.plans import plan_of
from tests.helpers.refusals import Facts, assert_refusal, refused
from trainplan.imported_runs.to_plan import read

READERS = ("Megatron-LM", "torchtitan", "Accelerate", "axolotl", "LLaMA-Factory", "transformers", "DeepSpeed")


def refusal(path: Path, text: str | bytes) -> InputError:
    """The error of a file with a text, which is of the file as a whole or of a place in it."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError) as error:
        read(path)
    assert error.value.where == str(path) or error.value.where.startswith(f"{path}:")
    return error.value


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[build-system]\nrequires = ["setuptools"]\n[project]\nname = "x"\n', ("build-system", "project")),
        ('[tool.poetry]\nname = "x"\n[tool.poetry.dependencies]\ntorch = "2"\n', "tool"),
        ('[project]\nname = "x"\n[training]\nseq_len = 2048\n', ("project", "training")),
        ("line-length = 120\n[lint]\nselect = []\n", ("line-length", "lint")),
        ('[model]\nname = "Qwen/Qwen3-8B"\n[optim]\nlr = 1e-5\n[ckpt]\ninterval = 10\n', ("model", "optim", "ckpt")),
        ('[model]\ntype = "flux"\n[optimizer]\ntype = "adamw"\n', ("model", "optimizer")),
        ("", "empty"),
    ],
)
def test_toml_that_is_not_torchtitans_is_never_taken_for_it(tmp_path: Path, text: str, problem: Facts) -> None:
    error = refusal(tmp_path / "pyproject.toml", text)
    assert_refusal(error, "", problem=problem, fix=("torchtitan", "training.seq_len", "model.flavor", "--command"))


@pytest.mark.parametrize("text", ["[training]\nseq_len = 4096\n", "[experimental]\ncontext_parallel_degree = 2\n"])
def test_toml_of_torchtitan_needs_one_key_of_its_own(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.toml").write_text(text)
    assert read(tmp_path / "a.toml").runtime == "torchtitan"


@pytest.mark.parametrize(
    "value",
    [
        {"backward_prefetch": "backward_pre", "forward_prefetch": "true", "activation_checkpointing": True},
        {"fsdp": "full_shard auto_wrap", "fsdp_config": {"fsdp_version": 2, "reshard_after_forward": True}},
        {"fsdp_version": 2, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "min_num_params": 0},
    ],
)
def test_options_of_fsdp_alone_are_no_run(tmp_path: Path, value: Any) -> None:
    error = refusal(tmp_path / "fsdp.json", json.dumps(value))
    assert_refusal(error, "", problem=("transformers", "fsdp_config", "FSDP"), fix="fsdp_config")


@pytest.mark.parametrize(
    "value",
    [
        {word: index for index, word in enumerate(("pp", "optimizer", "aio", "seed", "pipeline", "wandb", "amp"))},
        {f"w{index}": index for index in range(2000)} | {"resources": 1, "run": 2, "train_batch_size": 3},
        {"version": "v2", "log_level": "info", "steps": {}},
        {"model": {"hidden_size": 512, "num_layers": 6}, "optimizer": {"lr": 1e-3}, "train": {"batch_size": 4, "epochs": 3}},
        {"model": {"vocab_size": 32000, "seq_length": 2048}, "rng": {"seed": 1}, "checkpoint": {"save": "x"}},
    ],
)
def test_vocabularies_and_files_of_research_are_no_tools_files(tmp_path: Path, value: Any) -> None:
    error = refusal(tmp_path / "vocab.json", json.dumps(value))
    assert_refusal(error, "", problem=tuple(value)[:3], fix=READERS)


@pytest.mark.parametrize(
    ("value", "tool", "fix"),
    [
        ({"resources": {"accelerators": "H100:8"}, "run": "torchrun x"}, "SkyPilot", "--command"),
        ({"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "spec": {}}, "Kubernetes", "--command"),
        (
            {"integrations": [], "command": "composer x", "image": "y", "compute": {"gpus": 8}},
            "MosaicML's platform",
            "--command",
        ),
        ({"entrypoint": "python t.py", "runtime_env": {"working_dir": "."}}, "Ray", "--command"),
        ({"services": {"a": {"command": "torchrun x"}}}, "Docker Compose", "--command"),
        ({"type": "task", "commands": ["torchrun x"]}, "dstack", "--command"),
        ({"actor": {"_target_": "verl.workers.config.ActorConfig"}}, "veRL", "reinforcement"),
        ({"policy": {"model_name": "x", "generation": {}}, "grpo": {}}, "NeMo RL", "reinforcement"),
        (
            {"train": {"global_batch_size": 8, "max_tokens": 9}, "data": {"class_path": "litgpt.data.X"}},
            "LitGPT",
            READERS,
        ),
        ({"base_config": "base.yml", "use_sft": True}, "MaxText", READERS),
        ({"vocab_file": "x", "data_path": "y", "save": "z"}, "GPT-NeoX", READERS),
        ({"train-data-paths": ["x"], "tokenizer-type": "y"}, "GPT-NeoX", READERS),
    ],
)
def test_wrappers_of_commands_and_other_trainings_say_what_to_give(tmp_path: Path, value: Any, tool: str, fix: Facts) -> None:
    assert_refusal(refusal(tmp_path / "a.yaml", json.dumps(value)), "", problem=tool, fix=fix)


@pytest.mark.parametrize(
    ("name", "problem", "fix"),
    [
        ("Dockerfile", "Dockerfile", "--command"),
        ("train.Dockerfile", "Dockerfile", "--command"),
        ("Makefile", "Makefile", "--command"),
        ("run.ipynb", "notebook", "--command"),
        ("justfile", "rules", "--command"),
        ("README.md", "text", (*READERS, "log")),
        ("model.safetensors", "weights", (*READERS, "log")),
    ],
)
def test_files_that_are_known_by_name_are_not_read_as_scripts(tmp_path: Path, name: str, problem: str, fix: Facts) -> None:
    """A launch line of a Dockerfile hangs on ENV, one of a Makefile on make's own variables, which no shell has."""
    error = refusal(tmp_path / name, "ENV TP=2\ntrain:\n\ttorchrun pretrain_gpt.py --num-layers 32 $(ARGS)\n")
    assert_refusal(error, "", problem=problem, fix=fix)


@pytest.mark.parametrize(
    ("text", "problem", "fix"),
    [
        ("from xtuner.engine import DatasetInfoHook\nbatch_size = 1\n", "XTuner", ("DeepSpeed", "--model", "log")),
        ("SEQ_LEN = 2048\nparallel = dict(zero1=dict(size=8))\n", ("InternEvo", "Colossal-AI"), "log"),
        ("from transformers import Trainer\nimport torch\n", "transformers", ("YAML", "--command", "--model")),
        ("import deepspeed\n", "DeepSpeed", ("JSON", "--model")),
        ("from olmo_core.train import TrainerConfig\n", "OLMo-core", "log"),
        ("import lightning as L\n", "Lightning", "log"),
        ("from unsloth import FastLanguageModel\nfrom trl import SFTTrainer\n", "Unsloth", ("YAML", "--command", "--model")),
    ],
)
def test_python_files_of_other_tools_are_refused_by_name(tmp_path: Path, text: str, problem: Facts, fix: Facts) -> None:
    assert_refusal(refusal(tmp_path / "a.py", text), "", problem=problem, fix=fix)


def test_python_on_what_another_file_makes_says_which(tmp_path: Path) -> None:
    text = "from torchtitan.models.llama3.config_registry import llama3_8b\ndef mine():\n    c = llama3_8b()\n    return c\n"
    error = refusal(tmp_path / "a.py", text)
    fix = ("config_registry.py", "--set config=NAME", "--set table.key=VALUE", "TOML")
    assert_refusal(error, "", problem="torchtitan.models.llama3.config_registry.llama3_8b", fix=fix)
    text = (
        "import yaml\nfrom megatron.bridge.training.config import ConfigContainer, TrainingConfig\n"
        "said = yaml.safe_load(open('a.yaml'))\nc = ConfigContainer(train=TrainingConfig(**said['train']))\n"
    )
    error = refusal(tmp_path / "b.py", text)
    assert_refusal(error, "train", where=f"{tmp_path / 'b.py'}:4", problem="said['train']", fix="YAML")


def test_trainers_of_torchtitan_that_run_otherwise_are_refused(tmp_path: Path) -> None:
    """As torchft's, whose replicas come and go, and fields that its Trainer does not have."""
    text = (
        "from torchtitan.models.llama3 import model_registry\nfrom torchtitan.trainer import Trainer\n"
        "from torchtitan.experiments.torchft.trainer import FaultTolerantTrainer\n"
        "from torchtitan.config import TrainingConfig\ndef a():\n    return {}.Config(model_spec=model_registry('8B'),\n"
        "        training=TrainingConfig(local_batch_size=1, seq_len=8192), {})\n"
    )
    (tmp_path / "a.py").write_text(text.format("Trainer", ""))
    assert read(tmp_path / "a.py").model == "llama3-8b"
    error = refusal(tmp_path / "a.py", text.format("FaultTolerantTrainer", ""))
    assert_refusal(error, "", problem="FaultTolerantTrainer", fix="Trainer")
    error = refusal(tmp_path / "a.py", text.format("Trainer", "fault_tolerance=FT(enable=True)"))
    assert_refusal(error, "fault_tolerance", fix="--ignore fault_tolerance")


def test_json_with_comments_is_read_as_deepspeed_reads_it(tmp_path: Path) -> None:
    """By hjson: comments of three kinds, and commas at ends; lines stay where they were."""
    path = tmp_path / "ds.json"
    path.write_text(
        '{\n // all ranks\n "train_batch_size": 16, # "x": 1\n /* two\n lines */ "bf16": {"enabled": true,},\n'
        ' "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "nvme_path": "/a//b#c",},},\n}\n'
    )
    made = read(path)
    assert (made.samples, made.zero, made.host) == (16, 3, ("optimizer",))
    assert lines_of(path)["zero_optimization.stage"] == 6
    assert uncommented('{"a": "//, }", "b": 1}') == '{"a": "//, }", "b": 1}'


def test_files_that_cannot_be_read_say_one_thing(tmp_path: Path) -> None:
    """The error of the file, not another one around it."""
    assert_refusal(refusal(tmp_path / "a.yaml", ""), "", problem="empty", fix="YAML")
    assert_refusal(refusal(tmp_path / "a.json", b"\xb6\xff"), "", problem="UTF-8", fix="JSON")
    assert_refusal(refusal(tmp_path / "a.json", '{"zero": 1, "a" 2}'), "line 1 column 17", problem="JSON", fix="JSON")
    error = refusal(tmp_path / "a.json", '{"train_micro_batch_size_per_gpu": CONFIG_MBSIZE}')
    assert_refusal(error, "", problem=("CONFIG_MBSIZE", "template"), fix="script")
    with refused("", where=tmp_path / "b.yaml", problem="exist", fix="existing"):
        read(tmp_path / "b.yaml")
    text = "".join(f"key{index}: 1\n" for index in range(400_000))
    assert_refusal(refusal(tmp_path / "a.yaml", text), "", problem=f"{len(text):,} bytes", fix="smaller")


def test_tags_of_a_tools_own_hide_no_tool(tmp_path: Path) -> None:
    """As Levanter's `!include`; what they would do is not done."""
    error = refusal(tmp_path / "a.yaml", "data: !include data.yaml\nmodel: !x {type: llama, seq_len: 4096}\ntrainer: !y [1]\n")
    assert_refusal(error, "", problem="Levanter", fix=READERS)
    error = refusal(tmp_path / "a.yaml", "data: !!python/object/apply:os.getcwd []\n")
    assert_refusal(error, "line 1 column 7", problem=("YAML", "python/object/apply:os.getcwd"), fix="YAML")


def test_a_key_that_is_given_twice_is_refused_where_it_says_two_things(tmp_path: Path) -> None:
    text = "distributed_type: MULTI_GPU\nmixed_precision: bf16\nnum_processes: 8\n"
    error = refusal(tmp_path / "a.yaml", text + "mixed_precision: fp16\n")
    assert_refusal(error, "mixed_precision", problem=("twice", 2, 4), fix="once")
    (tmp_path / "a.yaml").write_text(text + "num_processes: 8\nfsdp_config: &a {x: &b {y: 1}}\nipex_config: {<<: *a, <<: *b}\n")
    assert read_document(tmp_path / "a.yaml")["num_processes"] == 8


# Of each file of an export: None where it is read, else the field, the problem and the fix of its refusal.
TRAIN_PY: tuple[str, Facts, Facts] = ("", ("Python", "transformers"), ("YAML", "--command", "--model"))
PARTS: dict[str, dict[str, tuple[str, Facts, Facts] | None]] = {
    "megatron": {"launch.sh": None, "slurm.sh": None},
    "megatron-bridge": {"bridge.yaml": None, "train.py": ("model", "model", "YAML")},
    "torchtitan": {
        "torchtitan.toml": None, "launch.sh": None,
        "torchtitan_config.py": ("", "torchtitan.models.llama3.config_registry.llama3_8b", ("config_registry.py", "TOML")),
    },
    "deepspeed": {
        "ds_config.json": None, "train.py": TRAIN_PY,
        "run.json": ("", "run.json", ("ds_config.json", "--model", "--sequence 1024")),
    },
    "accelerate": {
        "accelerate.yaml": None, "train.py": TRAIN_PY,
        "run.json": ("", "run.json", ("accelerate.yaml", "--model", "--sequence 1024")),
    },
    "torch": {"train.py": TRAIN_PY, "config.json": ("", "model", "--model")},
}  # fmt: skip
LAYOUTS = {"deepspeed": "sdp4-zero2", "accelerate": "sdp4", "torchtitan": "sdp2-tp2-zero2-sp"}


@pytest.mark.parametrize("target", PARTS)
def test_exported_files_come_back_as_their_plan_or_say_which_do(tmp_path: Path, target: str) -> None:
    model, text = load_model("llama3-8b", 1024, "bfloat16"), LAYOUTS.get(target, "sdp2-tp2-zero1-sp")
    cuts = [] if target in ("deepspeed", "accelerate") else [33]
    plan = plan_of(model, [text] * len(model.units), 4 * (1 + len(cuts)), 16, 4, cuts)
    write_export(tp.export(plan.changed(memory_bytes=2**47, precision={"master": "float32"}), target), tmp_path)
    for name, refusal_of in PARTS[target].items():
        if refusal_of is not None:
            field, problem, fix = refusal_of
            with refused(field, problem=problem, fix=fix):
                read(tmp_path / name)
            continue
        made = read(tmp_path / name)
        assert f"tp{made.tp}" in text.replace("-zero", "-tp1-zero") + "-tp1" and made.pp == len(cuts) + 1 and made.cp == 1
        zero = 3 if target == "accelerate" else int(text.partition("zero")[2][0])
        assert (made.zero, made.dtype, made.runtime) == (zero, "bfloat16", target)


def test_what_a_configuration_leaves_open_stands_in_the_launch_script_next_to_it(tmp_path: Path) -> None:
    """Without the model, or without the sequence, the refusal names the script; which itself needs neither."""
    model = load_model("llama3-8b", 1024, "bfloat16")
    plan = plan_of(model, ["sdp4-zero2"] * len(model.units), 4, 16, 4).changed(
        memory_bytes=2**47, precision={"master": "float32"}
    )
    write_export(tp.export(plan, "deepspeed"), tmp_path)
    file, script = tmp_path / "ds_config.json", tmp_path / "launch.sh"
    with refused("sequence", problem="missing", fix=(str(script), str(file))):
        tp.import_run(file, cluster="h100:4", model="llama3-8b", search=False)
    with refused("model", problem="missing", fix=(str(script), str(file))):
        tp.import_run(file, cluster="h100:4", sequence=1024, search=False)
    assert tp.import_run(script, cluster="h100:4", search=False).plan.planned_model().tokens == 1024
    script.unlink()
    with pytest.raises(ValueError, match=r"does not say it$"):
        tp.import_run(file, cluster="h100:4", model="llama3-8b", search=False)


def test_defaults_of_the_trainer_are_those_of_its_own_class(tmp_path: Path) -> None:
    """Every field of transformers' TrainingArguments that a file leaves out is taken as that class has it, and every other
    value of any field is read, refused, or named as ignored: none is left out without a word."""
    from transformers import TrainingArguments

    own = {field.name: field.default for field in fields(TrainingArguments)}
    base = {"model_name_or_path": "llama3-8b", "output_dir": "x", "num_train_epochs": 1, "bf16": True, "max_length": 512}
    base |= {"gradient_checkpointing": True}
    path, stated = tmp_path / "a.yaml", UserSettings(variables={"accelerate": "none"})
    path.write_text(json.dumps(base))
    taken = {setting.key: setting.value for setting in read(path, None, stated).taken if setting.source.startswith("default")}
    shared = {key: value for key, value in taken.items() if key in own}
    assert {key: own[key] for key in shared} == shared and {"gradient_accumulation_steps", "optim"} <= set(shared)
    assert taken["per_gpu_train_batch_size"] == own["per_device_train_batch_size"]
    for name, default in own.items():
        value: Any = not default if isinstance(default, bool) else 7 if isinstance(default, int) else "other"
        path.write_text(json.dumps({**base, "bf16": name != "fp16", name: value}))
        try:
            made = read(path, None, stated)
        except InputError as error:
            assert name in error.command_text
            continue
        assert name in {setting.key for setting in made.taken} | set(made.unread), name
