"""Files at the edge: JSON in, with errors that name the field; files out, whole or not at all."""

from __future__ import annotations

import json
import os
import re
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from trainplan.profiling.errors import InputError, shown

LARGEST_FILE_BYTES = 100 * 2**20

Source = str | os.PathLike[str] | Mapping[str, Any]


class Record(BaseModel):
    """Base of every public file format: unknown fields are refused, numbers are never coerced."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


RecordType = TypeVar("RecordType", bound=Record)


def read_json(path: str | os.PathLike[str]) -> Any:
    """The JSON value in a file. Raises InputError for a file that is absent, too large or not whole."""
    where = os.fspath(path)
    try:
        status = os.stat(path)
        size = status.st_size
        if os.path.isdir(path):
            raise InputError(where, "", "is a folder", "name a JSON file")
        if size > LARGEST_FILE_BYTES:
            limit = LARGEST_FILE_BYTES // 2**20
            raise InputError(
                where,
                "",
                f"has {size:,} bytes",
                f"files of up to {limit} MiB are read: drop layers, options or provenance",
            )
        if not stat.S_ISREG(status.st_mode):
            raise InputError(where, "", "is not a regular file", "name a JSON file")
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(where, "", "does not exist", "name an existing file") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
        raise InputError(where, "", f"cannot be read ({reason})", "name a readable JSON file") from None
    if not text.strip():
        raise InputError(where, "", "is empty", "give a JSON object")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        # Cut short: within a string, or with nothing left but the beginning of a literal or a number.
        at_end = error.msg.startswith("Unterminated") or re.fullmatch(r"[\w.+-]*", text[error.pos :].strip()) is not None
        what = "ends too early" if at_end else "is not JSON"
        fix = "the file is truncated: write it again" if at_end else "mend the JSON there"
        raise InputError(where, f"line {error.lineno} column {error.colno}", f"{what} ({error.msg})", fix) from None
    except ValueError:
        raise InputError(where, "", "holds a number of thousands of digits", "give numbers of at most 18 digits") from None
    except RecursionError:
        raise InputError(where, "", "is nested too deeply", "give the documented format") from None


def parse(source: Source, record: type[RecordType], where: str | None = None) -> RecordType:
    """A file's path, or the value itself, as a checked record. Raises InputError naming file, field, value and fix."""
    if isinstance(source, Mapping):
        value, where = source, where or record.__name__
    else:
        value, where = read_json(source), where or os.fspath(source)
    if not isinstance(value, Mapping):
        raise InputError(where, "", f"holds {shown(value)}", "give a JSON object")
    try:
        return record.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = field_path(first["loc"])
        if isinstance(cause := (first.get("ctx") or {}).get("error"), InputError):
            inner = " ".join(part for part in (field, cause.field) if part)
            raise InputError(where, inner, cause.problem, cause.fix) from None
        problem, fix = _told(first)
        raise InputError(where, field, problem, fix) from None


def field_path(location: tuple[int | str, ...]) -> str:
    """``("layers", 3, "time_ns")`` as ``layers[3].time_ns``."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else ("." if text else "") + str(part)
    return text


def _told(error: Any) -> tuple[str, str]:
    kind, value, limits = error["type"], error["input"], error.get("ctx") or {}
    wanted = {
        "greater_than": f"give a number above {limits.get('gt')}",
        "greater_than_equal": f"give a number of at least {limits.get('ge')}",
        "less_than_equal": f"give a number of at most {limits.get('le')}",
        "int_type": "give a whole number, such as 1000",
        "int_from_float": "give a whole number, such as 1000",
        "float_type": "give a number, such as 1.5",
        "string_type": "give a text in quotes",
        "list_type": "give a list [...]",
        "tuple_type": "give a list [...]",
        "model_type": "give an object {...}",
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
