"""Tables of a cluster strategy for people: its degrees, its stages, and the strategies that a planner proposes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from trainplan.formulations.cluster_strategy.instance import Instance
from trainplan.formulations.cluster_strategy.problem import Solution, describe
from trainplan.formulations.problem import Table
from trainplan.profiling.base.quantities import format_bytes, format_time, plural, span

MOST_RUNS = 8  # of device numbers that a cell shows


def strategy_table(instance: Instance, solution: Solution) -> Table:
    """A table of one row: the degrees of a strategy, and the micro-batches of each pipeline."""
    costs = describe(instance, solution)
    columns = ("pp", "dp", "tmp", "devices", "samples of a step", "a pipeline", "samples each")
    numbers = (costs["pp"], costs["dp"], costs["tmp"], instance.devices, instance.batch, _shares(costs["shares"]), costs["mbs"])
    return Table("strategy", columns, (tuple(map(str, numbers)),))


def stage_table(instance: Instance, solution: Solution) -> Table:
    """A table of the stages: devices, layers, times, and need and limit of the fullest device's memory."""
    columns = ("stage", "devices", "kinds", "layers", "count", "time", "transfer", "sync", "memory", "of")
    size, rows = solution.degrees.dp * solution.degrees.tmp, []
    for number, stage in enumerate(describe(instance, solution)["stages"]):
        rows.append(
            (
                str(number),
                _runs(sorted(solution.placement[number * size : (number + 1) * size])),
                ", ".join(f"{count} x {name}" for name, count in stage["kinds"]),
                span(instance.layer_names[stage["first"]], instance.layer_names[stage["last"]]),
                str(stage["last"] - stage["first"] + 1),
                *(format_time(stage[name]) for name in ("time_ns", "transfer_ns", "sync_ns")),
                *(format_bytes(stage[name]) for name in ("peak_bytes", "limit_bytes")),
            )
        )
    return Table("stages", columns, tuple(rows))


def _shares(shares: Sequence[int]) -> str:
    """The micro-batches of each pipeline as a text."""
    if len(set(shares)) == 1:
        return plural(shares[0], "micro-batch")
    return f"{', '.join(map(str, shares))} micro-batches"


def _runs(numbers: Sequence[int]) -> str:
    """Ascending numbers as a text, with consecutive ones as a range."""
    indices = groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    runs = [[number for _, number in run] for _, run in indices]
    shown = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return ", ".join(shown if len(shown) <= MOST_RUNS else [*shown[:MOST_RUNS], "..."])
