"""Files of runs: what is refused, what is taken for what they leave open, and that every field counts."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trainplan.profiling.base.errors import InputWarning
from trainplan.profiling.clusters.efficiencies import shipped_efficiencies
from trainplan.profiling.shipped import shipped

from tests.helpers.calls import call
from tests.helpers.refusals import Facts, assert_refusal_text, cautioned, refused
from trainplan.validation.layouts import laid_run
from trainplan.validation.predict import predict_runs, step_of
from trainplan.validation.rows import UNMOVED, Run, load_runs

ROW: dict[str, Any] = {
    "id": "one",
    "source": "made up",
    "model": "llama3-8b",
    "gpu": "H100-80GB-SXM",
    "gpus": 64,
    "seq": 8192,
    "gbs": 128,
    "mbs": 1,
    "tp": 2,
    "pp": 2,
    "vpp": 2,
    "cp": 2,
    "dp": 8,
    "zero": 1,
    "precision": "bf16",
    "recompute": "none",
    "framework": "Megatron-Core",
    "date": "2024-09",
    "step_s": 5.0,
}
# What each field becomes; with the others that must change with it.
CHANGES: dict[str, dict[str, Any]] = {
    "model": {"model": "qwen3-8b"},
    "layers": {"layers": 16},
    "hidden": {"hidden": 2048, "heads": 16},
    "heads": {"heads": 16},
    "kv_heads": {"kv_heads": 16},
    "ffn": {"ffn": 8192},
    "vocab": {"vocab": 32000},
    "gpu": {"gpu": "A100-80GB-SXM"},
    "gpus": {"gpus": 128, "dp": 16},
    "seq": {"seq": 4096},
    "gbs": {"gbs": 256},
    "mbs": {"mbs": 2},
    "tp": {"tp": 4, "dp": 4},
    "pp": {"pp": 4, "dp": 4},
    "vpp": {"vpp": 4},
    "cp": {"cp": 1, "dp": 16},
    "dp": {"dp": None, "gpus": 32},
    "fsdp": {"fsdp": "fsdp8"},
    "recompute": {"recompute": "full"},
    "precision": {"precision": "FP8"},
    "note": {"note": "overlap-grad-reduce"},
    "facts": {"facts": "overlap-grad-reduce"},
    "date": {"date": "2022-05", "framework": "Megatron-LM"},
    "framework": {"framework": "NeMo 2"},
    "zero": {"zero": 0},
    "task": {"task": "LoRA"},
    "head_dim": {"head_dim": 64},
    "asym_embed": {"asym_embed": True},
    "asym_loss": {"asym_loss": "yes", "asym_embed": "no"},
    "megatron_fsdp": {"megatron_fsdp": True},
    "overlap_grad_reduce": {"overlap_grad_reduce": True},
    "overlap_param_gather": {"overlap_param_gather": "true"},
    "offload_layers": {"offload_layers": 4},
    "cuda_graph": {"cuda_graph": "local: full_iteration"},
}
NEEDED: dict[str, dict[str, Any]] = {  # of what the field speaks
    "date": {"framework": "Megatron-LM"},
    "params": {"vocab": 128256},
    "asym_embed": {"layers": 31},
    "asym_loss": {"layers": 31, "asym_embed": True},
    "megatron_fsdp": {"zero": None},
    "cuda_graph": {"note": "launch-bound"},
}
# A mixture of experts, and what each of its fields becomes.
SIZES = {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 32000}
EXPERTS = {"experts": 8, "topk": 2, "moe_ffn": 4096, "ep": 4, "etp": 2, "capacity_factor": 2.0}
WINDOWS = {"window": 512, "window_every": 2}
GRAPHS = {"cuda_graph": "full_iteration", "vpp": 1, "routing": "real"}
MIXTURE = {**ROW, "model": "a mixture", **SIZES, **EXPERTS, **WINDOWS, **GRAPHS}
MIXTURE_CHANGES: dict[str, dict[str, Any]] = {
    "experts": {"experts": 16},
    "topk": {"topk": 1},
    "ep": {"ep": 2},
    "moe_ffn": {"moe_ffn": 2048},
    "shared_ffn": {"shared_ffn": 2048},
    "shared_experts": {"shared_experts": 1},
    "dense_first": {"dense_first": 2},
    "moe_layer_freq": {"moe_layer_freq": 2},
    "head_dim": {"head_dim": 64},
    "window": {"window": 1024},
    "window_every": {"window_every": 1},
    "mla": {"mla": {"q_lora": 768, "kv_lora": 512, "qk_nope": 128, "qk_rope": 64, "v_head": 128}},
    "mtp": {"mtp": 1},
    "untied": {"untied": False},
    "swiglu": {"swiglu": False},
    "etp": {"etp": 1},
    "dispatcher": {"dispatcher": "deepep"},
    "ep_overlap": {"ep_overlap": True},
    "grouped_gemm": {"grouped_gemm": False},
    "capacity_factor": {"capacity_factor": 1.1},
    "pad_to_capacity": {"pad_to_capacity": True},
    "cuda_graph": {"cuda_graph": None},
    "routing": {"routing": "forced balance"},
    "imbalance": {"imbalance": 1.5},
    "pp_layout": {"pp_layout": "Et*20|t*12L"},
}
MIXTURE_NEEDED = {"cuda_graph": {"seq": 512}, "untied": {"pp": 1, "dp": 16}}
REFUSED = {"ep": 2}  # without experts, predictions say that they cannot


@pytest.mark.parametrize("field", MIXTURE_CHANGES)
def test_every_field_of_a_mixture_moves_its_prediction(field: str) -> None:
    before = {**MIXTURE, **MIXTURE_NEEDED.get(field, {})}
    first, second = (predict_runs(load_runs([row]))[0] for row in (before, {**before, **MIXTURE_CHANGES[field]}))
    assert not first.cannot, first.cannot
    assert not second.cannot, second.cannot
    assert (first.step_s, first.peak_gib) != (second.step_s, second.peak_gib)


@pytest.mark.parametrize("field", [field for field in Run.model_fields if field not in MIXTURE_CHANGES or field in REFUSED])
def test_every_field_moves_the_prediction_or_says_why_it_does_not(field: str) -> None:
    before = {**ROW, **NEEDED.get(field, {})}
    if field in UNMOVED:
        value = {"params": 1e9, "oom": True}.get(field, f"{before.get(field)}!" if field in ("id", "source", "file") else 7.0)
        after = {**before, field: value}
    elif field in REFUSED:
        after = {**before, field: REFUSED[field]}
    else:
        after = {**before, **CHANGES[field]}
    first, second = predict_runs(load_runs([before]))[0], predict_runs(load_runs([after]))[0]
    assert not first.cannot
    reported = dict.fromkeys(
        ("id", "measured_s", "measured_by", "error", "memory_error", "remarks", "assumed")
    )  # of what was measured
    same = {**second.to_dict(), **reported} == {**first.to_dict(), **reported}
    assert same == (field in UNMOVED), second
    assert bool(second.cannot) == (field in REFUSED)


def test_what_a_row_leaves_open_is_named() -> None:
    laid = laid_run(Run(id="one", model="gpt3-175b", gpu="a100", gpus=8, framework="Megatron-LM", tp=8))
    assert laid.assumed.keys() >= {"pp", "mbs", "gbs", "zero", "precision", "recompute", "vocab", "sequence parallelism"}
    assert laid.assumed["vocab"] == "51200, padded"  # of 50257, to 128 on each of 8 ranks
    assert laid.model.vocabulary == 51200


def test_a_reduced_model_has_its_own_sizes() -> None:
    sizes = {"layers": 12, "hidden": 8192, "heads": 64, "kv_heads": 8, "ffn": 28672, "vocab": 128256}
    laid = laid_run(Run(id="one", model="llama3-70b", gpu="b200", gpus=8, **sizes))  # type: ignore[arg-type]
    assert laid.model.layers == 12
    layer = 2 * 8192 * 8192 + 2 * 1024 * 8192 + 3 * 28672 * 8192 + 2 * 8192
    assert laid.model.total_parameters == 12 * layer + 2 * 128256 * 8192 + 8192


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"runs": []}, "give a list of runs"),
        ([], "holds no run"),
    ],
)
def test_files_that_are_no_runs_get_one_line(rows: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    path.write_text(json.dumps(rows))
    outcome = call("validate", path)
    assert outcome.returncode == 2 and outcome.stdout == ""
    assert message in outcome.stderr and len(outcome.stderr.splitlines()) == 1, outcome.stderr


def test_an_element_that_is_no_object_is_named_and_others_are_predicted(tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    path.write_text(json.dumps([ROW, 7]))
    outcome = call("validate", path)
    assert outcome.returncode == 0 and "1 measured step of 2 runs" in outcome.stdout
    assert "[1] cannot be predicted" in " ".join(outcome.stdout.split()) and "is 7" in " ".join(outcome.stdout.split())


def test_what_cannot_be_predicted_says_why_and_the_rest_is_predicted() -> None:
    rows = [
        ROW,
        {**ROW, "id": "two", "gpu": "TPU v5"},
        {**ROW, "id": "three", "dp": 3},
        {**ROW, "id": "four", "gpu": "V100-32GB", "precision": "FP8"},
    ]
    fine, *others = predict_runs(load_runs(rows))
    assert not fine.cannot and fine.fits and fine.step_s and fine.step_low_s and fine.step_low_s < fine.step_s
    expected: list[tuple[str, Facts, Facts]] = [
        ("gpu", "TPU v5", "`trainplan cluster kinds`"),
        ("dp", (3, 64, "tp 2", "pp 2", "cp 2"), 8),
        ("precision", ("FP8", "V100"), ("float32", "float64", "float16")),
    ]
    for other, (field, problem, fix) in zip(others, expected, strict=True):
        assert_refusal_text(other.cannot, field, problem=problem, fix=fix)
        assert other.step_s is None and other.fits is None


def test_rows_of_functional_tests_are_known_by_their_notes() -> None:
    """This holds for any source: they train with dropout and unfused attention, and no tokens are shared unless they say so."""
    note = "flags deterministic-mode,attention-softmax-in-fp32; test {}; transformer-impl transformer_engine; launch-bound"
    row = {**ROW, "model": "gpt-tiny", "layers": 12, "hidden": 512, "heads": 8, "seq": 1024, "cp": 1, "dp": 16, "vpp": 1}
    peaks = []
    for source in ("megatron-lm-ci", "mine"):
        rows = [{**row, "id": kind, "source": source, "note": note.format(kind)} for kind in ("regular", "ckpt-resume")]
        laid = [laid_run(run).layout for run in load_runs(rows)]
        assert [entry.framework.fused_attention for entry in laid] == [False, True]
        assert all(entry.framework.drops and not entry.sequence_parallel for entry in laid)
        peaks.append([one_run.peak_gib for one_run in predict_runs(load_runs(rows))])
    assert peaks[0] == peaks[1]


def test_numbers_may_be_texts() -> None:
    texts = {name: str(value) for name, value in ROW.items()}
    texts |= {
        "gpus": "64.0",
        "seq": "8K",
        "gbs": "128",
        "step_s": "5.0",
        "params": "n/a",
        "vocab": "128,256",
        "oom": "no",
        "ep": "",
    }
    (read,), (meant,) = load_runs([texts]), load_runs([{**ROW, "vocab": 128256, "oom": False}])
    assert read == meant and not predict_runs([read])[0].cannot
    (wrong,) = load_runs([{**ROW, "tp": "2x4"}])
    assert_refusal_text(predict_runs([wrong])[0].cannot, "tp", problem="2x4", fix=1000)


def test_a_table_without_measured_steps_is_printed_without_a_picture(tmp_path: Path) -> None:
    path, picture = tmp_path / "runs.json", tmp_path / "errors.png"
    path.write_text(json.dumps([{name: value for name, value in ROW.items() if name != "step_s"}]))
    outcome = call("validate", path, "--picture", picture)
    assert outcome.returncode == 0 and "llama3-8b" in outcome.stdout and not picture.exists()
    assert "there is no picture of errors" in outcome.stdout


def test_unknown_fields_are_warned_of() -> None:
    with cautioned("[0].weather"):
        load_runs([{**ROW, "weather": "fine"}])
    with pytest.warns(InputWarning) as caught:
        load_runs([ROW, {**ROW, "id": "two", "weather": "fine", "recompte": "full"}])
    [said] = [str(warning.message) for warning in caught]
    assert "[1].recompte (recompute?), [1].weather are fields" in said
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_runs([{**ROW, "weather": None}])


def test_a_row_that_is_no_object_does_not_stop_the_others() -> None:
    number, whole, text = predict_runs(load_runs([5, ROW, "x"]))  # type: ignore[list-item]
    assert_refusal_text(number.cannot, "row", problem="5", fix=("object", "model", "gpus"))
    assert_refusal_text(text.cannot, "row", problem="x", fix="object")
    assert number.run.found_in == "runs: [0]" and text.run.found_in == "runs: [2]" and not whole.cannot


def test_ranks_that_divide_experts_need_experts() -> None:
    dense, unknown = predict_runs(load_runs([{**ROW, "ep": 8}, {**ROW, "id": "two", "model": "mine", "ep": 8}]))
    assert_refusal_text(dense.cannot, "ep", problem=(8, "llama3-8b", "no experts"), fix=("leave ep out", "experts"))
    assert_refusal_text(unknown.cannot, "layers", problem="missing", fix="give it")


MEASURED = ("measured_s", "measured_by", "error", "memory_error", "remarks", "assumed")


def test_json_has_the_documented_fields(tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    path.write_text(json.dumps([ROW]))
    (row,) = json.loads(call("validate", path, "--json").stdout)
    assert list(row) == [
        "id",
        "step_s",
        "step_low_s",
        "step_high_s",
        "peak_gib",
        "fits",
        "fit",
        "fit_probability",
        "close",
        "as_taken",
        "cannot",
        *MEASURED,
    ]
    table = call("validate", path, "--assumptions").stdout
    assert "errors of the step" in table and "llama3-8b" in table


def test_errors_by_source_are_shown_where_a_row_names_one(tmp_path: Path) -> None:
    path, bare = tmp_path / "runs.json", {name: value for name, value in ROW.items() if name != "source"}
    path.write_text(json.dumps([bare]))
    assert " source " not in call("validate", path).stdout
    path.write_text(json.dumps([bare, {**ROW, "id": "other", "source": "a paper"}]))
    shown = call("validate", path).stdout
    assert " source " in shown and " not said " in shown and " a paper " in shown


def test_a_layout_that_its_batch_does_not_fill_counts_whole_micro_batches() -> None:
    laid = laid_run(Run(**{**ROW, "gbs": 100}))
    assert laid.layout.micro_batches == 13 and laid.assumed["gbs"].startswith("104: whole micro-batches")
    assert replace(laid.layout, batch=128).micro_batches == 16


def test_a_batch_of_little_more_than_whole_micro_batches_has_no_further_one() -> None:
    laid = laid_run(Run(id="one", model="opt-6.7b", gpu="A100-80GB-SXM", gpus=124, gbs=1024, mbs=8))
    assert (laid.layout.micro_batches, laid.layout.batch) == (1, 992) and "gbs" in laid.assumed


def test_no_micro_batch_is_more_than_a_rank_s_share() -> None:
    laid = laid_run(Run(**{**ROW, "gbs": 16, "mbs": 32}))
    assert (laid.layout.micro, laid.layout.micro_batches) == (2, 1) and laid.assumed["mbs"].startswith("2, a rank's share")


def test_a_local_batch_of_torchtitan_is_cut_for_its_pipelines() -> None:
    run = Run(
        id="one", model="llama3.1-405b", gpu="H100-80GB-SXM", gpus=512, tp=8, pp=8, gbs=128, mbs=16, framework="torchtitan"
    )
    laid = laid_run(run)
    assert (laid.layout.micro, laid.layout.micro_batches) == (1, 16) and "torchtitan's pipelines" in laid.assumed["mbs"]
    others = laid_run(run.model_copy(update={"framework": "Megatron-LM"}))
    assert (others.layout.micro, others.layout.micro_batches) == (16, 1)


WORDS = {
    "model": st.sampled_from([*shipped("models"), "Qwen/Qwen3-14B", "gpt-x", "MPT-30B", "weird"]),
    "gpu": st.sampled_from(["A100-80GB-SXM", "H100-80GB-SXM", "GB200-192GB-NVL72", "MI300X-192GB", "V100-32GB", "T4", "H800"]),
    "gpus": st.sampled_from([1, 3, 8, 24, 64, 1000]),
}
OPEN = {
    **dict.fromkeys(("tp", "pp", "vpp", "cp", "mbs"), st.integers(1, 8)),
    **dict.fromkeys(("layers", "gbs"), st.integers(1, 100)),
    "seq": st.integers(1, 2**17),
    "zero": st.integers(0, 3),
    "vocab": st.sampled_from([50257, 128256, 1]),
    "precision": st.sampled_from(["bf16", "FP8", "fp16", "NVFP4", "tf32", "BF16-mixed", "?"]),
    "fsdp": st.sampled_from(["no", "fsdp8", "hsdp8", "full_shard(ZeRO-3)", "shard_grad_op(ZeRO-2)"]),
    "recompute": st.sampled_from(["none", "full", "selective", "selective-op", "every 2nd", "full(5 layers)", "block"]),
    "framework": st.sampled_from(["NeMo 2/Megatron-Core", "Megatron-LM", "torchtitan", "DeepSpeed", "InternEvo", "MaxText"]),
    "date": st.sampled_from(["2021-04", "25.02"]),
    "task": st.sampled_from(["pretrain", "sft", "lora"]),
}


@settings(max_examples=200)
@given(st.fixed_dictionaries(WORDS, optional=OPEN))
def test_any_row_is_predicted_or_says_why_not(row: dict[str, Any]) -> None:
    (prediction,) = predict_runs(load_runs([{"id": "any", **row}]))
    if prediction.cannot:
        assert len(prediction.cannot.splitlines()) == 1 and prediction.step_s is None
    else:
        assert prediction.step_low_s and prediction.step_s and prediction.step_high_s and prediction.peak_gib
        assert 0 < prediction.step_low_s < prediction.step_s < prediction.step_high_s < float("inf") and prediction.peak_gib > 0


def test_context_parallel_ranks_may_be_counted_among_the_data_parallel_ones() -> None:
    assert laid_run(Run(**{**ROW, "dp": 16})).layout == laid_run(Run(**ROW)).layout


def test_kinds_with_fewer_links_are_their_own() -> None:
    """An H800 computes as an H100 does, and its tensor-parallel ranks wait longer."""
    fewer, more = (laid_run(Run(id="one", model="llama3-8b", gpu=gpu, gpus=8, tp=8, gbs=8)) for gpu in ("H800-80GB", "H100"))
    assert "gpu" not in fewer.assumed and fewer.sheet.flops_per_s["bfloat16"] == more.sheet.flops_per_s["bfloat16"]
    steps = [step_of(laid, shipped_efficiencies()) for laid in (fewer, more)]
    assert steps[0].step_ns > 1.1 * steps[1].step_ns
    assert laid_run(Run(id="one", model="llama3-8b", gpu="RTX 3090 Ti", gpus=8)).assumed["gpu"] == "as rtx3090"


def test_a_run_needs_degrees_that_divide_its_devices() -> None:
    with refused("gpus"):
        laid_run(Run(**{**ROW, "tp": 3}))


def test_fields_that_bear_under_another_name_are_not_left_out() -> None:
    """A row without its batch or its length would be predicted as another run."""
    row = {"id": "a", "model": "llama3-8b", "gpu": "H100", "gpus": 8, "seq": 4096, "mbs": 1}
    [made] = predict_runs(load_runs([{**row, "batch": 64}]))
    assert_refusal_text(made.cannot, "batch", problem="gbs", fix="gbs")
    assert made.step_s is None
    with cautioned("[0].batch"):
        [made] = predict_runs(load_runs([{**row, "batch": 64, "gbs": 64}]))
    assert not made.cannot


def test_facts_stand_for_the_note() -> None:
    """A note may hold what was measured; the words that were known before the run decide its prediction."""
    row = {
        "id": "a",
        "model": "llama3-8b",
        "gpu": "h100",
        "gpus": 8,
        "note": "exact: 4673179648; LoRA",
        "facts": "overlap_comm",
    }
    (run,) = load_runs([row])
    assert run.note == "overlap_comm" and load_runs([{**row, "facts": None}])[0].note == row["note"]
