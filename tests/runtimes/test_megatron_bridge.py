"""Exports to Megatron-Bridge and their import: every field is one of its classes', and says what the plan does."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from trainplan.execution.launch_files.run_configuration import UserSettings
from trainplan.execution.runtimes.export_common import write_export
from trainplan.execution.runtimes.megatron_bridge.reader import SECTIONS
from trainplan.formulations.plan.plan import Plan
from trainplan.profiling.models.model import load_model
from trainplan.profiling.models.sublayers import Attention

import trainplan as tp
from tests.helpers.exported_plans import random_exported
from tests.helpers.plans import plan_of
from tests.helpers.refusals import Facts, refused
from tests.helpers.sizes import first_and_others
from tests.runtimes.test_exporting import not_exported
from tests.runtimes.test_importing import same_as
from trainplan.imported_runs.to_plan import read

CONFIG = "bridge.yaml"


def in_bfloat16(plan: Plan) -> Plan:
    """The plan as it is trained: bfloat16 with float32 masters."""
    shape = plan.planned_model().in_dtype("bfloat16").shape()
    return plan.changed(model=shape, precision={"master": "float32"}, memory_bytes=2**47, predicted=None)


@cache
def small() -> str:
    """The file of a small plan's export."""
    model = load_model("llama3-8b", 1024)
    plan = in_bfloat16(plan_of(model, ["sdp2-tp2-zero1-sp"] * len(model.units), 8, 16, 4, [33]))
    return tp.export(plan, "megatron-bridge").files[CONFIG]


def exported(folder: Path, **changes: Any) -> Path:
    """`small` written, with fields set that are named with their sections; None takes one away."""
    data = yaml.safe_load(small())
    for field, value in changes.items():
        section, _, key = field.partition("__")
        if value is None:
            del data[section][key]
        else:
            data.setdefault(section, {})[key] = value
    (folder / CONFIG).write_text(yaml.safe_dump(data, sort_keys=False))
    return folder / CONFIG


@pytest.mark.parametrize("seed", first_and_others(range(12), stride=2))
def test_every_field_says_what_the_plan_does_and_comes_back(tmp_path: Path, seed: int) -> None:
    plan = in_bfloat16(random_exported(random.Random(seed)))
    made = tp.export(plan, "megatron-bridge")
    write_export(made, tmp_path)
    stated = yaml.safe_load((tmp_path / CONFIG).read_text())
    for section, fields in stated.items():
        assert set(fields) <= SECTIONS[section]
    model, train, ddp, strategy = stated["model"], stated["train"], stated["ddp"], plan.strategies()[0]
    attention = next(part for part in plan.planned_model().sublayers.values() if isinstance(part, Attention))
    assert (model["hidden_size"], model["num_attention_heads"]) == (attention.hidden, attention.heads)
    assert model.get("num_query_groups", attention.heads) == attention.kv_heads
    degrees = model["tensor_model_parallel_size"], model["pipeline_model_parallel_size"]
    assert degrees == (strategy.degree("tp"), plan.depth)
    data = plan.world // degrees[0] // degrees[1]
    assert train["global_batch_size"] == data * train["micro_batch_size"] * plan.batch.micro_batches
    sharded = stated["optimizer"].get("use_distributed_optimizer", False)
    assert sharded == ddp.get("use_distributed_optimizer", False) == (strategy.zero_stage > 0)
    assert model["vocab_size"] % degrees[0] == 0 and 0 <= model["vocab_size"] - plan.planned_model().vocabulary < degrees[0]
    size = min(8, plan.world)
    run = tp.import_run(tmp_path / CONFIG, cluster=f"h100:{size}x{plan.world // size}", search=False, memory=2**47)
    assert made.plan is not None and run.configuration.unknown == ()
    same_as(made.plan, run.plan)


def test_interleaved_stages_and_files_of_its_own_forms_are_read(tmp_path: Path) -> None:
    """A named precision, stages as lists, numbers of layers of the ends, and fields that have defaults."""
    layout = [["embedding", *["decoder"] * 10], ["decoder"] * 8, ["decoder"] * 8, [*["decoder"] * 6, "loss"]]
    path = exported(tmp_path, model__pipeline_model_parallel_layout=layout)
    configuration = read(path)
    assert configuration.cuts == (21, 37, 53) and configuration.chunks == 2
    ends = {"model__num_layers_in_first_pipeline_stage": 14, "model__pipeline_model_parallel_layout": None}
    assert read(exported(tmp_path, **ends)).cuts == (29,)
    data = yaml.safe_load(exported(tmp_path, model__ffn_hidden_size=None).read_text())
    path.write_text(yaml.safe_dump({**data, "mixed_precision": "bf16_mixed"}))
    configuration = read(path)
    assert configuration.precision.gradients == "float32" and configuration.dtype == "bfloat16"
    assert configuration.config is not None and configuration.config["intermediate_size"] == 4 * 4096


def test_misspelt_fields_are_found(tmp_path: Path) -> None:
    path = exported(tmp_path, model__recompute_granularty="full", train__empty_unused_memory_levels=1)
    with refused(
        "model.recompute_granularty", problem="full", fix=("--ignore model.recompute_granularty", "model.recompute_granularity")
    ):
        read(path)
    configuration = read(path, user=UserSettings(ignored=frozenset({"model.recompute_granularty"})))
    assert configuration.unknown == ("train.empty_unused_memory_levels (did you mean train.empty_unused_memory_level?)",)


@pytest.mark.parametrize(
    ("changes", "field", "problem", "fix"),
    [
        (
            {"model__num_layers": 31, "model__pipeline_model_parallel_layout": None},
            "model.num_layers",
            31,
            (2, "model.pipeline_model_parallel_layout"),
        ),
        ({"model__num_layers": 31}, "model.pipeline_model_parallel_layout", (32, 31), "Et*16|t*15L"),
        ({"model__context_parallel_size": 0}, "model.context_parallel_size", 0, 1),
        (
            {"model__context_parallel_size": 2, "model__cp_comm_type": "a2a+p2p"},
            "model.cp_comm_type",
            "a2a+p2p",
            ("p2p", "allgather", "a2a"),
        ),
        ({"model__activation_func": "relu"}, "model.activation_func", "relu", ("silu", "gelu", "squared_relu")),
        ({"train__micro_batch_size": 0}, "train.micro_batch_size", 0, 1),
    ],
)
def test_what_no_plan_has_is_refused_by_its_field(
    tmp_path: Path, changes: dict[str, Any], field: str, problem: Facts, fix: Facts
) -> None:
    with refused(field, problem=problem, fix=fix):
        read(exported(tmp_path, **changes))


def test_cuts_within_a_layer_are_refused() -> None:
    model = load_model("llama3-8b", 1024)
    plan = in_bfloat16(plan_of(model, ["sdp2-zero1"] * len(model.units), 4, 8, 4, [34]))
    whole = ("`plan --like partition --no-by-unit`", "--to megatron")
    not_exported(plan, "megatron-bridge", "stages[1].first_unit", (34, "block16.ffn"), whole)
