"""Rows that compare plans: each as the runtime that it is for runs it, and others all on one back-end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from trainplan.execution.analysis.timing.simulate import OTHERS
from trainplan.execution.prediction.evaluate_plan import predict_from_saved_costs
from trainplan.formulations.plan.plan import Plan
from trainplan.plan_words import run_words, whose_numbers


def row_rank(row: dict[str, Any]) -> tuple[bool, int]:
    """A sorting key for rows of `plan_row`: shortest step first, rows without a step last. row: its step with overlap
    ("lanes_ns") counts if it is known, else its predicted step.
    """
    step = row["lanes_ns"] if row["lanes_ns"] is not None else row["step_ns"]
    return step is None, step or 0


def compared_by(rows: Sequence[dict[str, Any]]) -> Literal["step", "device", ""]:
    """The quantity that plans compare by: "step", their steps, if they are of one model, sequence, batch and number of devices;
    "device", the throughput of a device, if batches or numbers of devices differ; an empty text if models or sequences do.

    rows: the plans, as `plan_row` makes them.
    """
    if len({(row["model"], row["sequence"]) for row in rows}) > 1:
        return ""
    return "step" if len({(row["devices"], row["batch"]) for row in rows}) <= 1 else "device"


def sorted_rows(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of `plan_row`, the best first: the shortest step, or, of plans that compare by the throughput of a device, the
    largest throughput. Rows without a step come last.
    """
    listed = list(rows)
    if compared_by(listed) != "device":
        return sorted(listed, key=row_rank)

    def rank(row: dict[str, Any]) -> tuple[bool, float]:
        unknown, step_ns = row_rank(row)
        return unknown, step_ns * devices_per_sample(row)

    return sorted(listed, key=rank)


def devices_per_sample(row: dict[str, Any]) -> float:
    """The number of devices over the samples of a step: times the step, it is what a sample takes of a device. row: a plan, as
    `plan_row` makes it."""
    return float(row["devices"] / row["batch"])


def plan_row(name: str, plan: Plan) -> dict[str, Any]:
    """A plan as a row that can be compared with rows of other plans, as a dict. It has the request (`model`, `devices`,
    `batch`, `sequence`, `memory_bytes`), the layout (`run`, `stages`, `micro_batches`), the plan's own prediction
    (`step_ns`, `backend`, `software`, the runtime that it is of, `samples_per_s`, `tokens_per_s_per_device`, `peak_bytes`),
    `whose` (a phrase on that runtime), `lanes_ns`, the step in ns with overlap, by which all plans compare (of the runtime that
    the plan is for, or else on the back-end `streams`), and the claim (`claim_ns`, `bound_ns`, `gap`, `problem`,
    `cost_model`); None for what is unknown.

    name: the plan's name for people, the row's `name`.
    """
    predicted, claim, lanes_ns = plan.predicted, plan.claim, None
    if predicted is not None and predicted.durations is not None:
        comparable = predicted.backend in ("streams", *OTHERS)
        lanes_ns = predicted.step_ns
        if not (predicted.software or comparable):
            lanes_ns = predict_from_saved_costs(plan, predicted.durations, "streams").step_ns
    samples_per_s = 0.0 if predicted is None else plan.batch.global_samples / predicted.step_ns * 1e9
    return {
        "name": name,
        "model": plan.planned_model().name,
        "devices": plan.world,
        "batch": plan.batch.global_samples,
        "sequence": plan.planned_model().tokens,
        "memory_bytes": plan.memory_bytes,
        "run": run_words(plan),
        "lanes_ns": lanes_ns,
        "step_ns": None if predicted is None else predicted.step_ns,
        "backend": None if predicted is None else predicted.backend,
        "whose": whose_numbers(plan),
        "software": None if predicted is None else predicted.software or None,
        "samples_per_s": None if predicted is None else samples_per_s,
        "tokens_per_s_per_device": None if predicted is None else samples_per_s * plan.planned_model().tokens / plan.world,
        "peak_bytes": None if predicted is None else predicted.most_bytes,
        "stages": len(plan.stages),
        "micro_batches": plan.batch.micro_batches,
        "claim_ns": None if claim is None else claim.objective_ns,
        "bound_ns": None if claim is None else claim.bound_ns,
        "gap": None if claim is None else claim.gap,
        "problem": None if claim is None else claim.problem,
        "cost_model": None if claim is None else claim.cost_model,
    }
