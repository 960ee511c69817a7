"""trainplan plans distributed Transformer training by mathematical programming, proves how good each plan is, and runs it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

# In a checkout the other packages lie beside this folder. An editable install cannot map `profiling`, which has no
# __init__.py (Python 3.15 has a standard package of that name, which must win where the checkout is on the path).
_checkout = Path(__file__).resolve().parent.parent
if (_checkout / "pyproject.toml").is_file() and (_checkout / "profiling").is_dir():
    __path__.append(str(_checkout))

if TYPE_CHECKING:
    from trainplan.api import (
        InputError,
        build,
        check,
        chrome_trace,
        compare,
        detect,
        draw_frontier,
        draw_placement,
        draw_placements,
        draw_profile,
        draw_switches,
        draw_throughput,
        draw_timeline,
        draw_timelines,
        export,
        import_profile,
        load,
        methods,
        partition,
        place,
        plan,
        profile,
        run,
        schema,
        simulate,
        solve,
        switch,
        switch_frontier,
        throughput,
        trial,
    )

__all__ = [
    "InputError",
    "build",
    "check",
    "chrome_trace",
    "compare",
    "detect",
    "draw_frontier",
    "draw_placement",
    "draw_placements",
    "draw_profile",
    "draw_switches",
    "draw_throughput",
    "draw_timeline",
    "draw_timelines",
    "export",
    "import_profile",
    "load",
    "methods",
    "partition",
    "place",
    "plan",
    "profile",
    "run",
    "schema",
    "simulate",
    "solve",
    "switch",
    "switch_frontier",
    "throughput",
    "trial",
]


def __getattr__(name: str) -> Any:
    """The verbs are imported when first used: `import trainplan` loads neither torch nor a solver."""
    if name not in __all__:
        raise AttributeError(f"module 'trainplan' has no attribute {name!r}")
    from trainplan import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return __all__
