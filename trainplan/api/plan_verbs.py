"""Plans made for a request: the best one, those of single presets, and whether anything fits."""

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
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.solvers.core.clock import Clock
from trainplan.solvers.core.method_registry import method as method_named
from trainplan.tabular import Tabular

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
REQUEST, SEARCH = PlanRequest(), SearchOptions()  # where a caller says nothing
SUBJECT = ("model", "cluster", "batch", "memory", "reserve", "sequence", "dtype", "profile", "measure")
# Parameters of `plan` whatever the problem, for hints at names that are misspelt.
COMMON = ("request", "search", "like", *SUBJECT, *(field.name for field in fields(SearchOptions)))


@with_fields(PlanKeywords, CHOICES)
def plan(request: PlanRequest = REQUEST, *, search: SearchOptions = SEARCH, **method_options: Any) -> PlanningResult:
    """The best plan for a request, with its prediction and the solver's objective and proof.

    Where no preset is named, the joint problem is solved; what that does not take is planned as galvatron-bmw, on devices of
    several kinds as amp, and `instead` of the answer says why. The best plan with one strategy for all sub-layers is in
    `uniform`, what constraints cost in `prices`; tokens/s, MFU, bubble and memory are in `performance`.

    Of the request's choices, joint takes constraints, whose costs are in `prices` (pipeline, micro_batches, schedule, zero, tp,
    dp, sdp, forbid, one_strategy, tp_in_node, cuts, recompute_first, for_), and what else there is to choose from (sliced,
    chunks, by_unit, hybrid, sequence_parallel, modules, host, gradients, optimizer, cost_model, cp, cp_exchange, precision,
    memory_tables); galvatron-bmw takes pipeline, micro_batches, schedule, space, by_unit, takeaway3; for amp, autopipe and h3t
    see `place`, `partition` and `switch`.

    Args:
        request: what to plan for, as one object. Its fields are keywords, too; one given alongside it replaces its field.
        search: how to search, likewise.
        **method_options: options of the method, by name.

    Returns:
        The answer; its `plan` is None where nothing fits, or nothing was found, and its `result` says why.

    Raises:
        InputError: for what cannot be planned, naming the argument and a value that would work.
    """
    method, options = search.method, {**(search.options or {}), **method_options}
    subject, choices = _subject(request, search.measuring), _choices(request) | options
    chosen, made, fixed, instead = _chosen(request.like, method, subject, choices)
    names = ("gap", "seed", "cold", "solver_memory")
    limits = {name: getattr(search, name) for name in names}
    limits |= {name: value for name, value in fixed.items() if name not in {parameter.name for parameter in chosen.parameters}}
    if search.jobs is not None:
        limits |= _processes(chosen, method, search.jobs)
    clock = Clock()
    began = clock()
    starts: dict[str, Any] = {"beside": search.beside, "incumbents": search.incumbents, "backend": search.backend}
    starts |= {"time_limit": search.time_limit, "progress": search.progress}
    best = replace(planned(made, chosen, method, **starts, **limits), instead=instead)
    if not search.beside or made.measured or not (constraints := _constraints(chosen, request, fixed)):
        return best  # without what was fixed, other shapes would have to be measured
    took = clock() - began
    relaxed = {name: (text, partial(_without, name, chosen, method, subject, fixed)) for name, text in constraints.items()}
    left = None if search.time_limit is None else search.time_limit - took
    return priced(best, relaxed, method, took, left, progress=search.progress, **limits)


def _subject(request: PlanRequest, measuring: Callable[[dict[str, Any]], None] | None = None) -> dict[str, Any]:
    """Model, cluster, batch and so on of a request, as arguments of `request_of`.

    measuring: called with the reports of measuring.
    """
    return {name: getattr(request, name) for name in SUBJECT} | {"measuring": measuring}


def _choices(request: PlanRequest) -> dict[str, Any]:
    """The choices that a request fixes or widens, by name."""
    return {name: value for name in CHOICES if (value := getattr(request, name)) is not None}


def _chosen(
    like: str | None, method: str, subject: Mapping[str, Any], choices: Mapping[str, Any]
) -> tuple[Preset, Request, dict[str, Any], str | None]:
    """The preset that plans a request, what it plans, the choices that it takes, and, where no preset was named, why it is not
    the default one. Raises InputError."""
    choices = {name: value for name, value in choices.items() if value is not None}
    instead = refused_by_default(choices) if like is None else None
    chosen = preset(like or (OTHERWISE if instead else DEFAULT))
    if like is None:
        check_method(chosen, method)
        choices = choices_of(chosen, choices, instead)
    made = _request(chosen, method, subject, choices)
    if like is None and instead is None and (instead := _unsupported(chosen, made)) is not None:
        mixed = made.cluster is not None and len(made.cluster.used_kinds) > 1
        chosen = preset(MIXED if mixed else OTHERWISE)
        check_method(chosen, method)
        choices = choices_of(chosen, choices, instead)
        made = _request(chosen, method, subject, choices)
    return chosen, made, choices, instead


def _unsupported(chosen: Preset, made: Request) -> str | None:
    """Why the instances of a preset leave something out of a request, in words; None where they leave out nothing."""
    scope = chosen.problem.scope
    return None if scope is None else scope.unsupported_reason(made)


def _processes(chosen: Preset, method: str, jobs: int) -> dict[str, int]:
    """The option of a method for a number of processes. Raises InputError where it has none, or not so many."""
    options = {option.name: option for option in method_named(chosen.problem_name, method).options}
    if "jobs" not in options:
        problem, fix = f"is {jobs}, and {chosen.name} with --method {method} searches in one process", "leave it out"
        raise InputError("command line", "--jobs", problem, fix)
    most = options["jobs"].most
    if not 1 <= jobs <= (most or jobs):
        raise InputError("command line", "--jobs", f"is {jobs}", f"give 1 to {most}, or leave it out for 1")
    return {"jobs": jobs}


def _constraints(chosen: Preset, request: PlanRequest, choices: Mapping[str, Any]) -> dict[str, str]:
    """The constraints that a request sets, by argument, as the command's options say them."""
    texts = constraints_of(chosen.problem, choices)
    if chosen.problem.constraints and request.reserve is not None:
        texts["reserve"] = f"--reserve {request.reserve}"
    return texts


def _without(name: str, chosen: Preset, method: str, subject: Mapping[str, Any], choices: Mapping[str, Any]) -> Request:
    """The request of a preset without one argument, or with the value of it that leaves nothing out. Raises InputError.

    Without its runtime, gradients keep the dtype that they have in it: what is computed stays the same.
    """
    kept = [{key: value for key, value in values.items() if key != name} for values in (subject, choices)]
    if name == FOR.name:
        kept[1][GRADIENTS.name] = with_gradients(_request(chosen, method, subject, choices)).precision.gradients
    if name in chosen.problem.widest:
        kept[1][name] = chosen.problem.widest[name]
    return _request(chosen, method, *kept)


def _request(chosen: Preset, method: str, subject: Mapping[str, Any], choices: Mapping[str, Any]) -> Request:
    """The request as a preset plans it. Raises InputError."""
    names = {parameter.name for parameter in chosen.parameters}
    check_spelling(choices, [*COMMON, *names], method_options(chosen, method), chosen.name)
    fixed = {name: value for name, value in choices.items() if name in names}
    return request_of(chosen.parameters, chosen.name, fixed=chosen.fixed, **subject, **fixed)


def method_options(chosen: Preset, method: str) -> list[str]:
    """The names of the options of a method of the preset's problem."""
    return [option.name for option in method_named(chosen.problem_name, method).options]


@dataclass(frozen=True)
class FitKeywords(PlanRequest):
    """The parameters of `fit`. It is never made: it has `fit`'s signature."""

    request: PlanRequest | None = None
    _: KW_ONLY
    progress: Callable[[Any], None] | None = None


@with_fields(FitKeywords, CHOICES)
def fit(request: PlanRequest = REQUEST, *, progress: Callable[[Any], None] | None = None, **method_options: Any) -> Fit:
    """Whether a model fits on a cluster, and the least memory of a GPU that a plan needs, without a search for speed.

    Args:
        request: as of `plan`; without a batch, of one sample for each device; nothing is measured. With `for_`, memory is that
            of the runtime.
        progress: as of `plan`.
        **method_options: as of `plan`; they change nothing here.

    Returns:
        The answer. `fits` is True where a plan is known that fits, False where it is proven that none does; `peak_bytes` is the
            peak of the plan of the least memory, `leanest`; no plan's programs need less than `bound_bytes`. Where nothing
            fits, `answer` says what would do.

    Raises:
        InputError: as of `plan`.
    """
    subject, choices = _subject(replace(request, measure=False)), _choices(request) | method_options
    chosen, made, _, instead = _chosen(request.like, "exact", subject, choices)
    found = fitted(made if request.batch is not None else replace(made, batch=made.origin.devices), chosen, progress)
    return replace(found, answer=replace(found.answer, instead=instead))


@dataclass(frozen=True)
class SizesKeywords(PlanKeywords):
    """The parameters of `plan_sizes`. It is never made: it has the signature of `plan_sizes`."""

    _: KW_ONLY
    devices: str = "any"


@with_fields(SizesKeywords, CHOICES)
def plan_sizes(
    request: PlanRequest = REQUEST, *, search: SearchOptions = SEARCH, devices: str = "any", **method_options: Any
) -> Sizes:
    """The plan on the fewest devices of a kind on which something fits, and, made quickly, on twice and four times as many.

    Tried are parts of a node in powers of two, then whole nodes, each proven too small before the next one.

    Args:
        request: as of `plan`, on a cluster that is a kind such as "h100", or nodes of it such as "h100:8", of which only what a
            node is counts; without a profile, and not measured.
        search: as of `plan`.
        devices: "any", or a range such as "16-512".
        **method_options: as of `plan`.

    Returns:
        The answer.

    Raises:
        InputError: as of `plan`, and for a range of devices that is none.
    """
    if request.profile is not None or request.measure:
        problem = "needs numbers of any number of devices, and a profile is of those that it was made for"
        raise InputError("command line", "--devices", problem, "leave out --profile and --measure")
    if request.cluster is None:
        raise InputError("command line", "--cluster", "is missing", "give a kind of GPU, such as h100")
    choices = {**_choices(request), **(search.options or {}), **method_options}

    def request_on(cluster: Cluster) -> tuple[Request, Preset]:
        chosen, made, _, _ = _chosen(request.like, search.method, _subject(replace(request, cluster=cluster)), choices)
        return made, chosen

    def plan_on(cluster: Cluster) -> PlanningResult:
        return plan(replace(request, cluster=cluster), search=search, **method_options)

    return sized(request_on, plan_on, request.cluster, devices, progress=search.progress)


@with_fields(PlanKeywords, CHOICES)
def place(request: PlanRequest = REQUEST, *, search: SearchOptions = SEARCH, **method_options: Any) -> PlanningResult:
    """`plan` on a cluster of mixed devices: degrees, placement, micro-batches and layers of stages (AMP).

    Args:
        request: as of `plan`, whose choices here are uneven_shares, recompute, tied, ignore_memory and by_unit.
        search: as of `plan`.
        **method_options: as of `plan`.

    Returns:
        The answer.

    Raises:
        InputError: as of `plan`.
    """
    return plan(replace(request, like="place"), search=search, **method_options)


@with_fields(PlanKeywords, CHOICES)
def partition(request: PlanRequest = REQUEST, *, search: SearchOptions = SEARCH, **method_options: Any) -> PlanningResult:
    """`plan` of a pipeline cut at any sub-layer, its first micro-batches sliced (AutoPipe).

    Args:
        request: as of `plan`, whose choices here are pipeline, micro_batches, dp, tp, recompute, ignore_memory, by_unit,
            sliced and objective.
        search: as of `plan`.
        **method_options: as of `plan`.

    Returns:
        The answer.

    Raises:
        InputError: as of `plan`.
    """
    return plan(replace(request, like="partition"), search=search, **method_options)


@with_fields(PlanKeywords, CHOICES)
def switch(request: PlanRequest = REQUEST, *, search: SearchOptions = SEARCH, **method_options: Any) -> PlanningResult:
    """`plan` of memory switches for every sub-layer, states on the host (H3T).

    Args:
        request: as of `plan`, whose choice here is synchronisation.
        search: as of `plan`.
        **method_options: as of `plan`.

    Returns:
        The answer.

    Raises:
        InputError: as of `plan`.
    """
    return plan(replace(request, like="switch"), search=search, **method_options)


class Plans(Tabular, list[PlanningResult | InputError]):
    """Answers of several presets to one request, the shortest step first; the errors of those that it does not suit, last."""

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
        """A dict for each answer, as of `PlanningResult.frame`, with why there is none where there is none."""
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
        like: names of presets (default: all).
        request: as of `plan`.
        search: as of `plan`.
        **keywords: as of `plan`.

    Returns:
        A list of answers, with `frame()`; a preset that the request does not suit gives its InputError, with its name, last.

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
