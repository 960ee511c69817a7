"""Keys that a tool documents and that affect no plan: a list next to the module that reads the tool's files.

A list is a text file with the module's name and the suffix `.keys`. A line that begins with `#` is a comment; `[section]` is
followed by the keys of a section, without its name; all other words are keys, and `start*` stands for all keys that begin so,
such as those of a table without effect.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple


class KnownKeys(NamedTuple):
    """Keys of a tool's configuration that are known to affect no plan, such as those for logging. names: complete keys,
    `section.key` for a key in a section. starts: beginnings of keys; every key that begins with one of them counts as known."""

    names: frozenset[str]
    starts: tuple[str, ...] = ()

    def more(self, names: Collection[str] = (), starts: Collection[str] = ()) -> KnownKeys:
        """A copy of this list with further complete keys (names) and further beginnings of keys (starts)."""
        return KnownKeys(self.names | set(names), (*self.starts, *starts))

    def has(self, key: str) -> bool:
        """Whether a key is known to affect no plan: by its complete name, or because it begins with one of `starts`."""
        return key in self.names or key.startswith(self.starts)

    def sections(self) -> dict[str, frozenset[str]]:
        """The complete keys grouped by section, without the section's name: {"job.name"} -> {"job": {"name"}}."""
        result: dict[str, set[str]] = {}
        for name in self.names:
            section, _, key = name.partition(".")
            result.setdefault(section, set()).add(key)
        return {section: frozenset(keys) for section, keys in sorted(result.items())}


def known_keys(module: str) -> KnownKeys:
    """The list of keys that affect no plan, read from the file with the suffix .keys next to a module. module: the module's
    `__file__`, such as "reader.py" for the list in "reader.keys"."""
    names, starts, section = set[str](), list[str](), ""
    for line in Path(module).with_suffix(".keys").read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]") + "."
        elif not line.startswith("#"):
            words = line.split()
            starts += [section + word.removesuffix("*") for word in words if word.endswith("*")]
            names |= {section + word for word in words if not word.endswith("*")}
    return KnownKeys(frozenset(names), tuple(starts))
