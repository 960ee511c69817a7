"""Rows that leave ZeRO's stage or recomputation open: the least with which what ran fits."""

from __future__ import annotations

from typing import Any

import pytest
from trainplan.formulations.costs.overlapped.framework_memory import MEGATRON_ERROR, NANOTRON_ERROR
from trainplan.formulations.costs.overlapped.layout import RecomputePolicy

from tests.validation.test_words import laid, predicted
from trainplan.validation.fitting import peak_error, software_error
from trainplan.validation.frameworks import framework_of
from trainplan.validation.rows import Run

DENSE: dict[str, Any] = {"model": "llama3-8b", "gpu": "H100-80GB-SXM", "gpus": 8, "gbs": 128}


@pytest.mark.parametrize("framework", ["Megatron-LM", "DeepSpeed", "InternEvo", "Primus", "NeMo", "torchtitan", None])
@pytest.mark.parametrize("fsdp", ["no", None])
@pytest.mark.parametrize("gpus", [8, 64])
def test_what_ran_fits_by_what_its_row_leaves_open(framework: str | None, fsdp: str | None, gpus: int) -> None:
    row = DENSE | {"framework": framework, "fsdp": fsdp, "gpus": gpus, "seq": 8192}
    assert predicted(**row).fits
    if framework not in ("NeMo", "torchtitan", "Primus"):
        run = laid(**row)
        assert run.layout.zero > 0 and run.assumed["zero"] == f"{run.layout.zero}, with which it fits"


def test_states_are_shared_before_activations_are_computed_again() -> None:
    """For Megatron-Core the optimizer's states alone, then recomputation, and only then parameters."""
    ways = []
    for seq, gpus in ((2048, 8), (8192, 8), (2048, 64)):
        layout = laid(**DENSE | {"framework": "Megatron-Core", "seq": seq, "gpus": gpus, "gbs": 64}).layout
        ways.append((layout.zero, layout.recompute))
    assert ways == [(1, RecomputePolicy()), (1, RecomputePolicy(layers=1.0)), (1, RecomputePolicy())]
    large = laid(model="llama3-70b", gpus=64, gpu="GB200", framework="Megatron-Bridge", seq=2048)
    assert (large.layout.zero, large.layout.recompute.layers) == (3, 0.0)


def test_the_words_of_a_row_decide() -> None:
    stated = laid(**DENSE, framework="Megatron-Core", zero=0, recompute="none")
    assert (stated.layout.zero, stated.layout.recompute) == (0, RecomputePolicy()) and not {"zero", "recompute"} & set(
        stated.assumed
    )
    assert predicted(**DENSE, framework="Megatron-Core", zero=0, recompute="none").fits is False
    half = laid(**DENSE, framework="Megatron-Core", recompute="none")
    assert half.layout.zero > 0 and half.layout.recompute == RecomputePolicy() and "recompute" not in half.assumed
    noted = laid(**DENSE, framework="Megatron-Core", note="no recompute; distributed optimizer")
    assert noted.layout.recompute == RecomputePolicy() and "recompute" not in noted.assumed


def test_what_fits_or_ran_out_of_memory_keeps_the_framework_s_defaults() -> None:
    small = laid(**DENSE | {"model": "llama3.2-1b"}, framework="Megatron-Core", seq=2048)
    assert (small.layout.zero, small.layout.recompute, small.assumed["zero"]) == (0, RecomputePolicy(), "0")
    out = laid(**DENSE, framework="Megatron-Core", oom=True)
    assert (out.layout.zero, out.layout.recompute, out.assumed["recompute"]) == (0, RecomputePolicy(), "none")
    never = laid(**DENSE | {"model": "llama3.1-405b"}, framework="Megatron-Core", tp=8)
    assert (never.layout.zero, never.layout.recompute) == (0, RecomputePolicy())


def test_the_error_of_a_peak_is_that_of_the_framework_s_record() -> None:
    """By its name in plans, in any case, as in rows of its runs; of trainplan's own programs that of Megatron-Core's peaks."""
    for name in ("nanotron", "Torchtitan", "deepspeed", "megatron-core", "Megatron-Bridge", "PyTorch FSDP", "NeMo"):
        assert software_error(name) == peak_error(framework_of(Run(id="a", model="", gpu="", gpus=1, framework=name)))
    assert software_error("nanotron") == NANOTRON_ERROR and software_error(None) == software_error("") == MEGATRON_ERROR
