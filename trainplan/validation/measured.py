"""The step and the peak that a run measured, and whether they can be compared with its prediction.

A step is stated in seconds, or follows from tokens/s, samples/s, TFLOP/s, MFU or HFU. FLOPs are counted as the run's source
counts them: usually three times those of the forward pass's matrix products, with attention over all keys and without
recomputation, as NeMo, torchtitan and LLM Foundry print them. Megatron-Core since 2025 and Megatron-Bridge count half of
attention (`num_floating_point_operations`), Megatron-LM until 2021 counts recomputation, too (Narayanan et al.). Words of the
note change the count: `6N` is six for each parameter and token only, `causal FLOPs` half of attention, `hardware FLOPs`
includes recomputation, which an MFU never does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from trainplan.profiling.models.model import Model, Unit
from trainplan.profiling.models.sublayers import LatentAttention, attention_of
from trainplan.validation.frameworks import year_of
from trainplan.validation.layouts import LaidRun
from trainplan.validation.measures import GIB, MEASURES

PARAMETERS_ALONE = re.compile(r"\b6 ?\*? ?(?:n|p|nd|pd|psi)\b|\b6 ?[x*·] ?param|without attention flops|no attention flops")
HARDWARE = re.compile(
    r"\bhfu\b(?!\W*\d)|hardware[ -]t?flops?|\bhw t?flops?|incl\w* (?:activation )?recomput\w+|recomputation (?:is )?counted"
)
HALVING = re.compile(r"megatron[ _-]?(?:bridge|core)|mcore")  # frameworks that count half of attention, since HALVED_SINCE
HALVED_SINCE = 2025
CAUSAL = re.compile(r"causal (?:mask )?flops?|half (?:of )?(?:the )?attention|causal (?:attention )?counted")
BASE_PEAK = re.compile(r"(?:bf16|fp16|bfloat16|float16|16[ -]bit) peak|of (?:the )?(?:bf16|fp16|bfloat16|float16) peak")
APART, COUNTED_APART = 0.02, 0.15  # shares by which steps of one row may differ; the second where they follow from FLOPs
PERCENT = 1.5  # an MFU above it is in percent
UNITS_APART = 100  # a value this many times the prediction, or this part of it, is in another unit
PASSES = 3  # forward, and twice the forward's FLOPs backward
FIRST_MODEL_FLOPS = 2022  # when Korthikanti et al. distinguished model FLOPs from computed ones


@dataclass(frozen=True)
class Measured:
    """A measured step of a training run in seconds, as one field of the run states or implies it.

    Attributes:
        step_s: the step in seconds.
        by: the name of the field of the run that the step was computed from, such as "mfu".
        counted: a text on how the step's FLOPs are counted, if the step was computed from FLOPs; otherwise empty.
    """

    step_s: float
    by: str
    counted: str = ""


@dataclass(frozen=True)
class ComparedValues:
    """The measured values of a run that its prediction is compared with.

    Attributes:
        steps: one measured step for each field that states or implies a step; predictions are compared with the first.
        peak_gib: the measured peak memory in GiB; None if there is none that can be compared.
        remarks: texts about values that cannot be compared, or that contradict others.
    """

    steps: tuple[Measured, ...] = ()
    peak_gib: float | None = None
    remarks: tuple[str, ...] = ()


NOTHING_COMPARED = ComparedValues()


def compared_values(laid: LaidRun, step_s: float, peak_bytes: float) -> ComparedValues:
    """Collect the measured values of a run that its prediction can be compared with. A value that the devices cannot reach, or
    that is most likely in another unit than its field's, is not compared and gets a remark in the result.

    Args:
        laid: the measured run, with assumed values for everything that it does not specify.
        step_s: the predicted step in seconds.
        peak_bytes: the predicted peak in bytes of the device whose peak the run measured.
    """
    run, remarks, steps = laid.run, list[str](), list[Measured]()
    measured = measured_steps(laid)
    if missing := _missing(laid):
        compared = bool(measured or run.mem_gib)
        return ComparedValues(remarks=(missing + ": what was measured is compared with nothing" * compared,))
    if run.oom and (measured or run.mem_gib):
        fields = ", ".join([step.by for step in measured] + ["mem_gib"] * bool(run.mem_gib))
        return ComparedValues(
            remarks=(f"it ran out of memory, and has {fields}, compared with nothing: leave out oom, or these",)
        )
    remarks += [f"{field} 0 is compared with nothing: give what was measured" for field in MEASURES if getattr(run, field) == 0]
    for step in measured:
        if why := _impossible(laid, step) or _of_another_unit(step.step_s, step_s, f"{step.by} makes its step", "s"):
            remarks.append(f"{step.by} {getattr(run, step.by):g} is compared with nothing: {why}")
        else:
            steps.append(step)
    peak, whole = run.mem_gib or None, laid.sheet.memory_bytes
    if peak is not None:
        why = _of_another_unit(peak, peak_bytes / GIB, "it is", "GiB")
        if peak * GIB > whole:
            why = f"{laid.sheet.name} has {whole / GIB:g} GiB; give GiB of one device"
        if why:
            remarks.append(f"mem_gib {peak:g} is compared with nothing: {why}")
            peak = None
    return ComparedValues(tuple(steps), peak, (*remarks, *contradictions(steps)))


def _missing(laid: LaidRun) -> str:
    """A text for users that names the sizes of a step (batch, tokens per sample) that a measured run does not state, and the
    sizes with which it is predicted instead; empty if the run states all of them. laid: a measured run, with assumed values for
    everything that it does not specify.
    """
    layout, model = laid.layout, laid.model
    samples = f"gbs and mbs are missing, and a step of {layout.batch} samples is predicted"
    tokens = f"seq is missing, and samples of {model.tokens} tokens are predicted"
    missing = [samples] * (laid.run.gbs is None and laid.run.mbs is None) + [tokens] * ("seq" in laid.assumed)
    return "; ".join(missing)


def _impossible(laid: LaidRun, measured: Measured) -> str:
    """The reason, as a text for users, why a measured step cannot be right, because the devices' peak rates are too low for it;
    empty if they are high enough. laid: the measured run, with assumed values for everything that it does not specify.
    """
    run, value = laid.run, getattr(laid.run, measured.by)
    rates = laid.sheet.flops_per_s
    dtype = max((laid.layout.rate, laid.layout.base), key=lambda name: rates[name])
    peak = f"{laid.sheet.name} has {rates[dtype] / 1e12:g} TFLOP/s in {dtype}"
    if measured.by in ("mfu", "hfu") and _share(value) >= 1:
        return f"no run reaches 1; as a percentage write {value:g}%" if value <= PERCENT else "no run reaches 100 %"
    if measured.by == "tflops_gpu" and value * 1e12 > rates[dtype]:
        return f"{peak}; give TFLOP/s of one device"
    per_s = _least_flops(laid) / (measured.step_s * run.gpus)
    if per_s > rates[dtype]:
        return f"its step would be {measured.step_s:.3g} s, of {per_s / 1e12:.4g} TFLOP/s on each device, and {peak}"
    return ""


def _of_another_unit(stated: float, predicted: float, what: str, unit: str) -> str:
    """A text that asks users to check the unit of a measured value, if it differs from the predicted one by so large a factor
    that it is most likely in another unit; empty otherwise.

    stated, predicted: the measured and the predicted value. what, unit: words for the text, such as "mfu makes its step" and
    "s".
    """
    if 1 / UNITS_APART <= stated / predicted <= UNITS_APART:
        return ""
    times = f"{stated / predicted:,.0f} times" if stated > predicted else f"a {predicted / stated:,.0f}th of"
    return f"{what} {stated:.4g} {unit}, {times} the {predicted:.4g} {unit} predicted; look at its unit"


def _least_flops(laid: LaidRun) -> float:
    """FLOPs per step of all devices, by the way of counting that gives the fewest: half of attention (causal masks), no
    recomputation, no gradients of frozen parameters. laid: a measured run, with assumed values for everything that it does not
    specify.
    """
    layers, ends = (sum(map(_products_flops, units)) for units in _units(laid.model))
    passes = PASSES - laid.layout.frozen
    return laid.layout.batch * (passes * (layers + ends) + PASSES * _core_flops(laid.model) / 2)


def _share(value: float) -> float:
    """An MFU or HFU as a share of 1. Values above 1.5 (PERCENT) are percentages: 45 -> 0.45, 0.45 -> 0.45."""
    return value / 100 if value > PERCENT else value


def measured_steps(laid: LaidRun) -> tuple[Measured, ...]:
    """The measured steps of a run: one for each of its fields that states or implies a step (time, tokens/s, samples/s,
    TFLOP/s, MFU, HFU), the most direct field first. Empty if the run has no such field. laid: a measured run, with assumed
    values for everything that it does not specify.
    """
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
    """List texts about measured steps of one run that contradict its first measured step: the difference is larger than
    rounding, or different ways of counting FLOPs, explain. steps: the run's measured steps, one for each field that states
    one; may be empty.
    """
    texts = []
    for step in steps[1:]:
        difference = step.step_s / steps[0].step_s - 1
        if abs(difference) > (COUNTED_APART if step.counted or steps[0].counted else APART):
            first = f"{steps[0].by} {'is' if steps[0].by == 'step_s' else 'makes its step'} {steps[0].step_s:.4g} s"
            counted = f" of {step.counted}" if step.counted else ""
            texts.append(
                f"{first}, and {step.by} makes it {step.step_s:.4g} s ({difference:+.1%}){counted}: {steps[0].by} counts"
            )
    return texts


def verdict(laid: LaidRun, peak_bytes: float, fits: bool) -> str:
    """A text for users if the prediction whether a run fits into memory contradicts the run itself, such as a run out of
    memory that is predicted to fit; empty otherwise.

    laid: the measured run, with assumed values for everything that it does not specify. peak_bytes: its predicted peak. fits:
    whether it is predicted to fit.
    """
    run = laid.run
    ran = run.oom is False or (not run.oom and any(getattr(run, field) for field in MEASURES))
    if run.oom and fits:
        return f"it ran out of memory, and {peak_bytes / GIB:.4g} GiB are predicted, which fit"
    if ran and not fits:
        return f"it ran, and {peak_bytes / GIB:.4g} GiB are predicted, which do not fit"
    return ""


def _flops(laid: LaidRun, computed: bool | None) -> tuple[float, str]:
    """Count the FLOPs per step of all devices, in the way in which a measured run counts the FLOPs that it reports. Returns the
    FLOPs, and a text that describes the way of counting. laid: a measured run, with assumed values for everything that it does
    not specify. computed: whether recomputed FLOPs are included; None if the run's note and framework decide.
    """
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
    recomputed_flops = 0.0
    if computed or (computed is None and (HARDWARE.search(note) or early)):
        recomputed_flops, counted = _again_flops(laid, layers, core), f"{counted} and what is computed again"
    return samples * (PASSES * (layers + ends + core) + recomputed_flops), counted


def _units(model: Model) -> tuple[list[Unit], list[Unit]]:
    """The units (sub-layers, such as attention, feed-forward network, embedding) of a model in two lists: units of transformer
    layers, and units that are embedding or head.
    """
    layers = [unit for unit in model.units if unit.kind not in ("embedding", "head")]
    return layers, [unit for unit in model.units if unit.kind in ("embedding", "head")]


def _products_flops(unit: Unit) -> float:
    """FLOPs of a unit's (sub-layer's) forward pass for one sample, without the core of attention (scores, and their products
    with values).
    """
    part = unit.sublayer if isinstance(unit.sublayer, LatentAttention) else attention_of(unit.sublayer)
    core = 0 if part is None else sum(operator.flops for operator in part.core_operators(1, 1))
    return float(unit.sublayer.forward_flops(1, 1) - core)


def _core_flops(model: Model) -> float:
    """FLOPs of the cores of attention (scores for all keys without a causal mask, and their products with values) of all
    layers in the forward pass of one sample.
    """
    parts = (attention_of(unit.sublayer) for unit in model.units)
    latent = (unit.sublayer for unit in model.units if isinstance(unit.sublayer, LatentAttention))
    own = sum(4.0 * part.tokens * part.keys * part.heads * part.width for part in parts if part is not None)
    return own + sum(2.0 * part.tokens * part.keys * part.heads * (part.width + part.value_width) for part in latent)


def _again_flops(laid: LaidRun, products: float, core: float) -> float:
    """FLOPs per sample that the backward pass recomputes under a run's recomputation policy. laid: a measured run, with assumed
    values for everything that it does not specify. products: FLOPs per sample of the matrix multiplications in the forward pass
    of all layers. core: FLOPs per sample of the cores of attention (scores, and their products with values) in it.
    """
    policy, stages = laid.layout.recompute, laid.layout.pp * laid.layout.chunks
    if policy.operations:
        return products / 2
    share = policy.layers if policy.first is None else min(1.0, policy.first * stages / laid.model.layers)
    return share * (products + core) + (1 - share) * core * policy.attention
