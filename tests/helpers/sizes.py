"""Sizes of exhaustive tests, which `make test` runs a part of, `make test-long` a fair sample, and `make test-all` the whole.

A fair sample is of values a fixed stride apart, so that every kind among them is still met: where kinds alternate with some
period, the stride has no divisor in common with it. `make test-all` is `make test-long` with TRAINPLAN_TESTS=all.
"""

import os
from collections.abc import Iterable
from typing import Any

import pytest

WHOLE = os.environ.get("TRAINPLAN_TESTS") == "all"


def one_in(stride: int, values: Iterable[Any]) -> list[Any]:
    """The values of a long test's parameter, or of its loop: the first and every one `stride` further; `make test-all` has
    all."""
    return [*values] if WHOLE else [*values][::stride]


def of_all(most: Any, every: Any) -> Any:
    """A number, or any value, that decides how much a long test does: `most` as a rule, `every` for `make test-all`."""
    return every if WHOLE else most


def some_and_all(some: Any, every: Any, most: Any = None) -> list[Any]:
    """Two values of a test's parameter: `some` for a part of the test; `every` for the whole, run as a long test only.
    most: the value for less than the whole, with which `make test-long` is content."""
    return [some, pytest.param(every if most is None else of_all(most, every), marks=pytest.mark.long)]


def first_and_others(values: Iterable[Any], count: int = 1, stride: int = 1) -> list[Any]:
    """The values of a test's parameter, or tuples for several parameters; `make test` runs only the first `count` of them, and
    `make test-long` one of `stride` others."""
    given = [*values]
    tuples = [value if isinstance(value, tuple) else (value,) for value in given[count:]]
    return [*given[:count], *(pytest.param(*value, marks=pytest.mark.long) for value in one_in(stride, tuples))]
