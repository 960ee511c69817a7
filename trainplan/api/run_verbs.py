"""Plans run on this machine: training steps of one plan, and trials of several."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, replace
from importlib.util import find_spec
from typing import Any

from trainplan.api.keywords import given, with_fields
from trainplan.api.plan_verbs import plan
from trainplan.api.requests import PlanRequest, keywords_of
from trainplan.execution.launch.choose_executor import runtime_of
from trainplan.execution.launch.memory_check import check_predicted
from trainplan.execution.launch.processes import run_plans
from trainplan.execution.launch.report import RunReport
from trainplan.execution.lowering.checkpoints import checkpoints_of
from trainplan.execution.run.settings import RunSettings, check_seconds, check_settings, gpus
from trainplan.execution.training.settings import TrainingSettings, training_of
from trainplan.execution.training.texts import tokenize
from trainplan.formulations.parameters import flag_of
from trainplan.formulations.plan.plan import Plan, load_plan
from trainplan.formulations.plan.request import Request
from trainplan.inputs import cluster_of, model_of, profile_of
from trainplan.planning.trials import Trials, best_plans, runnable, try_plans
from trainplan.prediction.predict import plan_profile
from trainplan.profiling.base.errors import InputError, MissingExtra
from trainplan.profiling.base.files import Source, name_of_source
from trainplan.profiling.base.torchrun_worker import launched
from trainplan.profiling.base.watchdog import STALL_S
from trainplan.profiling.models.model import Model, load_model
from trainplan.profiling.profiles import Profile

__all__ = ["RunSettings", "TrainingSettings", "run", "tokenize", "trial"]
RUN, TRAINING = RunSettings(), TrainingSettings()  # defaults of parameters
STEP_S = 600.0  # an example of the seconds of a step, for an error's advice
BY_TORCH = ("checkpoint", "checkpoint_every", "resume")  # settings of runs by torch alone; so are all TrainingSettings


@dataclass(frozen=True)
class RunKeywords(RunSettings, TrainingSettings):
    """The parameters of `run`, with the fields of its two settings objects as keywords. Never instantiated; it states `run`'s
    signature."""

    source: Plan | Source
    settings: RunSettings | None = None
    training: TrainingSettings | None = None
    _: KW_ONLY
    progress: Callable[[dict[str, Any]], None] | None = None


@with_fields(RunKeywords)
def run(
    source: Plan | Source,
    settings: RunSettings = RUN,
    training: TrainingSettings = TRAINING,
    *,
    progress: Callable[[dict[str, Any]], None] | None = None,
) -> RunReport:
    """Run a plan on local processes; warns where it needs more memory than it was made for.

    What this machine cannot hold is refused before anything is made, by the plan's own prediction of all ranks.

    Started by torchrun, on one node or several, the process is one rank of its group, and starts none. Settings of training are
    of torch, not of programs.

    Args:
        source: a plan, its file, or a dict.
        settings: how the plan runs. Its fields are keywords, too; one given alongside it replaces its field.
        training: what the run trains with, by torch. Its fields are keywords, too; one given alongside it replaces its field.
        progress: called with a dict for each step, such as {"step": 1, "steps": 3, "loss": 10.8}.

    Returns:
        Losses, seconds and memory of the steps, and what was compared.

    Raises:
        InputError: for a plan that cannot be run with these settings.
        WorkerError: if a process fails.
        MissingExtra: if torch is not installed.
    """
    the_plan, where = load_plan(source), name_of_source(source, "plan")
    if find_spec("torch") is None:
        raise MissingExtra("torch", "torch", "running a plan")
    run_model = _model_to_run(the_plan, where, settings)
    steps, backend, device, seed, transport = (
        settings.steps,
        settings.backend,
        settings.device,
        settings.seed,
        settings.transport,
    )
    check_settings([the_plan], steps, backend, device, seed, settings.stall_timeout, transport)
    if not settings.force and settings.scale_down == 1 and run_model.dtype == the_plan.planned_model().dtype:
        check_predicted(where, the_plan, gpus(the_plan, device, transport), launched())
    base = _profile_to_measure(the_plan, run_model, settings)
    of_programs = {name: getattr(settings, name) for name in ("backend", "transport", "measure", "measure_memory")}
    by_torch = [*given(training), *(name for name in BY_TORCH if getattr(settings, name) is not None)]
    by_torch.sort(key="step_timeout".__eq__)  # an error names step_timeout last
    choice = runtime_of(settings.by, the_plan, run_model, where=where, training=[*map(flag_of, by_torch)], **of_programs)
    options: dict[str, Any] = {"steps": steps, "device": device, "seed": seed}
    if choice.runtime == "torch":
        trained = training_of(the_plan, run_model, steps, training, settings.resume is not None)
        kept = (settings.checkpoint, settings.checkpoint_every, settings.resume, trained.data)
        options |= {"training": trained, "checkpoints": checkpoints_of(the_plan, run_model, seed, steps, *kept)}
        if training.step_timeout is not None:
            check_seconds("--step-timeout", training.step_timeout, STEP_S)
        options["step_timeout"] = training.step_timeout
    [report] = run_plans(
        [the_plan],
        model=run_model,
        where=where,
        runtime=choice.runtime,
        compare=training.data is None if settings.compare is None else settings.compare,
        profile=base,
        stall_timeout=settings.stall_timeout,
        force=settings.force,
        progress=progress,
        **of_programs,
        **options,
    )
    return replace(report, why_program=choice.why)


def _model_to_run(the_plan: Plan, where: str, settings: RunSettings) -> Model:
    """The model that a run executes: the plan's model, in the dtype and scaled down to the size that the settings state.

    where: the plan's name in errors. Raises InputError if the settings name a model other than the plan's, or if the model
    cannot be executed.
    """
    planned = the_plan.planned_model()
    if settings.model is not None and (other := load_model(settings.model)).digest != planned.digest:
        fix = f"give the config of {planned.name!r}, or plan for {other.name!r}"
        problem = f"is {planned.digest!r}, but {os.fspath(settings.model)} has {other.digest!r}"
        raise InputError(where, "model_digest", problem, fix)
    return runnable(planned, settings.dtype, where).scaled(settings.scale_down)


def _profile_to_measure(the_plan: Plan, model: Model, settings: RunSettings) -> Profile | None:
    """The profile that the measured times of a run go into: it has the shapes that the plan uses, with estimated times, or
    those of the profile that the settings name.

    model: the model that the run executes. Returns None if the settings name neither a cluster nor a profile. Raises InputError
    if the run measures nothing, or runs a smaller model than the plan's.
    """
    if settings.cluster is None and settings.profile is None:
        return None
    option = "--profile" if settings.cluster is None else "--cluster"
    if not settings.measure:
        raise InputError("command line", option, "is given without --measure", "give both, or neither")
    if model.shape() != the_plan.planned_model().in_dtype(model.dtype).shape():
        raise InputError("command line", option, "is given with --scale-down", "measure the plan's own model for a profile")
    cluster = None if settings.cluster is None else cluster_of(settings.cluster)
    return plan_profile(the_plan, Request(model, cluster, the_plan.batch.global_samples, profile=profile_of(settings.profile)))


def trial(
    plans: Iterable[Plan | Source] | None = None,
    request: PlanRequest | None = None,
    *,
    like: str = "place",
    top: int = 5,
    steps: int = 10,
    warmup: int = 3,
    scale_down: int = 1,
    run_dtype: str | None = None,
    backend: str = "serial",
    device: str = "cpu",
    timeout: float = 600.0,
    stall_timeout: float = STALL_S,
    seed: int = 0,
    running: Any = None,
    **keywords: Any,
) -> Trials:
    """Run every plan for some steps on this machine, and pick the fastest. One that fails is a result like others.

    Args:
        plans: any plans of one model and number of devices (default: the best that the preset has for the request).
        request: what to plan for, as one object, if no plans are given.
        like: the name of the preset that plans, if no plans are given.
        top: Plans to run: the best predicted ones.
        steps: Timed training steps of each.
        warmup: Steps before those that are timed.
        scale_down: Run a model of the same kind about this many times smaller.
        run_dtype: float32, float64 or bfloat16 (default: that of `dtype`).
        backend: the back-end that runs a plan's program: serial, fused, threads or streams, as `run` has them.
        device: cpu (local processes) or cuda (a GPU for each process).
        timeout: Seconds for each plan, without the start of processes.
        stall_timeout: seconds without any progress of the processes after which the run of a plan is ended.
        seed: the seed of the search, of parameters and of samples.
        running: called with a dict for each step, such as {"plan": 0, "step": 1, "steps": 10}.
        **keywords: further keywords of `plan`, if no plans are given.

    Returns:
        The plans and what each took, with `best`, `frame()` and `picture()`.

    Raises:
        InputError: for plans that do not run, or of several models.
        MissingExtra: if torch is not installed.
    """
    settings = {"steps": steps, "warmup": warmup, "backend": backend, "device": device, "timeout": timeout, "seed": seed}
    settings["stall_timeout"] = stall_timeout
    first = None
    if plans is not None:
        chosen = [load_plan(source) for source in plans]
    elif find_spec("torch") is None:
        raise MissingExtra("torch", "torch", "running a plan")
    else:
        keywords = keywords_of(request, None) | keywords
        if (model := keywords.get("model")) is not None:  # before it is planned, which may take long
            profile = profile_of(keywords.get("profile"))
            runnable(
                model_of(model, keywords.get("sequence"), keywords.get("dtype"), profile), run_dtype, "model", "--run-dtype"
            )
        first = plan(**{"like": like, "seed": seed, **keywords})
        if first.plan is None or first.interrupted:
            return Trials((), (), first)
        runnable(first.plan.planned_model(), run_dtype, "model", "--run-dtype")
        chosen = best_plans(first, top, seed)
    return try_plans(chosen, scale_down=scale_down, dtype=run_dtype, planned=first, progress=running, **settings)
