"""Runs of other runtimes judged from their launch files, configurations and logs: how good is what runs now?"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainplan.api.plan_verbs import plan
from trainplan.execution.launch_files.logs.steps import LoggedRun, compared_with_log, log_of, ran_out, read_log
from trainplan.execution.launch_files.logs.text import last_run, text_of_bytes, text_of_log
from trainplan.execution.launch_files.run_configuration import RunConfiguration, UserSettings, with_given
from trainplan.formulations.plan.plan import Plan, RunBy, load_plan
from trainplan.formulations.plan.request import Request
from trainplan.formulations.runtimes import RUNTIMES, title
from trainplan.imported_runs.assess import JudgedRun, changes, changes_without_gain, neighbour_runs, priced_as
from trainplan.imported_runs.run_model import model_of, with_model, with_positions
from trainplan.imported_runs.to_plan import (
    plan_of,
    read,
    read_text,
    with_kernels,
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
from trainplan.profiling.models.model import Model
from trainplan.solvers.core.limits import GAP, TIME_LIMIT_S
from trainplan.validation.plans import as_run
from trainplan.validation.predict import Prediction

__all__ = ["compare_log", "import_run"]
CHECK_SECONDS = 5.0  # for making evidence of the lower bound


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
    log: FilePath | None = None,
    variables: Mapping[str, str] | None = None,
    ignored: Collection[str] = (),
    search: bool = True,
    gap: float = GAP,
    time_limit: float | None = TIME_LIMIT_S,
    progress: Callable[[Any], None] | None = None,
) -> JudgedRun:
    """How good is what a file has a runtime run? It becomes a plan, with its prediction; alongside it the best plan within the
    runtime and its bound, by the same prediction as `plan --for` has them, and what to change first.

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
        dtype: the dtype of the model, such as "bf16".
        memory: the memory of one device to judge the run by, such as "74GiB", or bytes (default: the device's, less its
            reserve).
        reserve: the part of a device's memory that stays free, in place of the cluster's own reserve.
        recompute: full or none, which DeepSpeed and Accelerate leave to the model's code.
        loss: full, chunked or fused: whether all logits are held at once (default: full).

            All logits are those of one micro-batch; a fused loss never holds them at once.
        attention: eager or flash: whether scores are kept (default: the model's, else the tool's).

            The model's default is the one in its configuration; a tool's default depends on the devices.
        runtime: the runtime whose file it is, such as megatron; `import-run --help` lists all (default: recognised by the
            file).
        log: the log of the run that the file starts, for its measured step and memory, which are put next to the prediction
            (default: those of the file itself, if that is a log).
        variables: values by name: for a script, of its environment's variables, and of its positional parameters by number; for
            YAML, JSON and TOML, of keys, in place of the file's.
        ignored: keys of the file that trainplan does not know and that change nothing of the run.
        search: also search for the lower bound, for the best plans, and for single changes that gain.
        gap: relative gap at which a search may stop.
        time_limit: seconds of the searches together; None for no limit. There is one search, or two for a runtime that is not
            predicted: within it, and for any runtime. Reading, predictions and the check of the bound come on top.
        progress: called with a text that names the part of the work that begins, and with a `Point` (seconds, objective, bound,
            in ns) for each better plan or bound.

    Returns:
        The run's plan, its prediction, and the better plans and changes that were found, with `frame()`.

    Raises:
        InputError: naming file and key, for what cannot be read or predicted.
    """
    machine, named = _machine(cluster, reserve), None if model is None else str(model)
    half = "float16" if machine.training_dtype == "float16" else "bfloat16"
    user = UserSettings(
        variables or {}, recompute, named, frozenset(ignored), None if dtype is None else parse_dtype(dtype), half
    )
    configuration = with_options(_with_log(_configuration(file, line, runtime, user), log), batch, micro_batch)
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
    run_plan, framework = as_run(walked, machine)
    if (group := configuration.recomputed.group) > 1 and isinstance(framework, str):
        fix = f"give 1: groups are counted in the runtime's prediction alone, which there is none of, since {framework}"
        raise configuration.error("group", f"is {group}, of layers that are recomputed together", fix)
    measured, why = _measured(configuration, run_plan)
    configuration = replace(configuration, notes=(*configuration.notes, *why))
    if not search:
        run = JudgedRun(configuration, run_plan, judged, framework, None, None, (), measured, machine.whose_numbers)
        return replace(run, performance=performance(run_plan, judged, machine))
    limits = {"memory": memory, "gap": gap, "time_limit": time_limit, "progress": progress}
    choices = _search_space(configuration, run_plan) | limits
    by_prediction = isinstance(framework, Prediction)
    begun, half_limit = time.monotonic(), None if time_limit is None else time_limit / 2
    first = choices if by_prediction else choices | {"time_limit": half_limit}
    best = within = _best_within_runtime(configuration, the_model, run_plan, machine, first, by_prediction)
    if best is None or not by_prediction:
        left = None if time_limit is None else max(time_limit / 2, time_limit - (time.monotonic() - begun))
        best = _best(run_plan, machine, choices | priced_as(run_plan) | {"time_limit": left})
    if not best.interrupted:
        certified = certify(best, CHECK_SECONDS, progress)
        best, within = certified, certified if within is best else within
    runs = neighbour_runs(configuration.runtime, run_plan, request)
    changed = changes(configuration, run_plan, request, judged.step_ns, runs)
    run = JudgedRun(configuration, run_plan, judged, framework, best, within, changed, measured, machine.whose_numbers)
    return replace(
        run,
        objective_ns=None if best is within else _objective_ns(run_plan, best),
        checked_ns=_checked_ns(best),
        performance=performance(run_plan, judged, machine),
        others=changes_without_gain(run_plan, request, runs),
        as_set=_as_set(within, run_plan, machine),
    )


def _machine(cluster: FilePath | Cluster | None, reserve: str | int | None) -> Cluster:
    """The cluster that a run is on, from a name, a file or a Cluster.

    reserve: memory that stays free on every device; None for the cluster's own. Raises InputError if no cluster is given, or if
    it has devices of several kinds.
    """
    if cluster is None:
        raise InputError(COMMAND_LINE, "--cluster", "is missing", "give the devices that the run is on, such as h100:8x4")
    machine = cluster_of(cluster, reserve)
    if len(machine.used_kinds) > 1:
        problem = f"has {len(machine.used_kinds)} kinds of devices"
        raise InputError(COMMAND_LINE, "--cluster", problem, "give one of equal devices: the runtimes take them for equal")
    return machine


def _configuration(file: FilePath | None, line: str | None, runtime: str | None, user: UserSettings) -> RunConfiguration:
    """The configuration of a run, read from a file, from standard input (the file "-"), or from a command line that starts
    training.

    Args:
        file: the file; None if a command line is given.
        line: the command line; None if a file is given.
        runtime: the runtime whose file it is; None to recognise it by the file's content.
        user: the values that the user sets in place of the file's, such as variables of a script.

    Raises:
        InputError: unless exactly one of file and line is given, and for a file that cannot be read.
    """
    if (file is None) == (line is None):
        problem = "is missing" if file is None else "is given with --command"
        raise InputError(COMMAND_LINE, "file", problem, "give a file, or a command line by --command")
    if line is not None:
        return read_text(line, COMMAND_LINE, user)
    assert file is not None
    return read_text(_standard_input(), "standard input", user) if str(file) == "-" else read(Path(file), runtime, user)


def _with_log(configuration: RunConfiguration, log: FilePath | None) -> RunConfiguration:
    """The configuration of a run with the measurements of the last run in a log; unchanged if there is no log.

    configuration: as read from what starts the run. log: the log's file. Raises InputError if the configuration is itself of a
    log, if the log is of another runtime, and if it has neither a training step nor the message that memory ran out.
    """
    if log is None:
        return configuration
    if configuration.log is not None or configuration.ran_out is not None:
        problem = f"is {log}, and {configuration.where} is the log of a run itself"
        raise InputError(COMMAND_LINE, "--log", problem, "leave it out, or give what starts the run in place of that log")
    text = text_of_log(Path(log))
    run = text[last_run(text).begin :]
    ended = ran_out(run)
    found = read_log(Path(log)) if ended is None else log_of(run)
    if found is not None and (found.runtime == "torchtitan") != (configuration.runtime == "torchtitan"):
        problem = f"is {log}, which {title(found.runtime)} wrote, and {configuration.where} is of {configuration.runtime}"
        raise InputError(COMMAND_LINE, "--log", problem, "give the log of the run that the file starts")
    return replace(configuration, log=found, ran_out=ended)


def _best_within_runtime(
    configuration: RunConfiguration,
    model: Model,
    run_plan: Plan,
    machine: Cluster,
    choices: dict[str, Any],
    by_prediction: bool,
) -> PlanningResult | None:
    """The best plan that a run's own runtime can run for the run's model, devices and batch, as `plan --for` finds it.

    Args:
        configuration: the run's configuration, which names its runtime.
        model: the run's model.
        run_plan: the run's plan.
        machine: the cluster that it runs on.
        choices: keywords of `plan`; `host` is left out, since the runtime decides which states it keeps on the host.
        by_prediction: whether to search by the runtime's prediction; else by the costs of trainplan's own programs.

    Returns:
        The search's answer; None if trainplan does not plan for the runtime, or if the runtime does not support the model or
            the run's precision.
    """
    runtime = RUNTIMES.get(configuration.runtime)
    if runtime is None or runtime.lacks(model) is not None or configuration.recipe not in (None, *runtime.recipes):
        return None
    given = {name: value for name, value in choices.items() if name != "host"} | priced_as(run_plan)
    if by_prediction:
        given.pop("cost_model", None)
    return _best(run_plan, machine, given, configuration.runtime)


def _as_set(within: PlanningResult | None, run_plan: Plan, machine: Cluster) -> Plan | None:
    """The plan of a search within a runtime as the runtime runs it with the settings of a run, such as its flags of overlap, in
    place of those of an export; None if there is no such plan, or no prediction of it.

    within: the search's answer. run_plan: the run's plan. machine: the cluster that it runs on.
    """
    if within is None or within.plan is None:
        return None
    plan, predicted = as_run(within.plan.changed(runs_by=_by_layers(run_plan.runs_by)), machine)
    return None if isinstance(predicted, str) else plan


def _objective_ns(run_plan: Plan, best: PlanningResult) -> int | None:
    """The step of a run's plan in ns, by the step model that a search minimised.

    run_plan: the run's plan. best: the search's answer. Returns None if the plan is not in the space that was searched.
    """
    if (refinement := best.problem.refinement) is None:
        return None
    for instance in [instance for instance, _ in best.answer.tried] or [best.instance]:
        solution = refinement.solution_of_plan(instance, run_plan.in_model_dtype())
        if solution is not None:
            return int(best.problem.evaluate(instance, solution).objective)
    return None


def _checked_ns(best: PlanningResult) -> int | None:
    """The lower bound of the step in ns that the evidence in a search's plan proves; None if there is no plan or no evidence,
    or if the evidence covers only a part of the search space."""
    claim = None if best.plan is None else best.plan.claim
    return None if claim is None or claim.evidence is None or best.evidence_of else claim.evidence.bound_ns


def _standard_input() -> str:
    """The whole text of standard input, decoded whatever its encoding is."""
    stream = getattr(sys.stdin, "buffer", None)
    return sys.stdin.read() if stream is None else text_of_bytes(stream.read())


def compare_log(source: Plan | Source, log: FilePath) -> LoggedRun:
    """The measurements in a log of a run, as Megatron-LM, torchtitan or DeepSpeed prints it, next to its plan's prediction.

    Args:
        source: the plan that ran, its file, or a dict.
        log: the log's file.

    Returns:
        The median step after the first ones in seconds, and peaks of memory in bytes, each measured and predicted.

    Raises:
        InputError: for a log without steps, or with another batch than the plan's.
    """
    where = str(source) if isinstance(source, str | Path) else "plan"
    return compared_with_log(load_plan(source), read_log(Path(log)), where)


def _measured(configuration: RunConfiguration, run_plan: Plan) -> tuple[LoggedRun | None, tuple[str, ...]]:
    """The measurements of a run compared with the prediction of its plan, and notes on why they are not compared.

    Returns (comparison, notes). If the configuration was not read from a log with steps, they are None and empty; if the log's
    steps have another batch than the plan, they are None and one note.
    """
    log, samples = configuration.log, run_plan.batch.global_samples
    if log is None:
        return None, ()
    if log.batch not in (None, samples):
        return None, (f"the log's last steps have {log.batch} samples of {samples}: their times are not compared",)
    return compared_with_log(run_plan, log, configuration.where), ()


def _search_space(configuration: RunConfiguration, run_plan: Plan) -> dict[str, Any]:
    """Keywords of `plan` that make its search space contain a run's plan: the default space, extended by what the run uses,
    such as interleaved stages, states on the host or context parallelism. configuration: the run's configuration. run_plan: the
    plan made of it. A keyword that is not needed has the value None."""
    strategies = run_plan.strategies()
    choices: dict[str, Any] = {
        "schedule": "all" if run_plan.depth > 1 else None,
        "chunks": max(2, run_plan.chunks) if run_plan.chunks > 1 else None,
    }
    choices["hybrid"] = any(strategy.degree("dp") > 1 and strategy.degree("sdp") > 1 for strategy in strategies) or None
    choices["modules"] = any(strategy.modules for strategy in strategies) or None
    choices["host"] = ",".join(configuration.host) or None
    choices["optimizer"] = configuration.optimizer
    if configuration.cp == 1:
        return choices
    degrees = sorted({1, 2, 4, 8, configuration.cp})
    return choices | {"cp": ",".join(map(str, degrees)), "cp_exchange": "any"}


def _by_layers(by: RunBy | None) -> RunBy | None:
    """How a plan's runtime runs the plan, with every layer recomputed separately (not in groups of layers), as in plans that
    are exported to the runtime. None stays None."""
    return None if by is None else by.changed(group=1)


def _best(run_plan: Plan, machine: Cluster, choices: dict[str, Any], runtime: str | None = None) -> PlanningResult:
    """The optimum of the joint problem for the model, devices and batch of a run's plan. The search begins from that plan, if
    the search space contains it.

    Args:
        run_plan: the run's plan.
        machine: the cluster that it runs on.
        choices: further keywords of `plan`.
        runtime: the runtime that must be able to run the optimum; None for no such limit.

    Raises:
        InputError: for a request that cannot be planned.
    """
    given: dict[str, Any] = {"model": run_plan.planned_model(), "cluster": machine, "batch": run_plan.batch.global_samples}
    given |= choices
    try:
        return plan(like=DEFAULT, comparisons=False, for_=runtime, incumbents=(run_plan.in_model_dtype(),), **given)
    except InputError as error:
        if error.command_field != "--incumbents":
            raise
    return plan(like=DEFAULT, comparisons=False, for_=runtime, **given)
