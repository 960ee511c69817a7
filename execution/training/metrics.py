"""Metrics of a run: a file of JSON lines, one for each step, which grows as the run goes on."""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from typing import Any

from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import write_whole


class Metrics:
    """Writes the file of a run's metrics, one JSON line per step: `step`, `loss`, `grad_norm` (before gradients were clipped),
    `learning_rate`, `seconds` and `memory_bytes` (of the slowest and the largest rank), `tokens_per_second`, and, for steps
    after which the model was evaluated, `evaluation_loss`.

    done: number of steps before the checkpoint from which the run resumes; 0 without one. Lines of later steps, left by a run
    that was killed after its last checkpoint, are dropped.
    """

    def __init__(self, path: str, done: int) -> None:
        kept = []
        if done and Path(path).exists():
            kept = [line for line in Path(path).read_text().splitlines() if _step(path, line) <= done]
        write_whole(path, "".join(f"{line}\n" for line in kept))
        self._file = open(path, "a")  # noqa: SIM115

    def add(self, **values: Any) -> None:
        """Write a step's line, flushed so that it can be read at once. values: the line's fields."""
        self._file.write(json.dumps(values) + "\n")
        self._file.flush()


def _step(path: str, line: str) -> float:
    """The step of a line of a metrics file; infinity for a line that a killed run has left incomplete. path: the file, for
    messages. Raises InputError for a line that is no metrics."""
    try:
        return int(json.loads(line)["step"])
    except json.JSONDecodeError:
        return float("inf")  # a run was killed within it
    except (KeyError, TypeError, ValueError):
        raise InputError(path, "", "holds lines that are no metrics", "name another file, or remove this one") from None


def memory_bytes(device: Any) -> int:
    """The most memory in bytes that this process has had: on a GPU what torch allocated there, on the CPU its resident memory.
    device: the torch device."""
    if device.type == "cuda":
        import torch

        return torch.cuda.max_memory_allocated(device)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
