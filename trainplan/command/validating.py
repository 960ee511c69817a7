"""`trainplan validate`: predictions of measured runs, compared with their measurements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from trainplan import api
from trainplan.command import options
from trainplan.command.ending import BAD_INPUT
from trainplan.command.options import Command, Outcome, command_with, flag, word
from trainplan.command.printing import fitting, line, out, pairs, table
from trainplan.profiling.base.quantities import plural
from trainplan.validation.calibrate import table_text
from trainplan.validation.own_runs import Calibration
from trainplan.validation.predict import Prediction, Predictions
from trainplan.validation.report import Errors, by_group, groups

WORDS = ("run", "model", "devices", "layout", "fits")  # columns that hold words
SPARE = ("layout", "model", "devices")  # columns that are left out where there is no room, in this order
LONG, SHORT = 24, 8  # letters of an id where not all columns fit, and at least
CALIBRATED = flag(
    "calibrated_output",
    Path | None,
    "Write efficiencies here that measured steps correct, of runs on one cluster, for `plan --calibrated`; runs that the file "
    "has stay.",
    names=("--calibrated",),
)


def command(name: str, words: Sequence[str]) -> Command:
    """Return the function that typer runs for the command `validate`. name, words: unused; the modules of all commands have a
    function of this signature."""
    return validate


@command_with(
    [
        word(
            "runs", Path, "A JSON list of runs: id, model, gpu, gpus, layout, and what was measured (`trainplan schema runs`)."
        ),
        flag("assumptions", bool, "Print what each row leaves open, and what is taken for it.", False),
        flag("details", bool, "Print for each run every value, one below the other, and what its row leaves open.", False),
        CALIBRATED,
        options.PICTURE,
    ]
)
def validate(runs: Path, assumptions: bool, details: bool, calibrated_output: Path | None) -> Outcome:
    """Predict runs at their layouts as given, with overlap, and hold the predictions against what was measured."""
    predictions = api.validate(runs)
    files: dict[str, Callable[[], Any]] = {"picture": partial(api.draw_errors, predictions)}
    if all(prediction.error is None for prediction in predictions):
        files = {}  # there is nothing to draw
    code = BAD_INPUT if all(prediction.cannot for prediction in predictions) else options.FINE
    content: Any = [prediction.to_dict() for prediction in predictions]
    show = partial(_show, predictions, assumptions, details)
    if calibrated_output is None:
        return Outcome(content, show, files, code)
    found = api.calibrate(runs, calibrated=calibrated_output, write=False)
    files["calibrated_output"] = partial(table_text, found.table)
    return Outcome({"runs": content, "calibrated": found.to_dict()}, partial(_show_with, show, found), files, code)


def _show_with(show: Callable[[], None], found: Calibration) -> None:
    """Print what `show` prints, then the correction of efficiencies by own runs."""
    show()
    show_calibration(found)


def show_calibration(found: Calibration) -> None:
    """Print a correction of efficiencies by own runs: a table of the errors of predictions before and after it, and by how much
    efficiencies were corrected.
    """
    cells = [
        [run.id, f"{run.measured_s:.4g} s", _percent(before), _percent(after)]
        for run, before, after in zip(found.table.own_runs, found.before, found.after, strict=True)
    ]
    table(("run", "measured", "error before", "error after"), cells, "corrected by these runs", ("run",))
    for text in found.notes():
        line(text)


def _show(predictions: Predictions, assumptions: bool, details: bool) -> None:
    """Print the predictions of measured runs, then their errors by group, such as by model or by kind of GPU.

    assumptions: also print, for each run, the values that were assumed for what its row of the runs' file does not state.
    details: print them, and all values of each run, in place of the table.
    """
    predicted = Predictions(prediction for prediction in predictions if not prediction.cannot)
    if details:
        _details(predicted)
    elif predicted:
        columns, cells = _in_width(list(predicted.headings.values()), predicted.cells())
        table(columns, cells, left=WORDS)
    for text in predictions.notes():
        line(text)
    if assumptions and not details:
        pairs([(prediction.run.id, _assumed(prediction)) for prediction in predicted])
    for name, noun in groups():
        for title, error in (("of the step", "error"), ("of the peak", "memory_error")):
            errors_by_group = by_group(predictions, name, error)
            if len(errors_by_group) > (name != "all"):  # a single device is the same as all
                rows = [[key, *_errors(errors)] for key, errors in errors_by_group.items()]
                columns = [noun, "runs", "mean error", "absolute", "median", "90 %", "in interval"]
                if error != "error":
                    columns, rows = columns[:-1], [row[:-1] for row in rows]
                table(columns, rows, f"errors {title}", (noun,))
    whole = [prediction for prediction in predictions if prediction.error is not None]
    if not whole:
        line("no row has a measured step: there is no picture of errors")
    line(f"{plural(len(whole), 'measured step')} of {plural(len(predictions), 'run')}")


def _details(predicted: Predictions) -> None:
    """Print predictions as blocks of lines: a run's values, one below the other, and what its row leaves open."""
    headings = predicted.headings.values()
    for prediction, cells in zip(predicted, predicted.cells(), strict=True):
        pairs([*zip(headings, cells, strict=True), ("left open", _assumed(prediction))])
        line("")


def _in_width(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """The columns of the table of predictions for which the terminal is wide enough: headings, and rows. Long ids of runs, in
    the first column, are shortened where they do not fit; then layout, model and devices are left out, which --details has.
    """
    kept, rows = fitting(columns, cells, (), WORDS)
    if out.width < _width_of(kept, rows):
        ids = _shortened([row[0] for row in rows], LONG)
        kept, rows = fitting(columns, [[name, *row[1:]] for name, row in zip(ids, rows, strict=True)], SPARE, WORDS)
    if (over := _width_of(kept, rows) - out.width) > 0:
        longest = max(len(row[0]) for row in rows)
        ids = _shortened([row[0] for row in rows], max(SHORT, longest - over))
        rows = [[name, *row[1:]] for name, row in zip(ids, rows, strict=True)]
    return kept, rows


def _width_of(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """The width in columns of letters of a table whose cells are on one line each, unless they hold words that may be wrapped.
    columns: the headings. rows: the cells."""
    return sum(
        1 + max(len(word) for text in (name, *texts) for word in (text.split() if name in WORDS or text is name else [text]))
        for name, *texts in zip(columns, *rows, strict=True)
    )


def _shortened(ids: Sequence[str], most: int) -> list[str]:
    """Shorten ids of runs to `most` letters: their beginning and end, or their number in the file where these are equal."""
    head, tail = most - 2 - most // 3, most // 3
    short = [text if len(text) <= most else f"{text[:head]}..{text[-tail:]}" for text in ids]
    if len(set(short)) == len(set(ids)):
        return short
    return [text if len(text) <= most else f"[{index}] {text}"[: most - 2] + ".." for index, text in enumerate(ids)]


def _assumed(prediction: Prediction) -> str:
    """The values that were assumed for a run, since its row of the runs' file does not state them, as a text; "nothing" if
    there are none."""
    assert prediction.laid is not None
    return "; ".join(f"{name}: {value}" for name, value in prediction.laid.assumed.items()) or "nothing"


def _errors(errors: Errors) -> list[str]:
    """The cells of a table's row on a group of relative errors: their number, mean, mean absolute value, median, 90 % quantile,
    and the share of measurements within the predicted interval (empty if no interval is predicted)."""
    inside = "" if errors.inside is None else f"{errors.inside:.0%}"
    texts = [_percent(value) for value in (errors.mean, errors.absolute, errors.median, errors.ninth)]
    return [str(errors.count), texts[0], *(text.lstrip("+") for text in texts[1:]), inside]


def _percent(value: float | None) -> str:
    """A relative error as a signed percentage: 0.051 gives "+5.1%"; empty for None."""
    return "" if value is None else f"{value:+.1%}"
