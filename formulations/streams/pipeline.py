"""When the passes of a pipeline end where messages travel beside passes, or where devices wait for them."""

from __future__ import annotations

from collections.abc import Sequence

from trainplan.formulations.step.schedules import Pass, in_turn, interleaved, one_f_one_b
from trainplan.formulations.step.timeline import source_of


def pipeline_ns(
    forward_ns: Sequence[int],
    backward_ns: Sequence[int],
    transfer_ns: int,
    micro_batches: int,
    chunks: int = 1,
    beside: bool = False,
) -> list[int]:
    """When each device has ended its last pass, in ns from the step's beginning, under 1F1B or, with several chunks on each
    device, interleaved 1F1B.

    forward_ns, backward_ns: of a micro-batch on each stage; stage s is on device s modulo their number. transfer_ns: a message
    to the next stage, either way. beside: messages travel beside passes; else the receiver waits for them, as in `timeline`.
    micro_batches: interleaved, a multiple of the devices.
    """
    stages = len(forward_ns)
    devices = stages // chunks
    if devices == 1:
        return [micro_batches * (sum(forward_ns) + sum(backward_ns))]
    orders = interleaved(devices, chunks, micro_batches) if chunks > 1 else one_f_one_b(devices, micro_batches)
    ends: dict[Pass, int] = {}
    free = [0] * devices
    whole = _Whole()

    def needed(task: Pass) -> Pass | None:
        source = source_of(task, whole, stages)
        return None if source is None else source[0]

    for device, task, source in in_turn(orders, needed):
        start = free[device]
        if source is not None:
            sent = ends[source]
            start = max(start, sent + transfer_ns) if beside else max(start, sent) + transfer_ns
        times = forward_ns if task.kind == "forward" else backward_ns
        ends[task] = free[device] = start + times[task.stage]
    return free


class _Whole:
    """All passes, none of them in halves."""

    def __contains__(self, task: object) -> bool:
        return True
