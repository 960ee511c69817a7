"""A summary of a study's rows by problem and method, failures by reason, and results that contradict each other."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log1p
from statistics import median
from typing import Any, ClassVar

from trainplan.pictures.study_rows import PROVEN, SOLVED, Row, best_values, competitor, instance_of, problem_of, value_of
from trainplan.profiling.base.quantities import format_time, plural
from trainplan.tabular import Tabular

NUMBER = re.compile(r"\d[\d.,]*")
DIGITS = 12  # of an instance's hash that texts show


@dataclass(frozen=True, repr=False)
class Summary(Tabular):
    """A study's results by problem and method; `stored` has a row for each pair.

    A row has the number of cells, how many have a solution (`solved`), how many are proven to be optimal or infeasible
    (`proven`), the median of the seconds of those with a solution or a proof, the geometric mean of their gaps, that of how far
    values lie above the best one that any method found for the same instance (`above`), and the other cells by status.
    """

    stored: tuple[dict[str, Any], ...]
    headings: ClassVar = {
        "problem": "problem",
        "method": "method",
        "cells": "cells",
        "solved": "solved",
        "proven": "proven",
        "median_seconds": "median s",
        "mean_gap": "gap",
        "above": "above",
        "failures": "without a value",
    }

    def rows(self) -> list[dict[str, Any]]:
        """A dict for each problem and method, with the fields of `headings`."""
        return list(self.stored)


def summary(rows: Sequence[Row]) -> Summary:
    """The summary of a study's rows by problem and method, in the order in which these first come."""
    best = best_values(rows)
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((problem_of(row), competitor(row)), []).append(row)
    return Summary(tuple(_summed(names, group, best) for names, group in groups.items()))


def _summed(names: tuple[str, str], rows: Sequence[Row], best: Mapping[Hashable, int]) -> dict[str, Any]:
    """The summary's row for one problem and method. names: both. rows: their rows. best: the best values by instance."""
    solved = [row for row in rows if row["status"] in SOLVED]
    finished = [row["seconds"] for row in rows if row["status"] in (*SOLVED, *PROVEN) and row["seconds"] is not None]
    gaps = [row["gap"] for row in solved if row["gap"] is not None]
    excess = [value / best[instance_of(row)] - 1 for row in solved if (value := value_of(row)) and best.get(instance_of(row))]
    failures = Counter(row["status"] for row in rows if row["status"] not in SOLVED)
    return {
        "problem": names[0],
        "method": names[1],
        "cells": len(rows),
        "solved": len(solved),
        "optimal": sum(row["status"] == "optimal" for row in rows),
        "proven": sum(row["status"] in PROVEN for row in rows),
        "median_seconds": median(finished) if finished else None,
        "mean_gap": _geometric_mean(gaps),
        "above": _geometric_mean(excess),
        "failures": ", ".join(f"{count} {status}" for status, count in failures.most_common()) or None,
    }


def _geometric_mean(shares: Sequence[float]) -> float | None:
    """The geometric mean of 1 + share, less 1, for shares of at least 0 of which some may be 0; None if there are none."""
    return exp(sum(map(log1p, shares)) / len(shares)) - 1 if shares else None


def failures(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """The cells without a solution by status and reason, the most frequent first: dicts with `status`, `reason`, `cells` (their
    number), `methods` (the distinct ones, as a text) and `first` (the name of the first). Reasons that differ only in their
    numbers, or in the advice after the first semicolon, are one: that of the first cell."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row["status"] not in SOLVED:
            problem = (row["reason"] or row["stopped"] or "").partition("; ")[0]
            groups.setdefault((row["status"], NUMBER.sub("#", problem)), []).append(row)
    counted = sorted(groups.items(), key=lambda item: -len(item[1]))
    return [
        {
            "status": status,
            "reason": group[0]["reason"] or group[0]["stopped"],
            "cells": len(group),
            "methods": ", ".join(dict.fromkeys(competitor(row) for row in group)),
            "first": group[0]["name"],
        }
        for (status, _), group in counted
    ]


def contradictions(rows: Sequence[Row]) -> list[str]:
    """Texts about results that cannot all be right, or that are not about one instance: a lower bound above the value of a
    solution of the same instance, an instance that is both solved and infeasible, and one request with several instances.

    rows: the current rows of a study. An empty list means that none was found.
    """
    by_instance: dict[Hashable, list[Row]] = {}
    by_request: dict[Hashable, list[Row]] = {}
    for row in rows:
        if row["task"] != "plan" and row["instance_hash"] is not None:
            by_instance.setdefault(instance_of(row), []).append(row)
            by_request.setdefault((row["problem"], row["runtime"], row["request"]), []).append(row)
    texts = [text for group in by_instance.values() for text in _conflicts(group)]
    for group in by_request.values():
        hashes: dict[str, list[str]] = {}
        for row in group:
            hashes.setdefault(row["instance_hash"], []).append(competitor(row))
        if len(hashes) > 1:
            parts = "; ".join(f"{digest[:DIGITS]} by {', '.join(methods)}" for digest, methods in hashes.items())
            texts.append(f"{group[0]['name']}: the same request has {plural(len(hashes), 'instance')}: {parts}")
    return texts


def _conflicts(rows: Sequence[Row]) -> list[str]:
    """Texts about the results of one instance that cannot all be right; at most one about bounds and one about infeasibility.
    rows: the rows of the instance, each with its hash."""
    solved = [row for row in rows if row["status"] in SOLVED and row["value_ns"] is not None]
    if not solved:
        return []
    best, texts = min(solved, key=lambda row: row["value_ns"]), list[str]()
    about = f"{best['name']} ({best['instance_hash'][:DIGITS]})"
    bounded = [row for row in rows if row["bound_ns"] is not None]
    highest = max(bounded, key=lambda row: row["bound_ns"], default=None)
    if highest is not None and highest["bound_ns"] > best["value_ns"]:
        bound, value = (format_time(number) for number in (highest["bound_ns"], best["value_ns"]))
        exact = f" ({highest['bound_ns']:,} and {best['value_ns']:,} ns)" * (bound == value)
        texts.append(f"{about}: {competitor(highest)} proves at least {bound}, {competitor(best)} has {value}{exact}")
    if proven := [competitor(row) for row in rows if row["status"] == "infeasible"]:
        texts.append(f"{about}: {', '.join(proven)} proves that there is no solution, {competitor(best)} has one")
    return texts
