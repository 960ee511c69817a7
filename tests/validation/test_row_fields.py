"""Fields of rows that only some frameworks have, what rows leave open, and what the command prints on a narrow screen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from trainplan.formulations.costs.overlapped.analytic_step import chunks_of

import trainplan as tp
from tests.helpers.calls import call
from tests.helpers.published import DATA
from tests.helpers.refusals import assert_refusal_text
from tests.validation.test_runs import ROW
from trainplan.command import printing, validating
from trainplan.validation.layouts import laid_run
from trainplan.validation.predict import predict_runs
from trainplan.validation.rows import Run, load_runs

MEASURED = DATA.parent / "measured"


def test_a_width_of_heads_is_the_model_s_or_is_refused() -> None:
    sizes = {"layers": 4, "hidden": 1024, "heads": 8, "kv_heads": 8, "ffn": 4096, "vocab": 1000}
    made = [Run(id="one", model="mine", gpu="h100", gpus=8, head_dim=width, **sizes) for width in (128, 256)]  # type: ignore[arg-type]
    narrow, wide = (laid_run(run).model.total_parameters for run in made)
    assert wide - narrow == 4 * 4 * 1024 * 1024, "queries, keys, values and output of each layer are twice as wide"
    own = laid_run(Run(**{**ROW, "head_dim": 128})).model
    assert own.total_parameters == laid_run(Run(**ROW)).model.total_parameters
    [gpt] = predict_runs(load_runs([{"id": "one", "model": "gpt2", "gpu": "h100", "gpus": 8, "head_dim": 128}]))
    assert_refusal_text(gpt.cannot, "head_dim", problem=(128, 64), fix=64)


def test_ends_that_count_as_layers_cut_stages_as_the_row_says() -> None:
    def layers(**fields: Any) -> list[int]:
        laid = laid_run(Run(**{**ROW, "dp": 8, **fields}))
        return [chunk.layers for chunk in chunks_of(laid.model, laid.layout)]

    assert layers(layers=31, asym_embed=True) == [7, 8, 8, 8]
    assert layers(layers=31, asym_loss=True) == [8, 8, 8, 7]
    assert layers(layers=30, asym_embed=True, asym_loss=True) == layers(layers=30) == [7, 8, 8, 7]
    assert layers(layers=30, asym_embed=False) == [8, 8, 7, 7]
    [odd] = predict_runs(load_runs([{**ROW, "asym_embed": "True"}]))
    assert_refusal_text(odd.cannot, "asym_embed", problem=(33, 4), fix="false")


def test_graphs_of_whole_iterations_hide_launches_and_nothing_else_is_said_of_them() -> None:
    row = {**ROW, "facts": "launch-bound"}
    told = ("none: full_iteration", "transformer_engine: ['attn']", "local: full_iteration", "full_iteration: []", True)
    laid = [laid_run(run) for run in load_runs([{**row, "id": str(words), "cuda_graph": words} for words in told])]
    assert [run.layout.framework.issue_ns > 0 for run in laid] == [True, True, False, False, False]
    assert ["cuda_graph" in run.assumed for run in laid] == [False, True, True, True, True]
    assert all("memory is not predicted" in run.assumed["cuda_graph"] for run in laid[1:])


def test_what_overlaps_is_named_where_a_row_leaves_it_open() -> None:
    rows = [
        ROW,
        {**ROW, "id": "half", "facts": "overlap-grad-reduce"},
        {**ROW, "id": "all", "overlap_grad_reduce": True, "overlap_param_gather": False},
        {**ROW, "id": "alone", "zero": 0, "overlap_grad_reduce": False},
        {**ROW, "id": "recipe", "framework": "NeMo 2"},
        {**ROW, "id": "always", "framework": "torchtitan", "fsdp": "full_shard", "zero": None},
        {**ROW, "id": "zero", "framework": "DeepSpeed", "tp": 1, "pp": 1, "vpp": 1, "cp": 1, "dp": 64, "zero": 2},
    ]
    first, half, *told, recipe, always, zero = predict_runs(load_runs(rows))
    assert first.left_open["overlap"] == (
        "gradients reduced after backward passes and parameters gathered before forward passes; "
        "give overlap_grad_reduce and overlap_param_gather"
    )
    assert half.left_open["overlap"].endswith("give overlap_param_gather")
    assert "gradients reduced alongside" in recipe.left_open["overlap"]
    assert all("overlap" not in run.left_open for run in (*told, always))
    assert zero.left_open["overlap"] == "gradients reduced alongside backward passes; give overlap_grad_reduce"


@pytest.mark.parametrize(
    ("name", "fields", "taken"),
    [
        ("foo", {"tp": 1, "pp": 1, "vpp": 1, "cp": 1, "dp": None, "zero": 3}, "PyTorch FSDP: it is none of Megatron-LM"),
        ("foo", {}, "Megatron-Core: it is none of"),
        ("JAX", {"zero": 3}, "PyTorch FSDP, compiled: how XLA"),
        *((name, {}, None) for name in ("Megatron-LM", "NeMo 1/Megatron-Core", "nanotron v0.5", "GPT-NeoX")),
    ],
)
def test_a_framework_that_is_not_known_is_named_with_what_it_is_taken_for(
    name: str, fields: dict[str, Any], taken: str | None
) -> None:
    [run] = predict_runs(load_runs([{**ROW, **fields, "framework": name}]))
    assert not run.cannot
    said = [text for text in run.remarks if text.startswith("framework")]
    assert said == [] if taken is None else said[0].startswith(f"framework {name} is taken as {taken}")


def test_an_error_names_file_row_field_value_and_a_value_that_works(tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    wrong: list[tuple[dict[str, Any], str, tuple[str, str]]] = [
        ({"gpus": 0}, "gpus is 0", ("devices", "8")),
        ({"gpus": "8x2"}, "gpus is '8x2'", ("devices", "8")),
        ({"gpu": None}, "gpu is missing", ("h100", "trainplan cluster kinds")),
        ({"mbs": -1}, "mbs is -1", ("at least", "1")),
        ({"model": "lama3-8b"}, "model is 'lama3-8b'", ("llama3-8b", "layers, hidden and heads")),
        ({"tp": 3}, "gpus is 64, of tp 3", ("divides", "gpus")),
    ]
    path.write_text(json.dumps([{**ROW, "id": f"r{index}", **fields} for index, (fields, _, _) in enumerate(wrong)]))
    lines = [text for text in call("validate", path).stdout.splitlines() if "cannot be predicted" in text]
    assert len(lines) == len(wrong)
    for index, (text, (fields, problem, fix)) in enumerate(zip(lines, wrong, strict=True)):
        name = fields.get("model", ROW["model"])
        assert text.startswith(f"{path}: [{index}] r{index} ({name}) cannot be predicted: {problem}")
        assert all(word in text for word in fix)


def test_a_measurement_of_nothing_is_named() -> None:
    [run] = tp.validate([{**ROW, "step_s": 0, "mfu": 0.0}])
    assert run.measured_s is None and [text.split(" is ")[0] for text in run.remarks] == ["step_s 0", "mfu 0"]


def test_a_table_of_runs_fits_eighty_columns_and_details_have_the_rest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "a-run-whose-id-is-much-too-long-for-a-narrow-table"
    rows = [{**ROW, "id": f"{name}-{index}", "framework": "NeMo", "mem_gib": 20.0} for index in range(3)]
    predictions = tp.validate(rows)

    def shown(columns: int, details: bool = False) -> str:
        monkeypatch.setattr(printing.out, "width", columns)
        validating._show(predictions, False, details)
        return capsys.readouterr().out

    lines = [text for text in shown(80).splitlines() if text.startswith("a-run") and "leaves open" not in text]
    assert len(lines) == 3 and all(len(text) <= 80 and " 5 s " in text for text in lines)
    assert len({text.split()[0] for text in lines}) == 3, "shortened ids are distinct"
    assert "dp8 tp2" in shown(200)
    details = shown(80, True)
    assert f"{name}-2" in details and "dp8 tp2 pp2 vpp2 cp2 zero1" in details and "left open" in details


def test_errors_are_by_device_only_where_there_are_several(tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    path.write_text(json.dumps([ROW]))
    assert call("validate", path).stdout.count("errors of the step") == 1
    path.write_text(json.dumps([ROW, {**ROW, "id": "other", "gpu": "a100"}]))
    assert call("validate", path).stdout.count("errors of the step") == 2


def test_the_schema_of_runs_is_that_of_the_rows_that_are_read() -> None:
    described = tp.schema("runs")
    assert described["type"] == "array" and set(described["$defs"]["Run"]["properties"]) == set(Run.model_fields)
    assert described["$defs"]["Run"]["required"] == ["id", "model", "gpu", "gpus"]
    assert json.loads(call("schema", "runs").stdout) == described


def test_published_rows_say_of_fields_what_their_notes_say() -> None:
    """Embedding and loss as layers, and layers whose activations are on the host, are stated by fields and by facts alike."""
    if not MEASURED.exists():
        pytest.skip("needs measured runs: set TRAINPLAN_DATA")
    rows = [row for name in ("mlperf", "dense_more") for row in json.loads((MEASURED / f"{name}.json").read_text())]
    chosen = [row for row in rows if row.get("asym_embed") or row.get("offload_layers")]
    assert len(chosen) > 8
    for row in chosen:
        without = {name: value for name, value in row.items() if name not in ("asym_embed", "asym_loss", "offload_layers")}
        first, second = (predict_runs(load_runs([{**fields, "note": None}]))[0] for fields in (row, without))
        assert not first.cannot and (first.step_s, first.peak_gib) == (second.step_s, second.peak_gib), row["id"]
