"""The methods that solve galvatron-engine, the problem that Galvatron's published engine searches."""

from __future__ import annotations

from trainplan.solvers.core.method_registry import Entry, Methods

OWN_TIME = "the least own time of every stage, by label-setting, over even partitions"
HERE = "trainplan.papers.galvatron_engine."

METHODS = Methods(
    (
        Entry("even-stages", HERE + "optimum:published_optimum", True, OWN_TIME),
        Entry("published", HERE + "search:published_search", False, "the search of Galvatron's published engine"),
    ),
    explain="trainplan.papers.galvatron_engine.optimum:explain",
)
