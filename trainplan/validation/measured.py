"""What a row measured, as a step: said in seconds, or as tokens/s, samples/s, TFLOP/s, MFU or HFU.

FLOPs are counted as the row's source counts them. Usually those of the matrix products of the forward pass, three times, with
attention of all keys and without what is computed again, as NeMo, torchtitan and LLM Foundry print them. Megatron-Core since
2025 and Megatron-Bridge count half of attention (`num_floating_point_operations`), Megatron-LM until 2021 what is computed
again, too (Narayanan et al.). By the words of the note: `6N` has six for each parameter and token alone, `causal FLOPs` half of
attention, `hardware FLOPs` what is computed again, which an MFU never has.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from trainplan.profiling.models.model import Model, Unit
from trainplan.profiling.models.sublayers import attention_of
from trainplan.validation.frameworks import year_of
from trainplan.validation.layouts import LaidRun
from trainplan.validation.measures import GIB, MEASURES

PARAMETERS_ALONE = re.compile(r"\b6 ?\*? ?(?:n|p|nd|pd|psi)\b|\b6 ?[x*·] ?param|without attention flops|no attention flops")
HARDWARE = re.compile(
    r"\bhfu\b(?!\W*\d)|hardware[ -]t?flops?|\bhw t?flops?|incl\w* (?:activation )?recomput\w+|recomputation (?:is )?counted"
)
HALVING = re.compile(r"megatron[ _-]?(?:bridge|core)|mcore")  # frameworks that count half of attention, since this year
HALVED_SINCE = 2025
CAUSAL = re.compile(r"causal (?:mask )?flops?|half (?:of )?(?:the )?attention|causal (?:attention )?counted")
BASE_PEAK = re.compile(r"(?:bf16|fp16|bfloat16|float16|16[ -]bit) peak|of (?:the )?(?:bf16|fp16|bfloat16|float16) peak")
APART, COUNTED_APART = 0.02, 0.15  # by which steps of one row may differ as its fields say them, of FLOPs as they are counted
PERCENT = 1.5  # an MFU above it is one of a hundred
UNITS_APART = 100  # times what is predicted, or less than that part: another unit
PASSES = 3  # forward, and twice as much backward
FIRST_MODEL_FLOPS = 2022  # when Korthikanti et al. told model FLOPs from those that are computed


@dataclass(frozen=True)
class Measured:
    """A measured step. by: the field that says it; counted: how its FLOPs are counted, empty where none are."""

    step_s: float
    by: str
    counted: str = ""


@dataclass(frozen=True)
class Held:
    """What a prediction is held against. steps: as the row's fields say them, the first counts; peak_gib: None where none may
    be compared; remarks: what is compared with nothing, or contradicts the rest."""

    steps: tuple[Measured, ...] = ()
    peak_gib: float | None = None
    remarks: tuple[str, ...] = ()


NOTHING_HELD = Held()


def held_against(laid: LaidRun, step_s: float, peak_bytes: float) -> Held:
    """What the row measured, held to what its devices can do, to what is predicted of it, and to itself. step_s, peak_bytes:
    as predicted, the peak of the device that the row measured."""
    run, remarks, steps = laid.run, list[str](), list[Measured]()
    measured = _measured(laid)
    if missing := _missing(laid):
        compared = bool(measured or run.mem_gib)
        return Held(remarks=(missing + ": what was measured is compared with nothing" * compared,))
    if run.oom and (measured or run.mem_gib):
        said = ", ".join([each.by for each in measured] + ["mem_gib"] * bool(run.mem_gib))
        return Held(remarks=(f"it ran out of memory, and has {said}, compared with nothing: leave out oom, or these",))
    for each in measured:
        if why := _impossible(laid, each) or _of_another_unit(each.step_s, step_s, f"{each.by} makes its step", "s"):
            remarks.append(f"{each.by} {getattr(run, each.by):g} is compared with nothing: {why}")
        else:
            steps.append(each)
    peak, whole = run.mem_gib or None, laid.sheet.memory_bytes
    if peak is not None:
        why = _of_another_unit(peak, peak_bytes / GIB, "it is", "GiB")
        if peak * GIB > whole:
            why = f"{laid.sheet.name} has {whole / GIB:g} GiB; give GiB of one device"
        if why:
            remarks.append(f"mem_gib {peak:g} is compared with nothing: {why}")
            peak = None
    return Held(tuple(steps), peak, (*remarks, *contradictions(steps)))


def _missing(laid: LaidRun) -> str:
    """What of a step's size a row does not say, and what is predicted in its place; empty where it says all."""
    layout, model = laid.layout, laid.model
    samples = f"gbs and mbs are missing, and a step of {layout.batch} samples is predicted"
    tokens = f"seq is missing, and samples of {model.tokens} tokens are predicted"
    said = [samples] * (laid.run.gbs is None and laid.run.mbs is None) + [tokens] * ("seq" in laid.assumed)
    return "; ".join(said)


def _impossible(laid: LaidRun, measured: Measured) -> str:
    """Why devices cannot have done what a row measured; empty where they can."""
    run, value = laid.run, getattr(laid.run, measured.by)
    rates = laid.sheet.flops_per_s
    dtype = max((laid.layout.rate, laid.layout.base), key=lambda each: rates[each])
    peak = f"{laid.sheet.name} has {rates[dtype] / 1e12:g} TFLOP/s in {dtype}"
    if measured.by in ("mfu", "hfu") and _share(value) >= 1:
        return f"no run reaches 1; as a percentage write {value:g}%" if value <= PERCENT else "no run reaches 100 %"
    if measured.by == "tflops_gpu" and value * 1e12 > rates[dtype]:
        return f"{peak}; give TFLOP/s of one device"
    per_s = _least_flops(laid) / (measured.step_s * run.gpus)
    if per_s > rates[dtype]:
        return f"its step would be {measured.step_s:.3g} s, of {per_s / 1e12:.4g} TFLOP/s on each device, and {peak}"
    return ""


def _of_another_unit(said: float, predicted: float, what: str, unit: str) -> str:
    """Why a value is most likely in another unit than its field's; empty where it is not."""
    if 1 / UNITS_APART <= said / predicted <= UNITS_APART:
        return ""
    times = f"{said / predicted:,.0f} times" if said > predicted else f"a {predicted / said:,.0f}th of"
    return f"{what} {said:.4g} {unit}, {times} the {predicted:.4g} {unit} predicted; look at its unit"


def _least_flops(laid: LaidRun) -> float:
    """The fewest FLOPs of a step that any way of counting has: half of attention, nothing twice, no gradients of what is
    frozen."""
    layers, ends = (sum(map(_products_flops, units)) for units in _units(laid.model))
    passes = PASSES - laid.layout.frozen
    return laid.layout.batch * (passes * (layers + ends) + PASSES * _core_flops(laid.model) / 2)


def _share(value: float) -> float:
    """An MFU or HFU as a share."""
    return value / 100 if value > PERCENT else value


def _measured(laid: LaidRun) -> tuple[Measured, ...]:
    """The steps that a row says, by its fields; none where it measured none."""
    run, layout = laid.run, laid.layout
    found = [Measured(run.step_s, "step_s")] if run.step_s else []
    tokens = layout.batch * laid.model.tokens
    for field, of_a_step in (("tokens_s_gpu", tokens / run.gpus), ("tokens_s", tokens), ("samples_s", layout.batch)):
        if rate := getattr(run, field):
            found.append(Measured(of_a_step / rate, field))
    if run.tflops_gpu:
        flops, counted = _flops(laid, None)
        found.append(Measured(flops / (run.tflops_gpu * 1e12 * run.gpus), "tflops_gpu", counted))
    dtype = layout.base if BASE_PEAK.search((run.note or "").lower()) else layout.rate
    peak = laid.sheet.flops_per_s[dtype] * run.gpus
    for field, computed in (("mfu", False), ("hfu", True)):
        if share := getattr(run, field):
            flops, counted = _flops(laid, computed)
            found.append(Measured(flops / (_share(share) * peak), field, f"{counted}, of the peak in {dtype}"))
    return tuple(found)


def contradictions(steps: Sequence[Measured]) -> list[str]:
    """How the steps that a row says contradict the first of them."""
    said = []
    for step in steps[1:]:
        apart = step.step_s / steps[0].step_s - 1
        if abs(apart) > (COUNTED_APART if step.counted or steps[0].counted else APART):
            first = f"{steps[0].by} {'is' if steps[0].by == 'step_s' else 'makes its step'} {steps[0].step_s:.4g} s"
            counted = f" of {step.counted}" if step.counted else ""
            said.append(f"{first}, and {step.by} makes it {step.step_s:.4g} s ({apart:+.1%}){counted}: {steps[0].by} counts")
    return said


def verdict(laid: LaidRun, peak_bytes: float, fits: bool) -> str:
    """How what is said of the memory and what the row says of it contradict; empty where they do not."""
    run = laid.run
    ran = run.oom is False or (not run.oom and any(getattr(run, field) for field in MEASURES))
    if run.oom and fits:
        return f"it ran out of memory, and {peak_bytes / GIB:.4g} GiB are predicted, which fit"
    if ran and not fits:
        return f"it ran, and {peak_bytes / GIB:.4g} GiB are predicted, which do not fit"
    return ""


def _flops(laid: LaidRun, computed: bool | None) -> tuple[float, str]:
    """FLOPs of a step of all devices, and how they are counted. computed: whether what is computed again counts; None where the
    source decides."""
    run, model, samples = laid.run, laid.model, laid.layout.batch
    note, framework = (run.note or "").lower(), (run.framework or "").lower()
    if PARAMETERS_ALONE.search(note) and not computed:
        return 6.0 * (run.params or model.total_parameters) * samples * model.tokens, "6 for each parameter and token"
    year = year_of(run)
    halved = HALVING.search(framework) and "nemo" not in framework and (year or HALVED_SINCE) >= HALVED_SINCE
    causal = bool(halved or CAUSAL.search(note))
    core = _core_flops(model) / (1 + causal)
    layers, ends = (sum(map(_products_flops, units)) for units in _units(model))
    counted = f"model FLOPs, with {'half of attention' if causal else 'attention'}"
    early = "megatron" in framework and (year or FIRST_MODEL_FLOPS) < FIRST_MODEL_FLOPS
    again = 0.0
    if computed or (computed is None and (HARDWARE.search(note) or early)):
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
