"""`python -m trainplan.profiling.worker FOLDER RANK WORLD`: one of the processes of `run_workers`."""

from __future__ import annotations

import sys

from trainplan.profiling.processes import work

if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
