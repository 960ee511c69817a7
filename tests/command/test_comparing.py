"""`compare` takes plans alone; what else it did once is refused in a line that names the command which does it now."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from trainplan.execution.runtimes.export_common import write_export
from trainplan.profiling.models.model import load_model

import trainplan as tp
from tests.helpers.calls import call
from tests.helpers.plans import plan_of
from trainplan.planning.result_rows import compared_by


@pytest.mark.parametrize(
    ("words", "now"),
    [
        (["instance.json"], "trainplan compare-methods INSTANCE"),
        (["instance.json", "--method", "milp"], "trainplan compare-methods INSTANCE"),
        (["instance.json", "--warm"], "trainplan compare-methods INSTANCE"),
        (["instance.json", "--time-limit", "10"], "trainplan compare-methods INSTANCE"),
        (["--model", "gpt2", "--cluster", "cpu-4", "--batch", "8"], "trainplan compare-planners MODEL CLUSTER"),
        (["--model=gpt2"], "trainplan compare-planners MODEL CLUSTER"),
    ],
)
def test_what_compare_did_once_names_the_command_that_does_it(words: list[str], now: str, tmp_path: Path) -> None:
    (tmp_path / "instance.json").write_text(json.dumps({"problem": "layer-strategies", "layers": []}))
    done = call("compare", *words, folder=tmp_path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and f"use `{now}`" in done.stderr


def test_compare_needs_a_plan() -> None:
    done = call("compare")
    assert done.returncode == 2 and "Missing argument" in done.stderr


def test_models_of_equal_layers_compare_whatever_their_names(tmp_path: Path) -> None:
    """A run that is read from a script has a model that is named after the script."""
    model = load_model("llama3-8b", 1024, "bfloat16")
    plan = plan_of(model, ["sdp2-tp2-zero1-sp"] * len(model.units), 4, 16, 4)
    plan = plan.changed(memory_bytes=2**47, precision={"master": "float32"})
    write_export(tp.export(plan, "megatron"), tmp_path)
    run = tp.import_run(tmp_path / "launch.sh", cluster="h100:4", search=False).plan
    assert run.planned_model().name != "llama3-8b"
    rows = tp.compare_plans([plan, run])
    assert {row["model"] for row in rows} == {"llama3-8b"} and compared_by(rows) == "step"
    wider = model.with_fields(intermediate_size=2 * model.config["intermediate_size"])
    other = plan_of(wider, ["sdp2-tp2-zero1-sp"] * len(model.units), 4, 16, 4)
    assert compared_by(tp.compare_plans([other.changed(model=other.model | {"name": "wider"}), run])) == ""
