"""Line numbers of keys in YAML, JSON and TOML files, by which the source of a value is stated."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from trainplan.execution.launch_files.documents import uncommented

MOST_KEYS, DEEPEST = 100_000, 100  # of a file whose keys are looked for


def lines_of(path: Path) -> dict[str, int]:
    """The line number of every key of a file, counted from 1. Keys are joined by dots; items of lists are numbered, as in
    ``layers[0].name``. If a key is given twice, the last line counts. Empty if the file cannot be read or parsed."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    suffix = path.suffix.lower()
    return text_lines(uncommented(text) if suffix == ".json" else text, toml=suffix == ".toml")


def sources_of(path: Path) -> dict[str, str]:
    """The source of every key of a file as ``file:line``, for reports and errors. Keys are joined by dots; items of lists
    are numbered, as in ``layers[0].name``. Empty if the file cannot be read or parsed."""
    return {key: f"{path}:{line}" for key, line in lines_of(path).items()}


def text_sources(text: str, where: str) -> dict[str, str]:
    """The source of every key of a YAML or JSON text as ``file:line``. Keys are joined by dots; items of lists are numbered, as
    in ``layers[0].name``. where: the name of the text's file."""
    return {key: f"{where}:{line}" for key, line in text_lines(text).items()}


def text_lines(text: str, *, toml: bool = False) -> dict[str, int]:
    """The line number of every key of a text in YAML or JSON, or in TOML if `toml`, counted from 1. Keys are joined by dots;
    items of lists are numbered, as in ``layers[0].name``. Empty if the text cannot be parsed."""
    if toml:
        return dict(_toml(text))
    try:
        node = yaml.compose(text.replace("\t", " "), yaml.SafeLoader)  # JSON is YAML, except for tabs
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}
    result: dict[str, int] = {}
    for name, line in _nodes(node, "", ()):
        result[name] = line
        if len(result) > MOST_KEYS:
            return {}
    return result


def _nodes(node: yaml.Node | None, name: str, above: tuple[int, ...]) -> Iterator[tuple[str, int]]:
    """The keys below a YAML node, as pairs of dotted key and line number counted from 1. name: the dotted key of the node
    itself; empty for the document. above: ids of the enclosing nodes, since an alias may refer to one of them and would
    never end."""
    if id(node) in above or len(above) > DEEPEST:
        return
    inner = (*above, id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield f"{name}[{index}]", item.start_mark.line + 1
            yield from _nodes(item, f"{name}[{index}]", inner)
    elif isinstance(node, yaml.MappingNode):
        merged = [value for key, value in node.value if key.tag == "tag:yaml.org,2002:merge"]
        for value in merged:  # keys of their own come after, since they win
            for base in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                yield from _nodes(base, name, inner)
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                dotted = f"{name}.{key.value}" if name else key.value
                yield dotted, key.start_mark.line + 1
                yield from _nodes(value, dotted, inner)


def _toml(text: str) -> Iterator[tuple[str, int]]:
    """The keys of a TOML text, as pairs of dotted key and line number counted from 1. Statements are parsed one by one; a
    statement may extend over several lines."""
    table, statement, begin = "", "", 1
    counts: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        begin = begin if statement else number
        statement += line + "\n"
        try:
            value = tomllib.loads(statement)
        except (tomllib.TOMLDecodeError, RecursionError):
            continue
        header, statement = statement.lstrip().startswith("["), ""
        if header:
            table, last = list(_named(value, ""))[-1]
            if isinstance(last, list):
                counts[table] = counts.get(table, -1) + 1
                table += f"[{counts[table]}]"
            yield table, begin
        else:
            yield from ((name, begin) for name, _ in _named(value, f"{table}." if table else ""))


def _named(value: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """The keys and values of nested tables, as pairs of dotted key and value. prefix: put in front of every key, such as
    "model."; empty at the top."""
    for key, inner in value.items():
        yield f"{prefix}{key}", inner
        if isinstance(inner, Mapping):
            yield from _named(inner, f"{prefix}{key}.")
