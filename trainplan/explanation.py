"""Why a plan is as it is: where its time and memory go, what its units could have instead, and what two plans differ in."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from trainplan.formulations.joint.options import with_tables
from trainplan.formulations.joint.within_runtime import FOR
from trainplan.formulations.plan.plan import Plan, PlanEvidence, load_plan
from trainplan.formulations.plan.request import Request
from trainplan.formulations.plan.run_length import runs
from trainplan.formulations.problem import Problem, problem
from trainplan.imported_runs.assess import neighbour_runs
from trainplan.inputs import profile_of
from trainplan.plan_words import run_words
from trainplan.prediction.metrics import stage_shares
from trainplan.prediction.simulate import Simulation, simulate
from trainplan.profiling.base.display import in_one_line
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import FilePath, Source
from trainplan.profiling.base.quantities import format_time, plural, span
from trainplan.profiling.profiles import Profile
from trainplan.solvers.core.limits import TIME_LIMIT_S
from trainplan.tabular import Tabular
from trainplan.verification import request_of_claim


@dataclass(frozen=True)
class ExplainedStage:
    """Where the time of one stage goes, by the walks, and what its fullest device needs, as is predicted. compute,
    communication, waiting: shares of its devices' time in a step: computing, exposed communication and copies, nothing. binds:
    whether more memory would make the step shorter."""

    stage: int
    ranks: str
    compute: float
    communication: float
    waiting: float
    peak_bytes: int
    limit_bytes: int
    binds: bool


@in_one_line
@dataclass(frozen=True)
class Neighbour:
    """A plan with one decision changed for all units, as the runtime is predicted to run it. peak_bytes: of its fullest
    device."""

    what: str
    step_ns: int
    peak_bytes: int


@dataclass(frozen=True)
class Explained:
    """Why a plan is as it is.

    step_ns: predicted, as `software` overlaps, where that is not trainplan's own runtime; objective_ns, bound_ns: what is
    claimed of the walks over its programs; checked_ns: the bound that the claim's evidence proves, followed without any
    solver, None where it proves nothing. changes: for each run of equal units what the first of
    them could have instead, with the claim's costs (see `formulations.joint.changes`); complete: whether all were tried.
    neighbours: of a plan for another runtime, plans with one decision changed, the shortest step first. run: how the plan runs,
    in words; units: how many it has; limit_bytes: the memory of each device.
    """

    model: str
    step_ns: int
    objective_ns: int
    bound_ns: int | None
    checked_ns: int | None
    one_strategy: str | None
    stages: tuple[ExplainedStage, ...]
    changes: tuple[Any, ...]
    complete: bool
    software: str = ""
    neighbours: tuple[Neighbour, ...] = ()
    run: tuple[str, ...] = ()
    units: int = 0
    limit_bytes: int = 0

    def __repr__(self) -> str:
        text = f"{format_time(self.step_ns)} a step, {plural(len(self.stages), 'stage')}"
        return f"<Explained {self.model}: {text}, {plural(len(self.changes), 'run')} of equal units>"

    def lacking_bytes(self, change: Any) -> int:
        """What a device lacks under a change of one unit, from the free memory that is predicted of its stage and from what the
        change needs more than the plan by the solver's count; 0 where all fits."""
        stages = self.stages
        peaks = (stages[x % len(stages)].peak_bytes + more for x, more in enumerate(change.more_bytes))
        return max(0, *(peak - self.limit_bytes for peak in peaks))

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Difference:
    """Units that two plans treat differently: their stage and strategy in the first one and in the second one."""

    units: str
    count: int
    first_stage: int
    first: str
    second_stage: int
    second: str


class Differences(Tabular, list[Difference]):
    """Runs of sub-layers that two plans treat differently, in the order of the sub-layers."""

    headings: ClassVar = {
        "units": "units",
        "count": "count",
        "first_stage": "stage",
        "first": "first plan",
        "second_stage": "stage",
        "second": "second plan",
    }

    def rows(self) -> list[dict[str, Any]]:
        """A dict for each run of units: the fields of `Difference`."""
        return [asdict(each) for each in self]


def explain(
    plan: Plan | Source,
    *,
    profile: FilePath | Profile | None = None,
    time_limit: float | None = TIME_LIMIT_S,
    simulation: Simulation | None = None,
) -> Explained:
    """Where a plan's time and memory go, and what each of its units could have in place of what it has.

    Args:
        plan: with the evidence of its bound, as `plan -o`, `planned.save` and `certify` give it.
        profile: that the plan was made from, where it was.
        time_limit: seconds for trying what units could have; what they do not allow is left out.
        simulation: of the plan, where there is one already.

    Returns:
        Stages with their shares of time and memory, and changes of one layer.

    Raises:
        InputError: for a plan without evidence, or of another profile.
    """
    made = load_plan(plan)
    claim, used = made.claim, profile_of(profile)
    if claim is None or claim.evidence is None:
        raise InputError("plan", "claim.evidence", "is missing", "give a plan that `trainplan plan -o` has written")
    if claim.evidence.cluster is None and used is None:
        raise InputError("plan", "claim.evidence.cluster", "is missing", "give the --profile that the plan was made from")
    stated = problem(claim.problem)
    if (refinement := stated.refinement) is None:
        raise InputError("plan", "claim.problem", f"is {stated.name!r}, which does not tell", "give a plan of joint")
    request = request_of_claim(made, claim.evidence, used)
    instance = stated.instance(request)
    try:
        solution = stated.load_solution(claim.evidence.solution)
        objective_ns = stated.evaluate(instance, solution).objective
    except (ValueError, LookupError) as error:
        problem_text = f"is of another instance ({error})"
        raise InputError("plan", "claim.evidence.solution", problem_text, "plan again with `trainplan plan -o`") from error
    at_most = stated.instance(with_tables(request, "most"))  # under which what others need is not said too low
    limit_bytes, peak_bytes = at_most.common_memory_bytes, getattr(stated.evaluate(at_most, solution), "peak_bytes", 0)
    if limit_bytes is not None and peak_bytes > limit_bytes:  # of a plan that fits by its walk: the same counts for others
        at_most = at_most.with_memory(peak_bytes)
    if not stated.violations(at_most, solution):
        instance = at_most
    simulation = simulation or simulate(made)
    end = time.monotonic() + (float("inf") if time_limit is None else time_limit)
    changes = tuple(refinement.unit_alternatives(instance, solution, lambda: time.monotonic() > end))
    return Explained(
        model=made.planned_model().name,
        step_ns=simulation.step_ns,
        objective_ns=objective_ns,
        bound_ns=claim.bound_ns,
        checked_ns=_followed_ns(stated, request, claim.evidence),
        one_strategy=made.one_strategy,
        stages=tuple(_stages(made, simulation, {change.stage for change in changes if change.prevented is not None})),
        changes=changes,
        complete=time.monotonic() <= end,
        software=simulation.software,
        neighbours=_neighbours(made, request),
        run=tuple(run_words(made)),
        units=len(made.units),
        limit_bytes=made.memory_bytes,
    )


def _neighbours(plan: Plan, request: Request) -> tuple[Neighbour, ...]:
    runtime = request.options.get(FOR.name)
    if runtime is None or plan.runs_by is None:
        return ()
    runs_of_others = neighbour_runs(runtime, plan, request)
    return tuple(Neighbour(what, round(step_ns), round(peak_bytes)) for what, _, step_ns, peak_bytes in runs_of_others)


def _followed_ns(stated: Problem, request: Request, evidence: PlanEvidence) -> int | None:
    """The bound that evidence proves; None where it is damaged, or of another instance."""
    if stated.certificate is None:
        return None
    try:
        return stated.certificate.checked_bound_ns(stated.instance(request), evidence.proof)
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError):
        return None


def _stages(plan: Plan, simulation: Simulation, bound: set[int]) -> list[ExplainedStage]:
    assert simulation.judged is not None and simulation.performance is not None
    shares = stage_shares(plan, simulation.judged)
    return [
        ExplainedStage(
            memory.stage,
            span(str(min(stage.ranks)), str(max(stage.ranks))),
            *shared,
            peak_bytes=max(simulation.peak_bytes[rank] for rank in stage.ranks) if simulation.software else memory.peak_bytes,
            limit_bytes=plan.memory_bytes,
            binds=any(x % plan.depth == memory.stage for x in bound),
        )
        for memory, stage, shared in zip(simulation.performance.stages, plan.stages, shares, strict=False)
    ]


def differences(first: Plan | Source, second: Plan | Source) -> Differences:
    """Runs of sub-layers that two plans of one model treat differently.

    Args:
        first: a plan, its file, or a dict.
        second: the other one.

    Returns:
        A list of them, in the order of the sub-layers, with `frame()`.

    Raises:
        InputError: for plans of several models.
    """
    plans = [load_plan(each) for each in (first, second)]
    if len(plans[0].units) != len(plans[1].units):
        sizes = f"has {len(plans[1].units)} sub-layers, and the other {len(plans[0].units)}"
        raise InputError("plan", "units", sizes, "give two plans of one model")
    placed = [_placed(plan) for plan in plans]
    labels = [f"{a}\n{b}" if a != b else "" for a, b in zip(*placed, strict=True)]
    rows = Differences()
    for place, units, count, label in runs([unit.name for unit in plans[0].units], labels):
        if label:
            (x, one), (y, two) = placed[0][place], placed[1][place]
            rows.append(Difference(units, count, x, one, y, two))
    return rows


def _placed(plan: Plan) -> Sequence[tuple[int, str]]:
    """Of every unit its stage and its strategy, with the optimizer where it is not AdamW."""
    stages = [x for x, stage in enumerate(plan.stages) for _ in range(stage.first_unit, stage.last_unit + 1)]
    stepped = "" if plan.optimizer == "adamw" else f", {plan.optimizer}"
    texts = [f"{strategy}{stepped}" for strategy in plan.strategies()]
    return list(zip(stages, texts, strict=True))
