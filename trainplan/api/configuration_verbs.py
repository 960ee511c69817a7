"""Configurations of other runtimes, judged: how good is what runs now?"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainplan.api.plan_verbs import plan
from trainplan.execution.launch_files.logs.steps import LoggedRun, compared_with_log, read_log
from trainplan.execution.launch_files.logs.text import text_of_bytes
from trainplan.execution.launch_files.run_configuration import RunConfiguration, UserSettings, with_given
from trainplan.formulations.plan.plan import Plan, RunBy, load_plan
from trainplan.formulations.plan.request import Request
from trainplan.formulations.runtimes import RUNTIMES
from trainplan.imported_runs.assess import JudgedRun, changes, changes_without_gain, priced_as
from trainplan.imported_runs.long_samples import with_positions
from trainplan.imported_runs.to_plan import (
    model_of,
    plan_of,
    read,
    read_text,
    with_kernels,
    with_model,
    with_options,
    with_recipe,
)
from trainplan.inputs import cluster_of, compiles, memory_of
from trainplan.planning.certify import certify
from trainplan.planning.presets import DEFAULT
from trainplan.planning.result import PlanningResult
from trainplan.prediction.metrics import performance
from trainplan.prediction.predict import predicted_as_known
from trainplan.profiling.base.dtypes import parse_dtype
from trainplan.profiling.base.errors import COMMAND_LINE, InputError
from trainplan.profiling.base.files import FilePath, Source
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.solvers.core.limits import GAP, TIME_LIMIT_S
from trainplan.validation.plans import as_run

__all__ = ["compare_log", "import_run"]
CHECK_SECONDS = 5.0  # for evidence of the bound


def import_run(
    file: FilePath | None = None,
    *,
    line: str | None = None,
    cluster: FilePath | Cluster | None = None,
    model: FilePath | None = None,
    batch: int | None = None,
    micro_batch: int | None = None,
    sequence: int | None = None,
    dtype: str | None = None,
    memory: str | int | None = None,
    reserve: str | int | None = None,
    recompute: str | None = None,
    loss: str | None = None,
    attention: str | None = None,
    runtime: str | None = None,
    variables: Mapping[str, str] | None = None,
    ignored: Collection[str] = (),
    search: bool = True,
    gap: float = GAP,
    time_limit: float | None = TIME_LIMIT_S,
    progress: Callable[[Any], None] | None = None,
) -> JudgedRun:
    """How good is what a file has a runtime run? It becomes a plan, with its prediction; alongside it the bound and the best
    plan of the joint problem, the best one within the runtime, and what to change first.

    Args:
        file: Megatron-LM's arguments (a script or a list), torchtitan's TOML, a JSON or YAML file of DeepSpeed, Accelerate,
            axolotl, LLaMA-Factory, transformers or Megatron-Bridge, or the log of a run, in which the tool prints its
            configuration; the file - is a script or a log on standard input.
        line: a command line that starts training, in place of a file.
        cluster: the devices, such as h100:8x4.
        model: a name or a config.json (default: the file's). This and what follows to `variables` are what the file may leave
            open.
        batch: Samples of one step, over all devices.
        micro_batch: Samples of one micro-batch on one rank.
        sequence: Tokens of a sample.
        dtype: as of `plan`.
        memory: as of `plan`.
        reserve: as of `plan`.
        recompute: full or none, which DeepSpeed and Accelerate leave to the model's code.
        loss: full, chunked or fused: whether all logits are held at once (default: full).

            They are those of a micro-batch; a fused loss never holds all of them.
        attention: eager or flash: whether scores are kept (default: the model's, else the tool's).

            The model's is that of its configuration; a tool has one for the devices.
        runtime: whose file it is, as `import-run --help` lists them (default: by the file).
        variables: of a script's environment, and its positional parameters by number; of YAML, JSON and TOML, values of keys
            in place of the file's.
        ignored: keys of the file that change nothing of the run, where they are not known.
        search: look for bound, best plans and changes, too.
        gap: relative gap at which each of the two searches may stop.
        time_limit: seconds of each of them.
        progress: as of `plan`.

    Returns:
        What runs, its prediction and its alternatives, with `frame()`.

    Raises:
        InputError: naming file and key, for what cannot be read or predicted.
    """
    if cluster is None:
        raise InputError(COMMAND_LINE, "--cluster", "is missing", "give the devices that the run is on, such as h100:8x4")
    machine = cluster_of(cluster, reserve)
    if len(machine.used_kinds) > 1:
        problem = f"has {len(machine.used_kinds)} kinds of devices"
        raise InputError(COMMAND_LINE, "--cluster", problem, "give one of equal devices: the runtimes take them for equal")
    named = None if model is None else str(model)
    half = "float16" if machine.training_dtype == "float16" else "bfloat16"
    user = UserSettings(
        variables or {}, recompute, named, frozenset(ignored), None if dtype is None else parse_dtype(dtype), half
    )
    if (file is None) == (line is None):
        problem = "is missing" if file is None else "is given with --command"
        raise InputError(COMMAND_LINE, "file", problem, "give a file, or a command line by --command")
    path = None if file is None or str(file) == "-" else Path(file)
    if path is None:
        where = COMMAND_LINE if line is not None else "standard input"
        found = read_text(_standard_input() if line is None else line, where, user)
    else:
        found = read(path, runtime, user)
    configuration = with_options(found, batch, micro_batch)
    the_model = model_of(configuration, named, sequence, dtype, machine)
    if not compiles(the_model):
        raise InputError(
            COMMAND_LINE, "--model", f"is a {the_model.family}", "give one whose plans become programs, such as llama"
        )
    configuration = with_positions(with_kernels(configuration, loss, attention, named), named, the_model)
    options = {"model": named, "batch": batch, "micro_batch": micro_batch, "sequence": sequence, "dtype": dtype}
    configuration = with_given(configuration, options | {"recompute": recompute, "memory": memory, "reserve": reserve})
    request = Request(the_model, machine, None, memory_of(memory, reserve))
    configuration = with_recipe(with_model(configuration, the_model), request)
    walked, judged = predicted_as_known(plan_of(configuration, the_model, request), request)
    made, framework = as_run(walked, machine)
    if (group := configuration.recomputed.group) > 1 and isinstance(framework, str):
        fix = f"give 1: groups are counted in the runtime's prediction alone, which there is none of, since {framework}"
        raise configuration.error("group", f"is {group}, of layers that are recomputed together", fix)
    measured, why = _measured(configuration, made)
    configuration = replace(configuration, notes=(*configuration.notes, *why))
    if not search:
        run = JudgedRun(configuration, made, judged, framework, None, None, (), measured, machine.whose_numbers)
        return replace(run, performance=performance(made, judged, machine))
    choices = _search_space(configuration, made) | {
        "memory": memory,
        "gap": gap,
        "time_limit": time_limit,
        "progress": progress,
    }
    best = _best(made, machine, choices)
    best = best if best.interrupted else certify(best, CHECK_SECONDS, progress)
    within = None
    runs = RUNTIMES.get(configuration.runtime)
    if runs is not None and runs.lacks(the_model) is None and configuration.recipe in (None, *runs.recipes):
        within = _best(made, machine, {name: value for name, value in choices.items() if name != "host"}, configuration.runtime)
        if within.plan is not None:
            within = replace(within, plan=as_run(within.plan.changed(runs_by=_by_layers(made.runs_by)), machine)[0])
    changed = changes(configuration, made, request, judged.step_ns)
    run = JudgedRun(configuration, made, judged, framework, best, within, changed, measured, machine.whose_numbers)
    return replace(
        run,
        objective_ns=_objective_ns(made, best),
        checked_ns=_checked_ns(best),
        performance=performance(made, judged, machine),
        others=changes_without_gain(configuration, made, request),
    )


def _objective_ns(made: Plan, best: PlanningResult) -> int | None:
    """A plan's step by the step model of a search; None where it is none of the plans that were searched."""
    if (refinement := best.problem.refinement) is None:
        return None
    for instance in [instance for instance, _ in best.answer.tried] or [best.instance]:
        solution = refinement.solution_of_plan(instance, made.in_model_dtype())
        if solution is not None:
            return int(best.problem.evaluate(instance, solution).objective)
    return None


def _checked_ns(best: PlanningResult) -> int | None:
    """The bound of a search as evidence shows it, where that is of all that was searched."""
    claim = None if best.plan is None else best.plan.claim
    return None if claim is None or claim.evidence is None or best.evidence_of else claim.evidence.bound_ns


def _standard_input() -> str:
    """What stands on standard input, in whatever coding."""
    stream = getattr(sys.stdin, "buffer", None)
    return sys.stdin.read() if stream is None else text_of_bytes(stream.read())


def compare_log(source: Plan | Source, log: FilePath) -> LoggedRun:
    """A log of a run, as Megatron-LM, torchtitan or DeepSpeed prints it, alongside what its plan predicts.

    Args:
        source: the plan that ran, its file, or a dict.
        log: the file.

    Returns:
        The median step after the first ones, and peaks of memory, measured and predicted.

    Raises:
        InputError: for a log without steps, or of another batch than the plan's.
    """
    where = str(source) if isinstance(source, str | Path) else "plan"
    return compared_with_log(load_plan(source), read_log(Path(log)), where)


def _measured(configuration: RunConfiguration, made: Plan) -> tuple[LoggedRun | None, tuple[str, ...]]:
    """What a run measured, alongside its prediction, where its log has lines of steps; and why they are not compared, if so."""
    log, samples = configuration.log, made.batch.global_samples
    if log is None:
        return None, ()
    if log.batch not in (None, samples):
        return None, (f"the log's last steps have {log.batch} samples of {samples}: their times are not compared",)
    return compared_with_log(made, log, configuration.where), ()


def _search_space(configuration: RunConfiguration, made: Plan) -> dict[str, Any]:
    """The search space that has the plan in it: the default one, and what else the plan makes use of; with context parallelism
    under the cost model that has it."""
    strategies = made.strategies()
    choices: dict[str, Any] = {
        "schedule": "all" if made.depth > 1 else None,
        "chunks": max(2, made.chunks) if made.chunks > 1 else None,
    }
    choices["hybrid"] = any(s.degree("dp") > 1 and s.degree("sdp") > 1 for s in strategies) or None
    choices["modules"] = any(s.modules for s in strategies) or None
    choices["host"] = ",".join(configuration.host) or None
    choices["optimizer"] = configuration.optimizer
    if configuration.cp == 1:
        return choices
    degrees = sorted({1, 2, 4, 8, configuration.cp})
    return choices | {"cp": ",".join(map(str, degrees)), "cp_exchange": "any"}


def _by_layers(by: RunBy | None) -> RunBy | None:
    """The runtime as it runs plans that are exported to it, where each layer is recomputed by itself."""
    return None if by is None else by.changed(group=1)


def _best(made: Plan, machine: Cluster, choices: dict[str, Any], runtime: str | None = None) -> PlanningResult:
    """The joint optimum for a plan's model, devices and batch, begun from the plan where it is one of the space's."""
    given: dict[str, Any] = {"model": made.planned_model(), "cluster": machine, "batch": made.batch.global_samples}
    given |= {**choices, **priced_as(made)}
    try:
        return plan(like=DEFAULT, beside=False, for_=runtime, incumbents=(made.in_model_dtype(),), **given)
    except InputError as error:
        if error.command_field != "--incumbents":
            raise
    return plan(like=DEFAULT, beside=False, for_=runtime, **given)
