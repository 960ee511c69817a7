"""Values of expressions of a Python file that is not run, other than plain values: imported names, objects, and unknown
values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

MOST_FIELDS = 10_000  # of an object and those that it holds


class Symbol(str):
    """A name that the file does not define, such as ``torch.bfloat16``, with the module that it is imported from."""


@dataclass(frozen=True)
class UnreadExpression:
    """An expression whose value is not known without running the file. text: its source. held: objects that it may be or
    contain. plain: whether it is a number or a text, which contains no objects."""

    text: str
    line: int
    held: tuple[ConstructedObject, ...] = field(default=(), repr=False, compare=False)
    plain: bool = field(default=False, repr=False, compare=False)


@dataclass(eq=False)
class ConstructedObject:
    """An object that a call makes.

    name: that of the function or class called. line: that of the call. fields: the arguments by name, positional ones as "0",
    "1" and so on, and values assigned to attributes later. lines: where each field is written. implied: whether it only stands
    for an attribute that nothing has set. changed: calls that receive the object and may change it. passed: the arguments
    themselves, where `fields` has copies. usual: values of fields that nothing sets, including those of its parts.
    """

    name: str
    line: int
    fields: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    implied: bool = False
    changed: list[UnreadExpression] = field(default_factory=list)
    passed: list[Any] = field(default_factory=list, repr=False)
    usual: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def flattened(self, prefix: str = "", above: tuple[int, ...] = ()) -> Iterator[tuple[str, Any, int]]:
        """The fields of the object and of the objects in it: names joined by dots, values and lines. above: ids of the
        enclosing objects."""
        for name, value in self.fields.items():
            yield f"{prefix}{name}", value, self.lines.get(name, self.line)
            if isinstance(value, ConstructedObject) and id(value) not in above:
                yield from value.flattened(f"{prefix}{name}.", (*above, id(value)))

    def changes(self) -> Iterator[UnreadExpression]:
        """Calls by which the object, or one in it, may be changed."""
        yield from self.changed
        for _, value, _ in islice(self.flattened(), MOST_FIELDS):
            if isinstance(value, ConstructedObject):
                yield from value.changed
