"""The fused back-end: two threads, ordered by nothing but the program's waits."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from trainplan.execution.program import Instruction


def run_fused(instructions: tuple[Instruction, ...], run: Callable[[Instruction], None]) -> None:
    """Compute here, communication in issue order on a second thread; each instruction waits for those that it names."""
    done = [threading.Event() for _ in instructions]
    failed: queue.Queue[BaseException] = queue.Queue()

    def stream(name: str) -> None:
        for place, instruction in enumerate(instructions):
            if instruction.stream != name:
                continue
            for index in instruction.waits:
                while not done[index].wait(timeout=1.0):
                    if not failed.empty():
                        return
            try:
                run(instruction)
            except BaseException as error:
                failed.put(error)
                return
            done[place].set()

    thread = threading.Thread(target=stream, args=("communication",), daemon=True)
    thread.start()
    stream("compute")
    thread.join()
    if not failed.empty():
        raise failed.get()
