"""trainplan plans distributed Transformer training by mathematical programming, proves how good each plan is, and runs it."""

from __future__ import annotations

import os.path
from importlib import import_module

# In a checkout the other packages are this folder's siblings. An editable install cannot map `profiling`, which has no
# __init__.py (Python 3.15 has a standard package of that name, which must win where the checkout is on the path).
_checkout = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
if os.path.isfile(os.path.join(_checkout, "pyproject.toml")) and os.path.isdir(os.path.join(_checkout, "profiling")):
    __path__.append(_checkout)

TYPE_CHECKING = False  # type checkers read it as that of `typing`, whose import would take longer than all else here
if TYPE_CHECKING:
    from typing import Any

    from trainplan.api import *

    __version__: str


def __getattr__(name: str) -> Any:
    """A public name of `trainplan.api`, imported at its first use, so that `import trainplan` loads neither torch nor a solver.

    Raises AttributeError for a name that is not public.
    """
    if name == "__version__":
        return import_module("importlib.metadata").version("trainplan")
    api = import_module("trainplan.api")
    if name == "__all__":
        return api.NAMES
    if name not in api.NAMES:
        raise AttributeError(f"module 'trainplan' has no attribute {name!r}")
    return getattr(api, name)


def __dir__() -> list[str]:
    """The public names, for `dir(trainplan)` and completion."""
    names: list[str] = import_module("trainplan.api").NAMES
    return [*names, "__version__"]
