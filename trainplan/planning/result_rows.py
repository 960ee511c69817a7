"""Plans as rows, in which all are predicted alike, so that they compare."""

from __future__ import annotations

from typing import Any

from trainplan.execution.analysis.timing.simulate import OTHERS
from trainplan.execution.prediction.evaluate_plan import predict_from_saved_costs
from trainplan.formulations.plan.plan import Plan
from trainplan.plan_words import run_words


def row_rank(row: dict[str, Any]) -> tuple[bool, int]:
    """A key by which rows of plans are sorted: the shortest step first, on the back-end `streams` where it is known."""
    step = row["lanes_ns"] if row["lanes_ns"] is not None else row["step_ns"]
    return step is None, step or 0


def plan_row(name: str, plan: Plan) -> dict[str, Any]:
    """A plan in one row: the prediction on its own back-end and, so that all plans compare, on the back-end `streams`; and its
    claim. name: of the plan, for people."""
    predicted, claim, lanes_ns = plan.predicted, plan.claim, None
    if predicted is not None and predicted.durations is not None:
        alike = predicted.backend in ("streams", *OTHERS)
        lanes_ns = predicted.step_ns
        if predicted.software or not alike:
            lanes_ns = predict_from_saved_costs(plan, predicted.durations, None if alike else "streams").step_ns
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
