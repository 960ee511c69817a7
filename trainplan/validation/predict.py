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
from trainplan.profiling.clusters.kinds import device_kind
from trainplan.profiling.clusters.nodes import host_of
from trainplan.tabular import Tabular
from trainplan.validation.alongside import LAST
from trainplan.validation.fitting import close, limit_bytes
from trainplan.validation.layouts import LaidRun, laid_run
from trainplan.validation.measured import NOTHING_HELD, Held, Measured, held_against, verdict
from trainplan.validation.rows import Run
from trainplan.validation.words import SHARD

GIB = 2**30
MOST_IDS = 4  # that a note lists
ISSUE_ERROR = 0.15  # added to that of a step which is the host's
ASSUMED_ERROR = 0.1  # of each of what decides most of a step, where a row leaves it open; errors add up as squares
CLOSE = {True: "close: may not fit", False: "no, but close"}  # by whether it fits
ALWAYS_OTHER = ("vocab",)  # padded, as frameworks do
DECISIVE = ("framework", "recompute", "zero", SHARD, "mbs")  # of the step, so that its interval is wider
OPEN = ("framework", "precision", "recompute", "zero", SHARD, "gbs", "mbs", "seq")  # what is said of a row that leaves it open
UNDECIDED = {"framework", "recompute", "mbs"}  # by which memory is nobody's in particular where a row leaves all of them open


@in_one_line
@dataclass(frozen=True)
class Prediction:
    """Of one run: the step with the interval that is meant to hold 80 % of measured steps, the peak of the fullest device (or
    of the last rank, where the row measured that), and whether all devices have so much; or what cannot be predicted of it.
    close: the peak is so near to what there is that its error decides. memory: of the fullest device, by what it is of."""

    run: Run
    step_s: float | None = None
    step_low_s: float | None = None
    step_high_s: float | None = None
    peak_gib: float | None = None
    fits: bool | None = None
    close: bool = False
    memory: RunMemory | None = None
    cannot: str = ""
    laid: LaidRun | None = None
    step: StreamsStep | None = None
    borrowed: Sequence[str] = ()
    held: Held = NOTHING_HELD

    @property
    def measured(self) -> tuple[Measured, ...]:
        """The measured steps, by the fields that say them; the first counts."""
        return self.held.steps

    @property
    def measured_s(self) -> float | None:
        """The measured step, in seconds or made of tokens/s, samples/s, TFLOP/s, MFU or HFU; None where none is, or none that
        may be compared."""
        return self.measured[0].step_s if self.measured else None

    @property
    def error(self) -> float | None:
        """Predicted over measured step, less 1."""
        return None if self.measured_s is None or self.step_s is None else self.step_s / self.measured_s - 1

    @property
    def memory_error(self) -> float | None:
        """Predicted over measured peak, less 1."""
        return None if self.held.peak_gib is None or self.peak_gib is None else self.peak_gib / self.held.peak_gib - 1

    @property
    def left_open(self) -> dict[str, str]:
        """What the row leaves open of what decides its step and its memory, and what is taken for it."""
        assumed = {} if self.laid is None else self.laid.assumed
        return {name: assumed[name] for name in OPEN if name in assumed and not getattr(self.run, name, None)}

    @property
    def as_taken(self) -> bool:
        """Whether the row leaves open so much that whether it fits is that of what is taken for it alone."""
        return self.left_open.keys() >= UNDECIDED

    @property
    def remarks(self) -> list[str]:
        """What of the row is not taken as it stands, is compared with nothing or contradicts the rest, and what of its memory
        contradicts the verdict."""
        if self.laid is None or self.peak_gib is None:
            return []
        contradicted = verdict(self.laid, self.peak_gib * GIB, self.fits is not False)
        taken = (
            f"{name} {_written(getattr(self.run, name))} is taken as {value.removeprefix('as ')}"
            for name, value in self.laid.assumed.items()
            if getattr(self.run, name, None) is not None and name not in ALWAYS_OTHER
        )
        return [*taken, *self.held.remarks, *([contradicted] if contradicted else [])]

    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints of it."""
        names = ("step_s", "step_low_s", "step_high_s", "peak_gib", "fits", "close", "as_taken", "cannot")
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
        """A dict for each run: run (its id), source, model, devices, layout and precision in words; measured_ns, predicted_ns
        with the interval low_ns to high_ns that is meant to hold 80 % of measured steps, and error, predicted over measured
        less 1; peak_bytes, measured_peak_bytes and memory_error; fits and close; cannot, why there is no prediction, or
        nothing."""
        return [_row(each) for each in self]

    def cells(self) -> list[list[str]]:
        """The fields with headings, row by row; where the error of a peak decides whether it fits, or what is taken for what a
        row leaves open, a word says so."""
        index = list(self.headings).index("fits")
        return [
            [*row[:index], _verdict(each, row[index]), *row[index + 1 :]]
            for each, row in zip(self, super().cells(), strict=True)
        ]

    def notes(self) -> list[str]:
        """What cannot be predicted, and which efficiencies are those of another kind of device."""
        cannot = [f"{each.run.id} ({each.run.model}) cannot be predicted: {each.cannot}" for each in self if each.cannot]
        borrowed = dict.fromkeys(f"{each.laid.sheet.name}, {text}" for each in self if each.laid for text in each.borrowed)
        ids_by_text: dict[str, list[str]] = {}
        for each in self:
            for text in _of_row(each):
                ids_by_text.setdefault(text, []).append(each.run.id)
        return [*cannot, *(f"{_listed(ids)}: {text}" for text, ids in ids_by_text.items()), *borrowed]


def _verdict(each: Prediction, fits: str) -> str:
    """Whether a row fits, in words. fits: yes or no, as tables have it."""
    return (CLOSE[bool(each.fits)] if each.close else fits) + ", if as taken" * (each.as_taken and each.fits is not None)


def _listed(ids: Sequence[str]) -> str:
    """Ids of rows, the first few of many."""
    more = len(ids) - MOST_IDS
    return ", ".join(ids[:MOST_IDS]) + (f" and {more} more" if more > 0 else "")


def _of_row(each: Prediction) -> Iterator[str]:
    """How a row's step is made of what it says, and what is to be said of it otherwise."""
    if each.measured and each.measured[0].by != "step_s":
        first = each.measured[0]
        value = getattr(each.run, first.by)
        yield f"its measured step is of {first.by} {value:g}" + (f": {first.counted}" if first.counted else "")
    yield from each.remarks
    if each.left_open:
        yield f"leaves open {', '.join(f'{name} ({value})' for name, value in each.left_open.items())}"
    if each.laid is not None and LAST in each.laid.assumed:
        yield f"{LAST}: {each.laid.assumed[LAST]}"


def _written(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _row(each: Prediction) -> dict[str, Any]:
    run, laid = each.run, each.laid
    return {
        "run": run.id,
        "source": run.source,
        "model": run.model,
        "devices": f"{run.gpus} {run.gpu if laid is None else laid.name}",
        "layout": None if laid is None else _layout_text(laid),
        "measured_ns": _scaled(each.measured_s, 1e9),
        "predicted_ns": _scaled(each.step_s, 1e9),
        "low_ns": _scaled(each.step_low_s, 1e9),
        "high_ns": _scaled(each.step_high_s, 1e9),
        "error": each.error,
        "peak_bytes": _scaled(each.peak_gib, GIB),
        "measured_peak_bytes": _scaled(each.held.peak_gib, GIB),
        "memory_error": each.memory_error,
        "fits": each.fits,
        "close": each.close,
        "cannot": each.cannot,
    }


def _scaled(value: float | None, scale: float) -> int | None:
    return None if value is None else round(value * scale)


def _layout_text(laid: LaidRun) -> str:
    layout = laid.layout
    degrees = {"dp": layout.dp, "tp": layout.tp, "pp": layout.pp, "vpp": layout.chunks, "cp": layout.cp}
    words = [f"{name}{degree}" for name, degree in degrees.items() if degree > 1] or ["single"]
    words[-1] += HEADS_WORD * layout.exchanges_heads
    shared = [f"hsdp {layout.dp // layout.shard}x{layout.shard}"] * (layout.zero > 0 and layout.shard < layout.dp)
    host = [f"{name} on host" for name in sorted(layout.on_host)]
    return " ".join([*words, f"zero{layout.zero}", *shared, f"mbs{layout.micro}", f"gbs{layout.batch}", laid.products, *host])


def predict_runs(runs: Iterable[Run], table: EfficiencyTable | None = None) -> Predictions:
    """A prediction of each run; what cannot be predicted says why."""
    table = table or shipped_efficiencies()
    return Predictions(predict_run(run, table) for run in runs)


def predict_run(run: Run, table: EfficiencyTable) -> Prediction:
    """The prediction of one run."""
    try:
        laid = laid_run(run)
    except InputError as error:
        return Prediction(run, cannot=f"{error.field} {error.problem}; {error.fix}")
    return predict_laid(laid, table)


def predict_laid(laid: LaidRun, table: EfficiencyTable) -> Prediction:
    """The prediction of a run that is laid out."""
    run, step = laid.run, step_of(laid, table)
    seconds = step.step_ns / 1e9
    low, high, borrowed = interval(laid, table)
    memory = run_memory(laid.model, laid.layout)
    fullest, limit = max(memory, key=lambda each: each.peak_bytes), limit_bytes(laid.sheet)
    most = fullest.peak_bytes
    peak = memory[-1].peak_bytes if "last rank" in (run.note or "") else most
    return Prediction(
        run,
        step_s=seconds,
        step_low_s=seconds * low,
        step_high_s=seconds * high,
        peak_gib=peak / GIB,
        fits=most <= limit,
        close=close(most, limit),
        memory=fullest,
        laid=laid,
        step=step,
        borrowed=borrowed,
        held=held_against(laid, seconds, peak),
    )


def step_of(laid: LaidRun, table: EfficiencyTable) -> StreamsStep:
    """The step of a run with these efficiencies."""
    links = laid.links or Links.of(laid.sheet, table, laid.run.gpus, laid.network_bytes_per_s)
    step = streams_step(laid.model, laid.layout, device_kind(laid.name, table), links)
    devices = min(laid.run.gpus, laid.sheet.host.devices)
    return with_host(step, laid.model, laid.layout, host_of(laid.sheet, laid.sheet.host.devices, table), devices)


def interval(laid: LaidRun, table: EfficiencyTable) -> tuple[float, float, tuple[str, ...]]:
    """The ends of the interval over the prediction, by the error of the products' efficiency and by what the row leaves open;
    and which efficiencies are those of another kind of device."""
    kind = device_kind(laid.name, table)
    product = kind.reached("matrix-product", laid.layout.rate)
    assert product is not None
    borrowed = tuple(
        f"{efficiency.kernel} in {efficiency.precision or 'any precision'}: {efficiency.origin_for(laid.sheet.name)}"
        for efficiency in kind.efficiencies
        if efficiency.precision in (laid.layout.rate, laid.layout.base, None) and efficiency.device != laid.sheet.name
    )
    left_open = sum(name in laid.assumed for name in DECISIVE)
    error = hypot(product.error, ASSUMED_ERROR * sqrt(left_open)) + ISSUE_ERROR * bool(laid.layout.framework.issue_ns)
    return 1 / (1 + error), 1 + error, borrowed
