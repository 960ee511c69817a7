"""Default gap and time limit of every function and command that searches."""

from __future__ import annotations

GAP = 0.0  # relative, at which a search stops: what it finds is the best, if the time is enough to prove it
TIME_LIMIT_S: float = 60.0  # of one search; a caller's None is no limit
