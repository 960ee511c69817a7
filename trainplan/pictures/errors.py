"""Pictures of predictions beside what was measured, with the plot extra."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainplan.pictures.palette import BOUND, GRID, MARKERS, SERIES
from trainplan.profiling.base.errors import InputError
from trainplan.validation.predict import Prediction


def draw_errors(predictions: Sequence[Prediction]) -> Any:
    """A matplotlib Figure: predicted over measured steps, each with its interval, a colour for each kind of device and a
    marker for each precision.

    Args:
        predictions: of `validate`.

    Returns:
        The Figure.

    Raises:
        InputError: where no row has a measured step.
        MissingExtra: where matplotlib is not installed.
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
    kinds = list(dict.fromkeys(each.run.gpu for each in measured))
    precisions = list(dict.fromkeys((each.run.precision or "").lower() for each in measured))
    for kind in kinds:
        for precision in precisions:
            some = [each for each in measured if (each.run.gpu, (each.run.precision or "").lower()) == (kind, precision)]
            if not some:
                continue
            steps = [each.measured_s or 0.0 for each in some]
            ratios = [each.step_s or 0.0 for each in some]
            low = [(each.step_s or 0) - (each.step_low_s or 0) for each in some]
            high = [(each.step_high_s or 0) - (each.step_s or 0) for each in some]
            colour, marker = SERIES[kinds.index(kind) % len(SERIES)], MARKERS[precisions.index(precision) % len(MARKERS)]
            style: dict[str, Any] = {"fmt": marker, "color": colour, "elinewidth": 0.6, "markersize": 5}
            axes.errorbar(steps, ratios, yerr=[low, high], label=f"{kind}, {precision}", **style)
    ends = [min(each.measured_s or 1.0 for each in measured) / 1.5, max(each.measured_s or 1.0 for each in measured) * 1.5]
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
