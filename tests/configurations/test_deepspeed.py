"""DeepSpeed's files: "auto" as transformers' Trainer and Accelerate fill it in, precision, buckets, and what is refused."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trainplan.execution.launch_files.run_configuration import RunConfiguration, UserSettings
from trainplan.execution.runtimes.accelerate import reader as accelerate_reader
from trainplan.execution.runtimes.deepspeed import reader as deepspeed_reader
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.models.precision import MASTERS, PLAIN

import trainplan as tp
from tests.helpers.refusals import Facts, refused

AUTO: dict[str, Any] = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "fp16": {"enabled": "auto", "loss_scale": 0},
    "bf16": {"enabled": "auto"},
    "zero_optimization": {
        "stage": 3,
        "overlap_comm": True,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
    },
}
GIVEN: dict[str, Any] = {"model": "llama3-8b", "cluster": "a100:8", "sequence": 2048, "recompute": "full", "search": False}


def read(values: Any, **stated: Any) -> RunConfiguration:
    return deepspeed_reader.of_values(values, "ds.json", UserSettings(**stated))


def written(folder: Path, values: Any) -> Path:
    path = folder / "ds.json"
    path.write_text(json.dumps(values, indent=1))
    return path


def filled_by_transformers(values: dict[str, Any], hidden: int, **arguments: Any) -> dict[str, Any]:
    """The configuration with "auto" filled in by transformers' own code; the few lines that it takes from Accelerate are
    repeated here."""
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    class Filled(HfTrainerDeepSpeedConfig):
        def __init__(self, config: dict[str, Any]) -> None:
            self.config, self.mismatches = config, []

        def find_config_node(self, ds_key_long: str) -> tuple[Any, str]:
            config, (*nodes, key) = self.config, ds_key_long.split(".")
            for node in nodes:
                config = config.get(node)  # type: ignore[assignment]
                if config is None:
                    return None, key
            return config, key

        def get_value(self, ds_key_long: str, default: Any = None) -> Any:
            config, key = self.find_config_node(ds_key_long)
            return default if config is None else config.get(key, default)

        def is_true(self, ds_key_long: str) -> bool:
            return bool(self.get_value(ds_key_long))

        def is_zero3(self) -> bool:
            return self.get_value("zero_optimization.stage") == 3

    usual: dict[str, Any] = {"world_size": 8, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 2}
    usual |= {"max_grad_norm": 1.0, "learning_rate": 1e-5, "adam_beta1": 0.9, "adam_beta2": 0.999, "adam_epsilon": 1e-8}
    usual |= {"weight_decay": 0.0, "save_on_each_node": False, "fp16": False, "bf16": False, "fp16_full_eval": False}
    usual |= {"bf16_full_eval": False, "get_warmup_steps": lambda steps: 0}
    filled, given = Filled(json.loads(json.dumps(values))), SimpleNamespace(**{**usual, **arguments})
    filled.trainer_config_process(given)
    filled.trainer_config_finalize(given, SimpleNamespace(config=SimpleNamespace(hidden_size=hidden)), 10)
    return filled.config


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("flag", ["bf16", "fp16"])
def test_auto_is_read_as_what_transformers_fills_in(stage: int, flag: str) -> None:
    """The configuration is the same, whether "auto" is filled in by transformers' code or by the reader."""
    zero = {key: value for key, value in AUTO["zero_optimization"].items() if stage == 3 or not key.startswith("stage3")}
    values = {**AUTO, "zero_optimization": {**zero, "stage": stage}}
    theirs = read(filled_by_transformers(values, 4096, **{flag: True}))
    ours = read(values, dtype={"bf16": "bfloat16", "fp16": "float16"}[flag])
    assert (theirs.dtype, theirs.precision, theirs.zero) == (ours.dtype, ours.precision, ours.zero)
    assert theirs.buffers == ours.buffers.for_hidden(4096) != ours.buffers
    assert (theirs.samples, theirs.micro_samples, theirs.accumulation) == (16, 1, 2)


def test_auto_is_bfloat16_with_masters_and_says_so(tmp_path: Path) -> None:
    """As with "enabled": true, in bytes and time; the source of what was taken names Trainer, file and line."""
    plain = {**AUTO, "bf16": {"enabled": True}, "fp16": {"enabled": False}}
    auto, stated = (tp.import_run(written(tmp_path, entry), micro_batch=1, batch=16, **GIVEN) for entry in (AUTO, plain))
    assert auto.judged.step_ns == stated.judged.step_ns and auto.judged.peak_bytes == stated.judged.peak_bytes
    assert max(auto.judged.peak_bytes) > 16 * 8.03e9 / 8, "sixteen bytes of states for each parameter"
    sources = {setting.key: setting for setting in auto.configuration.taken}
    assert (
        "transformers' Trainer fills in 'auto'" in sources["bf16.enabled"].source
        and "ds.json:" in sources["bf16.enabled"].source
    )
    assert sources["buffers.reduce_elements"].value == 4096 * 4096
    assert sources["buffers.prefetch_elements"].value == int(0.9 * 4096 * 4096)


@pytest.mark.parametrize(
    ("values", "dtype", "wanted"),
    [
        ({"bf16": {"enabled": "auto"}, "fp16": {"enabled": False}}, None, ("bfloat16", MASTERS)),
        ({"fp16": {"enabled": "auto"}}, None, ("float16", MASTERS)),
        ({"fp16": {"enabled": "auto"}, "bf16": {"enabled": True}}, None, ("bfloat16", MASTERS)),
        ({"bf16": {"enabled": "auto"}}, "float32", ("float32", PLAIN)),
        ({"bf16": {"enabled": False}, "fp16": {"enabled": False}}, None, ("float32", PLAIN)),
        ({}, "bfloat16", ("bfloat16", MASTERS)),
        ({"bfloat16": {"enabled": True}}, None, ("bfloat16", MASTERS)),
        ({"torch_autocast": {"enabled": True, "dtype": "float16"}}, None, ("float16", MASTERS)),
    ],
)
def test_precision(values: dict[str, Any], dtype: str | None, wanted: tuple[str, Any]) -> None:
    made = read({**values, "zero_optimization": {"stage": 3}}, dtype=dtype)
    assert (made.dtype, made.precision) == wanted


@pytest.mark.parametrize("values", [{}, {"fp16": {"enabled": False}}, {"bf16": {}}, {"bf16": {"enabled": False}}])
def test_a_file_without_precision_asks_for_it(values: dict[str, Any]) -> None:
    with refused("dtype", problem="ds.json", fix=("bfloat16", "float32", "bf16")) as error:
        read({**values, "train_micro_batch_size_per_gpu": 1})
    assert "\n" not in error.value.command_text


def test_an_option_that_the_file_denies_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, {"bf16": {"enabled": True}, "train_micro_batch_size_per_gpu": 1})
    with refused("dtype", problem=("float32", "bfloat16")):
        tp.import_run(path, dtype="float32", **GIVEN)


def test_a_micro_batch_that_the_trainer_says_is_requested(tmp_path: Path) -> None:
    with refused("micro_batch", fix=("ds.json", "per_device_train_batch_size")):
        tp.import_run(written(tmp_path, AUTO), batch=16, **GIVEN)
    counted = {**AUTO, "gradient_accumulation_steps": 2}
    assert tp.import_run(written(tmp_path, counted), batch=32, **GIVEN).plan.batch.micro_batches == 2


def test_buckets_by_their_sizes_and_by_default() -> None:
    """Gradients are reduced from two buckets of this size in stages 1 and 2, where that overlaps with computation."""
    bf16 = {"bf16": {"enabled": True}}
    run = read({**bf16, "zero_optimization": {"stage": 2, "reduce_bucket_size": 2e8, "overlap_comm": True}})
    two = run.buffers
    assert (two.reduce_elements, two.gather_elements, two.copies_gradients) == (200_000_000, 500_000_000, True)
    assert run.flags.endswith(" overlap_comm") and "no overlap_comm" in read({**bf16, "zero_optimization": {"stage": 2}}).flags
    assert (two.prefetch_elements, two.live_elements, two.step_elements) == (None, None, None)
    three = read({**bf16, "zero_optimization": {"stage": 3, "sub_group_size": "100000000"}}).buffers
    assert (three.reduce_elements, three.gather_elements, three.prefetch_elements) == (500_000_000, None, 50_000_000)
    assert (three.live_elements, three.step_elements) == (1_000_000_000, 100_000_000)
    near = read({**bf16, "zero_optimization": {"stage": 3, "stage3_max_reuse_distance": 0, "stage3_max_live_parameters": 1e7}})
    assert (near.buffers.live_elements, near.buffers.prefetch_elements) == (0, 10_000_000)
    wide = read({**bf16, "zero_optimization": {"stage": 1}, "data_types": {"grad_accum_dtype": "fp32"}})
    assert not wide.buffers.copies_gradients and wide.precision.gradients == "float32"
    host = read({**bf16, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}})
    assert not host.buffers.copies_gradients and host.host == ("optimizer",)


@pytest.mark.parametrize(("zero", "buckets"), [({"stage": 1}, 3), ({"stage": 2, "overlap_comm": True}, 2), ({"stage": 3}, 2)])
def test_buckets_in_float32_are_twice_as_wide(zero: dict[str, Any], buckets: int) -> None:
    """In elements of the model's dtype: of stage 3 they are of float32, in stages 1 and 2 the one that is reduced is copied, as
    much as another one for each of two."""
    values = {"bf16": {"enabled": True}, "zero_optimization": {**zero, "reduce_bucket_size": 1e8}}
    assert read({**values, "communication_data_type": "fp32"}).buffers.reduce_elements == buckets * 100_000_000
    float32 = {**values, "bf16": {"enabled": False}, "fp16": {"enabled": False}, "communication_data_type": "fp32"}
    assert read(float32).buffers.reduce_elements == 100_000_000


@pytest.mark.parametrize(
    ("values", "field", "problem", "fix"),
    [
        (
            {"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}},
            "zero_optimization.offload_param.device",
            "cpu",
            "offload_optimizer",
        ),
        (
            {"torch_autocast": {"enabled": True}, "zero_optimization": {"stage": 2}, "bf16": {}},
            "torch_autocast.enabled",
            ("true", "2"),
            ("bf16", "fp16", "3"),
        ),
        (
            {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 1e9}},
            "zero_optimization.stage3_param_persistence_threshold",
            "1000000000",
            "1000000",
        ),
        (
            {"zero_optimization": {"stage": 2, "allgather_bucket_size": "auto"}},
            "zero_optimization.allgather_bucket_size",
            "auto",
            "transformers",
        ),
        ({"zero_optimization": [3]}, "zero_optimization", "[3]", '{"stage": 3}'),
        ({"fp16": {"enabled": True}}, "fp16.enabled", ("true", "bf16.enabled"), ()),
        ({"bf16": True}, "bf16", "true", '{"enabled": true}'),
        ({"amp": {"enabled": True}}, "amp.enabled", "true", "false"),
        ({"elasticity": {"enabled": True}}, "elasticity.enabled", "true", "false"),
        ({"expert_parallel": {"enabled": True}}, "expert_parallel.enabled", ("true", "experts"), "dense"),
        ({"sparse_attention": {"block": 16}}, "sparse_attention.block", "16", ("false", "dense")),
        (
            {"compression_training": {"weight_quantization": {"shared_parameters": {"enabled": True}}}},
            "compression_training.weight_quantization.shared_parameters.enabled",
            "true",
            "false",
        ),
        ({"optimizer": {"type": "Lion"}}, "optimizer.type", "Lion", ("AdamW", "Lamb", "Muon")),
        (
            {"optimizer": {"type": "Muon"}, "zero_optimization": {"stage": 2}},
            "optimizer.type",
            ("Muon", "2"),
            ("0", "1", "AdamW"),
        ),
        (
            {"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}},
            "zero_optimization.zero_hpz_partition_size",
            "8",
            "1",
        ),
        (
            {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}},
            "bf16.bf16_master_weights_and_grads",
            "true",
            "false",
        ),
        (
            {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0.3}}},
            "zero_optimization.offload_optimizer.ratio",
            "0.3",
            "1",
        ),
        ({"data_types": {"grad_accum_dtype": "int4"}}, "data_types.grad_accum_dtype", "int4", ("fp32", "bf16", "fp16")),
        (
            {"zero_optimization": {"stage": 3, "reduce_bucket_size": -1}},
            "zero_optimization.reduce_bucket_size",
            "-1",
            "500000000",
        ),
        (
            {"zero_optimization": {"stage": 3, "shards_of_experts": 2}},
            "zero_optimization.shards_of_experts",
            "2",
            "--ignore zero_optimization.shards_of_experts",
        ),
    ],
)
def test_what_no_plan_has_is_refused_by_its_key(values: dict[str, Any], field: str, problem: Facts, fix: Facts) -> None:
    with refused(field, problem=problem, fix=fix) as error:
        read({"bf16": {"enabled": True}, **values})
    assert "\n" not in error.value.command_text


def test_sequence_parallel_ranks_exchange_heads() -> None:
    """Ulysses: the batch is of the ranks that are left, as DeepSpeed counts them."""
    made = read({"bf16": {"enabled": True}, "sequence_parallel_size": 4, "zero_optimization": {"stage": 3}})
    assert (made.cp, made.exchange) == (4, "heads")


@pytest.mark.parametrize("stage", [True, 2])
def test_oldest_stages(stage: Any) -> None:
    """`true` is stage 1, as DeepSpeed reads its oldest files."""
    zero = stage if stage is True else {"stage": stage}
    assert read({"bf16": {"enabled": True}, "zero_optimization": zero}).zero == (1 if stage is True else 2)


def test_options_are_among_the_values_that_were_taken(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text('{"bf16": {"enabled": true}, "zero_optimization": {"stage": 3}}')
    options = {"model": "llama3-8b", "micro_batch": 1, "batch": 16, "sequence": 2048, "recompute": "full"}
    judged = tp.import_run(path, cluster="a100:8", search=False, memory="70GiB", **options)
    taken = {setting.key: (setting.value, setting.source) for setting in judged.configuration.taken}
    expected = {name: (value, f"--{name.replace('_', '-')}") for name, value in {**options, "memory": "70GiB"}.items()}
    assert {name: taken.get(name) for name in expected} == expected
    assert "reserve" not in taken


AUTO_STAGE: dict[str, Any] = {"bf16": {"enabled": True}, "zero_optimization": {"stage": "auto"}}


def test_an_open_stage_is_requested() -> None:
    """transformers' Trainer fills in no stage."""
    with refused("zero_optimization.stage", problem="auto", fix=("0", "1", "2", "3", "Accelerate")):
        read(AUTO_STAGE)


def test_an_open_stage_is_accelerates_where_its_file_names_this_one(tmp_path: Path) -> None:
    """Accelerate fills in its default, and takes no zero_stage alongside a file."""
    written(tmp_path, AUTO_STAGE)
    launch = tmp_path / "accelerate.yaml"
    launch.write_text("distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config:\n  deepspeed_config_file: ds.json\n")
    made = accelerate_reader.read(launch, UserSettings())
    taken = next(setting for setting in made.taken if setting.key == "zero_optimization.stage")
    assert (made.zero, taken.source) == (2, "default of Accelerate 1.15")
    written(tmp_path, {**AUTO_STAGE, "zero_optimization": {"stage": 3}})
    assert accelerate_reader.read(launch, UserSettings()).zero == 3, "what the file says stays"
    launch.write_text(launch.read_text() + "  zero_stage: 3\n")
    with refused("deepspeed_config.zero_stage", problem="3", fix="deepspeed_config_file"):
        accelerate_reader.read(launch, UserSettings())
    launch.write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 8\nmixed_precision: bf16\ndeepspeed_config: {zero_stage: auto}\n"
    )
    with refused("deepspeed_config.zero_stage", problem="auto", fix=("0", "1", "2", "3")):
        accelerate_reader.read(launch, UserSettings())


KEYS = sorted(
    {
        *deepspeed_reader.KNOWN.names,
        *deepspeed_reader.FILLED,
        *deepspeed_reader.REFUSED,
        "optimizer.type",
        "sequence_parallel_size",
        "zero_optimization",
    }
)
VALUES = st.sampled_from(
    [
        None,
        True,
        False,
        "auto",
        "",
        "x",
        "1",
        -1,
        0,
        1,
        2,
        8,
        0.5,
        5e8,
        1e400,
        float("nan"),
        10**30,
        [],
        [1],
        {},
        {"a": 1},
        {"enabled": "auto"},
    ]
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6), st.sampled_from([None, "bfloat16"]))
def test_wrong_values_at_any_key_are_read_or_refused_in_one_line(flat: dict[str, Any], dtype: str | None) -> None:
    values: dict[str, Any] = {}
    for key, value in flat.items():
        *tables, last = key.split(".")
        table = values
        for name in tables:
            inner = table.get(name)
            table = table.setdefault(name, {}) if isinstance(inner, dict) or inner is None else {}
            if table is None:
                break
        if isinstance(table, dict):
            table[last] = deepcopy(value)
    try:
        made = read(values, dtype=dtype)
    except InputError as error:
        assert "\n" not in error.command_text
    else:
        assert made.dtype in ("bfloat16", "float16", "float32")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"compile": {"deepcompile": True}}, "gathers and reductions placed by DeepCompile"),
        ({"fp32_allreduce": True}, "gradients are reduced in float32 (fp32_allreduce)"),
    ],
)
def test_what_runs_otherwise_than_the_plan_is_named(values: dict[str, Any], message: str) -> None:
    plain = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 3}}
    assert any(note.startswith(message) for note in read({**plain, **values}).notes)
    assert not any(note.startswith(message) for note in read(plain).notes)


@pytest.mark.parametrize(
    ("values", "field", "problem", "fix"),
    [
        ({"autotuning": {"enabled": True, "fast": True}}, "autotuning.enabled", "true", ("false", "ds_config_optimal.json")),
        ({"compile": {"deepcompile": True, "offload_opt_states": True}}, "compile.offload_opt_states", "true", "false"),
    ],
)
def test_what_decides_memory_and_is_not_planned_is_refused(
    values: dict[str, Any], field: str, problem: Facts, fix: Facts
) -> None:
    with refused(field, problem=problem, fix=fix):
        read({"bf16": {"enabled": True}, **values})
