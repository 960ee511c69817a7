"""Measured steps of rows: tokens/s, TFLOP/s and MFU; and contradictions within a row."""

from __future__ import annotations

import json
import warnings
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trainplan.profiling.base.errors import InputWarning

import trainplan as tp
from tests.helpers.calls import call
from tests.helpers.refusals import Facts, assert_refusal_text, cautioned
from trainplan.validation.predict import Prediction
from trainplan.validation.report import by_group
from trainplan.validation.rows import Run

ROW: dict[str, Any] = {
    "model": "llama2-13b", "gpu": "A100 80GB", "gpus": 8, "tp": 4, "mbs": 1, "gbs": 32, "seq": 4096, "recompute": "selective",
    "precision": "bf16", "framework": "NeMo",
}  # fmt: skip
# By hand: 40 layers of 4 h h and 3 h 13824 weights and a head of 32000 h, h = 5120; scores of 4096 keys and their use.
WEIGHTS = 40 * (4 * 5120**2 + 3 * 5120 * 13824) + 32000 * 5120
CORE = 40 * 4 * 4096 * 5120  # of a token, forward
TOKENS = 32 * 4096


def predicted(**changes: Any) -> Prediction:
    """The prediction of the row with these fields."""
    [run] = tp.validate([{"id": "one", **ROW, **changes}])
    assert not run.cannot
    return run


def test_tokens_have_the_error_of_the_step_that_they_make() -> None:
    step = predicted(step_s=8.623)
    tokens = predicted(tokens_s_gpu=TOKENS / (8.623 * 8))
    assert tokens.error == pytest.approx(step.error) and step.step_s is not None
    assert step.error == pytest.approx(step.step_s / 8.623 - 1)
    assert tokens.to_dict()["measured_by"] == "tokens_s_gpu" and tokens.to_dict()["measured_s"] == pytest.approx(8.623)


@pytest.mark.parametrize(
    ("changes", "flops_a_token"),
    [
        ({}, 6 * WEIGHTS + 3 * CORE),
        ({"note": "tflops by 6ND"}, 6 * 13_015_864_320),
        ({"note": "causal FLOPs"}, 6 * WEIGHTS + 3 * CORE / 2),
        ({"framework": "Megatron-Bridge"}, 6 * WEIGHTS + 3 * CORE / 2),
        ({"framework": "Megatron-Core", "date": "2024-06"}, 6 * WEIGHTS + 3 * CORE),
        ({"note": "hardware FLOPs"}, 6 * WEIGHTS + 4 * CORE),
        ({"note": "hardware FLOPs", "recompute": "full"}, 6 * WEIGHTS + 3 * CORE + 2 * (WEIGHTS - 32000 * 5120) + CORE),
        ({"note": "HFU 71.5", "recompute": "full"}, 6 * WEIGHTS + 3 * CORE),
        ({"framework": "Megatron-LM", "date": "2021-04", "recompute": "none"}, 6 * WEIGHTS + 3 * CORE),
    ],
)
def test_flops_are_counted_as_the_source_counts_them(changes: dict[str, Any], flops_a_token: float) -> None:
    seconds = TOKENS * flops_a_token / (160e12 * 8)
    assert predicted(tflops_gpu=160, **changes).measured_s == pytest.approx(seconds, rel=2e-3)


def test_an_mfu_is_of_the_peak_in_the_precision_and_may_be_of_a_hundred() -> None:
    seconds = TOKENS * (6 * WEIGHTS + 3 * CORE) / (0.5 * 312e12 * 8)
    for mfu in (0.5, 50):
        assert predicted(mfu=mfu).measured_s == pytest.approx(seconds, rel=2e-3)
    eight: dict[str, Any] = {"gpu": "H100", "precision": "fp8", "mfu": 0.3}
    assert predicted(**eight, note="of bf16 peak").measured_s == pytest.approx(
        1979 / 989 * predicted(**eight).measured_s, rel=1e-3
    )  # type: ignore[operator]


def test_the_step_counts_first_and_what_contradicts_it_is_reported() -> None:
    alike = predicted(step_s=8.623, tokens_s_gpu=1900, tflops_gpu=165)
    assert alike.measured_s == 8.623
    runs = tp.validate(
        [
            {"id": "apart", **ROW, "step_s": 8.623, "tokens_s_gpu": 1800},
            {"id": "near", **ROW, "step_s": 8.6, "tokens_s_gpu": 1900},
        ]
    )
    counted = predicted(step_s=8.623, tflops_gpu=300)
    [stated] = counted.remarks
    assert counted.measured_s == 8.623 and stated.startswith(
        "step_s is 8.623 s, and tflops_gpu makes it 4.761 s (-44.8%) of model"
    )
    assert [text for text in runs.notes() if "tokens_s_gpu" in text] == [
        "apart: step_s is 8.623 s, and tokens_s_gpu makes it 9.102 s (+5.6%): step_s counts"
    ]


def test_verdicts_are_held_against_what_rows_say() -> None:
    small: dict[str, Any] = {
        "model": "llama2-7b",
        "gpu": "A100 40GB",
        "gpus": 8,
        "tp": 1,
        "gbs": 8,
        "zero": 0,
        "recompute": "none",
    }
    runs = tp.validate(
        [
            {"id": "ran", **ROW, **small, "step_s": 1.0},
            {"id": "oom", **ROW, **small, "oom": True},
            {"id": "lost", **ROW, "oom": True},
            {"id": "more", **ROW, "mem_gib": 90.0},
        ]
    )
    assert [run.fits for run in runs] == [False, False, True, True]
    stated = {text.split(":")[0]: text for text in runs.notes() if text.split(":")[0] in ("ran", "oom", "lost", "more")}
    assert set(stated) == {"ran", "lost", "more"}
    assert "it ran, and" in stated["ran"] and "do not fit" in stated["ran"]
    assert "it ran out of memory, and" in stated["lost"] and "A100-SXM4 80 GB has 80 GiB" in stated["more"]


def test_the_command_compares_all_three(tmp_path: Any) -> None:
    path = tmp_path / "runs.json"
    measures: list[dict[str, Any]] = [{"step_s": 8.623}, {"tokens_s_gpu": 1900}, {"tflops_gpu": 160}, {"mfu": 0.5}]
    path.write_text(json.dumps([{"id": next(iter(measure)), **ROW, **measure} for measure in measures]))
    done = call("validate", path)
    assert done.returncode == 0 and "4 measured steps of 4 runs" in done.stdout
    assert "tokens_s_gpu: its measured step is of tokens_s_gpu 1900" in done.stdout


HEARD: list[tuple[dict[str, Any], str, float]] = [
    ({"step_s": "8623 ms"}, "step_s", 8.623),
    ({"step_s": "8.623 s/it"}, "step_s", 8.623),
    ({"step_ms": 8623}, "step_s", 8.623),
    ({"iteration_time_ms": "8,623"}, "step_s", 8.623),
    ({"elapsed time per iteration (ms)": 8623}, "step_s", 8.623),
    ({"tokens_s_gpu": "1.9k tokens/s/GPU"}, "tokens_s_gpu", TOKENS / 8 / 1900),
    ({"tokens/s/gpu": 1900}, "tokens_s_gpu", TOKENS / 8 / 1900),
    ({"tokens_s": 15200}, "tokens_s", TOKENS / 15200),
    ({"samples_s": 3.7}, "samples_s", 32 / 3.7),
    ({"train_samples_per_second": 3.7}, "samples_s", 32 / 3.7),
    ({"tflops_gpu": "0.16 PFLOP/s"}, "tflops_gpu", TOKENS * (6 * WEIGHTS + 3 * CORE) / (160e12 * 8)),
    ({"tflops_gpu": "160 TFLOPs/s/GPU"}, "tflops_gpu", TOKENS * (6 * WEIGHTS + 3 * CORE) / (160e12 * 8)),
    *(
        ({"mfu": mfu}, "mfu", TOKENS * (6 * WEIGHTS + 3 * CORE) / (0.45 * 312e12 * 8))
        for mfu in (0.45, 45, "45%", "45 %", "0.45")
    ),
    ({"mfu_percent": 45}, "mfu", TOKENS * (6 * WEIGHTS + 3 * CORE) / (0.45 * 312e12 * 8)),
    ({"hfu": 0.5}, "hfu", TOKENS * (6 * WEIGHTS + 4 * CORE) / (0.5 * 312e12 * 8)),
    (
        {"hfu": "50%", "recompute": "full"},
        "hfu",
        TOKENS * (6 * WEIGHTS + 3 * CORE + 2 * (WEIGHTS - 32000 * 5120) + CORE) / (0.5 * 312e12 * 8),
    ),
]


@pytest.mark.parametrize(("stated", "field", "seconds"), HEARD)
def test_measures_are_read_in_their_units_whatever_their_names(stated: dict[str, Any], field: str, seconds: float) -> None:
    run = predicted(**stated)
    assert run.measured_s == pytest.approx(seconds, rel=2e-3) and run.measured[0].by == field and not run.remarks


@pytest.mark.parametrize(
    ("stated", "gib"),
    [
        *(({"mem_gib": text}, 40.0) for text in (40, "40", "40 GiB", "40960 MiB")),
        *(({name: value}, 40.0) for name, value in (("peak_gib", 40), ("mem_mib", 40960), ("max_memory_gib", "40"))),
        *((stated, 40e9 / 2**30) for stated in ({"mem_gib": "40 GB"}, {"mem_gb": 40}, {"peak_memory_mb": 40000})),
    ],
)
def test_peaks_are_read_in_their_units(stated: dict[str, Any], gib: float) -> None:
    assert predicted(**stated).held.peak_gib == pytest.approx(gib)


@pytest.mark.parametrize(
    ("stated", "why"),
    [
        ({"mfu": 1.2}, "as a percentage write 1.2%"),
        ({"mfu": 1}, "no run reaches 1"),
        ({"mfu": 120}, "no run reaches 100 %"),
        ({"hfu": "130%"}, "no run reaches 1"),
        ({"tflops_gpu": 400}, "has 312 TFLOP/s in bfloat16; give TFLOP/s of one device"),
        ({"tflops_gpu": 1280}, "has 312 TFLOP/s in bfloat16"),
        ({"tflops_gpu": 600, "gpu": "H100", "precision": "fp32"}, "TFLOP/s in float32"),
        ({"tokens_s_gpu": 15200}, "TFLOP/s on each device, and A100-SXM4 80 GB has 312"),
        ({"samples_s": 300}, "TFLOP/s on each device"),
        ({"step_s": 0.0086}, "TFLOP/s on each device"),
        ({"step_s": 8623}, "s predicted; look at its unit"),
        ({"tflops_gpu": 0.16}, "look at its unit"),
        ({"mem_gib": 80000}, "A100-SXM4 80 GB has 80 GiB; give GiB of one device"),
        ({"mem_gib": 0.04}, "look at its unit"),
        ({"oom": True, "step_s": 8.6}, "it ran out of memory, and has step_s"),
        ({"oom": True, "tokens_s_gpu": 1900, "mem_gib": 79}, "it ran out of memory, and has tokens_s_gpu, mem_gib"),
    ],
)
def test_what_no_device_does_is_compared_with_nothing_and_reported(stated: dict[str, Any], why: str) -> None:
    run = predicted(**stated)
    assert run.measured_s is None and run.error is None and run.memory_error is None
    assert why in run.remarks[0] and "compared with nothing" in run.remarks[0], run.remarks
    assert run.to_dict()["remarks"] == run.remarks


def test_what_can_be_compared_counts_where_the_first_field_cannot() -> None:
    run = predicted(step_s=8623, tokens_s_gpu=1900)
    assert run.measured[0].by == "tokens_s_gpu" and "step_s 8623 is compared with nothing" in run.remarks[0]


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("step_time", ("step_s", "seconds")),
        *((name, ("tokens_s_gpu", "tokens_s")) for name in ("tokens_per_second", "throughput", "tps")),
        ("tflops", "tflops_gpu"),
        *((name, "mem_gib") for name in ("memory", "peak")),
    ],
)
def test_names_without_a_unit_are_compared_with_nothing(name: str, fix: Facts) -> None:
    with cautioned(f"[0].{name}", problem="unit", fix=fix):
        run = predicted(**{name: 100.0})
    assert run.measured_s is None and run.memory_error is None


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        *(("global_batch_size", 64, "gbs"), ("gradient_accumulation_steps", 4, "gbs"), ("tensor_model_parallel_size", 8, "tp")),
        *(
            ("pipeline-parallel-size", 2, "pp"),
            ("num_layers", 12, "layers"),
            ("hidden_size", 4096, "hidden"),
            ("num_gpus", 16, "gpus"),
        ),
        *(("activation_checkpointing", "full", "recompute"), ("optimizer", "muon", "note"), ("cpu_offload", True, "note")),
        *(("num_key_value_heads", 8, "kv_heads"), ("sharding_strategy", "FULL_SHARD", "fsdp"), ("num_experts", 8, "experts")),
    ],
)
def test_fields_of_other_tools_that_bear_on_the_run_are_not_left_out(name: str, value: Any, field: str) -> None:
    row = {key: entry for key, entry in ROW.items() if key != field}
    [run] = tp.validate([{"id": "one", **row, name: value}])
    assert run.step_s is None
    assert_refusal_text(run.cannot, name, problem=field, fix=field)
    [fine] = tp.validate([{"id": "one", **ROW, "optimizer": "AdamW", "cpu_offload": False}])
    assert not fine.cannot


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (("gbs", "mbs"), "gbs and mbs are missing, and a step of 2 samples is predicted"),
        (("seq",), "seq is missing, and samples of 4096 tokens are predicted"),
    ],
)
def test_a_step_of_an_unsaid_size_is_compared_with_nothing(field: tuple[str, ...], message: str) -> None:
    row = {name: value for name, value in ROW.items() if name not in field}
    [run] = runs = tp.validate([{"id": "one", **row, "step_s": 8.6, "mem_gib": 40.0}])
    assert run.error is None and run.memory_error is None
    assert (
        run.remarks == [f"{message}: what was measured is compared with nothing"] and f"one: {run.remarks[0]}" in runs.notes()
    )
    [bare] = tp.validate([{"id": "one", **row}])
    assert bare.remarks == [message]


def test_what_decides_most_and_is_left_open_is_reported_without_being_requested() -> None:
    row = {name: value for name, value in ROW.items() if name not in ("recompute", "framework")}
    [run] = runs = tp.validate([{"id": "one", **row}])
    [stated] = [text for text in runs.notes() if "leaves open" in text]
    assert stated.startswith("one: leaves open framework (") and "recompute (" in stated and "zero (" in stated
    assert run.to_dict()["assumed"]["recompute"] in stated


def test_everything_that_bears_and_is_left_open_is_reported_in_one_line() -> None:
    """And whether such a row fits is no plain verdict where framework, recomputation and micro-batch are all open."""
    names = ("framework", "precision", "recompute", "zero", "gbs", "mbs", "seq")
    row = {name: value for name, value in ROW.items() if name not in names}
    [run] = runs = tp.validate([{"id": "one", **row}])
    [stated] = [text for text in runs.notes() if "leaves open" in text]
    assert all(f"{name} (" in stated for name in names if name not in run.run.model_fields_set)
    assert run.as_taken and run.to_dict()["as_taken"] and runs.cells()[0][-1] == "yes, if as taken"
    [reported_once] = reported = tp.validate([{"id": "one", **row, "recompute": "full"}])
    assert not reported_once.as_taken and reported.cells()[0][-1] == "yes"


def test_what_is_taken_otherwise_than_the_row_says_is_reported() -> None:
    odd = predicted(gbs=33)
    assert odd.remarks == ["gbs 33 is taken as 34: whole micro-batches of 1 on 2 data-parallel ranks"]
    old = predicted(gpu="V100-32GB")
    assert "precision bf16 is taken as float16: Tesla V100-SXM2 32 GB has no rate for bfloat16" in old.remarks


REAL = [
    {"model": "mpt-7b", "gpu": "A100-80GB-SXM", "gpus": 8, "seq": 2048, "gbs": 192, "mbs": 24, "fsdp": "full_shard(ZeRO-3)"},
    {"model": "llama3-70b", "gpu": "H100-80GB-SXM", "gpus": 64, "seq": 8192, "gbs": 128, "mbs": 1, "tp": 4, "pp": 4, "vpp": 5},
    ROW,
]
VALUES = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True), st.integers(-(10**6), 10**9), st.booleans(), st.none(),
    st.sampled_from(["", "?", "n/a", "45%", "1e3", "40 GB", "8 ms", "full", "bf16", "fp8", "int8", "H100", "x" * 99, "2x4"]),
    st.lists(st.integers(), max_size=2), st.dictionaries(st.text(max_size=3), st.integers(), max_size=1),
)  # fmt: skip
FIELDS = st.sampled_from([*Run.model_fields, "batch", "step", "tokens/s", "MFU (%)", "peak_gib", "num_layers", "", "optimizer"])


@settings(max_examples=60)
@given(st.sampled_from(REAL), st.dictionaries(FIELDS, VALUES, max_size=4))
def test_a_row_with_any_values_has_a_prediction_or_one_line(row: dict[str, Any], changed: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)
        runs = tp.validate([{"id": "one", **row, **changed}])
    [run] = runs
    runs.notes()
    runs.cells()
    json.dumps(run.to_dict())
    assert (run.step_s is None) == bool(run.cannot) and len(run.cannot.splitlines()) <= 1
    if run.error is not None:
        assert 1 / 100 <= run.error + 1 <= 100
    if run.memory_error is not None:
        assert run.held.peak_gib is not None and run.laid is not None
        assert run.held.peak_gib * 2**30 <= run.laid.sheet.memory_bytes


def test_a_file_of_which_no_row_can_be_predicted_is_bad_input(tmp_path: Any) -> None:
    path = tmp_path / "runs.json"
    rows = [{"id": "tpu", **ROW, "gpu": "TPU v5p"}, {"id": "gaudi", **ROW, "gpu": "Gaudi2"}]
    path.write_text(json.dumps(rows))
    done = call("validate", path)
    assert done.returncode == 2 and "of which there is no data sheet" in done.stdout and not done.stderr
    path.write_text(json.dumps([*rows, {"id": "fine", **ROW}]))
    assert call("validate", path).returncode == 0


def test_one_device_and_one_precision_are_one_group_however_rows_write_them() -> None:
    names = ("A100 80GB", "A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB", "a100")
    rows = [
        {"id": f"{name} {words}", **ROW, "gpu": name, "precision": words, "step_s": 8.6}
        for name in names
        for words in ("bf16", "BFloat16")
    ]
    runs = tp.validate(rows)
    assert len({(run.step_s, run.peak_gib) for run in runs}) == 1
    assert [list(by_group(runs, group)) for group in ("gpu", "precision")] == [["a100"], ["bfloat16"]]
