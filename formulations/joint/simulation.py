"""When the passes of every stage have ended, by any schedule: what the time walk says of a plan's programs on one lane a rank.

A pass begins once its site is free and its message has been sent, which is when the pass on the neighbouring stage has ended.
It then takes its message and itself. Sending costs nothing. The last micro-batch's backward pass takes `last_ns` more.

Under the interleaved schedule a site talks to both neighbours in both ways, and its messages stand in an order of their own
(`step.messages`), some long before the pass that needs them. Messages between two passes of a site are one operation: what it
sends goes off as the operation begins; what it receives it waits for, and then takes the times of all of them. Where messages
travel beside passes, as frameworks have it, a pass waits for its own message alone.

Slicing: the forward pass of a micro-batch in halves takes the times of its halves, and so do its messages; a message that is
received whole takes that of a whole one. Where a stage ran halves, its backward pass is that of both.

Every end is the latest of some other ends plus times of stages. `ends` says of which, for numbers and for models alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import groupby
from typing import NamedTuple, TypeVar

import numpy as np
from trainplan.formulations.joint.problem import Configuration, Schedule
from trainplan.formulations.joint.recurring_rounds import Recurring, recurring
from trainplan.formulations.schedule.message_order import Item, with_messages
from trainplan.formulations.schedule.orders import Pass, in_turn, is_sliced
from trainplan.formulations.schedule.repeats import TooManyRounds
from trainplan.formulations.schedule.vectorised import gpipe_ends_ns, one_f_one_b_ends_ns

End = TypeVar("End")
Symbol = tuple[str, int]  # a time of `StageTimes` by its name, and the stage
After = Callable[[Sequence[End], tuple[Symbol, ...]], End]
FEW = 8  # rounds of micro-batches, of which those in the middle find the pipeline full
RECORDED = 4  # schedules whose ends are kept: configurations of several strategies have the same


@dataclass(frozen=True)
class StageTimes:
    """What one stage takes, in ns: f, b, c, d, l, g and o of the problem.

    first_half_ns, second_half_ns: the forward pass of a micro-batch in halves; message_half_ns: each message of a half that the
    stage receives; halved_backward_ns: the backward pass after halves. They are 0 where the schedule is not sliced.
    """

    forward_ns: int
    backward_ns: int
    message_forward_ns: int
    message_backward_ns: int
    last_ns: int
    reduce_ns: int
    optimizer_ns: int
    first_half_ns: int = 0
    second_half_ns: int = 0
    message_half_ns: int = 0
    halved_backward_ns: int = 0

    @property
    def micro_batch_ns(self) -> int:
        """One micro-batch in both passes, without messages."""
        return self.forward_ns + self.backward_ns


def step_ns(configuration: Configuration, stages: Sequence[StageTimes], tied_ns: int) -> int:
    """The simulated step. tied_ns: what the ends of the pipeline take to add up their gradients of a table, 0 where none."""
    sites = len(configuration.sites)
    reduced = [end + sum(stage.reduce_ns for stage in stages[x::sites]) for x, end in enumerate(ends_ns(configuration, stages))]
    if tied_ns:
        reduced[0] = reduced[-1] = max(reduced[0], reduced[-1]) + tied_ns
    return max(moment + sum(stage.optimizer_ns for stage in stages[x::sites]) for x, moment in enumerate(reduced))


def ends_ns(configuration: Configuration, stages: Sequence[StageTimes]) -> list[int]:
    """When each site has ended its last pass, and each message behind it."""
    schedule = configuration.schedule
    if schedule.chunks == 1 and not schedule.sliced:
        return _in_blocks(configuration, stages)
    times: dict[tuple[Symbol, ...], int] = {}

    def time_ns(symbols: tuple[Symbol, ...]) -> int:
        if symbols not in times:
            times[symbols] = sum(getattr(stages[x], name) for name, x in symbols)
        return times[symbols]

    size, count = len(configuration.sites) if schedule.chunks > 1 else 1, configuration.micro_batches
    few = FEW * size + (configuration.stages + schedule.sliced if size == 1 else 0)
    if count > 2 * few and count % size == 0:
        found = _recurring(_Shape(schedule, configuration.stages, few), size)
        if found is not None:
            with suppress(TooManyRounds):
                return found.ends_ns((count - few) // size, time_ns)
    return ends(configuration, lambda ends, symbols: max(ends, default=0) + time_ns(symbols))


@lru_cache(maxsize=RECORDED)
def _recurring(shape: _Shape, size: int) -> Recurring[tuple[Symbol, ...]] | None:
    """What recurs with every further round of so many micro-batches."""
    return recurring(_recorded(shape), _recorded(shape._replace(micro_batches=shape.micro_batches + size)))


def _in_blocks(configuration: Configuration, stages: Sequence[StageTimes]) -> list[int]:
    """`ends_ns` of whole micro-batches through one stage on each site, in arrays; the same as by `ends`, and faster."""
    forward, backward, last = (
        np.array(column, np.int64)[:, None]
        for column in (
            [stage.message_forward_ns + stage.forward_ns for stage in stages],
            [stage.message_backward_ns + stage.backward_ns for stage in stages],
            [stage.last_ns for stage in stages],
        )
    )
    many = gpipe_ends_ns if configuration.schedule.name == "gpipe" else one_f_one_b_ends_ns
    by_site: list[int] = many(forward, backward, configuration.micro_batches, last)[:, 0].tolist()
    return by_site


def ends(configuration: Configuration, after: After[End]) -> list[End]:
    """When each site has ended its last pass.

    after: the moment that some times of stages lead to from the latest of some ends, or from the step's beginning where there
    are none.
    """
    recorded, last = _recorded(_Shape(configuration.schedule, configuration.stages, configuration.micro_batches))
    ended: list[End] = []
    for earlier, symbols in recorded:
        ended.append(after([ended[place] for place in earlier], symbols))
    return [ended[place] for place in last]


class _Shape(NamedTuple):
    """What of a configuration says which ends there are."""

    schedule: Schedule
    stages: int
    micro_batches: int


@lru_cache(maxsize=RECORDED)
def _recorded(shape: _Shape) -> tuple[list[tuple[tuple[int, ...], tuple[Symbol, ...]]], list[int]]:
    """All ends in order, each by the places of those that it follows and by the times in between; the place of each site's."""
    rows: list[tuple[tuple[int, ...], tuple[Symbol, ...]]] = []
    alike: dict[tuple[Symbol, ...], tuple[Symbol, ...]] = {}  # one object for all that are equal: rows are many

    def after(earlier: Sequence[int], symbols: tuple[Symbol, ...]) -> int:
        rows.append((tuple(earlier), alike.setdefault(symbols, symbols)))
        return len(rows) - 1

    orders = shape.schedule.orders(shape.stages, shape.micro_batches)
    if shape.schedule.chunks > 1 and not shape.schedule.beside:
        return rows, _interleaved(with_messages(orders, shape.stages), shape, after)
    ended: dict[Pass, int] = {}
    free: list[list[int]] = [[] for _ in orders]  # the end of each site's last pass, if it has had one
    for x, task, source in in_turn(orders, partial(_source, shape)):
        waits = free[x] if source is None else [*free[x], ended[source]]
        ended[task] = after(waits, _symbols(shape, task))
        free[x] = [ended[task]]
    return rows, [end for [end] in free]


def _source(shape: _Shape, task: Pass) -> Pass | None:
    """The pass on another stage that a pass waits for."""
    if task.kind == "backward":
        return None if task.stage + 1 == shape.stages else task._replace(stage=task.stage + 1)
    if task.stage == 0:
        return None
    before = task.stage - 1
    if task.half is None and _in_halves(shape, before, task.micro_batch):
        return task._replace(stage=before, half=1)
    return task._replace(stage=before)


def _in_halves(shape: _Shape, stage: int, micro_batch: int) -> bool:
    return is_sliced(stage, micro_batch, shape.stages, shape.schedule.sliced)


def _symbols(shape: _Shape, task: Pass) -> tuple[Symbol, ...]:
    """What a pass takes, with its message."""
    x = task.stage
    if task.kind == "forward":
        if task.half is None:
            return ("message_forward_ns", x), ("forward_ns", x)
        return ("message_half_ns", x), ("second_half_ns" if task.half else "first_half_ns", x)
    halved = _in_halves(shape, x, task.micro_batch)
    return ("message_backward_ns", x), *_backward(shape, task, "halved_backward_ns" if halved else "backward_ns")


def _backward(shape: _Shape, task: Pass, name: str) -> tuple[Symbol, ...]:
    last = task.micro_batch == shape.micro_batches - 1
    return (name, task.stage), *((("last_ns", task.stage),) if last else ())


def _interleaved(items: Sequence[Sequence[Item]], shape: _Shape, after: After[int]) -> list[int]:
    """`ends` where sites have several stages."""
    orders = [[part for _, part in operations(order)] for order in items]
    sent: dict[Pass, list[int]] = {}  # the end that each message goes off at; none: at the step's beginning
    at = [0] * len(items)
    free: list[list[int]] = [[] for _ in items]
    gone = [False] * len(items)  # whether the sends of the site's present operation have gone off
    going = True
    while going:
        going = False
        for site, order in enumerate(orders):
            while at[site] < len(order):
                operation = order[at[site]]
                if not gone[site]:
                    sent.update({item.task: free[site] for item in operation if item.what == "send"})
                    gone[site] = going = True
                received = [item.task for item in operation if item.what == "receive"]
                if any(task not in sent for task in received):
                    break
                waits = [*free[site], *(end for task in received for end in sent[task])]
                symbols = [symbol for item in operation for symbol in _item_symbols(shape, item)]
                free[site] = [after(waits, tuple(symbols))]
                at[site], gone[site], going = at[site] + 1, False, True
    assert all(index == len(order) for index, order in zip(at, orders, strict=True)), "sites that wait for each other"
    return [end for [end] in free]


def operations(order: Sequence[Item]) -> list[tuple[Pass | None, tuple[Item, ...]]]:
    """A site's passes, each by itself, and messages, those that follow each other as one operation, without a pass."""
    return [(task, tuple(part)) for task, part in groupby(order, lambda item: item.task if item.what == "pass" else None)]


def _item_symbols(shape: _Shape, item: Item) -> tuple[Symbol, ...]:
    """What a pass takes without its message, or a message that is received; one that is sent takes nothing."""
    task, forward = item.task, item.task.kind == "forward"
    if item.what == "send":
        return ()
    if item.what == "receive":
        return (("message_forward_ns", task.stage + 1) if forward else ("message_backward_ns", task.stage - 1),)
    return (("forward_ns", task.stage),) if forward else _backward(shape, task, "backward_ns")
