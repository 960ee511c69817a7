"""Pausing Python's garbage collector while programs are built and read: they are millions of objects without any cycle."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """Context manager, also usable as a decorator, that switches Python's cyclic garbage collector off inside its block and
    restores the collector's earlier state afterwards, also after an exception."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
