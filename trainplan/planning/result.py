"""The result of planning: the plan with its prediction and claim, the best plan with one strategy, and the plan's file."""

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
from trainplan.prediction.training_costs import CostRates, TrainingCosts, plan_costs
from trainplan.profiling.base.display import html_table, rich_table
from trainplan.profiling.base.errors import InputError, as_arguments
from trainplan.profiling.base.files import check_writable, write_whole
from trainplan.profiling.base.plugins import attribute
from trainplan.profiling.base.quantities import format_time, plural, span
from trainplan.solvers.core.answer import Answer
from trainplan.solvers.core.result import Result
from trainplan.tabular import frame_of
from trainplan.validation.fitting import fit_of, fit_probability, software_error
from trainplan.validation.predict import Prediction


@dataclass(frozen=True)
class PlanningTime:
    """The time that planning took.

    Attributes:
        seconds: the whole time, without the search for the prices of constraints.
        walk_seconds: the part of it in which plans were compiled, checked and simulated.
        walks: the number of plans that were compiled and simulated.
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

    A plan's programs are the instructions of every rank that it is compiled to; the prediction simulates them. The claim is
    what the solver says: objective, lower bound and status.

    Attributes:
        request: what was planned for, with its whole memory.
        preset: the problem, and the function that searched its instances.
        answer: the solver's answer; its `instance` and `result` belong to the plan.
        plan: None if nothing fits, or nothing was found; `result` says why.
        judged: the simulation of the plan's programs; None if plans of the model do not become programs.
        margin_bytes: the bytes of each device's memory that the solver was not given.
        needed_bytes: if the memory is too small, a memory of each device with which there is a plan; None if none is known.
        needed_devices: if nothing fits, the fewest devices, in whole nodes, with which the problem has a solution; None if that
            is not known.
        needed_devices_unknown: why it is not known.
        uniform: the result with the best plan of one strategy for all units; None if this plan has one itself, if the problem
            cannot be narrowed so, or if the time was up.
        instead: if no preset was named, why the default one did not plan the request.
        prices: the price of each constraint of the request.
        spent: the time that planning took, without the prices; None if it was not measured.
        run: the prediction of the runtime that the request names, from which the plan's step and memory are; None if it names
            none.
        searched: the method, its options and its limits except for time, with which other requests can be searched in the same
            manner.
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
        """An HTML table for notebooks with the rows of the command's screen, options written as Python arguments; `summary` has
        all that is known."""
        rows = [(label, lines) for label, lines in attribute("trainplan.screens.plan:screen")(self) if label != "NEXT"]
        texts = [(label, as_arguments("\n".join(" · ".join(line) for line in lines))) for label, lines in rows]
        return html_table([*texts, ("NEXT", 'save("plan.json") · frame() · summary()')] if self.plan else texts)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the plan's file, whole or not at all, as `trainplan plan -o` does. Evidence of its claim, for `check`, is
        gathered first, for at most as long as planning took.

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
        """The result as a pandas DataFrame of one row: the request, the layout, what is predicted and what is proven.

        Frames of several results are one table with `pandas.concat`; fields are empty if there is no plan.

        Args:
            units: return a row for each run of equal consecutive units instead: stage, ranks, units, count, strategy.

        Returns:
            The frame.

        Raises:
            MissingExtra: where pandas is not installed.
        """
        return frame_of(self._unit_rows() if units else [self.as_row()])

    def as_row(self) -> dict[str, Any]:
        """The only row of `frame()` as a JSON-ready dict; None for what is unknown. The request: `model`, `cluster` (names),
        `devices`, `batch` (samples per step), `like` (the preset). The prediction: `step_ns`, `tokens_per_s_per_device`, `mfu`
        (a fraction), `peak_bytes` (fullest device), `predicted_by` (the runtime, or "walks" for the simulation).
        `memory_bytes`: the limit of a device. The layout: `stages` and `micro_batches` (numbers), `schedule`, `strategy` (of
        all units, or "several"). The claim: `status`, `objective_ns`, `bound_ns`, `gap` (a fraction). `seconds`: the time that
        planning took."""
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
        """A dict for each run of consecutive units (sub-layers) with one strategy: stage, ranks, units (text), count,
        strategy."""
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
        """The model's and the cluster's name as one text for people: "MODEL on CLUSTER"."""
        model = self.request.model.name if self.request.model else self.request.origin.name
        return f"{model} on {self.request.cluster_name}"

    @cached_property
    def performance(self) -> Performance | None:
        """The predicted step in an engineer's units, such as tokens per second and MFU; None without a plan or a simulation."""
        if self.plan is None or self.judged is None:
            return None
        return performance(self.plan, self.judged, self.request.cluster)

    @cached_property
    def row(self) -> dict[str, Any] | None:
        """The plan as a row that compares with rows of other plans, under the preset's name (for its keys see
        `result_rows.plan_row`); None without a plan. Cached, since it takes a simulation.
        """
        return None if self.plan is None else plan_row(self.preset.name, self.plan)

    @property
    def uniform_excess(self) -> float | None:
        """By how much the predicted step of the best plan with one strategy for all units exceeds this plan's step, as a share
        of the latter; 0 if this plan has one strategy itself; None if either plan or its prediction is missing.
        """
        if self.plan is not None and self.plan.one_strategy is not None:
            return 0.0
        steps = [result.plan.predicted for result in (self, self.uniform) if result and result.plan and result.plan.predicted]
        return steps[1].step_ns / steps[0].step_ns - 1 if len(steps) == 2 else None

    @property
    def problem(self) -> Problem:
        """The planning problem that was solved."""
        return self.preset.problem

    @property
    def instance(self) -> Any:
        """The problem's instance that the plan is a solution of."""
        return self.answer.instance

    @property
    def result(self) -> Result:
        """The solving method's result (status, objective, bound) on the instance that the plan is a solution of."""
        return self.answer.result

    @property
    def interrupted(self) -> bool:
        """Whether the user interrupted the search."""
        return self.result.stopped == "interrupt"

    @property
    def walked_ns(self) -> int:
        """The simulated step of the plan's programs in ns; the solver's objective if there are no programs."""
        return self.judged.step_ns if self.judged is not None else self.answer.objective_ns or 0

    def as_interrupted(self) -> PlanningResult:
        """A copy of the result that is marked as found by an interrupted search."""
        return replace(self, answer=replace(self.answer, result=replace(self.result, stopped="interrupt")))

    @property
    def walk_bytes(self) -> tuple[int, ...]:
        """Simulated peak memory of every rank's program in bytes, in rank order; empty if there are no programs."""
        return () if self.judged is None else tuple(self.judged.peak_bytes)

    @property
    def excess(self) -> float | None:
        """By how much the simulated step exceeds the objective of the plan's claim, as a share of the objective; None if
        either is missing.
        """
        if self.plan is None or self.plan.predicted is None or self.plan.claim is None or not self.plan.claim.objective_ns:
            return None
        by_programs = self.judged is not None and not predicted_by_runtime(self.instance)
        step_ns = self.judged.step_ns if self.judged is not None and by_programs else self.plan.predicted.step_ns
        return step_ns / self.plan.claim.objective_ns - 1

    @cached_property
    def any_schedule_ns(self) -> int | None:
        """A lower bound in ns, in the problem's cost model, on the step of the plan's stages and strategies under any order of
        passes; None if the problem has no such bound, or there is no plan.
        """
        solution = self.answer.solution
        certificate = self.problem.certificate
        return None if solution is None or certificate is None else certificate.any_schedule_bound_ns(self.instance, solution)

    @property
    def restrictions(self) -> list[str]:
        """Texts that name the plans which the problem could choose but which the request's options exclude, written as the
        command's options, such as a fixed number of pipeline stages.
        """
        scope = self.problem.scope
        return [] if scope is None else scope.restrictions(self.request, self.problem.cost_model(self.instance))

    @property
    def step_ns(self) -> int | None:
        """The predicted step in ns; the claimed objective if the plan has no programs; None without a plan."""
        if self.plan is None or self.plan.claim is None:
            return None
        return self.plan.claim.objective_ns if self.plan.predicted is None else self.plan.predicted.step_ns

    def training_costs(self, rates: CostRates | None = None, **values: Any) -> TrainingCosts | None:
        """Time, money and energy of the plan's step and of a whole training with it.

        Args:
            rates: price, tokens to train on, and power; None for all defaults.
            **values: fields of `rates`, such as price=2.5 and tokens="1T"; one given replaces the field.

        Returns:
            The costs; None without a plan or a predicted step.

        Raises:
            InputError: for a value outside of its range.
            TypeError: for a field that `CostRates` does not have.
        """
        if self.plan is None or self.step_ns is None:
            return None
        return plan_costs(self.plan, self.step_ns, self.request.cluster, replace(rates or CostRates(), **values))

    @property
    def fit_probability(self) -> float | None:
        """The probability, 0 to 1, that the plan fits on every device, by the error of predicted peaks of the software that it
        is predicted for; None without a plan or a prediction.
        """
        if self.plan is None or self.plan.predicted is None:
            return None
        error = software_error(self.plan.predicted.software)
        return fit_probability(max(self.plan.predicted.peak_bytes), self.plan.memory_bytes, error)

    def to_dict(self) -> dict[str, Any]:
        """The result as a JSON-ready dict; None for what is unknown. Keys: `like` (the preset's name) and `instead` (why the
        default preset was not used), `plan` (the plan's file as a dict), `result` (the solver's result as a dict), `unfinished`
        (what ended the search early), `alternatives` (dicts), `walk_bytes` (simulated peak of every rank), `fit` (yes,
        tight or no: whether the plan fits, by the error of predicted peaks) and `fit_probability`, `margin_bytes`,
        `needed_bytes` and `needed_devices` (as the class describes them), `performance` (a dict), `uniform` (the best plan with
        one strategy for all units, as a dict) and `uniform_excess` (the fraction by which its step is longer).

        Further: `any_schedule_ns` (lower bound on the step of the plan's stages and strategies under any order of passes),
        `restrictions` (texts on what the request's options exclude), `prices` (a dict for each constraint's price), and `spent`
        (the time that planning took, a dict)."""
        return {
            "like": self.preset.name,
            "instead": self.instead,
            "plan": None if self.plan is None else self.plan.model_dump(),
            "result": self.result.to_dict(),
            "unfinished": self.result.stopped,
            "alternatives": list(self.answer.alternatives),
            "walk_bytes": list(self.walk_bytes),
            "fit": None if self.fit_probability is None else fit_of(self.fit_probability),
            "fit_probability": self.fit_probability,
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
        """The result as pairs of label and text for people; the tables of the command's screen are not included. flags:
        whether to write options as command flags (--memory) or as Python arguments (memory=).
        """
        rows: list[tuple[str, str]] = attribute("trainplan.planning.result_summary:summary")(self, flags=flags)
        return rows

    @property
    def evidence_of(self) -> list[str]:
        """The options, as the command writes them, that narrow the request to the part that the evidence of the plan's claim
        covers; empty if it covers all of the request."""
        evidence = None if self.plan is None or self.plan.claim is None else self.plan.claim.evidence
        own = {**self.request.options, MEMORY_TABLES.name: "least"}  # with this, the bound holds for every plan that fits
        options = {} if evidence is None else evidence.options
        return [f"{flag_of(name)} {value}" for name, value in options.items() if value != own.get(name)]


def predicted_by_runtime(instance: Any) -> bool:
    """Whether step and memory of an instance's solutions are those that a runtime (training framework) is predicted to take,
    and not those of trainplan's own programs. instance: a problem's instance."""
    return getattr(instance, "runtime", None) is not None
