"""Methods scored on the library: a study over its instances, compared with the best known solutions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, ClassVar

from trainplan.libraries.catalogue import Library
from trainplan.profiling.base.errors import InputError, one_of
from trainplan.solvers.core.method_registry import methods as methods_of
from trainplan.tabular import Tabular

PAPERS = "papers"  # stands for the methods that prove nothing: papers' planners and baselines


def study_of(
    found: Library, methods: Sequence[str], time_limit: float | None, memory: str | None = None, seeds: Sequence[int] = (0,)
) -> dict[str, Any]:
    """The study, as a study file states it, of methods on the library's instances. MILP and CP-SAT begin without the plan of
    another method.

    found: the instances. methods: names; `papers` stands for the methods that prove nothing. A method runs on the problems that
    have it. time_limit: seconds of each; None for no limit. memory: of the solving process, such as "8GiB". seeds: random
    seeds. Raises InputError for a method that none of the problems has.
    """
    limits = {name: value for name, value in (("time_limit", time_limit), ("memory", memory)) if value is not None}
    return {
        "name": "library",
        "instances": [f"library:{name}" for name in found.names],
        "methods": _names(methods, {row["problem"] for row in found.rows()}),
        "limits": [limits],
        "seeds": list(seeds),
        "cold": True,
    }


def _names(methods: Sequence[str], problems: Iterable[str]) -> list[str]:
    """The names of methods, with all methods that prove nothing in place of `papers`. Raises InputError for a method that none
    of the problems has."""
    entries = [entry for problem in sorted(problems) for entry in methods_of(problem)]
    possible = ["exact", PAPERS, *dict.fromkeys(entry.name for entry in entries)]
    names: list[str] = []
    for method in methods:
        if method not in possible:
            raise InputError("command line", "--methods", f"is {method!r}", one_of(method, possible))
        names += [entry.name for entry in entries if not entry.proves] if method == PAPERS else [method]
    return list(dict.fromkeys(names))


class Scores(Tabular):
    """How methods did on the library's instances: a row for each method of each problem.

    losses: for each instance and method a dict of its name, problem, method, status, value_ns, best_ns, `loss` (the share by
    which the value exceeds the best known one; None where there is no value) and seconds.
    """

    headings: ClassVar = {
        "problem": "problem",
        "method": "method",
        "instances": "instances",
        "closed": "closed",
        "best": "best known",
        "nothing": "nothing found",
        "median_gap": "median loss",
        "largest_gap": "largest loss",
        "median_seconds": "median s",
    }

    def __init__(self, losses: Sequence[dict[str, Any]]) -> None:
        """losses: see the class."""
        self.losses = tuple(losses)

    def rows(self) -> list[dict[str, Any]]:
        """A dict for each problem and method. Keys: problem, method, instances (how many), closed (proven optimal, or proven to
        have no solution), best (as good as the best known), nothing (no solution, though one is known), median_gap and
        largest_gap (shares by which found solutions exceed the best known ones), median_seconds. Of problems by name, and of
        methods by median loss."""
        groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for one in self.losses:
            groups.setdefault((one["problem"], one["method"]), []).append(one)
        rows = [_score(*group, members) for group, members in groups.items()]
        return sorted(rows, key=lambda row: (row["problem"], row["nothing"] + row["instances"] * (row["median_gap"] or 0)))

    def better(self) -> list[dict[str, Any]]:
        """The entries of `losses` whose value is less than the best known one, which the library should have."""
        return [one for one in self.losses if one["loss"] is not None and one["loss"] < 0]

    def notes(self) -> list[str]:
        """A line for each instance on which a method found a better solution than the best known."""
        return [
            f"{one['name']}: {one['method']} found {one['value_ns']} ns, less than {one['best_ns']}" for one in self.better()
        ]


def _score(problem: str, method: str, members: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The row of `Scores` for a method on a problem's instances. members: its entries of `losses`."""
    losses = [one["loss"] for one in members if one["loss"] is not None]
    seconds = [one["seconds"] for one in members if one["seconds"] is not None]
    return {
        "problem": problem,
        "method": method,
        "instances": len(members),
        "closed": sum(one["status"] in ("optimal", "infeasible") for one in members),
        "best": sum(loss <= 0 for loss in losses),
        "nothing": sum(one["loss"] is None and one["best_ns"] is not None for one in members),
        "median_gap": median(losses) if losses else None,
        "largest_gap": max(losses, default=None),
        "median_seconds": median(seconds) if seconds else None,
    }


def scores(rows: Iterable[Mapping[str, Any]], found: Library) -> Scores:
    """Compare a study's rows with the library's best known solutions. rows: with the columns of `studies.rows`; those of no
    instance of the library are left out."""
    best = {row["name"]: row["best_ns"] for row in found.rows()}
    losses = []
    for row in rows:
        if row["library"] not in best:
            continue
        known, value = best[row["library"]], row["value_ns"]
        losses.append(
            {
                "name": row["library"],
                "problem": row["problem"],
                "method": row["method"],
                "status": row["status"],
                "value_ns": value,
                "best_ns": known,
                "loss": None if value is None or not known else value / known - 1,
                "seconds": row["seconds"],
            }
        )
    return Scores(losses)
