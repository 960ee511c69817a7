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
    """The fields that the file formats of all instances begin with."""

    problem: str
    version: Annotated[Literal[1], only(1)]
    name: str | None = None
    provenance: dict[str, Any] | None = None

    @property
    def labels(self) -> dict[str, Any]:
        """The instance's name and provenance as keyword arguments, empty where the file has none."""
        return {"name": self.name or "", "provenance": self.provenance or {}}

    def tuples(self, names: Iterable[str]) -> dict[str, Any]:
        """The fields of the given names as instances hold them: lists as tuples."""
        fields = {name: getattr(self, name) for name in names}
        return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}


@dataclass(frozen=True, eq=False, kw_only=True)
class ProblemInstance(ABC):
    """An instance of a problem: its name and provenance, on which no answer depends, and a digest of all that answers depend
    on.

    Attributes:
        name: for people; the problem's name where it is empty.
        provenance: where the numbers come from.
        problem: the name of the problem.
        undigested: fields of the file that the digest leaves out.
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
        return html_table(self.summary())

    @property
    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """Numbers that show how large the instance is, by name: layers, options, stages, devices, and `memory_bytes` where
        devices have a limit."""

    def summary(self) -> list[tuple[str, str]]:
        """The label and the text of every line that people see: the problem, the name, and the sizes."""
        texts = {name: format_bytes(value) if name.endswith("_bytes") else str(value) for name, value in self.sizes.items()}
        rows = [(name.removesuffix("_bytes").replace("_", " "), text) for name, text in texts.items()]
        return [("problem", self.problem), ("name", self.name), *rows]

    @property
    def header(self) -> dict[str, Any]:
        """The fields that the instance's file begins with."""
        return {"problem": self.problem, "version": 1, "name": self.name, "provenance": self.provenance}

    def lists(self, names: Iterable[str]) -> dict[str, Any]:
        """The instance's fields of the given names as files hold them: arrays and tuples as lists."""
        fields = {name: getattr(self, name) for name in names}
        whole = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in fields.items()}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in whole.items()}

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The instance in its file format."""

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all that the answer depends on, in hexadecimal digits; names and provenance are left out."""
        content = {name: value for name, value in self.to_dict().items() if name not in self.undigested}
        return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()

    @property
    def common_memory_bytes(self) -> int | None:
        """The memory limit of every device in bytes; None where there is none, or where devices have different ones."""
        limit: int = self.memory_bytes  # type: ignore[attr-defined]  # others have a property of their own
        return limit

    def with_memory(self, memory_bytes: int) -> Self:
        """The instance with `memory_bytes` as the memory limit of every device."""
        return replace(self, memory_bytes=memory_bytes)  # type: ignore[call-arg]  # others have a method of their own


class Timed:
    """Base of evaluations whose objective is their time."""

    time_ns: int

    @property
    def objective(self) -> int:
        """The number to be minimised: the time in nanoseconds."""
        return self.time_ns
