"""Values that `--set KEY=VALUE` gives for keys of a YAML, JSON or TOML document; they replace those of the file."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from trainplan.execution.launch_files.documents import read_document, written
from trainplan.execution.launch_files.lines import sources_of
from trainplan.execution.launch_files.run_configuration import SET, UserSettings, flattened
from trainplan.profiling.base.errors import COMMAND_LINE, InputError, shown

ACCELERATE = "accelerate"  # the file that the program is launched with, or none
WRITTEN = "accelerate, as written"  # what that file holds, where a script writes it
LAUNCHED_BY = (ACCELERATE, WRITTEN)  # among variables, what is no key of a trainer's file


def read_with_settings(
    path: Path, user: UserSettings, own: Collection[str] = (), text: str | None = None
) -> tuple[Any, dict[str, str]]:
    """The value in a YAML or JSON document with the user's --set values applied, and the source (file and line, or option) of
    each key. path: the document. own: names that the user may set although they are not keys of the document. text: the
    document's content; None to read it from `path`. user: the settings that the user gives in addition to the file. Raises
    InputError for a document that cannot be read, and for a key within a value that is not a table."""
    return with_settings(read_document(path, text), str(path), user, sources_of(path) if text is None else {}, own)


def with_settings(
    data: Any, where: str, user: UserSettings, sources: Mapping[str, str], own: Collection[str] = ()
) -> tuple[Any, dict[str, str]]:
    """Apply the user's --set values to a document that has been read. data: its value. where: its file, for errors. sources:
    file and line of each key. own: names that the user may set although they are not keys of the document. Returns the new
    value and the source of each key. user: the settings that the user gives in addition to the file. Raises InputError for a
    key within a value that is not a table."""
    sources = dict(sources)
    for key, text in user.variables.items():
        if key in own or not isinstance(data, Mapping):
            continue
        value, source = written(text), user.sources.get(key, SET)
        data = _set(data, key.split("."), value, key, where)
        sources = {name: line for name, line in sources.items() if name != key and not name.startswith((f"{key}.", f"{key}["))}
        sources |= dict.fromkeys((key, *(flattened(value, f"{key}.") if isinstance(value, Mapping) else ())), source)
    return data, sources


def _set(data: Mapping[str, Any], names: list[str], value: Any, key: str, where: str) -> dict[str, Any]:
    """A copy of the nested tables `data` in which one value is set to `value`. names: the keys that lead to it, from the
    outermost table. key: the same path as text, and where: the file, both for errors. Raises InputError if the path leads
    through a value that is not a table."""
    first, *rest = names
    if not rest:
        return {**data, first: value}
    inner = data.get(first)
    if not isinstance(inner, Mapping | None):
        table = key.removesuffix(f".{'.'.join(rest)}")
        problem = f"is {key}, and {table} is {shown(inner)} in {where}, which is no table"
        raise InputError(COMMAND_LINE, SET, problem, f"give {table} as a whole, or change the file that it names")
    return {**data, first: _set(inner or {}, rest, value, key, where)}
