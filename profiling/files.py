"""Files at the edge: JSON and YAML in, with errors that name the field; files out, whole or not at all."""

from __future__ import annotations

import json
import os
import re
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from trainplan.profiling.errors import InputError, shown
from trainplan.profiling.quantities import parse_bytes

LARGEST_FILE_BYTES = 100 * 2**20
DEEPEST = 100  # lists and objects within each other

_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C parser is tens of times faster
_YAML_WORDS = {"": None, "~": None, "null": None, "true": True, "True": True, "false": False, "False": False}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|\.inf)|\.nan")

Source = str | os.PathLike[str] | Mapping[str, Any]


class Record(BaseModel):
    """Base of every public file format: unknown fields are refused, numbers are never coerced."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    def changed(self, **fields: Any) -> Self:
        """A checked copy with some fields replaced. (pydantic's own copy checks nothing and keeps what was cached.)"""
        return type(self).model_validate({**{name: getattr(self, name) for name in type(self).model_fields}, **fields})


RecordType = TypeVar("RecordType", bound=Record)


def _language(path: str | os.PathLike[str]) -> str:
    return "YAML" if os.fspath(path).lower().endswith((".yaml", ".yml")) else "JSON"


def read_data(path: str | os.PathLike[str]) -> Any:
    """The value in a JSON or YAML (.yaml, .yml) file. Raises InputError where it is absent, too large or not whole."""
    where, language = os.fspath(path), _language(path)
    try:
        status = os.stat(path)
        if os.path.isdir(path):
            raise InputError(where, "", "is a folder", f"name a {language} file")
        if status.st_size > LARGEST_FILE_BYTES:
            fix = f"files of up to {LARGEST_FILE_BYTES // 2**20} MiB are read: drop layers, options or provenance"
            raise InputError(where, "", f"has {status.st_size:,} bytes", fix)
        if not stat.S_ISREG(status.st_mode):
            raise InputError(where, "", "is not a regular file", f"name a {language} file")
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(where, "", "does not exist", "name an existing file") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
        raise InputError(where, "", f"cannot be read ({reason})", f"name a readable {language} file") from None
    if not text.strip():
        raise InputError(where, "", "is empty", f"give a {language} object")
    try:
        return _yaml_value(text, where) if language == "YAML" else _json_value(text, where)
    except InputError:
        raise
    except ValueError:
        raise InputError(where, "", "holds a number of thousands of digits", "give numbers of at most 18 digits") from None
    except RecursionError:
        raise InputError(where, "", "is nested too deeply", "give the documented format") from None


def _json_value(text: str, where: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError(where, twice, "is given twice in one object", "give it once")
        return found

    try:
        return json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        # Cut short: within a string, or with nothing left but the beginning of a literal or a number.
        at_end = error.msg.startswith("Unterminated") or re.fullmatch(r"[\w.+-]*", text[error.pos :].strip()) is not None
        what = "ends too early" if at_end else "is not JSON"
        fix = "the file is truncated: write it again" if at_end else "mend the JSON there"
        raise InputError(where, f"line {error.lineno} column {error.colno}", f"{what} ({error.msg})", fix) from None


def _yaml_value(text: str, where: str) -> Any:
    """The one document in a text. Texts, numbers, true, false and null are told apart as by JSON: dates and `no` are texts."""
    reader = _YamlReader(text, where)
    try:
        return reader.document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1} column {mark.column + 1}" if mark else ""
        at_end = mark is not None and mark.line >= len(text.rstrip().splitlines())
        what = "ends too early" if at_end else "is not YAML"
        fix = "close what is open there" if at_end else "mend the YAML there (indent with spaces, quote texts with signs)"
        reason = " ".join(str(error.problem or error.context).split())
        raise InputError(where, place, f"{what} ({reason})", fix) from None
    except yaml.YAMLError as error:
        raise InputError(where, "", f"is not YAML ({str(error).splitlines()[0]})", "remove control characters") from None


class _YamlReader:
    """Builds a value from the parser's events, so that nothing but plain data can come of a file, at a cost of its length."""

    def __init__(self, text: str, where: str) -> None:
        self._events = iter(yaml.parse(text, Loader=_PARSER))
        self._where = where

    def document(self) -> Any:
        next(self._events)  # the stream's start
        if not isinstance(next(self._events), yaml.DocumentStartEvent):
            return None
        value = self._value(next(self._events), 0)
        next(self._events)  # the document's end
        if not isinstance(event := next(self._events), yaml.StreamEndEvent):
            raise self._refuse(event, "begins a second document", "give one document a file")
        return value

    def _value(self, event: Any, depth: int) -> Any:
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise self._refuse(event, "has an anchor or an alias (& or *)", "write the value out, or quote the text")
        if event.tag is not None:
            raise self._refuse(event, f"has the tag {shown(event.tag)}", "remove it: types follow from the format")
        if depth > DEEPEST:
            raise RecursionError
        if isinstance(event, yaml.ScalarEvent):
            return _yaml_scalar(event.value) if event.implicit[0] else event.value
        if isinstance(event, yaml.SequenceStartEvent):
            return [self._value(item, depth + 1) for item in self._until(yaml.SequenceEndEvent)]
        mapping: dict[str, Any] = {}
        for item in self._until(yaml.MappingEndEvent):
            key = self._value(item, depth + 1)
            if not isinstance(key, str):
                raise self._refuse(item, f"has the key {shown(key)}", "give a text as key, in quotes if need be")
            if key in mapping:
                raise self._refuse(item, f"has the key {shown(key)} twice", "give it once")
            mapping[key] = self._value(next(self._events), depth + 1)
        return mapping

    def _until(self, end: type) -> Iterator[Any]:
        while not isinstance(event := next(self._events), end):
            yield event

    def _refuse(self, event: Any, problem: str, fix: str) -> InputError:
        mark = event.start_mark
        return InputError(self._where, f"line {mark.line + 1} column {mark.column + 1}", problem, fix)


def _yaml_scalar(text: str) -> Any:
    if text in _YAML_WORDS:
        return _YAML_WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text.replace(".inf", "inf").replace(".nan", "nan")) if _FLOAT.fullmatch(text) else text


def yaml_text(value: Any) -> str:
    """Plain data as YAML that reads back equal. Innermost lists and objects stand on one line each."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, default_flow_style=None, allow_unicode=True, width=120)
    return text


class _Dumper(yaml.SafeDumper):
    """Writes whole floats without a point, and quotes texts that would be read as numbers."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_number(self, data: float) -> yaml.Node:
        return self.represent_int(int(data)) if data.is_integer() and abs(data) < 1e18 else self.represent_float(data)


_Dumper.add_representer(float, _Dumper.represent_number)
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


def parse(source: Source, record: type[RecordType], where: str | None = None) -> RecordType:
    """A file's path, or the value itself, as a checked record. Raises InputError naming file, field, value and fix."""
    if isinstance(source, Mapping):
        value, where = source, where or record.__name__
    else:
        value, where = read_data(source), where or os.fspath(source)
    if not isinstance(value, Mapping):
        language = "JSON" if isinstance(source, Mapping) else _language(source)
        raise InputError(where, "", f"holds {shown(value)}", f"give a {language} object")
    try:
        return record.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = field_path(first["loc"])
        if isinstance(cause := (first.get("ctx") or {}).get("error"), InputError):
            inner = ".".join(part for part in (field, cause.field) if part)
            raise InputError(where, inner, cause.problem, cause.fix) from None
        problem, fix = _told(first)
        raise InputError(where, field, problem, fix) from None


def field_path(location: tuple[int | str, ...]) -> str:
    """``("layers", 3, "time_ns")`` as ``layers[3].time_ns``."""
    text = ""
    for part in location:
        if isinstance(part, str) and re.fullmatch(r"\[key\]|constrained-\w+|(list|dict)\[.*\]", part):
            continue  # pydantic's own words for a dict's key and for the branches of a union
        text += f"[{part}]" if isinstance(part, int) else ("." if text else "") + str(part)
    return text


def _whole(value: Any) -> str:
    """How a number should be spelled that was given as 2.4e10 or 24GiB."""
    if isinstance(value, float) and value.is_integer():
        return f"without point and exponent: {int(value)}"
    if isinstance(value, str):
        try:
            return f"such as {parse_bytes(value)}"
        except InputError:
            pass
    return "such as 1000"


def _told(error: Any) -> tuple[str, str]:
    kind, value, limits = error["type"], error["input"], error.get("ctx") or {}
    wanted = {
        "greater_than": f"give a number above {limits.get('gt')}",
        "greater_than_equal": f"give a number of at least {limits.get('ge')}",
        "less_than_equal": f"give a number of at most {limits.get('le')}",
        "int_type": f"give a whole number, {_whole(value)}",
        "int_from_float": f"give a whole number, {_whole(value)}",
        "float_type": "give a number, such as 1.5",
        "string_type": "give a text in quotes",
        "list_type": "give a list [...]",
        "tuple_type": "give a list [...]",
        "model_type": "give an object {...}",
        "dict_type": "give an object {...}",
        "bool_type": "give true or false",
        "float_parsing": "give a number without quotes, such as 1.5",
        "finite_number": "give a finite number",
        "too_long": f"give at most {limits.get('max_length')} items",
        "too_short": f"give at least {limits.get('min_length')} items",
    }
    if kind == "missing":
        return "is missing", "add it (see `trainplan schema`)"
    if kind == "extra_forbidden":
        return "is not a field of this format", "remove it (see `trainplan schema`)"
    if kind == "literal_error":
        return f"is {shown(value)}", f"give {limits['expected']}"
    return f"is {shown(value)}", wanted.get(kind) or error["msg"].removeprefix("Value error, ").lower()


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raises InputError where `write_whole` could not write: asked before long work, so that none is lost."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise InputError(os.fspath(path), "", "cannot be written (it is a folder)", "name a file, not a folder")
    if not target.parent.is_dir() or not os.access(target.parent, os.W_OK):
        raise InputError(os.fspath(path), "", "cannot be written (no writable folder)", "name a file in a writable folder")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_whole(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file whole or not at all: into a temporary file beside it, then renamed."""
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file() and not target.is_dir():
        target.write_text(text, encoding="utf-8")  # a pipe or a device cannot be replaced
        return
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    except OSError as error:
        raise InputError(
            os.fspath(path), "", f"cannot be written ({error.strerror})", "name a file in a writable folder"
        ) from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, target)
    except BaseException as error:
        os.unlink(temporary)
        if isinstance(error, OSError):
            raise InputError(
                os.fspath(path), "", f"cannot be written ({error.strerror})", "name a file, not a folder"
            ) from None
        raise
