"""Numbers to plan with: profiles estimated, measured and imported, and the machine at hand; and the errors of predictions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainplan.inputs import cluster_of, model_of
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import FilePath
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.clusters.detect.machine import detect
from trainplan.profiling.estimate import estimate_shapes
from trainplan.profiling.imports import import_profile
from trainplan.profiling.models.model import Model
from trainplan.profiling.profiles import Profile
from trainplan.validation.predict import Predictions, predict_runs
from trainplan.validation.rows import load_runs

__all__ = ["detect", "import_profile", "profile", "validate"]


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
