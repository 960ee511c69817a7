"""Which methods there are for which problem. A new method is one new module and one line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from trainplan.profiling.base.errors import InputError
from trainplan.solvers.core.search import Method


@dataclass(frozen=True)
class Option:
    """A method's own parameter: one of `choices`, the default first, or a whole number of at least 1 where there are none."""

    name: str
    choices: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}={'|'.join(self.choices)}" if self.choices else self.name


@dataclass(frozen=True)
class Entry:
    """A method by name. `proves`: it can prove optimality. Its module is imported when it is first used."""

    name: str
    target: str
    proves: bool
    about: str
    options: tuple[Option, ...] = ()

    def method(self) -> Method:
        return _attribute(self.target)


@dataclass(frozen=True)
class Problem:
    """A problem by name: the module with its instance, `evaluate` and `violations`, and who explains that nothing fits."""

    name: str
    module: str
    explain: str
    exact: str
    methods: tuple[Entry, ...]

    def definition(self) -> Any:
        return import_module(self.module)

    def explainer(self) -> Callable[[Any], Any]:
        return _attribute(self.explain)

    def entry(self, name: str) -> Entry:
        wanted = self.exact if name == "exact" else name
        for entry in self.methods:
            if entry.name == wanted:
                return entry
        known = ", ".join(["exact", *(entry.name for entry in self.methods)])
        raise InputError("command line", "--method", f"is {name!r}", f"give one of: {known}")


def _attribute(target: str) -> Any:
    module, name = target.split(":")
    return getattr(import_module(module), name)


GALVATRON_OPTIONS = (
    Option("micro_batches", ("rule", "all")),
    Option("stage_time", ("micro-batch", "iteration")),
    Option("granularity_bytes"),
)

PLANNER_OPTIONS = (
    Option("layer_times", ("device", "average")),
    Option("assignment", ("exact", "amp-dp", "uniform-layers", "uniform-parameters")),
    Option("top"),
)

# Every problem is stated as both.
MODELS = (
    Entry("milp", "trainplan.solvers.adapters.highs:milp", True, "Pyomo MILP on HiGHS"),
    Entry("cpsat", "trainplan.solvers.adapters.cpsat:cpsat", True, "OR-Tools CP-SAT", (Option("workers"),)),
)

PROBLEMS = {
    problem.name: problem
    for problem in (
        Problem(
            "layer-strategies",
            "trainplan.formulations.layer_strategies.problem",
            "trainplan.solvers.chain.least_memory:explain",
            exact="label-setting",
            methods=(
                Entry(
                    "label-setting",
                    "trainplan.solvers.chain.label_setting:label_setting",
                    True,
                    "exact DP with dominance and bounds",
                ),
                *MODELS,
                Entry(
                    "galvatron-dp",
                    "trainplan.solvers.chain.galvatron_dp:galvatron_dp",
                    False,
                    "the paper's Algorithm 3 on a memory grid",
                    (Option("granularity_bytes"),),
                ),
                Entry(
                    "brute-force", "trainplan.solvers.core.brute_force:brute_force", True, "every choice, for tiny instances"
                ),
            ),
        ),
        Problem(
            "pipeline",
            "trainplan.formulations.pipeline.problem",
            "trainplan.solvers.pipeline.memory:explain",
            exact="branch-and-bound",
            methods=(
                Entry(
                    "branch-and-bound",
                    "trainplan.solvers.pipeline.exact:pipeline_exact",
                    True,
                    "bounds on all spans of layers, exact stages by label-setting",
                    (Option("cutoff_ns"),),
                ),
                *MODELS,
                Entry(
                    "galvatron-bmw",
                    "trainplan.solvers.pipeline.galvatron_bmw:galvatron_bmw",
                    False,
                    "the paper's Algorithm 2, with Algorithm 3 in each stage",
                    GALVATRON_OPTIONS,
                ),
                Entry(
                    "galvatron-base",
                    "trainplan.solvers.pipeline.galvatron_bmw:galvatron_base",
                    False,
                    "the paper's Algorithm 1, with Algorithm 3 in each stage",
                    (Option("partition", ("layers", "parameters", "memory", "time")), *GALVATRON_OPTIONS),
                ),
                Entry(
                    "published",
                    "trainplan.solvers.pipeline.published:published_search",
                    False,
                    "the search of Galvatron's published engine, for instances of its cost model `code`",
                ),
                Entry("brute-force", "trainplan.solvers.core.brute_force:brute_force", True, "every plan, for tiny instances"),
            ),
        ),
        Problem(
            "stage-assignment",
            "trainplan.formulations.stage_assignment.problem",
            "trainplan.solvers.assignment.memory:explain",
            exact="sweep",
            methods=(
                Entry(
                    "sweep",
                    "trainplan.solvers.assignment.sweep:sweep",
                    True,
                    "shortest paths under falling caps on the largest stage",
                ),
                *MODELS,
                Entry(
                    "amp-dp",
                    "trainplan.solvers.assignment.amp_dp:amp_dp",
                    False,
                    "the paper's table of Eq. 6-8, blind to memory",
                ),
                Entry(
                    "uniform-layers",
                    "trainplan.solvers.assignment.even_stages:uniform_layers",
                    False,
                    "even numbers of layers, Megatron's default",
                ),
                Entry(
                    "uniform-parameters",
                    "trainplan.solvers.assignment.even_stages:uniform_parameters",
                    False,
                    "the least largest number of parameters, DeepSpeed's",
                ),
                Entry("brute-force", "trainplan.solvers.core.brute_force:brute_force", True, "all cuts, for tiny instances"),
            ),
        ),
        Problem(
            "pipeline-partition",
            "trainplan.formulations.pipeline_partition.problem",
            "trainplan.solvers.assignment.memory:explain",
            exact="branch-and-bound",
            methods=(
                Entry(
                    "branch-and-bound",
                    "trainplan.solvers.partition.exact:partition_exact",
                    True,
                    "bounds from micro-batches followed through one stage, the rest simulated",
                ),
                *MODELS,
                Entry(
                    "autopipe",
                    "trainplan.solvers.partition.autopipe:autopipe",
                    False,
                    "AutoPipe's master-stage heuristic",
                    (Option("reading", ("paper", "published")),),
                ),
                Entry(
                    "algorithm-1",
                    "trainplan.solvers.partition.autopipe:algorithm_1",
                    False,
                    "the least largest stage, AutoPipe's start",
                ),
                Entry("megatron", "trainplan.solvers.partition.planners:megatron", False, "even numbers of Transformer layers"),
                Entry(
                    "piper", "trainplan.solvers.partition.planners:piper", False, "the least time per sample, between layers"
                ),
                Entry(
                    "dapple",
                    "trainplan.solvers.partition.planners:dapple",
                    False,
                    "DAPPLE's pivot-stage latency, between layers",
                ),
                Entry("brute-force", "trainplan.solvers.core.brute_force:brute_force", True, "all cuts, for tiny instances"),
            ),
        ),
        Problem(
            "memory-switches",
            "trainplan.formulations.memory_switches.problem",
            "trainplan.solvers.switches.exact:explain",
            exact="label-setting",
            methods=(
                Entry(
                    "label-setting",
                    "trainplan.solvers.switches.exact:switches_exact",
                    True,
                    "exact DP with dominance and bounds; whole-step local search and bound where synchronisation is free",
                ),
                *MODELS,
                Entry(
                    "h3t-dp",
                    "trainplan.solvers.switches.h3t_dp:h3t_dp",
                    False,
                    "the paper's DP on a memory grid, Algorithm 4 or 3",
                    (Option("version", ("pruned", "basic")), Option("levels")),
                ),
                Entry("h3t-greedy", "trainplan.solvers.switches.h3t:greedy", False, "the paper's Algorithm 2"),
                Entry(
                    "random",
                    "trainplan.solvers.switches.h3t:random_switches",
                    False,
                    "the paper's Algorithm 1: the best of many, or the last that fits, as published",
                    (Option("samples"), Option("answer", ("best", "last"))),
                ),
                Entry("manual", "trainplan.solvers.switches.h3t:manual", False, "the best combination for all layers alike"),
                Entry("zero-2", "trainplan.solvers.switches.h3t:zero_2", False, "ZeRO-2 with host optimizer and recomputation"),
                Entry("zero-3", "trainplan.solvers.switches.h3t:zero_3", False, "ZeRO-3 with host optimizer and recomputation"),
                Entry(
                    "brute-force", "trainplan.solvers.core.brute_force:brute_force", True, "every choice, for tiny instances"
                ),
            ),
        ),
        Problem(
            "cluster-strategy",
            "trainplan.formulations.cluster_strategy.problem",
            "trainplan.solvers.cluster.memory:explain",
            exact="branch-and-bound",
            methods=(
                Entry(
                    "branch-and-bound",
                    "trainplan.solvers.cluster.exact:cluster_exact",
                    True,
                    "bounds from one pipeline followed through the cluster, CP-SAT for what they leave",
                    (Option("workers"),),
                ),
                *MODELS,
                Entry("amp", "trainplan.solvers.cluster.amp:amp", False, "AMP's Algorithm 1", PLANNER_OPTIONS),
                Entry(
                    "megatron",
                    "trainplan.solvers.cluster.baselines:megatron",
                    False,
                    "the smallest tmp x pp for each micro-batch size, uniform stages",
                    (Option("assignment", ("uniform-layers", "uniform-parameters")), Option("top")),
                ),
                Entry(
                    "simulated-annealing",
                    "trainplan.solvers.cluster.annealing:simulated_annealing",
                    False,
                    "AMP's Algorithm 2, placements by domino tilings",
                    (Option("iterations"), Option("top")),
                ),
                Entry(
                    "random",
                    "trainplan.solvers.cluster.baselines:random_strategies",
                    False,
                    "degrees, placements and cuts at random",
                    (Option("iterations"),),
                ),
                Entry(
                    "brute-force", "trainplan.solvers.core.brute_force:brute_force", True, "every strategy, for tiny instances"
                ),
            ),
        ),
    )
}


def problem(name: str) -> Problem:
    """A problem by name. Raises InputError."""
    if name not in PROBLEMS:
        raise InputError("command line", "problem", f"is {name!r}", f"give one of: {', '.join(PROBLEMS)}")
    return PROBLEMS[name]
