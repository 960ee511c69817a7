"""The table on a plan's screen that compares the best plans of all runtimes (training frameworks)."""

from __future__ import annotations

from collections.abc import Sequence

from trainplan.formulations.joint.within_runtime import FOR
from trainplan.formulations.runtimes import BY_PROGRAMS, RUNTIMES
from trainplan.plan_words import NOTHING_AGAIN, OF_OWN, run_words, whose_numbers
from trainplan.planning.every_runtime import OWN, RuntimePlan
from trainplan.profiling.base.quantities import format_gap, format_time
from trainplan.screens.predicted import gib

LEAST_SECONDS = 0.05  # below which a note says that there was no time, rather than how much


def runtime_cells(rows: Sequence[RuntimePlan]) -> list[tuple[list[str], list[str]]]:
    """The table that compares runtimes: headings first, then one row per runtime that has a plan.

    A row is two lists: the cells (name, step, MFU, peak in GiB, and how far the plan may be from the runtime's best), and the
    words of the plan's layout. rows: the answers for all runtimes.
    """
    cells = [(["runtime", "step", "MFU", "peak", "within"], ["layout"])]
    for row in rows:
        if row.answer is None or row.answer.plan is None or row.step_ns is None:
            continue
        reached = row.answer.performance
        mfu = "" if reached is None or reached.mfu is None else f"{reached.mfu:.0%}".replace("%", " %")
        peak = "" if row.peak_bytes is None else gib(row.peak_bytes)
        if row.gap is None or (row.stopped and not row.gap):
            within = "open"
        else:
            within = "open: " * bool(row.stopped) + format_gap(row.gap)
        words = [word for word in run_words(row.answer.plan) if word != NOTHING_AGAIN]
        first = next(index for index, word in enumerate(words) if "micro-batch" in word)
        layout = [" ".join(words[:first])] * (first > 0) + words[first:]
        cells.append(([row.name, format_time(row.step_ns), mfu, peak, within], layout))
    return cells


def runtime_notes(rows: Sequence[RuntimePlan], seconds: float) -> list[list[str]]:
    """Lines below the table that compares runtimes: the meaning of its cells, why runtimes have no plan, and unfinished
    searches. A line is a list of texts that are printed with dots between them.

    rows: the answers for all runtimes. seconds: the time limit of each search.
    """
    limit = next(
        (gib(row.answer.plan.memory_bytes) for row in rows if row.answer is not None and row.answer.plan is not None), ""
    )
    notes = [[f"peak: of {limit} GiB a GPU", "within: of the runtime's best plan (solver)"]]
    own = next((row.answer.plan for row in rows if row.runtime == OWN and row.answer is not None), None)
    notes += [] if own is None else [[f"{OWN}: {whose_numbers(own).replace(OF_OWN, 'its')}"]]
    lacking = [row for row in rows if not row.found and row.stopped is None]
    for why in dict.fromkeys(row.why for row in lacking):
        notes.append([f"{', '.join(row.name for row in lacking if row.why == why)}: {why}"])
    if unpredicted := [row.name for row in rows if row.found and RUNTIMES[row.runtime].unpredicted]:
        notes.append([f"{', '.join(unpredicted)}: {BY_PROGRAMS}"])
    stopped = [row for row in rows if row.stopped is not None]
    if stopped:
        names = ", ".join(f"{row.name} ({row.why})" if row.why else row.name for row in stopped)
        up = f"{seconds:.2g} s were up" if seconds >= LEAST_SECONDS else "no time was left for other runtimes"
        timed = f"{up}: give a longer --time-limit, or {FOR.flag} {stopped[-1].runtime}"
        notes.append([f"open: {names}", timed if any(row.stopped == "time limit" for row in stopped) else "interrupted"])
    return notes
