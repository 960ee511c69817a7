"""Presets, which name a problem, the parameters that they fix and the search of its instances; and the planners that
`throughput` compares.

`plan --like NAME` plans as the preset NAME. A problem's name will do as well: nothing is fixed then. Where no preset is named,
`plan` plans as DEFAULT, or as OTHERWISE where DEFAULT does not support the request, and as MIXED on devices of several kinds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainplan.execution.executable_models import EXECUTED_FAMILIES
from trainplan.formulations.parameters import Parameter
from trainplan.formulations.plan.request import Request
from trainplan.formulations.problem import Problem, problem, problem_names
from trainplan.formulations.schedule.orders import PassOrder
from trainplan.inputs import compiles
from trainplan.profiling.base.errors import InputError, named, one_of, shown
from trainplan.solvers.core.method_registry import methods


@dataclass(frozen=True)
class Preset:
    """A planner that users choose by name: a planning problem and how it is searched.

    Attributes:
        name: the preset's name, as the option `--like` takes it.
        problem_name: the name of the planning problem that it solves.
        about: a sentence that says what it decides.
        verb: the command that plans in the same manner, an alternative to `plan --like`; None if there is none.
        fixed: values of the problem's parameters that the user cannot choose.
        searcher: the function that solves the instances of a request, as `package.module:function`.
        search_options: the problem's parameters that this function takes as arguments, too.
        only_compiled: whether it plans only models whose plans can be compiled to programs (instructions of every rank),
            since without programs it cannot check whether plans fit into memory.
    """

    name: str
    problem_name: str
    about: str
    verb: str | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict)
    searcher: str = "trainplan.solvers.core.answer:best_answer"
    search_options: tuple[str, ...] = ()
    only_compiled: bool = False

    @property
    def problem(self) -> Problem:
        """The planning problem that the preset solves."""
        return problem(self.problem_name)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The problem's parameters that the user can choose: all but those that the preset fixes."""
        return tuple(parameter for parameter in self.problem.parameters if parameter.name not in self.fixed)

    def check(self, request: Request) -> None:
        """Raise InputError if a request's model is one for which no programs can be compiled and the preset plans only models
        with programs.
        """
        model = request.described_model
        if self.only_compiled and model and not compiles(model):
            fix = f"give a model of {', '.join(EXECUTED_FAMILIES)}; `build {self.problem_name}` and `solve` take any"
            problem = f"is {model.name!r} ({model.family}), whose plans do not become programs yet"
            raise InputError("command line", "--model", problem, fix)


PRESETS = {
    preset.name: preset
    for preset in (
        Preset(
            "joint",
            "joint",
            "Find the fastest plan that fits: micro-batches, stages cut at any sub-layer, and every sub-layer's strategy.",
            verb="plan",
        ),
        Preset(
            "galvatron-bmw",
            "pipeline",
            "Stages, micro-batches and every layer's strategy together, on equal devices (Galvatron-BMW).",
            fixed={"cost_model": "executed"},
        ),
        Preset(
            "amp",
            "cluster-strategy",
            "Degrees, placement, micro-batches and layers of stages on a cluster of mixed devices (AMP).",
            verb="place",
        ),
        Preset(
            "autopipe",
            "pipeline-partition",
            "Pipeline stages cut at any sub-layer, the first micro-batches sliced (AutoPipe).",
            verb="partition",
            searcher="trainplan.solvers.partition.depths:search",
            search_options=("sliced", "objective"),
        ),
        Preset(
            "h3t",
            "memory-switches",
            "What every sub-layer recomputes, offloads, partitions and prefetches, states on the host (H3T).",
            verb="switch",
            fixed={"paper_combinations": False, "by_unit": True},
            only_compiled=True,
        ),
    )
}
DEFAULT, OTHERWISE, MIXED = list(PRESETS)[:3]


def default_parameters() -> tuple[Parameter, ...]:
    """The parameters that users can set without naming a preset: all of the default preset (joint), and those that only the
    preset galvatron-bmw has, which plans if joint cannot."""
    first, other = PRESETS[DEFAULT].parameters, PRESETS[OTHERWISE].parameters
    names = {parameter.name for parameter in first}
    return (*first, *(parameter for parameter in other if parameter.name not in names))


def choices_of(chosen: Preset, choices: Mapping[str, Any], instead: str | None) -> dict[str, Any]:
    """The user's choices that the chosen preset has, for requests that name no preset; choices that it does not have are
    dropped if they have their default value.

    Args:
        chosen: the preset that plans the request, DEFAULT (joint) or OTHERWISE (galvatron-bmw).
        choices: the user's values by name of parameter, of both presets.
        instead: why the preset is not DEFAULT; None if it is.

    Raises:
        InputError: for a parameter that the preset does not have and whose value is not its default.
    """
    names, kept = {parameter.name for parameter in chosen.parameters}, dict(choices)
    for parameter in default_parameters():
        if parameter.name in names or parameter.name not in kept:
            continue
        if (value := kept.pop(parameter.name)) != parameter.default:
            fix = f"leave it out: this is planned like {chosen.name}, since {instead}"
            raise InputError("command line", parameter.flag, f"is {shown(value)}", fix)
    return kept


def refused_by_default(choices: Mapping[str, Any]) -> str | None:
    """The reason why the default preset (joint) cannot plan with the user's choices although the preset galvatron-bmw may: the
    flag of an option that only galvatron-bmw has. None if joint can. choices: values by parameter name.
    """
    first, other = PRESETS[DEFAULT], PRESETS[OTHERWISE]
    names = {parameter.name for parameter in first.parameters}
    for parameter in other.parameters:
        value = choices.get(parameter.name)
        if parameter.name not in names and value not in (None, parameter.default):
            return f"{parameter.flag} is no option of {first.name}"
    return None


def check_method(chosen: Preset, method: str) -> None:
    """Raise InputError if a solving method does not solve the problem of the preset `chosen`, for requests that name no
    preset: naming a method never changes which problem is solved.
    """
    own = ["exact", *(known.name for known in methods(chosen.problem_name))]
    if named(method, own) is not None:
        return
    owners = [other.name for other in PRESETS.values() if named(method, [known.name for known in methods(other.problem_name)])]
    if owners:
        problem = f"is {method!r}, which does not solve the problem that is planned here ({chosen.name})"
        choices = [f"--like {name} --method {method}" for name in owners]
        raise InputError("command line", "--method", problem, f"give {' or '.join(choices)}, or one of {', '.join(own)}")


def preset(name: str) -> Preset:
    """The preset with a given name, verb, or name of its problem. Raises InputError for any other name."""
    names = [*PRESETS, *(entry.verb for entry in PRESETS.values() if entry.verb), *problem_names()]
    chosen = named(name, names)
    for entry in PRESETS.values():
        if chosen is not None and chosen in (entry.name, entry.verb):
            return entry
    if chosen in problem_names():
        return Preset(chosen, chosen, f"The problem {chosen}.")
    raise InputError("command line", "--like", f"is {name!r}", one_of(name, names))


@dataclass(frozen=True)
class Published:
    """A planner from a paper that `compare-planners` compares with the joint optimum. preset: the preset that plans as the
    paper does. method: the solving method. label: the planner's name in its paper.
    """

    label: str
    preset: str
    method: str


PAPERS = (
    Published("joint optimum", DEFAULT, "exact"),
    Published("Galvatron-BMW", "galvatron-bmw", "galvatron-bmw"),
    Published("AMP", "amp", "amp"),
    Published("AutoPipe", "autopipe", "autopipe"),
    Published("H3T", "h3t", "h3t-dp"),
)


@dataclass(frozen=True)
class Planner:
    """A planner that the command `throughput` compares.

    Attributes:
        name: the planner's name, as the option `--planner` takes it.
        label: its name in the paper.
        space: the search space of the problem `pipeline` in which it plans.
        schedule: the order of forward and backward passes.
        method: the method that solves its instances.
        options: pairs of name and value of the method's options.
    """

    name: str
    label: str
    space: str
    schedule: PassOrder
    method: str
    options: tuple[tuple[str, Any], ...] = ()


PLANNERS = {
    planner.name: planner
    for planner in (
        Planner("ddp", "PyTorch DDP (DP)", "dp", "1f1b", "galvatron-base"),
        Planner("megatron", "Megatron (TP)", "tp", "1f1b", "galvatron-base"),
        Planner("gpipe", "PyTorch GPipe (PP)", "pp", "gpipe", "galvatron-base"),
        Planner("fsdp", "FSDP/ZeRO-3 (SDP)", "sdp", "1f1b", "galvatron-base"),
        Planner("deepspeed-3d", "DeepSpeed 3D", "3d", "gpipe", "galvatron-base"),
        Planner("galvatron-dp-tp", "Galvatron (DP+TP)", "dp+tp", "gpipe", "galvatron-base"),
        Planner("galvatron-dp-pp", "Galvatron (DP+PP)", "dp+pp", "gpipe", "galvatron-base"),
        Planner("galvatron", "Galvatron", "no-ckpt", "gpipe", "galvatron-base"),
        Planner("galvatron-base", "Galvatron-Base", "full", "gpipe", "galvatron-base"),
        Planner("galvatron-1f1b-bi-obj", "Galvatron (1F1B+Bi-obj)", "no-ckpt", "1f1b", "galvatron-bmw"),
        Planner("galvatron-bmw", "Galvatron-BMW", "full", "1f1b", "galvatron-bmw"),
    )
}
OPTIMUM = "optimum"


def planner(name: str, space: str = "full", schedule: PassOrder = "1f1b") -> Planner:
    """The planner that `throughput` compares under a name; "optimum" is the exact method in the given search space and
    schedule. Raises InputError for an unknown name."""
    if name == OPTIMUM:
        return Planner(f"{OPTIMUM}-{space}", f"optimum of {space}", space, schedule, "exact")
    chosen = named(name, PLANNERS)
    if chosen not in PLANNERS:
        raise InputError("command line", "--planner", f"is {name!r}", one_of(name, [*PLANNERS, OPTIMUM]))
    return PLANNERS[chosen]
