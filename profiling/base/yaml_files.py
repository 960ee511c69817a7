"""Read and write YAML as trainplan's files use it: plain data with JSON's types; no anchors, aliases or tags."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml
from trainplan.profiling.base.errors import InputError, shown

DEEPEST = 100  # levels of lists and objects within each other

_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C parser is tens of times faster
_WORDS = {"": None, "~": None, "null": None, "true": True, "True": True, "false": False, "False": False}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|\.inf)|\.nan")


def yaml_value(text: str, where: str) -> Any:
    """Parse a text that is one YAML document into Python values. Types are as in JSON: dates and `no` are texts. where: the
    file's name, for errors. Raises InputError if the text is not YAML, or uses anchors, aliases or tags.
    """
    reader = _Reader(text, where)
    try:
        return reader.document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        position = f"line {mark.line + 1} column {mark.column + 1}" if mark else ""
        at_end = mark is not None and mark.line >= len(text.rstrip().splitlines())
        what = "ends too early" if at_end else "is not YAML"
        fix = "close what is open there" if at_end else "mend the YAML there (indent with spaces, quote texts with signs)"
        reason = " ".join(str(error.problem or error.context).split())
        raise InputError(where, position, f"{what} ({reason})", fix) from None
    except yaml.YAMLError as error:
        raise InputError(where, "", f"is not YAML ({str(error).splitlines()[0]})", "remove control characters") from None


class _Reader:
    """Builds the value of a YAML text from the events of PyYAML's parser, so that a file can only yield plain data, in time
    proportional to its length.
    """

    def __init__(self, text: str, where: str) -> None:
        self._events = iter(yaml.parse(text, Loader=_PARSER))
        self._where = where

    def document(self) -> Any:
        """Read the value of the only document in the text; None if there is none. Raises InputError for a second document."""
        next(self._events)  # the stream's start
        if not isinstance(next(self._events), yaml.DocumentStartEvent):
            return None
        value = self._value(next(self._events), 0)
        next(self._events)  # the document's end
        if not isinstance(event := next(self._events), yaml.StreamEndEvent):
            raise self._refuse(event, "begins a second document", "give one document a file")
        return value

    def _value(self, event: Any, depth: int) -> Any:
        """Build the value that begins with a parser event, consuming the further events that belong to it. depth: number of
        lists and objects around the value. Raises InputError for YAML that is not accepted.
        """
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise self._refuse(event, "has an anchor or an alias (& or *)", "write the value out, or quote the text")
        if event.tag is not None:
            raise self._refuse(event, f"has the tag {shown(event.tag)}", "remove it: types follow from the format")
        if depth > DEEPEST:
            raise RecursionError
        if isinstance(event, yaml.ScalarEvent):
            return _scalar(event.value) if event.implicit[0] else event.value
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
        """Yield the parser events of a list or object up to the event of type `end`, which ends it and is not yielded."""
        while not isinstance(event := next(self._events), end):
            yield event

    def _refuse(self, event: Any, problem: str, fix: str) -> InputError:
        """Build the error for a piece of YAML that is not accepted, at the line and column of the parser event `event`.
        problem: what is wrong. fix: what would work.
        """
        mark = event.start_mark
        return InputError(self._where, f"line {mark.line + 1} column {mark.column + 1}", problem, fix)


def _scalar(text: str) -> Any:
    """Parse a YAML text that is not in quotes: null, true, false, a number, or the text itself."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text.replace(".inf", "inf").replace(".nan", "nan")) if _FLOAT.fullmatch(text) else text


def yaml_text(value: Any) -> str:
    """Format plain data as a YAML text that reads back equal. Innermost lists and objects are on one line."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, default_flow_style=None, allow_unicode=True, width=120)
    return text


class _Dumper(yaml.SafeDumper):
    """Writes whole floats without a point, and quotes texts that would be read as numbers."""

    def ignore_aliases(self, data: Any) -> bool:
        """Always True, which makes PyYAML write out equal lists and objects each time, without anchors and aliases. data:
        unused; part of the signature that PyYAML calls.
        """
        return True

    def represent_number(self, data: float) -> yaml.Node:
        """Make PyYAML's node (what it writes) for a float; a float with a whole value is written as an integer, so 2.0 as 2."""
        return self.represent_int(int(data)) if data.is_integer() and abs(data) < 1e18 else self.represent_float(data)


_Dumper.add_representer(float, _Dumper.represent_number)
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))
