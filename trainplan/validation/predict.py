"""Predictions of measured runs under the cost model `streams`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import hypot, sqrt
from typing import Any, ClassVar

from trainplan.formulations.costs.overlapped.analytic_memory import RunMemory, run_memory
from trainplan.formulations.costs.overlapped.analytic_offload import with_host
from trainplan.formulations.costs.overlapped.analytic_step import StreamsStep, streams_step
from trainplan.formulations.costs.overlapped.links import Links
from trainplan.formulations.plan.strategy import HEADS_WORD
from trainplan.profiling.base.display import in_one_line
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.clusters.efficiencies import EfficiencyTable, shipped_efficiencies
from trainplan.profiling.clusters.nodes import host_of
from trainplan.tabular import Tabular
from trainplan.validation.alongside import LAST
from trainplan.validation.fitting import Fit, fit_of, fit_probability, limit_bytes, peak_error, tight_words
from trainplan.validation.layouts import LaidRun, laid_run
from trainplan.validation.measured import NOTHING_COMPARED, ComparedValues, Measured, compared_values, verdict
from trainplan.validation.memory_words import measured_rank
from trainplan.validation.mixture_words import is_mixture
from trainplan.validation.rows import Run
from trainplan.validation.words import SHARD

GIB = 2**30
MOST_IDS = 4  # that a note lists
ISSUE_ERROR = 0.25  # added to the relative error of a step that the host's launches decide: holds four fifths of such steps
# Added, in squares, to the relative error of a mixture's step: with it intervals hold five sixths of 65 such steps.
MIXTURE_ERROR = 0.22
MIXTURE_PEAK = 0.05  # added to the relative standard error of a mixture's peak, of 65 peaks
ASSUMED_ERROR = 0.1  # relative error for each field in DECISIVE that a run leaves open; their squares add up
ALWAYS_OTHER = ("vocab",)  # fields whose value frameworks always change: they pad it
DECISIVE = ("framework", "recompute", "zero", SHARD, "mbs")  # fields that decide most of a step
OPEN = (
    "framework",
    "precision",
    "recompute",
    "zero",
    SHARD,
    "overlap",
    "gbs",
    "mbs",
    "seq",
)  # fields that are reported if left open
UNDECIDED = {"framework", "recompute", "mbs"}  # fields without all of which a verdict on memory says nothing about the run


@in_one_line
@dataclass(frozen=True)
class Prediction:
    """The prediction of one measured training run (a row of a table), or the reason why it cannot be predicted.

    Attributes:
        run: the run, as read from its file.
        step_s: the predicted step in seconds.
        step_low_s: lower end of an interval that is meant to hold 80 % of measured steps, in seconds.
        step_high_s: upper end of this interval.
        peak_gib: the predicted peak memory of the fullest device in GiB, or of the last rank if the run measured that.
        fits: whether the predicted peak is within the memory of every device.
        fit_probability: the probability, 0 to 1, that the run fits, by the error of predicted peaks.
        memory: the fullest device's memory by category.
        cannot: why there is no prediction; empty if there is one.
        laid: the run, completed by assumptions to a configuration.
        step: the step's parts.
        borrowed: texts about efficiencies that were taken from another kind of device.
        held: the measured values that the prediction is compared with.
    """

    run: Run
    step_s: float | None = None
    step_low_s: float | None = None
    step_high_s: float | None = None
    peak_gib: float | None = None
    fits: bool | None = None
    fit_probability: float | None = None
    memory: RunMemory | None = None
    cannot: str = ""
    laid: LaidRun | None = None
    step: StreamsStep | None = None
    borrowed: Sequence[str] = ()
    held: ComparedValues = NOTHING_COMPARED

    @property
    def fit(self) -> Fit | None:
        """Whether the run fits into memory: yes, tight (the error of the prediction decides), or no; None if there is no
        prediction.
        """
        return None if self.fit_probability is None else fit_of(self.fit_probability)

    @property
    def close(self) -> bool:
        """Whether the peak is so close to the memory limit that the prediction's error decides whether the run fits."""
        return self.fit == "tight"

    @property
    def measured(self) -> tuple[Measured, ...]:
        """The run's measured steps: one for each field that states or implies a step. Predictions are compared with the first
        one.
        """
        return self.held.steps

    @property
    def measured_s(self) -> float | None:
        """The measured step in seconds that the prediction is compared with; None if there is none."""
        return self.measured[0].step_s if self.measured else None

    @property
    def error(self) -> float | None:
        """Predicted over measured step, minus 1; None if there is no measured step."""
        return None if self.measured_s is None or self.step_s is None else self.step_s / self.measured_s - 1

    @property
    def memory_error(self) -> float | None:
        """Predicted over measured peak memory, minus 1; None if there is no measured peak."""
        return None if self.held.peak_gib is None or self.peak_gib is None else self.peak_gib / self.held.peak_gib - 1

    @property
    def left_open(self) -> dict[str, str]:
        """The fields that the run does not specify and that matter for its step or memory, by name, with the values that are
        assumed, as texts.
        """
        assumed = {} if self.laid is None else self.laid.assumed
        return {name: assumed[name] for name in OPEN if name in assumed and not getattr(self.run, name, None)}

    @property
    def as_taken(self) -> bool:
        """Whether the prediction that the run fits into memory (or does not) holds only for assumed values, because the run
        leaves important fields unspecified.
        """
        return self.left_open.keys() >= UNDECIDED

    @property
    def remarks(self) -> list[str]:
        """Texts for users about values of the run in whose place others were assumed, that cannot be compared with the
        prediction, or that contradict other values or the predicted memory.
        """
        if self.laid is None or self.peak_gib is None:
            return []
        contradicted = "" if self.close else verdict(self.laid, self.peak_gib * GIB, self.fit != "no")
        taken = (
            f"{name} {_written(getattr(self.run, name))} is taken as {value.removeprefix('as ')}"
            for name, value in self.laid.assumed.items()
            if getattr(self.run, name, None) is not None and name not in ALWAYS_OTHER
        )
        return [*taken, *self.held.remarks, *([contradicted] if contradicted else [])]

    def to_dict(self) -> dict[str, Any]:
        """The prediction as JSON-ready values, as `trainplan validate --json` prints it: id; step_s with its interval
        step_low_s to step_high_s; peak_gib; fits, fit, fit_probability, close, as_taken (see the properties of these names);
        cannot; measured_s and measured_by, the field that it is from; error and memory_error, predicted over measured minus 1;
        remarks, a list of texts; assumed, texts by field. A value that is unknown is None.
        """
        names = (
            "step_s", "step_low_s", "step_high_s", "peak_gib", "fits", "fit", "fit_probability", "close", "as_taken", "cannot",
        )  # fmt: skip
        by = {"measured_s": self.measured_s, "measured_by": self.measured[0].by if self.measured else None}
        return {
            "id": self.run.id,
            **{name: getattr(self, name) for name in names},
            **by,
            "error": self.error,
            "memory_error": self.memory_error,
            "remarks": self.remarks,
            "assumed": {} if self.laid is None else dict(self.laid.assumed),
        }


class Predictions(Tabular, list[Prediction]):
    """Predictions of measured runs, in the order of the runs."""

    headings: ClassVar = {
        "run": "run",
        "model": "model",
        "devices": "devices",
        "layout": "layout",
        "measured_ns": "measured",
        "predicted_ns": "predicted",
        "low_ns": "from",
        "high_ns": "to",
        "error": "error",
        "peak_bytes": "peak",
        "memory_error": "error of it",
        "fits": "fits",
    }
    drawn_by = "trainplan.pictures.charts:draw_errors"

    def rows(self) -> list[dict[str, Any]]:
        """A dict for each run: run (its id), source, model, devices, layout and precision as texts; measured_ns; predicted_ns
        with its interval low_ns to high_ns; error, predicted over measured minus 1; peak_bytes, measured_peak_bytes and
        memory_error; fits, fit (yes, tight, no), fit_probability and close; cannot, why there is no prediction, or an empty
        text."""
        return [_row(prediction) for prediction in self]

    def cells(self) -> list[list[str]]:
        """The texts of the cells of the table of predictions, row by row. The cell on memory also states if the answer depends
        on the prediction's error or on assumed values.
        """
        index = list(self.headings).index("fits")
        return [
            [*row[:index], _verdict(prediction, row[index]), *row[index + 1 :]]
            for prediction, row in zip(self, super().cells(), strict=True)
        ]

    def notes(self) -> list[str]:
        """The lines below the table of predictions: why runs cannot be predicted, remarks with the ids of the runs that they
        concern, and efficiencies that were taken from another kind of device.
        """
        cannot = [f"{_named(made.run)} cannot be predicted: {made.cannot}" for made in self if made.cannot]
        borrowed = dict.fromkeys(
            f"{prediction.laid.sheet.name}, {text}" for prediction in self if prediction.laid for text in prediction.borrowed
        )
        ids_by_text: dict[str, list[str]] = {}
        for prediction in self:
            for text in _of_row(prediction):
                ids_by_text.setdefault(text, []).append(prediction.run.id)
        return [*cannot, *(f"{_listed(ids)}: {text}" for text, ids in ids_by_text.items()), *borrowed]


def _named(run: Run) -> str:
    """A run that cannot be predicted, as people find it: its file and index, its id and its model."""
    names = [run.found_in, run.id * (not run.found_in.endswith(run.id)), f"({run.model})" * bool(run.model)]
    return " ".join(filter(None, names))


def _verdict(prediction: Prediction, fits: str) -> str:
    """The text of the table's cell on whether a run fits into memory, such as "tight: 62 % likely to fit". prediction: the
    prediction of one measured run. fits: the text for an answer that is certain, or for none.
    """
    sure = prediction.fit or fits
    words = tight_words(prediction.fit_probability) if prediction.close and prediction.fit_probability is not None else sure
    return words + ", if as taken" * (prediction.as_taken and prediction.fits is not None)


def _listed(ids: Sequence[str]) -> str:
    """Join the ids of runs into one text with at most MOST_IDS ids, followed by the number of the remaining ones: "a, b and 3
    more".
    """
    more = len(ids) - MOST_IDS
    return ", ".join(ids[:MOST_IDS]) + (f" and {more} more" if more > 0 else "")


def _of_row(prediction: Prediction) -> Iterator[str]:
    """Yield the remarks on one run, as texts: from which field its measured step was computed, which values were changed or
    assumed, and which fields it does not specify. prediction: the prediction of one measured run.
    """
    if prediction.measured and prediction.measured[0].by != "step_s":
        first = prediction.measured[0]
        value = getattr(prediction.run, first.by)
        yield f"its measured step is of {first.by} {value:g}" + (f": {first.counted}" if first.counted else "")
    yield from prediction.remarks
    if prediction.left_open:
        yield f"leaves open {', '.join(f'{name} ({value})' for name, value in prediction.left_open.items())}"
    if prediction.laid is not None and LAST in prediction.laid.assumed:
        yield f"{LAST}: {prediction.laid.assumed[LAST]}"


def _written(value: Any) -> str:
    """A value as text, with four digits if it is a float."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _row(prediction: Prediction) -> dict[str, Any]:
    """One run's row of the table as a dict, with the keys that `Predictions.rows` documents. prediction: the prediction of one
    measured run.
    """
    run, laid = prediction.run, prediction.laid
    return {
        "run": run.id,
        "source": run.source,
        "model": run.model,
        "devices": f"{run.gpus} {run.gpu if laid is None else laid.name}",
        "layout": None if laid is None else _layout_text(laid),
        "measured_ns": _scaled(prediction.measured_s, 1e9),
        "predicted_ns": _scaled(prediction.step_s, 1e9),
        "low_ns": _scaled(prediction.step_low_s, 1e9),
        "high_ns": _scaled(prediction.step_high_s, 1e9),
        "error": prediction.error,
        "peak_bytes": _scaled(prediction.peak_gib, GIB),
        "measured_peak_bytes": _scaled(prediction.held.peak_gib, GIB),
        "memory_error": prediction.memory_error,
        "fits": prediction.fits,
        "fit": prediction.fit,
        "fit_probability": prediction.fit_probability,
        "close": prediction.close,
        "cannot": prediction.cannot,
    }


def _scaled(value: float | None, scale: float) -> int | None:
    """Convert a value to another unit: multiply it by `scale` and round it to an integer; None stays None."""
    return None if value is None else round(value * scale)


def _layout_text(laid: LaidRun) -> str:
    """A short text on a run's configuration, such as `dp8 tp2 zero1 mbs1 gbs64 bfloat16`. laid: a measured run, with assumed
    values for everything that it does not specify.
    """
    layout = laid.layout
    degrees = {"dp": layout.dp, "tp": layout.tp, "pp": layout.pp, "vpp": layout.chunks, "cp": layout.cp}
    words = [f"{name}{degree}" for name, degree in degrees.items() if degree > 1] or ["single"]
    words[-1] += HEADS_WORD * layout.exchanges_heads
    if any(unit.kind == "experts" for unit in laid.model.units):
        words.append(f"experts {layout.expert_words}")
    shared = [f"hsdp {layout.dp // layout.shard}x{layout.shard}"] * (layout.zero > 0 and layout.shard < layout.dp)
    host = [f"{name} on host" for name in sorted(layout.on_host)]
    return " ".join([*words, f"zero{layout.zero}", *shared, f"mbs{layout.micro}", f"gbs{layout.batch}", laid.products, *host])


def predict_runs(runs: Iterable[Run], table: EfficiencyTable | None = None) -> Predictions:
    """Predict step and memory of measured runs, in their order. A run that cannot be predicted gives a prediction with the
    reason in `cannot`.

    table: efficiencies (shares of their peak rates that kernels and links reach); None for those that come with the package.
    """
    table = table or shipped_efficiencies()
    return Predictions(predict_run(run, table) for run in runs)


def predict_run(run: Run, table: EfficiencyTable) -> Prediction:
    """Predict the step and the memory of one measured run; if that is not possible, the prediction has the reason in `cannot`.

    table: efficiencies (shares of their peak rates that kernels and links reach).
    """
    try:
        laid = laid_run(run)
    except InputError as error:
        return Prediction(run, cannot=f"{error.field} {error.problem}; {error.fix}")
    return predict_laid(laid, table)


def predict_laid(laid: LaidRun, table: EfficiencyTable) -> Prediction:
    """Predict the step and the memory of a measured run.

    laid: a measured run, with assumed values for everything that it does not specify. table: efficiencies (shares of their peak
    rates that kernels and links reach).
    """
    run, step = laid.run, step_of(laid, table)
    seconds = step.step_ns / 1e9
    low, high, borrowed = interval(laid, table)
    memory = run_memory(laid.model, laid.layout)
    fullest, limit = max(memory, key=lambda rank: rank.peak_bytes), limit_bytes(laid.sheet)
    most = fullest.peak_bytes
    peak = measured_rank(run, memory).peak_bytes
    return Prediction(
        run,
        step_s=seconds,
        step_low_s=seconds * low,
        step_high_s=seconds * high,
        peak_gib=peak / GIB,
        fits=most <= limit,
        fit_probability=fit_probability(most, limit, peak_error(laid.layout.framework) + MIXTURE_PEAK * is_mixture(run)),
        memory=fullest,
        laid=laid,
        step=step,
        borrowed=borrowed,
        held=compared_values(laid, seconds, peak),
    )


def step_of(laid: LaidRun, table: EfficiencyTable) -> StreamsStep:
    """Predict the step of a run, in total and by its parts (computation, exposed communication and others), including copies
    between device and host.

    laid: the run, with assumed values for everything that it does not specify. table: efficiencies (shares of their peak rates
    that kernels and links reach).
    """
    links = laid.links or Links.of(laid.sheet, table, laid.run.gpus, laid.network_bytes_per_s)
    step = streams_step(laid.model, laid.layout, laid.kind(table), links)
    devices = min(laid.run.gpus, laid.sheet.host.devices)
    return with_host(step, laid.model, laid.layout, host_of(laid.sheet, laid.sheet.host.devices, table), devices)


def interval(laid: LaidRun, table: EfficiencyTable) -> tuple[float, float, tuple[str, ...]]:
    """Compute the interval that is meant to hold a run's measured step. Returns its lower and upper end as factors of the
    predicted step (such as 0.9 and 1.2), and texts about efficiencies that were taken from another kind of device.

    The width follows from what the run has in common with the measured runs that the efficiencies were fitted to (with a table
    that does not state them, from the error of the matrix multiplications' efficiency), and from the fields that the run does
    not specify. laid: the run, with assumed values for everything that it does not specify. table: efficiencies (shares of
    their peak rates that kernels and links reach).
    """
    kind = laid.kind(table)
    product = kind.reached("matrix-product", laid.layout.rate)
    assert product is not None
    borrowed = tuple(
        f"{efficiency.kernel} in {efficiency.precision or 'any precision'}: {efficiency.origin_for(laid.sheet.name)}"
        for efficiency in kind.efficiencies
        if efficiency.precision in (laid.layout.rate, laid.layout.base, None) and efficiency.device != laid.sheet.name
    )
    left_open = ASSUMED_ERROR * sqrt(sum(name in laid.assumed for name in DECISIVE))
    error = table.step_error(laid.name, laid.run.gpus, laid.layout.rate, framework_name(laid), left_open)
    if error is None or laid.efficiencies is not None:  # corrected ones have the error of the own runs
        error = hypot(product.error, left_open)
    error += ISSUE_ERROR * bool(laid.layout.framework.issue_ns)
    if is_mixture(laid.run):
        error = hypot(error, MIXTURE_ERROR)
    return 1 / (1 + error), 1 + error, borrowed


def framework_name(laid: LaidRun) -> str:
    """The cost model's name of a run's framework, such as "PyTorch FSDP", without its variants. laid: the run, with assumed
    values for everything that it does not specify.
    """
    return laid.layout.framework.name.partition(",")[0]
