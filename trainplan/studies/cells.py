"""Cells of a study: one run of one method on one request or instance, its name, and the key by which a result is known."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from trainplan.planning.presets import DEFAULT
from trainplan.profiling.base.plugins import attribute
from trainplan.profiling.base.quantities import format_bytes
from trainplan.solvers.core.limits import GAP, TIME_LIMIT_S

SUBJECT = ("model", "cluster", "batch", "sequence")
LIBRARY = "library:"  # what the name of an instance of the library begins with, in a request
KEY_DIGITS = 32
NO_LIMITS: dict[str, Any] = {"time_limit": TIME_LIMIT_S, "memory": None, "gap": GAP, "grace": None}


@dataclass(frozen=True)
class Cell:
    """One cell of a study.

    Attributes:
        task: solve (build one instance and run a method on it) or plan (as `trainplan plan` does).
        request: keywords of `build` or `plan`, JSON values only; or {"instance": FILE or "library:NAME"}.
        problem: the problem's name; of task plan the preset or problem, None for the default preset.
        runtime: the runtime to plan for; None for none.
        method: the method's name, and `options` its own options.
        limits: time_limit in seconds (None for none), memory in bytes that the solving process may add (None for no limit),
            gap, and grace, the seconds after the time limit after which the process is killed (None: see `isolated`).
        seed, cold: as `solve` takes them.
        repeat: the number of the repetition, from 0.
        groups: the study's groups that it belongs to.
    """

    task: Literal["solve", "plan"]
    request: Mapping[str, Any]
    problem: str | None
    method: str = "exact"
    runtime: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    limits: Mapping[str, Any] = field(default_factory=lambda: NO_LIMITS)
    seed: int = 0
    cold: bool = False
    repeat: int = 0
    groups: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The cell in words, such as "gpt2 · h100:8 · 64 · joint · milp": every part that is not at its default, so that equal
        names mean equal cells, whatever else the study has."""
        request = dict(self.request)
        parts = [str(request.pop("instance"))] if "instance" in request else []
        parts += [str(value) for name in SUBJECT[:3] if (value := request.pop(name, None)) is not None]
        parts += [f"{tokens} tokens"] if (tokens := request.pop("sequence", None)) is not None else []
        parts += [f"{name} {_text(value)}" for name, value in sorted(request.items())]
        parts += ["plan"] * (self.task == "plan") + [text for text in (self.problem, self.runtime) if text] + [self.method]
        parts += [f"{name} {_text(value)}" for name, value in sorted(self.options.items())]
        parts += [_limit_text(name, value) for name, value in self.limits.items() if value != NO_LIMITS[name]]
        parts += [f"seed {self.seed}"] * bool(self.seed) + ["cold"] * self.cold
        return " · ".join([*parts, *[f"repeat {self.repeat}"] * bool(self.repeat)])

    @property
    def request_text(self) -> str:
        """The request as canonical JSON; for files and instances of the library that it names, with
        the SHA-256 of their content, under "files"."""
        contents = {name: digest for name, value in self.request.items() if (digest := _content(value)) is not None}
        return canonical({**self.request, **({"files": contents} if contents else {})})

    def to_dict(self) -> dict[str, Any]:
        """The cell as a dict of JSON values, with its name and its request's text, as `isolated.run_cell` takes it."""
        values = asdict(self)
        return {**values, "groups": [*self.groups], "name": self.name, "request_text": self.request_text}


def key_of(cell: Mapping[str, Any], instance_hash: str | None, versions: Mapping[str, str], machine_id: str) -> str:
    """The key of a cell's result: the first digits of the SHA-256 of everything that decides it.

    cell: as `Cell.to_dict` gives it. instance_hash: SHA-256 of the instance; None for task plan, and where no instance could be
    built: the request stands for it, with its files' content, and versions for what is shipped under a name. versions: as
    `environment.versions` gives them. machine_id: as `environment.machine_id` gives it.
    """
    parts = ("task", "problem", "runtime", "method", "options", "limits", "seed", "cold", "repeat")
    known: dict[str, Any] = {name: cell[name] for name in parts}
    known |= {"instance": instance_hash} if instance_hash else {"request": cell["request_text"]}
    known |= {"versions": dict(versions), "machine": machine_id}
    return hashlib.sha256(canonical(known).encode()).hexdigest()[:KEY_DIGITS]


def problem_of(task: str, problem: str | None) -> str | None:
    """The problem or preset that a cell's row names: the cell's own, or the default preset where a cell that plans names
    none. task, problem: the cell's."""
    return DEFAULT if problem is None and task == "plan" else problem


def canonical(value: Any) -> str:
    """A value as JSON with sorted keys and without blanks, so that equal values give equal texts."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _text(value: Any) -> str:
    """A value of a request as part of a cell's name: a text by itself, others as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def _limit_text(name: str, value: Any) -> str:
    """A limit of a cell as part of its name: ("time_limit", 10.0) gives "10 s"."""
    if name == "memory" and value is not None:
        return f"within {format_bytes(value)}"
    if name == "time_limit" and value is not None:
        return f"{value:g} s"
    return f"no {name.replace('_', ' ')}" if value is None else f"{name} {value:g}"


def _content(value: Any) -> str | None:
    """SHA-256 of the file, or of the library's instance, that a value of a request names; None if it names none."""
    if isinstance(value, str) and value.startswith(LIBRARY):
        return _library_hashes().get(value.removeprefix(LIBRARY))
    if not isinstance(value, str) or not os.path.isfile(value):
        return None
    status = os.stat(value)
    return _digest(value, status.st_mtime_ns, status.st_size)


@cache
def _library_hashes() -> dict[str, str]:
    """The hashes of the library's instances by name."""
    return {row["name"]: row["instance_hash"] for row in attribute("trainplan.libraries.catalogue:library")().rows()}


@cache
def _digest(path: str, changed_ns: int, size: int) -> str:
    """SHA-256 of a file's content. changed_ns, size: of the file, so that a changed one is read again."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
