"""Values of a study's axes: lists and single values, ranges of numbers, and the comparison of values with conditions."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from trainplan.profiling.base.errors import InputError, shown

MOST_VALUES = 100_000  # of one axis or range
LARGEST = 2**63 - 1  # number of a column of whole numbers


def equals(value: Any, wanted: Any) -> bool:
    """Whether a cell's value is the wanted one: texts with the wildcards * and ?, limits by the fields that are stated."""
    if isinstance(value, str) and isinstance(wanted, str):
        return fnmatchcase(value, wanted)
    if isinstance(value, Mapping) and isinstance(wanted, Mapping):
        return all(name in value and value[name] == wanted[name] for name in wanted)
    return type(value) is type(wanted) and bool(value == wanted)


def listed(value: Any) -> list[Any]:
    """A list as it is; any other value as a list of it."""
    return value if isinstance(value, list) else [value]


def values_of(value: Any, default: list[Any], where: str, field: str) -> list[Any]:
    """The values of an axis; the default if it is left out. Raises InputError for an empty list, and for a value twice."""
    items = default if value is None and default != [None] else listed(value)
    if value == [] or any(item in items[:number] for number, item in enumerate(items[:MOST_VALUES])):
        problem_text = "is empty" if value == [] else "has a value twice"
        raise InputError(where, field, problem_text, "give a value, or a list of different values")
    return items


def is_number(value: Any) -> bool:
    """Whether a value is a finite number that a row of results can hold (true and false are none)."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST


def numbers_of(value: Any, default: list[int], where: str, field: str) -> list[int]:
    """The whole numbers of an axis, with its ranges written out. Raises InputError for anything else."""
    items = [number for item in values_of(value, default, where, field) for number in _range(item, where, field)]
    if any(not isinstance(item, int) or not is_number(item) or item < 0 for item in items):
        raise InputError(
            where, field, f"is {shown(value)}", "give whole numbers, or a range such as {from: 8, to: 64, times: 2}"
        )
    return list(dict.fromkeys(items))


def any_values(value: Any, where: str, field: str) -> list[Any]:
    """The values of an axis of any kind, with ranges of numbers written out. Raises InputError for a number that is not finite
    or above LARGEST, which no row of results can hold."""
    if value is None:
        return [None]
    items = [number for item in values_of(value, [], where, field) for number in _range(item, where, field)]
    for item in items:
        if isinstance(item, int | float) and not abs(item) <= LARGEST:
            raise InputError(where, field, f"is {shown(item)}", f"give finite numbers up to {LARGEST}")
    return items


def _range(item: Any, where: str, field: str) -> list[Any]:
    """The numbers of a range, {"from": 8, "to": 64, "times": 2} or with "plus" (default: plus 1); of any other value itself."""
    if not isinstance(item, dict) or "from" not in item:
        return [item]
    first, last, times, plus = (item.get(name) for name in ("from", "to", "times", "plus"))
    fix = "give {from: 8, to: 64, times: 2} or {from: 8, to: 64, plus: 8}"
    whole = all(isinstance(number, int) and not isinstance(number, bool) for number in item.values())
    if not whole:
        raise InputError(where, field, f"is {shown(item)}, and ranges have whole numbers", f"list the values, or {fix}")
    if set(item) - {"from", "to", "times", "plus"} or last is None or (times is not None and plus is not None):
        raise InputError(where, field, f"is {shown(item)}", fix)
    assert isinstance(first, int)
    numbers, number = list[int](), first
    while number <= last:
        if len(numbers) == MOST_VALUES:
            raise InputError(where, field, f"is {shown(item)}, of more than {MOST_VALUES:,} numbers", fix)
        numbers.append(number)
        following = number * times if times is not None else number + (1 if plus is None else plus)
        if following <= number:
            raise InputError(where, field, f"is {shown(item)}, which does not grow", fix)
        number = following
    if not numbers:
        raise InputError(where, field, f"is {shown(item)}, which is empty", fix)
    return numbers
