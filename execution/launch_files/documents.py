"""Reading YAML and JSON as training tools read them: PyYAML's YAML 1.1, in which `no` is false and `8_192` a number, with
anchors; and JSON with comments and trailing commas, as DeepSpeed reads it (by hjson)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import json_value, read_data, read_text

MOST_VALUES, DEEPEST, MOST_BYTES = 100_000, 100, 4 * 2**20  # of one file


_SAFE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_SAFE):
    """PyYAML's loader, which in addition accepts a tool's own tags, such as `!include`, and ignores them."""


def _tagged(loader: Any, _: str, node: yaml.Node) -> Any:
    """Construct the value of a YAML node that has an unknown tag, such as `!include a.yaml`, as if the tag were absent (here
    the text "a.yaml"). loader: the PyYAML loader. _: the tag's name, unused; PyYAML passes it."""
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node)
    return loader.construct_sequence(node) if isinstance(node, yaml.SequenceNode) else loader.construct_scalar(node)


_Loader.add_multi_constructor("!", _tagged)
# Strings, which stay as they are; comments; commas before the end of a table or a list.
COMMENTED = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*|#[^\n]*|/\*.*?\*/', re.DOTALL)
# A name in the place of a value, which a script replaces.
NAME = re.compile(r'"(?:\\.|[^"\\])*"|[:\[,]\s*(\$?\{*[A-Z][A-Z0-9_]+\}*)(?=\s*[,\]}])')
LAST_COMMA = re.compile(r'("(?:\\.|[^"\\])*")|,(?=\s*[}\]])')


def read_document(path: Path, text: str | None = None) -> Any:
    """The value in a YAML or JSON file of another tool, with all keys turned into texts. path: the file; its suffix decides
    between YAML (.yaml, .yml) and JSON. text: the file's content, if the caller already has it; None to read the file. Raises
    InputError if the file is unreadable, not valid, too large or too deeply nested."""
    where, in_yaml = str(path), path.suffix.lower() in (".yaml", ".yml")
    if text is None and path.is_file() and (size := path.stat().st_size) > MOST_BYTES:
        raise InputError(where, "", f"has {size:,} bytes", "give the configuration of a run, which is smaller")
    try:
        if text is None and not in_yaml:
            return _plain(_json(path), 0, [0])
        text = read_text(path) if text is None else text
        return _plain(_yaml(text if in_yaml else uncommented(text), where), 0, [0])  # JSON is YAML
    except InputError:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        position = f"line {mark.line + 1} column {mark.column + 1}" if mark else ""
        reason = " ".join(str(error.problem or error.context).split())
        raise InputError(where, position, f"is not YAML ({reason})", "mend the YAML there") from None
    except yaml.YAMLError as error:
        reason = str(error).splitlines()[0]
        raise InputError(where, "", f"is not YAML ({reason})", "give one document, without control characters") from None
    except RecursionError:
        problem = f"is nested more than {DEEPEST} deep, or has more than {MOST_VALUES:,} values"
        raise InputError(where, "", problem, "give the configuration of a run") from None
    except (ValueError, OverflowError) as error:
        raise InputError(where, "", f"holds a value that is none ({error})", "quote dates and long numbers") from None


def _json(path: Path) -> Any:
    """The value in a JSON file, which may have comments. Raises InputError for invalid JSON, and for a template with names
    where values belong, as in `{"lr": LR}`."""
    try:
        return read_data(path)
    except InputError:
        text = read_text(path)
        plain = uncommented(text)
        if name := next(filter(None, (found[1] for found in NAME.finditer(plain))), None):
            problem = f"has {name} in the place of a value: a template, which a script fills in"
            raise InputError(str(path), "", problem, "give the file that the script writes of it") from None
        if plain == text:
            raise
        return json_value(plain, str(path))


def uncommented(text: str) -> str:
    """A JSON text in which comments (//, # and /* */) and trailing commas are replaced by blanks, so that the lines and
    columns of the rest stay the same."""
    for pattern in (COMMENTED, LAST_COMMA):
        text = pattern.sub(lambda found: found[1] or re.sub(r"[^\n]", " ", found[0]), text)
    return text


def _yaml(text: str, where: str) -> Any:
    """The value of a YAML text. where: the name of the text's file, for errors. Raises InputError if a key is given twice
    with different values (PyYAML would silently take the last), and PyYAML's own errors for text that is not YAML."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        rest, visited = [node], set[int]()
        while rest:
            reached = rest.pop()
            if id(reached) in visited:
                continue
            visited.add(id(reached))
            if isinstance(reached, yaml.SequenceNode):
                rest += reached.value
            elif isinstance(reached, yaml.MappingNode):
                _refuse_twice(reached, where)
                rest += [value for _, value in reached.value]
        return None if node is None else loader.construct_document(node)
    finally:
        loader.dispose()


def _refuse_twice(node: yaml.MappingNode, where: str) -> None:
    """Check that a YAML mapping has no key twice with different values. where: the file, for the error. Raises InputError if
    it has."""
    first: dict[str, yaml.Node] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag.endswith(":merge"):
            continue
        other = first.setdefault(key.value, value)
        if other is not value and not (isinstance(value, yaml.ScalarNode) and value.value == other.value):
            lines = f"in lines {other.start_mark.line + 1} and {value.start_mark.line + 1}"
            raise InputError(where, key.value, f"is given twice, unlike, {lines}", "give it once: tools take the last")


def _plain(value: Any, depth: int, counts: list[int]) -> Any:
    """A parsed YAML or JSON value with all keys turned into texts, in nested mappings, too; tuples and sets become lists.
    depth: how many mappings and lists are around the value. counts: a list with one number, the values visited so far, which
    is increased. Raises RecursionError if there are too many values or they are nested too deeply."""
    counts[0] += 1
    if depth > DEEPEST or counts[0] > MOST_VALUES:
        raise RecursionError
    if isinstance(value, dict):
        return {str(key): _plain(item, depth + 1, counts) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(item, depth + 1, counts) for item in value]
    return value


def written(text: Any) -> Any:
    """The value that a text from a command line has as YAML: "8" -> 8, "true" -> True. Values that are not texts, and texts
    that are not YAML, are returned unchanged."""
    try:
        return yaml.safe_load(text) if isinstance(text, str) else text
    except (yaml.YAMLError, ValueError, RecursionError):
        return text
