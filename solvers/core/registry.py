"""Which methods there are for which problem. A new method is one new module and one line here, or an entry point.

Another package adds a method by an entry point of the group `trainplan.methods` that refers to an `Entry` with its problem.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from trainplan.formulations.problem import problem
from trainplan.profiling.base.errors import InputError, named, one_of
from trainplan.profiling.base.plugins import attribute, plugins
from trainplan.solvers.core.search import Method

GROUP = "trainplan.methods"
ENGINE = "trainplan.papers.galvatron_engine."


@dataclass(frozen=True)
class Option:
    """A method's own parameter: one of `choices`, the default first, or a whole number of at least 1 where there are none.

    most: the largest number; None where the method itself says which of them suit the instance.
    """

    name: str
    choices: tuple[str, ...] = ()
    most: int | None = 2**53

    def __str__(self) -> str:
        return f"{self.name}={'|'.join(self.choices)}" if self.choices else self.name


@dataclass(frozen=True)
class Entry:
    """A method by name. Its module is imported when it is first used.

    target: `package.module:function`, the function as of `search.Method`. proves: it can prove optimality. problem: of a
    plug-in's method, the problem that it is for. starts: it begins from the problem's first plan, where another method has that
    only when it is stopped. model: it states the problem to a solver, and begins from the plan of a fast method, unless it is
    to begin cold (see `incumbents`).
    """

    name: str
    target: str
    proves: bool
    about: str
    options: tuple[Option, ...] = ()
    problem: str | None = None
    starts: bool = False
    model: bool = False

    def method(self) -> Method:
        """The method itself."""
        method: Method = attribute(self.target)
        return method


def _entry(name: str, module: str, about: str, *options: Option, proves: bool = False) -> Entry:
    """A method of trainplan itself, whose function has its name, in a module of `solvers`."""
    return Entry(name, f"trainplan.solvers.{module}:{name.replace('-', '_')}", proves, about, options)


def _proving(name: str, module: str, about: str, *options: Option) -> Entry:
    return _entry(name, module, about, *options, proves=True)


GRANULARITY = Option("granularity_bytes", most=None)
GALVATRON_OPTIONS = (
    Option("micro_batches", ("rule", "all")),
    Option("stage_time", ("micro-batch", "iteration")),
    GRANULARITY,
)
TOP, ITERATIONS = Option("top"), Option("iterations")
PLANNER_OPTIONS = (
    Option("layer_times", ("device", "average")),
    Option("assignment", ("exact", "amp-dp", "uniform-layers", "uniform-parameters")),
    TOP,
)
TABLE_OPTIONS = Option("version", ("pruned", "basic")), Option("levels")
READING = Option("reading", ("paper", "published"))
PARTITIONS = Option("partition", ("layers", "parameters", "memory", "time"))
UNIFORM = Option("assignment", ("uniform-layers", "uniform-parameters"))
BOUNDED_SPANS = "bounds on all spans of layers, exact stages by label-setting"
BOUNDED_STAGES = "bounds from micro-batches followed through one stage, the rest simulated"
DECOMPOSED = "bounds on all spans, a master over suffixes of stages, exact stages and fronts where it uses them"
BOUNDED_CLUSTER = "bounds from one pipeline followed through the cluster, CP-SAT for what they leave"
BOUNDED_STEPS = "exact DP with dominance and bounds; whole-step local search and bound where synchronisation is free"
RANDOM = "the paper's Algorithm 1: the best of many, or the last that fits, as published"
ON_A_GRID = "Algorithm 3 on a memory grid, by default of 1000 steps or 10 a layer"
WITH_ALGORITHM_3 = "the paper's Algorithm {}, with Algorithm 3 in each stage"
SMALLEST = "the smallest tmp x pp for each micro-batch size, uniform stages"
OWN_TIME = "the least own time of every stage, by label-setting, over even partitions"

# Every problem of `formulations` is stated as both.
MODELS = (
    replace(_proving("milp", "adapters.highs", "Pyomo MILP on HiGHS"), model=True),
    replace(_proving("cpsat", "adapters.cpsat", "OR-Tools CP-SAT", Option("workers")), model=True),
)
# The protocol of problems has an enumeration, so every problem has this.
BRUTE_FORCE = _proving("brute-force", "core.brute_force", "every solution, for tiny instances")

# `exact` stands for the first method of a problem.
METHODS: dict[str, tuple[Entry, ...]] = {
    "layer-strategies": (
        _proving("label-setting", "chain.label_setting", "exact DP with dominance and bounds"),
        *MODELS,
        _entry("galvatron-dp", "chain.galvatron_dp", ON_A_GRID, GRANULARITY),
    ),
    "pipeline": (
        replace(_proving("branch-and-bound", "pipeline.exact", BOUNDED_SPANS, Option("cutoff_ns")), starts=True),
        *MODELS,
        _entry("galvatron-bmw", "pipeline.galvatron_bmw", WITH_ALGORITHM_3.format(2), *GALVATRON_OPTIONS),
        _entry("galvatron-base", "pipeline.galvatron_bmw", WITH_ALGORITHM_3.format(1), PARTITIONS, *GALVATRON_OPTIONS),
    ),
    "galvatron-engine": (
        Entry("even-stages", ENGINE + "optimum:published_optimum", True, OWN_TIME),
        Entry("published", ENGINE + "search:published_search", False, "the search of Galvatron's published engine"),
    ),
    "stage-assignment": (
        _proving("sweep", "assignment.sweep", "shortest paths under falling caps on the largest stage"),
        *MODELS,
        _entry("amp-dp", "assignment.amp_dp", "the paper's table of Eq. 6-8, blind to memory"),
        _entry("uniform-layers", "assignment.even_stages", "even numbers of layers, Megatron's default"),
        _entry("uniform-parameters", "assignment.even_stages", "the least largest number of parameters, DeepSpeed's"),
    ),
    "pipeline-partition": (
        replace(_proving("branch-and-bound", "partition.exact", BOUNDED_STAGES), starts=True),
        *MODELS,
        _entry("autopipe", "partition.autopipe", "AutoPipe's master-stage heuristic", READING),
        _entry("algorithm-1", "partition.autopipe", "the least largest stage, AutoPipe's start"),
        _entry("megatron", "partition.planners", "even numbers of Transformer layers"),
        _entry("piper", "partition.planners", "the least time per sample, between layers"),
        _entry("dapple", "partition.planners", "DAPPLE's pivot-stage latency, between layers"),
    ),
    "memory-switches": (
        _proving("label-setting", "switches.exact", BOUNDED_STEPS),
        *MODELS,
        _entry("h3t-dp", "switches.h3t_dp", "the paper's DP on a memory grid, Algorithm 4 or 3", *TABLE_OPTIONS),
        _entry("h3t-greedy", "switches.h3t", "the paper's Algorithm 2"),
        _entry("random", "switches.h3t", RANDOM, Option("samples"), Option("answer", ("best", "last"))),
        _entry("manual", "switches.h3t", "the best combination for all layers alike"),
        _entry("zero-2", "switches.h3t", "ZeRO-2 with host optimizer and recomputation"),
        _entry("zero-3", "switches.h3t", "ZeRO-3 with host optimizer and recomputation"),
    ),
    "joint": (
        replace(_proving("decomposition", "joint.exact", DECOMPOSED), starts=True),
        *MODELS,
    ),
    "cluster-strategy": (
        replace(_proving("branch-and-bound", "cluster.exact", BOUNDED_CLUSTER, Option("workers")), starts=True),
        *MODELS,
        _entry("amp", "cluster.amp", "AMP's Algorithm 1", *PLANNER_OPTIONS),
        _entry("megatron", "cluster.baselines", SMALLEST, UNIFORM, TOP),
        _entry("simulated-annealing", "cluster.annealing", "AMP's Algorithm 2, placements by domino tilings", ITERATIONS, TOP),
        _entry("random", "cluster.baselines", "degrees, placements and cuts at random", ITERATIONS),
    ),
}

# The room of each problem, whose module `quick` has what methods may begin or end with: a bound in whole nanoseconds with its
# source, `cheap_bound(instance)`, and a plan that fits, or None, `first_plan(instance)`.
ROOMS = {
    "layer-strategies": "chain",
    "pipeline": "pipeline",
    "stage-assignment": "assignment",
    "pipeline-partition": "partition",
    "memory-switches": "switches",
    "joint": "joint",
    "cluster-strategy": "cluster",
}
CHEAP_BOUNDS = {name: f"trainplan.solvers.{room}.quick:cheap_bound" for name, room in ROOMS.items()}
FIRST_PLANS = {name: f"trainplan.solvers.{room}.quick:first_plan" for name, room in ROOMS.items()}


@cache
def methods(problem_name: str) -> tuple[Entry, ...]:
    """The methods for a problem, those of plug-ins and brute force last; `exact` stands for the first. Raises InputError."""
    name = problem(problem_name).name
    entries = [point.load() for point in plugins(GROUP).values()]
    return (*METHODS.get(name, ()), *(entry for entry in entries if entry.problem == name), BRUTE_FORCE)


def method(problem_name: str, name: str) -> Entry:
    """A method for a problem by name, or `exact`. Raises InputError."""
    entries = methods(problem_name)
    names = ["exact", *(entry.name for entry in entries)]
    chosen = named(name, names)
    for entry in entries:
        if chosen in (entry.name, "exact"):
            return entry
    raise InputError("command line", "--method", f"is {name!r}", one_of(name, names))
