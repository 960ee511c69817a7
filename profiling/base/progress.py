"""How long work tells its caller what it is doing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Called with one event at a time: what is being done, and how much of it is done. The library draws nothing itself.
Report = Callable[[dict[str, Any]], None]
