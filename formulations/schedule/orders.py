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

Each schedule of plans is an entry of `SCHEDULES`. Planners choose between `1f1b` and `gpipe` (`PassOrder`), plans may have any
schedule (`PlanSchedule`); slicing is the plan's `sliced`. `orders` turns a plan's schedule into an order of passes. Plans may
also have `zero-bubble`, for runtimes that offer it; it has no order here yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

from trainplan.profiling.base.errors import Unsupported

PassOrder = Literal["1f1b", "gpipe"]
PlanSchedule = Literal["1f1b", "gpipe", "interleaved-1f1b", "zero-bubble"]
Kind = Literal["forward", "backward"]
Value = TypeVar("Value")
CLOSED_FORMS = ("1f1b", "gpipe")  # schedules whose times, memory and lower bounds are known in closed forms (`by_order`)


class Pass(NamedTuple):
    """The forward or backward pass of one micro-batch through one stage (both numbered from 0). half: 0 or 1 for the first or
    second half of a forward pass that is sliced; None for a whole pass."""

    kind: Kind
    micro_batch: int
    stage: int
    half: int | None = None


class Stuck(Exception):
    """Raised for orders of passes in which devices would wait for each other for ever (a deadlock)."""


def most_sliced(stages: int, micro_batches: int) -> int:
    """The largest number of first micro-batches whose forward passes can be run in halves under 1F1B: those that the first
    device runs forward before its first pair of a forward and a backward pass. stages: the number of pipeline stages.
    micro_batches: the number of micro-batches per step.
    """
    return min(stages - 1, micro_batches)


def is_sliced(stage: int, micro_batch: int, stages: int, sliced: int) -> bool:
    """Whether a stage runs the forward pass of a micro-batch in halves. stages: the number of stages. sliced: the number of
    first micro-batches that begin in halves."""
    return micro_batch < sliced and (micro_batch == 0 or stage <= stages - 2 - micro_batch)


def one_f_one_b(stages: int, micro_batches: int, sliced: int = 0) -> list[list[Pass]]:
    """The order of passes on each device under 1F1B-Flush. sliced: the number of first micro-batches whose forward passes are
    run in halves during warm-up. stages: the number of pipeline stages. micro_batches: the number of micro-batches per
    step.
    """
    return [_paired(stages, x, micro_batches, min(micro_batches, stages - x - 1), sliced) for x in range(stages)]


def gpipe(stages: int, micro_batches: int) -> list[list[Pass]]:
    """The order of passes on each device under GPipe: all forward, then all backward passes, both by rising micro-batch.
    stages: the number of pipeline stages. micro_batches: the number of micro-batches per step.
    """
    return [_paired(stages, x, micro_batches, micro_batches, 0) for x in range(stages)]


def _paired(stages: int, stage: int, micro_batches: int, warm_up: int, sliced: int) -> list[Pass]:
    """The order of passes on one stage: `warm_up` forward passes, then a forward and a backward pass in turn, then the
    remaining backward passes. sliced: the number of first micro-batches whose forward passes are run in halves. stages: the
    number of pipeline stages. micro_batches: the number of micro-batches per step.
    """
    order: list[Pass] = []
    for index in range(warm_up + micro_batches):
        if index < micro_batches:
            halves = (0, 1) if is_sliced(stage, index, stages, sliced) else (None,)
            order += [Pass("forward", index, stage, half) for half in halves]
        if index >= warm_up:
            order.append(Pass("backward", index - warm_up, stage))
    return order


def interleaved(devices: int, chunks: int, micro_batches: int) -> list[list[Pass]]:
    """The order of passes on each device under interleaved 1F1B. chunks: stages per device. micro_batches: a multiple of the
    number of devices."""
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


@dataclass(frozen=True)
class ScheduleSpec:
    """One schedule of plans.

    title: its name for people.
    orders: gives the order of passes on each device, of (stages on all devices, micro-batches, number of first micro-batches
    that are sliced, stages on each device); None where plans may have the schedule and nothing is known of its order.
    sliced: whether its first forward passes may be in halves.
    chunked: whether each device has several stages.
    predicted_as: the schedule of other runtimes' predictions (`costs.overlapped.layout.RUN_SCHEDULES`) that times and memory of
    its passes follow; empty where these predictions are not of this schedule, which are then refused.
    torch: its class in `torch.distributed.pipelining`, which the executor by torch and the script of `export --to torch` take;
    empty where torch has none.
    word: how the line that sums a plan up writes it; empty for the usual one.
    """

    title: str
    orders: Callable[[int, int, int, int], list[list[Pass]]] | None
    sliced: bool = False
    chunked: bool = False
    predicted_as: str = ""
    torch: str = ""
    word: str = ""


SCHEDULES: dict[str, ScheduleSpec] = {
    "1f1b": ScheduleSpec(
        "1F1B-Flush",
        lambda p, m, sliced, _: one_f_one_b(p, m, sliced),
        sliced=True,
        predicted_as="1f1b",
        torch="Schedule1F1B",
    ),
    "gpipe": ScheduleSpec("GPipe", lambda p, m, *_: gpipe(p, m), predicted_as="gpipe", torch="ScheduleGPipe", word="GPipe"),
    "interleaved-1f1b": ScheduleSpec(
        "interleaved 1F1B",
        lambda s, m, _, chunks: interleaved(s // chunks, chunks, m),
        chunked=True,
        predicted_as="1f1b",
        torch="ScheduleInterleaved1F1B",
    ),
    "zero-bubble": ScheduleSpec("zero-bubble", None, predicted_as="1f1b"),
}
SIMULATED = tuple(name for name, spec in SCHEDULES.items() if spec.orders is not None)


def orders(schedule: str, stages: int, micro_batches: int, sliced: int = 0, chunks: int = 1) -> list[list[Pass]]:
    """For each device, its passes in order, under a plan's schedule.

    schedule: one of SCHEDULES that has an order. stages: the number of stages on all devices. micro_batches: the number of
    micro-batches per step. sliced: under 1F1B, the number of first micro-batches whose forward passes are run in halves.
    chunks: the number of stages per device, above 1 only under the interleaved schedule.
    """
    of_schedule = SCHEDULES[schedule].orders
    assert of_schedule is not None, f"{schedule} has no order"
    return of_schedule(stages, micro_batches, sliced, chunks)


def in_turn(orders: Sequence[Sequence[Pass]], needed: Callable[[Pass], Pass | None]) -> Iterator[tuple[int, Pass, Pass | None]]:
    """All passes of a step in an order in which they can be run, as tuples of device, pass, and the pass of another device that
    it needs (or None).

    orders: for each device, its passes in order. needed: returns the pass whose result a pass needs, or None. Raises Stuck if
    passes wait for each other in a cycle.
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
    """The largest number of micro-batches whose activations a device holds at the same time (forward pass begun, backward pass
    not ended); a micro-batch counts once for each of the device's stages that holds it. order: the device's passes, in
    order.
    """
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


def most_in_flight(schedule: str, stages: int, micro_batches: int, stage: int) -> int:
    """The largest number of micro-batches whose activations a stage holds at the same time, with one stage per device.
    schedule: `1f1b` or `gpipe`. stages: the number of pipeline stages. micro_batches: the number of micro-batches per step.
    stage: the stage's index.

    It is a closed form of `in_flight` over the orders of `one_f_one_b` and `gpipe`, asserted in
    tests/formulations/test_schedules.py.
    """
    if schedule not in CLOSED_FORMS:
        return in_flight(orders(schedule, stages, micro_batches)[stage])
    return by_order(schedule, gpipe=micro_batches, one_f_one_b=min(micro_batches, stages - stage))


def by_order(schedule: str, *, gpipe: Value, one_f_one_b: Value) -> Value:
    """The value for a schedule of which closed forms (of times, bounds or memory) are known, which are GPipe and 1F1B in whole
    passes. Raises Unsupported for any other one, whose order is not known to have these forms."""
    if schedule not in CLOSED_FORMS:
        raise Unsupported("instance", "schedule", f"is {schedule!r}", f"give {' or '.join(CLOSED_FORMS)}, or another method")
    return gpipe if schedule == "gpipe" else one_f_one_b
