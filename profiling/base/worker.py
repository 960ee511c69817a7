"""`python -m trainplan.profiling.base.worker FOLDER WORLD TARGET`: starts the processes of `run_workers`."""

from __future__ import annotations

import sys

from trainplan.profiling.base.processes import launch

if __name__ == "__main__":
    launch(sys.argv[1], int(sys.argv[2]), sys.argv[3])
