"""New entries: an instance is solved by every exact method, evidence of its bound is found, and all is checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from trainplan.formulations.problem import InstanceLike, problem_of
from trainplan.libraries.catalogue import Library, library, write_entry
from trainplan.libraries.checking import check_entry
from trainplan.libraries.evidence import evidence
from trainplan.libraries.provenance import WHO, lower_bound_of, seconds_of, upper_bound_of
from trainplan.libraries.records import FORMAT, Earlier, Entry, Status, content_of, short_name
from trainplan.profiling.base.errors import InputError, Unsupported
from trainplan.solvers.core.method_registry import BRUTE_FORCE, methods
from trainplan.solvers.core.result import Result
from trainplan.solvers.core.solve import solve

EASY_S = 10.0  # seconds within which some exact method closes an easy instance


def entry_of(
    instance: InstanceLike, name: str, about: str, source: dict[str, str], request: dict[str, Any] | None = None
) -> Entry:
    """An entry without bounds for an instance. request: the arguments of `trainplan build` that make the instance, if any do.

    Raises InputError for a name that is none, or that does not begin with the problem's short name.
    """
    short = short_name(instance.problem)
    if not name.startswith(f"{short}/"):
        raise InputError("command line", "--name", f"is {name!r}", f"give one that begins with {short}/")
    fields: dict[str, Any] = {
        "format": FORMAT,
        "name": name,
        "problem": instance.problem,
        "about": about,
        "source": source,
        "request": request,
        "instance_hash": instance.digest,  # type: ignore[attr-defined]  # see InstanceLike
        "instance": content_of(instance, request),
        "size": {key: int(value) for key, value in problem_of(instance).size(instance).items()},
        "status": "open",
        "upper_bound": None,
        "lower_bound": None,
    }
    return Entry.model_validate(fields)


def improved(entry: Entry, result: Result, options: dict[str, Any] | None = None, who: str = WHO) -> Entry:
    """An entry with what a method's result adds to it: a better solution, a larger lower bound, or that nothing fits.

    Bounds that are replaced go into the history. options: the method's own, as they were given. who: a person or a program.
    Raises InputError for a result that contradicts the entry.
    """
    if result.instance_hash != entry.instance_hash:
        raise InputError(entry.name, "instance_hash", f"is {entry.instance_hash}", f"the result is of {result.instance_hash}")
    if result.status == "failed":
        return entry
    upper, lower = upper_bound_of(result, options, who), lower_bound_of(result, options, who)
    if upper is None or (entry.best is not None and upper.value >= entry.best):
        upper = None
    if lower is None or (entry.bound is not None and lower.value <= entry.bound):
        lower = None
    best, bound = upper or entry.upper_bound, lower or entry.lower_bound
    infeasible = entry.infeasible or result.status == "infeasible"
    if (best and bound and bound.value > best.value) or (infeasible and best):
        raise InputError(entry.name, "bounds", f"of {result.method} contradict those of the entry", "report this")
    replaced = Earlier(upper_bound=entry.upper_bound if upper else None, lower_bound=entry.lower_bound if lower else None)
    kept = [replaced] if replaced.upper_bound or replaced.lower_bound else []
    closed = infeasible or (best is not None and bound is not None and best.value == bound.value)
    proves = result.status in ("optimal", "infeasible") and seconds_of(result) <= EASY_S
    status: Status = "open" if not closed else "easy" if proves or entry.status == "easy" else "hard"
    reason = entry.reason or (str(result.reason or result.message or "nothing fits") if infeasible else None)
    return entry.changed(
        upper_bound=best,
        lower_bound=None if infeasible else bound,
        infeasible=infeasible,
        status=status,
        reason=reason,
        history=[*kept, *entry.history],
    )


def with_evidence(entry: Entry, instance: Any) -> Entry:
    """An entry with evidence of its lower bound, if some is found for a larger bound than the one that it has evidence of."""
    if entry.best is None:
        return entry
    found, known = evidence(instance, entry.best), entry.checked_lower_bound
    return entry if found is None or (known and known.value >= found.value) else entry.changed(checked_lower_bound=found)


def solved(entry: Entry, time_limit: float, who: str = WHO, progress: Callable[[str], None] | None = None) -> tuple[Entry, Any]:
    """An entry with the bounds that the exact methods of its problem find, one after another until one closes it.

    time_limit: seconds for each method. progress: called with the name of each method. Returns the entry and its instance.
    """
    instance = entry.instance()
    for method in methods(entry.problem):
        if not method.proves or method.name == BRUTE_FORCE.name or entry.status != "open":
            continue
        if progress is not None:
            progress(method.name)
        try:
            entry = improved(entry, solve(instance, method.name, time_limit=time_limit, gap=0.0), who=who)
        except Unsupported:
            continue
    return entry, instance


def add(entry: Entry, folder: Path | None = None) -> Path:
    """Write an entry into a folder, which is made if it is not there, or into the package's own, unless a check finds a fault
    in it; return its file.

    Raises InputError for a fault, a name or an instance that the folder has already, or a folder that cannot be written.
    """
    known = library(folder) if folder is None or folder.exists() else Library(folder, [])
    _refuse_known(entry, known)
    checked = check_entry(entry)
    if checked.faults:
        raise InputError(entry.name, "", checked.faults[0], "give what the check accepts")
    if entry.upper_bound is None and not entry.infeasible:
        raise InputError(entry.name, "upper_bound", "is missing", "give a solution, or a longer time limit to find one")
    known.folder.mkdir(parents=True, exist_ok=True)
    return write_entry(known.folder, entry)


def _refuse_known(entry: Entry, known: Library) -> None:
    """Raise InputError if the library has an entry of this name, or one of this instance."""
    if entry.name in known:
        raise InputError("command line", "--name", f"is {entry.name!r}, which the library has", "give another name")
    same: Iterable[dict[str, Any]] = (row for row in known.rows() if row["problem"] == entry.problem)
    for row in same:
        if row["instance_hash"] == entry.instance_hash:
            raise InputError(entry.name, "instance_hash", f"is that of {row['name']}", "give an instance that is not there yet")
