"""Where the profile to plan with comes from: an earlier file, measurements on this machine, or estimates."""

from __future__ import annotations

from collections.abc import Sequence

from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.progress import Report
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.models.model import Model
from trainplan.profiling.profiles import Profile


def obtain_profile(
    model: Model | None,
    cluster: Cluster | None,
    sizes: Sequence[int],
    groups: Sequence[int],
    *,
    devices: int,
    degrees: Sequence[int] | None = None,
    earlier: Profile | None = None,
    measured: bool = False,
    progress: Report | None = None,
) -> Profile:
    """The profile to plan with: the earlier one if given, else measured on this machine if `measured`, else estimated. Numbers
    that an earlier or measured profile lacks are completed from those that it has.

    Args:
        model, cluster: None if the earlier profile is used as it is; else they must be those that it was taken of.
        sizes: samples of a micro-batch.
        groups: numbers of devices of a stage.
        devices: number of devices that the profile is for.
        degrees: of tensor parallelism; by default all powers of two that the model can be split into.

    Raises InputError.
    """
    # Planning from a file estimates nothing, and only some requests measure: modules are imported where they are used.
    from trainplan.profiling.interpolate import for_shapes

    group = max(groups)
    if earlier is not None:
        if model is not None:
            _check_model(earlier, model)
        if cluster is not None:
            _check_cluster(earlier, cluster)
        degrees = degrees or (earlier.described_model or earlier).tp_degrees(group)
        return for_shapes(earlier, devices, _shapes(degrees, groups, sizes))
    assert model is not None and cluster is not None
    shapes = _shapes(degrees or model.tp_degrees(group), groups, sizes)
    if not measured:
        from trainplan.profiling.estimate import estimate_shapes

        return estimate_shapes(model, cluster, shapes, devices)
    from trainplan.profiling.measure.measure import measure

    rows = {tp: [r for t, r in shapes if t == tp] for tp, _ in shapes}
    ends = sorted({(tp, r) for tp, sizes_of_tp in rows.items() for r in (min(sizes_of_tp), max(sizes_of_tp))})
    return for_shapes(measure(model, cluster, ends, progress=progress), devices, shapes)


def _shapes(degrees: Sequence[int], groups: Sequence[int], sizes: Sequence[int]) -> list[tuple[int, int]]:
    """The result of `shapes_needed`. Raises InputError if it is empty."""
    shapes = shapes_needed(degrees, groups, sizes)
    if not shapes:
        fix = f"give a multiple of {max(groups) // max(degrees)}"
        raise InputError("command line", "--batch", f"gives micro-batches of {max(sizes)} samples, which nothing divides", fix)
    return shapes


def _check_model(earlier: Profile, model: Model) -> None:
    """Raise InputError if the profile is not of this model, dtype and sequence length."""
    if earlier.dtype != model.dtype:
        raise InputError("profile", "dtype", f"is {earlier.dtype!r}", f"measure for {model.dtype!r}")
    profiled = earlier.described_model
    if profiled is None:
        problem = f"is {earlier.name!r}, imported, whose sub-layers are not those of {model.name!r}"
        raise InputError("profile", "name", problem, "leave --model out and build from the profile alone")
    if profiled.digest != model.digest:
        raise InputError("profile", "model", f"is {profiled.name!r}", f"give a profile of {model.name!r}")
    if profiled.tokens != model.tokens:
        raise InputError("profile", "model.sequence", f"is {profiled.tokens}", f"measure for {model.tokens}")


def _check_cluster(earlier: Profile, cluster: Cluster) -> None:
    """Raise InputError if the profile is of another cluster: its times and links are those of its own."""
    kinds, profiled_kinds = {kind.name for kind in cluster.used_kinds}, {kind.name for kind in earlier.device_kinds}
    if earlier.cluster != cluster.name or (profiled_kinds and kinds != profiled_kinds):
        fix = f"give a profile of {cluster.name!r}, or leave --cluster out"
        raise InputError("profile", "cluster", f"is {earlier.cluster!r}, of {', '.join(earlier.kinds)}", fix)


def shapes_needed(degrees: Sequence[int], groups: Sequence[int], sizes: Sequence[int]) -> list[tuple[int, int]]:
    """All (tensor-parallel degree, rows on one device) that can occur with stages of these numbers of devices and
    micro-batches of these sizes (in samples)."""
    splits = {(tp, group // tp) for group in groups for tp in degrees if group % tp == 0}
    return sorted({(tp, size // data) for tp, data in splits for size in sizes if size % data == 0})
