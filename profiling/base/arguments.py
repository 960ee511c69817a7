"""Check the arguments of Python functions by their annotations: a wrong type raises an InputError that names the argument."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, wraps
from inspect import Parameter, signature
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from trainplan.profiling.base.errors import COMMAND_LINE, InputError, printable

Function = TypeVar("Function", bound=Callable[..., Any])
UNIONS, LISTS = (Union, UnionType), (list, tuple, Sequence, Iterable)
# For messages: how a type is called, and a value that would work, by an argument's name or by its type.
NOUNS: dict[Any, str] = {bool: "True or False", int: "a whole number", float: "a number", str: "a text", Mapping: "a dict"}
EXAMPLES: dict[Any, str] = {
    "batch": "8",
    "model": "'gpt2'",
    "cluster": "'cpu-4'",
    "memory": "'8GiB'",
    "reserve": "'4GiB'",
    "solver_memory": "'8GiB'",
    "sequence": "1024",
    "dtype": "'bf16'",
    "method": "'exact'",
    "methods": "['exact']",
    "time_limit": "10",
    "seed": "0",
    "gap": "0.01",
    "progress": "print",
    "measuring": "print",
    int: "1",
    float: "1.5",
}


def fits(value: Any, wanted: Any) -> bool:
    """Whether a value is of the type that a parameter's annotation states (`wanted`); for list types all items must fit. True
    for every value if this function does not support the annotation.
    """
    origin, inner = get_origin(wanted), get_args(wanted)
    if wanted is Any:
        return True
    if origin in UNIONS:
        return any(fits(value, member) for member in inner)
    if origin is Literal:
        return value in inner
    if origin in (Callable, Mapping, os.PathLike):
        return callable(value) if origin is Callable else isinstance(value, origin)
    if origin in LISTS:
        many = isinstance(value, Iterable if origin is Iterable else Sequence) and not isinstance(value, str | bytes | Mapping)
        return many and (not isinstance(value, Sequence) or all(fits(item, inner[0]) for item in value))
    if wanted in (int, float):
        return isinstance(value, Integral if wanted is int else Real) and not isinstance(value, bool)
    return not isinstance(wanted, type) or isinstance(value, wanted)


def _noun(wanted: Any) -> str:
    """Describe the values that a parameter's annotation allows, as a phrase for an error message, such as "a whole number or a
    list, each item a text".
    """
    origin, inner = get_origin(wanted), get_args(wanted)
    if origin in UNIONS:
        parts = sorted((member for member in inner if member is not NoneType), key=_listed)
        return " or ".join(dict.fromkeys(map(_noun, parts)))
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin in LISTS:
        return f"a list, each item {_noun(inner[0])}"
    if origin in (Callable, os.PathLike, Mapping):
        return {Callable: "a function", os.PathLike: "a path"}.get(origin, NOUNS[Mapping])
    name = getattr(wanted, "__name__", "value").removesuffix("Like")
    return NOUNS.get(wanted) or f"a{'n' * (name[0] in 'AEIOU')} {name}"


def _listed(wanted: Any) -> bool:
    """Whether a parameter's annotation (`wanted`) is a list type, or a union with a list type among its members."""
    return any(get_origin(member) in LISTS for member in (wanted, *get_args(wanted)))


def check_value(name: str, value: Any, wanted: Any) -> None:
    """Raise InputError if an argument's value is not of the type that its annotation states (`wanted`), or is an empty list.
    name: the argument's name, for the message.
    """
    empty = _listed(wanted) and isinstance(value, Sequence) and not isinstance(value, str) and not len(value)
    if fits(value, wanted) and not empty:
        return
    members = (wanted, *get_args(wanted))
    example = EXAMPLES.get(name) or next((EXAMPLES[member] for member in members if member in EXAMPLES), "")
    example = f"[{example}]" if get_origin(wanted) in LISTS and example and not example.startswith("[") else example
    fix = f"give {'at least one: ' if empty else ''}{_noun(wanted)}{example and f', such as {example}'}"
    raise InputError(COMMAND_LINE, f"--{name.replace('_', '-')}", f"is {printable(repr(value), 60)}", fix)


@cache
def _wanted(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function's parameters by parameter name, without *args and **kwargs."""
    hints, open_ended = get_type_hints(function), (Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL)
    named = [name for name, parameter in signature(function).parameters.items() if parameter.kind not in open_ended]
    return {name: hints[name] for name in named if name in hints}


def check_arguments(function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Raise InputError if an argument of a call does not have the type that the function's annotation states. function: the
    function that is called. arguments: the values of its arguments by name.
    """
    for name, wanted in _wanted(function).items():
        if name in arguments:
            check_value(name, arguments[name], wanted)


def checked(function: Function) -> Function:
    """Decorator that makes calls of a function raise InputError for arguments whose types its annotations do not allow.
    Integers of other libraries, such as numpy, are passed on as Python's int.
    """
    accepted = signature(function)

    @wraps(function)
    def checking(*values: Any, **named: Any) -> Any:
        """The decorated function: it checks its arguments, then calls the original."""
        try:
            bound = accepted.bind(*values, **named)
        except TypeError:
            return function(*values, **named)  # which says what is wrong
        check_arguments(function, bound.arguments)
        whole = {name: int(value) for name, value in bound.arguments.items() if isinstance(value, Integral)}
        bound.arguments |= {name: value for name, value in whole.items() if not isinstance(bound.arguments[name], int)}
        return function(*bound.args, **bound.kwargs)

    return checking  # type: ignore[return-value]
