"""Every function and every command that searches has one default of the gap and one of the time limit."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from trainplan.solvers.core import limits

import trainplan as tp
from tests.command.test_helping import names, options

DEFAULTS = {"gap": limits.GAP, "time_limit": limits.TIME_LIMIT_S}


def searching() -> list[str]:
    """The public functions that take a gap or a time limit."""
    functions = [name for name in tp.__all__ if inspect.isfunction(getattr(tp, name))]
    return [name for name in functions if DEFAULTS.keys() & inspect.signature(getattr(tp, name)).parameters.keys()]


@pytest.mark.parametrize("name", searching())
def test_a_function_has_the_common_defaults(name: str) -> None:
    parameters = inspect.signature(getattr(tp, name)).parameters
    found = {each: parameters[each].default for each in DEFAULTS if each in parameters}
    assert found == {each: DEFAULTS[each] for each in found}


def test_these_functions_search() -> None:
    assert {"plan", "solve", "compare", "compare_planners", "frontier", "throughput", "import_run", "explain", "report"} <= {
        *searching()
    }


@pytest.mark.parametrize("name", names())
def test_a_command_has_the_common_defaults(name: str) -> None:
    """As the default of its option; or as the help says it, where the option does not suit all that the command takes."""
    own: dict[str, Any] = options(name.split())
    for each in DEFAULTS.keys() & own.keys():
        if own[each].default is None:
            assert own[each].help.endswith(f"\\[default: {DEFAULTS[each]}]")
        else:
            assert own[each].default == DEFAULTS[each]
