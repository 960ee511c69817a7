"""Options of a simulated schedule, checked: the schedule, stages on each device, and micro-batches that are cut in two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainplan.formulations.schedule.orders import SCHEDULES, SIMULATED, Pass, most_sliced, orders
from trainplan.formulations.schedule.simulate import Work
from trainplan.profiling.base.errors import InputError, one_of
from trainplan.solvers.partition.slicer import algorithm_2, least_sliced

SLICERS = {"least": least_sliced, "algorithm-2": algorithm_2}


def number_sliced(work: Work, micro_batches: int, sliced: int | str) -> int:
    """The number of micro-batches, from the first on, whose forward passes are cut in two: as given, or computed by a rule.
    Raises InputError for another value.

    work: times of the stages' passes. micro_batches: number of micro-batches per step. sliced: a number (also as text), or
    the name of a rule: "least" or "algorithm-2".
    """
    if not isinstance(sliced, str):
        return sliced
    if sliced in SLICERS:
        return SLICERS[sliced](work, micro_batches)
    if not sliced.isdecimal():
        names = " or ".join(map(repr, SLICERS))
        raise InputError("command line", "--sliced", f"is {sliced!r}", f"give a number, {names}")
    return int(sliced)


def checked_orders(devices: int, micro_batches: int, schedule: str, sliced: int, chunks: int) -> list[list[Pass]]:
    """Check the options of a pipeline schedule; then list, for each device, its passes in the order in which it runs them.
    Raises InputError for options that contradict each other.

    devices: number of devices of the pipeline. micro_batches: number of micro-batches per step. schedule: the schedule's
    name, such as "1f1b". sliced: the number of micro-batches, from the first on, whose forward passes are cut in two. chunks:
    number of stages per device.
    """
    if sliced and not SCHEDULES[schedule].sliced:
        raise InputError("command line", "--sliced", f"is {sliced}", f"leave it out: {schedule} has no halves")
    most = most_sliced(devices, micro_batches)
    if sliced and not 0 <= sliced <= most:
        raise InputError("command line", "--sliced", f"is {sliced}", f"give 0 to {most}, those that run before a backward pass")
    if SCHEDULES[schedule].chunked and micro_batches % devices:
        fix = f"give a multiple of the {devices} devices: micro-batches come in groups of as many"
        raise InputError("command line", "--schedule", f"is {schedule}, with {micro_batches} micro-batches", fix)
    return orders(schedule, devices * chunks, micro_batches, sliced, chunks)


def check_schedule(schedule: str, chunks: int) -> None:
    """Raise InputError for a schedule (given by its name) that cannot be simulated, or for a number of stages per device
    (`chunks`) that it does not support.
    """
    if schedule not in SIMULATED:
        raise InputError("command line", "--schedule", f"is {schedule!r}", one_of(schedule, SIMULATED))
    if chunks < 1:
        raise InputError("command line", "--chunks", f"is {chunks}", "give at least 1")
    if chunks > 1 and not SCHEDULES[schedule].chunked:
        raise InputError("command line", "--chunks", f"is {chunks}", "give --schedule interleaved-1f1b, too")


def refuse_given(options: Mapping[str, Any], why: str) -> None:
    """Raise InputError for the first option that is given (not None), because it does not apply.

    options: values by the options' flags, such as `--method`. why: the reason, as a text for users.
    """
    for option, value in options.items():
        if value is not None:
            raise InputError("command line", option, "is given", f"leave it out: {why}")
