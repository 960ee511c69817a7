"""Charts of profiles, of throughput, and of predictions against what was measured, with the plot extra."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, groupby
from typing import Any

from trainplan.pictures.palette import BEST, BOUND, GREEN, GRID, MARKERS, ORANGE, SERIES, SKY, series
from trainplan.pictures.timeline import BACKWARD, FORWARD
from trainplan.planning.presets import OPTIMUM
from trainplan.planning.throughput import Throughput
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.quantities import plural
from trainplan.profiling.layer_summary import summary
from trainplan.profiling.profiles import Profile
from trainplan.validation.predict import Prediction

TIME_PARTS = (("forward", "forward_ns", FORWARD), ("backward", "backward_ns", BACKWARD))
MEMORY_PARTS = (
    ("model states", "state_bytes", GREEN),
    ("layer inputs", "input_bytes", ORANGE),
    ("kept for backward", "kept_bytes", SKY),
)


def draw_profile(profile: Profile, tp: int = 1, rows: int = 1, device: str | None = None) -> Any:
    """A matplotlib Figure: time above and memory below, a bar for every layer of the chain.

    Args:
        profile: a profile, such as `profile` or `import_profile` gives.
        tp: tensor-parallel degree.
        rows: samples on one device.
        device: the kind of device, where the profile has several.

    Returns:
        The Figure.

    Raises:
        InputError: for what the profile does not have.
        MissingExtra: if matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    units = summary(profile, tp, rows, device)
    layers = [list(group) for _, group in groupby(units, key=lambda unit: unit.layer)]
    figure = Figure(figsize=(max(7.0, min(18.0, 3 + 0.16 * len(layers))), 6.0), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    for axes, parts, scale, label in ((upper, TIME_PARTS, 1e6, "ms"), (lower, MEMORY_PARTS, 2**20, "MiB")):
        bottom = [0.0] * len(layers)
        for name, field, colour in parts:
            heights = [sum(getattr(unit, field) for unit in layer) / scale for layer in layers]
            axes.bar(range(len(layers)), heights, bottom=bottom, label=name, color=colour, width=0.9)
            bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
        axes.set_ylabel(label)
        axes.legend(loc="upper center", ncols=len(parts), frameon=False, bbox_to_anchor=(0.5, 1.14))
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.01)
    kinds = device or " and ".join(profile.kinds)
    upper.set_title(f"{profile.name}, {plural(rows, 'row')}, tp {tp}\non {kinds} ({profile.origin})", pad=26, fontsize=11)
    step = max(1, len(layers) // 24)
    shown = [index for index in range(len(layers)) if index % step == 0 or index == len(layers) - 1]
    if len(shown) > 1 and shown[-1] - shown[-2] < step:
        del shown[-2]
    names = [layers[index][0].name.split(".")[0] for index in shown]
    lower.set_xticks(shown, names, rotation=60, ha="right", rotation_mode="anchor")
    return figure


def draw_throughput(searches: Sequence[Throughput]) -> Any:
    """A matplotlib Figure: the best throughput up to each batch size, a line for each planner, its best batch marked; where a
    line ends nothing larger fits.

    Args:
        searches: one search for each planner, as `throughput` gives them.

    Returns:
        The Figure.

    Raises:
        MissingExtra: if matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.0, 5.0), layout="constrained")
    axes = figure.subplots()
    for index, search in enumerate(searches):
        if search.best is None:
            axes.plot([], [], lw=1.5, color="lightgrey", label=f"{search.planner.label}: OOM")
            continue
        proven = search.planner.name.startswith(OPTIMUM)
        style: dict[str, Any] = series(index) | ({"color": BEST, "lw": 2.2, "zorder": 3} if proven else {"lw": 1.3})
        points = [point for point in search.points if point.throughput]
        style |= {"markevery": [points.index(search.best)], "label": search.planner.label}
        highest = list(accumulate((point.throughput for point in points), max))
        axes.plot([point.batch for point in points], highest, drawstyle="steps-post", **style)
    axes.set(xlabel="samples of a step", ylabel="best throughput up to this batch size, samples/s")
    axes.set_title("throughput by batch size; the marker: each planner's best", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color=GRID, lw=0.6)
    figure.legend(loc="outside right upper", fontsize=9, frameon=False)
    return figure


def draw_errors(predictions: Sequence[Prediction]) -> Any:
    """A matplotlib Figure: predicted against measured steps, every prediction with its interval, with one colour for each kind
    of device and one marker for each precision.

    Args:
        predictions: predictions of measured runs, as `validate` gives them.

    Returns:
        The Figure.

    Raises:
        InputError: if no run has a measured step.
        MissingExtra: if matplotlib is not installed.
    """
    measured = [prediction for prediction in predictions if prediction.error is not None]
    if not measured:
        raise InputError(
            "command line",
            "--picture",
            "is of runs without a measured step",
            "give runs with step_s, tokens_s_gpu, tflops_gpu or mfu",
        )
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 6.5), layout="constrained")
    axes = figure.subplots()
    kinds = list(dict.fromkeys(prediction.run.gpu for prediction in measured))
    precisions = list(dict.fromkeys(_precision(prediction) for prediction in measured))
    for kind in kinds:
        for precision in precisions:
            group = [one for one in measured if (one.run.gpu, _precision(one)) == (kind, precision)]
            if not group:
                continue
            steps = [prediction.measured_s or 0.0 for prediction in group]
            predicted = [prediction.step_s or 0.0 for prediction in group]
            low = [(prediction.step_s or 0) - (prediction.step_low_s or 0) for prediction in group]
            high = [(prediction.step_high_s or 0) - (prediction.step_s or 0) for prediction in group]
            colour, marker = SERIES[kinds.index(kind) % len(SERIES)], MARKERS[precisions.index(precision) % len(MARKERS)]
            style: dict[str, Any] = {"fmt": marker, "color": colour, "elinewidth": 0.6, "markersize": 5}
            axes.errorbar(steps, predicted, yerr=[low, high], label=f"{kind}, {precision}", **style)
    ends = [
        min(prediction.measured_s or 1.0 for prediction in measured) / 1.5,
        max(prediction.measured_s or 1.0 for prediction in measured) * 1.5,
    ]
    axes.plot(ends, ends, color=BOUND, linewidth=0.8)
    for share in (0.8, 1.25):
        axes.plot(ends, [end * share for end in ends], color="#bbbbbb", linewidth=0.6, linestyle="--")
    axes.set(xscale="log", yscale="log", xlabel="measured step, s", ylabel="predicted step, s")
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color=GRID, lw=0.6)
    axes.set_axisbelow(True)
    axes.set_title("predicted against measured steps; dashed: a fifth less, a quarter more", fontsize=11)
    return figure


def _precision(prediction: Prediction) -> str:
    """The precision that a measured run states (such as "bf16"), in lower case; empty if it states none. prediction: the
    prediction of one measured run.
    """
    return (prediction.run.precision or "").lower()
