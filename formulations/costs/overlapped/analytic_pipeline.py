"""When the devices of a pipeline end, where messages travel in parallel with passes, or where devices wait for them."""

from __future__ import annotations

from collections.abc import Sequence

from trainplan.formulations.schedule.graph import Duration
from trainplan.formulations.schedule.orders import PlanSchedule
from trainplan.formulations.schedule.recorded import Shape, device_ends_ns
from trainplan.formulations.schedule.repeats import MOST_FOLLOWED, TooManyRounds
from trainplan.profiling.base.errors import InputError


def pipeline_ns(
    forward_ns: Sequence[int],
    backward_ns: Sequence[int],
    transfer_ns: int,
    micro_batches: int,
    chunks: int = 1,
    parallel_messages: bool = False,
) -> list[int]:
    """The time at which each device has ended its last pass, in ns from the step's beginning, under 1F1B or, with several
    chunks (stages) on each device, interleaved 1F1B.

    Args:
        forward_ns, backward_ns: for each stage, the pass of a micro-batch in ns; stage s is on device s modulo the number
            of devices.
        transfer_ns: the time of a message to the next stage, in either direction.
        micro_batches: the number of micro-batches per step; with interleaving, a multiple of the number of devices.
        chunks: the number of stages on each device.
        parallel_messages: whether messages travel in parallel with passes; otherwise the receiver waits for them.

    The result is exact for any number of micro-batches, since equal repetitions of the schedule are not simulated one by
    one (`schedule.repeats`). Raises InputError if there are too many micro-batches and the schedule does not become
    periodic.
    """
    stages = len(forward_ns)
    if stages == chunks:
        return [micro_batches * (sum(forward_ns) + sum(backward_ns))]
    times = {"forward_ns": forward_ns, "backward_ns": backward_ns}
    times["message_forward_ns"] = [0, *[transfer_ns] * (stages - 1)]
    times["message_backward_ns"] = [*[transfer_ns] * (stages - 1), 0]

    def time_ns(duration: Duration) -> int:
        """Time of a duration: the sum of its passes and messages."""
        return sum(times[name][stage] for name, stage in duration if name in times)

    schedule: PlanSchedule = "interleaved-1f1b" if chunks > 1 else "1f1b"
    shape = Shape(schedule, stages, micro_batches, 0, chunks, "parallel" if parallel_messages else "received")
    try:
        return device_ends_ns(shape, time_ns)
    except TooManyRounds:
        problem = f"are {micro_batches}, of stages whose passes do not repeat"
        raise InputError("run", "micro-batches", problem, f"give at most {MOST_FOLLOWED * shape.round_size}") from None
