"""A solver that tells what it has and never ends: a process for `Worker`, see test_stopping."""

import os
import time
from typing import Any

from trainplan.solvers.adapters.worker import Send, serve


def solve(request: dict[str, Any], send: Send) -> dict[str, Any]:
    if request.get("taken_bytes"):
        return {"taken": len(bytearray(request["taken_bytes"]))}
    if request.get("ends"):
        return {"echo": request["ends"]}
    send(("process", os.getpid()))
    while True:
        time.sleep(60)


if __name__ == "__main__":
    serve(solve)
