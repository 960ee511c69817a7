"""Fields of a tool's configuration, each declared once for the code that reads files and the code that writes them.

A runtime's table of fields is in a module of its own. `KeyReader` reads a field by its kind, its default and its choices, and
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
    """A field of a tool's configuration, such as an argument of Megatron-LM or a key of torchtitan's TOML.

    name: as files spell it, with dots between tables and keys. kind: that of its value: a whole number, a number, on or off
    (flag), a text, or anything. default: the tool's own; None if it has none. choices: the possible texts; empty for any text.
    words: for values with an equivalent in plans, the plan's term by the tool's. says: the field of RunConfiguration that it
    decides, for errors. written: function that computes what an export writes, from the export's values: a value, or a plan's
    term to be translated by `words`; None if the field is left out.
    """

    name: str
    kind: Kind
    default: Any = None
    choices: Collection[str] = ()
    words: Mapping[str, Any] | None = None
    says: str = ""
    written: Written | None = None

    def value(self, exported: Any) -> Any:
        """The value that an export writes for this field; None if it is left out. exported: the export's values, which are
        given to `written`."""
        value = None if self.written is None else self.written(exported)
        if value is None:
            return None
        return bool(value) if self.kind == "flag" else value if self.words is None else self.spelt(value)

    def spelt(self, word: Any) -> str:
        """The tool's term for a plan's term; the first of several."""
        assert self.words is not None, f"{self.name} has no words"
        return next(spelling for spelling, meant in self.words.items() if meant == word)


def whole(name: str, default: int | None = None, written: Written | None = None, says: str = "") -> Field:
    """Declares a field whose value is a whole number. Arguments as of Field."""
    return Field(name, "whole", default, says=says, written=written)


def number(name: str, default: float, written: Written | None = None) -> Field:
    """Declares a field whose value is a number. Arguments as of Field."""
    return Field(name, "number", default, written=written)


def flag(name: str, written: Written | None = None, default: bool = False) -> Field:
    """Declares a field that is on or off. Arguments as of Field."""
    return Field(name, "flag", default, written=written)


def text(
    name: str,
    default: str = "",
    written: Written | None = None,
    choices: Collection[str] = (),
    words: Mapping[str, Any] | None = None,
    says: str = "",
) -> Field:
    """Declares a field whose value is a text. Arguments as of Field."""
    return Field(name, "text", default, choices, words, says, written)


def anything(name: str, written: Written | None = None, says: str = "", words: Mapping[str, Any] | None = None) -> Field:
    """Declares a field whose form its reader decides. Arguments as of Field."""
    return Field(name, "any", None, (), words, says, written)


def by_name(*tables: Iterable[Field]) -> dict[str, Field]:
    """The fields of tables by name; of two declarations of one name, for two forms of a file, the first."""
    result: dict[str, Field] = {}
    for table in tables:
        for field in table:
            result.setdefault(field.name, field)
    return result


def values_of(table: Iterable[Field], exported: Any) -> dict[str, Any]:
    """The values that an export writes, by name in the order of the table. exported: the export's values."""
    values = {field.name: field.value(exported) for field in table}
    return {name: value for name, value in values.items() if value is not None}


def sections_of(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Values by section and key; the section is the part of a name before its last dot."""
    sections: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        section, _, key = name.rpartition(".")
        sections.setdefault(section, {})[key] = value
    return sections


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values in nested tables, as the dots in their names say."""
    result: dict[str, Any] = {}
    for name, value in values.items():
        *path, key = name.split(".")
        table = result
        for step in path:
            table = table.setdefault(step, {})
        table[key] = value
    return result
