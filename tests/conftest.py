"""Property tests have no deadline: a busy machine is no failure. Each process computes on one thread: there are many.

An interrupt interrupts, in processes that tests start, too: shells have those that they start in the background ignore it."""

import os
import signal

from hypothesis import settings

from tests.helpers import warm

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported; processes that tests start inherit it
os.environ.pop("COLUMNS", None)  # which readline sets for processes that are started after it is imported, such as workers
signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile("trainplan", deadline=None)
settings.load_profile("trainplan")


def pytest_sessionstart() -> None:
    """Have processes that run plans and solvers start with their imports done."""
    warm.install()
