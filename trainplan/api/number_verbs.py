"""Numbers to plan with: profiles estimated, measured and imported, and the machine at hand; and the errors of predictions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from trainplan.imported_runs.assess import JudgedRun
from trainplan.inputs import cluster_of, model_of
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import FilePath, write_whole
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.clusters.detect.machine import detect
from trainplan.profiling.clusters.efficiencies import shipped_efficiencies
from trainplan.profiling.clusters.own_runs import OwnRun
from trainplan.profiling.estimate import estimate_shapes
from trainplan.profiling.imports import import_profile
from trainplan.profiling.models.model import Model
from trainplan.profiling.profiles import Profile
from trainplan.validation.calibrate import table_text
from trainplan.validation.layouts import LaidRun
from trainplan.validation.own_runs import Calibration, calibration, earlier_runs, own_run
from trainplan.validation.predict import Prediction, Predictions, predict_runs
from trainplan.validation.rows import UNMOVED, load_runs

__all__ = ["calibrate", "detect", "import_profile", "profile", "validate"]


def profile(
    *,
    model: FilePath | Model,
    cluster: FilePath | Cluster,
    rows: Sequence[int] = (1, 2, 4),
    tp: Sequence[int] | None = None,
    sequence: int | None = None,
    dtype: str | None = None,
    measured: bool = False,
    device: str = "cpu",
    budget_seconds: float = 60,
    spread: float = 0.05,
    journal: FilePath | None = None,
    seed: int = 0,
    progress: Callable[[dict[str, Any]], None] | None = None,
) -> Profile:
    """The profile of a model on a cluster for some numbers of samples and tensor-parallel degrees.

    Args:
        model: a name, a config.json or a Model.
        cluster: a name, a file or a Cluster.
        rows: numbers of samples on one device.
        tp: tensor-parallel degrees (default: all up to 8 that the model and the cluster allow).
        sequence: tokens of a sample (default: the longest that the model allows).
        dtype: the model's, such as "bf16" (default: the config's, else half precision).
        measured: measure the profile on this machine, rather than estimate it from shapes.
        device: the devices to measure on: cpu (local processes) or cuda (this machine's GPUs).
        budget_seconds: seconds for all repetitions together.
        spread: repeat until a time's spread is below this share.
        journal: a file that keeps finished parts, so that they are not measured again.
        seed: the seed of the data to measure with.
        progress: called with a dict for each shape that is measured, such as {"shape": "...", "done": 3, "of": 40}.

    Returns:
        The profile.

    Raises:
        InputError: for tensor-parallel degrees that the model or the cluster does not allow, or bad numbers of samples.
    """
    the_cluster = cluster_of(cluster)
    the_model = model_of(model, sequence, dtype, cluster=the_cluster)
    possible = the_model.tp_degrees(min(the_cluster.devices, 2**10))
    degrees = [degree for degree in possible if degree <= 8] if tp is None else list(tp)
    for degree in degrees:
        if degree not in possible:
            raise InputError("command line", "--tp", f"is {degree}", f"give degrees among {', '.join(map(str, possible))}")
    if not rows or min(rows) < 1 or max(rows) > 2**20:
        raise InputError("command line", "--rows", f"is {list(rows)}", "give whole numbers from 1, such as 1,2,4")
    shapes = [(degree, count) for degree in degrees for count in sorted(set(rows))]
    if measured:
        from trainplan.profiling.measure.measure import measure

        settings = {"device": device, "budget_seconds": budget_seconds, "spread": spread, "seed": seed}
        return measure(the_model, the_cluster, shapes, journal=journal, progress=progress, **settings)  # type: ignore[arg-type]
    return estimate_shapes(the_model, the_cluster, shapes)


def calibrate(
    runs: FilePath | Sequence[Mapping[str, Any]] | JudgedRun | Sequence[JudgedRun],
    *,
    calibrated: FilePath | None = None,
    write: bool = True,
) -> Calibration:
    """Efficiencies corrected by two or three short runs on one's own cluster, with the errors of predictions before and after.

    Few numbers are corrected: one factor of all matrix multiplications, and one of each level of links whose share of the step
    differs among the runs; the errors of the shipped efficiencies are their prior. `plan` takes the file as its `calibrated`.

    Args:
        runs: a JSON list of measured runs, or its file, as `validate` takes it; or what `import_run` returns for logs.
        calibrated: the file to write. Runs that it has already stay in it, unless they have the name of a new one. None writes
            nothing.
        write: also write the file; otherwise its runs only count.

    Returns:
        The corrected efficiencies in `table`, factors and errors, with `frame()`.

    Raises:
        InputError: for runs without a measured step or of several kinds of device, and for a file that has something else.
    """
    if isinstance(runs, JudgedRun):
        runs = [runs]
    listed = runs if isinstance(runs, Sequence) and not isinstance(runs, str) else ()
    judged = [run for run in listed if isinstance(run, JudgedRun)]
    if judged:
        own = [own_run_of(run) for run in judged]
    else:
        predictions = predict_runs(load_runs(runs))  # type: ignore[arg-type]
        own = own_runs_of(predictions)
    if not own:
        where = "runs" if isinstance(runs, Sequence) and not isinstance(runs, str) else str(runs)
        problem = "is in no row that can be predicted and compared"
        raise InputError(where, "step_s", problem, 'give rows with a measured step, such as "step_s": 5.2')
    name = "own runs" if calibrated is None else Path(calibrated).name
    earlier = [] if calibrated is None else earlier_runs(calibrated)
    found = calibration(shipped_efficiencies(), [*earlier, *own], name)
    new = {run.id for run in own}
    replaced = [f"replaces run {run.id}, measured before at {run.measured_s:.4g} s" for run in earlier if run.id in new]
    found = replace(found, remarks=(*replaced, *found.remarks))
    if calibrated is not None and write:
        write_whole(Path(calibrated), table_text(found.table))
    return found


def own_run_of(judged: JudgedRun) -> OwnRun:
    """The measured step of a run that was read from its log, as a correction of efficiencies takes it. judged: the run. Raises
    InputError if its file states no step, or if its runtime is not predicted.
    """
    where = judged.configuration.where
    if judged.logged is None:
        raise InputError(where, "", "states no measured step", "give the log of a run, as the runtime prints it")
    if isinstance(judged.framework, str):
        raise InputError(where, "", f"is of a run that is not predicted: {judged.framework}", "give the log of another run")
    laid = judged.framework.laid
    assert laid is not None
    return own_run(laid, judged.logged.step_s, shipped_efficiencies()).changed(id=_named(where, laid))


def _named(where: str, laid: LaidRun) -> str:
    """A name of a run that was read from a file which tells it apart from runs of files of that name: the file with its folder,
    and a digest of what is trained and how, such as "run4/launch.sh#3f9a1c". where: the file's path, or words for none.
    """
    path = Path(where)
    file = f"{path.resolve().parent.name}/{path.name}" if path.exists() else where
    trained = (laid.model.total_parameters, len(laid.model.units), laid.model.tokens, laid.model.dtype)
    configured = {name: value for name, value in laid.run.model_dump(exclude_none=True).items() if name not in UNMOVED}
    return f"{file}#{sha256(repr((trained, sorted(configured.items()))).encode()).hexdigest()[:6]}"


def own_runs_of(predictions: Sequence[Prediction]) -> list[OwnRun]:
    """The measured steps of predicted runs, as a correction of efficiencies takes them; runs that cannot be predicted, or that
    have no measured step, are left out.
    """
    table = shipped_efficiencies()
    return [
        own_run(prediction.laid, prediction.measured_s, table)
        for prediction in predictions
        if prediction.laid is not None and prediction.measured_s is not None
    ]


def validate(runs: FilePath | Sequence[Mapping[str, Any]]) -> Predictions:
    """Predictions of measured runs at their given layouts, by the cost model `streams`, compared with their measurements.

    Args:
        runs: a JSON list, or its file. Each run has id, model, gpu, gpus, its layout (such as seq, gbs, mbs, tp, pp, zero), and
            its measurements: step_s in seconds, or tokens_s_gpu, tflops_gpu or mfu, of one device; mem_gib; oom.

    Returns:
        A list of predictions, with `frame()` and `picture()`; a run that cannot be predicted has the reason.

    Raises:
        InputError: for a file that is no list of runs.
    """
    return predict_runs(load_runs(runs))
