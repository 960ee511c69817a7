"""User input as objects: models, clusters and profiles from names and files, memory sizes as bytes, and a whole request.

The command and the Python verbs read their arguments with the functions of this module. A bad value raises InputError, which
names the argument, the value and one that would work.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from trainplan.execution.executable_models import EXECUTED_DTYPES, EXECUTED_FAMILIES, HYBRID_FAMILIES, WALKED_FAMILIES
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
LEAST_NUMBER = 1000  # bytes; a smaller memory size, given as a plain number, is taken for a slip (gigabytes)
LONG = 2**14  # tokens; a model's longest sequence beyond this, taken by default, is rarely what the user wants


def model_of(
    model: FilePath | Model,
    sequence: int | None,
    dtype: str | None,
    profile: Profile | None = None,
    cluster: Cluster | None = None,
    planned: bool = True,
) -> Model:
    """The model that a user names by a shipped name or a config.json file; a Model is returned unchanged.

    Warns if the sequence is left out and the longest that the model allows is longer than LONG tokens. Raises InputError for a
    bad name, file, sequence or dtype.

    Args:
        model: the name, the file or the Model.
        sequence: tokens of a sample; None for the profile's, or without one the longest that the model allows.
        dtype: the model's dtype, such as "bf16"; None for the profile's, or without one the file's. If the file states none, or
            float32, it is the half precision that the cluster's devices train in (bfloat16 without a cluster).
        profile: times and bytes of the model that were measured or estimated earlier, if there are any.
        cluster: the devices to train on, if they are known.
        planned: whether the model is to be planned, so that one of which plans are not made yet is refused.
    """
    if isinstance(model, Model):
        if planned and (feature := model.unplanned_feature):
            problem = f"is {model.name!r}: plans of {feature}: not yet"
            raise InputError(COMMAND_LINE, "--model", problem, "give a dense model")
        return model
    if profile is not None:
        dtype = dtype or profile.dtype
        sequence = (profile.model or {}).get("sequence") if sequence is None else sequence
    half = "bfloat16" if cluster is None else cluster.training_dtype
    loaded = load_model(model, sequence, dtype, half, planned)
    if sequence is None and loaded.vocabulary and loaded.sequence_tokens > LONG:
        problem = f"is not given, and the longest that {loaded.name} allows is {loaded.sequence_tokens} tokens"
        counted = "planned" if planned else "counted"
        caution("command line", "--sequence", problem, f"all of these are {counted}; give what a sample has, such as 4096")
    return loaded


def made_for(plan: Plan) -> dict[str, Any] | None:
    """The keyword arguments of `plan` that state what a given plan was made for: model, cluster, batch (samples of a step) and
    memory (bytes of a device).

    They are read from the evidence of the plan's claimed lower bound. Returns None if the plan has no evidence, or if the
    evidence does not name the cluster, since the plan was made from a profile alone.
    """
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
    """The cluster that a user names by a name or a file; a Cluster is taken as it is.

    reserve: memory that stays free on every device, in bytes or as a text such as "4GiB", in place of the cluster's own
    reserve; None for the cluster's own. Raises InputError for a bad name, file or reserve.
    """
    loaded = cluster if isinstance(cluster, Cluster) else load_cluster(cluster)
    return loaded if reserve is None else loaded.with_reserve(reserve_of(reserve, loaded.memory_bytes))


def profile_of(profile: FilePath | Profile | None, reserve: str | int | None = None) -> Profile | None:
    """The profile that a user names by its file; a Profile is taken as it is, and None stays None.

    reserve: memory that stays free on every device, in bytes or as a text such as "4GiB", in place of the profile's own
    reserve; None for the profile's own. Raises InputError for a bad file or reserve.
    """
    loaded = load_profile(profile) if isinstance(profile, str | os.PathLike) else profile
    if loaded is None or reserve is None:
        return loaded
    return loaded.changed(reserve_bytes=reserve_of(reserve, loaded.memory_bytes))


def memory_of(memory: str | int | None, reserve: str | int | None = None) -> int | None:
    """The bytes of one device that plans may use: the memory that a user gives, less the reserve.

    memory: a text such as "8GiB", or bytes; None, if the user gives none, is returned as it is. reserve: the part that stays
    free, in the same forms; None for nothing. Raises InputError for a size that no device can have, and for a number below
    LEAST_NUMBER, which looks like gigabytes.
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
    """The bytes that stay free on a device, from a text such as "4GiB" or a number of bytes.

    memory_bytes: the device's memory. Raises InputError unless the reserve is at least 0 and less than that.
    """
    size = parse_bytes(reserve, "--reserve") if isinstance(reserve, str) else reserve
    if not 0 <= size < memory_bytes:
        example = format_bytes(memory_bytes // 16).replace(" ", "")
        fix = f"give less than the device's {format_bytes(memory_bytes)}, such as {example}"
        raise InputError("command line", "--reserve", f"is {size} bytes", fix)
    return size


def check_spelling(names: Collection[str], possible: Collection[str], options: Collection[str], owner: str) -> None:
    """Raise InputError for a keyword argument that looks like a misspelt one, and suggest the right one; an unknown name that
    resembles none is left to the function that is called.

    names: the keywords that were given. possible: known keywords that have a command-line flag of their own. options: known
    keywords of the solution method, which the command takes as `--option NAME=VALUE`. owner: the name of the preset or problem,
    for the message.
    """
    for name in names:
        every = [*possible, *options]
        near = [] if name in every else get_close_matches(name, every, n=1, cutoff=0.75)
        if near:
            meant = f"--option {near[0]}=" if near[0] in options else f"--{near[0].replace('_', '-')}"
            raise InputError(COMMAND_LINE, f"--option {name}", f"is no argument of {owner}", f"did you mean {meant}?")


def compiles(model: Model) -> bool:
    """Whether plans of a model can be compiled to programs of instructions, which are checked and simulated; that depends on
    the model's family."""
    return model.family in (*EXECUTED_FAMILIES, *WALKED_FAMILIES, *HYBRID_FAMILIES)


def runs(model: Model) -> bool:
    """Whether plans of a model can be executed on local processes by `run`: the model's family and its dtype are both
    supported."""
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
    """The request that a user's arguments state, with a value for every parameter of an optimization problem.

    Args:
        parameters: the problem's parameters, whose values are taken from `options`, else their defaults.
        owner: the name of the preset or problem that has the parameters, for error messages.
        model: a name, a config.json or a Model. A model that can be executed gets fused attention, as it is executed, unless
            the request is not `planned` and has the paper's costs.
        cluster: a name, a file or a Cluster.
        batch: samples of one step, over all devices.
        memory: the memory of one device that plans may use, as a text or bytes (default: the device's memory less its reserve).
        reserve: memory that stays free on each device, in place of the cluster's or the profile's own reserve.
        sequence: tokens of a sample; if the problem has a parameter of this name, the value is that parameter's.
        dtype: the model's dtype, such as "bf16".
        profile: times and bytes measured or estimated earlier, or their file.
        measure: whether the model is to be measured on this machine.
        measuring: called with progress reports while the model is measured.
        fixed: values of parameters, by name, that the user cannot change.
        needs: the arguments that must be given if there is no profile.
        planned: whether a plan is made of the request, rather than an instance of a problem alone.
        **options: values of the problem's parameters by name.

    Raises:
        InputError: for a missing or bad argument.
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
    if the_model is not None and the_model.scans and earlier is None:
        fix = "their times are of shapes and of kernels' code alone: leave a margin"
        caution("command line", "--model", f"is a {the_model.family}, and no measured run has layers that scan a state", fix)
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
