"""Presets: each a problem, the parameters that it fixes, and how its instances are searched; and, apart from them, the planners
that `throughput` compares.

`plan --like NAME` plans as one of them. A problem's name will do as well: it is then planned with nothing fixed. Where none is
named, `plan` plans as DEFAULT, or, where that does not take what is asked for, as OTHERWISE, and devices of several kinds as
MIXED.
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
    """A planner by name.

    verb: the command that plans so, beside `plan --like`. about: what it decides, in a sentence. fixed: parameters of the
    problem that are not up to the user. searcher: what solves the instances of a request, as `package.module:function`;
    search_options: parameters of the problem that it takes, too. only_compiled: it plans models whose plans become programs, no
    others: its plans fit by their programs alone.
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
        """The problem that is solved."""
        return problem(self.problem_name)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """What is up to the user."""
        return tuple(parameter for parameter in self.problem.parameters if parameter.name not in self.fixed)

    def check(self, request: Request) -> None:
        """Raises InputError for a model that the preset does not plan."""
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
    """What is up to the user where no preset is named: of DEFAULT, and what OTHERWISE has beside."""
    first, other = PRESETS[DEFAULT].parameters, PRESETS[OTHERWISE].parameters
    names = {parameter.name for parameter in first}
    return (*first, *(parameter for parameter in other if parameter.name not in names))


def choices_of(chosen: Preset, choices: Mapping[str, Any], instead: str | None) -> dict[str, Any]:
    """What is asked of DEFAULT or OTHERWISE where no preset is named, without what only the other one has and is left at its
    default. instead: why it is not DEFAULT. Raises InputError for what is not left so."""
    names, kept = {parameter.name for parameter in chosen.parameters}, dict(choices)
    for parameter in default_parameters():
        if parameter.name in names or parameter.name not in kept:
            continue
        if (value := kept.pop(parameter.name)) != parameter.default:
            fix = f"leave it out: this is planned like {chosen.name}, since {instead}"
            raise InputError("command line", parameter.flag, f"is {shown(value)}", fix)
    return kept


def refused_by_default(choices: Mapping[str, Any]) -> str | None:
    """Why DEFAULT does not take what is asked for, though OTHERWISE may; None where it does."""
    first, other = PRESETS[DEFAULT], PRESETS[OTHERWISE]
    names = {parameter.name for parameter in first.parameters}
    for parameter in other.parameters:
        asked = choices.get(parameter.name)
        if parameter.name not in names and asked not in (None, parameter.default):
            return f"{parameter.flag} is no option of {first.name}"
    return None


def check_method(chosen: Preset, method: str) -> None:
    """Raises InputError for a method that does not solve the problem of a preset that the user did not name: a method never
    changes the problem."""
    own = ["exact", *(each.name for each in methods(chosen.problem_name))]
    if named(method, own) is not None:
        return
    owners = [each.name for each in PRESETS.values() if named(method, [entry.name for entry in methods(each.problem_name)])]
    if owners:
        problem = f"is {method!r}, which does not solve the problem that is planned here ({chosen.name})"
        ways = [f"--like {name} --method {method}" for name in owners]
        raise InputError("command line", "--method", problem, f"give {' or '.join(ways)}, or one of {', '.join(own)}")


def preset(name: str) -> Preset:
    """A preset by its name, its verb, or the name of a problem. Raises InputError."""
    names = [*PRESETS, *(each.verb for each in PRESETS.values() if each.verb), *problem_names()]
    chosen = named(name, names)
    for each in PRESETS.values():
        if chosen is not None and chosen in (each.name, each.verb):
            return each
    if chosen in problem_names():
        return Preset(chosen, chosen, f"The problem {chosen}.")
    raise InputError("command line", "--like", f"is {name!r}", one_of(name, names))


@dataclass(frozen=True)
class Published:
    """What `compare-planners` holds against the joint optimum: a preset and a method. label: the paper's name for it."""

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
    """One of the planners that `throughput` compares: a space of the pipeline problem, a schedule, and a method.

    label: the paper's name for it.
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
    """A planner by name; `optimum` is the exact one, of that space and schedule. Raises InputError."""
    if name == OPTIMUM:
        return Planner(f"{OPTIMUM}-{space}", f"optimum of {space}", space, schedule, "exact")
    chosen = named(name, PLANNERS)
    if chosen not in PLANNERS:
        raise InputError("command line", "--planner", f"is {name!r}", one_of(name, [*PLANNERS, OPTIMUM]))
    return PLANNERS[chosen]
