"""When the passes of a pipeline end where messages travel beside passes, or where devices wait for them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from trainplan.formulations.schedule.orders import Pass, in_turn, interleaved, one_f_one_b
from trainplan.formulations.schedule.repeats import MOST_FOLLOWED, TooManyRounds, after_rounds
from trainplan.formulations.schedule.simulate import source_of
from trainplan.profiling.base.errors import InputError

FILLED = 6  # rounds of a short step, of which some in the middle are alike: the pipeline is full

Operation = tuple[int, Pass, Pass | None]  # a device, its pass and the one that this waits for
Ends = dict[Pass, int]


@dataclass(frozen=True)
class Costs:
    """What passes and messages take, see `pipeline_ns`."""

    forward_ns: Sequence[int]
    backward_ns: Sequence[int]
    transfer_ns: int
    beside: bool

    def follow(self, operations: Iterable[Operation], free: list[int], ends: Ends) -> None:
        """Note when passes end, each as early as can be. free: until when each device is busy; ends: of passes so far."""
        for device, task, source in operations:
            start = free[device]
            if source is not None:
                sent = ends[source]
                start = max(start, sent + self.transfer_ns) if self.beside else max(start, sent) + self.transfer_ns
            times = self.forward_ns if task.kind == "forward" else self.backward_ns
            ends[task] = free[device] = start + times[task.stage]


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
    micro_batches: interleaved, a multiple of the devices; however many, the step is exact: what repeats is not followed pass by
    pass (`step.repeats`). Raises InputError for more than can be followed, of stages whose ends do not repeat.
    """
    stages = len(forward_ns)
    devices = stages // chunks
    if devices == 1:
        return [micro_batches * (sum(forward_ns) + sum(backward_ns))]
    costs, free, ends = Costs(forward_ns, backward_ns, transfer_ns, beside), [0] * devices, dict[Pass, int]()
    size = devices if chunks > 1 else 1
    few = _few(devices, chunks, size, micro_batches)
    if few is None:
        costs.follow(_operations(devices, chunks, micro_batches), free, ends)
        return free
    costs.follow(few.before, free, ends)

    def one_round(moments: Sequence[int]) -> list[int]:
        ended = dict(zip(few.kept, moments[devices:], strict=True))
        costs.follow(few.repeated, until := list(moments[:devices]), ended)
        return [*until, *(ended[_moved(task, size)] for task in few.kept)]

    try:
        moments = after_rounds([*free, *(ends[task] for task in few.kept)], one_round, few.count)
    except TooManyRounds:
        problem, fix = f"are {micro_batches}, of stages whose passes do not repeat", f"give at most {MOST_FOLLOWED * size}"
        raise InputError("run", "micro-batches", problem, fix) from None
    free, ends = moments[:devices], {_moved(task, size): end for task, end in zip(few.kept, moments[devices:], strict=True)}
    costs.follow(few.behind, free, ends)
    return free


@dataclass(frozen=True)
class _Few:
    """A step of few micro-batches that stands for one of many: what comes before a round that is repeated so often, what that
    does, and what comes behind the last. kept: the passes before a round that some pass in it or behind it waits for."""

    before: Sequence[Operation]
    repeated: Sequence[Operation]
    behind: Sequence[Operation]
    kept: Sequence[Pass]
    count: int


@lru_cache(maxsize=64)
def _few(devices: int, chunks: int, size: int, micro_batches: int) -> _Few | None:
    """None where micro-batches are few already. size: micro-batches of a round.

    Where each pass takes one unit of time, and messages none, a full pipeline does in each round of 2 x chunks x size units
    what it did in the one before, with later micro-batches.
    """
    rounds, rest = divmod(micro_batches, size)
    short = FILLED + (devices if size == 1 else 0)
    if rounds <= short:
        return None
    operations, units = _operations(devices, chunks, short * size + rest), 2 * chunks * size
    starts, free = dict[Pass, int](), [0] * devices
    for device, task, source in operations:
        starts[task] = max(free[device], 0 if source is None else starts[source] + 1)
        free[device] = starts[task] + 1
    operations.sort(key=lambda each: (starts[each[1]], each[0]))
    begins = [starts[task] for _, task, _ in operations]

    def kept_at(moment: int) -> set[Pass]:
        """The passes begun before a moment that some pass begun later waits for."""
        later = operations[bisect_left(begins, moment) :]
        return {source for _, _, source in later if source is not None and starts[source] < moment}

    for begin in range(max(free) - 2 * units, 0, -1):
        first, middle, last = (bisect_left(begins, begin + turns * units) for turns in range(3))
        alike = middle - first == last - middle and all(
            (device, _moved(task, size)) == other[:2] and (source and _moved(source, size)) == other[2]
            for (device, task, source), other in zip(operations[first:middle], operations[middle:last], strict=True)
        )
        kept = kept_at(begin) if alike else set()
        if alike and {_moved(task, size) for task in kept} == kept_at(begin + units):
            count = rounds - short + 1
            return _Few(operations[:first], operations[first:middle], operations[middle:], sorted(kept), count)
    raise AssertionError("a pipeline that is never full")


def _moved(task: Pass, micro_batches: int) -> Pass:
    return task._replace(micro_batch=task.micro_batch + micro_batches)


def _operations(devices: int, chunks: int, micro_batches: int) -> list[Operation]:
    """All passes, each behind what it waits for."""
    orders = interleaved(devices, chunks, micro_batches) if chunks > 1 else one_f_one_b(devices, micro_batches)
    whole = _Whole()

    def needed(task: Pass) -> Pass | None:
        source = source_of(task, whole, devices * chunks)
        return None if source is None else source[0]

    return list(in_turn(orders, needed))


class _Whole:
    """All passes, none of them in halves."""

    def __contains__(self, task: object) -> bool:
        return True
