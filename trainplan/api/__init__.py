"""The public verbs, the same as the command's. Each is imported when it is first used."""

from collections.abc import Callable
from difflib import get_close_matches
from functools import wraps
from importlib import import_module
from inspect import Parameter, isclass, signature
from typing import TYPE_CHECKING, Any

from trainplan.pictures import drawn
from trainplan.profiling.base.arguments import checked

if TYPE_CHECKING:
    from trainplan.api.configuration_verbs import *
    from trainplan.api.export_verbs import *
    from trainplan.api.number_verbs import *
    from trainplan.api.plan_verbs import *
    from trainplan.api.problem_verbs import *
    from trainplan.api.report_verbs import *

draw_comparison = drawn("trainplan.pictures.comparisons:draw_comparison")
draw_errors = drawn("trainplan.pictures.errors:draw_errors")
draw_frontier = drawn("trainplan.pictures.lanes:draw_frontier")
draw_placement = drawn("trainplan.pictures.placement:draw_placement")
draw_placements = drawn("trainplan.pictures.placement:draw_placements")
draw_plan = drawn("trainplan.pictures.layout:draw_plan")
draw_profile = drawn("trainplan.pictures.charts:draw_profile")
draw_rivals = drawn("trainplan.pictures.comparisons:draw_rivals")
draw_simulation = drawn("trainplan.pictures.plans:draw_simulation")
draw_switches = drawn("trainplan.pictures.lanes:draw_switches")
draw_throughput = drawn("trainplan.pictures.charts:draw_throughput")
draw_timeline = drawn("trainplan.pictures.timeline:draw_timeline")
draw_timelines = drawn("trainplan.pictures.timeline:draw_timelines")
draw_trials = drawn("trainplan.pictures.comparisons:draw_trials")

_MODULES = {
    "export_verbs": ("export", "nearest_plan"),
    "configuration_verbs": ("compare_log", "import_run"),
    "problem_verbs": ("InputError", "build", "check", "compare", "frontier", "load", "methods", "schema", "solve"),
    "report_verbs": ("report",),
    "number_verbs": ("detect", "import_profile", "profile", "validate"),
    "plan_verbs": (
        *(
            "certify",
            "chrome_trace",
            "compare_planners",
            "compare_plans",
            "differences",
            "explain",
            "PlanRequest",
            "SearchOptions",
            "partition",
            "place",
            "plan",
            "plans",
            "run",
            "simulate",
            "switch",
        ),
        *("throughput", "tokenize", "trial"),
    ),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}
NAMES = sorted([*_HOMES, *(name for name in globals() if name.startswith("draw_"))])


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"trainplan has no {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return globals().setdefault(name, value if isclass(value) else _with_checked_names(checked(value)))


def _with_checked_names(verb: Callable[..., Any]) -> Callable[..., Any]:
    """The verb, which answers an argument that it does not have with the nearest that it has."""
    parameters = signature(verb).parameters
    open_ended = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values())

    @wraps(verb)
    def checked(*values: Any, **named: Any) -> Any:
        unknown = [name for name in named if name not in parameters]
        if unknown and not open_ended:
            near = get_close_matches(unknown[0], parameters, n=1)
            fix = f"did you mean {near[0]!r}?" if near else f"it has: {', '.join(parameters)}"
            raise TypeError(f"{verb.__name__}() has no argument {unknown[0]!r}; {fix}")
        return verb(*values, **named)

    return checked


def __dir__() -> list[str]:
    return NAMES
