"""What users name, as what it names: models, clusters, profiles, bytes of memory; and all of it as one request."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from trainplan.execution.executable_models import EXECUTED_DTYPES, EXECUTED_FAMILIES, WALKED_FAMILIES
from trainplan.formulations.parameters import Parameter, chosen
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.request import Request
from trainplan.profiling.base.dtypes import parse_dtype
from trainplan.profiling.base.errors import COMMAND_LINE, InputError, caution
from trainplan.profiling.base.files import FilePath
from trainplan.profiling.base.processes import Report
from trainplan.profiling.base.quantities import format_bytes, parse_bytes
from trainplan.profiling.clusters.cluster import Cluster, load_cluster
from trainplan.profiling.models.model import Model, load_model
from trainplan.profiling.profiles import Profile, load_profile

LARGEST_MEMORY = 2**48
LEAST_NUMBER = 1000  # of bytes, as a number; fewer are a slip
LONG = 2**14  # tokens of a sample beyond which plans are of a long context, which is rarely meant unsaid


def model_of(
    model: FilePath | Model,
    sequence: int | None,
    dtype: str | None,
    profile: Profile | None = None,
    cluster: Cluster | None = None,
) -> Model:
    """A model by name or config.json; sequence and dtype left out are those of the profile, where there is one. cluster: for
    which half precision is chosen, where neither file nor user says a dtype.

    Warns where the longest sequence that the model allows is taken unasked, and is longer than LONG tokens.
    """
    if isinstance(model, Model):
        return model
    if profile is not None:
        dtype = dtype or profile.dtype
        sequence = (profile.model or {}).get("sequence") if sequence is None else sequence
    loaded = load_model(model, sequence, dtype, "bfloat16" if cluster is None else cluster.training_dtype)
    if sequence is None and loaded.vocabulary and loaded.sequence_tokens > LONG:
        problem = f"is not given, and the longest that {loaded.name} allows is {loaded.sequence_tokens} tokens"
        caution("command line", "--sequence", problem, "all of these are planned; give what a sample has, such as 4096")
    return loaded


def made_for(plan: Plan) -> dict[str, Any] | None:
    """For what a plan was made, as arguments of `plan`: its model, devices, batch and memory; None where its claim has no
    evidence that names the devices."""
    evidence = None if plan.claim is None else plan.claim.evidence
    if evidence is None or evidence.cluster is None:
        return None
    return {
        "model": plan.planned_model(),
        "cluster": Cluster.model_validate(evidence.cluster),
        "batch": plan.batch.global_samples,
        "memory": evidence.memory_bytes,
    }


def cluster_of(cluster: FilePath | Cluster, reserve: str | int | None = None) -> Cluster:
    """A cluster by name or file. reserve: memory that stays free on every device, in place of its kind's. Raises InputError."""
    loaded = cluster if isinstance(cluster, Cluster) else load_cluster(cluster)
    return loaded if reserve is None else loaded.with_reserve(reserve_of(reserve, loaded.memory_bytes))


def profile_of(profile: FilePath | Profile | None, reserve: str | int | None = None) -> Profile | None:
    """A profile by file. reserve: memory that stays free on every device, in place of the profile's. Raises InputError."""
    loaded = load_profile(profile) if isinstance(profile, str | os.PathLike) else profile
    if loaded is None or reserve is None:
        return loaded
    return loaded.changed(reserve_bytes=reserve_of(reserve, loaded.memory_bytes))


def memory_of(memory: str | int | None, reserve: str | int | None = None) -> int | None:
    """Bytes of one device that plans may use, such as "8GiB" or a number; None as it is. Raises InputError: for a number that
    looks like one of gigabytes, too.

    reserve: what stays free of them.
    """
    if memory is None:
        return None
    size = parse_bytes(memory) if isinstance(memory, str) else memory
    if not isinstance(memory, str) and 0 < size < LEAST_NUMBER:
        raise InputError("command line", "--memory", f"is {size}, and numbers are bytes", f"give '{size}GiB' for gigabytes")
    if not 0 < size <= LARGEST_MEMORY:
        raise InputError("command line", "--memory", f"is {size} bytes", "give more than 0 and at most 256TiB, such as 8GiB")
    return size if reserve is None else size - reserve_of(reserve, size)


def reserve_of(reserve: str | int, memory_bytes: int) -> int:
    """Bytes that stay free on a device of that memory, such as "4GiB" or a number. Raises InputError."""
    size = parse_bytes(reserve, "--reserve") if isinstance(reserve, str) else reserve
    if not 0 <= size < memory_bytes:
        example = format_bytes(memory_bytes // 16).replace(" ", "")
        fix = f"give less than the device's {format_bytes(memory_bytes)}, such as {example}"
        raise InputError("command line", "--reserve", f"is {size} bytes", fix)
    return size


def check_spelling(names: Collection[str], possible: Collection[str], options: Collection[str], owner: str) -> None:
    """Raises InputError for a keyword argument that is not possible, but near to one that is.

    options: those of a method, which the command takes by `--option` alone, as it does whatever it has no flag for.
    """
    for name in names:
        every = [*possible, *options]
        near = [] if name in every else get_close_matches(name, every, n=1, cutoff=0.75)
        if near:
            meant = f"--option {near[0]}=" if near[0] in options else f"--{near[0].replace('_', '-')}"
            raise InputError(COMMAND_LINE, f"--option {name}", f"is no argument of {owner}", f"did you mean {meant}?")


def compiles(model: Model) -> bool:
    """Whether plans of the model become programs, which can be checked and walked."""
    return model.family in (*EXECUTED_FAMILIES, *WALKED_FAMILIES)


def runs(model: Model) -> bool:
    """Whether plans of the model run on local processes."""
    return model.family in EXECUTED_FAMILIES and model.dtype in EXECUTED_DTYPES


def request_of(
    parameters: Iterable[Parameter],
    owner: str,
    *,
    model: FilePath | Model | None = None,
    cluster: FilePath | Cluster | None = None,
    batch: int | None = None,
    memory: str | int | None = None,
    reserve: str | int | None = None,
    sequence: int | None = None,
    dtype: str | None = None,
    profile: FilePath | Profile | None = None,
    measure: bool = False,
    measuring: Report | None = None,
    fixed: Mapping[str, Any] | None = None,
    needs: Collection[str] = ("model", "cluster"),
    planned: bool = True,
    **options: Any,
) -> Request:
    """A request from what users give, with the value of every parameter of a problem.

    A model that runs is taken as it runs (fused attention), but for an instance that is not `planned` and has the
    paper's costs. memory: of each device, for plans (default: what is usable of it, its memory less its reserve). reserve: what
    stays free of the memory, in place of the cluster's or the profile's own. owner: whose the parameters are, for errors.
    fixed: values that are not up to the user. needs: what has to be there without a profile. A parameter called `sequence` is
    the problem's, not the model's. Raises InputError.
    """
    earlier, parameters = profile_of(profile, reserve), tuple(parameters)
    for name, value in (("model", model), ("cluster", cluster)):
        if value is None and earlier is None and name in needs:
            raise InputError("command line", f"--{name}", "is missing", "give it, or a --profile")
    if any(parameter.name == "sequence" for parameter in parameters):
        sequence, options = None, {**options, "sequence": sequence}
    if model is None:
        if sequence is not None:
            raise InputError("command line", "--sequence", f"is {sequence}", "leave it out: the profile has its own")
        if dtype is not None and (earlier is None or parse_dtype(dtype) != earlier.dtype):
            fix = f"leave it out: the profile is of {earlier.dtype}" if earlier else "leave it out: it is that of a --model"
            raise InputError("command line", "--dtype", f"is {dtype!r}", fix)
    the_cluster = None if cluster is None else cluster_of(cluster, reserve)
    the_model = None if model is None else model_of(model, sequence, dtype, earlier, the_cluster)
    values = {**chosen(parameters, options, owner), **(fixed or {})}
    if the_model is not None and runs(the_model) and (planned or values.get("cost_model") != "paper"):
        the_model = the_model.fused()
    memory_bytes = memory_of(memory, reserve)
    if the_cluster is not None and memory_bytes is not None and memory_bytes > the_cluster.usable_bytes:
        usable = format_bytes(the_cluster.usable_bytes)
        problem = f"is {format_bytes(memory_bytes)}, of which a device of {the_cluster.name} has {usable} usable"
        caution("command line", "--memory", problem, "leave it out to plan with what is usable")
    return Request(
        the_model,
        the_cluster,
        batch,
        memory_bytes,
        profile=earlier,
        measured=measure,
        options=values,
        report=measuring,
    )
