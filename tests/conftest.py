"""Property tests have no deadline: a busy machine is no failure. Each process computes on one thread: there are many."""

import os

from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported; processes that tests start inherit it
settings.register_profile("trainplan", deadline=None)
settings.load_profile("trainplan")
