"""trainplan plans distributed Transformer training by mathematical programming, proves how good each plan is, and runs it."""

from __future__ import annotations

import os.path
from importlib import import_module

# In a checkout the other packages lie beside this folder. An editable install cannot map `profiling`, which has no
# __init__.py (Python 3.15 has a standard package of that name, which must win where the checkout is on the path).
_checkout = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
if os.path.isfile(os.path.join(_checkout, "pyproject.toml")) and os.path.isdir(os.path.join(_checkout, "profiling")):
    __path__.append(_checkout)

TYPE_CHECKING = False  # as of `typing`, which takes longer to import than all else here
if TYPE_CHECKING:
    from typing import Any

    from trainplan.api import *

    __version__: str


def __getattr__(name: str) -> Any:
    """The verbs are imported when first used: `import trainplan` loads neither torch nor a solver."""
    if name == "__version__":
        return import_module("importlib.metadata").version("trainplan")
    api = import_module("trainplan.api")
    if name == "__all__":
        return api.NAMES
    if name not in api.NAMES:
        raise AttributeError(f"module 'trainplan' has no attribute {name!r}")
    return getattr(api, name)


def __dir__() -> list[str]:
    names: list[str] = import_module("trainplan.api").NAMES
    return [*names, "__version__"]
