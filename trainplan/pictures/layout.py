"""A picture of a plan: its stages on devices, its units with their strategies, and memory against the limit. Plot extra."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from trainplan.formulations.plan.plan import Plan, Stage
from trainplan.formulations.plan.strategy_words import in_words
from trainplan.formulations.schedule.orders import SCHEDULES
from trainplan.inputs import compiles
from trainplan.pictures.palette import BLUE, GREEN, LIGHTER, PURPLE, SERIES, VERMILION
from trainplan.pictures.timeline import CHARACTER, PATH
from trainplan.prediction.metrics import PARTS, Performance
from trainplan.prediction.simulate import simulate
from trainplan.profiling.base.quantities import format_bytes, format_time, plural, span

STRATEGIES = (*SERIES, *LIGHTER)  # units with one strategy have one colour
DARK = {BLUE, GREEN, VERMILION, PURPLE}
HOLDS = dict(zip(PARTS, ("#1b3a57", "#4c78a8", "#9ecae9", "#f2a65a", "#c9c9c9"), strict=True))
ROW, LARGEST = 0.5, 18.0  # inches: of a stage, and of all of them
UNITS, MEMORY = 6.0, 3.0  # inches of the two panels
MOST_EDGES = 160  # units of a stage between which there is a line
LEGEND: dict[str, Any] = {"fontsize": 7.5, "title_fontsize": 8, "frameon": False, "handlelength": 1.2, "columnspacing": 1.0}
SIZES = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))


def draw_plan(plan: Plan, performance: Performance | None = None) -> Any:
    """A matplotlib Figure of a plan: a row for each stage with its ranks or devices and its units, coloured by strategy; to its
    right the peak memory of the stage's fullest device by parts, against the limit.

    Args:
        plan: the plan; one without a prediction has no memory drawn.
        performance: the plan's step in an engineer's units (default: by the costs that the plan carries).

    Returns:
        The Figure.

    Raises:
        MissingExtra: if matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    if performance is None and plan.predicted is not None and compiles(plan.planned_model()):
        performance = simulate(plan).performance
    count = len(plan.stages)
    row = min(ROW, LARGEST / count)
    panels = 1 if performance is None else 2
    size = (UNITS + MEMORY * (panels - 1) + 1.4, row * count + 2.2)
    figure: Any = Figure(figsize=size, layout="constrained")
    axes, *memory_axes = figure.subplots(1, panels, sharey=True, squeeze=False, width_ratios=(UNITS, MEMORY)[:panels])[0]
    _draw_units(axes, plan)
    if performance is not None:
        _draw_memory(memory_axes[0], plan, performance)
    for panel in (axes, *memory_axes):
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=8)
        panel.xaxis.label.set_fontsize(8)
    axes.set_ylim(count - 0.45, -0.55)
    figure.suptitle(_title(plan, performance), fontsize=11)
    return figure


def _title(plan: Plan, performance: Performance | None) -> str:
    """The picture's title: model, batch, number of devices and, if `performance` is given, step time and throughput. plan: a
    training plan, with its stages and strategies.
    """
    batch, model = plan.batch, plan.planned_model()
    shape = f"{plural(len(plan.stages), 'stage')}, {plural(batch.micro_batches, 'micro-batch')}"
    shape += f", {SCHEDULES[plan.schedule].title}" if len(plan.stages) > 1 else ""
    lines = [f"{model.name}, {batch.global_samples} samples a step on {plural(plan.world, 'device')}: {shape}"]
    if performance is not None:
        throughput = dict(performance.summary())["throughput"]
        lines.append(f"{format_time(performance.step_ns)} a step, {throughput}")
    return "\n".join(lines)


def _draw_units(axes: Any, plan: Plan) -> None:
    """Draw the units (sub-layers) of each pipeline stage as a row of cells, coloured by the unit's strategy, with the
    strategies' names if there is space. axes: the matplotlib axes to draw on. plan: a training plan, with its stages and
    strategies.
    """
    from matplotlib.patches import Patch

    names = [in_words(str(unit)) for unit in plan.units]
    distinct = list(dict.fromkeys(names))
    colours = {name: STRATEGIES[index % len(STRATEGIES)] for index, name in enumerate(distinct)}
    widest = max(stage.last_unit - stage.first_unit + 1 for stage in plan.stages)
    for number, stage in enumerate(plan.stages):
        units, first = range(stage.first_unit, stage.last_unit + 1), stage.first_unit
        line = {"edgecolor": "white", "linewidth": 0.5 if widest <= MOST_EDGES else 0.0}
        axes.bar(
            [unit - first for unit in units], 0.62, 1.0, number - 0.31, align="edge",
            color=[colours[names[unit]] for unit in units], gid=f"stage {number}", **line,
        )  # fmt: skip
        for name, group in groupby(units, key=names.__getitem__):
            run = list(group)
            if len(run) / widest * UNITS > CHARACTER * len(name) + 0.1:
                middle, ink = (run[0] + run[-1] + 1) / 2 - first, "white" if colours[name] in DARK else "black"
                background = {"fc": colours[name], "ec": "none", "pad": 0.8}  # no line between units goes through a name
                axes.text(middle, number, name, color=ink, fontsize=7.5, ha="center", va="center", bbox=background)
        units_text = f"{span(plan.units[units[0]].name, plan.units[units[-1]].name)} ({len(units)})"
        axes.text(0, number - 0.33, units_text, fontsize=6.5, va="bottom", color="#555555")
    labels = [f"stage {number}, {_devices(plan, stage)}" for number, stage in enumerate(plan.stages)]
    axes.set_yticks(range(len(labels)), labels)
    axes.tick_params(axis="y", length=0)
    axes.set(xlim=(0, widest), xlabel="sub-layers of the stage, in order")
    patches = [Patch(facecolor=colours[name], label=name) for name in distinct]
    axes.figure.legend(handles=patches, title="strategy", loc="outside lower left", ncols=min(4, len(patches)), **LEGEND)


def _devices(plan: Plan, stage: Stage) -> str:
    """The devices of a pipeline stage as text, such as `devices 0 .. 7`; its ranks, such as `ranks 0 .. 7`, if the plan does
    not place ranks on devices.
    """
    if plan.placement is None:
        return _numbers("rank", stage.ranks)
    return _numbers("device", sorted(plan.placement[rank] for rank in stage.ranks))


def _numbers(noun: str, numbers: Sequence[int]) -> str:
    """Format ascending numbers after a noun as text: `ranks 0 .. 7`, `devices 0, 4`, `rank 3`. Consecutive numbers are a
    range; after two ranges the rest is "...".
    """
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1].append(number)
        else:
            spans.append([number])
    texts = [span(str(units[0]), str(units[-1])) for units in spans]
    shown = texts if len(texts) <= 3 else [*texts[:2], "..."]
    return f"{noun}{'s' if len(numbers) > 1 else ''} {', '.join(shown)}"


def _draw_memory(axes: Any, plan: Plan, performance: Performance) -> None:
    """Draw, for each pipeline stage, the peak memory of its fullest device as a bar divided into coloured parts (such as
    activations), and the memory limit as a line. axes: the matplotlib axes to draw on. plan: a training plan, with its stages
    and strategies.
    """
    software = plan.predicted is not None and plan.predicted.software
    own = "\nby trainplan's own programs of the plan" * bool(software)  # the plan's prediction is of another runtime
    limit, peak = plan.memory_bytes, max(stage.peak_bytes for stage in performance.stages)
    scale, unit = next((size, name) for size, name in SIZES if max(limit, peak) >= size)
    indices = range(len(performance.stages))
    left = [0.0] * len(indices)
    for part, colour in HOLDS.items():
        sizes = [getattr(stage, f"{part}_bytes") / scale for stage in performance.stages]
        axes.barh(indices, sizes, 0.62, left=left, color=colour, label=part)
        left = [low + size for low, size in zip(left, sizes, strict=True)]
    widest = 1.3 * max(limit, peak) / scale
    for index, stage in enumerate(performance.stages):
        text, end = format_bytes(stage.peak_bytes), left[index]
        across = end <= limit / scale < end + (CHARACTER * len(text) + 0.1) / MEMORY * widest
        at = limit / scale if across else end  # no label lies on the line of the limit
        axes.annotate(text, (at, index), (4, 0), textcoords="offset points", fontsize=7.5, va="center")
    axes.axvline(limit / scale, color=PATH, lw=1.2, ls="--", gid="limit")
    label = f"limit {format_bytes(limit)} "
    axes.text(limit / scale, -0.5, label, fontsize=8, color=PATH, ha="right", va="bottom", clip_on=False)
    axes.set(xlim=(0, widest), xlabel=f"{unit} of the fullest device, at its peak{own}")
    axes.tick_params(axis="y", length=0)
    handles, labels = axes.get_legend_handles_labels()
    axes.figure.legend(handles, labels, title="what holds memory", loc="outside lower right", ncols=3, **LEGEND)
