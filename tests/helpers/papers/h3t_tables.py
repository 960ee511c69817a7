"""The tables of the study of H3T (`benchmarks.studies.h3t_study`), and scores of its methods that tests assert."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.studies.h3t_study import EVERY, LAYERS, OTHER_READINGS, SHARED, SHARINGS, ZERO, Case
from tests.helpers.papers.h3t import CASE_SWITCHES, CASES, GB, GPT3_GB, SEARCHES, SETTINGS

Json = dict[str, Any]
PAPERS = ("DP", "greedy", "manual", "random")
NAMES = {"h3t-dp": "DP", "h3t-greedy": "greedy", "random, last": "random, published", "label-setting": "exact"}


# Figure 6


@dataclass(frozen=True)
class Cell:
    """A setting under a memory limit, with the steps of the methods.

    Attributes:
        setting: the setting's name.
        rank: the limit's rank, from 0, the tightest, to 5, under which nothing has to be saved.
        limit_bytes: the limit.
        times: the step in ns by method of the paper; None where it finds no plan.
        optimum: the step of the optimum in ns.
    """

    setting: str
    rank: int
    limit_bytes: int
    times: dict[str, int | None]
    optimum: int

    @property
    def best(self) -> int | None:
        """The shortest step of the paper's methods in ns; None where none of them finds a plan."""
        return min((time for time in self.times.values() if time), default=None)

    def is_best(self, method: str) -> bool:
        return self.times[method] is not None and self.times[method] == self.best

    def is_worst(self, method: str) -> bool:
        """Whether, of the methods that find a plan, none has a longer step than this one, and some have a shorter one."""
        times = [time for time in self.times.values() if time]
        return self.times[method] == max(times) > min(times)

    def over(self, method: str, other: int | None) -> float | None:
        """The share by which a method's step is longer than another step (in ns); None where either is missing."""
        time = self.times[method]
        return None if time is None or other is None else time / other - 1


def cells(study: Json, cases: Sequence[Case] = EVERY, sampled: str = "random") -> list[Cell]:
    """The cells of some cases of a study, for all memory limits. sampled: the key of the random method's answer to take."""
    found = []
    for case in cases:
        for rank, (limit, row) in enumerate(study["limits"][str(case)].items()):
            times: dict[str, int | None] = {}
            for name, method in zip(PAPERS, ("h3t-dp", "h3t-greedy", "manual", sampled), strict=True):
                found_row = row[method]
                times[name] = None if found_row is None else found_row["time_ns"]
            found.append(Cell(str(case), rank, int(limit), times, row["label-setting"]["time_ns"]))
    return found


@dataclass(frozen=True)
class Standing:
    """How good a method is over a number of cells.

    Attributes:
        best: the share of cells in which it is the best of the paper's methods.
        worst: the share in which it is the worst.
        nothing: the share in which it finds no plan.
        over_best: median and largest share by which its step is longer than that of the best method.
        over_optimum: median and largest share by which its step is longer than the optimum.
    """

    best: float
    worst: float
    nothing: float
    over_best: tuple[float, float]
    over_optimum: tuple[float, float]


def standing(among: Sequence[Cell], method: str) -> Standing:
    """How good a method is over these cells."""

    def share(which: Sequence[bool]) -> float:
        return sum(which) / len(among)

    def spread(overs: Sequence[float | None]) -> tuple[float, float]:
        known = [over for over in overs if over is not None]
        return (median(known), max(known)) if known else (float("nan"), float("nan"))

    return Standing(
        share([cell.is_best(method) for cell in among]),
        share([cell.is_worst(method) for cell in among]),
        share([cell.times[method] is None for cell in among]),
        spread([cell.over(method, cell.best) for cell in among]),
        spread([cell.over(method, cell.optimum) for cell in among]),
    )


# Table 1


@dataclass(frozen=True)
class Seconds:
    """The seconds of a step of a case by a method, ours and as printed; None where it finds no plan or does not fit."""

    case: Case
    method: str
    ours: float | None
    printed: float | None

    @property
    def ratio(self) -> float | None:
        return self.ours / self.printed if self.ours and self.printed else None


def seconds(study: Json, cases: Sequence[Case]) -> list[Seconds]:
    """The steps of all methods of Table 1 for some cases of a study."""
    found = []
    for case in cases:
        setting, row = case.setting, study["steps"][str(case)]
        printed: dict[str, float | None] = {"dp": setting.dp_s, "greedy": setting.greedy_s, "all on": setting.all_on_s}
        printed |= {"zero-2": setting.zero_2_s, "zero-3": setting.zero_3_s}
        for method, time in printed.items():
            found_row = row[method]
            if method in ZERO and found_row["peak_bytes"] > setting.device_bytes:
                found_row = None
            found.append(Seconds(case, method, None if found_row is None else found_row["time_ns"] / 1e9, time))
    return found


# Tables


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as text, with aligned columns and a line below its head."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = ["  ".join(value.ljust(width) for value, width in zip(row, widths, strict=True)).rstrip() for row in (head, *rows)]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def name_of(method: str) -> str:
    return NAMES.get(method, method)


def gb(size: int) -> str:
    return f"{size / GB:.2f}"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f} %"


def of_data(study: Json) -> str:
    """The table of the two profiles under three limits; gaps are relative to the optimum."""
    rows = []
    for name, limits in study["data"].items():
        for kind, found in limits.items():
            optimum = found["methods"]["label-setting"]["time_ns"]
            for method, found_row in found["methods"].items():
                where = (f"{name}, {kind}", gb(found["limit_bytes"]), name_of(method))
                if found_row is None:
                    rows.append((*where, "-", "-", "-", "finds nothing"))
                else:
                    over = percent(found_row["time_ns"] / optimum - 1)
                    rows.append(
                        (*where, f"{found_row['time_ns'] / 1e6:.2f}", gb(found_row["peak_bytes"]), over, found_row["status"])
                    )
    return table(("profile", "limit, GB", "method", "ms", "peak, GB", "gap", ""), rows)


def of_cases(study: Json) -> str:
    """Table 6: the share of layers that have each switch on, as printed, as planned, and in the optima."""
    rows = []
    for sharing in SHARINGS:
        for name, printed in CASES.items():
            found = study[f"cases, {sharing} on a link"][name]
            for index, switch in enumerate(CASE_SWITCHES):
                planned, exact, among = f"{found['planned']['on'][switch]:.0%}", "-", "-"
                if best := found.get("optimum"):
                    least, most = best["among optima"][switch]
                    exact, among = f"{best['on'][switch]:.0%}", f"{least:.0%} to {most:.0%}"
                rows.append((f"{sharing}", name, switch, f"{printed[index]:.0%}", planned, exact, among))
    return table(("on a link", "case", "switch", "printed", "planned", "exact", "among all optima"), rows)


def of_memory(study: Json) -> str:
    """Table 3: memory with all switches on and the least memory of any choice, each relative to the printed least memory."""
    readings = [reading.name for reading in (LAYERS, *OTHER_READINGS)]
    rows = []
    for setting in SETTINGS:
        found = study["memory"][str(setting)]
        row = [str(setting), f"{setting.least_gb}"]
        for name in readings:
            row.append(" / ".join(f"{found[name][kind] / GB / setting.least_gb:.2f}" for kind in ("all on", "least")))
        for method, printed in zip(ZERO, (setting.zero_2_gb, setting.zero_3_gb), strict=True):
            peak = study["steps"][str(setting)][method]["peak_bytes"]
            row.append(f"{peak / GB:.1f} ({printed or '-'})")
        rows.append(row)
    found = study["memory"]["gpt3"]
    over = [" / ".join(f"{found[name][kind] / GB / GPT3_GB:.2f}" for kind in ("all on", "least")) for name in readings[:2]]
    rows.append(["h3t-a100-64, gpt3-175b, batch 512", f"{GPT3_GB}", *over, *["-"] * 5])
    return table(("setting", "printed, GB", *readings, "ZeRO-2, GB (printed)", "ZeRO-3, GB (printed)"), rows)


RANKS = {"all": range(6), "tight": range(2), "medium": range(2, 3), "ample": range(3, 5), "nothing to save": range(5, 6)}


def of_limits(study: Json) -> str:
    """Figure 6: how good the paper's methods are, by groups of limits."""
    rows = []
    for label, cases in (("estimated", EVERY), ("8 on a link", SHARED)):
        for sampled in ("random", "random, last"):
            every = cells(study, cases, sampled)
            for name, ranks in RANKS.items():
                among = [cell for cell in every if cell.rank in ranks]
                for method in PAPERS:
                    found = standing(among, method)
                    shares = [f"{share:.0%}" for share in (found.best, found.worst, found.nothing)]
                    over = [" / ".join(percent(share) for share in pair) for pair in (found.over_best, found.over_optimum)]
                    rows.append((f"{label}, {sampled}", f"{name}, {len(among)}", method, *shares, *over))
    head = ("problems", "cells", "method", "best", "worst", "nothing", "over the best: median / most", "over the exact optimum")
    return table(head, rows)


def of_settings(study: Json) -> str:
    """Figure 6 by setting: for each limit, the share by which each method's step is longer than the optimum."""
    rows = []
    for cell in cells(study, (*EVERY, *SHARED)):
        over = [percent(cell.over(method, cell.optimum)) for method in PAPERS]
        rows.append((cell.setting, gb(cell.limit_bytes), f"{cell.optimum / 1e9:.3f}", *over))
    return table(("setting", "limit, GB", "optimum, s", *PAPERS), rows)


def of_steps(study: Json) -> str:
    """Table 1: seconds of a step by setting and method, ours and printed."""
    rows = []
    for one in seconds(study, (*EVERY, *SHARED)):
        numbers = [f"{value:.2f}" if value else "-" for value in (one.ours, one.printed, one.ratio)]
        rows.append((str(one.case), one.method, *numbers))
    return table(("setting", "method", "ours, s (estimated)", "printed, s", "ratio"), rows)


def of_optima(study: Json) -> str:
    """At the limits of Table 1, the share by which the steps of the paper's methods are longer than the optimum."""
    rows = []
    for case in (*EVERY, *SHARED):
        found = study["steps"][str(case)]
        best = found["optimum"]["time_ns"]
        times = [found[name]["time_ns"] if found[name] else None for name in ("dp", "greedy", "all on")]
        over = [percent(time / best - 1 if time else None) for time in times]
        rows.append((str(case), f"{best / 1e9:.3f}", *over))
    return table(("setting", "optimum, s", "DP over it", "greedy over it", "all on over it"), rows)


def of_search(study: Json) -> str:
    """Table 5: the seconds of the solvers, ours and printed."""
    rows = []
    for row in SEARCHES:
        found = study["search"][str(row)]
        printed = f"{row.dp} / {row.greedy} / {row.random} min"
        own = [f"{found[m]['seconds']:.2f}" for m in ("h3t-dp", "h3t-greedy", "random", "label-setting")]
        gap = found["h3t-dp"]["time_ns"] / found["label-setting"]["time_ns"] - 1
        rows.append((str(row), printed, *own, f"{60 * row.dp / found['h3t-dp']['seconds']:.0f} x", percent(gap)))
    solvers = ("DP, s", "greedy, s", "random, s", "exact, s")
    return table(("setting", "printed: DP / greedy / random", *solvers, "DP faster", "DP over exact"), rows)


def report(study: Json) -> str:
    """All tables of the study, as text."""
    parts = {
        "The two profiles under three limits": of_data,
        "Table 6: switched-on share of the layers": of_cases,
        "Table 3: least memory over the printed one": of_memory,
        "Figure 6: the paper's methods under six limits": of_limits,
        "Figure 6, by setting": of_settings,
        "Table 1: seconds of a step": of_steps,
        "Table 1: what is left": of_optima,
        "Table 5: seconds of the solvers": of_search,
    }
    return "\n\n".join(f"{title}\n\n{part(study)}" for title, part in parts.items())
