"""Find measured times that contradict others, as happens when the machine was busy for a moment."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

TOLERANCE = 0.25  # small sub-layers differ by less from one measurement to the next


def doubtful(tasks: Mapping[int, Mapping[str, Any]], results: Mapping[int, Mapping[str, Any]]) -> list[int]:
    """Find measurements that contradict others: the numbers, sorted, of the tasks whose sub-layer took clearly longer than
    with more samples, or clearly longer per sample than with fewer samples.

    tasks: the measuring tasks (sub-layer, tensor-parallel degree, samples), by number. results: their results, by the same
    numbers.
    """
    by_shape: dict[tuple[str, int], list[int]] = {}
    for number, task in tasks.items():
        if task["kind"] == "sublayer" and "out_of_memory" not in results[number]:
            by_shape.setdefault((task["sublayer"], task["tp"]), []).append(number)
    numbers = set[int]()
    for alike in by_shape.values():
        for few, many in pairwise(sorted(alike, key=lambda number: int(tasks[number]["rows"]))):
            less, more = seconds(results[few]), seconds(results[many])
            if less > (1 + TOLERANCE) * more:
                numbers.add(few)
            elif more / tasks[many]["rows"] > (1 + TOLERANCE) * less / tasks[few]["rows"]:
                numbers.add(many)
    return sorted(numbers)


def seconds(result: Mapping[str, Any]) -> float:
    """Forward and backward time together, in seconds, in the result of measuring a sub-layer; infinite if it ran out of
    memory.
    """
    if "out_of_memory" in result:
        return math.inf
    return float(result["forward_ns"][0] + result["backward_ns"][0]) / 1e9
