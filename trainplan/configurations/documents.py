"""YAML as the tools that train read it: PyYAML's YAML 1.1, in which `no` is false and `8_192` a number, with anchors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import read_data, read_text

MOST_VALUES, DEEPEST = 100_000, 100  # of one file
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_document(path: Path, text: str | None = None) -> Any:
    """The value in a YAML or JSON file of another tool, with texts as keys. text: what it holds, where that is not to be read.
    Raises InputError."""
    where, in_yaml = str(path), path.suffix.lower() in (".yaml", ".yml")
    try:
        parsed = read_data(path) if text is None and not in_yaml else yaml.load(text or read_text(path), Loader=_LOADER)
        return _plain(parsed, 0, [0])
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1} column {mark.column + 1}" if mark else ""
        reason = " ".join(str(error.problem or error.context).split())
        raise InputError(where, place, f"is not YAML ({reason})", "mend the YAML there") from None
    except yaml.YAMLError as error:
        reason = str(error).splitlines()[0]
        raise InputError(where, "", f"is not YAML ({reason})", "give one document, without control characters") from None
    except RecursionError:
        raise InputError(
            where, "", "is nested too deeply, or repeats too much", "write out what its aliases stand for"
        ) from None
    except (ValueError, OverflowError) as error:
        raise InputError(where, "", f"holds a value that is none ({error})", "quote dates and long numbers") from None


def _plain(value: Any, depth: int, seen: list[int]) -> Any:
    """The value with texts as keys. seen: how many values there were. Raises RecursionError where there are too many."""
    seen[0] += 1
    if depth > DEEPEST or seen[0] > MOST_VALUES:
        raise RecursionError
    if isinstance(value, dict):
        return {str(key): _plain(each, depth + 1, seen) for key, each in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(each, depth + 1, seen) for each in value]
    return value


def written(text: Any) -> Any:
    """A value as YAML spells it, of a text from a command line; anything else as it is."""
    try:
        return yaml.safe_load(text) if isinstance(text, str) else text
    except (yaml.YAMLError, ValueError, RecursionError):
        return text
