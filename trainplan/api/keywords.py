"""The keyword form of verbs that take settings: parameters are stated once, as the fields of a dataclass.

A class of settings has the name, type, default and text of every parameter (its docstring's Attributes). `with_fields` lets a
verb take these fields as keywords, too, and `command.options.options_of` makes the command's options of them.
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
    """What a docstring in Google's style says of every argument of a function, or of every attribute of a class, by name: one
    line for each paragraph, with an empty line between two."""
    section = _SECTION.search((getdoc(unwrap(source)) or "") + "\n")
    if section is None:
        return {}
    _, *parts = _ENTRY.split(section[1])
    texts = ("\n\n".join(" ".join(paragraph.split()) for paragraph in body.strip().split("\n\n")) for body in parts[1::2])
    return dict(zip(parts[::2], texts, strict=True))


def given(settings: Any) -> dict[str, Any]:
    """The fields of an object of settings that are not at their defaults, by name."""
    values = ((field, getattr(settings, field.name)) for field in fields(settings))
    return {field.name: value for field, value in values if value is not field.default and value != field.default}


def with_fields(
    call: Callable[Parameters, object], unchecked: Collection[str] = ()
) -> Callable[[Callable[..., Answer]], Callable[Parameters, Answer]]:
    """Lets a function that takes objects of settings take the fields of their classes as keywords, too.

    An object that is left out, or None, is one with all defaults; a keyword replaces the field of an object. Types are checked
    by the classes' annotations. The function's signature and docstring, as `help` and notebooks show them, name all fields.

    Args:
        call: a dataclass that inherits from these classes, and has the function's other parameters as fields of its own: type
            checkers and editors take the signature of its constructor for that of the function.
        unchecked: names of fields whose types are checked elsewhere.

    Returns:
        A decorator of functions. What it makes raises InputError for a value of a wrong type, and TypeError for a keyword that
        is neither a parameter nor a field, unless the function takes any keywords.
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
    """The settings, whole numbers of other libraries as Python's. Raises InputError for a field that is not at its default and
    not of the type that is wanted of it."""
    whole = {}
    for name, value in given(settings).items():
        if name in wanted:
            check_value(name, value, wanted[name])
        if isinstance(value, Integral) and not isinstance(value, int):
            whole[name] = int(value)
    return replace(cast(Any, settings), **whole) if whole else settings


def _with_entries(verb: Callable[..., Any], classes: Collection[type]) -> str:
    """The docstring of a function, the fields of these classes among its arguments."""
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
