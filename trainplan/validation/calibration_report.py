"""Texts on the errors of a fitted table of efficiencies: by split, by source, kind and framework, the worst runs, and
choices among layouts. The page of errors, `docs/measured.md`, has these texts between marks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import log1p
from pathlib import Path

from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import write_whole
from trainplan.profiling.base.quantities import plural
from trainplan.profiling.clusters.efficiencies import EfficiencyTable
from trainplan.profiling.clusters.step_errors import ASPECTS, NOUNS, FittedRun, as_relative, in_common, newness
from trainplan.validation.novelty import HELD, held_by_split, held_elsewhere
from trainplan.validation.report import summarised
from trainplan.validation.splits import SPLITS

WORST = 10
NOT_KNOWN = "not known"
# Why runs are predicted badly, by their ids, where that is known from what their sources say.
ALONE_ON_B200 = "the only source of bfloat16 on B200, without overlap of tensor parallelism"
LONG_RING = "torch's ring of 131,072 tokens: its counted passes explain a quarter"
LONG_ATTENTION = "attention over 16,384 tokens on A100, which no other source has"
REASONS: dict[str, str] = {
    "simumax_b200-1978": ALONE_ON_B200,
    "simumax_b200-2005": ALONE_ON_B200,
    "simumax_b200-1977": ALONE_ON_B200,
    "simumax_b200-1976": ALONE_ON_B200,
    "simumax_b200-2003": ALONE_ON_B200,
    "simumax_llama3_70b_l12_tp4_pp1_dp2_mbc32_cef": ALONE_ON_B200,
    "torchtitan-0677": LONG_RING,
    "torchtitan-0688": LONG_RING,
    "llm_foundry-0131": LONG_ATTENTION,
    "llm_foundry-0247": LONG_ATTENTION,
}
HEADING = f"{'':52} {'runs':>4} {'mean':>6} {'abs.':>6} {'median':>6} {'90 %':>6} {'held':>6}"


def report(table: EfficiencyTable, shipped: Iterable[str] = ()) -> dict[str, str]:
    """All texts on the errors of a fitted table, by name. shipped: ids of the runs that come with the package.

    The texts: `splits`, errors as fitted and with runs left out, and how many of the measured steps are within the intervals;
    `groups`, errors by source, kind of device with precision, and framework; `worst`, the runs whose step is predicted worst
    from other sources; `widths`, the widths of intervals; `choices`, the regret of choosing by predictions; `sources`, what the
    runs are from.
    """
    if not table.runs:
        return {}
    return {
        "splits": splits_text(table),
        "groups": groups_text(table.runs),
        "worst": worst_text(table.runs),
        "widths": widths_text(table),
        "choices": choices_text(table),
        "sources": sources_text(table.runs, frozenset(shipped)),
    }


def splits_text(table: EfficiencyTable) -> str:
    """A table of errors in percent: as fitted, and for each way to leave runs out. The mean, the mean of absolute values, their
    median and 90th percentile, and the share of measured steps within the intervals that the fit to the kept runs would give.
    """
    runs, lines = table.runs, [HEADING]
    lines.append(_errors("as fitted", [run.error for run in runs], _held_as_fitted(table)))
    held = {} if table.step_errors is None else held_by_split(runs, table.step_errors)
    for split in SPLITS.values():
        errors = [run.left_out[split.name] for run in runs if split.name in run.left_out]
        if errors:
            lines.append(_errors(split.words, errors, held.get(split.name)))
    if (elsewhere := held_elsewhere(runs)) is not None:
        lines.append(f"{'all splits, by widths fitted without the source':52} {'':34} {100 * elsewhere:6.0f}")
    return "\n".join(lines)


def _held_as_fitted(table: EfficiencyTable) -> float | None:
    """The share of measured steps of a table's runs within the intervals of their predictions as fitted; None if the table has
    no widths of intervals.
    """
    widths = table.step_errors
    if widths is None:
        return None
    within = [
        abs(log1p(run.error))
        <= widths.half_width(
            newness(in_common(table.runs, run.device, run.devices, run.precision, run.framework)), run.left_open
        )
        for run in table.runs
    ]
    return sum(within) / len(within)


def groups_text(runs: Sequence[FittedRun]) -> str:
    """A table of errors in percent by source, by kind of device with precision, and by framework: as fitted, and with the
    source of each run left out. runs: the runs of a fit.
    """
    first = f"{'':52} {'runs':>4}   fit: {'mean':>6} {'abs.':>6} {'median':>6} {'90 %':>6}   left out:"
    lines = [f"{first} {'mean':>6} {'abs.':>6} {'median':>6} {'90 %':>6}"]
    by: Sequence[Callable[[FittedRun], str]] = (
        lambda run: "all",
        lambda run: run.source or "no source",
        lambda run: f"{run.device} {run.precision}",
        lambda run: run.framework,
    )
    for name_of in by:
        groups: dict[str, list[FittedRun]] = {}
        for run in runs:
            groups.setdefault(name_of(run), []).append(run)
        for name, members in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
            fitted = _numbers([run.error for run in members])
            left_out = _numbers([run.left_out.get("source", run.error) for run in members])
            lines.append(f"{name:52} {len(members):4}        {fitted}             {left_out}")
    return "\n".join(lines)


def worst_text(runs: Sequence[FittedRun]) -> str:
    """A table of the runs whose steps are predicted worst by fits without their source, in percent, the worst first, with the
    reason where it is known. runs: the runs of a fit.
    """
    worst = sorted(runs, key=lambda run: (-abs(log1p(run.left_out.get("source", run.error))), run.id))[:WORST]
    lines = [f"{'run':24} {'devices':18} {'precision':10} {'framework':22} {'fit':>6} {'left out':>9}  why"]
    for run in worst:
        about = f"{run.id:24} {f'{run.devices} {run.device}':18} {run.precision:10} {run.framework:22}"
        left_out = run.left_out.get("source", run.error)
        lines.append(f"{about} {100 * run.error:+6.1f} {100 * left_out:+9.1f}  {REASONS.get(run.id, NOT_KNOWN)}")
    return "\n".join(lines)


def widths_text(table: EfficiencyTable) -> str:
    """Lines on the widths of intervals, as factors of a prediction."""
    widths = table.step_errors
    if widths is None:
        return "the table has no widths of intervals"
    lines = [f"an interval of a factor {1 + as_relative(widths.usual):.3f} either way is meant to hold {HELD:.0%} of steps"]
    for aspect in ASPECTS:
        shares = dict.fromkeys(ASPECTS, 0.0) | {aspect: 1.0}
        wider = 1 + as_relative(widths.half_width(shares))
        lines.append(f"  of a run whose {NOUNS[aspect]} no measured run has: {wider:.3f}")
    factor = 1 + as_relative(widths.difference)
    lines.append(f"of the ratio of the steps of two layouts of one job: {factor:.3f}")
    return "\n".join(lines)


def choices_text(table: EfficiencyTable) -> str:
    """A line on what it costs to choose the layout that is predicted to be fastest."""
    found = table.choices
    if found is None:
        return "no two runs are layouts of one job"
    chosen = f"of {plural(found.groups, 'job')} with several measured layouts, the fastest is chosen in {found.best}"
    return f"{chosen}: regret {100 * found.regret:.2f} % in the mean, {100 * found.worst:.1f} % at most"


def sources_text(runs: Sequence[FittedRun], shipped: frozenset[str]) -> str:
    """A table of the sources of a fit's runs: how many runs each has, and how many of them come with the package. runs: the
    runs of a fit. shipped: the ids of the runs that come with the package.
    """
    sources: dict[str, list[FittedRun]] = {}
    for run in runs:
        sources.setdefault(run.source or "no source", []).append(run)
    lines = [f"{'source':28} {'runs':>4} {'in the package':>15}  kinds of device"]
    for name, members in sorted(sources.items(), key=lambda item: (-len(item[1]), item[0])):
        kinds = ", ".join(sorted({run.device for run in members}))
        lines.append(f"{name:28} {len(members):4} {sum(run.id in shipped for run in members):15}  {kinds}")
    return "\n".join(lines)


def _numbers(errors: Sequence[float]) -> str:
    """Mean, mean of absolute values, median and 90th percentile of relative errors as percentages, in columns."""
    found = summarised(errors)
    return " ".join(f"{100 * value:6.1f}" for value in (found.mean, found.absolute, found.median, found.ninth))


def _errors(name: str, errors: Sequence[float], held: float | None) -> str:
    """A line of a table of errors. name: its first column. errors: relative errors. held: the share of measured steps within
    their intervals.
    """
    within = f"{100 * held:6.0f}" if held is not None else f"{'':6}"
    return f"{name:52} {len(errors):4} {_numbers(errors)} {within}"


def with_blocks(page: str, blocks: Mapping[str, str], where: str) -> str:
    """Put texts into a page, each between the lines `<!-- calibrate: NAME -->` and `<!-- end -->`. page: the page's text.
    blocks: the texts by name. where: the page's name, for errors. Raises InputError if the page has no place for a text.
    """
    for name, text in blocks.items():
        pattern = re.compile(rf"(<!-- calibrate: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        block = f"```text\n{text}\n```\n"
        page, count = pattern.subn(lambda match, block=block: match[1] + block + match[2], page)  # type: ignore[misc]
        if not count:
            fix = f"give a page with the lines <!-- calibrate: {name} --> and <!-- end -->"
            raise InputError(where, "", f"has no place for the text {name!r}", fix)
    return page


def write_page(path: Path, blocks: Mapping[str, str]) -> None:
    """Replace the texts on errors in a page's file by new ones. path: the file. blocks: the texts by name. Raises InputError if
    there is no such file, or if it has no place for a text.
    """
    try:
        page = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(str(path), "", f"cannot be read: {error.strerror}", "give docs/measured.md, or a copy of it") from None
    write_whole(path, with_blocks(page, blocks, str(path)))
