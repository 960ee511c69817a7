"""Memory-switches instances: from a model and a cluster, from a profile, or from a file of H3T's published code."""

from __future__ import annotations

import os
from typing import get_args

from trainplan.formulations.memory_switches import costs, published
from trainplan.formulations.memory_switches.problem import Instance, Synchronisation
from trainplan.inputs import FilePath, batch_of, cluster_of, leave_out, memory_of, model_of, origin_of, profile_of
from trainplan.planning import runs
from trainplan.profiling.base.errors import InputError, shown
from trainplan.profiling.base.files import read_data
from trainplan.profiling.base.processes import Report
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.imports import h3t
from trainplan.profiling.imports.source import Source
from trainplan.profiling.models.model import Model
from trainplan.profiling.obtain import obtain_profile
from trainplan.profiling.profiles import Profile


def switches_of(
    model: str | os.PathLike[str] | Model | None,
    cluster: FilePath | Cluster | None,
    batch: int | None,
    memory: str | int | None,
    sequence: int | None,
    dtype: str | None,
    profile: FilePath | Profile | None,
    *,
    synchronisation: str,
    offload_needs_ckpt: bool,
    by_unit: bool,
    measured: bool,
    measuring: Report | None,
) -> Instance:
    """From a model and a cluster, from a profile, or from a file of H3T's published code. Raises InputError."""
    source = _h3t_file(profile)
    if source is not None:
        given_options = {
            "--model": model,
            "--cluster": cluster,
            "--batch": batch,
            "--sequence": sequence,
            "--dtype": dtype,
            "--granularity": "unit" if by_unit else None,
            "--measure": measured or None,
        }
        leave_out(given_options, "an H3T file has its own layers, of its own batch")
        if memory is None:
            raise InputError("command line", "--memory", "is missing", "give it, such as 8GiB: an H3T file has none")
        return published.build(
            source,
            memory_of(memory, 0),
            synchronisation=synchronisation_of(synchronisation),
            offload_needs_ckpt=offload_needs_ckpt,
        )
    given = profile_of(profile)
    the_model = None if model is None else model_of(model, sequence, dtype, given)
    if the_model is not None and runs(the_model):
        the_model = the_model.fused()
    the_cluster = None if cluster is None else cluster_of(cluster)
    origin = origin_of(the_model, the_cluster, given, sequence, dtype)
    made, _ = switch_instance(
        the_model,
        the_cluster,
        batch_of(batch),
        memory_bytes=memory_of(memory, origin.memory_bytes),
        synchronisation=synchronisation,
        offload_needs_ckpt=offload_needs_ckpt,
        by_unit=by_unit,
        profile=given,
        measured=measured,
        measuring=measuring,
    )
    return made


def _h3t_file(profile: FilePath | Profile | None) -> Source | None:
    """The profile, where it is a file of H3T's published code. Raises InputError where it cannot be read."""
    if not isinstance(profile, str | os.PathLike):
        return None
    data = read_data(profile)
    return Source(os.fspath(profile), data) if isinstance(data, dict) and h3t.recognises(data) else None


def switch_instance(
    model: Model | None,
    cluster: Cluster | None,
    batch: int,
    *,
    memory_bytes: int | None = None,
    synchronisation: str = "forced",
    offload_needs_ckpt: bool = True,
    by_unit: bool = True,
    profile: Profile | None = None,
    measured: bool = False,
    measuring: Report | None = None,
) -> tuple[Instance, Profile]:
    """The memory-switches problem of a step of so many samples, and the profile that it is made from.

    memory_bytes: of one device (default: the cluster's, or the profile's). by_unit: decide for each sub-layer, as plans do.
    A profile may stand in for model and cluster. Raises InputError.
    """
    origin = cluster or profile
    assert origin is not None
    if batch < 1:
        raise InputError("command line", "--batch", f"is {batch}", "give at least 1 sample")
    rows = costs.rows_of(batch, origin.devices)
    found = obtain_profile(
        model, cluster, [rows], [1], devices=origin.devices, earlier=profile, measured=measured, progress=measuring
    )
    made = costs.build(
        found,
        batch,
        memory_bytes or origin.memory_bytes,
        synchronisation=synchronisation_of(synchronisation),
        offload_needs_ckpt=offload_needs_ckpt,
        by_unit=by_unit,
        name=f"{found.name} on {found.cluster}",
    )
    return made, found


def synchronisation_of(name: str) -> Synchronisation:
    """Raises InputError."""
    known: tuple[Synchronisation, ...] = get_args(Synchronisation)
    for one in known:
        if one == name:
            return one
    raise InputError("command line", "--synchronisation", f"is {shown(name)}", f"give {' or '.join(known)}")
