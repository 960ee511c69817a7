"""The assessment of an imported run: the prediction of its plan, the joint problem's bound, and the decisions to change first.

Every suggested change of one decision (`neighbours`) gains by the prediction that the run itself has: its runtime's, or, if
there is none, simulation of both plans' programs. So do the search for the best plan and its bound: where the runtime is
predicted, they are those of `plan --for` it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal

from trainplan.execution.launch_files.logs.steps import LoggedRun
from trainplan.execution.launch_files.run_configuration import RunConfiguration
from trainplan.execution.prediction.evaluate_plan import PlanPrediction
from trainplan.execution.prediction.surrogate import recipe_of
from trainplan.formulations.joint.definition import build
from trainplan.formulations.joint.evaluation import evaluate, violations
from trainplan.formulations.joint.options import CP, CP_EXCHANGE, OPTIMIZER, PARAMETERS
from trainplan.formulations.joint.plan_to_solution import solution_of_plan
from trainplan.formulations.joint.problem import NAME
from trainplan.formulations.joint.search_space import SCHEDULES, Space
from trainplan.formulations.parameters import chosen
from trainplan.formulations.plan.plan import Plan, Predicted
from trainplan.formulations.plan.request import Request
from trainplan.formulations.runtimes import StepAndPeaks, title
from trainplan.imported_runs.neighbours import neighbours
from trainplan.planning.compare_planners import ALIKE
from trainplan.planning.result import PlanningResult
from trainplan.prediction.metrics import Performance
from trainplan.prediction.predict import predicted_as_known, predicted_plan
from trainplan.profiling.base.display import in_one_line
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.quantities import format_bytes, format_time, plural
from trainplan.tabular import Tabular
from trainplan.validation.fitting import Fit, fit_of, fit_probability, peak_error, software_error, tight_words
from trainplan.validation.plans import predict
from trainplan.validation.predict import Prediction

NeighbourRun = tuple[str, Plan, float, float]  # a decision, its plan, and the predicted step (ns) and peak (bytes)
OTHER_SETTINGS = "what runs is none of the plans that the bound is of, or has settings that exports leave out"
WALKED = 3  # number of best changes that are reported
WALKS = "walks"  # the prediction for trainplan's own runtime: simulation of a plan's programs
TRIED = 8  # number of changes simulated at most, if simulation is the prediction, until WALKED of them gain
LEAST_GAIN = 0.001  # the smallest share of a step that is reported


@in_one_line
@dataclass(frozen=True)
class Change:
    """A plan that differs from the run's plan in one decision, and fits into memory.

    Attributes:
        what: the decision, in words.
        plan: the changed plan.
        share: the share of the run's step that the change saves, at most 1.
        walked: how both steps were predicted: True by simulation of the plans' programs, False by the prediction of the
            run's runtime.
        peak_bytes: peak memory of the fullest device by the runtime's prediction; None if there is none.
    """

    what: str
    plan: Plan
    share: float
    walked: bool = False
    peak_bytes: int | None = None


@dataclass(frozen=True)
class BestKnownPlan:
    """The best known plan that the run's runtime can run, by the same prediction as the run.

    Attributes:
        source: "run" if nothing better than the run is known, "change" for a change of one decision, "search" for a plan of the
            search within the runtime.
        plan: the plan.
        step_ns: its predicted step.
    """

    source: Literal["run", "change", "search"]
    plan: Plan
    step_ns: int


@dataclass(frozen=True)
class JudgedRun(Tabular):
    """The assessment of a run that was read from a tool's file: its predicted step and memory, and other plans that could
    replace it.

    The run's step is predicted as its runtime (training framework) runs it, if that is known, otherwise by simulation of the
    compiled programs of its plan. The bound and the best plans are by the same prediction (`by_prediction`), or else by the
    step model of trainplan's own programs. Its rows are the run and the other plans.

    Attributes:
        configuration: the run's values, as read from its file.
        plan: the run's plan, with its prediction: the runtime's, or, if that is not known, by simulation.
        judged: simulation of the plan's programs, as trainplan's own runtime would run it.
        framework: the runtime's prediction with its interval, or the reason why there is none.
        best: the answer of the search that the bound is of: that for the runtime, as `plan --for` gives it, or, if the runtime
            is not predicted, that of the joint problem for any runtime; None if no search was requested.
        within: the best plan that the runtime can run, with the settings that an export has; None if no search was requested.
        changes: plans that differ in one decision and are better, the best first.
        logged: the run's measurements, if the file is its log.
        numbers: where the cluster's numbers come from, if not from data sheets.
        objective_ns: the run's step by the step model of the search over all plans, if that includes the run.
        checked_ns: the bound of that search as verified without a solver, if it was.
        performance: the plan's predicted step in engineering units, such as tokens per second and MFU.
        others: single changes that gain nothing by the runtime's prediction or do not fit, the shortest step first.
        as_set: the plan of `within`, predicted with the run's own settings (such as flags of overlap); None if there is none.
    """

    configuration: RunConfiguration
    plan: Plan
    judged: PlanPrediction
    framework: Prediction | str
    best: PlanningResult | None
    within: PlanningResult | None
    changes: tuple[Change, ...]
    logged: LoggedRun | None = None
    numbers: str = ""
    objective_ns: int | None = None
    checked_ns: int | None = None
    performance: Performance | None = None
    others: tuple[Change, ...] = ()
    as_set: Plan | None = None

    headings: ClassVar = {
        "plan": "plan",
        "step_ns": "step",
        "saves": "saves",
        "peak_bytes": "peak memory",
        "fits": "fits",
        "predicted_by": "predicted by",
    }

    def __repr__(self) -> str:
        return f"<JudgedRun {self._verdict()}>"

    def _verdict(self) -> str:
        """One line for people: the run, its predicted step, its peak memory, and that it does not fit, if so."""
        peak, limit = (format_bytes(size) for size in (max(self.peak_bytes), self.plan.memory_bytes))
        fits = tight_words(self.fit_probability) if self.close else "does not fit" * (not self.fits)
        what = f"{self.configuration.runtime} {self.plan.model.get('name')} on {plural(self.plan.world, 'device')}"
        parts = [f"{format_time(self.step_ns)} a step", f"peak {peak} of {limit}", *([fits] if fits else [])]
        return f"{what}: {', '.join(parts)}"

    def rows(self) -> list[dict[str, Any]]:
        """A dict for each plan: the run, the best plan of its runtime, the best plan of all, and plans with a single change.

        Keys: plan (in words), step_ns, saves (the share of the run's step; negative if slower), peak_bytes, memory_bytes, fits,
        and predicted_by: the runtime, or the simulation ("walks"), that predicts both steps that `saves` compares.
        """
        own = self.configuration.software if self.plan.predicted is None else self.plan.predicted.software or WALKS
        rows = [self._row("what runs", self.step_ns, 0.0, max(self.peak_bytes), own)]
        any_runtime = None if self.by_prediction else self.best
        for name, found, step_ns in (
            (f"best for {self.configuration.runtime}", self.within, self.step_ns),
            ("best of all", any_runtime, self.judged.step_ns),
        ):
            if found is not None and found.plan is not None and found.step_ns is not None:
                predicted = found.plan.predicted
                by, peak = (WALKS, None) if predicted is None else (predicted.software or WALKS, predicted.most_bytes)
                rows.append(self._row(name, found.step_ns, 1 - found.step_ns / step_ns, peak, by))
        for change in self.changes:
            step_ns = round((1 - change.share) * self.step_ns)
            rows.append(self._row(change.what, step_ns, change.share, change.peak_bytes, own))
        return rows

    def _row(self, plan: str, step_ns: int, saves: float, peak_bytes: int | None, by: str) -> dict[str, Any]:
        """One row of `rows` as a dict. plan: the plan in words. step_ns: its predicted step. saves: the share of the run's
        step that it saves. peak_bytes: peak memory of the fullest device; if None, `fits` is None, too. by: the name of the
        runtime, or "walks", that predicts the step.
        """
        fits = None if peak_bytes is None else peak_bytes <= self.plan.memory_bytes
        sizes = {"peak_bytes": peak_bytes, "memory_bytes": self.plan.memory_bytes, "fits": fits}
        return {"plan": plan, "step_ns": step_ns, "saves": saves, **sizes, "predicted_by": by}

    def notes(self) -> list[str]:
        """Lines for people: the run with its step and memory, and how its plan differs from its configuration."""
        return [self._verdict(), *self.configuration.notes]

    @property
    def fits(self) -> bool:
        """Whether the predicted peak memory fits on every device."""
        return max(self.peak_bytes) <= self.plan.memory_bytes

    @property
    def fit_probability(self) -> float:
        """The probability, 0 to 1, that the run fits on every device, by the error of predicted peaks of its runtime."""
        if isinstance(self.framework, Prediction) and self.framework.laid is not None:
            error = peak_error(self.framework.laid.layout.framework)
        else:
            error = software_error(None if self.plan.predicted is None else self.plan.predicted.software)
        return fit_probability(max(self.peak_bytes), self.plan.memory_bytes, error)

    @property
    def fit(self) -> Fit:
        """Whether the run fits: yes, tight (the error of the prediction decides), or no."""
        return fit_of(self.fit_probability)

    @property
    def close(self) -> bool:
        """Whether the peak memory is so close to the available memory that the prediction's error decides whether the run
        fits."""
        return self.fit == "tight"

    @property
    def step_ns(self) -> int:
        """The predicted step of the run in ns: the runtime's prediction, or the simulation if there is none."""
        return self.judged.step_ns if self.plan.predicted is None else self.plan.predicted.step_ns

    @property
    def peak_bytes(self) -> Sequence[int]:
        """The predicted peak memory of every rank's device in bytes, in rank order."""
        return self.judged.peak_bytes if self.plan.predicted is None else self.plan.predicted.peak_bytes

    @property
    def by_prediction(self) -> bool:
        """Whether plans were searched, and bounded, by the prediction of the run's runtime."""
        return isinstance(self.framework, Prediction) and self.best is not None and self.best is self.within

    @property
    def bound_of(self) -> str:
        """The plans that the bound is of, in words, such as "any plan for Megatron-LM, by its prediction"."""
        return f"any plan for {title(self.configuration.runtime)}, by its prediction" if self.by_prediction else "any plan"

    @property
    def no_gap(self) -> str:
        """The reason why the lower bound on the best plan's step cannot be compared with the run's step; empty if it can, or if
        there is no bound."""
        bound = None if self.best is None else self.best.answer.bound_ns
        if not bound:
            return ""
        if not self.fits:
            return "what runs does not fit, and the bound is of plans that do"
        if self.by_prediction:
            return OTHER_SETTINGS if bound > self.step_ns else ""
        if max(self.judged.peak_bytes) > self.plan.memory_bytes:
            return "simulated, what runs does not fit, and the bound is of plans that do"
        return "what runs is none of the plans that the bound is of" if bound > self.measured_ns else ""

    @property
    def measured_ns(self) -> int:
        """The number in ns that `bound_ns` is compared with: the run's step by its runtime's prediction, if the bound is of
        that. Otherwise the run's step by the cost model of the search for the best plan, if the search includes the run, or by
        simulation of its programs; the smaller of both.
        """
        if self.by_prediction:
            return self.step_ns
        return self.judged.step_ns if self.objective_ns is None else min(self.objective_ns, self.judged.step_ns)

    @property
    def bound_ns(self) -> int | None:
        """A lower bound in ns on the step of any plan that the runtime can run, as the runtime is predicted to run it with the
        settings of an export; if the runtime is not predicted, on the simulated step of any plan. None if there is none that
        applies to this run."""
        return None if self.best is None or self.no_gap else self.best.answer.bound_ns

    @property
    def gap(self) -> float | None:
        """The largest share of the run's step that the best plan could save, as proven by `bound_ns`: of its predicted step, or
        of its simulated one if the bound is of simulated steps; None without a bound for this run."""
        step_ns = self.step_ns if self.by_prediction else self.judged.step_ns
        return None if not self.bound_ns else 1 - self.bound_ns / step_ns

    @property
    def best_walk_ns(self) -> int | None:
        """The shortest simulated step in ns of all known plans that fit, the run's own plan included; None if none is known, or
        if plans were searched by the runtime's prediction."""
        if self.by_prediction:
            return None
        walks = [] if self.best is None or self.best.plan is None else [self.best.walked_ns]
        walks += [self.judged.step_ns] * (max(self.judged.peak_bytes) <= self.plan.memory_bytes)
        return min(walks, default=None)

    @property
    def found(self) -> BestKnownPlan | None:
        """The best known plan that the run's runtime can run and that fits, by the same prediction as the run; None if there is
        none. Plans of the search have the settings of an export, or the run's own if they take less with these.

        If the run fits, this plan is never slower than the run, nor than any of the changes.
        """
        known = [BestKnownPlan("run", self.plan, self.step_ns)] if self.fits else []
        known += [
            BestKnownPlan("change", change.plan, change.plan.predicted.step_ns)
            for change in self.changes[:1]
            if change.plan.predicted
        ]
        searched = (None if self.within is None else self.within.plan, self.as_set)
        known += [
            BestKnownPlan("search", plan, plan.predicted.step_ns)
            for plan in searched
            if plan is not None and plan.predicted is not None and plan.predicted.most_bytes <= plan.memory_bytes
        ]
        return min(known, key=lambda best: best.step_ns, default=None)

    def to_dict(self) -> dict[str, Any]:
        """The assessment as a JSON-ready dict; None for what is unknown. The run: `runtime` (name) and `plan` (a dict). Its
        prediction: `step_ns`, `peak_bytes` (of every rank), `fits`, `fit` (yes, tight, no), `fit_probability`, and `close` (to
        the memory limit); `bound_ns` and `checked_ns` (lower bounds on the step of any plan), `gap` (the fraction of the step
        that the best plan could save at most), by the runtime's prediction. `walk`, by simulation: `step_ns`, `peak_bytes`
        (fullest rank); if the runtime has no prediction, the bounds and the gap are here, too. `framework`: a dict of the
        runtime's prediction, or {`cannot`: why there is none}.

        Better plans: `best` ({`walk_ns`: shortest simulated step}, if there is no prediction), `within` (`step_ns` and
        `source` of the runtime's best plan), `changes` (dicts with `what`, `share`, the fraction of the step that the change
        saves, and `walked`, whether by simulation). `measured` (the log's comparison) and `ran_out` (out of memory) are
        dicts. What was read of the file: `notes`, `unread`, `unknown`, and `values` (`key`, `value`, `source`)."""
        framework = self.framework.to_dict() if isinstance(self.framework, Prediction) else {"cannot": self.framework}
        bounded = {"bound_ns": self.bound_ns, "checked_ns": self.checked_ns if self.bound_ns else None, "gap": self.gap}
        nothing, found = dict.fromkeys(bounded), self.found
        return {
            "runtime": self.configuration.runtime,
            "plan": self.plan.model_dump(),
            "step_ns": self.step_ns,
            "peak_bytes": list(self.peak_bytes),
            "fits": self.fits,
            "fit": self.fit,
            "fit_probability": self.fit_probability,
            "close": self.close,
            **bounded,
            "walk": {
                "step_ns": self.judged.step_ns,
                "peak_bytes": max(self.judged.peak_bytes),
                **(nothing if self.by_prediction else bounded),
            },
            "framework": framework,
            "best": None if self.best is None else {"walk_ns": self.best_walk_ns},
            "within": None if found is None or self.best is None else {"step_ns": found.step_ns, "source": found.source},
            "changes": [{"what": change.what, "share": change.share, "walked": change.walked} for change in self.changes],
            "measured": None if self.logged is None else self.logged.to_dict(),
            "ran_out": None if self.configuration.ran_out is None else asdict(self.configuration.ran_out),
            "notes": list(self.configuration.notes),
            "unread": list(self.configuration.unread),
            "unknown": list(self.configuration.unknown),
            "values": [{"key": value.key, "value": value.value, "source": value.source} for value in self.configuration.taken],
        }


def changes(
    configuration: RunConfiguration, plan: Plan, request: Request, step_ns: int, runs: Sequence[NeighbourRun]
) -> tuple[Change, ...]:
    """Plans that differ from the run's plan in one decision and improve it: they fit and have a shorter step, or, if the run
    does not fit, they fit. The largest gain comes first.

    Steps are by the runtime's prediction, if it has one; otherwise the plans that are fastest by the joint problem's costs
    (trainplan's own planning problem) are simulated. configuration: the run's values, as read from its file; names the
    runtime. request: the run's model and devices. step_ns: the simulated step of the run's plan. runs: the plans that differ
    from it in one decision, as `neighbour_runs` predicts them.
    """
    if (predicted := _predicted(plan, request)) is not None:
        return _predicted_changes(plan, request, runs, *predicted)
    now = _priced(plan, request)
    fits = now is not None and not now[1]
    rows = []
    for what, other in neighbours(configuration.runtime, plan):
        price = _priced(other, request)
        if now is not None and price is not None and not price[1] and (price[0] < now[0] or not fits):
            rows.append(Change(what, other, 1 - price[0] / now[0]))
    rows.sort(key=lambda change: -change.share)
    walked = list[Change]()
    for change in rows[:TRIED]:
        other, judged = predicted_as_known(change.plan, request)
        if max(judged.peak_bytes) <= plan.memory_bytes and (judged.step_ns < (1 - LEAST_GAIN) * step_ns or not fits):
            walked.append(Change(change.what, other, 1 - judged.step_ns / step_ns, True))
        if len(walked) == WALKED:
            break
    return tuple(sorted(walked, key=lambda change: -change.share))


def _predicted(plan: Plan, request: Request) -> tuple[float, float] | None:
    """The step in ns and the peak memory of a device in bytes, by the prediction of the plan's runtime; None if there is none.
    request: names the devices."""
    found = "no cluster" if request.cluster is None else predict(plan, request.cluster)
    return None if isinstance(found, str) else (found.step_ns, found.most_bytes)


def _predicted_changes(
    plan: Plan, request: Request, runs: Sequence[NeighbourRun], step_ns: float, peak_bytes: float
) -> tuple[Change, ...]:
    """Plans that differ from the run's plan in one decision and improve it by the runtime's prediction, the best first.

    request: the run's model and devices. runs: such plans with their predictions. step_ns, peak_bytes: the runtime's
    prediction of the run.
    """
    fits = peak_bytes <= plan.memory_bytes
    rows = [
        Change(what, other, 1 - other_ns / step_ns, peak_bytes=round(other_bytes))
        for what, other, other_ns, other_bytes in runs
        if other_bytes <= plan.memory_bytes and (other_ns < (1 - LEAST_GAIN) * step_ns or not fits)
    ]
    return (*(replace(change, plan=_as_run(change.plan, request)) for change in rows[:WALKED]), *rows[WALKED:])


def changes_without_gain(plan: Plan, request: Request, runs: Sequence[NeighbourRun]) -> tuple[Change, ...]:
    """Plans that differ from the run's plan in one decision and do not improve it: they are slower by the runtime's
    prediction, or do not fit. The shortest step comes first; empty if the runtime has no prediction.

    request: the run's model and devices. runs: such plans with their predictions.
    """
    if (own := _predicted(plan, request)) is None:
        return ()
    rows = (Change(what, other, 1 - step_ns / own[0], peak_bytes=round(peak)) for what, other, step_ns, peak in runs)
    return tuple(row for row in rows if row.share < 0 or (row.peak_bytes or 0) > plan.memory_bytes)


def _as_run(plan: Plan, request: Request) -> Plan:
    """A copy of the plan that has the prediction of the runtime that it is for, without durations of its programs, which are
    not compiled. request: the run's model and devices."""
    assert request.cluster is not None
    found = predict(plan, request.cluster)
    assert isinstance(found, StepAndPeaks)
    predicted = Predicted(
        step_ns=found.step_ns,
        peak_bytes=list(found.peak_bytes),
        cost_model="streams",
        backend="streams",
        profile_origin=f"estimated on {request.cluster.name}",
        software=found.software,
    )
    return plan.changed(predicted=predicted)


def priced_as(plan: Plan) -> dict[str, Any]:
    """Options of the joint problem (trainplan's own planning problem), by name, with which it costs its plans as the given
    plan is costed: with the same cost model, gradient dtype and low-precision recipe.
    """
    recipe, gradients = recipe_of(plan), {"gradients": plan.precision.gradients}
    if recipe is None and plan.pieces == 1:
        return {**ALIKE, **gradients}
    return {"cost_model": "streams", "precision": "model" if recipe is None else recipe.name, **gradients}


def _priced(plan: Plan, request: Request) -> tuple[int, bool] | None:
    """The plan's step in ns by the costs of the joint problem (trainplan's own planning problem), and whether it needs too
    much memory; None if the joint problem does not contain the plan. A plan that keeps states on the host is simulated
    instead.

    request: the run's model and devices.
    """
    if plan.uses_host:
        _, judged = predicted_plan(plan, request)
        return judged.step_ns, max(judged.peak_bytes) > plan.memory_bytes
    strategies = set(plan.strategies())
    space = Space(
        depths=[plan.depth],
        micro_batches=[plan.batch.micro_batches],
        schedules=SCHEDULES,
        most_chunks=max(2, plan.chunks),
        hybrid=True,
        recompute=("none", "modules", "full"),
        strategies=lambda strategy: strategy in strategies,
        optimizer=plan.optimizer,
    )
    first = plan.units[0].strategy
    cut = {CP.name: str(plan.pieces), CP_EXCHANGE.name: first.exchange} if plan.pieces > 1 else {}
    options = chosen(PARAMETERS, {**priced_as(plan), **cut, OPTIMIZER.name: plan.optimizer}, NAME)
    other_request = replace(request, batch=plan.batch.global_samples, options=options)
    try:
        instance = build(other_request, space)
    except InputError:  # a pipeline with ZeRO 2 or 3, which the cost model `streams` does not have
        return None
    solution = solution_of_plan(instance, plan.in_model_dtype())
    if solution is None:
        return None
    return evaluate(instance, solution).objective, bool(violations(instance, solution))


def neighbour_runs(runtime: str, plan: Plan, request: Request) -> list[NeighbourRun]:
    """The plans that differ from a plan in one decision and that a runtime can run, the shortest step first, as tuples: the
    decision in words, the plan, and the runtime's prediction of its step (ns) and peak memory (bytes). Plans without such a
    prediction are left out.

    request: names the devices.
    """
    predicted = ((what, other, _predicted(other, request)) for what, other in neighbours(runtime, plan))
    return sorted(((what, other, *found) for what, other, found in predicted if found is not None), key=lambda row: row[2])
