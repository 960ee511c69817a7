"""Parameters of exhaustive tests: `make test` runs a part of their values, `make test-long` all of them."""

from typing import Any

import pytest


def some_and_all(some: Any, every: Any) -> list[Any]:
    """Two values of a test's parameter: `some` for a part of the test; `every` for the whole, run by `make test-long` only."""
    return [some, pytest.param(every, marks=pytest.mark.long)]


def first_and_others(values: list[Any], count: int = 1) -> list[Any]:
    """The values of a test's parameter, or tuples for several parameters; `make test` runs only the first `count` of them."""
    tuples = [value if isinstance(value, tuple) else (value,) for value in values]
    return [*values[:count], *(pytest.param(*value, marks=pytest.mark.long) for value in tuples[count:])]
