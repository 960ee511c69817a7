"""Why a plan is as it is: where its time and memory go, what other choices would cost, and in what two plans differ."""

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
from trainplan.plan_words import run_words, whose_numbers
from trainplan.prediction.metrics import stage_shares
from trainplan.prediction.simulate import simulate
from trainplan.prediction.simulation import Simulation
from trainplan.profiling.base.display import in_one_line
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import FilePath, Source, name_of_source
from trainplan.profiling.base.quantities import format_time, plural, span
from trainplan.profiling.profiles import Profile
from trainplan.solvers.core.limits import TIME_LIMIT_S
from trainplan.tabular import Tabular
from trainplan.verification import request_of_claim


@dataclass(frozen=True)
class ExplainedStage:
    """Where the time and the memory of one pipeline stage go.

    Attributes:
        stage: the index of the stage.
        ranks: its ranks, as a text such as "0 to 3".
        compute: share of its devices' time in a step in which they compute, by simulation of the plan's programs.
        communication: share in which communication or copies are exposed, that is, hidden by no computation.
        waiting: share in which its devices do nothing.
        peak_bytes: predicted peak memory of its fullest device.
        limit_bytes: the memory of a device that the plan was made for.
        binds: whether more memory would make the step shorter.
    """

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
    """The plan with one decision changed for all of its units, as its runtime is predicted to run it.

    Attributes:
        what: a text that describes the change.
        step_ns: the predicted step.
        peak_bytes: the predicted peak memory of the fullest device.
    """

    what: str
    step_ns: int
    peak_bytes: int


@dataclass(frozen=True)
class Explained:
    """Why a plan is as it is: where its time and memory go, how good it is, and what changes of it would gain or lose.

    Attributes:
        model: the model's name.
        step_ns: the predicted step, as the runtime that the plan is for overlaps communication.
        objective_ns: the plan's step by the solver's step model.
        bound_ns: the lower bound of that step for any plan, as the solver claims it; None if it claims none.
        checked_ns: the lower bound that the plan's evidence proves, checked without any solver; None if it proves nothing.
        one_strategy: the strategy of all units, if they share one; else None.
        stages: where the time and memory of each stage go.
        changes: for each run of equal units, the other strategies that the first of them could have, by the solver's step model
            (`formulations.joint.unit_alternatives.UnitAlternatives`).
        complete: whether all such changes were tried within the time limit.
        software: the other runtime that `step_ns` is predicted for; empty for trainplan's own.
        neighbours: for a plan of another runtime, plans with one decision changed for all units, the shortest step first.
        run: how the plan runs, as short texts such as TP2 and 1F1B.
        units: the number of units (sub-layers).
        limit_bytes: the memory of a device that the plan was made for.
        whose: a phrase that says which runtime `step_ns` and the stages' peaks are of.
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
    whose: str = ""

    def __repr__(self) -> str:
        text = f"{format_time(self.step_ns)} a step, {plural(len(self.stages), 'stage')}"
        return f"<Explained {self.model}: {text}, {plural(len(self.changes), 'run')} of equal units>"

    @property
    def changed_alone(self) -> bool:
        """Whether any change of a single unit (sub-layer) was found, without which `stages` do not say whether more memory
        helps."""
        return any(change.next_best or change.prevented for change in self.changes)

    @property
    def prevented(self) -> tuple[Neighbour, ...]:
        """The neighbours that are faster than the plan but do not fit, the shortest step first."""
        return tuple(other for other in self.neighbours if other.peak_bytes > self.limit_bytes and other.step_ns < self.step_ns)

    def lacking_bytes(self, change: Any) -> int:
        """The bytes that the plan's fullest device lacks after a change of one unit (sub-layer); 0 if the change fits.

        change: one of the alternatives in `changes`; for every stage it states how many more bytes the stage needs by the
        solver's count; these are added to the stage's predicted peak.
        """
        stages = self.stages
        peaks = (stages[index % len(stages)].peak_bytes + more for index, more in enumerate(change.more_bytes))
        return max(0, *(peak - self.limit_bytes for peak in peaks))

    def to_dict(self) -> dict[str, Any]:
        """The explanation as a JSON-ready dict whose keys are the names of this class's attributes, such as `step_ns`,
        `bound_ns` and `limit_bytes`; `stages`, `changes` and `neighbours` are lists of dicts."""
        return asdict(self)


@dataclass(frozen=True)
class Difference:
    """A run of consecutive units (sub-layers) that two plans treat differently in one way.

    Attributes:
        units: the names of the first and the last unit.
        count: the number of units.
        first_stage: the index of their stage in the first plan.
        first: their strategy in the first plan.
        second_stage: the index of their stage in the second plan.
        second: their strategy in the second plan.
    """

    units: str
    count: int
    first_stage: int
    first: str
    second_stage: int
    second: str


class Differences(Tabular, list[Difference]):
    """The runs of sub-layers that two plans treat differently, in the order of the model's sub-layers."""

    headings: ClassVar = {
        "units": "units",
        "count": "count",
        "first_stage": "stage",
        "first": "first plan",
        "second_stage": "stage",
        "second": "second plan",
    }

    def rows(self) -> list[dict[str, Any]]:
        """The table's rows: a dict for each run of sub-layers that the plans treat differently, with the fields of
        `Difference`."""
        return [asdict(difference) for difference in self]


def explain(
    plan: Plan | Source,
    *,
    profile: FilePath | Profile | None = None,
    time_limit: float | None = TIME_LIMIT_S,
    simulation: Simulation | None = None,
) -> Explained:
    """Where a plan's time and memory go, and what another strategy of a single sub-layer would gain or lose.

    Args:
        plan: a plan, its file, or a dict, with the evidence of its bound, as `plan -o`, `planned.save` and `certify` give it.
        profile: the profile that the plan was made from, if it was.
        time_limit: seconds for trying other strategies of sub-layers; those that are not reached are left out.
        simulation: the plan's simulation, if it was simulated already.

    Returns:
        Stages with their shares of time and memory, and changes of one sub-layer.

    Raises:
        InputError: for a plan without evidence, or of another profile.
    """
    explained = load_plan(plan)
    claim, used = explained.claim, profile_of(profile)
    if claim is None or claim.evidence is None:
        raise InputError(name_of_source(plan, "plan"), "", *_unsearched(explained))
    if claim.evidence.cluster is None and used is None:
        raise InputError("plan", "claim.evidence.cluster", "is missing", "give the --profile that the plan was made from")
    the_problem = problem(claim.problem)
    if (refinement := the_problem.refinement) is None:
        raise InputError("plan", "claim.problem", f"is {the_problem.name!r}, which is not explained", "give a plan of joint")
    request = request_of_claim(explained, claim.evidence, used)
    instance = the_problem.instance(request)
    try:
        solution = the_problem.load_solution(claim.evidence.solution)
        objective_ns = the_problem.evaluate(instance, solution).objective
    except (ValueError, LookupError) as error:
        problem_text = f"is of another instance ({error})"
        raise InputError("plan", "claim.evidence.solution", problem_text, "plan again with `trainplan plan -o`") from error
    at_most = the_problem.instance(with_tables(request, "most"))  # memory tables that are never below what programs hold
    limit_bytes, peak_bytes = at_most.common_memory_bytes, getattr(the_problem.evaluate(at_most, solution), "peak_bytes", 0)
    if limit_bytes is not None and peak_bytes > limit_bytes:  # the plan fits by simulation: others may need as much
        at_most = at_most.with_memory(peak_bytes)
    if not the_problem.violations(at_most, solution):
        instance = at_most
    simulation = simulation or simulate(explained)
    end = time.monotonic() + (float("inf") if time_limit is None else time_limit)
    changes = tuple(refinement.unit_alternatives(instance, solution, lambda: time.monotonic() > end))
    return Explained(
        model=explained.planned_model().name,
        step_ns=simulation.step_ns,
        objective_ns=objective_ns,
        bound_ns=claim.bound_ns,
        checked_ns=_followed_ns(the_problem, request, claim.evidence),
        one_strategy=explained.one_strategy,
        stages=tuple(_stages(explained, simulation, {change.stage for change in changes if change.prevented is not None})),
        changes=changes,
        complete=time.monotonic() <= end,
        software=simulation.software,
        neighbours=_neighbours(explained, request),
        run=tuple(run_words(explained)),
        units=len(explained.units),
        limit_bytes=explained.memory_bytes,
        whose=whose_numbers(explained if simulation.plan is None else simulation.plan),
    )


def _unsearched(plan: Plan) -> tuple[str, str]:
    """Two texts of the refusal of a plan without the evidence of a search: what is wrong with it, and what works instead."""
    searched = "give a plan that `trainplan plan -o` has written"
    if plan.runs_by is None or plan.claim is not None:
        return "has no evidence of a search, which says on what cluster and with what options it was planned", searched
    judged = "`trainplan import-run FILE --details` says of its launch file where time and memory go and what to change"
    return "is a run that was read from a file: no search has made it", f"{judged}; or {searched}"


def _neighbours(plan: Plan, request: Request) -> tuple[Neighbour, ...]:
    """Plans that differ from a plan in one decision for all units (sub-layers), with their predictions, the shortest predicted
    step first.

    request: the request that the plan answers. Empty unless it is for a runtime (its option `for_`) and the plan states how
    that runtime runs it.
    """
    runtime = request.options.get(FOR.name)
    if runtime is None or plan.runs_by is None:
        return ()
    runs_of_others = neighbour_runs(runtime, plan, request)
    count = plan.batch.micro_batches
    return tuple(
        Neighbour(
            f"{what}, {plural(other.batch.micro_batches, 'micro-batch')} a step"
            if other.batch.micro_batches != count and "micro-batch" not in what
            else what,
            round(step_ns),
            round(peak_bytes),
        )
        for what, other, step_ns, peak_bytes in runs_of_others
    )


def _followed_ns(the_problem: Problem, request: Request, evidence: PlanEvidence) -> int | None:
    """The lower bound of a step, in ns, that a plan's evidence proves for the request that the plan answers, checked without a
    solver.

    the_problem: the optimization problem that the evidence is of. Returns None if its bounds have no evidence, or if the
    evidence is damaged or belongs to another instance.
    """
    if the_problem.certificate is None:
        return None
    try:
        return the_problem.certificate.checked_bound_ns(the_problem.instance(request), evidence.proof)
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError):
        return None


def _stages(plan: Plan, simulation: Simulation, bound: set[int]) -> list[ExplainedStage]:
    """For each pipeline stage of a plan, in order, its shares of time and its memory.

    simulation: the simulation of the plan's programs, with its performance. bound: the indices of stages at which more memory
    would make the step shorter; an index beyond the pipeline's depth is of the stage that follows modulo the depth."""
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
    """The runs of sub-layers that two plans of one model treat differently.

    Args:
        first: a plan, its file, or a dict.
        second: the other plan.

    Returns:
        A list of them, in the order of the sub-layers, with `frame()`.

    Raises:
        InputError: for plans of several models.
    """
    plans = [load_plan(source) for source in (first, second)]
    if len(plans[0].units) != len(plans[1].units):
        sizes = f"has {len(plans[1].units)} sub-layers, and the other {len(plans[0].units)}"
        raise InputError("plan", "units", sizes, "give two plans of one model")
    treated = [_stages_and_strategies(plan) for plan in plans]
    labels = [f"{a}\n{b}" if a != b else "" for a, b in zip(*treated, strict=True)]
    rows = Differences()
    for index, units, count, label in runs([unit.name for unit in plans[0].units], labels):
        if label:
            (first_stage, one), (second_stage, other) = treated[0][index], treated[1][index]
            rows.append(Difference(units, count, first_stage, one, second_stage, other))
    return rows


def _stages_and_strategies(plan: Plan) -> Sequence[tuple[int, str]]:
    """For each unit (sub-layer) of a plan, in order, a pair: the index of its stage, and its strategy as a text, with the
    optimizer's name unless that is AdamW."""
    stages = [index for index, stage in enumerate(plan.stages) for _ in range(stage.first_unit, stage.last_unit + 1)]
    stepped = "" if plan.optimizer == "adamw" else f", {plan.optimizer}"
    texts = [f"{strategy}{stepped}" for strategy in plan.strategies()]
    return list(zip(stages, texts, strict=True))
