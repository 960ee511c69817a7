"""What users name, as what it names: models, clusters, bytes of memory; and options that do not go together."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from trainplan.profiling.base.errors import InputError, shown
from trainplan.profiling.base.quantities import parse_bytes
from trainplan.profiling.clusters.cluster import Cluster, load_cluster
from trainplan.profiling.models.model import Model, load_model
from trainplan.profiling.profiles import Profile, load_profile

FilePath = str | os.PathLike[str]


def model_of(
    model: str | os.PathLike[str] | Model, sequence: int | None, dtype: str | None, given: Profile | None = None
) -> Model:
    """As asked for; sequence and dtype left out are those of the profile, where one is given."""
    if isinstance(model, Model):
        return model
    if given is not None:
        dtype = dtype or given.dtype
        sequence = (given.model or {}).get("sequence") if sequence is None else sequence
    return load_model(model, sequence, dtype or "float32")


def cluster_of(cluster: FilePath | Cluster) -> Cluster:
    """A cluster by name or file. Raises InputError."""
    return cluster if isinstance(cluster, Cluster) else load_cluster(cluster)


def profile_of(profile: FilePath | Profile | None) -> Profile | None:
    """A profile by file. Raises InputError."""
    return load_profile(profile) if isinstance(profile, str | os.PathLike) else profile


def memory_of(memory: str | int | None, default: int) -> int:
    """Bytes of one device. Raises InputError."""
    if memory is None:
        return default
    size = parse_bytes(memory) if isinstance(memory, str) else memory
    if not 0 < size <= 2**48:
        raise InputError("command line", "--memory", f"is {size} bytes", "give more than 0 and at most 256TiB, such as 8GiB")
    return size


def origin_of(
    model: Model | None, cluster: Cluster | None, given: Profile | None, sequence: int | None, dtype: str | None
) -> Cluster | Profile:
    """Where devices and memory come from. Raises InputError where neither model and cluster nor a profile are given."""
    for option, value in (("--model", model), ("--cluster", cluster)):
        if value is None and given is None:
            raise InputError("command line", option, "is missing", "give it, or a --profile")
    if model is None and given is not None:
        if sequence is not None:
            raise InputError("command line", "--sequence", f"is {sequence}", "leave it out: the profile has its own")
        if dtype not in (None, given.dtype):
            raise InputError("command line", "--dtype", f"is {dtype!r}", f"leave it out: the profile is of {given.dtype}")
    origin = cluster or given
    assert origin is not None
    return origin


def batch_of(batch: int | None) -> int:
    if batch is None:
        raise InputError("command line", "--batch", "is missing", "give the samples of one step, over all devices")
    return batch


def leave_out(options: Mapping[str, Any], why: str) -> None:
    """Raises InputError for the first option that is given."""
    for option, value in options.items():
        if value is not None:
            raise InputError("command line", option, f"is {shown(value)}", f"leave it out: {why}")
