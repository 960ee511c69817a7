"""Checks of entries: by the library's checker of its own, which shares no code with the package, and by the package."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

from trainplan.formulations.problem import problem, problem_of
from trainplan.libraries.catalogue import shipped_folder
from trainplan.libraries.records import Entry, LowerBound, short_name
from trainplan.profiling.base.errors import InputError

CHECKER = "check_library.py"


@dataclass(frozen=True)
class CheckedEntry:
    """The answer of `trainplan library check` on one entry.

    Attributes:
        name: the entry's name.
        lines: pairs (label, text) that the library's checker prints: the value, the lower bound by evidence, and the verdict.
        faults: a text for everything that does not hold; empty if all does.
    """

    name: str
    lines: tuple[tuple[str, str], ...]
    faults: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The answer as a JSON-ready dict: `name`, `lines` (lists of label and text) and `faults` (texts)."""
        return {"name": self.name, "lines": [list(line) for line in self.lines], "faults": list(self.faults)}


@cache
def checker() -> Any:
    """The library's checker as a module: one file of plain Python, which comes with the entries."""
    spec = spec_from_file_location("check_library", shipped_folder() / CHECKER)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def proven(bound: Callable[..., int], content: dict[str, Any], evidence: dict[str, Any], claim: int) -> int:
    """The bound in ns that the checker computes from evidence, at most the claim; 0 if it refuses the evidence, or the proof
    takes too long. bound: the checker's function of a kind of evidence. content: the instance in its JSON file format. claim:
    the bound to be proven, in ns."""
    try:
        return bound(content, evidence, claim)
    except checker().Wrong:
        return 0


def check_entry(entry: Entry) -> CheckedEntry:
    """Check an entry: its instance's hash and size, its solution, and the evidence of its bound or of its infeasibility, by the
    package and by the checker."""
    try:
        instance = entry.instance()
        faults = [*_contradictions(entry), *_faults_of_size(entry, instance), *_faults_of_solution(entry, instance)]
    except InputError as error:
        return CheckedEntry(entry.name, (), (error.command_text,))
    whole = {**entry.model_dump(mode="json"), "instance": entry.content or instance.to_dict()}
    try:
        lines, holds = checker().check(whole)
    except (checker().Wrong, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as wrong:
        return CheckedEntry(entry.name, (), (*faults, f"{CHECKER}: {wrong or type(wrong).__name__}"))
    if not holds:
        faults += [f"{CHECKER}: {label}: {text}" for label, text in lines if label in ("violation", "wrong")] or [
            f"{CHECKER}: {lines[-1][1]}"
        ]
    return CheckedEntry(entry.name, tuple(map(tuple, lines)), tuple(faults))


def _faults_of_size(entry: Entry, instance: Any) -> list[str]:
    """The faults of an entry's size, as texts."""
    size = {name: int(value) for name, value in problem_of(instance).size(instance).items()}
    return [] if entry.size == size else [f"size is {entry.size}, and the instance's {size}"]


def _faults_of_solution(entry: Entry, instance: Any) -> list[str]:
    """The faults of an entry's best solution, by the package's own evaluation, as texts."""
    if entry.upper_bound is None:
        return []
    stated = problem(entry.problem)
    try:
        solution = stated.load_solution(entry.upper_bound.solution)
        violations = stated.violations(instance, solution)
        value = stated.evaluate(instance, solution).objective
    except ValueError as error:  # InputError is one
        return [f"upper_bound.solution: {error}"]
    wrong = [] if value == entry.best else [f"upper_bound.value is {entry.best}, and its solution's objective is {value}"]
    return [*(f"upper_bound.solution: {text}" for text in violations), *wrong]


def _contradictions(entry: Entry) -> list[str]:
    """Fields of an entry that contradict each other, as texts."""
    upper, lower, checked = entry.upper_bound, entry.lower_bound, entry.checked_lower_bound
    short, faults = short_name(entry.problem), []
    if not entry.name.startswith(f"{short}/"):
        faults.append(f"name is {entry.name!r}, and those of {entry.problem} begin with {short}/")
    if entry.infeasible:
        faults += [f"infeasible is true, and {name} is given" for name, bound in _bounds(entry).items() if bound is not None]
        faults += [] if entry.reason else ["infeasible is true, and reason is missing"]
    elif upper is not None and lower is not None and lower.value > upper.value:
        faults.append(f"lower_bound.value is {lower.value}, more than upper_bound.value, {upper.value}")
    if checked is not None and (lower is None or checked.value > lower.value):
        most = "there is no lower_bound" if lower is None else f"lower_bound.value is {lower.value}"
        faults.append(f"checked_lower_bound.value is {checked.value}, and {most}")
    closed = entry.infeasible or (upper is not None and lower is not None and lower.value == upper.value)
    if closed == (entry.status == "open"):
        faults.append(f"status is {entry.status!r}, and the instance is {'closed' if closed else 'not closed'}")
    return faults


def _bounds(entry: Entry) -> dict[str, LowerBound | None]:
    """An entry's upper and lower bound, by the names of their fields."""
    return {"upper_bound": entry.upper_bound, "lower_bound": entry.lower_bound}
