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
    """An expression of a Python file whose value is not known without running the file. text: its source. line: its line.
    held: objects that the value may be or contain. plain: whether the value is a number or a text, which contains no
    objects."""

    text: str
    line: int
    held: tuple[ConstructedObject, ...] = field(default=(), repr=False, compare=False)
    plain: bool = field(default=False, repr=False, compare=False)


@dataclass(eq=False)
class ConstructedObject:
    """An object that a call in a Python file makes, such as `TrainerConfig(steps=10)`; the file is followed without running it.

    name: the name of the function or class that is called. line: the line of the call. fields: the call's arguments by name,
    positional ones as "0", "1" and so on, and values assigned to attributes later. lines: the line where each field is written.
    implied: whether the object only stands for an attribute that nothing in the file sets. changed: calls that receive the
    object and may change it. passed: the arguments themselves, where `fields` has copies. usual: default values of fields that
    the file does not set, nested for objects in it.
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
        """The fields of the object and of the objects in it, as triples of dotted name, value and line. prefix: put in front
        of every name. above: ids of the enclosing objects, so that an object inside itself is not followed forever."""
        for name, value in self.fields.items():
            yield f"{prefix}{name}", value, self.lines.get(name, self.line)
            if isinstance(value, ConstructedObject) and id(value) not in above:
                yield from value.flattened(f"{prefix}{name}.", (*above, id(value)))

    def changes(self) -> Iterator[UnreadExpression]:
        """The calls that receive this object, or an object in it, and may change it in a way that is not followed; each call
        as the expression that stands in the file."""
        yield from self.changed
        for _, value, _ in islice(self.flattened(), MOST_FIELDS):
            if isinstance(value, ConstructedObject):
                yield from value.changed
