"""The requests of a sweep: one request with some numbers changed, and with a little more of each number.

A sweep is a study of one request. Each of its axes (`--over`) is varied by itself, or all together as a grid. In addition, it
plans with a little more of everything (MARGINS): one GiB of memory, 1 % of bandwidth or compute rate, twice the devices, twice
the batch. The difference to the request itself, for each unit, is the marginal value. The optimal values of both are known
only to lie between a lower bound and a solution's value, so their difference lies in an interval, which is a point where both
are proven optimal. It is one of the solver's step model; the difference of predicted steps is given alongside, unproven.

Steps with another batch or sequence do other work: they are compared as the time of the request's own number of tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Any

from trainplan.inputs import cluster_of, memory_of
from trainplan.planning.what_if import LARGEST_FACTOR
from trainplan.profiling.base.errors import COMMAND_LINE, InputError, one_of, shown
from trainplan.profiling.base.quantities import format_bytes, parse_tokens
from trainplan.profiling.clusters.nodes import names_nodes
from trainplan.studies.cells import Cell, canonical
from trainplan.studies.changes import FACTORS, resized

FLAG = "--over"
GIB = 2**30
MOST_VALUES, MOST_POINTS = 200, 10_000
STEP = 1.01  # factor on a rate for its marginal value, which is for 1 %
AXES = ("memory", "devices", "batch", "sequence", *FACTORS, "price")
COUNTS = ("devices", "batch", "sequence")
SHORT = {"seq": "sequence", "for": "for_"}  # options of the command whose keyword has another name
# By axis, how much more of it is planned for its marginal value, and the unit that the value is for.
MARGINS = {
    "memory": "GiB of each device's memory",
    "network": "1 % of the bandwidth between nodes",
    "nvlink": "1 % of the bandwidth within nodes",
    "flops": "1 % of the devices' compute rate",
    "devices": "device, where there are twice as many",
    "batch": "doubling of the batch",
}
FORM = "such as memory=60GiB..80GiB/5, devices=32,64,128 or devices=8..64*2"
_RANGE = re.compile(r"(.+?)\.\.(.+?)([/*+])([0-9.]+(?:\s*[A-Za-z]+)?)")


def axes_of(texts: Iterable[str] | Mapping[str, Any], others: Sequence[str] = ()) -> dict[str, list[Any]]:
    """The axes of a sweep and their values: ["network=0.5,1,2"] -> {"network": [0.5, 1.0, 2.0]}.

    Args:
        texts: texts NAME=VALUES, or a mapping from names to such values or to lists of values. VALUES is `1,2,4`; `A..B/N`, N
            values from A to B at equal distances; `A..B*F`, each F times the one before; `A..B+D`, each D more.
        others: further keywords of requests that may be axes, with values as JSON has them, such as tp.

    Raises:
        InputError: for unknown names, empty or too many values, and values that the axis cannot have.
    """
    pairs = texts.items() if isinstance(texts, Mapping) else (text.partition("=")[::2] for text in texts)
    axes: dict[str, list[Any]] = {}
    for name, given in ((str(name).strip().replace("-", "_"), given) for name, given in pairs):
        name = SHORT.get(name, name)
        if name not in AXES and name not in others:
            known = [every.rstrip("_") for every in dict.fromkeys([*AXES, *others])]
            raise InputError(COMMAND_LINE, FLAG, f"varies {shown(name)}", f"{one_of(name, known)}, {FORM}")
        if name in axes:
            raise InputError(COMMAND_LINE, FLAG, f"gives {name} twice", f"give all its values in one, {FORM}")
        values = _values(name, given) if isinstance(given, str) else [value_of(name, value) for value in _listed(given)]
        axes[name] = list(dict.fromkeys(values))
        if not axes[name] or len(axes[name]) > MOST_VALUES:
            raise InputError(COMMAND_LINE, FLAG, f"gives {name} {len(axes[name])} values", f"give 1 to {MOST_VALUES}, {FORM}")
    return axes


def _listed(given: Any) -> list[Any]:
    """A value, or a list or tuple of values, as a list."""
    return list(given) if isinstance(given, list | tuple | range) else [given]


def _values(name: str, text: str) -> list[Any]:
    """The values of an axis that a text lists (`1,2,4`) or gives as a range (`8..64*2`). Raises InputError for bad texts."""
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        parts = [part for part in text.split(",") if part.strip()]
        return [value_of(name, part.strip()) for part in parts]
    first, last = (Fraction(value_of(name, match[number].strip())) for number in (1, 2))
    how, by = match[3], match[4]
    problem, fix = f"has {name}={shown(text)}", f"give {FORM}"
    if not 0 < first <= last:
        raise InputError(COMMAND_LINE, FLAG, problem, "give a range from its least to its largest value")
    step = Fraction(value_of(name, by)) if how == "+" else _number(by)
    if step is None or (how == "/" and not (step.denominator == 1 and 2 <= step <= MOST_VALUES)) or (how == "*" and step <= 1):
        raise InputError(COMMAND_LINE, FLAG, problem, fix)
    if how == "/":
        return [_whole(name, first + (last - first) * index / (step - 1)) for index in range(int(step))]
    values, value = list[Any](), first
    while value <= last and len(values) <= MOST_VALUES:
        values.append(_whole(name, value))
        value = value + step if how == "+" else value * step
    return values


def _number(text: str) -> Fraction | None:
    """A text such as `1.5` as a number; None if it is none."""
    return Fraction(text) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text, re.ASCII) else None


def _whole(name: str, value: Fraction) -> Any:
    """A number of a range as a value of an axis: rounded to a whole number for sizes and counts, else a float."""
    factor = name in (*FACTORS, "price")
    return round(value) if name in (*COUNTS, "memory") or (value.denominator == 1 and not factor) else float(value)


def value_of(name: str, given: Any) -> Any:
    """One value of an axis: bytes of memory, a number of devices, samples or tokens, a factor, a price, or of any other keyword
    a value as JSON has it (`true`, `4`, `"1f1b"`), else the text. Raises InputError for a value that the axis cannot have."""
    text = str(given).strip()
    if name == "memory":
        return memory_of(text if isinstance(given, str) else given)
    if name == "sequence":
        return _positive(name, parse_tokens(text, FLAG))
    if name in COUNTS:
        return _positive(name, int(text) if re.fullmatch(r"[0-9]{1,9}", text, re.ASCII) else 0, text)
    if name in FACTORS or name == "price":
        least = 0.0 if name == "price" else 1 / LARGEST_FACTOR
        value = _number(text)
        if value is None or not least <= value <= (1e6 if name == "price" else LARGEST_FACTOR):
            example = "a price of a device-hour, such as 2.5" if name == "price" else "a factor from 0.001 to 1000, such as 1.2"
            raise InputError(COMMAND_LINE, FLAG, f"has {name}={shown(text)}", f"give {example}")
        return float(value)
    if not isinstance(given, str):
        return given
    try:
        return json.loads(text)
    except ValueError:
        return text


def _positive(name: str, count: int, text: str | None = None) -> int:
    """The count of an axis, returned if it is positive. name: the axis. text: what the user wrote; None for the count. Raises
    InputError otherwise."""
    if count < 1:
        raise InputError(
            COMMAND_LINE, FLAG, f"has {name}={shown(count if text is None else text)}", "give whole numbers from 1"
        )
    return count


@dataclass(frozen=True)
class Point:
    """One request of a sweep.

    Attributes:
        changes: by axis, the value that differs from the sweep's request; empty for that request itself.
        request: all keywords of the request, with the changes.
        margin: the axis whose marginal value the point is for; None for a point of the sweep itself.
        units: by how many units of MARGINS the axis is larger; 0 without a margin.
    """

    changes: Mapping[str, Any]
    request: Mapping[str, Any]
    margin: str | None = None
    units: float = 0.0

    @property
    def label(self) -> str:
        """The changes as text, such as `memory 64 GiB`; `as it is` for the sweep's own request."""
        texts = [f"{axis.rstrip('_')} {value_text(axis, value)}" for axis, value in self.changes.items()]
        return ", ".join(texts) or "as it is"


def value_text(axis: str, value: Any) -> str:
    """A value of an axis as text for people: `64 GiB`, `x 1.2`, `128`."""
    if axis == "memory":
        return format_bytes(value)
    return f"x {value:g}" if axis in FACTORS else f"{value:g}" if isinstance(value, float) else str(value)


def points(request: Mapping[str, Any], axes: Mapping[str, Sequence[Any]], *, grid: bool = False) -> list[Point]:
    """The requests of a sweep, the request itself first.

    Args:
        request: keywords of the request: model, cluster, batch and so on.
        axes: values by axis; the axis price is left out, since prices change no plan.
        grid: combine the values of all axes, in place of one axis at a time.

    Raises:
        InputError: for sizes that the cluster does not come in, and more than MOST_POINTS requests.
    """
    varied = {axis: values for axis, values in axes.items() if axis != "price"}
    if grid:
        changes = [dict(zip(varied, values, strict=True)) for values in product(*varied.values())] if varied else []
    else:
        changes = [{axis: value} for axis, values in varied.items() for value in values]
    if len(changes) > MOST_POINTS:
        raise InputError(COMMAND_LINE, FLAG, f"gives {len(changes)} requests", f"give fewer values, for at most {MOST_POINTS}")
    return [Point({}, dict(request)), *(Point(change, changed(request, change)) for change in changes)]


def changed(request: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A request with values of axes in place of its own; a number of devices becomes a cluster's name where it has one."""
    made = {**request, **{axis: value for axis, value in changes.items() if axis != "devices"}}
    made |= {name: int(value) for name in FACTORS if (value := made.get(name)) is not None and value == int(value)}
    made = {name: value for name, value in made.items() if name not in FACTORS or value != 1}
    if "devices" in changes:
        cluster = resized(request.get("cluster"), "devices", changes["devices"])
        made |= {"cluster": cluster.name} if names_nodes(cluster.name) else {"devices": changes["devices"]}
    return made


def margins(request: Mapping[str, Any]) -> list[Point]:
    """The requests with a little more of each number in MARGINS, for its marginal value; numbers that the request does not have
    are left out, such as links between nodes of a single node, and everything of the cluster if it is planned from a profile.
    """
    found = list[Point]()
    if request.get("batch") is not None:
        found.append(_margin(request, "batch", 2 * request["batch"], 1.0))
    if request.get("cluster") is None or request.get("profile") is not None:
        return found
    cluster = cluster_of(request["cluster"], request.get("reserve"))
    memory = memory_of(request.get("memory"), request.get("reserve"))
    if memory is not None or len(cluster.used_kinds) == 1:
        with_more = {name: value for name, value in request.items() if name != "reserve"}
        found.append(_margin(with_more, "memory", (cluster.usable_bytes if memory is None else memory) + GIB, 1.0))
    within = any(node.islands for node in cluster.nodes) or cluster.matrix is not None
    several = bool(cluster.islands) or cluster.matrix is not None
    for axis, there in (("network", several), ("nvlink", within), ("flops", True)):
        if there:
            found.append(_margin(request, axis, (request.get(axis) or 1.0) * STEP, 1.0))
    with suppress(InputError):  # unlike nodes, or one whose links to others are not known
        found.append(_margin(request, "devices", 2 * cluster.devices, float(cluster.devices)))
    return found


def _margin(request: Mapping[str, Any], axis: str, value: Any, units: float) -> Point:
    """The point of a marginal value: a request with another value of an axis, which is that number of units larger."""
    return Point({axis: value}, changed(request, {axis: value}), axis, units)


def study_of(name: str, made: Sequence[Point], method: str, limits: Mapping[str, Any], seed: int = 0) -> dict[str, Any]:
    """The study of a sweep, as the content of a study file: a block for each request.

    name: of the study. made: the requests; equal ones become one cell. method, limits, seed: of all cells, as study files have
    them.
    """
    blocks: dict[str, dict[str, Any]] = {}
    for point in made:
        block = {**_block(point.request), "methods": [method]}
        blocks.setdefault(json.dumps(block, sort_keys=True), block)
    return {"name": name, "limits": [dict(limits)], "seeds": [seed], "include": list(blocks.values())}


def _block(request: Mapping[str, Any]) -> dict[str, Any]:
    """A request as a block of a study file, with one value on each axis."""
    left = {name: value for name, value in request.items() if value is not None}
    axes = {"model": "models", "cluster": "clusters", "batch": "batches", "sequence": "sequences"}
    block = {"task": "plan", "runtimes": [left.pop("for_", None)], "problems": [left.pop("like", None)]}
    block |= {axis: [left.pop(name)] for name, axis in axes.items() if name in left}
    return {**block, **({"with": {name: [value] for name, value in left.items()}} if left else {})}


def names_of(made: Sequence[Point], cells: Iterable[Cell]) -> list[str]:
    """The names of the cells that the points of a sweep have become, in the points' order. cells: of the sweep's study."""
    named = {canonical([cell.request, cell.runtime, cell.problem]): cell.name for cell in cells}
    return [named[canonical([_keywords(point.request), *map(point.request.get, ("for_", "like"))])] for point in made]


def _keywords(request: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of a request that a cell's request has: those that are given, without the runtime and the preset."""
    return {name: value for name, value in request.items() if value is not None and name not in ("for_", "like")}
