"""`--set KEY=VALUE` changes the file that is read, and is refused where nothing takes the key."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from trainplan.execution.launch_files.run_configuration import RunConfiguration, TakenValue, UserSettings

from tests.helpers.refusals import Facts, refused
from trainplan.imported_runs.to_plan import read

LLAMA_FACTORY = """model_name_or_path: Qwen/Qwen2.5-7B-Instruct
stage: sft
finetuning_type: full
template: qwen
cutoff_len: 4096
packing: true
per_device_train_batch_size: 2
bf16: true
deepspeed: ds.json
"""
AXOLOTL = """base_model: NousResearch/Meta-Llama-3.1-8B
datasets: [{path: some/data, type: alpaca}]
sequence_len: 8192
micro_batch_size: 1
bf16: auto
gradient_checkpointing: true
fsdp_version: 2
fsdp_config:
  reshard_after_forward: true
"""
TRANSFORMERS = """model_name_or_path: mistralai/Mistral-7B-v0.1
bf16: true
gradient_checkpointing: true
max_length: 2048
output_dir: out
per_device_train_batch_size: 16
"""
NEMO = """trainer: {devices: 8, num_nodes: 1, precision: bf16}
model:
  micro_batch_size: 4
  global_batch_size: 128
  num_layers: 32
  hidden_size: 4096
  ffn_hidden_size: 11008
  num_attention_heads: 32
  encoder_seq_length: 4096
  max_position_embeddings: 4096
  tokenizer: {type: x}
"""
ACCELERATE = """distributed_type: FSDP
mixed_precision: bf16
num_processes: 8
fsdp_config: {fsdp_version: 2, fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP}
"""
DEEPSPEED = json.dumps({"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_optimization": {"stage": 2}})
TITAN = "[model]\nname = 'llama3'\nflavor = '8B'\n[training]\nlocal_batch_size = 1\nseq_len = 8192\n"
BRIDGE = "model: {tensor_model_parallel_size: 2}\ntrain: {micro_batch_size: 1, global_batch_size: 128}\n"
MEGATRON = """torchrun --nproc_per_node=8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \\
  --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size ${MBS:-1} --global-batch-size 256 --bf16 \\
  --vocab-size 32000 --tokenizer-type NullTokenizer
"""
TRAINER = """NUM_GPUS=8
torchrun --nproc_per_node=$NUM_GPUS run_clm.py --model_name_or_path meta-llama/Llama-2-13b-hf --block_size 4096 \\
  --per_device_train_batch_size ${MBS:-2} --bf16 --gradient_checkpointing True --output_dir out --deepspeed ds.json
"""
FILES = {
    "llamafactory.yaml": LLAMA_FACTORY, "axolotl.yaml": AXOLOTL, "sft.yaml": TRANSFORMERS, "nemo.yaml": NEMO,
    "accelerate.yaml": ACCELERATE, "ds.json": DEEPSPEED, "titan.toml": TITAN, "bridge.yaml": BRIDGE, "run.sh": MEGATRON,
    "trainer.sh": TRAINER, "arguments.txt": "--num-layers 32\n--micro-batch-size 1\n",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a file of every tool."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text.replace("ds.json", str(tmp_path / "ds.json")))
    (tmp_path / "ds.json").write_text(DEEPSPEED.replace('"train_micro_batch_size_per_gpu": 1', '"gradient_clipping": 1.0'))
    (tmp_path / "engine.json").write_text(DEEPSPEED)
    return tmp_path


def of(folder: Path, name: str, dtype: str | None = None, **variables: str) -> RunConfiguration:
    """The configuration of a file; in names of variables, two underscores stand for a dot."""
    settings = {key.replace("__", "."): value for key, value in variables.items()}
    recompute = "none" if name.endswith(("engine.json", "accelerate.yaml")) else None
    return read(
        folder / name, None, UserSettings(settings, recompute, "llama3-8b" if name == "bridge.yaml" else None, dtype=dtype)
    )


@pytest.mark.parametrize(
    ("name", "key", "value", "field"),
    [
        ("llamafactory.yaml", "per_device_train_batch_size", "1", "micro_samples"),
        ("llamafactory.yaml", "cutoff_len", "2048", "sequence"),
        ("llamafactory.yaml", "gradient_accumulation_steps", "4", "accumulation"),  # which the file does not say
        ("axolotl.yaml", "micro_batch_size", "2", "micro_samples"),
        ("axolotl.yaml", "sequence_len", "4_096", "sequence"),
        ("sft.yaml", "per_device_train_batch_size", "4", "micro_samples"),
        ("nemo.yaml", "model.micro_batch_size", "2", "micro_samples"),
        ("nemo.yaml", "model.tensor_model_parallel_size", "2", "tp"),
        ("accelerate.yaml", "num_processes", "4", "devices"),
        ("engine.json", "train_micro_batch_size_per_gpu", "2", "micro_samples"),
        ("engine.json", "zero_optimization.stage", "3", "zero"),
        ("titan.toml", "training.local_batch_size", "4", "micro_samples"),
        ("bridge.yaml", "train.micro_batch_size", "2", "micro_samples"),
    ],
)
def test_a_key_that_is_set_replaces_that_of_the_file(folder: Path, name: str, key: str, value: str, field: str) -> None:
    before = of(folder, name)
    made = of(folder, name, **{key: value})
    number = int(value.replace("_", ""))
    assert getattr(made, field) == number != getattr(before, field)
    assert TakenValue(key, number, "--set") in made.taken


def test_values_are_typed_as_yaml_reads_them(folder: Path) -> None:
    assert of(folder, "axolotl.yaml", gradient_checkpointing="no").recomputed.of == "none"
    assert of(folder, "llamafactory.yaml", deepspeed="null", accelerate="none").zero == 0
    assert of(folder, "llamafactory.yaml", deepspeed="{zero_optimization: {stage: 3}, bf16: {enabled: auto}}").zero == 3
    assert of(folder, "axolotl.yaml", fsdp_config__reshard_after_forward="false").zero == 2


@pytest.mark.parametrize(
    ("name", "key", "fix"),
    [
        ("llamafactory.yaml", "per_device_train_batchsize", "per_device_train_batch_size"),
        ("llamafactory.yaml", "run_nam", "run_name"),  # of a key that bears on nothing
        ("axolotl.yaml", "micro_batch", "micro_batch_size"),
        ("sft.yaml", "per_device_train_batchsize", "per_device_train_batch_size"),
        ("nemo.yaml", "micro_batch_size", "model.micro_batch_size"),
        ("nemo.yaml", "trainer.device", "trainer.devices"),
        ("accelerate.yaml", "num_proceses", "num_processes"),
        ("accelerate.yaml", "config", ("compute_environment", "distributed_type")),
        ("engine.json", "stage", "zero_optimization.stage"),
        ("titan.toml", "training.local_batchsize", "training.local_batch_size"),
        ("titan.toml", "local_batch_size", "training.local_batch_size"),
        ("bridge.yaml", "micro_batch_size", "train.micro_batch_size"),
        ("bridge.yaml", "train.micro_batchsize", "train.micro_batch_size"),
        ("run.sh", "MBSS", "MBS"),
        ("run.sh", "micro_batch_size", ("--micro-batch-size", "MBS")),
        ("trainer.sh", "per_device_train_batch_size", ("--per-device-train-batch-size", "MBS", "NUM_GPUS")),
        ("trainer.sh", "cutoff_len", ("MBS", "NUM_GPUS")),
        ("arguments.txt", "MBS", "variable"),
    ],
)
def test_what_nothing_takes_is_refused_with_what_is_near(folder: Path, name: str, key: str, fix: Facts) -> None:
    with refused("--set", where="command line", problem=(key, name), fix=fix):
        of(folder, name, **{key: "3"})


def test_a_key_within_another_file_is_refused(folder: Path) -> None:
    with refused("--set", problem=("deepspeed.zero_optimization.stage", "llamafactory.yaml", "table"), fix="deepspeed"):
        of(folder, "llamafactory.yaml", deepspeed__zero_optimization__stage="3")


def test_what_a_run_was_has_nothing_to_set(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text("training ...\n[default0]: iteration  1/ 10 | elapsed time per iteration (ms): 1.0 |\n")
    with refused("--set", problem=("micro_batch_size", "run.log"), fix="starts"):
        of(tmp_path, "run.log", micro_batch_size="1")


def test_the_file_of_accelerate_is_no_key_of_a_trainers(folder: Path) -> None:
    assert of(folder, "sft.yaml", accelerate=str(folder / "accelerate.yaml"), max_length="1024").sequence == 1024
    assert of(folder, "sft.yaml", accelerate=str(folder / "accelerate.yaml")).zero == 3


def script(folder: Path, text: str, **variables: str) -> RunConfiguration:
    (folder / "own.sh").write_text(text)
    return of(folder, "own.sh", **variables)


def test_a_script_without_variables_names_none(folder: Path) -> None:
    with refused("--set", problem=("NOSUCH", "own.sh"), fix="variable") as error:
        script(folder, "run() {\n local m=$1\n" + MEGATRON.replace("${MBS:-1}", "$m") + "}\nrun 2\n", NOSUCH="3")
    assert not re.search(r"\$|[A-Z]{2}", error.value.fix), "none is named"


def test_an_argument_whose_variable_is_empty_names_that(folder: Path) -> None:
    sizes = "if [[ $SIZE == small ]]; then LAYERS=32; elif [[ $SIZE == large ]]; then LAYERS=80; fi\n"
    with refused("--num-layers", problem=("$LAYERS", "SIZE=medium", "own.sh:2"), fix="--set LAYERS=32"):
        script(folder, sizes + MEGATRON.replace("--num-layers 32", "--num-layers $LAYERS"), SIZE="medium")


@pytest.mark.parametrize(
    ("condition", "example"), [("$HOSTNAME =~ ^dgx", "dgx"), ("$HOSTNAME == *dgx*", "dgx"), ("$HOSTNAME =~ ^d[0-9]x", "VALUE")]
)
def test_a_variable_that_a_condition_compares_is_advised_as_it_is_compared(folder: Path, condition: str, example: str) -> None:
    with refused(fix=f"--set HOSTNAME={example}"):
        script(folder, f"if [[ {condition} ]]; then MBS=2; else MBS=1; fi\n" + MEGATRON.replace("${MBS:-1}", "$MBS"))


@pytest.mark.parametrize(
    ("key", "fix"),
    [
        ("nodez", "nodes"),
        ("recipe", "section.key=VALUE"),
        ("train.global_batchsize", "train.global_batch_size"),
        ("accelerate", "section.key=VALUE"),
    ],
)
def test_what_no_recipe_in_python_takes_is_refused(tmp_path: Path, key: str, fix: str) -> None:
    text = "nodes = 2\ncfg = llama3_8b_pretrain_config()\ncfg.train.global_batch_size = 64 * nodes\npretrain(config=cfg)\n"
    source = "from megatron.bridge.recipes.llama import llama3_8b_pretrain_config\nfrom megatron.bridge import pretrain\n"
    (tmp_path / "own.py").write_text(source + text)
    assert of(tmp_path, "own.py", nodes="4").samples == 256
    with refused("--set", problem=(key, "own.py"), fix=fix):
        of(tmp_path, "own.py", **{key: "4"})


def test_tables_of_a_registry_that_cannot_be_changed_are_named(tmp_path: Path) -> None:
    (tmp_path / "config_registry.py").write_text("""from torchtitan.models.qwen3 import model_registry
from torchtitan.trainer import Trainer
def mine():
    return Trainer.Config(model_spec=model_registry("8B"), training=TrainingConfig(local_batch_size=1, seq_len=4096))
""")
    assert of(tmp_path, "config_registry.py", training__local_batch_size="2").micro_samples == 2
    with refused("--set", problem="model.flavor", fix=("training", "parallelism", "compile", "optimizer")):
        of(tmp_path, "config_registry.py", model__flavor="4B")
