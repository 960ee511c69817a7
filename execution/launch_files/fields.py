"""Fields of a tool's configuration, each declared once: what reads files and what writes them take it from the declaration.

A runtime's table of fields is in a module of its own. `Keys` reads a field by its kind, its default and its choices, and
`values_of` gives what an export writes, in the order of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["whole", "number", "flag", "text", "any"]
Written = Callable[[Any], Any]


@dataclass(frozen=True)
class Field:
    """A field, such as an argument of Megatron-LM or a key of torchtitan's TOML.

    name: as files spell it, with dots between tables and keys. kind: of its value, a whole number, a number, whether something
    is on (flag), a text, or anything. default: the tool's own where the field is not given; None where it has none. choices:
    the texts that it may be, any where there are none. words: of values that stand for what plans say, the plan's word by the
    tool's. says: the field of a run's configuration that it decides, for errors. written: what an export gives it, from what
    the export knows of its plan: a value, or a plan's word that `words` have; None where it is left out.
    """

    name: str
    kind: Kind
    default: Any = None
    choices: Collection[str] = ()
    words: Mapping[str, Any] | None = None
    says: str = ""
    written: Written | None = None

    def value(self, told: Any) -> Any:
        """What is written of a plan; None where the field is left out. told: what the export knows of the plan."""
        value = None if self.written is None else self.written(told)
        if value is None:
            return None
        return bool(value) if self.kind == "flag" else value if self.words is None else self.spelt(value)

    def spelt(self, word: Any) -> str:
        """The tool's word for a plan's word; the first where there are several."""
        assert self.words is not None, f"{self.name} has no words"
        return next(spelling for spelling, meant in self.words.items() if meant == word)


def whole(name: str, default: int | None = None, written: Written | None = None, says: str = "") -> Field:
    """A whole number."""
    return Field(name, "whole", default, says=says, written=written)


def number(name: str, default: float, written: Written | None = None) -> Field:
    """A number."""
    return Field(name, "number", default, written=written)


def flag(name: str, written: Written | None = None, default: bool = False) -> Field:
    """Whether something is on."""
    return Field(name, "flag", default, written=written)


def text(
    name: str,
    default: str = "",
    written: Written | None = None,
    choices: Collection[str] = (),
    words: Mapping[str, Any] | None = None,
    says: str = "",
) -> Field:
    """A text. words: by which its choices stand for what plans say."""
    return Field(name, "text", default, choices, words, says, written)


def anything(name: str, written: Written | None = None, says: str = "", words: Mapping[str, Any] | None = None) -> Field:
    """A value whose form its reader decides."""
    return Field(name, "any", None, (), words, says, written)


def by_name(*tables: Iterable[Field]) -> dict[str, Field]:
    """Fields of tables by their names; of two declarations of one name, which two forms of a file have, the first."""
    made: dict[str, Field] = {}
    for table in tables:
        for field in table:
            made.setdefault(field.name, field)
    return made


def values_of(table: Iterable[Field], told: Any) -> dict[str, Any]:
    """What an export writes: by name, in the order of the table. told: what it knows of its plan."""
    values = {field.name: field.value(told) for field in table}
    return {name: value for name, value in values.items() if value is not None}


def sections_of(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Values by section and key: a section is what is in front of a name's last dot."""
    sections: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        section, _, key = name.rpartition(".")
        sections.setdefault(section, {})[key] = value
    return sections


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values in tables within tables, as dots in their names say."""
    made: dict[str, Any] = {}
    for name, value in values.items():
        *path, key = name.split(".")
        table = made
        for step in path:
            table = table.setdefault(step, {})
        table[key] = value
    return made
