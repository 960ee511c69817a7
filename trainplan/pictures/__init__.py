"""Pictures of profiles, plans, steps and results, with the plot extra."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from trainplan.profiling.base.arguments import checked
from trainplan.profiling.base.errors import MissingExtra
from trainplan.profiling.base.plugins import attribute


def drawn(target: str) -> Callable[..., Any]:
    """Make a stand-in for a drawing function that imports the function's module, and thereby matplotlib, only when it is
    called.

    target: the drawing function, as "package.module:function". The stand-in takes the same arguments and returns the
    matplotlib Figure; it raises MissingExtra if matplotlib is not installed.
    """

    def draw(*arguments: Any, **options: Any) -> Any:
        """The Figure that the drawing function gives for the same arguments."""
        if find_spec("matplotlib") is None:
            raise MissingExtra("matplotlib", "plot", "drawing")
        return checked(attribute(target))(*arguments, **options)

    draw.__name__ = draw.__qualname__ = target.split(":")[1]
    draw.__doc__ = f"See `{target.replace(':', '.')}`."
    return draw
