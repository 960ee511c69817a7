"""What followed expressions of a Python file stand for, beside plain values: names from elsewhere, objects, the unknown."""

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
    """An expression whose value is not known without running the file. held: objects that it may be, or have parts of; plain:
    it is a number or a text, and has none."""

    text: str
    line: int
    held: tuple[ConstructedObject, ...] = field(default=(), repr=False, compare=False)
    plain: bool = field(default=False, repr=False, compare=False)


@dataclass(eq=False)
class ConstructedObject:
    """An object that a call makes. name: of what is called. fields: its arguments by name, those by place as "0", "1", and what
    is assigned to it afterwards; lines: where each is written. implied: made by reading an attribute that nothing set. changed:
    calls that the object is given to, and may be changed by. passed: the arguments themselves, where fields have copies.
    usual: values of fields that nothing sets, and of those of its parts."""

    name: str
    line: int
    fields: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    implied: bool = False
    changed: list[UnreadExpression] = field(default_factory=list)
    passed: list[Any] = field(default_factory=list, repr=False)
    usual: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def flattened(self, prefix: str = "", above: tuple[int, ...] = ()) -> Iterator[tuple[str, Any, int]]:
        """Fields of the object and of those that it holds: names joined by dots, values and lines."""
        for name, value in self.fields.items():
            yield f"{prefix}{name}", value, self.lines.get(name, self.line)
            if isinstance(value, ConstructedObject) and id(value) not in above:
                yield from value.flattened(f"{prefix}{name}.", (*above, id(value)))

    def changes(self) -> Iterator[UnreadExpression]:
        """Calls by which the object, or one that it holds, may be changed."""
        yield from self.changed
        for _, value, _ in islice(self.flattened(), MOST_FIELDS):
            if isinstance(value, ConstructedObject):
                yield from value.changed
