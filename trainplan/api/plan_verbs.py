"""Planning: the best plan for a request, plans by presets, on the fewest devices, and whether anything fits at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from functools import partial
from typing import Any, ClassVar

from trainplan.api.keywords import with_fields
from trainplan.api.requests import CHOICES, PlanKeywords, PlanRequest, SearchOptions, keywords_of
from trainplan.formulations.joint.options import GRADIENTS
from trainplan.formulations.joint.within_runtime import FOR, with_gradients
from trainplan.formulations.plan.request import Request
from trainplan.formulations.problem import constraints_of
from trainplan.inputs import check_spelling, request_of
from trainplan.planning.certify import certify
from trainplan.planning.compare_planners import ALIKE
from trainplan.planning.constraint_costs import priced
from trainplan.planning.every_runtime import by_runtime
from trainplan.planning.fewest_devices import Sizes, sized
from trainplan.planning.fit import Fit, fitted
from trainplan.planning.planner import planned
from trainplan.planning.presets import (
    DEFAULT,
    MIXED,
    OTHERWISE,
    PRESETS,
    Preset,
    check_method,
    choices_of,
    preset,
    refused_by_default,
)
from trainplan.planning.result import PlanningResult
from trainplan.planning.result_rows import row_rank
from trainplan.planning.what_if import what_if
from trainplan.profiling.base.arguments import check_arguments
from trainplan.profiling.base.errors import COMMAND_LINE, InputError
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.solvers.core.clock import Clock
from trainplan.solvers.core.method_registry import method as method_named
from trainplan.tabular import Tabular
from trainplan.validation.own_runs import calibrated_cluster

__all__ = [
    "PlanRequest",
    "SearchOptions",
    "by_runtime",
    "certify",
    "fit",
    "partition",
    "place",
    "plan",
    "plan_sizes",
    "plans",
    "switch",
    "what_if",
]
REQUEST, SEARCH = PlanRequest(), SearchOptions()  # defaults of parameters
SUBJECT = ("model", "cluster", "batch", "memory", "reserve", "sequence", "dtype", "profile", "measure")
# The parameters of `plan` for any problem, from which advice on misspelt names is drawn.
COMMON = ("request", "search", "like", "calibrated", *SUBJECT, *(field.name for field in fields(SearchOptions)))


@with_fields(PlanKeywords, CHOICES)
def plan(request: PlanRequest = REQUEST, *, search: SearchOptions = SEARCH, **method_options: Any) -> PlanningResult:
    """The best plan for a request, with its prediction and the solver's objective and proof.

    If no preset is named (`like`), the joint problem is solved; a request that it does not support is planned by the preset
    galvatron-bmw, or on devices of several kinds by amp, and the answer's `instead` says why. The best plan with one strategy
    for all sub-layers is in `uniform`, the cost of each constraint in `prices`; tokens/s, MFU, bubble and memory are in
    `performance`.

    Of the request's choices, the joint problem takes constraints, whose costs are in `prices` (pipeline, micro_batches,
    schedule, zero, tp, dp, sdp, forbid, one_strategy, tp_in_node, cuts, recompute_first, for_), and choices that widen its
    search space or change what is computed (sliced, chunks, by_unit, hybrid, sequence_parallel, modules, host, gradients,
    optimizer, cost_model, layouts, cp, cp_exchange, precision, memory_tables). The preset galvatron-bmw takes pipeline,
    micro_batches, schedule, space, by_unit and takeaway3; `place`, `partition` and `switch` state the choices of amp, autopipe
    and h3t.

    Args:
        request: what to plan for, as one object. Its fields are keywords, too; one given alongside it replaces its field.
        search: how to search, as one object. Its fields are keywords, too; one given alongside it replaces its field.
        **method_options: options of the solution method, by name, which `methods` lists.

    Returns:
        The answer; its `plan` is None if nothing fits, or nothing was found, and its `result` says why.

    Raises:
        InputError: for what cannot be planned, naming the argument and a value that would work.
    """
    method, options = search.method, {**(search.options or {}), **method_options}
    subject, choices = _subject(request, search.measuring), _choices(request) | options
    chosen, preset_request, fixed, instead = _chosen(request.like, method, subject, choices)
    names = ("gap", "seed", "cold", "solver_memory")
    limits = {name: getattr(search, name) for name in names}
    limits |= {name: value for name, value in fixed.items() if name not in {parameter.name for parameter in chosen.parameters}}
    if search.jobs is not None:
        limits |= _processes(chosen, method, search.jobs)
    clock = Clock()
    began = clock()
    starts: dict[str, Any] = {
        "compare_single_strategy": search.comparisons,
        "incumbents": search.incumbents,
        "backend": search.backend,
    }
    starts |= {"time_limit": search.time_limit, "progress": search.progress}
    best = replace(planned(preset_request, chosen, method, **starts, **limits), instead=instead)
    if not search.comparisons or preset_request.measured or not (constraints := _constraints(chosen, request, fixed)):
        return best  # without its constraints, a measured request would need measurements of other shapes
    took = clock() - began
    relaxed = {name: (text, partial(_without, name, chosen, method, subject, fixed)) for name, text in constraints.items()}
    left = None if search.time_limit is None else search.time_limit - took
    return priced(best, relaxed, method, took, left, progress=search.progress, **limits)


def _subject(request: PlanRequest, measuring: Callable[[dict[str, Any]], None] | None = None) -> dict[str, Any]:
    """The model, cluster, batch and so on of a request (its fields in SUBJECT), as keywords of `inputs.request_of`.

    measuring: called with progress reports (dicts) while the model is measured; None for no reports.
    """
    subject = {name: getattr(request, name) for name in SUBJECT} | {"measuring": measuring}
    if request.calibrated is not None:
        if request.cluster is None:
            raise InputError(COMMAND_LINE, "--cluster", "is missing, with --calibrated", "give it, such as h100:8x4")
        subject["cluster"] = calibrated_cluster(request.cluster, request.calibrated)
    return subject


def _choices(request: PlanRequest) -> dict[str, Any]:
    """The choices that a request fixes or widens, by name, such as {"tp": 2}: its fields in CHOICES that are not None."""
    return {name: value for name in CHOICES if (value := getattr(request, name)) is not None}


def _chosen(
    like: str | None, method: str, subject: Mapping[str, Any], choices: Mapping[str, Any]
) -> tuple[Preset, Request, dict[str, Any], str | None]:
    """The preset that plans a request, and the request with the values that the preset gives it.

    Args:
        like: the preset's name; None if the user named none.
        method: the solution method's name.
        subject: what the request is for (model, cluster, batch and so on), as keywords of `inputs.request_of`.
        choices: the choices that the user fixed or widened, by name.

    Returns:
        The preset; the request; the choices that the preset has; and the reason why another preset than the default one was
            taken, or None if the user named the preset or it is the default one.

    Raises:
        InputError: for choices that the preset does not have, or bad values.
    """
    choices = {name: value for name, value in choices.items() if value is not None}
    instead = refused_by_default(choices) if like is None else None
    chosen = preset(like or (OTHERWISE if instead else DEFAULT))
    if like is None:
        check_method(chosen, method)
        choices = choices_of(chosen, choices, instead)
    preset_request = _request(chosen, method, subject, choices)
    if like is None and instead is None and (instead := _unsupported(chosen, preset_request)) is not None:
        mixed = preset_request.cluster is not None and len(preset_request.cluster.used_kinds) > 1
        chosen = preset(MIXED if mixed else OTHERWISE)
        check_method(chosen, method)
        choices = choices_of(chosen, choices, instead)
        preset_request = _request(chosen, method, subject, choices)
    return chosen, preset_request, choices, instead


def _unsupported(chosen: Preset, request: Request) -> str | None:
    """A text that says why the optimization problem of a preset does not support a request; None if it supports all of it."""
    scope = chosen.problem.scope
    return None if scope is None else scope.unsupported_reason(request)


def _processes(chosen: Preset, method: str, jobs: int) -> dict[str, int]:
    """The option, as a keyword, that makes a solution method search in several processes: {"jobs": jobs}.

    chosen: the preset, for whose problem the method is. method: its name. Raises InputError if the method has no such option,
    or allows fewer processes.
    """
    options = {option.name: option for option in method_named(chosen.problem_name, method).options}
    if "jobs" not in options:
        problem, fix = f"is {jobs}, and {chosen.name} with --method {method} searches in one process", "leave it out"
        raise InputError("command line", "--jobs", problem, fix)
    most = options["jobs"].most
    if not 1 <= jobs <= (most or jobs):
        raise InputError("command line", "--jobs", f"is {jobs}", f"give 1 to {most}, or leave it out for 1")
    return {"jobs": jobs}


def _constraints(chosen: Preset, request: PlanRequest, choices: Mapping[str, Any]) -> dict[str, str]:
    """The constraints that a request sets on its plans, by argument, as the command's options state them: {"tp": "--tp 2"}.

    chosen: the preset, whose problem knows which choices are constraints. choices: the request's choices by name.
    """
    texts = constraints_of(chosen.problem, choices)
    if chosen.problem.constraints and request.reserve is not None:
        texts["reserve"] = f"--reserve {request.reserve}"
    return texts


def _without(name: str, chosen: Preset, method: str, subject: Mapping[str, Any], choices: Mapping[str, Any]) -> Request:
    """A request without one of its constraints, to plan again and learn what the constraint costs.

    Args:
        name: the constraint's argument, which is left out, or gets the value that excludes nothing. If it is the runtime
            (for_), gradients keep the dtype that they have in the runtime, so that both plans compute alike.
        chosen: the preset that plans.
        method: the solution method's name.
        subject: what the request is for (model, cluster, batch and so on), as keywords of `inputs.request_of`.
        choices: the request's choices, by name.

    Raises:
        InputError: for a bad value of the remaining arguments.
    """
    kept = [{key: value for key, value in values.items() if key != name} for values in (subject, choices)]
    if name == FOR.name:
        kept[1][GRADIENTS.name] = with_gradients(_request(chosen, method, subject, choices)).precision.gradients
    if name in chosen.problem.widest:
        kept[1][name] = chosen.problem.widest[name]
    return _request(chosen, method, *kept)


def _request(chosen: Preset, method: str, subject: Mapping[str, Any], choices: Mapping[str, Any]) -> Request:
    """A request with a value for every parameter of a preset's problem.

    Args:
        chosen: the preset.
        method: the solution method, whose options may be among the choices and are left out here.
        subject: what the request is for (model, cluster, batch and so on), as keywords of `inputs.request_of`.
        choices: the values that the user fixed or widened, by name; other parameters get their defaults.

    Raises:
        InputError: for a bad value, or a name that looks misspelt.
    """
    names = {parameter.name for parameter in chosen.parameters}
    check_spelling(choices, [*COMMON, *names], method_options(chosen, method), chosen.name)
    fixed = {name: value for name, value in choices.items() if name in names}
    return request_of(chosen.parameters, chosen.name, fixed=chosen.fixed, **subject, **fixed)


def method_options(chosen: Preset, method: str) -> list[str]:
    """The names of the options that a solution method has, for the problem that a preset solves. method: the method's name."""
    return [option.name for option in method_named(chosen.problem_name, method).options]


@dataclass(frozen=True)
class FitKeywords(PlanRequest):
    """The parameters of `fit`: a request, or its fields as keywords. Never instantiated; it states `fit`'s signature."""

    request: PlanRequest | None = None
    _: KW_ONLY
    progress: Callable[[Any], None] | None = None


@with_fields(FitKeywords, CHOICES)
def fit(request: PlanRequest = REQUEST, *, progress: Callable[[Any], None] | None = None, **method_options: Any) -> Fit:
    """Whether a model fits on a cluster, and the least memory of a GPU that a plan needs, without a search for speed.

    Args:
        request: what to plan for, as one object; its fields are keywords, too. Without a batch, it is one sample for each
            device. Nothing is measured. With `for_`, the memory is predicted as that runtime holds it.
        progress: called with a text that names the part of the work that begins, and with a `Point` (seconds, objective, bound,
            in ns) for each better plan or bound.
        **method_options: options of a solution method, as `plan` has them; they change nothing here.

    Returns:
        The answer. `fits` is True if a plan is known that fits, False if it is proven that none does, else None; `peak_bytes`
            is the peak of the plan of the least memory, `leanest`; no plan's programs need less than `bound_bytes`. If nothing
            fits, `answer` says what would do.

    Raises:
        InputError: for what cannot be planned, naming the argument and a value that would work.
    """
    subject, choices = _subject(replace(request, measure=False)), _choices(request) | method_options
    chosen, preset_request, _, instead = _chosen(request.like, "exact", subject, choices)
    found = fitted(
        preset_request if request.batch is not None else replace(preset_request, batch=preset_request.origin.devices),
        chosen,
        progress,
    )
    return replace(found, answer=replace(found.answer, instead=instead))


@dataclass(frozen=True)
class SizesKeywords(PlanKeywords):
    """The parameters of `plan_sizes`: those of `plan`, and `devices`. Never instantiated; it states its signature."""

    _: KW_ONLY
    devices: str = "any"


@with_fields(SizesKeywords, CHOICES)
def plan_sizes(
    request: PlanRequest = REQUEST, *, search: SearchOptions = SEARCH, devices: str = "any", **method_options: Any
) -> Sizes:
    """The plan on the fewest devices of a kind on which something fits, and, made quickly, on twice and four times as many.

    Tried are parts of a node in powers of two, then whole nodes, each proven too small before the next one.

    Args:
        request: what to plan for, as one object; its fields are keywords, too. The cluster is a kind of device such as "h100",
            or nodes of it such as "h100:8" (8 in a node); the number of nodes is ignored. `profile` and `measure` are refused.
        search: how to search, as one object; its fields are keywords, too.
        devices: "any", or a range such as "16-512".
        **method_options: options of the solution method, by name, which `methods` lists.

    Returns:
        The plan on the fewest devices and the plans on more devices, with the numbers of devices that were proven too small.

    Raises:
        InputError: for what cannot be planned, or a bad range of devices, naming the argument and a value that would work.
    """
    if request.profile is not None or request.measure:
        problem = "needs numbers of any number of devices, and a profile is of those that it was made for"
        raise InputError("command line", "--devices", problem, "leave out --profile and --measure")
    if request.cluster is None:
        raise InputError("command line", "--cluster", "is missing", "give a kind of GPU, such as h100")
    choices = {**_choices(request), **(search.options or {}), **method_options}

    def request_on(cluster: Cluster) -> tuple[Request, Preset]:
        chosen, preset_request, _, _ = _chosen(
            request.like, search.method, _subject(replace(request, cluster=cluster)), choices
        )
        return preset_request, chosen

    def plan_on(cluster: Cluster) -> PlanningResult:
        return plan(replace(request, cluster=cluster), search=search, **method_options)

    return sized(request_on, plan_on, request.cluster, devices, progress=search.progress)


@with_fields(PlanKeywords, CHOICES)
def place(request: PlanRequest = REQUEST, *, search: SearchOptions = SEARCH, **method_options: Any) -> PlanningResult:
    """`plan` on a cluster of mixed devices: degrees, placement, micro-batches and layers of stages (AMP).

    Args:
        request: what to plan for, as one object; its fields are keywords, too. The choices that can be fixed are uneven_shares,
            recompute, tied, ignore_memory and by_unit.
        search: how to search, as one object; its fields are keywords, too.
        **method_options: options of the solution method, by name, which `methods` lists.

    Returns:
        The answer, with the plan, its prediction, the solver's objective and its proof; `plan` is None if nothing was found.

    Raises:
        InputError: for what cannot be planned, naming the argument and a value that would work.
    """
    return plan(replace(request, like="place"), search=search, **method_options)


@with_fields(PlanKeywords, CHOICES)
def partition(request: PlanRequest = REQUEST, *, search: SearchOptions = SEARCH, **method_options: Any) -> PlanningResult:
    """`plan` of a pipeline cut at any sub-layer, its first micro-batches sliced (AutoPipe).

    Args:
        request: what to plan for, as one object; its fields are keywords, too. The choices that can be fixed are pipeline,
            micro_batches, dp, tp, recompute, ignore_memory, by_unit, sliced and objective.
        search: how to search, as one object; its fields are keywords, too.
        **method_options: options of the solution method, by name, which `methods` lists.

    Returns:
        The answer, with the plan, its prediction, the solver's objective and its proof; `plan` is None if nothing was found.

    Raises:
        InputError: for what cannot be planned, naming the argument and a value that would work.
    """
    return plan(replace(request, like="partition"), search=search, **method_options)


@with_fields(PlanKeywords, CHOICES)
def switch(request: PlanRequest = REQUEST, *, search: SearchOptions = SEARCH, **method_options: Any) -> PlanningResult:
    """`plan` of memory switches for every sub-layer, states on the host (H3T).

    Args:
        request: what to plan for, as one object; its fields are keywords, too. This preset has no choices that can be fixed.
        search: how to search, as one object; its fields are keywords, too.
        **method_options: options of the solution method, by name, which `methods` lists.

    Returns:
        The answer, with the plan, its prediction, the solver's objective and its proof; `plan` is None if nothing was found.

    Raises:
        InputError: for what cannot be planned, naming the argument and a value that would work.
    """
    return plan(replace(request, like="switch"), search=search, **method_options)


class Plans(Tabular, list[PlanningResult | InputError]):
    """The answers of several presets to one request, the shortest step first; last, the errors of presets that do not support
    the request."""

    headings: ClassVar = {
        "like": "preset",
        "status": "status",
        "step_ns": "step",
        "peak_bytes": "peak memory",
        "stages": "stages",
        "micro_batches": "micro-batches",
        "strategy": "strategy",
        "gap": "gap",
    }

    def rows(self) -> list[dict[str, Any]]:
        """A dict for each preset: its name, its status, and the numbers of its plan and prediction by field, such as `step_ns`.

        For a preset that does not support the request, `status` has the error, `like` is "-", and other fields are None."""
        return [
            answer.as_row()
            if isinstance(answer, PlanningResult)
            else dict.fromkeys(self.headings) | {"like": "-", "status": str(answer)}
            for answer in self
        ]


def plans(
    like: Sequence[str] | None = None,
    request: PlanRequest | None = None,
    *,
    search: SearchOptions | None = None,
    **keywords: Any,
) -> Plans:
    """The plans of several presets for one request, the shortest step first, all with overlap.

    Args:
        like: the names of the presets that plan (default: all).
        request: what to plan for, as one object; None for the keywords alone.
        search: how to search, as one object; its fields are keywords, too.
        **keywords: fields of the request and of the search, which replace those of the objects, and options of the method.

    Returns:
        A list of answers, with `frame()`. For a preset that does not support the request, the list has an InputError that
            names the preset, after all answers.

    Raises:
        InputError: for an argument of a wrong type.
    """
    keywords = keywords_of(request, search) | keywords
    check_arguments(plan, keywords)
    answers: list[PlanningResult | InputError] = []
    for name in like or PRESETS:
        try:
            chosen = {parameter.name for parameter in preset(name).parameters}
            alike = {choice: value for choice, value in ALIKE.items() if choice in chosen}
            answer = plan(**{**alike, **keywords, "like": name})
            answers.append(answer)
        except InputError as error:
            answers.append(InputError(error.where, error.command_field, f"{error.problem} (for {name})", error.fix))
            continue
        if answer.interrupted:
            break

    def rank(answer: PlanningResult | InputError) -> tuple[bool, int]:
        row = None if isinstance(answer, InputError) else answer.row
        return (True, 1) if row is None else row_rank(row)

    return Plans(sorted(answers, key=rank))
