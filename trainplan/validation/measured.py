"""What a row measured, as a step: said in seconds, or as tokens/s, TFLOP/s or MFU of a device.

FLOPs are counted as the row's source counts them. Usually those of the matrix products of the forward pass, three times, with
attention of all keys and without what is computed again, as NeMo, torchtitan and LLM Foundry print them. Megatron-Core since
2025 and Megatron-Bridge count half of attention (`num_floating_point_operations`), Megatron-LM until 2021 what is computed
again, too (Narayanan et al.). By the words of the note: `6N` has six for each parameter and token alone, `causal FLOPs` half of
attention, `hardware FLOPs` what is computed again, which an MFU never has.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from trainplan.profiling.models.model import Model, Unit
from trainplan.profiling.models.sublayers import attention_of
from trainplan.validation.frameworks import year_of
from trainplan.validation.layouts import LaidRun

PARAMETERS_ALONE = re.compile(r"\b6 ?\*? ?(?:n|p|nd|pd|psi)\b|\b6 ?[x*·] ?param|without attention flops|no attention flops")
HARDWARE = re.compile(
    r"\bhfu\b(?!\W*\d)|hardware[ -]t?flops?|\bhw t?flops?|incl\w* (?:activation )?recomput\w+|recomputation (?:is )?counted"
)
HALVING = re.compile(r"megatron[ _-]?(?:bridge|core)|mcore")  # frameworks that count half of attention, since this year
HALVED_SINCE = 2025
CAUSAL = re.compile(r"causal (?:mask )?flops?|half (?:of )?(?:the )?attention|causal (?:attention )?counted")
BASE_PEAK = re.compile(r"(?:bf16|fp16|bfloat16|float16|16[ -]bit) peak|of (?:the )?(?:bf16|fp16|bfloat16|float16) peak")
APART = 0.02  # by which steps of one row may differ, as its fields say them
PERCENT = 1.5  # an MFU above it is one of a hundred
PASSES = 3  # forward, and twice as much backward
FIRST_MODEL_FLOPS = 2022  # when Korthikanti et al. told model FLOPs from those that are computed


@dataclass(frozen=True)
class Measured:
    """A measured step. by: the field that says it; counted: how its FLOPs are counted, empty where none are."""

    step_s: float
    by: str
    counted: str = ""


def measured_of(laid: LaidRun) -> tuple[Measured, ...]:
    """The steps that a row says, by its fields, that of the first counts; none where it measured none."""
    run, layout = laid.run, laid.layout
    found = [Measured(run.step_s, "step_s")] if run.step_s else []
    if run.tokens_s_gpu:
        tokens = layout.batch * laid.model.tokens
        found.append(Measured(tokens / (run.tokens_s_gpu * run.gpus), "tokens_s_gpu"))
    if run.tflops_gpu or run.mfu:
        if run.tflops_gpu:
            flops, counted = _flops(laid, True)
            found.append(Measured(flops / (run.tflops_gpu * 1e12 * run.gpus), "tflops_gpu", counted))
        if run.mfu:
            flops, counted = _flops(laid, False)
            share = run.mfu / 100 if run.mfu > PERCENT else run.mfu
            dtype = layout.base if BASE_PEAK.search((run.note or "").lower()) else layout.rate
            peak = laid.sheet.flops_per_s[dtype] * run.gpus
            found.append(Measured(flops / (share * peak), "mfu", f"{counted}, of the peak in {dtype}"))
    return tuple(found)


def contradiction(measured: tuple[Measured, ...]) -> str:
    """How a row's step and its tokens/s contradict each other; empty where they do not."""
    steps = {each.by: each.step_s for each in measured}
    if not {"step_s", "tokens_s_gpu"} <= set(steps):
        return ""
    apart = steps["tokens_s_gpu"] / steps["step_s"] - 1
    if abs(apart) <= APART:
        return ""
    said, made = steps["step_s"], steps["tokens_s_gpu"]
    return f"step_s is {said:.4g} s, and tokens_s_gpu makes it {made:.4g} s ({apart:+.1%}): step_s counts"


def verdict(laid: LaidRun, peak_bytes: float, fits: bool) -> str:
    """How what is said of the memory and what the row says of it contradict; empty where they do not."""
    run, whole = laid.run, laid.sheet.memory_bytes
    if run.mem_gib and run.mem_gib * 2**30 > whole:
        return f"{run.mem_gib:g} GiB were measured, and {laid.sheet.name} has {whole / 2**30:g} GiB"
    ran = run.oom is False or (not run.oom and any((run.step_s, run.mem_gib, run.tokens_s_gpu, run.tflops_gpu, run.mfu)))
    if run.oom and fits:
        return f"it ran out of memory, and {peak_bytes / 2**30:.4g} GiB are predicted, which fit"
    if ran and not fits:
        return f"it ran, and {peak_bytes / 2**30:.4g} GiB are predicted, which do not fit"
    return ""


def _flops(laid: LaidRun, computed: bool) -> tuple[float, str]:
    """FLOPs of a step of all devices, and how they are counted. computed: whether what is computed again may count."""
    run, model, samples = laid.run, laid.model, laid.layout.batch
    note, framework = (run.note or "").lower(), (run.framework or "").lower()
    if PARAMETERS_ALONE.search(note):
        return 6.0 * (run.params or model.total_parameters) * samples * model.tokens, "6 for each parameter and token"
    year = year_of(run)
    halved = HALVING.search(framework) and "nemo" not in framework and (year or HALVED_SINCE) >= HALVED_SINCE
    causal = bool(halved or CAUSAL.search(note))
    core = _core_flops(model) / (1 + causal)
    layers, ends = (sum(map(_products_flops, units)) for units in _units(model))
    counted = f"model FLOPs, with {'half of attention' if causal else 'attention'}"
    early = "megatron" in framework and (year or FIRST_MODEL_FLOPS) < FIRST_MODEL_FLOPS
    again = 0.0
    if computed and (HARDWARE.search(note) or early):
        again, counted = _again_flops(laid, layers, core), f"{counted} and what is computed again"
    return samples * (PASSES * (layers + ends + core) + again), counted


def _units(model: Model) -> tuple[list[Unit], list[Unit]]:
    """Those of transformer layers, and the others."""
    layers = [unit for unit in model.units if unit.kind not in ("embedding", "head")]
    return layers, [unit for unit in model.units if unit.kind in ("embedding", "head")]


def _products_flops(unit: Unit) -> float:
    """FLOPs of the forward pass of a sample but for attention's core."""
    part = attention_of(unit.sublayer)
    core = 0 if part is None else sum(each.flops for each in part.core_operators(1, 1))
    return float(unit.sublayer.forward_flops(1, 1) - core)


def _core_flops(model: Model) -> float:
    """FLOPs of the cores of attention in the forward pass of a sample: scores of all keys, and their products with values."""
    parts = (attention_of(unit.sublayer) for unit in model.units)
    return sum(4.0 * part.tokens * part.keys * part.heads * part.width for part in parts if part is not None)


def _again_flops(laid: LaidRun, products: float, core: float) -> float:
    """FLOPs that the backward pass of a sample computes again. products, core: of the forward pass through all layers."""
    again, stages = laid.layout.recompute, laid.layout.pp * laid.layout.chunks
    if again.operations:
        return products / 2
    share = again.layers if again.first is None else min(1.0, again.first * stages / laid.model.layers)
    return share * (products + core) + (1 - share) * core * again.attention
