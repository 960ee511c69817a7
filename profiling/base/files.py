"""Reading and writing files: JSON and YAML in, with errors that name the field; files out, whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from secrets import token_hex
from typing import Any, ClassVar, Protocol, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from trainplan.profiling.base.errors import InputError, shown
from trainplan.profiling.base.quantities import parse_bytes

LARGEST_FILE_BYTES = 100 * 2**20
SURROGATE_ESCAPE = re.compile(r"\\(?:u|U0000)[dD][89a-fA-F]")
SURROGATE_FIX = "write both halves, such as \\ud83d\\ude00, or neither"

FilePath = str | os.PathLike[str]
Source = FilePath | Mapping[str, Any]


class Record(BaseModel):
    """Base of file formats that are pydantic models: unknown fields are refused, numbers are never coerced.

    noun: the users' name for such a file, used in errors when a file of another format is given.
    """

    noun: ClassVar[str] = ""
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

    def changed(self, **fields: Any) -> Self:
        """A copy of the record with some fields replaced, checked like a record that is read from a file. (pydantic's own copy
        checks nothing and keeps cached values.)

        Raises InputError if a value is not allowed.
        """
        try:
            return type(self).model_validate({**{name: getattr(self, name) for name in type(self).model_fields}, **fields})
        except ValidationError as error:
            raise as_input_error(error, type(self).__name__.lower()) from None


class FileFormat(Protocol):
    """A class whose objects a file can be read into: a `Record` (a pydantic model), or a dataclass that is a
    `DataclassRecord`.
    """

    noun: ClassVar[str]

    @classmethod
    def model_validate(cls, value: Any, /) -> Self:
        """Build the object from a value read from a file. Raises pydantic's ValidationError."""

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        """The JSON schema of the file format that this class defines."""


RecordType = TypeVar("RecordType", bound=FileFormat)


def name_of_source(source: object, noun: str) -> str:
    """The name to use in errors for an input: the path if `source` is the path of a file, or else `noun`, for an in-memory
    object.
    """
    return os.fspath(source) if isinstance(source, str | os.PathLike) else noun


def only(number: int) -> BeforeValidator:
    """Make a pydantic validator for a field that has exactly one allowed number, such as the version of a file format. It
    refuses `true` and `1.0`, which Python takes as equal to 1.
    """

    def check(value: Any) -> Any:
        """The value itself, unless it is of a type that Python takes for equal to the allowed number. Raises InputError."""
        if isinstance(value, bool | float):
            raise InputError("", "", f"is {shown(value)}", f"give {number}")
        return value

    return BeforeValidator(check)


def _language(path: str | os.PathLike[str]) -> str:
    """The language of a file, "YAML" or "JSON", by the ending of its name."""
    return "YAML" if os.fspath(path).lower().endswith((".yaml", ".yml")) else "JSON"


def read_text(path: str | os.PathLike[str]) -> str:
    """Read the text of a file. Raises InputError if the file is absent, empty, too large, or not UTF-8."""
    where, language = os.fspath(path), _language(path)
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            kind = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise InputError(where, "", f"is {kind}", f"name a {language} file")
        if status.st_size > LARGEST_FILE_BYTES:
            fix = f"files of up to {LARGEST_FILE_BYTES // 2**20} MiB are read: drop layers, options or provenance"
            raise InputError(where, "", f"has {status.st_size:,} bytes", fix)
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(where, "", "does not exist", "name an existing file") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
        raise InputError(where, "", f"cannot be read ({reason})", f"name a readable {language} file") from None
    if not text.strip():
        raise InputError(where, "", "is empty", f"give a {language} object")
    return text


def read_data(path: str | os.PathLike[str]) -> Any:
    """Read a JSON or YAML (.yaml, .yml) file and return the value in it. Raises InputError if the file is absent, too large or
    no valid JSON or YAML.
    """
    where, language, text = os.fspath(path), _language(path), read_text(path)
    try:
        if language == "JSON":
            value = json_value(text, where)
        else:
            from trainplan.profiling.base.yaml_files import yaml_value  # many runs read no YAML

            value = yaml_value(text, where)
        if SURROGATE_ESCAPE.search(text) and (entry := _surrogate(value)) is not None:
            raise InputError(where, field_path(entry), "holds half a character (a lone surrogate)", SURROGATE_FIX)
        return value
    except InputError:
        raise
    except ValueError:
        number = re.search(r"\d{1000,}", text)
        before = text[: number.start()] if number else ""
        line = f"line {before.count(chr(10)) + 1} column {len(before) - before.rfind(chr(10))}"
        raise InputError(where, line, "holds a number of thousands of digits", "give numbers of at most 18 digits") from None
    except RecursionError:
        raise InputError(where, "", "is nested too deeply", "give the documented format") from None


def _surrogate(value: Any) -> tuple[int | str, ...] | None:
    """Find the first text within a value (dicts, lists, texts) that has half a character (a lone surrogate), which no UTF-8
    file can hold. Returns the keys and indices that lead to it, such as ("layers", 3, "name"); None if there is no such text.
    """
    if isinstance(value, str):
        return () if any("\ud800" <= letter <= "\udfff" for letter in value) else None
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in parts:
        if _surrogate(name) is not None:
            return (shown(name),)
        if (path := _surrogate(part)) is not None:
            return (name, *path)
    return None


def json_value(text: str, where: str) -> Any:
    """Parse a JSON text into Python values. where: the file's name, for errors. Raises InputError if the text is not JSON, or
    if an object has the same key twice.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """The object of these (key, value) pairs. Raises InputError for a key that is given twice."""
        fields = dict(pairs)
        if len(fields) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError(where, twice, "is given twice in one object", "give it once")
        return fields

    try:
        return json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        # Cut short: within a string, or with nothing left but the beginning of a literal or a number.
        at_end = error.msg.startswith("Unterminated") or re.fullmatch(r"[\w.+-]*", text[error.pos :].strip()) is not None
        what = "ends too early" if at_end else "is not JSON"
        fix = "the file is truncated: write it again" if at_end else "mend the JSON there"
        raise InputError(where, f"line {error.lineno} column {error.colno}", f"{what} ({error.msg})", fix) from None


def parse(source: Source, record: type[RecordType], where: str | None = None) -> RecordType:
    """Read a file (`source` is its path) or an in-memory object (`source` is a dict) into a checked object of the class
    `record`, which defines the format. where: name of the input in errors; None for its path. Raises InputError that names the
    file, field, value and fix.
    """
    if isinstance(source, Mapping):
        value, where = source, where or record.__name__
    else:
        value, where = read_data(source), where or os.fspath(source)
    if not isinstance(value, Mapping):
        language = "JSON" if isinstance(source, Mapping) else _language(source)
        raise InputError(where, "", f"holds {shown(value)}", f"give a {language} object")
    if record.noun and (other := _other_format(value, record)) is not None:
        raise InputError(where, "", other, f"give a {record.noun}")
    try:
        return record.model_validate(value)
    except ValidationError as error:
        raise as_input_error(error, where) from None


def _other_format(value: Mapping[str, Any], record: type[FileFormat]) -> str | None:
    """A phrase such as "is a file of 'trainplan-plan'" if a value has a field that `record`, the expected format, does not
    have and that identifies another format; None otherwise.
    """
    problems = {"problem": "is an instance of {}", "model_type": "is the config.json of a {}", "format": "is a file of {}"}
    fields = record.model_fields if issubclass(record, BaseModel) else record.__annotations__
    names = (name for name in problems if name in value and name not in fields)
    return next((problems[name].format(shown(value[name])) for name in names), None)


def as_input_error(error: ValidationError, where: str) -> InputError:
    """Convert a validation error of pydantic to an InputError about the first fault that it found. where: the file's name."""
    first = error.errors(include_url=False)[0]
    field = field_path(first["loc"])
    if isinstance(cause := (first.get("ctx") or {}).get("error"), InputError):
        inner = ".".join(part for part in (field, cause.command_field) if part)
        return InputError(where, inner, cause.problem, cause.fix)
    return InputError(where, field, *_fault_and_fix(first))


def field_path(location: tuple[int | str, ...]) -> str:
    """The path of a field in a file as text: ``("layers", 3, "time_ns")`` becomes ``layers[3].time_ns``. location: the keys
    and indices that lead to the field.
    """
    text = ""
    for part in location:
        if isinstance(part, str) and re.fullmatch(r"\[key\]|constrained-\w+|(list|dict)\[.*\]", part):
            continue  # pydantic's own words for a dict's key and for the branches of a union
        text += f"[{part}]" if isinstance(part, int) else ("." if text else "") + str(part)
    return text


def _whole(value: Any) -> str:
    """Advice in an error about a value that should be an integer, depending on the value that was given: 2.4e10 -> "without
    point and exponent: 24000000000", "24GiB" -> "such as 25769803776".
    """
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e18:
        return f"without point and exponent: {int(value)}"
    if isinstance(value, str) and value.isdecimal():
        return f"such as {value}"
    if isinstance(value, str):
        try:
            return f"such as {parse_bytes(value)}"
        except InputError:
            pass
    return "such as 1000"


def _fault_and_fix(error: Any) -> tuple[str, str]:
    """The problem and the advice, as the two texts of an InputError, for one validation error. error: an entry of pydantic's
    list of errors.
    """
    kind, value, limits = error["type"], error["input"], error.get("ctx") or {}
    wanted = {
        "greater_than": f"give a number above {limits.get('gt')}",
        "greater_than_equal": f"give a number of at least {limits.get('ge')}",
        "less_than_equal": f"give a number of at most {limits.get('le')}",
        "int_type": f"give a whole number, {_whole(value)}",
        "int_parsing": "give a whole number, such as 1",
        "int_from_float": f"give a whole number, {_whole(value)}",
        "float_type": "give a number, such as 1.5",
        "string_type": "give a text in quotes",
        "string_unicode": SURROGATE_FIX,
        "list_type": "give a list [...]",
        "tuple_type": "give a list [...]",
        "model_type": "give an object {...}",
        "dataclass_type": "give an object {...}",
        "dict_type": "give an object {...}",
        "bool_type": "give true or false",
        "float_parsing": "give a number without quotes, such as 1.5",
        "finite_number": "give a finite number",
        "too_long": f"give at most {limits.get('max_length')} items",
        "too_short": f"give at least {limits.get('min_length')} items",
    }
    if kind == "missing":
        return "is missing", "add it (see `trainplan schema`)"
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        return "is not a field of this format", "remove it (see `trainplan schema`)"
    if kind == "literal_error":
        return f"is {shown(value)}", f"give {limits['expected']}"
    return f"is {shown(value)}", wanted.get(kind) or error["msg"].removeprefix("Value error, ").lower()


def json_text(value: Any, margin: str = "") -> str:
    """Format a value as JSON that people can read: a list or object that contains only plain values is on one line, any other
    has one line per item.

    margin: blanks at the beginning of every line except the first line.
    """
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if not any(isinstance(part, dict | list) for part in parts):
        return json.dumps(value)
    inner, ends = margin + " ", "{}" if isinstance(value, dict) else "[]"
    if isinstance(value, dict):
        rows = [f"{json.dumps(name)}: {json_text(part, inner)}" for name, part in value.items()]
    else:
        rows = [json_text(part, inner) for part in value]
    return f"{ends[0]}\n" + ",\n".join(inner + row for row in rows) + f"\n{margin}{ends[1]}"


def check_readable(path: str | os.PathLike[str], content: str) -> None:
    """Raise InputError if a file with the text `content` would be too large to be read again by `read_data`."""
    if (size := len(content.encode())) > LARGEST_FILE_BYTES:
        fix = f"files of up to {LARGEST_FILE_BYTES // 2**20} MiB are read: ask for fewer layers, devices or options"
        raise InputError(os.fspath(path), "", f"would have {size:,} bytes", fix)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise InputError if `write_whole` could not write a file at this path. It is called before long work, so that the result
    of the work is not lost.
    """
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise unwritable(path, errno.EISDIR)
    if not target.parent.is_dir():
        raise unwritable(path, errno.ENOENT)
    if not os.access(target.parent, os.W_OK):
        raise unwritable(path, errno.EACCES)


def check_different(*paths: str | os.PathLike[str] | None) -> None:
    """Raise InputError if two of the given output paths name the same file; None stands for an output that is not written."""
    targets = [os.path.realpath(path) for path in paths if path is not None]
    for path in targets:
        if targets.count(path) > 1:
            raise InputError(path, "", "is named for two outputs", "give two different files")


def write_whole(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a file completely or not at all: the content is written into a temporary file in the same folder, which is then
    renamed. Raises InputError if it cannot be written.
    """
    target = Path(os.path.realpath(path))
    data = content.encode() if isinstance(content, str) else content
    try:
        if target.exists() and not target.is_file() and not target.is_dir():
            target.write_bytes(data)  # a pipe or a device cannot be replaced
            return
        temporary = target.with_name(f".{token_hex(8)}.part")
        try:
            with temporary.open("xb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise unwritable(path, error.errno) from None


def to_disk(path: Path) -> None:
    """Wait until a file, or a folder's list of files, is on the disk (fsync). Raises OSError."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def unwritable(path: str | os.PathLike[str], code: int | None) -> InputError:
    """Build the error for a file that cannot be written. path: the file. code: the system's error number (errno); None if
    unknown.
    """
    if code == errno.EISDIR:
        reason, fix = "it is a folder", "name a file, not a folder"
    else:
        reason, fix = os.strerror(code or errno.EIO), "name a file in a writable folder"
    return InputError(os.fspath(path), "", f"cannot be written ({reason})", fix)
