"""Rows of a plan's screen that say what is near its request: other numbers of devices or of the cluster, and a better batch."""

from __future__ import annotations

from trainplan.plan_words import run_words
from trainplan.planning.fewest_devices import Sizes
from trainplan.planning.result import PlanningResult
from trainplan.planning.what_if import BetterBatch, WhatIf
from trainplan.profiling.base.quantities import format_time, plural
from trainplan.screens.plan import Row, nothing, proven, tokens

UNFINISHED = "search not finished"


def with_rows(rows: list[Row], first: list[Row], last: list[Row]) -> list[Row]:
    """The rows of a plan with others before them, and before what to do next."""
    place = next((place for place, (label, _) in enumerate(rows) if label == "NEXT"), len(rows))
    return [*first, *rows[:place], *last, *rows[place:]]


def sizes_rows(sizes: Sizes) -> tuple[list[Row], list[Row]]:
    """What is said before the plan on the fewest devices, and after it."""
    if sizes.first is None:
        return [("DEVICES", [[str(sizes.unknown)]])], []
    found = sizes.first.request.origin.devices
    text = f"{plural(found, 'GPU')} ({sizes.first.request.cluster_name})"
    how = proven(sizes.first.request)
    proof = f"with {_listed(sizes.tried)} nothing fits ({how})" if sizes.tried else "the fewest asked for"
    proof += f"; no plan was found on {_listed(sizes.missed)}" if sizes.missed else ""
    more = [[f"{each.request.origin.devices} GPUs: {_speed(each)}"] for each in sizes.larger]
    return [("DEVICES", [[text, proof]])], [("MORE", more)] if more else []


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers)) if len(numbers) <= 6 else f"{', '.join(map(str, numbers[:3]))} .. {numbers[-1]}"


def _speed(made: PlanningResult) -> str:
    if made.step_ns is None:
        return "no plan found in the time"
    text = f"{format_time(made.step_ns)} a step"
    if made.performance is not None:
        text += f", {tokens(made.performance.tokens_per_s_per_device)} tokens/s a GPU"
    return text + f" ({UNFINISHED})" * (made.result.stopped is not None)


def what_if_rows(told: WhatIf) -> list[Row]:
    """The step with other numbers of the cluster, and whether the layout changes."""
    name = ", ".join(f"{each} x {factor:g}" for each, factor in told.factors.items())
    before, after = told.before, told.after
    if after.plan is None or after.step_ns is None:
        return [("WHAT IF", [[f"{name}: {' '.join(nothing(after)[0][1][0])}"]])]
    share = "" if told.share is None else f" ({100 * told.share:+.1f} %)" if abs(told.share) >= 5e-4 else " (no change)"
    text = f"{name}: {format_time(after.step_ns)} a step{share}"
    words = run_words(after.plan)
    same = before.plan is not None and words == run_words(before.plan)
    lines = [[text, "same layout" if same else "the layout changes"], *([] if same else [words])]
    return [("WHAT IF", [*lines, *[[UNFINISHED]] * (after.result.stopped is not None)])]


def batch_rows(found: BetterBatch) -> list[Row]:
    """A batch that would be faster for each sample."""
    text = f"batch {found.batch} would take {100 * found.gain:.2g} % less time a sample ({format_time(found.step_ns)} a step)"
    return [("BATCH", [[text, *[UNFINISHED] * found.stopped]])]
