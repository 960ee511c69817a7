"""The rows of a study as pictures and summaries compare them: what competes, on which instances, and along which axes."""

from __future__ import annotations

import json
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from trainplan.profiling.base.errors import COMMAND_LINE, InputError, one_of
from trainplan.profiling.base.quantities import format_bytes

Row = Mapping[str, Any]
SOLVED = ("optimal", "feasible")  # statuses with a solution
PROVEN = ("optimal", "infeasible")  # statuses with a proof
OWN = "trainplan"  # what predicts a plan that is for no runtime: its own programs
METHOD = "method"  # the axis of what competes
# Axes of a study by column, with the words of a picture: those that a request states, before those that follow from others.
AXES = {
    "model": "model",
    "kind": "kind of device",
    "runtime": "runtime",
    "devices": "devices",
    "batch": "samples of a step",
    "sequence": "tokens of a sample",
    "memory_bytes": "memory of a device",
}
DERIVED = {"nodes": "nodes", "cluster": "cluster", "library": "instance", "instance_name": "instance"}
SIZES = {"request": ("devices", "nodes", "batch", "sequence", "memory_bytes"), "cluster": ("devices", "nodes")}
IN_COLUMNS = {"model", "cluster", "devices", "nodes", "batch", "sequence", "memory", "instance"}  # keywords with own columns


def rows_of(source: Any) -> list[dict[str, Any]]:
    """The rows of a study as dicts by column, absent values as None, with further entries: `kind` (of device, from the name of
    the cluster), and every keyword of the request that has no column, under its name. The runtime of a plan that is for none is
    OWN. Sizes that a row lacks, since its process died before it knew them, are those of another row with its request.

    source: a DataFrame as `Study.frame()` gives it, a part of it, or rows as dicts, which may have the further entries already.
    """
    plain = _rows_of_frame(source) if hasattr(source, "to_dict") else source
    if plain and "kind" in plain[0]:
        return list(plain)
    rows = []
    for row in plain:
        cluster = row["cluster"]
        further = {name: value for name, value in _keywords(row["request"]).items() if name not in row}
        runtime = row["runtime"] or (OWN if row["task"] == "plan" else None)
        kind = cluster.split(":")[0] if isinstance(cluster, str) else None
        rows.append({**further, **row, "runtime": runtime, "kind": kind})
    for alike, names in SIZES.items():
        for name in names:
            known = {row[alike]: row[name] for row in rows if row[name] is not None}
            for row in rows:
                if row[name] is None:
                    row[name] = known.get(row[alike])
    return rows


def _rows_of_frame(frame: Any) -> list[dict[str, Any]]:
    """The rows of a DataFrame as dicts by column, with Python's own numbers, and None for absent values."""
    columns = {name: frame[name].astype(object).where(frame[name].notna(), None).tolist() for name in frame.columns}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


@cache
def _keywords(request: str) -> Mapping[str, Any]:
    """The keywords of a request that have no column of their own, with texts and numbers as they are and others as JSON.
    request: a row's, as JSON."""
    keywords = json.loads(request or "{}")
    plain = {name: value if isinstance(value, str | int | float) else json.dumps(value) for name, value in keywords.items()}
    return {name: value for name, value in plain.items() if name not in IN_COLUMNS}


def problem_of(row: Row) -> str:
    """The problem that a row is about: its name, or "plans" for plans, whichever preset and runtime they are of."""
    return "plans" if row["task"] == "plan" else str(row["problem"])


def competitor(row: Row) -> str:
    """The name under which a row's result is compared with others: the method and its options, before them for a plan the
    preset and the runtime that predicts it."""
    words = [str(row["method"])]
    if row["task"] == "plan":
        words.insert(0, f"{row['problem']} for {row['runtime'] or OWN},")
    if row["options"] not in (None, "", "{}"):
        words += [f"{name}={value}" for name, value in json.loads(row["options"]).items()]
    return " ".join([*words, *["cold"] * bool(row["cold"])])


def instance_of(row: Row) -> Hashable:
    """A value that is equal in rows that solve the same instance: the problem, and the instance's hash. The hash of a plan is
    of its preset's first instance, so that plans of one request have its text instead, as have rows without a hash."""
    by_hash = row["task"] != "plan" and row["instance_hash"] is not None
    return problem_of(row), row["instance_hash"] if by_hash else row["request"]


def value_of(row: Row) -> int | None:
    """The time in ns that a row's answer is judged by: the value of the solution, for a plan the predicted step if there is
    one. None if the row has no solution."""
    if row["status"] not in SOLVED:
        return None
    predicted = row["predicted_step_ns"] if row["task"] == "plan" else None
    found: int | None = row["value_ns"] if predicted is None else predicted
    return found


def best_values(rows: Iterable[Row]) -> dict[Hashable, int]:
    """The least value in ns that any row has, by instance (`instance_of`)."""
    best: dict[Hashable, int] = {}
    for row in rows:
        if (value := value_of(row)) is not None:
            best[instance_of(row)] = min(value, best.get(instance_of(row), value))
    return best


def best_bounds(rows: Iterable[Row]) -> dict[Hashable, int]:
    """The largest lower bound in ns that any row proves, by instance. Plans have none, since each bounds the objective of its
    own preset and runtime, and not the predicted step that plans are judged by."""
    best: dict[Hashable, int] = {}
    for row in rows:
        if row["task"] != "plan" and (bound := row["bound_ns"]) is not None:
            best[instance_of(row)] = max(bound, best.get(instance_of(row), bound))
    return best


def by_problem(rows: Iterable[Row], problem: str | None = None) -> dict[str, list[Row]]:
    """Rows by problem (`problem_of`), those with most rows first. problem: the only one that is kept; None keeps all. Raises
    InputError if no row is of it, or there are no rows."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(problem_of(row), []).append(row)
    if not groups:
        raise InputError("study", "", "has no rows", "give a frame with some")
    if problem is None:
        return dict(sorted(groups.items(), key=lambda item: -len(item[1])))
    if problem not in groups:
        raise InputError(COMMAND_LINE, "--problem", f"is {problem!r}", one_of(problem, groups))
    return {problem: groups[problem]}


def axis_value(row: Row, axis: str) -> Any:
    """The value of a row on an axis; on the axis METHOD it is the competitor's name."""
    return competitor(row) if axis == METHOD else row.get(axis)


def axis_values(rows: Iterable[Row], axis: str) -> list[Any]:
    """The distinct values of rows on an axis, without None: numbers ascending, others in the order in which they first come."""
    found = list(dict.fromkeys(value for row in rows if (value := axis_value(row, axis)) is not None))
    return sorted(found) if all(isinstance(value, int | float) for value in found) else found


def varying(rows: Sequence[Row]) -> list[str]:
    """The axes of the requests along which rows differ, in the order of AXES and then by name.

    An axis that is another one in other words (as many values, each with one of the other's) is left out, as is one that
    follows from the others, such as the cluster from kind and number of devices.
    """
    requests = {row["request"] or "{}" for row in rows}
    stated = [*AXES, *sorted({name for request in requests for name in _keywords(request)} - set(AXES))]
    explicit = any("memory" in json.loads(request) for request in requests)
    derived = [*([] if explicit else ["memory_bytes"]), *DERIVED]
    kept: list[str] = []
    for axis in [*(name for name in stated if name not in derived), *derived]:
        values = {axis_value(row, axis) for row in rows}
        if len(values - {None}) < 2:
            continue
        known = [row for row in rows if axis_value(row, axis) is not None]
        twin = any(_alike({(row.get(axis), row.get(other)) for row in known}) for other in kept)
        joint = {(axis_value(row, axis), *(row.get(other) for other in kept)) for row in known}
        follows = axis in derived and len(joint) == len({one[1:] for one in joint})
        if not twin and not follows:
            kept.append(axis)
    return kept


def _alike(pairs: Collection[tuple[Any, Any]]) -> bool:
    """Whether every first value of distinct pairs belongs to one second value, and the other way round."""
    return len(pairs) == len({first for first, _ in pairs}) == len({second for _, second in pairs})


def is_number(rows: Iterable[Row], axis: str) -> bool:
    """Whether all values of rows on an axis are numbers, and there is one."""
    values = axis_values(rows, axis)
    return bool(values) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def with_axis(problems: Mapping[str, list[Row]], axis: str | None, field: str) -> Mapping[str, list[Row]]:
    """The problems whose rows differ on an axis that a user names; if there are none, those that have a value on it.

    problems: rows by problem. axis: all problems are returned if it is None. field: the argument that names it. Raises
    InputError if no row has a value on the axis.
    """
    if axis is None:
        return problems
    counts = {name: len(axis_values(rows, axis)) for name, rows in problems.items()}
    least = min(2, max(counts.values()))
    if not least:
        listing = dict.fromkeys([METHOD, *(other for rows in problems.values() for other in varying(rows))])
        raise InputError(COMMAND_LINE, field, f"is {axis!r}, of which no row has a value", one_of(axis, listing))
    return {name: rows for name, rows in problems.items() if counts[name] >= least}


def axis_words(axis: str) -> str:
    """An axis in the words of a picture: "memory_bytes" is "memory of a device"."""
    return {**AXES, **DERIVED}.get(axis, axis.replace("_", " "))


def value_words(axis: str, value: Any) -> str:
    """A value on an axis in the words of a picture: ("memory_bytes", 2**30) is "1 GiB"."""
    if isinstance(value, int | float) and axis.endswith("_bytes"):
        return format_bytes(int(value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def common_part(rows: Sequence[Row], axes: Iterable[str], used: Iterable[str]) -> tuple[list[Row], str]:
    """The part of rows that differs on the axes of a picture only: on every other axis the value with which most rows have
    a solution.

    axes: all axes along which the rows differ. used: those of the picture. Returns the part, and a text that states the values
    that were chosen; it is empty if nothing was left out.
    """
    part, texts = list(rows), list[str]()
    for axis in axes:
        values = axis_values(part, axis)
        if axis in used or len(values) < 2:
            continue
        counts = {value: sum(axis_value(row, axis) == value and value_of(row) is not None for row in part) for value in values}
        chosen = max(values, key=lambda value: counts[value])
        part = [row for row in part if axis_value(row, axis) == chosen]
        texts.append(f"{axis_words(axis)} {value_words(axis, chosen)}")
    return part, ", ".join(texts)
