"""How good an imported run is: the prediction of its plan, the bound of the joint problem, and what to change first.

Changes are all plans that differ in one decision and that the same runtime can run: micro-batches, recomputation, ZeRO stage,
tensor and context parallelism, what context-parallel ranks exchange, pipeline stages, schedule, sharing of tokens. The batch
and a rank's samples per micro-batch stay. Every suggested change gains by the prediction that the run itself has: its
runtime's, or, if there is none, simulation of both plans' programs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal

from trainplan.execution.launch_files.logs.steps import LoggedRun
from trainplan.execution.launch_files.run_configuration import RunConfiguration
from trainplan.execution.prediction.evaluate_plan import PlanPrediction
from trainplan.execution.prediction.surrogate import recipe_of
from trainplan.execution.runtimes.export_common import ENDS
from trainplan.formulations.joint.definition import build
from trainplan.formulations.joint.evaluation import evaluate, violations
from trainplan.formulations.joint.options import CP, CP_EXCHANGE, OPTIMIZER, PARAMETERS
from trainplan.formulations.joint.plan_to_solution import solution_of_plan
from trainplan.formulations.joint.problem import NAME
from trainplan.formulations.joint.search_space import SCHEDULES, Space
from trainplan.formulations.parameters import chosen
from trainplan.formulations.plan.plan import Plan, Stage
from trainplan.formulations.plan.request import Request
from trainplan.formulations.plan.strategy import Exchange, Strategy
from trainplan.formulations.runtimes import RUNTIMES
from trainplan.planning.compare_planners import ALIKE
from trainplan.planning.result import PlanningResult
from trainplan.prediction.metrics import Performance
from trainplan.prediction.predict import predicted_as_known, predicted_plan
from trainplan.profiling.base.display import in_one_line
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.quantities import divisors, format_bytes, format_time, plural
from trainplan.profiling.models.sublayers import modules_of
from trainplan.tabular import Tabular
from trainplan.validation.fitting import close
from trainplan.validation.plans import as_run, predict_plan
from trainplan.validation.predict import GIB, Prediction

WALKED = 3  # number of best changes that are reported
WALKS = "walks"  # the prediction for trainplan's own runtime: simulation of a plan's programs
TRIED = 8  # number of changes simulated at most, if simulation is the prediction, until WALKED of them gain
LEAST_GAIN = 0.001  # the smallest share of a step that is reported


@in_one_line
@dataclass(frozen=True)
class Change:
    """A plan that differs from the run's in one decision, and fits. what: the decision, in words. share: the share of the step
    that it saves, at most 1, by the runtime's prediction of both plans, or, if `walked`, by simulation of both. peak_bytes:
    peak memory of its fullest device by the runtime's prediction, if there is one."""

    what: str
    plan: Plan
    share: float
    walked: bool = False
    peak_bytes: int | None = None


@dataclass(frozen=True)
class BestKnownPlan:
    """The best known plan that the run's runtime can run, by the same prediction as the run. source: run if nothing better than
    the run is known; change for a change of one decision; search for a plan of the search within the runtime."""

    source: Literal["run", "change", "search"]
    plan: Plan
    step_ns: int


@dataclass(frozen=True)
class JudgedRun(Tabular):
    """The assessment of an imported run; its rows are the run and other plans in its place.

    plan: the run's plan, with its prediction: the runtime's, or, if that is not known, by simulation. framework: the runtime's
    prediction with its interval, or the reason why there is none. judged: simulation of the plan's programs, as trainplan's own
    runtime would run it; bounds and the best plan of all refer to it. best: the joint problem's answer for the same model,
    devices and batch. within: the best plan that the runtime can run, predicted as the run is. Both are None if no search was
    requested. changes: the best first. logged: the run's measurements, if the file is its log. numbers: where the cluster's
    numbers come from, if not from data sheets. objective_ns: the run's step by the step model of the search over all plans, if
    that includes the run. checked_ns: the bound of that search as verified without a solver, if it was. performance: that of
    the plan, in engineering units. others: single changes that gain nothing by the runtime's prediction or do not fit, the
    shortest step first.
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
        """The run, its step and its memory, in one line."""
        peak, limit = (format_bytes(size) for size in (max(self.peak_bytes), self.plan.memory_bytes))
        fits = ("does not fit, but close" if self.close else "does not fit") * (not self.fits)
        what = f"{self.configuration.runtime} {self.plan.model.get('name')} on {plural(self.plan.world, 'device')}"
        parts = [f"{format_time(self.step_ns)} a step", f"peak {peak} of {limit}", *([fits] if fits else [])]
        return f"{what}: {', '.join(parts)}"

    def rows(self) -> list[dict[str, Any]]:
        """One dict per plan: the run, the best plan of its runtime, the best of all, and single changes. Keys: plan (in words),
        step_ns, saves (share of the step; negative if slower), peak_bytes, fits, and predicted_by: the runtime or the
        simulation ("walks") that predicts both steps compared by `saves`."""
        own = self.configuration.software if self.plan.predicted is None else self.plan.predicted.software or WALKS
        rows = [self._row("what runs", self.step_ns, 0.0, max(self.peak_bytes), own)]
        for name, found, step_ns in (
            (f"best for {self.configuration.runtime}", self.within, self.step_ns),
            ("best of all", self.best, self.judged.step_ns),
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
        """One row of the table; `fits` is None without a peak."""
        fits = None if peak_bytes is None else peak_bytes <= self.plan.memory_bytes
        sizes = {"peak_bytes": peak_bytes, "memory_bytes": self.plan.memory_bytes, "fits": fits}
        return {"plan": plan, "step_ns": step_ns, "saves": saves, **sizes, "predicted_by": by}

    def notes(self) -> list[str]:
        """The run in one line, and how its plan differs from its configuration."""
        return [self._verdict(), *self.configuration.notes]

    @property
    def fits(self) -> bool:
        """Whether every device has as much memory as the programs need."""
        return max(self.peak_bytes) <= self.plan.memory_bytes

    @property
    def close(self) -> bool:
        """Whether the peak is so close to the available memory that the prediction's error decides whether the run fits."""
        return close(max(self.peak_bytes), self.plan.memory_bytes)

    @property
    def step_ns(self) -> int:
        """The predicted step in ns."""
        return self.judged.step_ns if self.plan.predicted is None else self.plan.predicted.step_ns

    @property
    def peak_bytes(self) -> Sequence[int]:
        """The predicted peak memory of every rank in bytes."""
        return self.judged.peak_bytes if self.plan.predicted is None else self.plan.predicted.peak_bytes

    @property
    def no_gap(self) -> str:
        """The reason why the bound cannot be compared with the simulated step; empty if it can, or if there is no bound."""
        bound = None if self.best is None else self.best.answer.bound_ns
        if not bound:
            return ""
        if not self.fits:
            return "what runs does not fit, and the bound is of plans that do"
        if max(self.judged.peak_bytes) > self.plan.memory_bytes:
            return "simulated, what runs does not fit, and the bound is of plans that do"
        return "what runs is none of the plans that the bound is of" if bound > self.measured_ns else ""

    @property
    def measured_ns(self) -> int:
        """The run's step in ns as the bound measures steps: by the step model of the search, or else by simulation."""
        return self.judged.step_ns if self.objective_ns is None else min(self.objective_ns, self.judged.step_ns)

    @property
    def bound_ns(self) -> int | None:
        """A lower bound in ns on the simulated step of any plan, if it applies to this run; it does not bound the runtime's
        prediction `step_ns`."""
        return None if self.best is None or self.no_gap else self.best.answer.bound_ns

    @property
    def gap(self) -> float | None:
        """The share of the run's simulated step by which it may be slower than the best plan, as proven for simulated steps;
        None without a bound for this run."""
        return None if not self.bound_ns else 1 - self.bound_ns / self.judged.step_ns

    @property
    def best_walk_ns(self) -> int | None:
        """The shortest known simulated step in ns of any plan that fits by simulation, including the run; None if there is
        none."""
        walks = [] if self.best is None or self.best.plan is None else [self.best.walked_ns]
        walks += [self.judged.step_ns] * (max(self.judged.peak_bytes) <= self.plan.memory_bytes)
        return min(walks, default=None)

    @property
    def found(self) -> BestKnownPlan | None:
        """The best known plan that the runtime can run and that fits, by the prediction that the run has; None if there is
        none. It is never slower than the run, if that fits, nor than any of the changes."""
        known = [BestKnownPlan("run", self.plan, self.step_ns)] if self.fits else []
        known += [
            BestKnownPlan("change", change.plan, change.plan.predicted.step_ns)
            for change in self.changes[:1]
            if change.plan.predicted
        ]
        within = None if self.within is None else self.within.plan
        if within is not None and within.predicted is not None and within.predicted.most_bytes <= within.memory_bytes:
            known.append(BestKnownPlan("search", within, within.predicted.step_ns))
        return min(known, key=lambda best: best.step_ns, default=None)

    def to_dict(self) -> dict[str, Any]:
        """The assessment as plain values that can be written as JSON."""
        framework = self.framework.to_dict() if isinstance(self.framework, Prediction) else {"cannot": self.framework}
        bounded = {"bound_ns": self.bound_ns, "checked_ns": self.checked_ns if self.bound_ns else None, "gap": self.gap}
        found = self.found
        return {
            "runtime": self.configuration.runtime,
            "plan": self.plan.model_dump(),
            "step_ns": self.step_ns,
            "peak_bytes": list(self.peak_bytes),
            "fits": self.fits,
            "close": self.close,
            "walk": {"step_ns": self.judged.step_ns, "peak_bytes": max(self.judged.peak_bytes), **bounded},
            "framework": framework,
            "gap": self.gap if isinstance(self.framework, str) else None,
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


def changes(configuration: RunConfiguration, plan: Plan, request: Request, step_ns: int) -> tuple[Change, ...]:
    """The first decisions to change: plans with one decision changed that fit and have a shorter step, or, if the run does not
    fit, that fit; the shortest step first. By the runtime's prediction if there is one; otherwise by simulation of the plans
    that are best in the joint problem's tables. step_ns: the plan's simulated step."""
    if (predicted := _predicted(plan, request)) is not None:
        return _predicted_changes(configuration, plan, request, *predicted)
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
    """The step in ns and the peak in bytes by the prediction of the plan's runtime; None if there is none."""
    found = "no cluster" if request.cluster is None else predict_plan(plan, request.cluster)
    if isinstance(found, str) or found.step is None or found.peak_gib is None:
        return None
    return found.step.step_ns, found.peak_gib * GIB


def _predicted_changes(
    configuration: RunConfiguration, plan: Plan, request: Request, step_ns: float, peak_bytes: float
) -> tuple[Change, ...]:
    """The changes that gain by the runtime's prediction, the best first. step_ns, peak_bytes: the runtime's prediction of the
    run."""
    fits = peak_bytes <= plan.memory_bytes
    rows = [
        Change(what, other, 1 - other_ns / step_ns, peak_bytes=round(other_bytes))
        for what, other, other_ns, other_bytes in neighbour_runs(configuration.runtime, plan, request)
        if other_bytes <= plan.memory_bytes and (other_ns < (1 - LEAST_GAIN) * step_ns or not fits)
    ]
    return (*(replace(change, plan=_as_run(change.plan, request)) for change in rows[:WALKED]), *rows[WALKED:])


def changes_without_gain(configuration: RunConfiguration, plan: Plan, request: Request) -> tuple[Change, ...]:
    """Plans with one decision changed that take longer by the runtime's prediction, or do not fit, the shortest step first;
    empty without such a prediction."""
    if (own := _predicted(plan, request)) is None:
        return ()
    runs = neighbour_runs(configuration.runtime, plan, request)
    rows = (Change(what, other, 1 - step_ns / own[0], peak_bytes=round(peak)) for what, other, step_ns, peak in runs)
    return tuple(row for row in rows if row.share < 0 or (row.peak_bytes or 0) > plan.memory_bytes)


def _as_run(plan: Plan, request: Request) -> Plan:
    """The plan with the prediction of its runtime."""
    assert request.cluster is not None
    return as_run(predicted_as_known(plan, request)[0], request.cluster)[0]


def priced_as(plan: Plan) -> dict[str, Any]:
    """Options of the joint problem under which other plans have the same cost model, gradients and recipe as this plan."""
    recipe, gradients = recipe_of(plan), {"gradients": plan.precision.gradients}
    if recipe is None and plan.pieces == 1:
        return {**ALIKE, **gradients}
    return {"cost_model": "streams", "precision": "model" if recipe is None else recipe.name, **gradients}


def _priced(plan: Plan, request: Request) -> tuple[int, bool] | None:
    """The plan's step in ns by the joint problem's tables, and whether it needs too much memory; by simulation if the plan
    keeps states on the host. None if the joint problem does not contain the plan."""
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
    except InputError:  # a pipeline with ZeRO 2 or 3, of which `streams` has none
        return None
    solution = solution_of_plan(instance, plan.in_model_dtype())
    if solution is None:
        return None
    return evaluate(instance, solution).objective, bool(violations(instance, solution))


def neighbour_runs(runtime: str, plan: Plan, request: Request) -> list[tuple[str, Plan, float, float]]:
    """The plans with one decision changed that the runtime can run, as tuples of the decision in words, the plan, and the
    runtime's prediction of step (ns) and peak (bytes), the shortest step first; empty without such a prediction."""
    predicted = ((what, other, _predicted(other, request)) for what, other in neighbours(runtime, plan))
    return sorted(((what, other, *found) for what, other, found in predicted if found is not None), key=lambda row: row[2])


def neighbours(runtime: str, plan: Plan) -> Iterator[tuple[str, Plan]]:
    """All plans with one decision changed that the runtime can run, as pairs of the decision in words and the plan."""
    rules, strategy, model = RUNTIMES[runtime], plan.units[0].strategy, plan.planned_model()
    for what, other in (
        *_other_micro_batches(plan),
        *_other_recomputation(plan, tuple(rules.modules)),
        *_other_sharding(plan, strategy, rules.zero),
        *_other_degrees(plan, strategy, pipelines=not rules.one_stage and plan.chunks == 1),
        *_other_schedules(plan, rules.schedules),
        *_other_residence(plan),
    ):
        if all(rules.carries(unit.strategy, model) for unit in other.units):
            yield what, other


def _made(what: str, plan: Plan, **fields: Any) -> Iterator[tuple[str, Plan]]:
    """The plan with these fields changed, if that is a valid and different plan. what: the change in words."""
    try:
        other = plan.changed(**fields, predicted=None, claim=None)
    except InputError:
        return
    if other.content != plan.content:
        yield what, other


def _other_micro_batches(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Plans with other numbers of micro-batches."""
    data, samples = plan.units[0].strategy.data_degree, plan.batch.global_samples
    for count in divisors(samples // data):
        what = f"micro-batches of {plural(samples // data // count, 'sample')} on a rank, {count} a step"
        yield from _made(what, plan, batch=plan.batch.changed(micro_batches=count))


def _other_recomputation(plan: Plan, modules: tuple[str, ...]) -> Iterator[tuple[str, Plan]]:
    """Plans with other recomputation: none, all layers, or these modules."""
    choices: list[tuple[str, bool, tuple[str, ...]]] = [("no recomputation", False, ()), ("all layers recomputed", True, ())]
    choices += [(f"{' and '.join(sorted(modules))} recomputed", False, tuple(sorted(modules)))] * bool(modules)
    parts = {unit.name: unit.sublayer for unit in plan.planned_model().units}
    for what, ckpt, names in choices:
        units = []
        for unit in plan.units:
            inner = unit.name not in ENDS
            some = tuple(name for name in names if inner and name in modules_of(parts[unit.name]))
            units.append(unit.laid_out(replace(unit.strategy, ckpt=ckpt and inner, modules=some)))  # type: ignore[arg-type]
        yield from _made(what, plan, units=units)


def _other_sharding(plan: Plan, strategy: Strategy, zero: tuple[int, ...]) -> Iterator[tuple[str, Plan]]:
    """Plans with other ZeRO stages, or with the sharing of tokens switched."""
    data, cp, tp = strategy.data_degree, strategy.degree("cp"), strategy.degree("tp")
    names = {0: "copies of all states (no ZeRO)", 1: "ZeRO stage 1", 2: "ZeRO stage 2", 3: "ZeRO stage 3"}
    for stage in zero:
        levels = Strategy.of(("sdp" if stage else "dp", data), ("cp", cp), ("tp", tp)).levels
        yield from _relaid(
            names[stage], plan, lambda old, levels=levels, stage=stage: replace(old, levels=levels, zero=stage or 3)
        )
    if tp > 1:
        what = "tokens not shared" if strategy.sequence_parallel else "tokens shared between tensor-parallel ranks"
        yield from _relaid(what, plan, lambda old: replace(old, sequence_parallel=not old.sequence_parallel))


def _relaid(what: str, plan: Plan, change: Any) -> Iterator[tuple[str, Plan]]:
    """The plan with the strategy of every unit changed by a function, if that is a valid and different plan."""
    try:
        units = [unit.laid_out(change(unit.strategy)) for unit in plan.units]
    except InputError:
        return
    yield from _made(what, plan, units=units)


def _other_degrees(plan: Plan, strategy: Strategy, *, pipelines: bool) -> Iterator[tuple[str, Plan]]:
    """Plans with other degrees of tensor and context parallelism, with the other exchange of context-parallel ranks and, if
    `pipelines`, with other numbers of stages; data parallelism takes the remaining ranks."""
    world, depth, tp, cp = plan.world, plan.depth, strategy.degree("tp"), strategy.degree("cp")
    micro = plan.batch.global_samples // plan.batch.micro_batches // strategy.data_degree
    shared = "sdp" if strategy.degree("sdp") > 1 else "dp"
    kinds = [(t, cp, depth, f"tensor parallelism over {t}") for t in plan.planned_model().tp_degrees(min(8, world // depth))]
    if cp > 1:
        words = ((c, f"context parallelism over {c}" if c > 1 else "no context parallelism") for c in (1, 2, 4, 8, 16))
        kinds += [(tp, c, depth, what) for c, what in words]
        what = "keys and values exchanged, around a ring" if strategy.exchanges_heads else "heads exchanged, by all-to-alls"
        exchange: Exchange = "keys" if strategy.exchanges_heads else "heads"
        yield from _relaid(what, plan, lambda old: replace(old, exchange=exchange))
    if pipelines:
        kinds += [(tp, cp, p, f"{p} pipeline stages" if p > 1 else "no pipeline") for p in divisors(world // tp)]
    for t, c, p, what in kinds:
        if (t, c, p) == (tp, cp, depth) or world % (t * c * p):
            continue
        data = world // (t * c * p)
        count, rest = divmod(plan.batch.global_samples, data * micro)
        stages = plan.stages if p == depth else _even(plan, p)
        if rest or stages is None:
            continue
        levels = Strategy.of((shared, data), ("cp", c), ("tp", t)).levels  # type: ignore[arg-type]

        def laid(old: Strategy, levels: Any = levels, t: int = t, c: int = c, data: int = data) -> Strategy:
            zero = old.zero if data > 1 and shared == "sdp" else 3
            tokens = t > 1 and (old.sequence_parallel or tp == 1)
            return replace(old, levels=levels, zero=zero, sequence_parallel=tokens, exchange=old.exchange if c > 1 else "keys")

        try:
            units = [unit.laid_out(laid(unit.strategy)) for unit in plan.units]
        except InputError:
            continue
        yield from _made(what, plan, units=units, stages=stages, batch=plan.batch.changed(micro_batches=count))


def _even(plan: Plan, depth: int, chunks: int = 1) -> list[Stage] | None:
    """Stages with as many layers each as possible; None if there are too few layers. chunks: stages of each rank."""
    layers, count, size = len(plan.units) // 2 - 1, depth * chunks, plan.world // depth
    if layers < count or plan.world % depth:
        return None
    begins = [0, *(1 + 2 * (layers * x // count) for x in range(1, count)), len(plan.units)]
    return [
        Stage(ranks=list(range(x % depth * size, (x % depth + 1) * size)), first_unit=begins[x], last_unit=begins[x + 1] - 1)
        for x in range(count)
    ]


def _other_schedules(plan: Plan, schedules: Any) -> Iterator[tuple[str, Plan]]:
    """Plans with other pipeline schedules."""
    if plan.depth == 1:
        return
    if plan.chunks == 1:
        for name in ("1f1b", "gpipe"):
            if name in schedules:
                yield from _made(f"schedule {name}", plan, schedule=name)
    for chunks in (1, 2, 4):
        stages = _even(plan, plan.depth, chunks)
        if stages is None or chunks == plan.chunks or ("1f1b" if chunks == 1 else "interleaved") not in schedules:
            continue
        what = "schedule 1f1b" if chunks == 1 else f"{chunks} interleaved stages on each rank"
        yield from _made(what, plan, schedule="1f1b" if chunks == 1 else "interleaved-1f1b", stages=stages)


def _other_residence(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """The plan with everything on the device, if it keeps states on the host."""
    if not plan.uses_host:
        return
    units = [
        unit.changed(
            states=unit.states.changed(optimizer="device", gradients="device", parameters="device", kept_whole=False),
            order=None,
        )
        for unit in plan.units
    ]
    yield from _made("states on the device", plan, units=units, nvlink=None, backend=None)
