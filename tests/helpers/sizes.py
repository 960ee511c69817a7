"""How much of an exhaustive test runs by default: `make test` takes a part of it, `make test-long` the whole."""

from typing import Any

import pytest


def some_and_all(some: Any, every: Any) -> list[Any]:
    """Values of a parameter: one for a part of a test, and one for the whole, which only `make test-long` runs."""
    return [some, pytest.param(every, marks=pytest.mark.long)]


def first_and_others(values: list[Any], count: int = 1) -> list[Any]:
    """Values of a parameter, or tuples of several, of which only `make test-long` runs those after the first `count`."""
    tuples = [value if isinstance(value, tuple) else (value,) for value in values]
    return [*values[:count], *(pytest.param(*value, marks=pytest.mark.long) for value in tuples[count:])]
