"""Rows of a plan's screen on requests close to its own: other numbers of devices, another cluster, a better batch, and the
costs of a training."""

from __future__ import annotations

from trainplan.plan_words import run_words
from trainplan.planning.fewest_devices import Sizes
from trainplan.planning.result import PlanningResult
from trainplan.planning.what_if import BetterBatch, WhatIf
from trainplan.prediction.training_costs import TrainingCosts
from trainplan.profiling.base.quantities import format_time, plural
from trainplan.screens.plan import Row, proven_words, rows_without_plan
from trainplan.screens.predicted import tokens

UNFINISHED = "search not finished"


def with_rows(rows: list[Row], first: list[Row], last: list[Row]) -> list[Row]:
    """Insert rows into a plan's screen: returns `rows` with `first` added at the top, and `last` added at the end, just before
    the row NEXT. A row is a label and its lines.
    """
    end = next((index for index, (label, _) in enumerate(rows) if label == "NEXT"), len(rows))
    return [*first, *rows[:end], *last, *rows[end:]]


def sizes_rows(sizes: Sizes) -> tuple[list[Row], list[Row]]:
    """Rows (a label and its lines) for a plan's screen on the fewest devices with which a request fits: a list of rows for the
    beginning of the screen (how many devices) and one for its end (how fast it is on more devices).

    sizes: the answer to the search for the fewest devices.
    """
    if sizes.first is None:
        return [("DEVICES", [[str(sizes.unknown)]])], []
    found = sizes.first.request.origin.devices
    text = f"{plural(found, 'GPU')} ({sizes.first.request.cluster_name})"
    how = proven_words(sizes.first.request)
    proof = f"with {_listed(sizes.tried)} nothing fits ({how})" if sizes.tried else "the fewest requested"
    proof += f"; no plan was found on {_listed(sizes.missed)}" if sizes.missed else ""
    more = [[f"{answer.request.origin.devices} GPUs: {_speed(answer)}"] for answer in sizes.larger]
    return [("DEVICES", [[text, proof]])], [("MORE", more)] if more else []


def _listed(numbers: tuple[int, ...]) -> str:
    """Format numbers as text; if there are more than six, only the first three and the last: `1, 2, 3 .. 64`."""
    return ", ".join(map(str, numbers)) if len(numbers) <= 6 else f"{', '.join(map(str, numbers[:3]))} .. {numbers[-1]}"


def _speed(answer: PlanningResult) -> str:
    """Step time and tokens/s of the plan that an answer to a planning request has, as text; if it has no plan, a text that
    states this.
    """
    if answer.step_ns is None:
        return "no plan found in the time"
    text = f"{format_time(answer.step_ns)} a step"
    if answer.performance is not None:
        text += f", {tokens(answer.performance.tokens_per_s_per_device)} tokens/s a GPU"
    return text + f" ({UNFINISHED})" * (answer.result.stopped is not None)


def what_if_rows(what_if: WhatIf) -> list[Row]:
    """The row WHAT IF of a plan's screen: the best step on a changed cluster (such as links twice as fast), and whether the
    best layout changes. A row is a label and its lines. what_if: the answers before and after the change.
    """
    name = ", ".join(f"{quantity} x {factor:g}" for quantity, factor in what_if.factors.items())
    before, after = what_if.before, what_if.after
    if after.plan is None or after.step_ns is None:
        return [("WHAT IF", [[f"{name}: {' '.join(rows_without_plan(after)[0][1][0])}"]])]
    change = "" if what_if.share is None else " (no change)"
    if what_if.share is not None and abs(what_if.share) >= 5e-4:
        change = f" ({100 * what_if.share:+.1f} %)"
    text = f"{name}: {format_time(after.step_ns)} a step{change}"
    words = run_words(after.plan)
    same = before.plan is not None and words == run_words(before.plan)
    lines = [[text, "same layout" if same else "the layout changes"], *([] if same else [words])]
    return [("WHAT IF", [*lines, *[[UNFINISHED]] * (after.result.stopped is not None)])]


def batch_rows(found: BetterBatch) -> list[Row]:
    """The row BATCH of a plan's screen: another batch size with which the time per sample is shorter. A row is a label and its
    lines. found: the better batch, with its step.
    """
    text = f"batch {found.batch} would take {100 * found.gain:.2g} % less time a sample ({format_time(found.step_ns)} a step)"
    return [("BATCH", [[text, *[UNFINISHED] * found.stopped]])]


def costs_rows(costs: TrainingCosts) -> list[Row]:
    """The row COST of a plan's screen, one line: time, money and energy of a training, or of a step if its tokens are not
    given. A row is a label and its lines. costs: the costs of the plan.
    """
    return [("COST", [costs.words()])]
