"""States of rows on the host: words, peaks, and the copies that a step takes for it."""

from __future__ import annotations

from typing import Any

import pytest
from trainplan.formulations.costs.overlapped.analytic_offload import late_copies_ns
from trainplan.profiling.clusters.sheets import sheet

from tests.validation.test_words import laid, predicted

DENSE: dict[str, Any] = {"model": "llama3-8b", "gpu": "H100-80GB-SXM", "gpus": 8, "gbs": 64, "recompute": "full"}
ALL = {"optimizer", "parameters", "activations"}


@pytest.mark.parametrize(
    ("fields", "meant"),
    [
        *(
            ({"note": note}, {"activations"})
            for note in ("act_cpu_offload True", "activation offloading", "offload activations")
        ),
        *(({"recompute": words}, {"activations"}) for words in ("full + cpu offload", "unsloth", "full, offload")),
        *(({"note": note}, {"optimizer"}) for note in ("optimizer offload to CPU", "offload_optimizer", "DeepSpeedCPUAdam")),
        *(({"fsdp": words}, {"optimizer"}) for words in ("ZeRO-Offload", "zero_offload", "ZeRO-2, cpu offload")),
        ({"framework": "DeepSpeed", "note": "CPU offload"}, {"optimizer"}),
        ({"framework": "Megatron-Core", "note": "--optimizer-cpu-offload"}, {"optimizer"}),
        ({"framework": "Megatron-Core", "note": "--cpu-offloading"}, {"activations"}),
        *(({"fsdp": words}, {"optimizer", "parameters"}) for words in ("FSDP, cpu offload", "ZeRO-3 with offload_param")),
        ({"fsdp": "ZeRO-Infinity"}, ALL),
        *(({"note": note}, set()) for note in ("act_cpu_offload False", "no cpu offload", "offload: off", "tp-comm-overlap")),
    ],
)
def test_words_of_what_is_on_the_host(fields: dict[str, Any], meant: set[str]) -> None:
    run = laid(**DENSE | fields)
    assert run.layout.on_host == meant and ("offload" in run.assumed) == bool(meant)
    assert run.layout.recompute.layers == 1.0


@pytest.mark.parametrize(
    ("words", "stated", "stage"),
    [
        *(("ZeRO-Offload", 2, 2), ("ZeRO-Offload", None, 2), ("ZeRO-Infinity", None, 3), ("ZeRO (Pos+g)", 2, 2)),
        *(("ZeRO (Pos+g)", None, 2), ("ZeRO++", 2, 2), ("ZeRO++", None, 3), ("ZeRO (Pos+g+p)", None, 3), ("ZeRO-3", 2, 3)),
    ],
)
def test_names_that_say_no_stage_leave_it_as_it_is_reported(words: str, stated: int | None, stage: int) -> None:
    assert laid(**DENSE, fsdp=words, zero=stated, framework="DeepSpeed").layout.zero == stage


def test_states_on_nvme_are_taken_for_the_host_s() -> None:
    assert laid(**DENSE, fsdp="ZeRO-3, nvme", framework="DeepSpeed").layout.on_host == {"optimizer"}


def test_activations_on_the_host_are_copied_both_ways() -> None:
    """Inputs of 32 layers, 8192 tokens of 4096 numbers in 2 bytes, of each of 8 micro-batches."""
    here, there = predicted(**DENSE), predicted(**DENSE, note="act_cpu_offload True")
    assert here.step is not None and there.step is not None and there.peak_gib is not None
    inputs = 32 * 8192 * 4096 * 2
    assert here.peak_gib is not None and here.peak_gib - there.peak_gib > 0.9 * (inputs - 2 * inputs / 32) / 2**30
    assert there.step.copies_ns == pytest.approx(2 * 8 * inputs / 55e9 * 1e9, rel=0.2)
    assert there.step.step_ns - here.step.step_ns == pytest.approx(there.step.copies_ns, rel=1e-3)


@pytest.mark.parametrize(
    ("hosted", "copy_ns", "late_ns"),
    [
        (0, 0, 0),
        (2, 10, 0),  # as long as a forward pass: each copy ends as the next layer does
        (2, 25, 30 + 10),  # copies end at 35 and 60, kernels at 70 and not at 40; back at 45 and 70, kernels at 90, not at 80
        (3, 25, 75 + 75),  # each of three layers waits for its copy, in both passes
    ],
)
def test_copies_alongside_delay_kernels_by_what_is_late(hosted: int, copy_ns: float, late_ns: float) -> None:
    """Four layers of 10 forward and 20 backward, followed by hand through `DefaultOffloadSynchronizer`."""
    assert late_copies_ns(4, hosted, copy_ns, 10, 20) == late_ns


def test_megatron_s_offloading_of_some_layers_is_hidden() -> None:
    """Half of the layers of a llama3-70b in FP8 leave by NVLink-C2C while the others are computed; DeepSpeed copies in line."""
    row: dict[str, Any] = {"model": "llama3-70b", "gpu": "GB200", "gpus": 64, "gbs": 256, "mbs": 2, "fsdp": "fsdp64", "zero": 3}
    row |= {"recompute": "none", "precision": "fp8", "framework": "Megatron-Bridge"}
    here, some = predicted(**row), predicted(**row, note="activation offload of 40 layers")
    every = predicted(**row, note="activation offload")
    assert some.laid is not None and some.laid.layout.offloaded_layers == 40
    assert here.step is not None and some.step is not None and every.step is not None
    assert some.step.step_ns == pytest.approx(here.step.step_ns, rel=0.001)
    assert some.laid.layout.hosted_layers(80) == 40 and every.laid is not None and every.laid.layout.hosted_layers(80) == 79
    assert here.peak_gib is not None and some.peak_gib is not None and every.peak_gib is not None
    assert every.peak_gib < some.peak_gib < here.peak_gib
    inline = predicted(**row | {"framework": "DeepSpeed", "precision": "bf16"}, note="activation offload")
    assert inline.step is not None and inline.step.copies_ns > 0.1 * inline.step.computing_ns


def test_an_optimizer_on_the_host_steps_at_the_rate_of_its_memory() -> None:
    """Ten billion parameters on one V100, which it does not hold with their states (Ren et al., 2021, train 13 so)."""
    shape = {"layers": 50, "hidden": 4096, "heads": 32, "vocab": 50304, "seq": 1024, "gbs": 4, "mbs": 4}
    row: dict[str, Any] = {"model": "gpt2-10b", "gpu": "V100-32GB", "gpus": 1, "zero": 2, "precision": "fp16"} | shape
    row |= {"framework": "DeepSpeed", "recompute": "full", "date": "2021-01"}
    here, there = predicted(**row), predicted(**row, fsdp="ZeRO-Offload")
    assert here.fits is False and there.fits and there.step is not None and there.laid is not None
    count, rate = there.laid.model.total_parameters, sheet("v100-32gb").host.memory_bytes_per_s
    assert there.step.optimizer_ns == pytest.approx(36 * count / rate * 1e9)
    assert there.step.copies_ns == pytest.approx(4 * count / 12e9 * 1e9, rel=0.05)
    several = predicted(**row | {"gpus": 8, "gbs": 32}, fsdp="ZeRO-Offload")
    assert several.step is not None and several.step.optimizer_ns == pytest.approx(there.step.optimizer_ns)


def test_parameters_on_the_host_leave_two_blocks() -> None:
    row: dict[str, Any] = DENSE | {"gpus": 1, "gbs": 1, "seq": 512, "note": "cpu offload"}
    there = predicted(**row, fsdp="FSDP")
    assert there.peak_gib is not None and there.peak_gib < 10
    assert there.step is not None and there.step.copies_ns > 3 * 2 * 8e9 / 63e9 * 1e9
