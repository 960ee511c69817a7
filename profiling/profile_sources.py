"""Obtain the profile to plan with: from an earlier file, by measurements on this machine, or by estimates."""

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
    """Obtain the profile to plan with: `earlier` if given, else a new one, measured on this machine if `measured`, else
    estimated. Numbers that an earlier or measured profile lacks are computed from those that it has.

    Args:
        model, cluster: None if the earlier profile is used as it is; otherwise they must equal those that it was taken of.
        sizes: the possible numbers of samples per micro-batch.
        groups: the possible numbers of devices per pipeline stage.
        devices: number of devices that the profile is for.
        degrees: degrees of tensor parallelism; None for all powers of two that the model can be split into.
        earlier: a profile of an earlier run; None for a new one.
        measured: whether a new profile is measured, not estimated.
        progress: called with progress events while measuring.

    Raises InputError if the profile cannot be obtained, or does not match the model or cluster.
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
    """List all pairs of a tensor-parallel degree and a number of rows (samples on one device) that plans can need, sorted.

    degrees: tensor-parallel degrees. groups: numbers of devices per pipeline stage. sizes: samples per micro-batch. Raises
    InputError if there are no such pairs.
    """
    shapes = shapes_needed(degrees, groups, sizes)
    if not shapes:
        fix = f"give a multiple of {max(groups) // max(degrees)}"
        raise InputError("command line", "--batch", f"gives micro-batches of {max(sizes)} samples, which nothing divides", fix)
    return shapes


def _check_model(earlier: Profile, model: Model) -> None:
    """Raise InputError if an earlier profile was taken of a model other than `model`, or with another dtype or sequence
    length.
    """
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
    """Raise InputError if an earlier profile was taken of another cluster than `cluster`, whose times and links would
    differ.
    """
    kinds, profiled_kinds = {kind.name for kind in cluster.used_kinds}, {kind.name for kind in earlier.device_kinds}
    if earlier.cluster != cluster.name or (profiled_kinds and kinds != profiled_kinds):
        fix = f"give a profile of {cluster.name!r}, or leave --cluster out"
        raise InputError("profile", "cluster", f"is {earlier.cluster!r}, of {', '.join(earlier.kinds)}", fix)


def shapes_needed(degrees: Sequence[int], groups: Sequence[int], sizes: Sequence[int]) -> list[tuple[int, int]]:
    """List all pairs of a tensor-parallel degree and a number of rows (samples on one device) that can occur in plans, sorted;
    empty if no degree divides a group, or no data-parallel degree the samples.

    degrees: tensor-parallel degrees. groups: numbers of devices per pipeline stage. sizes: samples per micro-batch on all
    devices of a stage.
    """
    splits = {(tp, group // tp) for group in groups for tp in degrees if group % tp == 0}
    return sorted({(tp, size // data) for tp, data in splits for size in sizes if size % data == 0})
