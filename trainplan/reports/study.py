"""The report of a study as one HTML page: summary, pictures, failures, contradictions and cells, put into a template."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from io import StringIO
from typing import Any, NamedTuple

from markupsafe import Markup

from trainplan.pictures import drawn
from trainplan.pictures.palette import GRID
from trainplan.pictures.study_rows import by_problem, instance_of, rows_of
from trainplan.profiling.base.errors import InputError, printable
from trainplan.profiling.base.quantities import plural
from trainplan.reports.templates import template, text_of
from trainplan.tabular import Tabular, cell_text

SIZE = (4.4, 3.5)  # inches of a picture, so that a phone shows it without making its letters smaller
MOST_PROBLEMS = 8  # problems that have pictures of their own
MOST_CELLS = 3000  # rows of the page's table of cells
INK = "#000000"  # matplotlib's colour of letters and axes
THEMED = {INK: "var(--ink)", GRID: "var(--line)"}  # colours of pictures that follow the page, light or dark
# Columns of the table of cells by heading; those that no cell has a value of are left out.
CELLS = {
    "cell": "name",
    "status": "status",
    "value": "value_ns",
    "bound": "bound_ns",
    "gap": "gap",
    "predicted step": "predicted_step_ns",
    "predicted peak": "predicted_peak_bytes",
    "peak": "peak_bytes",
    "tokens/s": "tokens_per_second",
    "MFU": "mfu",
    "training, price": "training_money",
    "training, kWh": "training_energy_kwh",
    "seconds": "seconds",
    "processor s": "processor_seconds",
    "process memory": "process_peak_bytes",
    "instance": "instance_hash",
}
WORDS = {"cell", "status", "instance"}  # headings of columns that hold no numbers
DIGITS = 12  # of a hash that the page shows


class Drawing(NamedTuple):
    """A picture of the page: its title, a sentence that says how to read it, and the SVG element."""

    title: str
    about: str
    svg: Markup


def study_page(
    *,
    name: str,
    rows: Sequence[Mapping[str, Any]],
    histories: Mapping[str, Sequence[Mapping[str, Any]]],
    summary: Tabular,
    failures: Sequence[Mapping[str, Any]],
    contradictions: Sequence[str],
    command: str,
) -> str:
    """Generate the HTML page of a study, which needs no other file.

    name: the study's name. rows: its current rows, at least one. histories: by a row's key the history of its search. summary:
    its table by problem and method. failures: dicts with status, reason, cells, methods and first. contradictions: texts about
    results that cannot all be right. command: the command line that makes the page. Raises MissingExtra if matplotlib is not
    installed.
    """
    rows = rows_of(rows)
    columns = {heading: field for heading, field in CELLS.items() if any(row[field] is not None for row in rows)}
    drawings, missing = _drawings(rows, histories)
    return template("study.html").render(
        title=f"{name}: {plural(len(rows), 'cell')}",
        css=Markup(text_of("page.css") + text_of("study.css")),
        script=Markup(text_of("study.js")),
        head=_head(rows),
        headings=summary.headings,
        numbers=[heading for heading in summary.headings if heading not in ("problem", "method", "failures")],
        summary=list(zip(summary.rows(), summary.cells(), strict=True)),
        drawings=drawings,
        missing=missing,
        failures=failures,
        contradictions=contradictions,
        shared=_shared(rows),
        columns=columns,
        words=WORDS,
        cells=[_cells(row, columns) for row in rows[:MOST_CELLS]],
        count=len(rows),
        made_by=f"trainplan {version('trainplan')}",
        command=command,
    )


def _head(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """The facts at the top of the page as pairs (label, text): cells by status, what was solved, when, by which versions, on
    which machines. rows: the study's rows."""
    statuses = Counter(row["status"] for row in rows)
    moments = sorted(row["started"] for row in rows if row["started"])
    facts = [("cells", ", ".join(f"{count:,} {status}" for status, count in statuses.most_common()))]
    for label, field in (("problems", "problem"), ("runtimes", "runtime"), ("models", "model"), ("clusters", "cluster")):
        if texts := list(dict.fromkeys(str(row[field]) for row in rows if row[field] is not None)):
            facts.append((label, _listed(texts)))
    if moments:
        facts.append(("begun", f"{moments[0][:19]} to {moments[-1][:19]} UTC"))
    seconds = [row["wall_seconds"] if row["wall_seconds"] is not None else row["seconds"] or 0.0 for row in rows]
    facts.append(("time", f"{sum(seconds):,.1f} s, of all cells together"))
    facts += [("machine", _parts(text)) for text in dict.fromkeys(row["machine"] for row in rows) if text]
    facts += [("versions", _parts(text)) for text in dict.fromkeys(row["versions"] for row in rows) if text not in ("", "{}")]
    return facts


def _listed(texts: Sequence[str], most: int = 12) -> str:
    """Texts joined by commas; of more than `most` the first ones, and how many there are."""
    return ", ".join(texts) if len(texts) <= most else f"{', '.join(texts[:most])} and {len(texts) - most} more"


def _parts(text: str) -> str:
    """A JSON object as text for people, such as "cores 2, memory 8 GiB"; another text as it is."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    if not isinstance(value, dict):
        return text
    return ", ".join(f"{key.removesuffix('_bytes').replace('_', ' ')} {cell_text(key, part)}" for key, part in value.items())


def _shared(rows: Iterable[Mapping[str, Any]]) -> str:
    """A sentence that says how many instances the study has, and how many of them more than one cell solved."""
    counts = Counter(instance_of(row) for row in rows if row["instance_hash"] is not None)
    several = sum(count > 1 for count in counts.values())
    return f"{plural(len(counts), 'instance')} by their hashes, {several} of them with more than one result"


def _cells(row: Mapping[str, Any], columns: Mapping[str, str]) -> list[tuple[str, str]]:
    """A row of the table of cells: for each column the text, and the value by which the column is sorted, empty for none."""
    cells = []
    for heading, field in columns.items():
        value = row[field]
        text = value[:DIGITS] if field == "instance_hash" and value else _cell_text(field, value)
        cells.append((printable(text), "" if value is None else str(value) if heading not in WORDS else text))
    return cells


def _cell_text(field: str, value: Any) -> str:
    """A value of a row as text: a number without a unit in its field's name has four digits."""
    return f"{value:,.4g}" if isinstance(value, float) and not field.endswith(("seconds", "gap")) else cell_text(field, value)


def _drawings(rows: list[dict[str, Any]], histories: Mapping[str, Any]) -> tuple[list[Drawing], list[str]]:
    """The pictures of a study, and for those that it has nothing for, sentences that say why. Arguments as `study_page` has
    them."""
    drawings, missing = list[Drawing](), list[str]()
    problems = list(by_problem(rows).items())[:MOST_PROBLEMS]
    for title, about, draw in _kinds(histories):
        refusals = []
        for problem, part in problems:
            try:
                drawings.append(Drawing(f"{title}: {problem}", about, inline_svg(draw(part, size=SIZE), f"{title}: {problem}")))
            except InputError as error:
                refusals.append(error.problem)
        if len(refusals) == len(problems):
            missing.append(f"{title}: the study {refusals[0]}")
    return drawings, missing


def _kinds(histories: Mapping[str, Any]) -> list[tuple[str, str, Callable[..., Any]]]:
    """The kinds of pictures: a title, a sentence that says how to read it, and a function that draws it for rows. histories: by
    a row's key the history of its search."""
    performance = drawn("trainplan.pictures.study_profiles:draw_performance")
    return [
        (
            "Performance profile, seconds",
            "For each method, the share of instances that it has proven (optimal or infeasible) within a multiple of the "
            "fastest method's seconds. A line ends at the share that the method proves at all.",
            performance,
        ),
        (
            "Performance profile, value",
            "For each method, the share of instances on which its value is within a multiple of the best one.",
            partial(performance, measure="value"),
        ),
        (
            "Gap over time",
            "For each method, the median gap between its own value and bound while it searches.",
            partial(drawn("trainplan.pictures.study_profiles:draw_gaps"), histories=histories),
        ),
        (
            "Step",
            "The shortest step that any method found, and a band down to the best proven lower bound where they differ.",
            drawn("trainplan.pictures.studies:draw_steps"),
        ),
        (
            "Heat map, shortest step",
            "The shortest step of any method along two axes; hatched where there is none.",
            drawn("trainplan.pictures.studies:draw_heat"),
        ),
    ]


def inline_svg(figure: Any, label: str) -> Markup:
    """A matplotlib Figure as an SVG element for an HTML page: without background, with the page's own font, and with its
    letters, axes and grid in the page's colours, light or dark. label: the text for those who cannot see it, which also keeps
    the identifiers of two pictures apart.
    """
    from matplotlib import rc_context

    target = StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": label}):
        figure.savefig(target, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = target.getvalue()
    svg = re.sub(r"<(metadata|style)\b.*?</\1>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    used = set(re.findall(r'#([\w-]+)[")]', svg))
    svg = re.sub(r' id="([^"]+)"', lambda match: match[0] if match[1] in used else "", svg)
    for colour, variable in THEMED.items():
        svg = svg.replace(colour, variable)
    svg = re.sub(
        r'(<svg) [^>]*?(viewBox="[^"]*")[^>]*>', rf'\1 \2 role="img" aria-label="{Markup.escape(label)}">', svg, count=1
    )
    return Markup(re.sub(r"\n\s*", "\n", svg))
