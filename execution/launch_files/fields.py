"""Fields of a tool's configuration, each declared once for the code that reads files and the code that writes them.

A runtime's table of fields is in a module of its own. `KeyReader` reads a field by its kind, its default and its choices, and
`values_of` gives what an export writes, in the order of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trainplan.profiling.base.errors import InputError

Kind = Literal["whole", "number", "flag", "text", "any"]
Written = Callable[[Any], Any]


@dataclass(frozen=True)
class Field:
    """A field of a tool's configuration, such as an argument of Megatron-LM or a key of torchtitan's TOML. One declaration
    serves both directions: a reader of the tool's files takes kinds, defaults and choices from it, and an export of a plan
    computes from it what to write.

    name: as files spell it, with dots between tables and keys. kind: the kind of its value: "whole" (number), "number", "flag"
    (on or off), "text" or "any". default: the tool's own default; None if it has none. choices: the possible texts; empty for
    any text. words: for values with an equivalent in plans, a mapping from the tool's term to the plan's term. says: the name
    of the field of RunConfiguration that this field decides, for errors. written: function that computes what an export writes,
    from the export's values: a value, or a plan's term to be translated by `words`; None if an export leaves the field out.
    """

    name: str
    kind: Kind
    default: Any = None
    choices: Collection[str] = ()
    words: Mapping[str, Any] | None = None
    says: str = ""
    written: Written | None = None

    def value(self, exported: Any) -> Any:
        """The value that an export of a plan writes for this field; None if the export leaves it out. exported: the export's
        record of the plan's properties, such as degrees and sizes, from which `written` computes the value."""
        value = None if self.written is None else self.written(exported)
        if value is None:
            return None
        return bool(value) if self.kind == "flag" else value if self.words is None else self.spelt(value)

    def spelt(self, word: Any) -> str:
        """The tool's term for a plan's term; the first of several. Raises InputError where the tool has none."""
        assert self.words is not None, f"{self.name} has no words"
        for spelling, meant in self.words.items():
            if meant == word:
                return spelling
        fix = f"give {' or '.join(dict.fromkeys(map(str, self.words.values())))}: {self.name} has no other"
        raise InputError("plan", self.says or self.name, f"is {word!r}", fix)


def whole(name: str, default: int | None = None, written: Written | None = None, says: str = "") -> Field:
    """Declare a field of a tool's configuration whose value is a whole number. name: as files spell it. default: the tool's
    own default; None if it has none. written: function that computes what an export writes; None if exports leave the field
    out. says: the name of the field of RunConfiguration that it decides."""
    return Field(name, "whole", default, says=says, written=written)


def number(name: str, default: float, written: Written | None = None) -> Field:
    """Declare a field of a tool's configuration whose value is a number. name: as files spell it. default: the tool's own
    default. written: function that computes what an export writes; None if exports leave the field out."""
    return Field(name, "number", default, written=written)


def flag(name: str, written: Written | None = None, default: bool = False) -> Field:
    """Declare a field of a tool's configuration that is on or off. name: as files spell it. written: function that computes
    what an export writes; None if exports leave the field out. default: the tool's own default."""
    return Field(name, "flag", default, written=written)


def text(
    name: str,
    default: str = "",
    written: Written | None = None,
    choices: Collection[str] = (),
    words: Mapping[str, Any] | None = None,
    says: str = "",
) -> Field:
    """Declare a field of a tool's configuration whose value is a text. name: as files spell it. default: the tool's own
    default. written: function that computes what an export writes; None if exports leave the field out. choices: the possible
    texts; empty for any text. words: mapping from the tool's term to the plan's term; None if no values need translation. says:
    the name of the field of RunConfiguration that it decides."""
    return Field(name, "text", default, choices, words, says, written)


def anything(name: str, written: Written | None = None, says: str = "", words: Mapping[str, Any] | None = None) -> Field:
    """Declare a field of a tool's configuration whose value may have any form; the code that reads it checks the form. name: as
    files spell it. written: function that computes what an export writes; None if exports leave the field out. says: the name
    of the field of RunConfiguration that it decides. words: mapping from the tool's term to the plan's term; None if no values
    need translation."""
    return Field(name, "any", None, (), words, says, written)


def by_name(*tables: Iterable[Field]) -> dict[str, Field]:
    """The fields of several tables of declarations, by name. If a name is declared twice, because a tool's file has two
    forms, the first declaration counts."""
    result: dict[str, Field] = {}
    for table in tables:
        for field in table:
            result.setdefault(field.name, field)
    return result


def values_of(table: Iterable[Field], exported: Any) -> dict[str, Any]:
    """The values that an export of a plan writes into a tool's configuration: by field name, in the order of the table,
    without the fields that are left out. exported: the export's record of the plan's properties, from which every field
    computes its value."""
    values = {field.name: field.value(exported) for field in table}
    return {name: value for name, value in values.items() if value is not None}


def sections_of(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Group values with dotted names by section: {"model.layers": 2} -> {"model": {"layers": 2}}. The section is the part of
    a name before its last dot, so "a.b.c" belongs to section "a.b"."""
    sections: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        section, _, key = name.rpartition(".")
        sections.setdefault(section, {})[key] = value
    return sections


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Turn a mapping with dotted names into nested tables: {"a.b.c": 1} -> {"a": {"b": {"c": 1}}}."""
    result: dict[str, Any] = {}
    for name, value in values.items():
        *path, key = name.split(".")
        table = result
        for step in path:
            table = table.setdefault(step, {})
        table[key] = value
    return result
