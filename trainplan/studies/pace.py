"""How far a study is, and how long the rest takes, as far as finished cells tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainplan.studies.cells import problem_of

SOLVED = ("optimal", "feasible")
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400


@dataclass
class Pace:
    """The seconds that finished cells took, by what cells have in common."""

    by_kind: dict[tuple[Any, ...], list[float]] = field(default_factory=dict)

    def add(self, row: Mapping[str, Any]) -> None:
        """Count a finished cell's row, unless no process ran for it."""
        seconds = row["wall_seconds"]
        if seconds is not None:
            method = row["task"], row["problem"], row["method"], row["model"]
            for kind in (method, (*method, row["cluster"], row["time_limit_s"])):
                sums = self.by_kind.setdefault(kind, [0.0, 0.0])
                sums[0] += seconds
                sums[1] += 1

    def of(self, cell: Mapping[str, Any]) -> tuple[float | None, bool]:
        """The seconds that a cell will take, and whether finished cells tell: the mean of those with its problem, method,
        model, cluster and time limit, or else with its problem, method and model; or else its time limit, None without one."""
        request = cell["request"]
        method = cell["task"], problem_of(cell["task"], cell["problem"]), cell["method"], request.get("model")
        for kind in ((*method, request.get("cluster"), cell["limits"]["time_limit"]), method):
            if kind in self.by_kind:
                total, count = self.by_kind[kind]
                return total / count, True
        return cell["limits"]["time_limit"], False

    def rest(self, cells: Iterable[Mapping[str, Any]], workers: int) -> tuple[float | None, bool]:
        """The seconds until a number of workers have solved cells, and whether finished cells tell for all of them: without
        that, the seconds are an upper bound, since time limits stand in; None if a cell has no limit and none tells."""
        total, longest, known = 0.0, 0.0, True
        for cell in cells:
            seconds, measured = self.of(cell)
            if seconds is None:
                return None, False
            total, longest, known = total + seconds, max(longest, seconds), known and measured
        return max(total / workers, longest), known


@dataclass(frozen=True)
class Progress:
    """The state of a study that runs.

    Attributes:
        done: the number of finished cells, of `total`, also those of earlier runs.
        statuses: how many of them have each status.
        seconds_left: until the study ends; None if nothing tells.
        known: whether finished cells tell the seconds, which else are an upper bound.
    """

    done: int
    total: int
    statuses: Counter[str]
    seconds_left: float | None
    known: bool

    def __str__(self) -> str:
        """One line, such as "41/72 · 3 infeasible · 1 refused · 6 min left"."""
        parts = [f"{self.done}/{self.total}"]
        parts += [f"{count} {status}" for status, count in sorted(self.statuses.items()) if status not in SOLVED]
        if self.done < self.total:
            parts.append(left_text(self.seconds_left, self.known))
        return " · ".join(parts)


def left_text(seconds: float | None, known: bool) -> str:
    """How much time is left, for people: "6 min left", or "at most 6 min left" where only limits tell."""
    if seconds is None:
        return "time left unknown"
    return f"{'' if known else 'at most '}{duration_text(seconds)} left"


def duration_text(seconds: float) -> str:
    """A duration for people, rounded up: "40 s", "6 min", "3 h", "2 days"."""
    for unit, size, until in (("s", 1, 90), ("min", MINUTE_S, 90 * MINUTE_S), ("h", HOUR_S, 2 * DAY_S)):
        if seconds < until:
            return f"{max(1, -int(-seconds // size))} {unit}"
    return f"{-int(-seconds // DAY_S)} days"
