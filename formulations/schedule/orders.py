"""Schedules: the order of forward and backward passes on each of the p devices of a pipeline, with m micro-batches a step.

    gpipe             all forward, then all backward passes; m micro-batches are in flight
    1f1b              1F1B-Flush: min(m, p - x - 1) forward passes on device x = 0 .. p-1, then one forward and one backward in
                      turn, then the remaining backward passes; min(m, p - x) are in flight
    interleaved-1f1b  v stages on each device, stage s on device s mod p; micro-batches in groups of p, each group through one
                      stage of the device after the other (Megatron-LM; m is a multiple of p)
    1f1b, sliced      1f1b with the first forward passes in two halves (AutoPipe, Section III-C)

Slicing k micro-batches: the forward pass of micro-batch q < k comes in two halves on the devices x <= p - 2 - q, where it
belongs to the warm-up, and that of micro-batch 0 on the last device, too. A half travels on as soon as it is done, except for
the last warm-up pass of a device: its result is received in the 1F1B phase, whole, after its second half.

Planners choose between `1f1b` and `gpipe` (`PassOrder`), plans may have any schedule (`PlanSchedule`); slicing is the plan's
`sliced`. `orders` turns a plan's schedule into an order of passes. Plans may also have `zero-bubble`, for runtimes that offer
it; it has no order here yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple, get_args

PassOrder = Literal["1f1b", "gpipe"]
PlanSchedule = Literal["1f1b", "gpipe", "interleaved-1f1b", "zero-bubble"]
Kind = Literal["forward", "backward"]
SCHEDULE_NAMES: dict[str, str] = {  # for people
    "1f1b": "1F1B-Flush",
    "gpipe": "GPipe",
    "interleaved-1f1b": "interleaved 1F1B",
    "zero-bubble": "zero-bubble",
}


class Pass(NamedTuple):
    """A pass of one micro-batch through one stage. half: 0 or 1 where it is one half of a sliced forward pass."""

    kind: Kind
    micro_batch: int
    stage: int
    half: int | None = None


class Stuck(Exception):
    """Raised for an order in which passes wait for each other for ever."""


def most_sliced(stages: int, micro_batches: int) -> int:
    """The most micro-batches that can be sliced: those of the first device's warm-up."""
    return min(stages - 1, micro_batches)


def is_sliced(stage: int, micro_batch: int, stages: int, sliced: int) -> bool:
    """Whether a stage runs the forward pass of a micro-batch in halves, where the first `sliced` micro-batches are sliced."""
    return micro_batch < sliced and (micro_batch == 0 or stage <= stages - 2 - micro_batch)


def one_f_one_b(stages: int, micro_batches: int, sliced: int = 0) -> list[list[Pass]]:
    """The order of passes on each device under 1F1B-Flush, with the first `sliced` micro-batches in halves."""
    return [_paired(stages, x, micro_batches, min(micro_batches, stages - x - 1), sliced) for x in range(stages)]


def gpipe(stages: int, micro_batches: int) -> list[list[Pass]]:
    """The order of passes on each device under GPipe: all forward, then all backward passes, in order of micro-batches."""
    return [_paired(stages, x, micro_batches, micro_batches, 0) for x in range(stages)]


def _paired(stages: int, stage: int, micro_batches: int, warm_up: int, sliced: int) -> list[Pass]:
    """The order of passes on a stage that runs `warm_up` forward passes, then backward and forward passes in turn."""
    order: list[Pass] = []
    for index in range(warm_up + micro_batches):
        if index < micro_batches:
            halves = (0, 1) if is_sliced(stage, index, stages, sliced) else (None,)
            order += [Pass("forward", index, stage, half) for half in halves]
        if index >= warm_up:
            order.append(Pass("backward", index - warm_up, stage))
    return order


def interleaved(devices: int, chunks: int, micro_batches: int) -> list[list[Pass]]:
    """The order of passes on each device under interleaved 1F1B with `chunks` stages on each device. micro_batches: a multiple
    of the number of devices."""
    assert micro_batches % devices == 0
    turns = [
        (chunk, first + index)
        for first in range(0, micro_batches, devices)
        for chunk in range(chunks)
        for index in range(devices)
    ]
    orders = []
    for x in range(devices):
        warm_up = min(len(turns), 2 * (devices - x - 1) + (chunks - 1) * devices)
        order: list[Pass] = []
        for index in range(len(turns) + warm_up):
            if index < len(turns):
                chunk, number = turns[index]
                order.append(Pass("forward", number, chunk * devices + x))
            if index >= warm_up:
                chunk, number = turns[index - warm_up]
                order.append(Pass("backward", number, (chunks - 1 - chunk) * devices + x))
        orders.append(order)
    return orders


def orders(schedule: PlanSchedule, stages: int, micro_batches: int, sliced: int = 0, chunks: int = 1) -> list[list[Pass]]:
    """The order of passes on each device under a plan's schedule.

    stages: on all devices.
    sliced: with 1F1B, the number of first micro-batches that are in halves.
    chunks: the number of stages on each device, more than 1 only for the interleaved schedule.
    """
    if schedule == "interleaved-1f1b":
        return interleaved(stages // chunks, chunks, micro_batches)
    if schedule == "gpipe":
        return gpipe(stages, micro_batches)
    assert schedule == "1f1b", f"{schedule} has no order"
    return one_f_one_b(stages, micro_batches, sliced)


def in_turn(orders: Sequence[Sequence[Pass]], needed: Callable[[Pass], Pass | None]) -> Iterator[tuple[int, Pass, Pass | None]]:
    """All passes with their device and the pass that they need, each after that one and those before it on its device.

    orders: the passes of each device; needed: the pass that a pass needs, or None. Raises Stuck where they wait for each other
    in a cycle.
    """
    done, positions, going = set[Pass](), [0] * len(orders), True
    while going:
        going = False
        for device, order in enumerate(orders):
            while positions[device] < len(order):
                task = order[positions[device]]
                source = needed(task)
                if source is not None and source not in done:
                    break
                yield device, task, source
                done.add(task)
                positions[device] += 1
                going = True
    if any(position < len(order) for position, order in zip(positions, orders, strict=True)):
        raise Stuck


def in_flight(order: Sequence[Pass]) -> int:
    """The most micro-batches (counted for each stage) whose forward pass has begun and whose backward pass has not ended."""
    begun: set[tuple[int, int]] = set()
    most = 0
    for task in order:
        key = (task.stage, task.micro_batch)
        if task.kind == "forward":
            begun.add(key)
            most = max(most, len(begun))
        else:
            begun.remove(key)
    return most


def most_in_flight(schedule: PassOrder, stages: int, micro_batches: int, stage: int) -> int:
    """The most micro-batches in flight on a stage (from 0) of a schedule with one stage on each device.

    A closed form of `in_flight` over the orders of `one_f_one_b` and `gpipe`, asserted in tests/formulations/test_schedules.py.
    """
    assert schedule in get_args(PassOrder)
    return micro_batches if schedule == "gpipe" else min(micro_batches, stages - stage)
