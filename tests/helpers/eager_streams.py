"""Ranks on the back-end `streams` without a GPU: CUDA's streams and events do nothing, and torch computes at once on the CPU.

The executor's own part remains: handlers separate from the frees, the order of issue, the host's thread, and memory that is
released later than it is freed. A test's worker processes import this module in place of `execution.run.ranks`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from trainplan.execution.run import cuda_streams
from trainplan.execution.run.ranks import run_rank

__all__ = ["run_rank"]


def _nothing(*_: Any) -> None: ...


def _still(*_: Any) -> SimpleNamespace:
    """A stream or event whose methods do nothing."""
    names = ("wait_stream", "wait_event", "synchronize", "record")
    return SimpleNamespace(**dict.fromkeys(names, _nothing))


@contextmanager
def _stream(stream: Any) -> Iterator[None]:
    yield


cuda_streams.cuda = SimpleNamespace(  # type: ignore[assignment]
    Stream=_still, Event=_still, current_stream=_still, stream=_stream, set_device=_nothing
)
