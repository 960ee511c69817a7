"""Plans of models of state spaces and delta nets: they are found, become programs that pass the checker with a proof, and leave
out what such layers do not have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import trainplan as tp
from tests.helpers.refusals import cautioned, refused

pytestmark = pytest.mark.filterwarnings("ignore::trainplan.profiling.base.errors.InputWarning")
LAYERS: dict[str, Any] = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 8, "num_key_value_heads": 4}
LAYERS |= {"max_position_embeddings": 4096, "vocab_size": 32000, "torch_dtype": "bfloat16"}
MODELS: dict[str, dict[str, Any]] = {
    "nemotron_h": {"hybrid_override_pattern": "M-M*-M-M", "num_hidden_layers": 8, "mamba_num_heads": 32, "mamba_head_dim": 64}
    | {"n_groups": 4, "ssm_state_size": 64, "head_dim": 128},
    "qwen3_5_text": {"num_hidden_layers": 4, "linear_num_key_heads": 4, "linear_num_value_heads": 8, "head_dim": 128}
    | {"linear_key_head_dim": 64, "linear_value_head_dim": 64},
}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The path of a small model's config.json."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": request.param, **LAYERS, **MODELS[request.param]}), encoding="utf-8")
    return str(path)


def test_times_of_scans_are_said_to_be_of_shapes_alone(model: str) -> None:
    with cautioned("--model", problem="scan"):
        tp.plan(model=model, cluster="h100-8", batch=8, sequence=4096, tp=2, pipeline=1)


def test_a_plan_becomes_programs_that_pass_the_checker(model: str) -> None:
    found = tp.plan(model=model, cluster="h100-8", batch=32, sequence=4096, tp=2, pipeline=2)
    assert found.plan is not None and found.plan.predicted is not None
    checked = tp.check(found.plan)
    assert checked.faults == ()
    assert {strategy.degree("tp") for strategy in found.plan.strategies()} == {2}


def test_groups_of_heads_limit_tensor_parallelism(model: str) -> None:
    with refused("--tp", fix="1, 2, 4"):
        tp.plan(model=model, cluster="h100-8", batch=32, sequence=4096, tp=8)


def test_samples_are_not_cut(model: str) -> None:
    with refused("--cp", problem="state", fix="1"):
        tp.plan(model=model, cluster="h100-8", batch=32, sequence=4096, cp="2")


def test_no_runtime_of_others_has_them(model: str) -> None:
    with refused("--for", problem="megatron"):
        tp.plan(model=model, cluster="h100-8", batch=32, sequence=4096, for_="megatron")
