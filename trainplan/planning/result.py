"""The result of planning: the plan with its prediction and its claim, the best plan with one strategy, and its files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from trainplan.execution.prediction.evaluate_plan import PlanPrediction
from trainplan.formulations.joint.options import MEMORY_TABLES
from trainplan.formulations.parameters import flag_of
from trainplan.formulations.plan.plan import Plan, plan_text
from trainplan.formulations.plan.request import Request
from trainplan.formulations.plan.run_length import runs
from trainplan.formulations.problem import Problem
from trainplan.planning.presets import Preset
from trainplan.planning.proof import status_text
from trainplan.planning.result_price import Price
from trainplan.planning.result_rows import plan_row
from trainplan.prediction.metrics import Performance, performance
from trainplan.profiling.base.display import html_table, rich_table
from trainplan.profiling.base.errors import InputError, as_arguments
from trainplan.profiling.base.files import check_writable, write_whole
from trainplan.profiling.base.plugins import attribute
from trainplan.profiling.base.quantities import format_time, plural, span
from trainplan.solvers.core.answer import Answer
from trainplan.solvers.core.result import Result
from trainplan.tabular import frame_of
from trainplan.validation.predict import Prediction


@dataclass(frozen=True)
class PlanningTime:
    """The time that planning took.

    Attributes:
        seconds: all, but for prices.
        walk_seconds: those of them in which plans were compiled, checked and simulated.
        walks: the number of these plans.
    """

    seconds: float
    walk_seconds: float
    walks: int

    def __str__(self) -> str:
        walks = f"; {self.walk_seconds:.3f} s of it to compile, check and simulate {plural(self.walks, 'plan')}"
        return f"{self.seconds:.3f} s, without constraint prices" + walks * (self.walks > 0)


@dataclass(frozen=True)
class PlanningResult:
    """The answer to a request: a plan with its prediction and its claim, or why there is none.

    Attributes:
        request: what was asked for, with the whole memory.
        preset: the problem, and how its instances were searched.
        answer: of the solver, whose `instance` and `result` belong to the plan.
        plan: None where nothing fits, or nothing was found; `result` says why.
        judged: the simulation of the plan's programs; None where plans of the model do not become programs.
        margin_bytes: by how much less memory than asked for the solver got.
        needed_bytes: where the memory is too little, one with which there is a plan; None where none is known.
        needed_devices: the fewest devices, in whole nodes, with which the problem has a solution, where it has none; None where
            that is not known.
        needed_devices_unknown: why that is not known.
        uniform: the best plan with one strategy for all units, as a result of its own; None where this plan has one itself, and
            where none was looked for: the problem does not say how, or the time was up.
        instead: where no preset was named, why the default one did not plan it.
        prices: the price of each constraint of the request.
        spent: the time that all of it took, but for prices.
        run: the prediction of the runtime that the request names, of whose step and memory the plan's are; None of trainplan's
            own.
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
        """By how much longer the predicted step of the best plan with one strategy for all units is, as a share of this plan's;
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
        """The result of the method on that instance."""
        return self.answer.result

    @property
    def interrupted(self) -> bool:
        """Whether the search was interrupted."""
        return self.result.stopped == "interrupt"

    @property
    def walked_ns(self) -> int:
        """The simulated step of the plan's programs; where there are none, the objective."""
        return self.judged.step_ns if self.judged is not None else self.answer.objective_ns or 0

    def as_interrupted(self) -> PlanningResult:
        """The result as that of an interrupted search."""
        return replace(self, answer=replace(self.answer, result=replace(self.result, stopped="interrupt")))

    @property
    def walk_bytes(self) -> tuple[int, ...]:
        """The simulated peak bytes of every rank's program; empty where there are no programs."""
        return () if self.judged is None else tuple(self.judged.peak_bytes)

    @property
    def excess(self) -> float | None:
        """How far the simulated step is from the claimed objective, as a share of the objective; None without either."""
        if self.plan is None or self.plan.predicted is None or self.plan.claim is None or not self.plan.claim.objective_ns:
            return None
        step_ns = self.plan.predicted.step_ns if self.judged is None else self.judged.step_ns
        return step_ns / self.plan.claim.objective_ns - 1

    @cached_property
    def any_schedule_ns(self) -> int | None:
        """Nanoseconds that no step with the plan's stages and strategies is below by the problem's costs, whatever the order of
        passes; None where the problem has no such bound."""
        solution = self.answer.solution
        certificate = self.problem.certificate
        return None if solution is None or certificate is None else certificate.any_schedule_bound_ns(self.instance, solution)

    @property
    def restrictions(self) -> list[str]:
        """The plans that the request leaves out of all that the problem knows, as the command's options say it."""
        scope = self.problem.scope
        return [] if scope is None else scope.restrictions(self.request, self.problem.cost_model(self.instance))

    @property
    def step_ns(self) -> int | None:
        """The predicted step; of a plan without programs, the claimed one; None without a plan."""
        if self.plan is None or self.plan.claim is None:
            return None
        return self.plan.claim.objective_ns if self.plan.predicted is None else self.plan.predicted.step_ns

    def to_dict(self) -> dict[str, Any]:
        """The result as plain values."""
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
        """Label and text of each line that people want to see, in addition to tables. flags: name the command's options."""
        rows: list[tuple[str, str]] = attribute("trainplan.planning.result_summary:summary")(self, flags=flags)
        return rows

    @property
    def evidence_of(self) -> list[str]:
        """The part of the request that the claim's evidence is of, as the command's options say it; empty where it is of all
        of it."""
        evidence = None if self.plan is None or self.plan.claim is None else self.plan.claim.evidence
        own = {**self.request.options, MEMORY_TABLES.name: "least"}  # with which every plan that fits is within the bound
        options = {} if evidence is None else evidence.options
        return [f"{flag_of(name)} {value}" for name, value in options.items() if value != own.get(name)]
