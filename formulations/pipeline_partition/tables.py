"""Tables of pipelines cut at sub-layers, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainplan.formulations.pipeline_partition.problem import Instance
from trainplan.formulations.problem import Table
from trainplan.profiling.base.quantities import format_bytes, format_time, plural, span


def stage_tables(instance: Instance, described: Mapping[str, Any]) -> list[Table]:
    """The stages, the master stage marked, and start-up and bubble. described: what `describe` says of a solution."""
    memory, master = instance.memory, described["master_stage"]
    columns = ["stage", "sub-layers", "count", "forward", "backward", "transfer", *(["peak", "of"] if memory else []), ""]
    rows = []
    for x, stage in enumerate(described["stages"]):
        first, last = stage["first"], stage["last"]
        row = [str(x), span(instance.name_of(first), instance.name_of(last)), str(last - first + 1)]
        row += [format_time(stage[name]) for name in ("forward_ns", "backward_ns", "transfer_ns")]
        if memory is not None:
            row += [format_bytes(stage["peak_bytes"]), format_bytes(int(memory.limit_bytes[x]))]
        rows.append((*row, "<- master stage" if x == master else ""))
    step = (format_time(described["startup_ns"]), f"{described['bubble']:.1%}")
    pipelines = plural(instance.provenance.get("dp", 1), "pipeline")
    title = f"{pipelines} of {plural(instance.stages, 'stage')}, {instance.sublayers} sub-layers; "
    title += plural(instance.micro_batches, "micro-batch")
    return [Table(title, tuple(columns), tuple(rows)), Table("", ("start-up", "bubble"), (step,))]


def depth_table(alternatives: Sequence[Mapping[str, Any]], most: int = 12) -> Table:
    """The depths and numbers of micro-batches that were tried, the best first, `most` of them at most.

    alternatives: the rows of an answer of `solvers.partition.depths.search`.
    """
    rows = []
    for row in alternatives[:most]:
        numbers = [str(row[name]) for name in ("pipeline", "dp", "micro_batches", "sliced")]
        times = ["-" if row[name] is None else format_time(row[name]) for name in ("iteration_ns", "step_ns")]
        rows.append((*numbers, *times, row["status"]))
    title = f"{len(alternatives)} depths and numbers of micro-batches, shortest step first"
    if len(alternatives) > most:
        title += f"; the first {most} of them (--json has all)"
    return Table(title, ("stages", "pipelines", "micro-batches", "sliced", "iteration", "step", "status"), tuple(rows))
