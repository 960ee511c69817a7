"""The type of callbacks by which long work reports its progress."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Called with one event: the task in progress, and how much of it is done. The library itself draws no progress bars.
Report = Callable[[dict[str, Any]], None]
