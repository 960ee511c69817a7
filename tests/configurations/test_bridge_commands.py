"""Scripts of Megatron-Bridge that run a recipe, with files and words that override it."""

from __future__ import annotations

from pathlib import Path

import pytest
from trainplan.execution.launch_files.run_configuration import RunConfiguration, UserSettings

from tests.helpers.refusals import Facts, refused
from trainplan.imported_runs.to_plan import read

OVER = """model:
  tensor_model_parallel_size: 2
  seq_length: 4096
dataset: {seq_length: 4096}
train: {global_batch_size: 64, micro_batch_size: 1}
"""
EXAMPLE = (
    "torchrun --nproc_per_node 8 examples/pretrain_llama3_8b.py --config-file over.yaml model.tensor_model_parallel_size=4\n"
)
RECIPE = "torchrun --nproc_per_node 8 {name} --recipe llama3_8b_pretrain_config model.tensor_model_parallel_size=4\n"


def of(folder: Path, text: str, **variables: str) -> RunConfiguration:
    (folder / "over.yaml").write_text(OVER)
    script = folder / "run.sh"
    script.write_text(text)
    return read(script, None, UserSettings(variables))


def test_an_example_is_its_recipe_under_its_file_under_its_words(tmp_path: Path) -> None:
    made = of(tmp_path, EXAMPLE)
    assert (made.runtime, made.model, made.devices) == ("megatron-bridge", "llama3-8b", 8)
    assert (made.tp, made.cp, made.sequence, made.samples, made.micro_samples) == (4, 2, 4096, 64, 1)
    sources = {setting.key: setting.source for setting in made.taken}
    assert sources["train.global_batch_size"] == f"{tmp_path}/over.yaml:5"
    assert sources["model.context_parallel_size"].startswith("recipe llama3_8b_pretrain_config")
    assert any("of the recipe llama3_8b_pretrain_config" in note for note in made.notes)
    other = of(tmp_path, EXAMPLE, recipe="llama3_70b_pretrain_config", **{"model.tensor_model_parallel_size": "8"})
    assert (other.model, other.tp) == ("llama3-70b", 8)


def test_an_example_without_a_file_reads_the_one_in_its_folder(tmp_path: Path) -> None:
    text = EXAMPLE.replace("--config-file over.yaml ", "")
    name = "examples/conf/llama3_8b_pretrain_override_example.yaml"
    with refused("--config-file", problem=name):
        of(tmp_path, text)
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_text(OVER.replace("64", "128"))
    assert of(tmp_path, text).samples == 128


@pytest.mark.parametrize("name", ["run_recipe.py", "run_script.py"])
def test_a_runner_is_the_recipe_that_it_is_given(tmp_path: Path, name: str) -> None:
    """Under a file of overrides, where it is given one."""
    made = of(tmp_path, RECIPE.format(name=name))
    assert (made.model, made.tp, made.samples, made.sequence) == ("llama3-8b", 4, 512, 8192)
    made = of(tmp_path, RECIPE.format(name=f"{name} --config_file=over.yaml"))
    assert (made.tp, made.samples, made.sequence) == (4, 64, 4096)


@pytest.mark.parametrize(
    ("old", "new", "field", "problem", "fix"),
    [
        (
            "llama3_8b.py",
            "mine.py",
            "recipe",
            "mine_pretrain_config",
            ("qwen3_8b_pretrain_config", "llama3_8b_pretrain_config"),
        ),
        ("over.yaml", "none.yaml", "--config-file", "none.yaml", ()),
        ("--config-file", "--hf-path org/model --config-file", "--hf-path", "org/model", "--set recipe=NAME"),
        ("--config-file", "--peft-scheme lora --config-file", "--peft-scheme", "lora", "adapters"),
        (
            "pretrain_llama3_8b.py",
            "run_recipe.py --model llama3_8b",
            "--recipe",
            "run_recipe.py",
            ("--set recipe=NAME", "llama3_8b_pretrain_config", "log"),
        ),
        (
            "pretrain_llama3_8b.py",
            "run_recipe.py --recipe llama3_8b_pretrain_config --mode sft",
            "--mode",
            "sft",
            "fine-tuning",
        ),
    ],
)
def test_what_is_not_known_of_a_script_is_named(
    tmp_path: Path, old: str, new: str, field: str, problem: Facts, fix: Facts
) -> None:
    with refused(field, problem=problem, fix=fix):
        of(tmp_path, EXAMPLE.replace(old, new))


@pytest.mark.parametrize(
    ("text", "problem", "fix"),
    [
        (
            "python scripts/performance/setup_experiment.py -m llama31_405b -ng 512 -gn 8 -tp 4 -pp 8 -mb 1",
            ("scripts/performance/setup_experiment.py", "run.sh:1", "Megatron-Bridge"),
            ("log", "`run_recipe.py --recipe NAME`", "--command"),
        ),
        ("python mine.py conf/a.json 3", ("mine.py", "run.sh:1"), ("configuration", "log")),
        ("MODEL_ARGS=(\n --num-layers 16\n)", "training", ("script", "--arguments", "log")),
    ],
)
def test_a_script_without_arguments_that_are_read_says_what_to_give(
    tmp_path: Path, text: str, problem: Facts, fix: Facts
) -> None:
    with refused("", where=tmp_path / "run.sh", problem=problem, fix=fix):
        of(tmp_path, text)


@pytest.mark.parametrize(
    "words",
    [
        "--config-file over.yaml model.tensor_model_parallel_size=$TP",
        "model.tensor_model_parallel_size=$TP --config-file over.yaml",
        "model.tensor_model_parallel_size=$TP",
        '$(if [ -n "$TP" ]; then echo model.tensor_model_parallel_size=$TP; fi) model.seq_length=8192',
    ],
)
def test_words_that_depend_on_unstated_values_are_undecided(tmp_path: Path, words: str) -> None:
    conf = tmp_path / "conf" / "llama3_8b_pretrain_override_example.yaml"
    conf.parent.mkdir()
    conf.write_text("train: {micro_batch_size: 1}\n")
    text = f"torchrun --nproc_per_node 8 pretrain_llama3_8b.py {words}\n"
    with refused() as error:
        of(tmp_path, text)
    assert "--set TP=" in error.value.fix
    assert of(tmp_path, text, TP="4").tp == 4


def test_words_that_differ_by_a_branch_are_undecided(tmp_path: Path) -> None:
    conf = tmp_path / "conf" / "llama3_8b_pretrain_override_example.yaml"
    conf.parent.mkdir()
    conf.write_text("train: {micro_batch_size: 1}\n")
    text = "[ $BIG = 1 ] && TP=8 || TP=2\ntorchrun pretrain_llama3_8b.py model.tensor_model_parallel_size=$TP\n"
    with refused(fix="--set BIG=1"):
        of(tmp_path, text)
    assert of(tmp_path, text, BIG="1").tp == 8
