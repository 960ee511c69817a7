"""The study file: axes of values, ranges, exclusions, groups and further blocks, which become a list of cells."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import Field

from trainplan.formulations.problem import problem, problem_names
from trainplan.planning.presets import DEFAULT, PRESETS
from trainplan.profiling.base.errors import COMMAND_LINE, InputError, one_of, shown
from trainplan.profiling.base.files import Record, Source, name_of_source, parse, read_data
from trainplan.profiling.base.plugins import attribute
from trainplan.profiling.base.quantities import parse_bytes, parse_tokens
from trainplan.profiling.clusters.nodes import counted_devices
from trainplan.profiling.shipped import shipped
from trainplan.solvers.core.method_registry import methods as methods_of
from trainplan.studies.axes import any_values, equals, is_number, listed, numbers_of, values_of
from trainplan.studies.cells import LIBRARY, NO_LIMITS, Cell
from trainplan.studies.changes import CHANGES, COSTS

Found = TypeVar("Found")
MOST_CELLS = 1_000_000  # of a study
REQUESTS = ("models", "clusters", "batches", "sequences")  # axes that make a request, with `with`
SOLVING = ("limits", "seeds", "cold", "repeats")  # axes that a block of `include` has from the study
SIZES = ("devices", "nodes")  # of a cluster that is named by its kind alone


class Block(Record):
    """Axes whose product is a part of a study; the fields are described in docs/studies.md. Each axis is a value, a list or,
    of numbers, a range such as {"from": 8, "to": 64, "times": 2}; None if it is left out."""

    noun: ClassVar[str] = "study"
    name: str | None = None
    task: Literal["solve", "plan"] | None = None
    models: Any = None
    clusters: Any = None
    batches: Any = None
    sequences: Any = None
    with_: dict[str, Any] = Field(default={}, alias="with")
    instances: Any = None
    problems: Any = None
    runtimes: Any = None
    methods: Any = None
    limits: Any = None
    seeds: Any = None
    cold: Any = None
    repeats: int | None = Field(default=None, ge=1, le=10_000)


class StudyFile(Block):
    """A study: the axes of a `Block`, the rates of its plans' costs (see `training_costs.CostRates`), and groups, exclusions
    and further blocks."""

    name: str
    price: float | None = None
    tokens: str | int | None = None
    pue: float | None = None
    watts: float | None = None
    groups: dict[str, dict[str, Any]] = Field(default={})
    exclude: list[dict[str, Any]] = Field(default=[])
    include: list[Block] = Field(default=[])


@dataclass(frozen=True)
class Specification:
    """A study's name and its cells.

    Attributes:
        name: the study's name.
        cells: in the order in which they are run; their names are distinct.
        excluded: how many cells each entry of `exclude` has left out, in the entries' order.
        without: pairs (problem, method) that are left out, since the problem has no such method.
        content: the study as plain data, for its copy in the folder.
    """

    name: str
    cells: tuple[Cell, ...]
    excluded: tuple[int, ...]
    without: tuple[tuple[str, str], ...]
    content: Mapping[str, Any]


def specification(source: Source) -> Specification:
    """Read a study from a YAML or JSON file, or a dict, and list its cells.

    Raises InputError for a field or value that does not exist, a method that none of the problems has, and a study without
    cells.
    """
    where = name_of_source(source, "study")
    content = source if isinstance(source, Mapping) else read_data(source)
    if isinstance(content, Mapping):
        _check_names(where, content)
    study, content = parse(source, StudyFile, where), dict(content)
    reader = _Reader(where, study)
    cells = reader.cells()
    rate = next((name for name, value in reader.costs.items() if value is not None), None)
    if rate is not None and all(cell.task == "solve" for cell in cells):
        raise InputError(where, rate, "is given, and no cell plans", "add task: plan, or runtimes, or leave it out")
    if not cells:
        raise InputError(where, "", "has no cells", "give models, clusters and batches, or instances, and fewer exclusions")
    return Specification(study.name, tuple(cells), tuple(reader.excluded), tuple(reader.without), content)


class _Reader:
    """Lists the cells of a study file. excluded, without: as in `Specification`, filled by `cells`."""

    def __init__(self, where: str, study: StudyFile) -> None:
        self.where, self.study = where, study
        self.excluded = [0] * len(study.exclude)
        self.without: list[tuple[str, str]] = []
        self.costs = {name: getattr(study, name, None) for name in COSTS}
        self.known: set[str] = set()  # names of axes, and of keywords of requests, that conditions may have

    def cells(self) -> list[Cell]:
        """The cells of the study's own axes and of its further blocks, without exclusions and repetitions."""
        found: dict[str, Cell] = {}
        blocks = [("", self.study, ()), *self._included()]
        axes = {**{name: None for _, block, _ in blocks for name in block.with_}, **dict.fromkeys(Block.model_fields)}
        self.known = {"with" if name == "with_" else name for name in axes} - {"name", "task", "with"}
        for prefix, block, groups in blocks:
            for values, cell in self._product(prefix, block):
                if len(found) > MOST_CELLS:
                    raise InputError(self.where, "", f"has more than {MOST_CELLS:,} cells", "give fewer values")
                if self._is_excluded(values):
                    continue
                named = [
                    name for name, condition in self.study.groups.items() if self._matches(values, condition, f"groups.{name}")
                ]
                before = found[cell.name].groups if cell.name in found else ()
                found[cell.name] = replace(cell, groups=tuple(dict.fromkeys([*before, *groups, *named])))
        return list(found.values())

    def _included(self) -> Iterator[tuple[str, Block, tuple[str, ...]]]:
        """The further blocks: the path of a block in the file, the block, with the study's axes of SOLVING where it has none of
        its own, and its name as the only group, if it has one."""
        for number, block in enumerate(self.study.include):
            own = {name: getattr(self.study, name) for name in SOLVING if getattr(block, name) is None}
            yield f"include[{number}].", block.model_copy(update=own), (block.name,) if block.name else ()

    def _product(self, prefix: str, block: Block) -> Iterator[tuple[dict[str, Any], Cell]]:
        """The cells of a block, as pairs: the values by axis that conditions are compared with, and the cell.

        prefix: the path of the block in the file, such as "include[0]."; empty for the study itself.
        """
        solving = [*self._solving(prefix, block)]
        task = block.task or ("plan" if block.runtimes is not None else "solve")
        if task == "solve" and block.runtimes is not None:
            fix = "leave one of the two out: a runtime is planned for"
            raise InputError(self.where, f"{prefix}runtimes", "is given with task: solve", fix)
        methods = [self._method(prefix, value) for value in values_of(block.methods, ["exact"], self.where, f"{prefix}methods")]
        runtimes = values_of(block.runtimes, [None], self.where, f"{prefix}runtimes")
        subjects = [*self._instances(prefix, block, task), *self._requests(prefix, block, task)]
        stated = list(dict.fromkeys(name for _, _, name in subjects))
        if runtimes != [None] and (other := next((name for name in stated if name not in (None, *PRESETS)), None)):
            fix = f"give presets ({', '.join(PRESETS)}), or leave runtimes out"
            raise InputError(self.where, f"{prefix}problems", f"has {other!r}, which plans for no runtime", fix)
        possible = {name: self._methods_of(prefix, name, task, methods) for name in stated}
        missing = [
            text for text, _ in methods if not any(text == chosen for chosens in possible.values() for chosen, _ in chosens)
        ]
        if missing and subjects:
            names = [entry.name for name in stated for entry in methods_of(self._solved(name, task))]
            fix = one_of(missing[0], dict.fromkeys(["exact", *names]))
            raise InputError(self.where, f"{prefix}methods", f"has {missing[0]!r}, which none of the problems has", fix)
        for (values, request, name), runtime in product(subjects, runtimes):
            for method, options in possible[name]:
                for further in solving:
                    cell = Cell(task, request, name, method, runtime, options, **further)
                    yield {**values, "problems": name, "runtimes": runtime, "methods": method, **_by_axis(further)}, cell

    def _solving(self, prefix: str, block: Block) -> Iterator[dict[str, Any]]:
        """The product of limits, seeds, cold and repetitions: dicts with the fields of `Cell` of these names."""
        limits = [self._limits(prefix, value) for value in values_of(block.limits, [{}], self.where, f"{prefix}limits")]
        seeds = numbers_of(block.seeds, [0], self.where, f"{prefix}seeds")
        colds = values_of(block.cold, [False], self.where, f"{prefix}cold")
        if not all(isinstance(cold, bool) for cold in colds):
            raise InputError(self.where, f"{prefix}cold", f"is {shown(block.cold)}", "give true, false, or both")
        for limit, seed, cold, repeat in product(limits, seeds, colds, range(block.repeats or 1)):
            yield {"limits": limit, "seed": seed, "cold": cold, "repeat": repeat}

    def _limits(self, prefix: str, value: Any) -> dict[str, Any]:
        """The limits of a cell (see `Cell.limits`) from an entry of the file, such as {"time_limit": 60, "memory": "8GiB"}."""
        field = f"{prefix}limits"
        if not isinstance(value, dict) or set(value) - set(NO_LIMITS):
            fix = "give time_limit (s), memory (such as 8GiB), gap and grace (s)"
            raise InputError(self.where, field, f"is {shown(value)}", fix)
        limits = {**NO_LIMITS, **value}
        if isinstance(memory := limits["memory"], str):
            limits["memory"] = self._parsed(f"{field}.memory", parse_bytes, memory)
        for name in NO_LIMITS:
            number = limits[name]
            least = 2**26 if name == "memory" else 0
            if (number is None and name != "gap") or (is_number(number) and number >= least and (number > 0 or name == "gap")):
                continue
            fix = (
                "give at least 64MiB" if name == "memory" else "give a share such as 1e-4" if name == "gap" else "give seconds"
            )
            raise InputError(self.where, f"{field}.{name}", f"is {shown(value.get(name))}", fix)
        return {name: float(number) if name != "memory" and number is not None else number for name, number in limits.items()}

    def _method(self, prefix: str, value: Any) -> tuple[str, dict[str, Any]]:
        """A method and its options from an entry of the file: a name, or {"method": NAME, OPTION: VALUE, ...}."""
        options = {"method": value} if isinstance(value, str) else dict(value) if isinstance(value, dict) else {}
        name = options.pop("method", None)
        if not isinstance(name, str):
            fix = "give names, or {method: NAME, OPTION: VALUE}"
            raise InputError(self.where, f"{prefix}methods", f"has {shown(value)}", fix)
        return name, options

    def _methods_of(
        self, prefix: str, name: str | None, task: str, methods: Sequence[tuple[str, dict[str, Any]]]
    ) -> list[tuple[str, dict[str, Any]]]:
        """Leave out the methods that a problem does not have, which are noted in `without`, and return the others.

        name: of the problem or preset.
        """
        try:
            solved = self._solved(name, task)
            names = {"exact", *(entry.name for entry in methods_of(solved))}
        except InputError as error:
            raise InputError(self.where, f"{prefix}problems", error.problem, error.fix) from None
        self.without += [(name or solved, method) for method, _ in methods if method not in names]
        return [(method, options) for method, options in methods if method in names]

    @staticmethod
    def _solved(name: str | None, task: str) -> str:
        """The name of the problem whose methods a cell may have. name: of the problem or, of task plan, of the preset."""
        return (
            PRESETS[name or DEFAULT].problem_name
            if task == "plan" and (name or DEFAULT) in PRESETS
            else problem(name or "").name
        )

    def _requests(self, prefix: str, block: Block, task: str) -> Iterator[tuple[dict[str, Any], dict[str, Any], str | None]]:
        """The requests of a block: (values by axis, keywords of the request, problem). Nothing if it names no model, cluster or
        further keyword."""
        if not block.with_ and all(getattr(block, axis) is None for axis in REQUESTS):
            return
        problems = values_of(block.problems, [None] if task == "plan" else [], self.where, f"{prefix}problems")
        if not problems:
            raise InputError(self.where, f"{prefix}problems", "is missing", f"give some of: {', '.join(problem_names())}")
        self._check_keywords(prefix, block.with_, problems)
        axes = {axis: self._axis(prefix, block, axis) for axis in REQUESTS if getattr(block, axis) is not None}
        axes |= {name: any_values(value, self.where, f"{prefix}with.{name}") for name, value in block.with_.items()}
        for chosen in product(*axes.values()):
            values = dict(zip(axes, chosen, strict=True))
            singular = dict(zip(REQUESTS, ("model", "cluster", "batch", "sequence"), strict=True))
            request = {singular.get(axis, axis): value for axis, value in values.items()}
            request = {**self.costs, **self._sized(prefix, request)} if task == "plan" else self._sized(prefix, request)
            request = {name: value for name, value in request.items() if value is not None}
            values = {**values, "clusters": request.get("cluster")}
            for name in problems:
                yield values, request, name

    def _check_keywords(self, prefix: str, given: Iterable[str], problems: Iterable[str | None]) -> None:
        """Raise InputError for a keyword of `with` that neither requests nor the problems have."""
        known = {field.name for field in fields(attribute("trainplan.api.requests:PlanRequest"))} - {"measure", "like", "for_"}
        known |= {
            *CHANGES,
            *(parameter.name for name in problems if name in problem_names() for parameter in problem(name).parameters),
        }
        for name in given:
            if name not in known:
                raise InputError(self.where, f"{prefix}with.{name}", "is no keyword of a request", one_of(name, sorted(known)))

    def _axis(self, prefix: str, block: Block, axis: str) -> list[Any]:
        """The values of one of the axes in REQUESTS."""
        field, value = f"{prefix}{axis}", getattr(block, axis)
        if axis == "batches":
            return numbers_of(value, [], self.where, field)
        if axis == "sequences":
            texts = [self._parsed(field, parse_tokens, item) if isinstance(item, str) else item for item in listed(value)]
            return numbers_of(texts, [], self.where, field)
        items = [text for item in listed(value) for text in (self._clusters(field, item) if axis == "clusters" else [item])]
        if not all(isinstance(item, str) for item in items):
            raise InputError(self.where, field, f"is {shown(value)}", "give names or files")
        return items

    def _clusters(self, field: str, item: Any) -> list[Any]:
        """The clusters that an entry of the file names: itself, or, for {"kind": KIND, "devices": NUMBERS}, one for each
        number, such as h100:8x2."""
        if not isinstance(item, dict):
            return [item]
        if set(item) != {"kind", "devices"} or not isinstance(item["kind"], str):
            raise InputError(self.where, field, f"is {shown(item)}", "give {kind: h100, devices: [8, 16]}")
        numbers = numbers_of(item["devices"], [], self.where, f"{field}.devices")
        return [self._counted(field, item["kind"], number) for number in numbers]

    def _sized(self, prefix: str, request: dict[str, Any]) -> dict[str, Any]:
        """A request whose numbers of devices and nodes, if it has them, are made part of the cluster's name."""
        sizes = {name: request.pop(name) for name in SIZES if name in request}
        if not sizes:
            return request
        if [*sizes] == ["devices"] and (
            request.get("cluster") in shipped("clusters") or os.path.isfile(str(request.get("cluster")))
        ):
            return {**request, **sizes}
        kind, field = request.get("cluster"), f"{prefix}with.{next(iter(sizes))}"
        if not isinstance(kind, str) or ":" in kind or None in sizes.values() or "devices" not in sizes:
            fix = "give devices (and nodes) together with a kind of devices as cluster, such as h100"
            raise InputError(self.where, field, f"is {shown(next(iter(sizes.values())))}, and the cluster {shown(kind)}", fix)
        return {**request, "cluster": self._counted(field, kind, sizes["devices"], sizes.get("nodes"))}

    def _counted(self, field: str, kind: str, devices: int, nodes: int | None = None) -> str:
        """The name of a cluster with a number of devices of a kind, in whole nodes or in `nodes` nodes: ("h100", 64) gives
        "h100:8x8"."""
        if nodes is not None and devices % nodes:
            raise InputError(self.where, field, f"is {devices}, on {nodes} nodes", "give a multiple of the nodes")
        try:
            text = counted_devices(f"{devices}x{kind}" if nodes is None else f"{devices // nodes}x{nodes} {kind}")
        except InputError as error:
            raise InputError(self.where, field, error.problem, error.fix) from None
        if text is None:
            raise InputError(self.where, field, f"is {shown(kind)}", "give a kind of devices, such as h100")
        return text

    def _instances(self, prefix: str, block: Block, task: str) -> Iterator[tuple[dict[str, Any], dict[str, Any], str]]:
        """The instances of a block: (values by axis, request, problem), of the block's problems if it names some."""
        wanted = values_of(block.problems, [], self.where, f"{prefix}problems")
        for item in values_of(block.instances, [], self.where, f"{prefix}instances"):
            if task == "plan" or not isinstance(item, str):
                raise InputError(self.where, f"{prefix}instances", f"has {shown(item)}", "give files or library:NAME, to solve")
            for name, stated in self._parsed(f"{prefix}instances", _instance_names, item):
                if not wanted or stated in wanted:
                    yield {"instances": name}, {"instance": name}, stated

    def _parsed(self, field: str, parse: Callable[[str], Found], text: str) -> Found:
        """The value of a function for a text of the study. Its InputError about an argument is raised as one about the study's
        field."""
        try:
            return parse(text)
        except InputError as error:
            if error.where != COMMAND_LINE:
                raise
            raise InputError(self.where, field, error.problem, error.fix) from None

    def _is_excluded(self, values: Mapping[str, Any]) -> bool:
        """Whether an entry of `exclude` leaves a cell out, which is then counted."""
        for number, condition in enumerate(self.study.exclude):
            if self._matches(values, condition, f"exclude[{number}]"):
                self.excluded[number] += 1
                return True
        return False

    def _matches(self, values: Mapping[str, Any], condition: Mapping[str, Any], field: str) -> bool:
        """Whether a cell has, on every axis of a condition, one of the condition's values. values: the cell's, by axis."""
        if not condition:
            raise InputError(self.where, field, "is empty, which all cells meet", "name an axis, such as {models: gpt2}")
        for axis, wanted in condition.items():
            if axis not in self.known:
                raise InputError(self.where, f"{field}.{axis}", "is no axis of this study", one_of(axis, sorted(self.known)))
            items = any_values(wanted, self.where, f"{field}.{axis}")
            if axis == "sequences":
                items = [
                    self._parsed(f"{field}.{axis}", parse_tokens, item) if isinstance(item, str) else item for item in items
                ]
            if not any(equals(values.get(axis), item) for item in items):
                return False
        return True


def _check_names(where: str, content: Mapping[Any, Any]) -> None:
    """Raise InputError for a name that is no field of studies; a file with none of their fields is left to `parse`."""
    if not set(content) & set(StudyFile.model_fields) - {"name"}:
        return
    blocks = content.get("include")
    parts: list[tuple[str, type[Block], Any]] = [("", StudyFile, content)]
    parts += [(f"include[{number}].", Block, block) for number, block in enumerate(blocks if isinstance(blocks, list) else [])]
    for prefix, record, part in parts:
        names = [field.alias or name for name, field in record.model_fields.items()]
        for name in part if isinstance(part, Mapping) else ():
            if name not in names:
                raise InputError(where, f"{prefix}{name}", "is no field of a study", one_of(name, names))


def _by_axis(further: Mapping[str, Any]) -> dict[str, Any]:
    """The values of limits, seed, cold and repeat by the names that conditions have for them."""
    return dict(zip(SOLVING, (further[name] for name in ("limits", "seed", "cold", "repeat")), strict=True))


def _instance_names(item: str) -> list[tuple[str, str]]:
    """The instances that an entry of the file names, each with its problem: files, also by a pattern, or library:PATTERN."""
    if item.startswith(LIBRARY):
        entries = attribute("trainplan.libraries.catalogue:library")().matching(item.removeprefix(LIBRARY))
        return [(f"{LIBRARY}{row['name']}", row["problem"]) for row in entries.rows()]
    found = list[tuple[str, str]]()
    for path in sorted(glob.glob(item)) or [item]:
        content = read_data(path)
        name = content.get("problem") if isinstance(content, dict) else None
        if name not in problem_names():
            raise InputError(path, "problem", f"is {shown(name)}", one_of(name, problem_names()))
        found.append((path, name))
    return found
