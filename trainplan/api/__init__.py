"""The public functions and classes (`tp.plan`, `tp.run`, ...), which are also those of the command.

A name is imported when it is first used, and a function checks the types of its arguments and the spelling of their names.
"""

from collections.abc import Callable
from difflib import get_close_matches
from functools import wraps
from importlib import import_module
from inspect import Parameter, isclass, signature
from typing import TYPE_CHECKING, Any

from trainplan.pictures import drawn
from trainplan.profiling.base.arguments import checked
from trainplan.profiling.base.plugins import attribute

if TYPE_CHECKING:
    from trainplan.api.compare_verbs import *
    from trainplan.api.configuration_verbs import *
    from trainplan.api.export_verbs import *
    from trainplan.api.library_verbs import *
    from trainplan.api.number_verbs import *
    from trainplan.api.plan_verbs import *
    from trainplan.api.problem_verbs import *
    from trainplan.api.run_verbs import *
    from trainplan.api.study_results import *
    from trainplan.api.study_verbs import *
    from trainplan.api.sweep_verbs import *
    from trainplan.pictures.charts import draw_errors as draw_errors
    from trainplan.pictures.charts import draw_profile as draw_profile
    from trainplan.pictures.charts import draw_throughput as draw_throughput
    from trainplan.pictures.comparisons import draw_comparison as draw_comparison
    from trainplan.pictures.comparisons import draw_rivals as draw_rivals
    from trainplan.pictures.comparisons import draw_trials as draw_trials
    from trainplan.pictures.lanes import draw_frontier as draw_frontier
    from trainplan.pictures.lanes import draw_switches as draw_switches
    from trainplan.pictures.layout import draw_plan as draw_plan
    from trainplan.pictures.placement import draw_placement as draw_placement
    from trainplan.pictures.placement import draw_placements as draw_placements
    from trainplan.pictures.plans import draw_simulation as draw_simulation
    from trainplan.pictures.studies import draw_heat as draw_heat
    from trainplan.pictures.studies import draw_steps as draw_steps
    from trainplan.pictures.study_profiles import draw_gaps as draw_gaps
    from trainplan.pictures.study_profiles import draw_performance as draw_performance
    from trainplan.pictures.timeline import draw_timeline as draw_timeline
    from trainplan.pictures.timeline import draw_timelines as draw_timelines


# By module of this package, the public names that it has.
_MODULES = {
    "export_verbs": ("export", "nearest_plan", "report"),
    "configuration_verbs": ("compare_log", "import_run"),
    "problem_verbs": (
        "Entry",
        "InputError",
        "Option",
        "Outcome",
        "Search",
        "build",
        "check",
        "compare",
        "frontier",
        "load",
        "methods",
        "schema",
        "solve",
    ),
    "library_verbs": ("library",),
    "number_verbs": ("calibrate", "detect", "import_profile", "profile", "validate"),
    "plan_verbs": (
        "PlanRequest",
        "SearchOptions",
        "by_runtime",
        "certify",
        "fit",
        "partition",
        "place",
        "plan",
        "plan_sizes",
        "plans",
        "switch",
        "what_if",
    ),
    "compare_verbs": (
        "chrome_trace",
        "compare_planners",
        "compare_plans",
        "differences",
        "explain",
        "simulate",
        "throughput",
    ),
    "study_results": ("read_study",),
    "study_verbs": ("study",),
    "sweep_verbs": ("sweep",),
    "run_verbs": ("RunSettings", "TrainingSettings", "run", "tokenize", "trial"),
}
# By function that draws a picture, its module, which imports matplotlib.
_DRAWN = {
    "draw_comparison": "trainplan.pictures.comparisons",
    "draw_errors": "trainplan.pictures.charts",
    "draw_frontier": "trainplan.pictures.lanes",
    "draw_gaps": "trainplan.pictures.study_profiles",
    "draw_heat": "trainplan.pictures.studies",
    "draw_performance": "trainplan.pictures.study_profiles",
    "draw_placement": "trainplan.pictures.placement",
    "draw_placements": "trainplan.pictures.placement",
    "draw_plan": "trainplan.pictures.layout",
    "draw_profile": "trainplan.pictures.charts",
    "draw_rivals": "trainplan.pictures.comparisons",
    "draw_simulation": "trainplan.pictures.plans",
    "draw_steps": "trainplan.pictures.studies",
    "draw_switches": "trainplan.pictures.lanes",
    "draw_throughput": "trainplan.pictures.charts",
    "draw_timeline": "trainplan.pictures.timeline",
    "draw_timelines": "trainplan.pictures.timeline",
    "draw_trials": "trainplan.pictures.comparisons",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}
NAMES = sorted([*_HOMES, *_DRAWN])


def __getattr__(name: str) -> Any:
    """A public name, imported at its first use and kept. Raises AttributeError for a name that is not public."""
    if name in _DRAWN:
        target = f"{_DRAWN[name]}:{name}"
        return globals().setdefault(name, wraps(attribute(target))(drawn(target)))
    if name not in _HOMES:
        raise AttributeError(f"trainplan has no {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return globals().setdefault(name, value if isclass(value) else _with_checked_names(checked(value)))


def _with_checked_names(verb: Callable[..., Any]) -> Callable[..., Any]:
    """The public function `verb`, wrapped so that a call with an unknown keyword raises a TypeError that suggests the nearest
    keyword that the function has."""
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
    """The public names, for `dir` and completion."""
    return NAMES
