"""The base class of all problems' instances (name, provenance, digest, summary), and the first fields of their files."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from trainplan.profiling.base.display import html_table, rich_table
from trainplan.profiling.base.files import Record, only
from trainplan.profiling.base.quantities import format_bytes


class InstanceFile(Record):
    """The fields that the file formats of all problems' instances begin with: problem, version, name and provenance. An
    instance holds the costs and limits of one planning question.
    """

    problem: str
    version: Annotated[Literal[1], only(1)]
    name: str | None = None
    provenance: dict[str, Any] | None = None

    @property
    def labels(self) -> dict[str, Any]:
        """The file's `name` and `provenance` (where the instance's numbers come from), as keyword arguments for an instance;
        each is empty if the file lacks it.
        """
        return {"name": self.name or "", "provenance": self.provenance or {}}

    def tuples(self, names: Iterable[str]) -> dict[str, Any]:
        """The file's fields of the given names, by name, in the form for an in-memory instance: lists become tuples, other
        values stay unchanged.
        """
        fields = {name: getattr(self, name) for name in names}
        return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}


@dataclass(frozen=True, eq=False, kw_only=True)
class ProblemInstance(ABC):
    """An instance of a planning problem: the costs and limits of one question. Its name and provenance do not affect the
    answer; everything that does is covered by its digest.

    Attributes:
        name: a name for people; the problem's name if it is empty.
        provenance: where the numbers come from.
        problem: the name of the problem.
        undigested: names of the fields of the file that the digest leaves out.
    """

    name: str = ""
    provenance: dict[str, Any] = field(default_factory=dict)

    problem: ClassVar[str]
    undigested: ClassVar[tuple[str, ...]] = ("name", "provenance")

    def __init_subclass__(cls) -> None:
        cls.__repr__ = ProblemInstance.__repr__  # type: ignore[method-assign]  # in place of dataclass's, which has all numbers

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or self.problem)

    def __repr__(self) -> str:
        facts = ", ".join(f"{label} {text}" for label, text in self.summary()[2:])
        return f"<{self.problem} {self.name!r}: {facts}>"

    def __rich__(self) -> Any:
        return rich_table(self.summary())

    def _repr_html_(self) -> str:
        """The rows of `summary` as an HTML table, which notebooks show for the instance."""
        return html_table(self.summary())

    @property
    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """Numbers that show how large the instance is, by name: layers, options, stages, devices, and `memory_bytes` if devices
        have a memory limit."""

    def summary(self) -> list[tuple[str, str]]:
        """Pairs of label and text for people: the problem, the instance's name, and the sizes, with bytes as text such as "16
        GiB"."""
        texts = {name: format_bytes(value) if name.endswith("_bytes") else str(value) for name, value in self.sizes.items()}
        rows = [(name.removesuffix("_bytes").replace("_", " "), text) for name, text in texts.items()]
        return [("problem", self.problem), ("name", self.name), *rows]

    @property
    def header(self) -> dict[str, Any]:
        """The fields that the instance's file begins with, by name: problem, version, name and provenance."""
        return {"problem": self.problem, "version": 1, "name": self.name, "provenance": self.provenance}

    def lists(self, names: Iterable[str]) -> dict[str, Any]:
        """The instance's fields of the given names, by name, in the form for a JSON file: arrays and tuples become lists."""
        fields = {name: getattr(self, name) for name in names}
        whole = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in fields.items()}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in whole.items()}

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The instance in its JSON file format."""

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hexadecimal digits, of all that the answer depends on; name, provenance and other `undigested` fields are
        left out."""
        content = {name: value for name, value in self.to_dict().items() if name not in self.undigested}
        return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()

    @property
    def common_memory_bytes(self) -> int | None:
        """The memory limit that all devices share, in bytes; None if there is no limit, or if devices have different limits."""
        limit: int = self.memory_bytes  # type: ignore[attr-defined]  # others have a property of their own
        return limit

    def with_memory(self, memory_bytes: int) -> Self:
        """A copy of the instance in which every device has a memory limit of `memory_bytes`."""
        return replace(self, memory_bytes=memory_bytes)  # type: ignore[call-arg]  # others have a method of their own


class Timed:
    """Base class of evaluations whose objective is their time in ns."""

    time_ns: int

    @property
    def objective(self) -> int:
        """The number to be minimised: the time in nanoseconds."""
        return self.time_ns
