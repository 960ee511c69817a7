"""Trials: plans are run for a few steps on the machine at hand, and the fastest is chosen (AMP, Algorithm 1, last line)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from typing import Any, ClassVar

from trainplan.execution.executable_models import EXECUTED_DTYPES, EXECUTED_FAMILIES, UNEXECUTED
from trainplan.execution.launch.trials import Trial, fastest, run_trials
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.strategy_words import strategy_words
from trainplan.inputs import runs
from trainplan.planning.planner import plan_answer
from trainplan.planning.result import PlanningResult
from trainplan.profiling.base.dtypes import parse_dtype
from trainplan.profiling.base.errors import InputError, MissingExtra, shown
from trainplan.profiling.models.model import Model
from trainplan.solvers.core.method_registry import solvers_of
from trainplan.tabular import Tabular

MOST_TRIALS = 100


@dataclass(frozen=True)
class Trials(Tabular):
    """Measurements of several plans that were run.

    Attributes:
        plans: the plans, by rising predicted step.
        trials: the measurement of each plan.
        planned: the result of planning that the plans come from; None if they were given as files.
    """

    plans: tuple[Plan, ...]
    trials: tuple[Trial, ...]
    planned: PlanningResult | None = None

    @property
    def best(self) -> int | None:
        """The index of the plan with the shortest measured step in `plans`; None if none ran."""
        trial = fastest(self.trials)
        return None if trial is None else trial.index

    headings: ClassVar = {
        "plan": "plan",
        "stages": "stages",
        "strategies": "strategies",
        "predicted_step_ns": "predicted",
        "step_ns": "measured",
        "spread": "spread",
        "status": "status",
    }
    drawn_by = "trainplan.pictures.comparisons:draw_trials"
    __repr__ = Tabular.__repr__  # in place of the dataclass's, which has all plans

    def rows(self) -> list[dict[str, Any]]:
        """A dict for each plan that was tried: `plan` (its index), `stages`, `strategies` (in words), `predicted_step_ns`,
        `step_ns` (median of the measured steps), `spread` (half-width of the middle half of the measured steps, as a fraction
        of the median) and `status` ("ran", or how it failed)."""
        rows = []
        for trial in self.trials:
            plan = self.plans[trial.index]
            names = ", ".join(dict.fromkeys(map(strategy_words, plan.strategies())))
            layout = {"plan": trial.index, "stages": len(plan.stages), "strategies": names}
            steps = {"predicted_step_ns": trial.predicted_step_ns, "step_ns": trial.step_ns}
            rows.append({**layout, **steps, "spread": trial.spread, "status": trial.status})
        return rows

    def to_dict(self) -> dict[str, Any]:
        """The trials as a JSON-ready dict. Keys: `plans` (for each plan its file as a dict), `trials` (for each plan a dict of
        its measurement, such as `status`, `step_ns`, `spread` and `predicted_step_ns`), `best` (index in `plans` of the
        fastest, None if none ran), and `result` (the solver's result as a dict, None if the plans were given as files)."""
        return {
            "result": None if self.planned is None else self.planned.result.to_dict(),
            "plans": [plan.model_dump() for plan in self.plans],
            "trials": [asdict(trial) for trial in self.trials],
            "best": self.best,
        }


def try_plans(
    plans: Sequence[Plan],
    *,
    scale_down: int = 1,
    dtype: str | None = None,
    planned: PlanningResult | None = None,
    **options: Any,
) -> Trials:
    """Run plans of one model and one number of devices, in the order of their predicted steps.

    Args:
        plans: the plans to run.
        scale_down: run a model with the same units that is about this many times smaller.
        dtype: the dtype to run in, instead of the model's.
        planned: the result of planning that the plans come from, if they do.
        **options: arguments of `execution.launch.trials.run_trials`.

    Raises:
        InputError: for too many plans, for plans of different models or devices, and for a model that does not run.
        MissingExtra: if torch is not installed.
    """
    if find_spec("torch") is None:
        raise MissingExtra("torch", "torch", "running a plan")
    if not 1 <= len(plans) <= MOST_TRIALS:
        raise InputError("command line", "--top", f"is {len(plans)}", f"give 1 to {MOST_TRIALS}")
    ordered = sorted(plans, key=lambda plan: plan.predicted.step_ns if plan.predicted else 0)
    for plan in ordered[1:]:
        if (plan.model_digest, plan.world) != (ordered[0].model_digest, ordered[0].world):
            raise InputError("plan", "model_digest", "differs from another plan's", "try plans of one model and world")
    model = runnable(ordered[0].planned_model(), dtype, "model", "--run-dtype").scaled(scale_down)
    return Trials(tuple(ordered), tuple(run_trials(ordered, model=model, **options)), planned)


def best_plans(first: PlanningResult, top: int, seed: int) -> list[Plan]:
    """The plans of the best solutions that the preset's problem can list, each with its own prediction; only the one plan that
    is known if the problem cannot list solutions.

    Args:
        first: a result for the request that the plans are for.
        top: the most plans to return.
        seed: the seed of the problem's search for alternatives.

    Raises:
        InputError: for a number below 1 or above MOST_TRIALS.
    """
    if not 1 <= top <= MOST_TRIALS:
        raise InputError("command line", "--top", f"is {top}", f"give 1 to {MOST_TRIALS}")
    plans = [] if first.plan is None else [first.plan]
    alternatives = solvers_of(first.problem).call("alternatives", first.instance, first.result, top, seed) or ()
    for solution, time_ns in alternatives:
        answer = replace(first.answer, solution=solution, objective_ns=time_ns)
        tried = plan_answer(first, answer)
        if tried.plan is not None and tried.plan.content not in [plan.content for plan in plans]:
            plans.append(tried.plan)
    return plans[:top]


def runnable(model: Model, dtype: str | None, where: str, option: str = "--dtype") -> Model:
    """The model in the dtype that its plans are to be run in, after a check that plans of it can be run.

    Args:
        model: the model to run.
        dtype: the dtype to run it in; None for the model's own.
        where: the file or object that the model is from, for errors.
        option: the command's option that gives the dtype, for errors.

    Raises:
        InputError: if plans of the model, or of this dtype, do not run.
    """
    wanted = model.dtype if dtype is None else parse_dtype(dtype)
    if wanted not in EXECUTED_DTYPES:
        choices = f"{', '.join(EXECUTED_DTYPES[:-1])} or {EXECUTED_DTYPES[-1]}"
        if dtype is None:
            fix = f"give {option} {choices}: the plan is run in that in its place"
            raise InputError(where, "model.dtype", f"is {wanted!r}, which is planned, but does not run yet", fix)
        raise InputError("command line", option, f"is {wanted!r}, which does not run yet", f"give {choices}")
    if model.family not in EXECUTED_FAMILIES:
        fix = f"give a plan of one of: {', '.join(EXECUTED_FAMILIES)}"
        raise InputError(where, "model.config.model_type", f"is {model.family!r}, which does not run yet", fix)
    rope = model.config.get("rope_scaling", {})
    if rope.get("rope_type", rope.get("type")) in ("longrope", "su") and rope.get("short_factor") is None:
        problem, fix = "is 'longrope', which is planned, but does not run", "give its short_factor and long_factor, too"
        raise InputError(where, "model.config.rope_scaling.rope_type", problem, fix)
    if (part := rope.get("partial_rotary_factor", 1)) != 1 and "partial_rotary_factor" not in model.config:
        problem = f"is {shown(part)}, which is planned, but does not run yet"
        raise InputError(where, "model.config.rope_scaling.partial_rotary_factor", problem, "give 1, or leave it out")
    for name in UNEXECUTED:
        if name in model.config:
            raise InputError("plan", f"model.config.{name}", f"is {shown(model.config[name])}", "leave it out to run a plan")
    assert runs(model.in_dtype(wanted))
    return model.in_dtype(wanted)
