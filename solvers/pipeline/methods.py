"""The registered methods of the pipeline problem."""

from __future__ import annotations

from dataclasses import replace

from trainplan.solvers.core.method_registry import MODELS, Methods, Option, entry, proving
from trainplan.solvers.core.search import CUTOFF

BOUNDED_SPANS = "bounds on all spans of layers, exact stages by label-setting"
WITH_ALGORITHM_3 = "the paper's Algorithm {}, with Algorithm 3 in each stage"
PARTITIONS = Option("partition", ("layers", "parameters", "memory", "time"))
GALVATRON_OPTIONS = (
    Option("micro_batches", ("rule", "all")),
    Option("stage_time", ("micro-batch", "iteration")),
    Option("granularity_bytes", most=None),
)

METHODS = Methods(
    (
        replace(proving("branch-and-bound", "pipeline.exact", BOUNDED_SPANS, Option(CUTOFF)), starts=True),
        *MODELS,
        entry("galvatron-bmw", "pipeline.galvatron_bmw", WITH_ALGORITHM_3.format(2), *GALVATRON_OPTIONS),
        entry("galvatron-base", "pipeline.galvatron_bmw", WITH_ALGORITHM_3.format(1), PARTITIONS, *GALVATRON_OPTIONS),
    ),
    explain="trainplan.solvers.pipeline.memory:explain",
    cheap_bound="trainplan.solvers.pipeline.heuristic:cheap_bound",
    first_plan="trainplan.solvers.pipeline.heuristic:first_plan",
)
