"""`trainplan sweep`: what other numbers of a request would change, and what one more unit of each of them is worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from trainplan import api
from trainplan.command import bars, options
from trainplan.command.ending import stop
from trainplan.command.executors import EXECUTORS, NAMES, executor_of
from trainplan.command.options import Command, Outcome, command_with, flag, flags_of, options_of, panel
from trainplan.command.planning import COSTS
from trainplan.command.printing import fitting, line, table
from trainplan.planning.presets import default_parameters
from trainplan.prediction.training_costs import CostRates
from trainplan.profiling.base.quantities import format_bytes, format_count, format_gap, format_share, format_span, format_time
from trainplan.solvers.core.limits import GAP
from trainplan.studies.cells import NO_LIMITS
from trainplan.studies.storage import StudyStopped
from trainplan.studies.sweep import FORM
from trainplan.studies.sweep_results import MarginalValue, Sweep

VARIED = "What is varied"
MARGINS_HELP = "Also plan with a little more of each number, for its marginal value."
FOLDER_HELP = "Keep the study here; the same line goes on with it. [default: not kept]"
REQUEST = [option for option in options.REQUEST if option.name != "measure"]
LIKE = panel(options.SUBJECT, [flag("like", str | None, "A preset or a problem, as `plan` takes it.")])
OVER = panel(
    VARIED,
    [
        flag("over", list[str] | None, f"NAME=VALUES, {FORM}; may be repeated."),
        flag("grid", bool, "Plan all combinations of the values, in place of one axis at a time.", False),
        flag(
            "margins",
            bool,
            "Also plan with a little more of each number, for its marginal value.",
            True,
            names=("--margins/--no-margins",),
        ),
    ],
)
SEARCH = panel(
    options.SEARCHING,
    [
        flag("method", str, "A name from `trainplan methods PROBLEM`.", "exact"),
        options.EACH_LIMIT,
        flag("gap", float, "Relative gap at which a search may stop.", GAP),
        flag("seed", int, "Seed of the method.", 0),
        flag("jobs", int, "Requests that are planned at a time.", 1, names=("--jobs", "-j")),
    ],
)
KEPT = panel(
    options.OUTPUT,
    [
        flag(
            "folder",
            Path | None,
            "Keep the study here; the same line goes on with it. [default: not kept]",
            names=("--output", "-o"),
        ),
        options.PICTURE,
    ],
)


def command(name: str, words: Sequence[str]) -> Command:
    """Return the function that typer runs for the command `sweep`. name: the command's name. words: the command line, without
    the program's name; unused."""
    costs = panel(options.SUBJECT, options_of(CostRates, *COSTS))
    groups = (options.WORDS, LIKE, REQUEST, costs, OVER, flags_of(default_parameters()), SEARCH, EXECUTORS, KEPT)
    return command_with(*groups)(sweep)


def sweep(folder: Path | None = None, picture: Path | None = None, **values: Any) -> Outcome:
    """Plan a request again with other numbers, as a study: other memory, devices, batch, sequence, bandwidth, compute rate,
    price.

    It also says what one more GiB, link, device, or a doubling of the batch is worth, with the interval that is proven."""
    values = {name: value for name, value in options.from_words(values).items() if value is not None}
    values["over"] = values.get("over") or []
    where = {name: values.pop(name, None) for name in NAMES}
    like_all = {"task": "plan", "limits": {**NO_LIMITS, "time_limit": values["time_limit"]}}  # a cell
    with bars.studying("sweep") as progress:
        try:
            with executor_of([like_all], folder, **where) as executor:
                found = api.sweep(folder=folder, executor=executor, progress=progress, **values)
        except KeyboardInterrupt:
            kept = (
                "what is finished is kept; the same line goes on" if folder is not None else "give -o to keep what is finished"
            )
            stop(f"interrupted: {kept}", options.STOPPED)
        except StudyStopped as error:
            stop(str(error), options.STOPPED)
    files = {"picture": found.picture} if picture is not None else {}
    code = options.FINE if found.rows[0]["value_ns"] is not None else options.STOPPED
    code = options.INFEASIBLE if found.rows[0]["status"] == "infeasible" else code
    return Outcome(found.to_dict(), partial(_show, found), files, code)


def _show(found: Sweep) -> None:
    """Print a sweep: a row for each request, and the marginal values."""
    rows = found.table()
    priced = any(row["price_per_device_hour"] is not None for row in rows)
    trained = any(row["training_seconds"] is not None for row in rows)
    columns = ["change", "step", "per token", "tokens/s a GPU", "MFU", "peak", "within"]
    columns += ["time", "energy"] * trained + ["money"] * priced
    cells = [_cells(row, columns) for row in rows]
    spare = ("MFU", "tokens/s a GPU", "energy", "peak", "within")
    table(*fitting(columns, cells, spare), left=("change",))
    if margins := found.margins:
        texts = [_worth(value) for value in margins]
        table(("one more", "saves of a step", "share", "proven"), texts, "what one more is worth", left=("one more", "proven"))
        line("saves: by the prediction, for equal tokens; proven: between optimal plans, by the solver's step model")
    for reason in dict.fromkeys(f"{row['change']}: {row['status']}, {row['reason']}" for row in rows if row["reason"]):
        line(reason)


def _cells(row: Mapping[str, Any], columns: Sequence[str]) -> list[str]:
    """The texts of a row of the table of requests, for the named columns."""
    money = row["step_money"] if row["training_money"] is None else row["training_money"]
    per = " a step" if row["training_money"] is None else ""
    price = row["price_per_device_hour"]
    texts = {
        "change": row["change"],
        "step": row["status"] if row["step_ns"] is None else format_time(row["step_ns"]),
        "per token": "" if row["share"] is None else f"{100 * row['share']:+.1f} %",
        "tokens/s a GPU": _text(row["tokens_per_s_per_device"], format_count),
        "MFU": _text(row["mfu"], lambda share: f"{share:.1%}".replace("%", " %")),
        "peak": _text(row["peak_bytes"], format_bytes),
        "within": _text(row["gap"], format_gap),
        "time": _text(row["training_seconds"], format_span),
        "energy": _text(row["training_energy_kwh"], lambda kwh: f"{kwh:,.0f} kWh"),
        "money": "" if money is None else f"{money:,.6g}{per} at {price:g}",
    }
    return [texts[name] for name in columns]


def _text(value: Any, form: Any) -> str:
    """A value as text by a function; empty if it is None."""
    return "" if value is None else str(form(value))


def _worth(value: MarginalValue) -> list[str]:
    """The texts of a row of the table of marginal values: unit, what is saved by the predictions, its share, what is proven."""
    saved = value.why or ("not predicted" if value.saved_ns is None else format_time(value.saved_ns))
    share = "" if value.share is None else format_share(value.share)
    return [value.unit, saved, share, proven_text(value)]


def proven_text(value: MarginalValue) -> str:
    """The proven part of a marginal value, as text: `exactly 1.2 ms`, or the interval and what it means."""
    if value.least_ns is None or value.most_ns is None:
        return "nothing"
    if value.proven == "exact":
        return f"exactly {format_time(value.least_ns)}"
    between = f"{format_time(value.least_ns)} to {format_time(value.most_ns)}"
    return between + {"saves": ": it saves", "costs": ": it costs"}.get(value.proven, ": open, within the gaps")
