"""What rows measured as a step: tokens/s, TFLOP/s and MFU; and what of a row contradicts."""

from __future__ import annotations

from typing import Any

import pytest

import trainplan as tp
from tests.command.calls import call
from trainplan.validation.predict import Prediction

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
    [each] = tp.validate([{"id": "one", **ROW, **changes}])
    assert not each.cannot
    return each


def test_tokens_have_the_error_of_the_step_that_they_make() -> None:
    step = predicted(step_s=8.623)
    tokens = predicted(tokens_s_gpu=TOKENS / (8.623 * 8))
    assert tokens.error == pytest.approx(step.error) and step.error == pytest.approx(-0.098, abs=5e-4)
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


def test_the_step_counts_first_and_what_contradicts_it_is_said() -> None:
    alike = predicted(step_s=8.623, tokens_s_gpu=1900, tflops_gpu=1)
    assert alike.measured_s == 8.623
    runs = tp.validate(
        [
            {"id": "apart", **ROW, "step_s": 8.623, "tokens_s_gpu": 1800},
            {"id": "near", **ROW, "step_s": 8.6, "tokens_s_gpu": 1900},
        ]
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
    assert [each.fits for each in runs] == [False, False, True, True]
    said = {text.split(":")[0]: text for text in runs.notes() if text.split(":")[0] in ("ran", "oom", "lost", "more")}
    assert set(said) == {"ran", "lost", "more"}
    assert "it ran, and" in said["ran"] and "do not fit" in said["ran"]
    assert "it ran out of memory, and" in said["lost"] and "A100-SXM4 80 GB has 80 GiB" in said["more"]


def test_the_command_compares_all_three(tmp_path: Any) -> None:
    import json

    path = tmp_path / "runs.json"
    measures: list[dict[str, Any]] = [{"step_s": 8.623}, {"tokens_s_gpu": 1900}, {"tflops_gpu": 160}, {"mfu": 0.5}]
    path.write_text(json.dumps([{"id": next(iter(each)), **ROW, **each} for each in measures]))
    done = call("validate", path)
    assert done.returncode == 0 and "4 measured steps of 4 runs" in done.stdout
    assert "tokens_s_gpu: its measured step is of tokens_s_gpu 1900" in done.stdout
