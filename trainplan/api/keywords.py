"""Lets public functions take the fields of settings objects as keywords, so that parameters are stated once, in a dataclass.

A settings class has the name, type, default and text (its docstring's Attributes) of every parameter. `with_fields` lets a
function take these fields as keywords, too, and `command.options.options_of` makes the command's options of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import fields, is_dataclass, replace
from functools import wraps
from inspect import Parameter, getdoc, signature, unwrap
from numbers import Integral
from textwrap import fill
from typing import Any, ParamSpec, TypeVar, cast, get_type_hints

from trainplan.profiling.base.arguments import check_value

Parameters = ParamSpec("Parameters")
Answer = TypeVar("Answer")
Settings = TypeVar("Settings")
_SECTION = re.compile(r"^(?:Args|Attributes):\n((?:    .*\n|\n(?=    ))+)", re.MULTILINE)
_ENTRY = re.compile(r"^    \**(\w+): ", re.MULTILINE)


def texts_of(source: Callable[..., Any]) -> dict[str, str]:
    """The descriptions of a function's arguments or a class's attributes, by name, from the section Args or Attributes of its
    docstring (Google's style).

    A description has one line for each of its paragraphs, and an empty line between two paragraphs. Empty if the docstring has
    no such section.
    """
    section = _SECTION.search((getdoc(unwrap(source)) or "") + "\n")
    if section is None:
        return {}
    _, *parts = _ENTRY.split(section[1])
    texts = ("\n\n".join(" ".join(paragraph.split()) for paragraph in body.strip().split("\n\n")) for body in parts[1::2])
    return dict(zip(parts[::2], texts, strict=True))


def given(settings: Any) -> dict[str, Any]:
    """The fields of a settings object (a dataclass) whose values differ from the fields' defaults, as a dict by name."""
    values = ((field, getattr(settings, field.name)) for field in fields(settings))
    return {field.name: value for field, value in values if value is not field.default and value != field.default}


def with_fields(
    call: Callable[Parameters, object], unchecked: Collection[str] = ()
) -> Callable[[Callable[..., Answer]], Callable[Parameters, Answer]]:
    """A decorator for a function that has parameters whose types are settings classes (dataclasses): the fields of these
    classes become keywords of the function, too.

    A settings object that is left out, or None, is one with all defaults; a keyword replaces a field of the object. Values are
    checked by the annotations of the classes. The function's signature and docstring, as `help` and notebooks show them, name
    all fields.

    Args:
        call: a dataclass that inherits from these classes and has the function's other parameters as its own fields. It is
            never instantiated; type checkers and editors take its constructor's signature for the function's.
        unchecked: names of fields whose types are checked elsewhere.

    Returns:
        The decorator. The decorated function raises InputError for a value of a wrong type, and TypeError for a keyword that is
            neither a parameter nor a field, unless the function takes any keywords.
    """

    def decorated(verb: Callable[..., Answer]) -> Callable[Parameters, Answer]:
        named, hints = signature(verb).parameters, get_type_hints(verb)
        classes = {
            name: hints[name] for name in named if is_dataclass(hints[name]) and issubclass(cast(type, call), hints[name])
        }
        accepted = [
            parameter.replace(default=None, annotation=hints[name] | None) if name in classes else parameter
            for name, parameter in named.items()
        ]
        for kind in classes.values():
            types = get_type_hints(kind)
            hints |= {name: wanted for name, wanted in types.items() if name not in unchecked}
            accepted += [
                Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=types[field.name])
                for field in fields(kind)
            ]
        accepted.sort(key=lambda parameter: parameter.kind)
        hints |= {name: kind | None for name, kind in classes.items()}
        public = signature(verb).replace(parameters=accepted)

        @wraps(verb)
        def by_keywords(*values: Any, **keywords: Any) -> Answer:
            try:
                arguments = public.bind(*values, **keywords).arguments
            except TypeError as error:
                raise TypeError(f"{verb.__name__}(): {error}") from None
            for name, kind in classes.items():
                check_value(name, arguments.get(name), kind | None)
                changed = {field.name: arguments.pop(field.name) for field in fields(kind) if field.name in arguments}
                arguments[name] = _checked(replace(arguments.get(name) or kind(), **changed), hints)
            for name, parameter in named.items():
                if parameter.kind is Parameter.VAR_KEYWORD:
                    arguments |= arguments.pop(name, {})
            return verb(**arguments)

        by_keywords.__signature__ = public  # type: ignore[attr-defined]
        by_keywords.__annotations__ = hints
        by_keywords.__doc__ = _with_entries(verb, classes.values())
        return cast("Callable[Parameters, Answer]", by_keywords)

    return decorated


def _checked(settings: Settings, wanted: dict[str, Any]) -> Settings:
    """A settings object (a dataclass) with the types of its fields checked, and whole numbers of other libraries (numpy) made
    Python's.

    wanted: the annotated type of each field, by name. Only fields that are not at their defaults are checked. Raises InputError
    for a value of a wrong type.
    """
    whole = {}
    for name, value in given(settings).items():
        if name in wanted:
            check_value(name, value, wanted[name])
        if isinstance(value, Integral) and not isinstance(value, int):
            whole[name] = int(value)
    return replace(cast(Any, settings), **whole) if whole else settings


def _with_entries(verb: Callable[..., Any], classes: Collection[type]) -> str:
    """The docstring of a function, in which the fields of settings classes are added to its section Args, before an entry for
    any other keywords.

    verb: the function. classes: the settings classes, whose docstrings describe the fields. A docstring without Args is
    returned unchanged.
    """
    text = getdoc(verb) or ""
    entries = {name: about for kind in classes for name, about in texts_of(kind).items()}
    lines = [
        fill(paragraph, 120, initial_indent=" " * (8 if number else 4), subsequent_indent=" " * 8)
        for name, about in entries.items()
        for number, paragraph in enumerate(f"{name}: {about}".split("\n\n"))
    ]
    section = _SECTION.search(text + "\n")
    if section is None:
        return text
    before, others, after = section[1].partition("    **")  # any other keywords come last
    return "".join([text[: section.start(1)], before, *(f"{line}\n" for line in lines), others, after, text[section.end(1) :]])
