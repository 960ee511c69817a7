"""A planned request: the plan with its prediction and its claim, the best plan with one strategy, and how people see both."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from trainplan.execution.analysis.timing.simulate import OTHERS
from trainplan.execution.prediction.evaluate_plan import PlanPrediction, predict_from_saved_costs
from trainplan.formulations.joint.options import MEMORY_TABLES, cost_words
from trainplan.formulations.parameters import flag_of
from trainplan.formulations.plan.plan import Claim, Plan, plan_text
from trainplan.formulations.plan.request import Request
from trainplan.formulations.plan.run_length import runs
from trainplan.formulations.plan.strategy_words import in_words
from trainplan.formulations.problem import Problem, counts_overlap
from trainplan.plan_words import run_words
from trainplan.planning.presets import Preset
from trainplan.planning.proof import proof_of, status_text
from trainplan.prediction.metrics import Performance, performance
from trainplan.profiling.base.display import html_table, rich_table
from trainplan.profiling.base.errors import InputError, as_arguments
from trainplan.profiling.base.files import check_writable, write_whole
from trainplan.profiling.base.plugins import attribute
from trainplan.profiling.base.quantities import format_bytes, format_gap, format_share, format_time, plural, span
from trainplan.solvers.core.answer import Answer
from trainplan.solvers.core.result import Result
from trainplan.tabular import frame_of
from trainplan.validation.predict import Prediction


@dataclass(frozen=True)
class Price:
    """What a constraint of a request costs. constraint: as the command's options say it. without: the answer to the request
    without it, with no larger step than with it; None where the time was up. predicted_ns: of the constraint to a runtime, the
    predicted step of that answer's plan, which is the one that `plan` without the constraint says of it."""

    constraint: str
    without: Answer | None
    predicted_ns: int | None = None

    @property
    def steps_ns(self) -> tuple[int | None, int | None]:
        """Between what the least step without the constraint lies: the bound, and the best that is known. None where nothing
        is."""
        return (None, None) if self.without is None else (self.without.bound_ns, self.without.objective_ns)

    def share(self, constrained: Answer) -> tuple[float, float | None] | None:
        """Between what it lies by how much longer the least step is with the constraint, as a share of that without it, by what
        is proven of both: one number twice where both are known, None for the larger one where it has no limit. None where
        there is no plan with it, or none without it. constrained: the answer with it."""
        bound, best = self.steps_ns
        if best is None or constrained.objective_ns is None:
            return None
        least = 0.0 if constrained.bound_ns is None else max(0.0, constrained.bound_ns / best - 1)
        return least, None if not bound else constrained.objective_ns / bound - 1

    def text(self, constrained: Answer) -> str:
        """What the constraint costs, for people: a number only where both steps are proven."""
        (bound, best), share = self.steps_ns, self.share(constrained)
        if self.without is None:
            return "the time was up"
        if best is None:
            return f"no plan without it, either: {self.without.result.status}"
        without = f"{format_time(best)} a step without it"
        if bound != best:
            without = f"{'less than' if bound is None else f'{format_time(bound)} to'} {without}"
        if share is None:
            return without
        least, most = share
        if most is None and not least:
            return f"at most {format_time(best)} a step without it; nothing more was proven in the time for prices"
        if least == most:
            return f"{format_share(least)}: {without}"
        if most is None:
            return f"at least {format_share(least)}: {without}, by the bounds of both"
        between = f"{format_share(least)} to {format_share(most)}" if least else f"up to {format_share(most)}"
        return f"{between}: {without}, by the bounds of both"

    def to_dict(self, constrained: Answer) -> dict[str, Any]:
        """The price as plain values. constrained: the answer with the constraint."""
        bound, best = self.steps_ns
        known = {"constraint": self.constraint, "bound_ns": bound, "step_ns": best, "share": self.share(constrained)}
        return {**known, "predicted_ns": self.predicted_ns}


@dataclass(frozen=True)
class PlanningTime:
    """Seconds of planning but for prices, those of them in which plans were compiled, checked and walked, and of how many."""

    seconds: float
    walk_seconds: float
    walks: int

    def __str__(self) -> str:
        walks = f"; {self.walk_seconds:.3f} s of it to compile, check and simulate {plural(self.walks, 'plan')}"
        return f"{self.seconds:.3f} s, without constraint prices" + walks * (self.walks > 0)


@dataclass(frozen=True)
class PlanningResult:
    """A plan with its prediction and its claim; plan is None where nothing fits, or nothing was found (`result` says why).

    answer: of the solver, whose `instance` and `result` belong to the plan. judged: what the walks say of the plan's programs;
    None where plans of the model do not become programs. margin_bytes: how much less memory than asked for the solver got.
    needed_bytes: where the memory is too little, one with which there is a plan, if that is known. needed_devices: the
    fewest, in whole nodes, with which the problem has a solution; needed_devices_unknown: why that is not known. uniform: the
    best plan with one strategy for all units, likewise; None where this plan has one itself, and where none was looked for (the
    problem does not say how, or the time was up). instead: where no preset was named, why the default one did not plan it.
    prices: what constraints of the request cost, one by one. spent: the time that all of it took, but for prices. run: the
    prediction of the runtime that the request names, of whose step and memory the plan's are; None of trainplan's own.
    searched: the method, its options and the limits but for time, with which other requests are searched alike.
    """

    request: Request
    preset: Preset
    answer: Answer
    plan: Plan | None
    judged: PlanPrediction | None = None
    margin_bytes: int = 0
    needed_bytes: int | None = None
    needed_devices: int | None = None
    needed_devices_unknown: str | None = None
    uniform: PlanningResult | None = None
    instead: str | None = None
    prices: tuple[Price, ...] = ()
    spent: PlanningTime | None = None
    run: Prediction | None = None
    searched: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        step = "no plan" if self.performance is None else f"{format_time(self.performance.step_ns)} a step"
        status = status_text(self.answer.status, self.answer.gap)
        return f"<PlanningResult {self.subject}, like {self.preset.name}: {step}, {status}>"

    def __rich__(self) -> Any:
        return rich_table(self.summary())

    def _repr_html_(self) -> str:
        """The rows of the command's screen in Python's words; `summary` has all that is known."""
        rows = [(label, lines) for label, lines in attribute("trainplan.screens.plan:screen")(self) if label != "NEXT"]
        texts = [(label, as_arguments("\n".join(" · ".join(line) for line in lines))) for label, lines in rows]
        return html_table([*texts, ("NEXT", 'save("plan.json") · frame() · summary()')] if self.plan else texts)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the plan's file, whole or not at all, as `trainplan plan -o` does: with evidence of the claim, which `check`
        follows and is looked for no longer than the plan was.

        Args:
            path: the file, such as plan.json, which `run`, `export`, `explain` and `load_plan` take.

        Returns:
            The path.

        Raises:
            InputError: where there is no plan, or the file cannot be written.
        """
        if self.plan is None:
            raise InputError("plan", "", f"is missing: {self.result.status}", "give a request with a plan")
        check_writable(path)
        write_whole(path, plan_text(attribute("trainplan.planning.certify:with_evidence")(self).plan))
        return Path(path)

    def frame(self, *, units: bool = False) -> Any:
        """The answer as a pandas DataFrame: one row, so that the frames of several plans are one table (`pandas.concat`), with
        the request, the layout, what is predicted and what is proven; its fields are empty where there is no plan.

        Args:
            units: a row for each run of equal units in their order instead: stage, ranks, units, count, strategy.

        Returns:
            The frame.

        Raises:
            MissingExtra: where pandas is not installed.
        """
        return frame_of(self._unit_rows() if units else [self.as_row()])

    def as_row(self) -> dict[str, Any]:
        """The row of `frame`."""
        plan, done, model = self.plan, self.performance, self.request.described_model
        predicted = None if plan is None else plan.predicted
        return {
            "model": self.request.origin.name if model is None else model.name,
            "cluster": self.request.cluster_name,
            "devices": self.request.origin.devices,
            "batch": self.request.batch,
            "like": self.preset.name,
            "status": self.answer.status,
            "step_ns": self.step_ns,
            "tokens_per_s_per_device": None if done is None else done.tokens_per_s_per_device,
            "mfu": None if done is None else done.mfu,
            "peak_bytes": None if predicted is None else predicted.most_bytes,
            "memory_bytes": self.request.with_margin(0).limit_bytes,
            "stages": None if plan is None else len(plan.stages),
            "micro_batches": None if plan is None else plan.batch.micro_batches,
            "schedule": None if plan is None else plan.schedule,
            "strategy": None if plan is None else plan.one_strategy or "several",
            "predicted_by": None if predicted is None else predicted.software or "walks",
            "objective_ns": self.answer.objective_ns,
            "bound_ns": self.answer.bound_ns,
            "gap": self.answer.gap,
            "seconds": self.result.build_seconds + self.result.solve_seconds if self.spent is None else self.spent.seconds,
        }

    def _unit_rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for number, stage in enumerate([] if self.plan is None else self.plan.stages):
            assert self.plan is not None
            units = self.plan.units[stage.first_unit : stage.last_unit + 1]
            ranks = span(str(min(stage.ranks)), str(max(stage.ranks)))
            for _, names, count, strategy in runs([unit.name for unit in units], [str(unit) for unit in units]):
                rows.append({"stage": number, "ranks": ranks, "units": names, "count": count, "strategy": strategy})
        return rows

    @property
    def subject(self) -> str:
        """The model and the cluster."""
        model = self.request.model.name if self.request.model else self.request.origin.name
        return f"{model} on {self.request.cluster_name}"

    @cached_property
    def performance(self) -> Performance | None:
        """The step in an engineer's units; None without a plan or a prediction."""
        if self.plan is None or self.judged is None:
            return None
        return performance(self.plan, self.judged, self.request.cluster)

    @cached_property
    def row(self) -> dict[str, Any] | None:
        """The plan as `plan_row` has it, under the preset's name; None without a plan. It takes a walk, so it is made once."""
        return None if self.plan is None else plan_row(self.preset.name, self.plan)

    @property
    def uniform_excess(self) -> float | None:
        """How much longer the predicted step of the best plan with one strategy for all units takes, as a share of this one's;
        None where one of the two is not there."""
        if self.plan is not None and self.plan.one_strategy is not None:
            return 0.0
        steps = [each.plan.predicted for each in (self, self.uniform) if each and each.plan and each.plan.predicted]
        return steps[1].step_ns / steps[0].step_ns - 1 if len(steps) == 2 else None

    @property
    def problem(self) -> Problem:
        """The problem that was solved."""
        return self.preset.problem

    @property
    def instance(self) -> Any:
        """The instance whose solution is planned."""
        return self.answer.instance

    @property
    def result(self) -> Result:
        """The method's, on that instance."""
        return self.answer.result

    @property
    def interrupted(self) -> bool:
        """Whether the search was interrupted."""
        return self.result.stopped == "interrupt"

    @property
    def walked_ns(self) -> int:
        """The step by the walks; where there are none, as it is claimed."""
        return self.judged.step_ns if self.judged is not None else self.answer.objective_ns or 0

    def as_interrupted(self) -> PlanningResult:
        """The same, as what was known when the search was interrupted."""
        return replace(self, answer=replace(self.answer, result=replace(self.result, stopped="interrupt")))

    @property
    def walk_bytes(self) -> tuple[int, ...]:
        """The peak of every rank by the memory walk over its program; empty where there are no programs."""
        return () if self.judged is None else tuple(self.judged.peak_bytes)

    @property
    def excess(self) -> float | None:
        """How far the step of the walks is from the claimed objective, as a share of the objective; None without either."""
        if self.plan is None or self.plan.predicted is None or self.plan.claim is None or not self.plan.claim.objective_ns:
            return None
        step_ns = self.plan.predicted.step_ns if self.judged is None else self.judged.step_ns
        return step_ns / self.plan.claim.objective_ns - 1

    @cached_property
    def any_schedule_ns(self) -> int | None:
        """No order of passes with the plan's stages and strategies has a shorter step by the problem's costs; None where the
        problem has no such bound."""
        solution = self.answer.solution
        certificate = self.problem.certificate
        return None if solution is None or certificate is None else certificate.any_schedule_bound_ns(self.instance, solution)

    @property
    def restrictions(self) -> list[str]:
        """What the request leaves out of all plans that the problem knows, as the command's options say it."""
        scope = self.problem.scope
        return [] if scope is None else scope.restrictions(self.request, self.problem.cost_model(self.instance))

    @property
    def step_ns(self) -> int | None:
        """The predicted step; of a plan without programs, the claimed one; None without a plan."""
        if self.plan is None or self.plan.claim is None:
            return None
        return self.plan.claim.objective_ns if self.plan.predicted is None else self.plan.predicted.step_ns

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {
            "like": self.preset.name,
            "instead": self.instead,
            "plan": None if self.plan is None else self.plan.model_dump(),
            "result": self.result.to_dict(),
            "unfinished": self.result.stopped,
            "alternatives": list(self.answer.alternatives),
            "walk_bytes": list(self.walk_bytes),
            "margin_bytes": self.margin_bytes,
            "needed_bytes": self.needed_bytes,
            "needed_devices": self.needed_devices,
            "performance": None if self.performance is None else self.performance.to_dict(),
            "uniform": None if self.uniform is None or self.uniform.plan is None else self.uniform.plan.model_dump(),
            "uniform_excess": self.uniform_excess,
            "any_schedule_ns": self.any_schedule_ns,
            "restrictions": self.restrictions,
            "prices": [price.to_dict(self.answer) for price in self.prices],
            "spent": None if self.spent is None else asdict(self.spent),
        }

    def summary(self, *, flags: bool = False) -> list[tuple[str, str]]:
        """Label and text of each line that people want to see, beside tables. flags: name the command's options."""
        result = self.result
        if self.plan is None:
            needed = [] if self.needed_bytes is None else [("memory needed", format_bytes(self.needed_bytes))]
            if (devices := self.needed_devices) is not None:
                needed.append(("devices needed", f"{devices}, in whole nodes: with fewer nothing fits, proven"))
            elif self.needed_devices_unknown is not None:
                needed.append(("devices needed", self.needed_devices_unknown))
            rows = [row for row in result.summary(flags=flags) if row[0] != "problem"]
            return rows + needed + self._prices(flags) + self._planning()
        rows = [*self._prediction(), *self._uniform(), *self._prices(flags), *self._claim(flags)]
        rows += [*result.run_rows(), *self._planning()]
        return rows + ([("message", result.message)] if result.message else [])

    def _prediction(self) -> list[tuple[str, str]]:
        plan = self.plan
        assert plan is not None
        if plan.predicted is None or self.performance is None:
            return [("predicted time", f"none: plans of {plan.planned_model().family} models are no programs yet")]
        whole, software, most = format_bytes(plan.memory_bytes), plan.predicted.software, plan.predicted.most_bytes
        how = f", as {software} holds it" if software else ""
        over = "; its programs fit, this does not" if software and most > plan.memory_bytes else ""
        rows = [("optimizer", "Muon for matrices of layers, AdamW for all else")] * (plan.optimizer == "muon")
        rows += [
            (
                "predicted time",
                f"{format_time(plan.predicted.step_ns)} a step" + (f", as {software} overlaps" if software else ""),
            ),
            *self.performance.summary(),
            ("predicted memory", f"peak {format_bytes(most)} of {whole}{how}{over}"),
        ]
        if self.margin_bytes:
            margin = f"{format_bytes(self.margin_bytes)} that the solver did not get, so that the programs fit"
            rows.append(("margin", margin))
        return rows

    def _planning(self) -> list[tuple[str, str]]:
        return [] if self.spent is None else [("planning", str(self.spent))]

    def _uniform(self) -> list[tuple[str, str]]:
        """The best plan with one strategy for all units, and what it costs."""
        label, plan = "one strategy", self.plan
        assert plan is not None
        if plan.one_strategy is not None:
            return [(label, f"this plan has {in_words(plan.one_strategy)} for all sub-layers")]
        if self.uniform is None:
            return [(label, "none was looked for: the time was up, the problem does not say how, or none may be")]
        if (other := self.uniform.plan) is None:
            return [(label, f"no plan with one strategy for all sub-layers: {self.uniform.result.status}")]
        shape = f"{plural(len(other.stages), 'stage')}, {plural(other.batch.micro_batches, 'micro-batch')}"
        text = f"{in_words(other.one_strategy or '')} for all sub-layers; {shape}"
        if self.uniform_excess is not None and other.predicted is not None:
            text += f": {format_time(other.predicted.step_ns)} a step, {self.uniform_excess:+.2%}"
            text += ", faster as predicted than the optimum of the solver's objective" * (self.uniform_excess < 0)
        elif plan.claim is not None and other.claim is not None and plan.claim.objective_ns:
            ratio = other.claim.objective_ns / plan.claim.objective_ns - 1
            text += f": solver's objective {format_time(other.claim.objective_ns)}, {ratio:+.2%}"
        return [(label, text)]

    def _prices(self, flags: bool) -> list[tuple[str, str]]:
        """What each constraint costs; said as of walks where the prediction is of another runtime."""
        whose = ", simulated by their own programs" * bool(self._as_walked())
        names = [price.constraint if flags else as_arguments(price.constraint) for price in self.prices]
        return [(f"price of {name}", price.text(self.answer) + whose) for name, price in zip(names, self.prices, strict=True)]

    def _claim(self, flags: bool) -> list[tuple[str, str]]:
        claim = None if self.plan is None else self.plan.claim
        assert claim is not None
        bound, source, under = "none", self.result.bound_source, ", ".join(self.restrictions)
        if claim.bound_ns is not None:
            bound = format_time(claim.bound_ns) + (f", by {source}" if source else "")
        costs, scope = cost_words(claim.cost_model), self.problem.scope
        rows = [
            (
                "solver's objective",
                f"{format_time(claim.objective_ns)} ({claim.problem}, {costs}){self._as_walked()}",
            ),
            *([] if scope is None or (why := scope.unusual_costs_reason(self.request)) is None else [("cost model", why)]),
            ("status", status_text(claim.status, claim.gap)),
            ("proven lower bound", bound),
            ("proof", proof_of(claim, whole=not self.evidence_of)),
            *self._evidence(claim),
            *self._any_schedule(claim.objective_ns),
            *([("search space", under if flags else as_arguments(under))] if under and claim.bound_ns is not None else []),
            ("method", claim.method),
        ]
        if self.excess is not None and self.excess != 0:
            which = "simulated step" if self._as_walked() else "predicted step"
            rows.append(
                ("prediction against objective", f"the {which} is {self.excess:+.3%} from the objective{self._walk_gap(claim)}")
            )
        return rows

    def _walk_gap(self, claim: Claim) -> str:
        """How much shorter the walk of any plan that fits could be, where claims are at most walks."""
        if self.judged is None or claim.bound_ns is None or not counts_overlap(self.instance):
            return ""
        return f"; no plan that fits is predicted more than {format_gap(1 - claim.bound_ns / self.judged.step_ns)} faster"

    def _as_walked(self) -> str:
        """Of what the claim and its bound are, where the prediction is of another runtime."""
        software = "" if self.plan is None or self.plan.predicted is None else self.plan.predicted.software
        return f": of the plan's programs, by which it is chosen; {software} overlaps otherwise" if software else ""

    @property
    def evidence_of(self) -> list[str]:
        """Of what part of the request the claim's evidence is, as the command's options say it; nothing where it is of all."""
        evidence = None if self.plan is None or self.plan.claim is None else self.plan.claim.evidence
        own = {**self.request.options, MEMORY_TABLES.name: "least"}  # with which every plan that fits is within the bound
        options = {} if evidence is None else evidence.options
        return [f"{flag_of(name)} {value}" for name, value in options.items() if value != own.get(name)]

    def _evidence(self, claim: Claim) -> list[tuple[str, str]]:
        """What of the claim can be checked without any solver."""
        if (evidence := claim.evidence) is None or not claim.objective_ns:
            return []
        how = "by evidence that is checked" if evidence.proof is not None else "in closed form,"
        part = "".join(f", of {each} alone" for each in self.evidence_of)
        return [("certificate", f"{format_time(evidence.bound_ns)}, {how} without any solver{part}")]

    def _any_schedule(self, objective_ns: int) -> list[tuple[str, str]]:
        """How much another order of passes could gain."""
        predicted = None if self.plan is None else self.plan.predicted
        serial = predicted is not None and predicted.backend == "serial"  # what runs beside something else is not bounded
        if self.plan is not None and self.plan.depth > 1 and counts_overlap(self.instance):
            why = "what overlaps depends on the order of passes; --cost-model executed has a bound"
            return [("any schedule", f"not bounded with overlap: {why}")]
        if (bound := self.any_schedule_ns) is None or not objective_ns or not serial:
            return []
        gain = f"reordering passes gains at most {format_gap(1 - bound / objective_ns)}"
        return [("any schedule", f"{gain}: with these stages no order takes less than {format_time(bound)}")]


def row_rank(row: dict[str, Any]) -> tuple[bool, int]:
    """Rows of plans, the shortest step first, all on the lanes of `streams`."""
    step = row["lanes_ns"] if row["lanes_ns"] is not None else row["step_ns"]
    return step is None, step or 0


def plan_row(name: str, plan: Plan) -> dict[str, Any]:
    """A plan in one row: what the walks predict of it, on its own back-end and, to hold all plans alike, on `streams`; and what
    is claimed."""
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
