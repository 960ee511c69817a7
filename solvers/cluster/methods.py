"""The registered methods of cluster-strategy."""

from __future__ import annotations

from dataclasses import replace

from trainplan.solvers.core.method_registry import MODELS, Methods, Option, entry, proving

BOUNDED_CLUSTER = "bounds from one pipeline followed through the cluster, CP-SAT for what they leave"
SMALLEST = "the smallest tmp x pp for each micro-batch size, uniform stages"
UNIFORM = Option("assignment", ("uniform-layers", "uniform-parameters"))
TOP, ITERATIONS = Option("top"), Option("iterations")
PLANNER_OPTIONS = (
    Option("layer_times", ("device", "average")),
    Option("assignment", ("exact", "amp-dp", "uniform-layers", "uniform-parameters")),
    TOP,
)

METHODS = Methods(
    (
        replace(proving("branch-and-bound", "cluster.exact", BOUNDED_CLUSTER, Option("workers")), starts=True),
        *MODELS,
        entry("amp", "cluster.amp", "AMP's Algorithm 1", *PLANNER_OPTIONS),
        entry("megatron", "cluster.baselines", SMALLEST, UNIFORM, TOP),
        entry("simulated-annealing", "cluster.annealing", "AMP's Algorithm 2, placements by domino tilings", ITERATIONS, TOP),
        entry("random", "cluster.baselines", "degrees, placements and cuts at random", ITERATIONS),
    ),
    explain="trainplan.solvers.cluster.memory:explain",
    cheap_bound="trainplan.solvers.cluster.heuristic:cheap_bound",
    first_plan="trainplan.solvers.cluster.heuristic:first_plan",
    alternatives="trainplan.solvers.cluster.amp:alternatives",
)
