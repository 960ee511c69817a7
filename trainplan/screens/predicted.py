"""Texts on a plan's predicted memory and speed for the screens of commands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainplan.execution.prediction.surrogate import recipe_of
from trainplan.formulations.plan.plan import Plan
from trainplan.planning.every_runtime import OWN
from trainplan.planning.result import PlanningResult
from trainplan.prediction.metrics import PARTS, Performance
from trainplan.profiling.base.quantities import format_time
from trainplan.profiling.clusters.efficiencies import shipped_efficiencies
from trainplan.profiling.clusters.sheets import sheet, sheets
from trainplan.validation.predict import GIB, Prediction

CAUSES = {"optimizer": "optimizer states"}


def memory_words(plan: Plan, parts: Mapping[str, float]) -> list[str]:
    """A plan's peak memory per GPU, for the screen, as texts that are printed with dots between them: the peak, the limit, the
    stage that has the peak, and its largest part.

    parts: the peak of the fullest device in bytes, by part, such as "activations".
    """
    if plan.predicted is None:
        return ["by the solver's count; no prediction: trainplan cannot run plans of this model yet"]
    most, limit = max(plan.predicted.peak_bytes), plan.memory_bytes
    margin = free_words(limit - most) if most <= limit else f"{gib(most - limit)} too much"
    return [f"{gib(most)} of {gib(limit)} GiB ({margin}){most_held(plan, parts)}"]


def most_held(plan: Plan, parts: Mapping[str, float]) -> str:
    """A phrase to follow the size of a plan's peak: the stage that has it, and its largest part; empty if the plan has no
    prediction.

    parts: the peak of the fullest device in bytes, by part, such as "activations".
    """
    if plan.predicted is None:
        return ""
    peaks, text = plan.predicted.peak_bytes, ""
    rank = peaks.index(max(peaks))
    if plan.depth > 1:
        text += f" on stage {next(number for number, stage in enumerate(plan.stages) if rank in stage.ranks)}"
    if parts:
        name = max(parts, key=lambda part: parts[part])
        text += f", most of it {name} ({gib(parts[name])} GiB)"
    return text


def parts_of(run: Prediction | None, own: Performance | None) -> dict[str, float]:
    """The peak memory of the fullest device in bytes, by part, such as "activations"; empty if there is no prediction.

    run: the prediction for the plan's runtime, if it is not trainplan's own; used if it is given. own: the prediction of the
    plan's own programs, used otherwise.
    """
    if run is not None and run.memory is not None:
        return {CAUSES.get(name, name): size for name, size in run.memory.parts.items()}
    if own is None:
        return {}
    stage = max(own.stages, key=lambda memory: memory.peak_bytes)
    return {CAUSES.get(name, name): getattr(stage, f"{name}_bytes") for name in PARTS}


def speed_words(step_ns: int, reached: Performance | None, likely: tuple[float, float] | None) -> list[str]:
    """Step time, tokens/s and MFU for the screen, as texts that are printed with dots between them. reached: has tokens/s and
    MFU; None omits them. likely: the interval in ns in which a measured step probably lies; None omits it.
    """
    words = [f"{format_time(step_ns)} a step"]
    if reached is not None:
        words.append(f"{tokens(reached.tokens_per_s_per_device)} tokens/s a GPU")
        words += [] if reached.mfu is None else [f"MFU {reached.mfu:.0%}".replace("%", " %")]
    if likely is not None:
        words[-1] += f" (likely {_rounded(likely[0])} to {_rounded(likely[1])})"
    return words


def likely_ns(answer: PlanningResult) -> tuple[float, float] | None:
    """The interval (lowest, highest) in ns that is meant to contain 80 % of measured steps of the answer's plan; None if the
    error of the devices' kernel times is not known.
    """
    run, cluster, plan = answer.run, answer.request.cluster, answer.plan
    if run is not None and run.step_low_s is not None and run.step_high_s is not None:
        return run.step_low_s * 1e9, run.step_high_s * 1e9
    if cluster is None or plan is None or answer.step_ns is None or len(cluster.used_kinds) != 1:
        return None
    recipe = recipe_of(plan)
    precision: Any = recipe.precision if recipe else plan.planned_model().dtype
    reached = cluster.used_kinds[0].reached("matrix-product", precision)
    if reached is None:
        return None
    named = next((name for name in sheets() if sheet(name).name == cluster.used_kinds[0].name), None)
    known = None if named is None else shipped_efficiencies().step_error(named, plan.world, precision, OWN)
    error = max(reached.error, known or 0.0)
    return answer.step_ns / (1 + error), answer.step_ns * (1 + error)


def free_words(size: float) -> str:
    """Format a number of free bytes as text in GiB, without the unit: `2.3 free`, `102 free`."""
    return f"{size / GIB:.2g} free" if size < 99.5 * GIB else f"{size / GIB:.0f} free"


def gib(size: float) -> str:
    """Format a size in bytes as text in GiB without the unit, with three digits: `7.25`, `104`."""
    return f"{size / GIB:.3g}" if size < 100 * GIB else f"{size / GIB:.0f}"


def tokens(rate: float) -> str:
    """Format tokens per second as text, in whole tokens from a hundred on: `1,022`, `33.6`."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _rounded(time_ns: float) -> str:
    """Format a time in ns as text with its unit, in whole units from ten on: `9.5 s`, `125 ms`."""
    value, unit = format_time(time_ns).split()
    return f"{float(value):.0f} {unit}" if float(value) >= 10 else f"{float(value):.2g} {unit}"
