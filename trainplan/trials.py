"""Trials: the best predicted strategies are run for a few steps on the machine at hand (AMP, Algorithm 1, last line)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from trainplan.execution.run.trials import Trial, fastest, run_trials
from trainplan.formulations.plan import Plan
from trainplan.placing import PlacedPlan, candidates, plan_of
from trainplan.profiling.models.model import Model
from trainplan.solvers.core.result import Result


@dataclass(frozen=True)
class Trials:
    """What running the candidates gave, in the order of their predicted times.

    plans: of the candidates; trials: one for each plan. best: place of the fastest plan; None where none ran.
    """

    result: Result
    plans: tuple[Plan, ...]
    trials: tuple[Trial, ...]

    @property
    def best(self) -> int | None:
        found = fastest(self.trials)
        return None if found is None else found.place

    def to_dict(self) -> dict[str, Any]:
        return {
            "result": self.result.to_dict(),
            "plans": [plan.model_dump() for plan in self.plans],
            "trials": [asdict(trial) for trial in self.trials],
            "best": self.best,
        }


def try_best(found: PlacedPlan, more: Result, top: int, *, model: Model, **options: Any) -> Trials:
    """Run the best `top` candidates of a result and of `more`. model: to run in the planned one's place, scaled down or in
    another dtype; options as of `execution.trials.run_trials`. Raises InputError."""
    plans = [
        plan_of(found.model, found.instance, solution, found.profile, found.result, time_ns)
        for solution, time_ns in candidates(found.instance, [found.result, more], top)
    ]
    trials = run_trials(plans, model=model, **options) if plans else []
    return Trials(found.result, tuple(plans), tuple(trials))
