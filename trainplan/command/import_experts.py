"""The answer of `trainplan import-run` for a run of a mixture of experts: what was read of it, and that it is not judged."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from trainplan.command.ending import BAD_INPUT, tell
from trainplan.command.options import Outcome
from trainplan.command.printing import line, pairs, table
from trainplan.execution.launch_files.experts import ExpertSettings, RunOfExperts, layers_in_words
from trainplan.execution.runtimes.megatron import layouts
from trainplan.profiling.base.quantities import plural

HEADINGS = ("setting", "value", "key", "from")
DEFAULT = "default of"  # begins the source of a value that no file states


def outcome_of_experts(error: RunOfExperts, values: bool) -> Outcome:
    """The outcome of the command for a run of a mixture of experts: a table of the settings that its file states and of what
    follows from them, the line that says why it is not judged on standard error, and the exit code of bad input. error: the
    refusal, with the settings. values: whether to print the tool's defaults, too, and where each value comes from. Raises the
    error again if it has no settings.
    """
    settings = error.settings
    if settings is None:
        raise error
    tell(f"trainplan: {error.command_text}")
    rows = settings.rows()
    fields = {"where": error.where, "field": error.command_field, "problem": error.problem, "fix": error.fix}
    content = {"error": {"message": error.command_text, **fields}, "exit_code": BAD_INPUT, "experts": rows}
    return Outcome(content, partial(_show, settings, rows, values), {}, BAD_INPUT)


def _show(settings: ExpertSettings, rows: Sequence[dict[str, Any]], values: bool) -> None:
    """Print the settings of a run of a mixture of experts. rows: its settings, of `ExpertSettings.rows`. values: whether to
    print the tool's defaults, too, and where each value comes from."""
    title = f"what {settings.where} says of its experts, for {settings.tool}"
    if values:
        cells = [[row["meaning"], _value(row), row["key"], row["source"]] for row in rows]
        table(HEADINGS, cells, title, HEADINGS)
        return
    line(title)
    stated = [row for row in rows if not row["source"].startswith(DEFAULT)]
    pairs([(_value(row), row["meaning"] + f" ({row['key']})" * bool(row["key"])) for row in stated])


def _value(row: dict[str, Any]) -> str:
    """The value of a row of settings as text for people, with its unit: "8 ranks"."""
    value, unit = row["value"], row["unit"]
    return plural(value, unit) if unit and isinstance(value, int) else value_in_words(row["field"], value)


def value_in_words(name: str, value: Any) -> str:
    """The value of a setting as text for people: layers of experts and stages in short, yes and no for what is on or off. name:
    the setting."""
    if name == "layers_of_experts":
        return layers_in_words(value)
    if name == "stages":
        return layouts.written(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else f"{value:g}" if isinstance(value, float) else str(value)
