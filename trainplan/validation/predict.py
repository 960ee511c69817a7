"""Predictions of measured runs under the cost model `streams`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from trainplan.formulations.streams.links import Links
from trainplan.formulations.streams.memory import run_memory
from trainplan.formulations.streams.step import StreamsStep, streams_step
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.clusters.efficiencies import EfficiencyTable, shipped_efficiencies
from trainplan.profiling.clusters.kinds import VISIBLE, device_kind
from trainplan.validation.layouts import LaidRun, laid_run
from trainplan.validation.rows import Run

GIB = 2**30
MEMORY_ERROR = 0.05  # of peaks: what is larger than the memory by no more than that is not called infeasible


@dataclass(frozen=True)
class Prediction:
    """Of one run: the step with the interval that is meant to hold 80 % of measured steps, the peak of the fullest device (or
    of the last rank, where the row measured that), and whether all devices have so much; or what cannot be predicted of it."""

    run: Run
    step_s: float | None = None
    step_low_s: float | None = None
    step_high_s: float | None = None
    peak_gib: float | None = None
    fits: bool | None = None
    cannot: str = ""
    laid: LaidRun | None = None
    step: StreamsStep | None = None
    borrowed: Sequence[str] = ()

    @property
    def error(self) -> float | None:
        """Predicted over measured step, less 1."""
        return None if not self.run.step_s or self.step_s is None else self.step_s / self.run.step_s - 1

    @property
    def memory_error(self) -> float | None:
        """Predicted over measured peak, less 1."""
        return None if not self.run.mem_gib or self.peak_gib is None else self.peak_gib / self.run.mem_gib - 1

    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints of it."""
        names = ("step_s", "step_low_s", "step_high_s", "peak_gib", "fits", "cannot")
        return {"id": self.run.id} | {name: getattr(self, name) for name in names}


def predict_runs(runs: Iterable[Run], table: EfficiencyTable | None = None) -> list[Prediction]:
    """A prediction of each run; what cannot be predicted says why."""
    table = table or shipped_efficiencies()
    return [predict_run(run, table) for run in runs]


def predict_run(run: Run, table: EfficiencyTable) -> Prediction:
    """The prediction of one run."""
    try:
        laid = laid_run(run)
    except InputError as error:
        return Prediction(run, cannot=f"{error.field} {error.problem}")
    return predict_laid(laid, table)


def predict_laid(laid: LaidRun, table: EfficiencyTable) -> Prediction:
    """The prediction of a run that is laid out."""
    run, step = laid.run, step_of(laid, table)
    seconds = step.step_ns / 1e9
    low, high, borrowed = interval(laid, table)
    memory = run_memory(laid.model, laid.layout)
    most = max(each.peak_bytes for each in memory)
    peak = memory[-1].peak_bytes if "last rank" in (run.note or "") else most
    visible = laid.sheet.visible_bytes or laid.sheet.memory_bytes * VISIBLE
    return Prediction(
        run,
        step_s=seconds,
        step_low_s=seconds * low,
        step_high_s=seconds * high,
        peak_gib=peak / GIB,
        fits=most <= visible * (1 + MEMORY_ERROR),
        laid=laid,
        step=step,
        borrowed=borrowed,
    )


def step_of(laid: LaidRun, table: EfficiencyTable) -> StreamsStep:
    """The step of a run with these efficiencies."""
    links = Links.of(laid.sheet, table, laid.run.gpus, laid.network_bytes_per_s)
    return streams_step(laid.model, laid.layout, device_kind(laid.name, table), links)


def interval(laid: LaidRun, table: EfficiencyTable) -> tuple[float, float, tuple[str, ...]]:
    """The ends of the interval over the prediction, by the error of the products' efficiency; and which efficiencies are those
    of another kind of device."""
    kind = device_kind(laid.name, table)
    product = kind.reached("matrix-product", laid.layout.precision)
    assert product is not None
    borrowed = tuple(
        f"{each.kernel} in {each.precision or 'any precision'}: {each.origin_for(laid.sheet.name)}"
        for each in kind.efficiencies
        if each.precision in (laid.layout.precision, laid.layout.base, None) and each.device != laid.sheet.name
    )
    return 1 / (1 + product.error), 1 + product.error, borrowed
