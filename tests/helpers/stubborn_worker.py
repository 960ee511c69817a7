"""A solver process that reports its process id and then never ends, for tests of how searches are stopped."""

import os
import time
from typing import Any

from trainplan.solvers.adapters.worker import Send, serve


def solve(request: dict[str, Any], send: Send) -> dict[str, Any]:
    """Allocate the bytes "taken_bytes" of the request, or return its "ends" at once; otherwise never return."""
    if request.get("taken_bytes"):
        return {"taken": len(bytearray(request["taken_bytes"]))}
    if request.get("ends"):
        return {"echo": request["ends"]}
    send(("process", os.getpid()))
    while True:
        time.sleep(60)


if __name__ == "__main__":
    serve(solve)
