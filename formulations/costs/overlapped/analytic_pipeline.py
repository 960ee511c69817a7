"""When the devices of a pipeline end, where messages travel in parallel with passes, or where devices wait for them."""

from __future__ import annotations

from bisect import bisect_right
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


def costed_stages(layer_costs: Sequence[int], head_cost: int, stages: int) -> tuple[int, ...] | None:
    """The number of layers of each pipeline stage as nanotron cuts a model (`build_model` of `models/base.py`, v0.4 and 0.5): a
    stage ends with the first block whose cost, added to all before it, is above the stage's equal part of the whole.

    layer_costs: for each layer, the numbers of its products' matrices (`get_block_compute_costs`). head_cost: those of the
    head, which is the last block; embedding and norms have none. stages: the number of stages. The result is None where the
    head is not on the last stage, with which nanotron does not train.
    """
    ends = [0]
    for cost in (*layer_costs, head_cost):
        ends.append(ends[-1] + cost)
    cuts = [bisect_right(ends, ends[-1] * (stage + 1) / stages) for stage in range(stages - 1)]
    if not cuts:
        return (len(layer_costs),)
    if cuts[-1] > len(layer_costs) or any(b <= a for a, b in zip([0, *cuts], cuts, strict=False)):
        return None
    return tuple(b - a for a, b in zip([0, *cuts], [*cuts, len(layer_costs)], strict=True))
