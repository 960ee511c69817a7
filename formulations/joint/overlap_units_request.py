"""Requests in which units of one plan may have unlike layouts under overlap (`--layouts unit`): what they may ask for."""

from __future__ import annotations

from dataclasses import replace

from trainplan.formulations.joint.options import (
    CP,
    HOST,
    LAYOUTS,
    OPTIMIZER,
    PRECISION,
    SCHEDULE,
    cost_model_of,
)
from trainplan.formulations.joint.recompute_first import RECOMPUTE_FIRST
from trainplan.formulations.joint.within_runtime import FOR
from trainplan.formulations.plan.request import Request
from trainplan.formulations.runtimes import RUNTIMES
from trainplan.profiling.base.errors import COMMAND_LINE, InputError

UNIT = "unit"
AS_BY_DEFAULT = (CP, PRECISION, OPTIMIZER, HOST, RECOMPUTE_FIRST)  # options that plans of unlike layouts have no others of


def asks_for_unlike_layouts(request: Request) -> bool:
    """Whether a request lets units (sub-layers or layers) of one plan have unlike layouts, with costs that count overlap.
    Raises InputError if it asks for something that such plans do not have."""
    if request.options.get(LAYOUTS.name) != UNIT or cost_model_of(request) != "streams":
        return False
    check_unlike_layouts(request)
    return True


def of_one_layout(request: Request) -> Request:
    """The request for plans whose units all have one layout."""
    return replace(request, options={**request.options, LAYOUTS.name: LAYOUTS.default})


def check_unlike_layouts(request: Request) -> None:
    """Raise InputError if a request with `--layouts unit` asks for something that plans of unlike layouts do not have."""
    options = request.options
    name = options[FOR.name]
    if name is not None and RUNTIMES[name].one_strategy:
        able = " or ".join(other for other, runtime in RUNTIMES.items() if not runtime.one_strategy)
        raise _refused(f"is {UNIT}, with {FOR.flag} {name}", f"give one, or {FOR.flag} {able}: {name} runs one layout")
    if options["one_strategy"]:
        raise _refused(f"is {UNIT}, with --one-strategy", "leave one of them out")
    if options[SCHEDULE.name] not in ("1f1b", "gpipe"):
        problem = f"is {UNIT}, with {SCHEDULE.flag} {options[SCHEDULE.name]}"
        raise _refused(problem, f"give one, or {SCHEDULE.flag} 1f1b: interleaved stages have one layout")
    for parameter in AS_BY_DEFAULT:
        value = options.get(parameter.name, parameter.default)
        if value != parameter.default:
            raise _refused(f"is {UNIT}, with {parameter.flag} {value}", f"give one, or leave {parameter.flag} out")


def _refused(problem: str, fix: str) -> InputError:
    """The error about the option `--layouts`. problem: what it is. fix: what to give instead."""
    return InputError(COMMAND_LINE, LAYOUTS.flag, problem, fix)
