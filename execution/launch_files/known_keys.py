"""Keys that a tool documents and that change no plan: a list beside the module that reads the tool's files.

A list is a text with the suffix `.keys` and the module's name. A line that begins with `#` is a comment; `[section]` stands in
front of the keys of a section, which are written without it; all others are keys apart by blanks, and `start*` stands for all
keys that begin so, such as those of a table that changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple


class KnownKeys(NamedTuple):
    """Keys that change no plan. names: each whole, `section.key` where it is of a section; starts: how others begin."""

    names: frozenset[str]
    starts: tuple[str, ...] = ()

    def more(self, names: Collection[str] = (), starts: Collection[str] = ()) -> KnownKeys:
        """These and others."""
        return KnownKeys(self.names | set(names), (*self.starts, *starts))

    def has(self, key: str) -> bool:
        """Whether a key is one of them."""
        return key in self.names or key.startswith(self.starts)

    def sections(self) -> dict[str, frozenset[str]]:
        """The keys of each section, without it."""
        made: dict[str, set[str]] = {}
        for name in self.names:
            section, _, key = name.partition(".")
            made.setdefault(section, set()).add(key)
        return {section: frozenset(keys) for section, keys in sorted(made.items())}


def known_keys(module: str) -> KnownKeys:
    """The list beside a module. module: its `__file__`."""
    names, starts, section = set[str](), list[str](), ""
    for line in Path(module).with_suffix(".keys").read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]") + "."
        elif not line.startswith("#"):
            words = line.split()
            starts += [section + word.removesuffix("*") for word in words if word.endswith("*")]
            names |= {section + word for word in words if not word.endswith("*")}
    return KnownKeys(frozenset(names), tuple(starts))
