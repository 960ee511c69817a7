"""torchtitan's files of 2024 to 2026, read as its code of that time resolves them.

`torchtitan/*.toml` are files of its history (BSD 3-Clause, Meta Platforms); `torchtitan/resolved.json` has their commits, and
what the JobConfig of each made of it: `python -m benchmarks.torchtitan_history CLONE` writes them, and reads all others.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trainplan.execution.launch_files.run_configuration import RunConfiguration, UserSettings
from trainplan.execution.runtimes.torchtitan.reader import of_tables
from trainplan.execution.runtimes.torchtitan.versions import EARLIER, SIZES, model_of
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.models.model import load_model

import trainplan as tp
from benchmarks.torchtitan_history import ours
from tests.helpers.refusals import Facts, refused
from trainplan.imported_runs.assess import JudgedRun
from trainplan.imported_runs.to_plan import read

HERE = Path(__file__).parent / "torchtitan"
RESOLVED = json.loads((HERE / "resolved.json").read_text())
OLD = """[model]
name = "llama3"
flavor = "70B"
[training]
batch_size = 2
seq_len = 8192
data_parallel_shard_degree = -1
tensor_parallel_degree = 8
compile = false
[experimental]
pipeline_parallel_degree = 2
context_parallel_degree = 1
[activation_checkpoint]
mode = "full"
"""


def titan(folder: Path, text: str) -> Path:
    """A file of a text."""
    path = folder / "titan.toml"
    path.write_text(text)
    return path


def tables(**values: Any) -> dict[str, Any]:
    """Tables of Llama 3 8B with values, sections and keys joined by two underlines."""
    made: dict[str, Any] = {"model": {"name": "llama3", "flavor": "8B"}}
    for name, value in values.items():
        section, key = name.split("__")
        made.setdefault(section, {})[key] = value
    return made


def of(**values: Any) -> RunConfiguration:
    return of_tables(tables(**values), "titan.toml", UserSettings())


@pytest.mark.parametrize("name", RESOLVED)
def test_files_of_every_year_are_read_as_their_own_code_resolves_them(name: str) -> None:
    configuration = read(HERE / name)
    assert ours(configuration) == RESOLVED[name]["resolved"]
    assert not configuration.unknown
    model = tomllib.loads((HERE / name).read_text())["model"]
    kind = model["name"].replace("llama", "llama2") if model["name"] == "llama" else model["name"]
    assert configuration.model or configuration.config, f"{kind} {model['flavor']} has no sizes"


def test_degrees_in_training_and_experimental_are_degrees(tmp_path: Path) -> None:
    """As versions before March 2025 have them: tp 8, pp 2, dp 4 on 64 devices, and as many micro-batches as stages."""
    judged = tp.import_run(titan(tmp_path, OLD), cluster="h100:8x8", search=False)
    assert judged.plan.depth == 2 and judged.plan.batch.micro_batches == 2 and judged.plan.batch.global_samples == 8
    strategy = judged.plan.units[1].strategy
    assert (strategy.degree("sdp"), strategy.degree("tp"), strategy.zero, strategy.ckpt) == (4, 8, 2, True)
    sources = {setting.key: setting.source for setting in judged.configuration.taken}
    assert sources["training.tensor_parallel_degree"].endswith("titan.toml:8")
    assert sources["experimental.pipeline_parallel_degree"].endswith("titan.toml:11")


def test_one_sample_makes_no_two_micro_batches(tmp_path: Path) -> None:
    with refused("training.batch_size", problem=1, fix=(2, "micro-batches")):
        read(titan(tmp_path, OLD.replace("batch_size = 2", "batch_size = 1")))


@pytest.mark.parametrize("today", [key for key in EARLIER if key.startswith("parallelism.") and key.endswith("_degree")])
def test_each_earlier_name_of_a_degree_says_what_todays_does(today: str) -> None:
    fields = ("tp", "pp", "cp", "copies", "shard", "zero", "sequence_parallel")
    name = lambda key: key.replace(".", "__")  # noqa: E731
    batch = {"training__local_batch_size": 4, "activation_checkpoint__mode": "none"}
    new = of(**batch, **{name(today): 2})
    for old in EARLIER[today]:
        made = of(**batch, **{name(old): 2})
        assert [getattr(made, field) for field in fields] == [getattr(new, field) for field in fields], old


def test_a_degree_stated_twice_is_reported_once() -> None:
    both = {"training__tensor_parallel_degree": 2, "parallelism__tensor_parallel_degree": 4}
    with refused("training.tensor_parallel_degree", problem=(2, "parallelism.tensor_parallel_degree", 4)):
        of(**both)
    assert of(**{**both, "parallelism__tensor_parallel_degree": 2}).tp == 2


def test_data_parallel_degree_is_of_fsdp_or_of_ddp() -> None:
    assert (of(training__data_parallel_degree=-1).shard, of(training__data_parallel_degree=4).shard) == (None, 4)
    copied = of(training__data_parallel_degree=4, training__data_parallel_type="ddp")
    assert (copied.copies, copied.shard, copied.zero) == (4, 1, 0)
    with refused("training.data_parallel_degree", problem=-1):
        of(training__data_parallel_degree=-1, training__data_parallel_type="ddp")


@pytest.mark.parametrize(
    ("values", "gradients"),
    [
        ({"training__mixed_precision_reduce": "bfloat16"}, ("float32", "model")),
        ({}, ("float32", "float32")),
        ({"training__dtype": "bfloat16", "training__mixed_precision_reduce": "bfloat16"}, (None, "model")),
        ({"training__mixed_precision_param": "float32"}, (None, "model")),
    ],
)
def test_reductions_are_in_the_dtype_of_the_file(values: dict[str, str], gradients: tuple[str | None, str]) -> None:
    made = of(**values)
    assert (made.precision.master, made.precision.gradients) == gradients


def test_bfloat16_states_summed_in_float32_are_reported_to_be_predicted_otherwise() -> None:
    assert any("summed over ranks in float32" in note for note in of(training__dtype="bfloat16").notes)


def test_without_ranks_that_share_states_nothing_is_in_half_precision() -> None:
    """torchtitan before 2026 mixes precisions by FSDP or DDP alone (`maybe_enable_amp`)."""
    made = of(parallelism__tensor_parallel_degree=8, parallelism__data_parallel_shard_degree=1)
    assert made.dtype == "float32" and any("mixed precision is off" in note for note in made.notes)
    with refused("parallelism.data_parallel_shard_degree", problem=("data-parallel", "training.dtype"), fix="devices"):
        plan_on(of(parallelism__tensor_parallel_degree=8), "h100:8")


def test_a_pipeline_that_runs_empty_within_a_step_is_refused() -> None:
    values = {"parallelism__pipeline_parallel_degree": 2, "training__local_batch_size": 4, "training__global_batch_size": 64}
    with refused("training.global_batch_size", problem=("16", "4"), fix="16"):
        plan_on(of(**values), "h100:8")
    assert plan_on(of(**{**values, "training__global_batch_size": 16}), "h100:8").batch.micro_batches == 4


def plan_on(configuration: RunConfiguration, cluster: str) -> Any:
    """The plan of a configuration on devices."""
    from trainplan.formulations.plan.request import Request

    from trainplan.imported_runs.run_model import model_of as model_that_runs
    from trainplan.imported_runs.to_plan import plan_of
    from trainplan.inputs import cluster_of, memory_of

    model = model_that_runs(configuration, None, None, None)
    return plan_of(configuration, model, Request(model, cluster_of(cluster, None), None, memory_of(None, None)))


def test_layers_were_dealt_without_a_weight_of_ends_before_april_2025() -> None:
    """`generate_split_points` of October 2024: 126 layers on 8 stages, and the same today."""
    common = {"model__flavor": "405B", "training__local_batch_size": 8}
    early = of(**common, experimental__pipeline_parallel_degree=8)
    ends = [0, 15, 31, 47, 63, 79, 95, 111, 126]
    assert early.cuts == tuple(1 + 2 * end for end in ends[1:-1])
    assert of(**common, parallelism__pipeline_parallel_degree=8).layers_apart == (1, 1)
    written = of(**common, experimental__pipeline_parallel_degree=2, experimental__pipeline_parallel_split_points="layers.60")
    assert written.cuts == (121,)


@pytest.mark.parametrize(
    ("values", "field", "problem", "fix"),
    [
        ({"training__enable_cpu_offload": True}, "training.enable_cpu_offload", "true", "false"),
        ({"model__norm_type": "layernorm"}, "model.norm_type", "layernorm", "rmsnorm"),
        ({"fault_tolerance__enable": True}, "fault_tolerance.enable", "true", "false"),
        ({"float8__emulate": True}, "float8.emulate", "true", "false"),
        ({"optimizer__name": "Muon"}, "optimizer.name", "Muon", "AdamW"),
        ({"model__converters": ["lora"]}, "model.converters", "lora", ("float8", "mx")),
        ({"training__fp8_linear": "delayed"}, "training.fp8_linear", "delayed", "dynamic"),
        ({"float8__scaling_type_input": "delayed"}, "float8.scaling_type_input", "delayed", "dynamic"),
        ({"model__name": "deepseek_v3", "model__flavor": "16B"}, "model.flavor", ("deepseek_v3", "16B", "experts"), "dense"),
        ({"model__name": "flux"}, "model.name", "flux", "llama3"),
        (
            {"experimental__tensor_parallel_degree": 2}, "experimental.tensor_parallel_degree", 2,
            "--ignore experimental.tensor_parallel_degree",
        ),
        (
            {"parallelism__tensor_parallel_degree": 2, "training__disable_loss_parallel": True},
            "training.disable_loss_parallel", "true", "false",
        ),
        (
            {"parallelism__pipeline_parallel_degree": 2, "parallelism__pipeline_parallel_schedule": "ZBVZeroBubble"},
            "parallelism.pipeline_parallel_schedule", "ZBVZeroBubble", ("1F1B", "GPipe", "Interleaved1F1B"),
        ),
        ({"model__converters": ["mx"], "mx__recipe_name": "mxfp4_cutlass"}, "mx.recipe_name", "mxfp4_cutlass", "mxfp8_cublas"),
        ({"compile__components": 3}, "compile.components", 3, "list"),
    ],
)  # fmt: skip
def test_what_no_plan_has_is_refused_by_the_key_of_the_file(
    values: dict[str, Any], field: str, problem: Facts, fix: Facts
) -> None:
    with refused(field, problem=problem, fix=fix):
        of(**values)


@pytest.mark.parametrize(
    "key", ["training__enable_fp8_linear", "training__enable_float8_linear", "float8__enable_float8_linear"]
)
def test_switches_of_8_bits_are_converters(key: str) -> None:
    assert of(**{key: True}).recipe == "fp8-current" and of(**{key: False}).recipe is None


def test_only_a_compiled_model_is_compiled() -> None:
    assert of(compile__enable=True).flags == "compile" and of(compile__enable=True, compile__components=["loss"]).flags == ""


@pytest.mark.parametrize("name", [name for sizes in SIZES.values() for name in sizes])
def test_flavours_that_are_no_shipped_models_have_their_sizes(name: str) -> None:
    kind, _, flavour = name.partition("-")
    shipped, fields = model_of(kind, flavour)
    assert shipped is None and fields is not None
    made = of(model__name=kind, model__flavor=flavour)
    model = plan_model(made)
    millions = {"llama2-271M": 271, "llama2-1B": 1060, "llama2-26B": 25500, "llama3-1B": 1236, "llama3-3B": 3213}
    millions |= {"qwen3-0.6B": 596, "qwen3-1.7B": 1721, "qwen3-4B": 4022, "qwen3-14B": 14768}
    count = sum(unit.sublayer.parameter_count() for unit in model.units) - model.tied_elements
    assert count / 1e6 == pytest.approx(millions[name], rel=0.01)


def plan_model(configuration: RunConfiguration) -> Any:
    from trainplan.imported_runs.run_model import model_of as model_that_runs

    return model_that_runs(configuration, None, None, None)


def test_a_log_of_torchtitan_0_3_is_refused_for_what_it_leaves_out(tmp_path: Path) -> None:
    """`Trainer.Config.to_dict` prints fields without classes: FullAC and Float8Linear look as their bases do."""
    values = {
        "model_spec": {"name": "llama3", "flavor": "8B", "model": {"dim": 4096}},
        "training": {"local_batch_size": 1, "seq_len": 8192},
        "activation_checkpoint": {"preserve_rng_state": True, "determinism_check": "default", "debug": False},
    }
    log = tmp_path / "train.log"
    log.write_text(f"[titan] 2026-08-20 10:00:00,000 - root - INFO - Running with configs: {json.dumps(values, indent=2)}\n")
    with refused("model_spec", problem=("0.3", "recomputed"), fix=("config_registry.py", "--set config=NAME")):
        read(log)


def test_a_model_of_other_sizes_than_the_file_says_is_refused(tmp_path: Path) -> None:
    path = titan(tmp_path, OLD)
    with refused("model.flavor", problem=(80, "llama3-8b", 32), fix="--model"):
        tp.import_run(path, model="llama3-8b", cluster="h100:8x8", search=False)
    assert load_model("llama3.1-70b").layers == 80
    tp.import_run(path, model="llama3.1-70b", cluster="h100:8x8", search=False)


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 2**70), st.floats(), st.text(max_size=8), st.just([]), st.just([[]])
)


NAMES = [*EARLIER, *(old for olds in EARLIER.values() for old in olds), "model.flavor", "model.converters"]


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(NAMES), SCALARS, max_size=4))
def test_hostile_values_are_errors_of_one_line(values: dict[str, Any]) -> None:
    nested: dict[str, Any] = {"model": {"name": "llama3", "flavor": "8B"}}
    for key, value in values.items():
        *above, last = key.split(".")
        node = nested
        for part in above:
            node = node.setdefault(part, {})
        node[last] = value
    try:
        of_tables(nested, "titan.toml", UserSettings())
    except InputError as error:
        assert "\n" not in str(error)


def test_values_are_printed_as_the_file_has_them_with_the_version_of_its_keys() -> None:
    """Keys of earlier versions with their own values, and none of today's where they mean the contrary."""
    made = of(
        training__batch_size=2, training__data_parallel_degree=4, training__enable_loss_parallel=True,
        training__fp8_linear="dynamic", experimental__pipeline_parallel_degree=2,
    )  # fmt: skip
    taken = {setting.key: setting for setting in made.taken}
    assert taken["training.enable_loss_parallel"].value is True
    assert taken["training.fp8_linear"].value == "dynamic"
    assert taken["training.dtype"].source == "default of torchtitan before September 2024"
    assert not {key for key in taken if "stage_less_layers" in key or "microbatch_size" in key}  # which that version has not


@pytest.mark.parametrize(
    ("values", "version"),
    [
        ({"parallelism__tensor_parallel_degree": 2}, "0.2"),
        ({"training__compile": True}, "before August 2025"),
        ({"parallelism__tensor_parallel_degree": 2, "training__batch_size": 2}, "before June 2025"),
        ({"training__tensor_parallel_degree": 2, "training__batch_size": 2}, "before March 2025"),
        ({"training__sequence_parallel_degree": 2, "activation_checkpoint__mode": "full"}, "before April 2024"),
    ],
)
def test_defaults_are_of_the_version_that_has_the_keys(values: dict[str, Any], version: str) -> None:
    assert {setting.source for setting in of(**values).taken if "default" in setting.source} == {
        f"default of torchtitan {version}"
    }


REGISTRY = """from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.trainer import Trainer
from . import model_registry

def mine() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("8B"), training=TrainingConfig(local_batch_size=1, seq_len=4096),
        parallelism=ParallelismConfig(tensor_parallel_degree=2),
    )
"""


def test_a_registry_away_from_its_folder_is_of_the_model_that_is_named(tmp_path: Path) -> None:
    """A model of other sizes than its flavour says is refused as ever."""
    file = tmp_path / "config_registry.py"
    file.write_text(REGISTRY)
    with refused("model_spec", problem="8B", fix=("--model", "model_registry", "torchtitan.models.NAME")):
        read(file)
    made = read(file, None, UserSettings(model="meta-llama/Meta-Llama-3-8B"))
    assert (made.model, made.tp) == ("llama3-8b", 2)
    assert read(file, None, UserSettings(model="qwen3-8b")).model == "qwen3-8b"
    named = next(setting for setting in made.taken if setting.key == "model.name")
    assert (named.value, named.source) == ("llama3", "--model meta-llama/Meta-Llama-3-8B")
    with refused("model.flavor", problem=(32, "llama3-70b", 80), fix="--model"):
        tp.import_run(file, cluster="h100-8", model="llama3-70b", search=False)


def of_parallelism(folder: Path, **degrees: int) -> JudgedRun:
    """Llama 3 8B of eight devices with these degrees."""
    lines = "\n".join(f"{name} = {degree}" for name, degree in degrees.items())
    text = f'[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\n[parallelism]\n{lines}\n'
    return tp.import_run(titan(folder, text), cluster="h100:8", search=False)


@pytest.mark.parametrize(
    ("degrees", "copies", "fix"),
    [
        ({"data_parallel_replicate_degree": 4}, 4, "parallelism.data_parallel_replicate_degree = 2"),
        (
            {"data_parallel_replicate_degree": 4, "data_parallel_shard_degree": 1},
            4,
            ("parallelism.data_parallel_replicate_degree = 2", "parallelism.data_parallel_shard_degree = 2"),
        ),
        (
            {"data_parallel_replicate_degree": 2, "tensor_parallel_degree": 2},
            2,
            "parallelism.data_parallel_replicate_degree = 1",
        ),
    ],
)
def test_context_parallel_ranks_that_share_states_alone_are_no_copies(
    tmp_path: Path, degrees: dict[str, int], copies: int, fix: Facts
) -> None:
    """torchtitan's fsdp_enabled is dp_shard_enabled or cp_enabled."""
    with refused("parallelism.context_parallel_degree", problem=(2, copies, "ZeRO stage 3"), fix=fix):
        of_parallelism(tmp_path, context_parallel_degree=2, **degrees)


@pytest.mark.parametrize("shard", [1, 2, 4])
def test_degrees_whose_product_is_too_small_are_reported_with_degrees_that_run(tmp_path: Path, shard: int) -> None:
    fix = (8, f"parallelism.data_parallel_replicate_degree = {8 // shard}")
    with refused("parallelism.data_parallel_shard_degree", problem=shard, fix=fix):
        of_parallelism(tmp_path, data_parallel_shard_degree=shard)
    of_parallelism(tmp_path, data_parallel_shard_degree=8)
    of_parallelism(tmp_path, data_parallel_shard_degree=shard, data_parallel_replicate_degree=8 // shard)
