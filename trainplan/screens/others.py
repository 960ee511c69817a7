"""Plans that differ from a planned one in one decision, for the screens of commands: which are faster, which do not fit, and
which are as fast within what is known."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from trainplan.formulations.joint.options import LAYOUTS
from trainplan.formulations.joint.overlap_units_request import UNIT
from trainplan.formulations.joint.within_runtime import FOR
from trainplan.formulations.plan.plan import Plan
from trainplan.imported_runs.assess import LEAST_GAIN, neighbour_runs
from trainplan.plan_words import layouts, run_words
from trainplan.planning.result import PlanningResult
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.quantities import format_time, plural
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.screens.equal import Layout, equal_layouts, equal_rows
from trainplan.screens.predicted import gib
from trainplan.validation.plans import predict

MOST_OTHERS = 3  # other plans that fit which the screen names


@dataclass(frozen=True)
class OtherPlans:
    """Texts for the screen on plans that differ from the answer's plan in one decision, with the steps that are predicted for
    the answer's runtime.

    faster: the plan that fits and is predicted to be faster, although it is worse by the solver's objective; at most one.
    why_not: the memory of the fastest plan that does not fit, and the steps of the next best plans that fit.
    fitting: all of these plans that fit, by what differs, with their predicted steps in ns; that of one layout only if it is
        as fast within what is known.
    """

    faster: list[str]
    why_not: list[str]
    fitting: list[Layout]


def other_plans(answer: PlanningResult) -> OtherPlans:
    """Find plans to compare the answer's plan with, and describe them: the best plan with one layout for all units
    (sub-layers), and plans that differ from it in one option of the runtime. If the request allowed each unit a layout of its
    own, and the plan has one layout for all, a text says so.
    """
    plan, runtime, uniform = answer.plan, answer.request.options.get(FOR.name), answer.uniform
    assert plan is not None and answer.step_ns is not None
    alike, equal = list[str](), list[Layout]()
    if uniform is not None and uniform.plan is not None and uniform.step_ns is not None:
        one = f"one layout for all ({' '.join(run_words(uniform.plan)[:-1])})"
        equal = equal_layouts(answer.step_ns, [(one, uniform.step_ns)])
        alike = [] if equal else [f"{one}: {format_time(uniform.step_ns)}"]
    elif answer.request.options.get(LAYOUTS.name) == UNIT and not layouts(plan):
        proven = plan.claim is not None and plan.claim.gap is not None and plan.claim.gap < LEAST_GAIN
        none = "none is faster by 0.1 %" if proven else "none is known to be faster"
        alike = [f"unlike layouts ({LAYOUTS.flag} {UNIT}): {none} than this one for all"]
    if runtime is None or plan.runs_by is None:
        return OtherPlans([], alike, equal)
    own, named, faster = run_words(plan), set[str](), list[str]()
    fitting, short, others = list[str](), list[str](), list[Layout]()
    for _, other, step_ns, peak_bytes in neighbour_runs(runtime, plan, answer.request):
        name = difference(own, run_words(other))
        if not name or name in named:
            continue
        named.add(name)
        if peak_bytes > plan.memory_bytes:
            short += [] if short else [shortage(name, other, peak_bytes, answer.request.cluster)]
            continue
        others.append((name, step_ns))
        if step_ns < (1 - LEAST_GAIN) * answer.step_ns:
            faster.append(f"{name} would take {format_time(step_ns)} by this prediction: the search goes by its own step model")
        else:
            fitting.append(f"{name}: {format_time(step_ns)}")
    return OtherPlans(faster[:1], [*alike, *short[:1], *fitting[:MOST_OTHERS]], [*equal, *others])


def equal_plans(answer: PlanningResult) -> list[dict[str, Any]]:
    """Plans that differ from the answer's plan in one decision, fit, and are predicted to be as fast within what is known, as
    JSON-ready dicts with `layout` (what differs) and `step_ns`. answer: the request, with the plan found for it, if any.
    """
    if answer.plan is None or answer.step_ns is None:
        return []
    return equal_rows(answer.step_ns, other_plans(answer).fitting)


def shortage(name: str, plan: Plan, peak_bytes: float, cluster: Cluster | None) -> str:
    """A text on the memory that a plan needs that does not fit, such as `TP1: needs 90.7 GiB`: the least of all numbers of
    micro-batches, that is, with one sample in each. If that would fit or is not known, the text is of the plan as it is, and
    names its micro-batches; also if these are what the plan differs in.

    name: what the plan differs in. peak_bytes: its predicted peak. cluster: the devices; None if they are not known.
    """
    if "micro-batch" in name:
        return f"{name}: needs {gib(peak_bytes)} GiB"
    samples = plan.batch.global_samples // plan.units[0].strategy.data_degree
    least: float | None = peak_bytes
    if plan.batch.micro_batches != samples:
        least = None if cluster is None else _peak_of(plan, samples, cluster)
    if least is None or least <= plan.memory_bytes:
        return f"{name} in {plural(plan.batch.micro_batches, 'micro-batch')}: needs {gib(peak_bytes)} GiB"
    return f"{name}: needs {gib(least)} GiB"


def _peak_of(plan: Plan, micro_batches: int, cluster: Cluster) -> float | None:
    """The predicted peak in bytes of a plan with another number of micro-batches on a cluster; None if there is none."""
    try:
        batch = plan.batch.changed(micro_batches=micro_batches)
        found = predict(plan.changed(batch=batch, predicted=None, claim=None), cluster)
    except InputError:
        return None
    return None if isinstance(found, str) else found.most_bytes


def difference(own: Sequence[str], words: Sequence[str]) -> str:
    """The words of another plan's layout that are not in the layout of the user's plan, as text, such as `TP8 PP1`; empty if
    the layouts are equal.

    own, words: the words of the layout of the user's plan and of the other plan, as `run_words` gives them. The data-parallel
    degree and the number of micro-batches follow from the rest, and are omitted if anything else differs.
    """
    new = [word for word in words if word not in own]
    lost = [f"{name}1" for name in ("TP", "PP", "CP") if _has(name, own) and not _has(name, words)]
    chosen = lost + [word for word in new if not word.startswith("DP") and "micro-batch" not in word]
    if not chosen and "nothing recomputed" not in new:
        chosen = new
    return " ".join(chosen) or "without SP" * ("SP" in own and "SP" not in words)


def _has(name: str, words: Iterable[str]) -> bool:
    """Whether one of the words is the abbreviation of a kind of parallelism (such as TP) followed by a degree, as in TP8."""
    return any(re.fullmatch(rf"{name}\d+", word) for word in words)
