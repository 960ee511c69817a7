"""All presets' plans for the same requests, judged by the simulations; and pairs of presets of which one contains the other.

A preset contains another where it may choose all that the other may, and minimises the step. It must never be beaten by it, as
the time simulation judges both. Where the objective of the larger one is not the step (Eq. 8 and Eq. 3-5 are not), no pair is
listed.

    python benchmarks/presets.py
"""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.table import Table
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.quantities import format_bytes, format_time

import trainplan as tp
from trainplan.planning.result import PlanningResult

REQUESTS: list[dict[str, Any]] = [
    {"model": "gpt2", "cluster": "cpu-4", "batch": 8, "sequence": 64},
    {"model": "gpt2", "cluster": "cpu-4", "batch": 8, "sequence": 64, "memory": "600MB"},
    {"model": "gpt2-345m", "cluster": "autopipe-3090-16", "batch": 128},
    {"model": "bert-large", "cluster": "rtx-titan-8", "batch": 64, "memory": "8GiB"},
    {"model": "gpt2-345m", "cluster": "a100-16", "batch": 64, "memory": "6GiB"},
]
# What is contained, and what contains it, as keyword arguments of `plan`.
PAIRS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"like": "partition", "sliced": 0}, {"like": "partition"}),
    ({"like": "partition", "by_unit": False}, {"like": "partition"}),
    ({"like": "partition", "pipeline": 2}, {"like": "partition"}),
    ({"like": "partition", "micro_batches": 2}, {"like": "partition"}),
    ({"like": "partition", "sliced": 0}, {"like": "joint"}),
    ({"like": "galvatron-bmw"}, {"like": "joint"}),
    ({"like": "joint", "by_unit": False}, {"like": "joint"}),
]


def step_ns(request: dict[str, Any]) -> int | None:
    """The predicted step of a request's plan; None where there is none, or where the preset does not suit."""
    try:
        plan = tp.plan(time_limit=20, **request).plan
    except InputError:
        return None
    return None if plan is None or plan.predicted is None else plan.predicted.step_ns


def main() -> None:
    """Print the table of presets, then the pairs; exit status 1 where a pair is the wrong way round."""
    console, wrong = Console(width=150), 0
    table = Table(title="presets, judged by the walks")
    for name in ("request", "preset", "predicted step", "memory", "claim", "claimed by"):
        table.add_column(name, justify="left" if name in ("request", "preset", "claimed by") else "right")
    for request in REQUESTS:
        text = ", ".join(str(value) for value in request.values())
        for answer in tp.plans(time_limit=20, **request):
            if isinstance(answer, PlanningResult) and answer.plan is not None and answer.plan.predicted and answer.plan.claim:
                plan, claim = answer.plan.predicted, answer.plan.claim
                cells = (format_time(plan.step_ns), format_bytes(plan.most_bytes), format_time(claim.objective_ns))
                table.add_row(text, answer.preset.name, *cells, claim.cost_model)
            else:
                why = answer if isinstance(answer, InputError) else answer.result.reason or answer.result.message
                name = answer.preset.name if isinstance(answer, PlanningResult) else "-"
                table.add_row(text, name, "none", "-", "-", str(why))
            text = ""
    console.print(table)
    table = Table(title="pairs: the second contains the first")
    for name in ("request", "contained", "contains it", "step", "step of the larger"):
        table.add_column(name)
    for request in REQUESTS:
        for inner, outer in PAIRS:
            steps = step_ns({**request, **inner}), step_ns({**request, **outer})
            if steps[0] is None:
                continue
            beaten = steps[1] is None or steps[1] > steps[0]
            wrong += beaten
            shown = ["-" if step is None else format_time(step) for step in steps]
            words = [", ".join(f"{name} {value}" for name, value in entry.items()) for entry in (inner, outer)]
            table.add_row(str(request["model"]), *words, shown[0], shown[1] + (" BEATEN" if beaten else ""))
    console.print(table)
    console.print(f"{wrong} pairs the wrong way round")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
