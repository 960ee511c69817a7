"""Instances from models, clusters and profiles, or from the files of Galvatron's published engine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainplan.formulations.cluster_strategy import problem as cluster_strategy
from trainplan.formulations.layer_strategies import costs as layer_costs
from trainplan.formulations.layer_strategies import problem as layer_strategies
from trainplan.formulations.memory_switches import problem as memory_switches
from trainplan.formulations.pipeline import problem as pipeline_problem
from trainplan.formulations.pipeline import published
from trainplan.formulations.pipeline.costs import PipelineCosts
from trainplan.formulations.pipeline.problem import Schedule
from trainplan.formulations.pipeline.published_costs import Options as EngineOptions
from trainplan.formulations.pipeline.spaces import space as space_of
from trainplan.formulations.pipeline_partition import problem as pipeline_partition
from trainplan.formulations.stage_assignment import problem as stage_assignment
from trainplan.inputs import FilePath, batch_of, cluster_of, leave_out, memory_of, model_of, origin_of, profile_of
from trainplan.partitioning import degrees_of, partition_instance
from trainplan.placing import assignment_instance, strategy_instance
from trainplan.planning import micro_batch_counts, runs, stage_counts
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.processes import Report
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.imports.galvatron_engine import read_engine_profile
from trainplan.profiling.models.model import Model
from trainplan.profiling.obtain import obtain_profile
from trainplan.profiling.profiles import Profile
from trainplan.solvers.core.registry import problem
from trainplan.switch_instances import switches_of

Instance = (
    layer_strategies.Instance
    | pipeline_problem.Instance
    | stage_assignment.Instance
    | cluster_strategy.Instance
    | pipeline_partition.Instance
    | memory_switches.Instance
)
ENGINE_DP_TYPES = ("zero2", "ddp")
LARGEST_ENGINE_BATCH = 2**16


def build(
    problem_name: str = "layer-strategies",
    *,
    model: str | os.PathLike[str] | Model | None = None,
    cluster: str | os.PathLike[str] | Cluster | None = None,
    batch: int | None = None,
    memory: str | int | None = None,
    sequence: int | None = None,
    dtype: str | None = None,
    cost_model: str | None = None,
    pipeline: int | None = None,
    stage: int = 0,
    micro_batches: int | None = None,
    schedule: Schedule = "1f1b",
    space: str | None = None,
    by_unit: bool = False,
    takeaway3: bool = True,
    profile: str | os.PathLike[str] | Profile | None = None,
    engine_files: FilePath | Sequence[FilePath] | None = None,
    layers: int | None = None,
    hidden_size: int | None = None,
    default_dp_type: str = "zero2",
    both_orders: bool = False,
    tp: int | None = None,
    dp: int | None = None,
    uneven_shares: bool = False,
    recompute: bool = False,
    ignore_memory: bool = False,
    synchronisation: str = "forced",
    paper_combinations: bool = False,
    measure: bool = False,
    measuring: Report | None = None,
) -> Instance:
    """An instance from a model (name, config.json or Model) and a cluster (name, file or Cluster). Raises InputError.

    profile: numbers made earlier; it may stand in for the model, the cluster, or both. memory: of one device, such as "8GiB"
    or bytes (default: the cluster's). by_unit: decide for each sub-layer.
    layer-strategies: one stage of `pipeline` even ones (default: 1), see `layer_strategies.costs`. pipeline: all stages;
    pipeline and micro_batches are their numbers (default: all that are possible), see `pipeline.costs`.

    engine_files: files or folders of Hetu-Galvatron's profile, in place of all that; the cost model is then `code`, that of its
    published engine, see `pipeline.published`. layers, sequence, hidden_size: what those files leave open. default_dp_type
    (zero2 or ddp) and both_orders (of tensor parallelism): the engine's own options; a file of message times is used if given.

    cluster-strategy, stage-assignment (AMP): uneven_shares: pipelines may take different numbers of micro-batches; recompute:
    every layer is; ignore_memory: as AMP does. stage-assignment: of `pipeline` stages of `tp` devices, on devices in order.

    pipeline-partition (AutoPipe): one of dp pipelines (default: as many as there are devices for) of `pipeline` stages of `tp`
    devices, cut at sub-layers; a profile may stand in for model and cluster.

    memory-switches (H3T): all devices one sharded-data group. synchronisation: of segments, `forced` or `free`.
    paper_combinations: offloading without recomputation, too. measure: the model, on this machine. profile: also a file of
    H3T's published code, taken layer by layer; then nothing but memory is needed.
    """
    wanted = problem(problem_name)
    if wanted.name == memory_switches.NAME:
        foreign = {
            "--cost-model": cost_model,
            "--pipeline": pipeline,
            "--stage": stage or None,
            "--micro-batches": micro_batches,
            "--schedule": None if schedule == "1f1b" else schedule,
            "--space": space,
            "--no-takeaway3": None if takeaway3 else True,
            "--engine-files": engine_files,
            "--tp": tp,
            "--dp": dp,
            "--uneven-shares": uneven_shares or None,
            "--recompute": recompute or None,
            "--ignore-memory": ignore_memory or None,
            "--layers": layers,
            "--hidden-size": hidden_size,
            "--default-dp-type": None if default_dp_type == "zero2" else default_dp_type,
            "--both-orders": both_orders or None,
        }
        leave_out(foreign, f"{wanted.name} has none, or decides it")
        return switches_of(
            model,
            cluster,
            batch,
            memory,
            sequence,
            dtype,
            profile,
            synchronisation=synchronisation,
            offload_needs_ckpt=not paper_combinations,
            by_unit=by_unit,
            measured=measure,
            measuring=measuring,
        )
    switches_only = {
        "--synchronisation": None if synchronisation == "forced" else synchronisation,
        "--paper-combinations": paper_combinations or None,
        "--measure": measure or None,
    }
    leave_out(switches_only, f"it belongs to {memory_switches.NAME}")
    batch = batch_of(batch)
    if wanted.name == pipeline_partition.NAME:
        foreign = {
            "--cost-model": cost_model,
            "--stage": stage or None,
            "--space": space,
            "--schedule": None if schedule == "1f1b" else schedule,
            "--no-takeaway3": None if takeaway3 else True,
            "--engine-files": engine_files,
            "--uneven-shares": uneven_shares or None,
        }
        leave_out(foreign, f"{wanted.name} has none")
        given = profile_of(profile)
        the_model = None if model is None else model_of(model, sequence, dtype, given)
        if the_model is not None and runs(the_model):
            the_model = the_model.fused()
        the_cluster = None if cluster is None else cluster_of(cluster)
        origin = origin_of(the_model, the_cluster, given, sequence, dtype)
        [(made, _)] = partition_instance(
            the_model,
            the_cluster,
            batch,
            [degrees_of(origin.devices, pipeline, micro_batches, dp, tp)],
            memory_bytes=None if memory is None else memory_of(memory, 0),
            within_memory=not ignore_memory,
            recompute=recompute,
            profile=given,
        )
        return made
    leave_out({"--dp": dp}, "it belongs to pipeline-partition")
    amp_only = {
        "--tp": tp,
        "--uneven-shares": uneven_shares or None,
        "--recompute": recompute or None,
        "--ignore-memory": ignore_memory or None,
    }
    if wanted.name in (cluster_strategy.NAME, stage_assignment.NAME):
        alone = wanted.name == stage_assignment.NAME
        foreign = {
            "--cost-model": cost_model,
            "--stage": stage or None,
            "--space": space,
            "--schedule": None if schedule == "1f1b" else schedule,
            "--no-takeaway3": None if takeaway3 else True,
            "--engine-files": engine_files,
            "--pipeline": None if alone else pipeline,
            "--micro-batches": None if alone else micro_batches,
            "--tp": None if alone else tp,
        }
        leave_out(foreign, f"{wanted.name} has none, or decides it")
        given = profile_of(profile)
        instance, _, _ = amp_instance(
            model,
            cluster,
            batch,
            memory,
            sequence,
            dtype,
            given,
            by_unit=by_unit,
            uneven_shares=uneven_shares,
            recompute=recompute,
            ignore_memory=ignore_memory,
        )
        return assignment_instance(instance, pipeline or 1, micro_batches or 1, tp or 1) if alone else instance
    leave_out(amp_only, "it belongs to cluster-strategy and stage-assignment")
    if engine_files is not None:
        given_options = {
            "--model": model,
            "--cluster": cluster,
            "--profile": profile,
            "--dtype": dtype,
            "--cost-model": None if cost_model == published.NAME else cost_model,
            "--pipeline": pipeline,
            "--stage": stage or None,
            "--micro-batches": micro_batches,
            "--schedule": None if schedule == "1f1b" else schedule,
            "--space": space,
            "--granularity": "unit" if by_unit else None,
            "--no-takeaway3": None if takeaway3 else True,
        }
        leave_out(given_options, "--engine-files has what the engine searches")
        if wanted.name != pipeline_problem.NAME:
            raise InputError("command line", "problem", f"is {wanted.name!r}", "give 'pipeline' with --engine-files")
        shape = {"layers": layers, "sequence": sequence, "hidden_size": hidden_size}
        return _engine_instance(engine_files, batch, memory, default_dp_type, both_orders, shape)
    engine_only = {
        "--layers": layers,
        "--hidden-size": hidden_size,
        "--default-dp-type": None if default_dp_type == "zero2" else default_dp_type,
        "--both-orders": both_orders or None,
    }
    leave_out(engine_only, "it belongs to --engine-files")
    if cost_model == published.NAME:
        raise InputError("command line", "--engine-files", "is missing", "give it: the cost model 'code' is the engine's")
    cost_model = cost_model or "paper"
    given = profile_of(profile)
    the_model = None if model is None else model_of(model, sequence, dtype, given)
    the_cluster = None if cluster is None else cluster_of(cluster)
    origin = origin_of(the_model, the_cluster, given, sequence, dtype)
    if cost_model not in layer_costs.COST_MODELS:
        known = ", ".join([*layer_costs.COST_MODELS, published.NAME])
        raise InputError("command line", "--cost-model", f"is {cost_model!r}", f"give one of: {known}")
    costs, memory_bytes = layer_costs.COST_MODELS[cost_model], memory_of(memory, origin.memory_bytes)
    name = the_cluster.name if the_cluster else origin.cluster  # type: ignore[union-attr]
    if wanted.name == pipeline_problem.NAME:
        chosen = space_of(space or ("full" if takeaway3 else "full-dp-sdp"))
        counts, numbers = stage_counts(origin.devices, pipeline), micro_batch_counts(batch, micro_batches)
        groups = [origin.devices // count for count in counts]
        found = obtain_profile(
            the_model, the_cluster, [batch // m for m in numbers], groups, devices=origin.devices, earlier=given
        )
        return PipelineCosts(found, costs=costs, space=chosen, by_unit=by_unit).instance(
            batch,
            memory_bytes,
            schedule=schedule,
            stages=counts,
            micro_batches=numbers,
            name=f"{found.name} on {name}",
            provenance={"cluster": name},
        )
    if space is not None:
        raise InputError("command line", "--space", f"is {space!r}", "leave it out: layer-strategies has all of one stage")
    pipeline = pipeline or 1
    if pipeline < 1 or origin.devices % pipeline:
        raise InputError("command line", "--pipeline", f"is {pipeline}", f"give a power of two up to {origin.devices}")
    part = layer_costs.Stage(pipeline, stage, micro_batches or 1)
    group = origin.devices // pipeline
    found = obtain_profile(the_model, the_cluster, [part.samples(batch)], [group], devices=group, earlier=given)
    return layer_costs.build(
        found,
        memory_bytes,
        batch,
        costs=costs,
        stage=part,
        by_unit=by_unit,
        takeaway3=takeaway3,
        name=f"{found.name} on {name}" + (f", stage {stage} of {pipeline}" if pipeline > 1 else ""),
        provenance={"cluster": name},
    )


def amp_instance(
    model: str | os.PathLike[str] | Model | None,
    cluster: FilePath | Cluster | None,
    batch: int,
    memory: str | int | None = None,
    sequence: int | None = None,
    dtype: str | None = None,
    profile: Profile | None = None,
    *,
    ignore_memory: bool = False,
    **options: Any,
) -> tuple[cluster_strategy.Instance, Profile, Model | None]:
    """A cluster-strategy instance, the profile and the model that it is of; options as of `placing.strategy_instance`.

    A model whose plans run is taken as it will run. Raises InputError.
    """
    if cluster is None:
        raise InputError("command line", "--cluster", "is missing", "give it: devices are placed on its nodes")
    if model is None and profile is None:
        raise InputError("command line", "--model", "is missing", "give it, or a --profile")
    the_model = None if model is None else model_of(model, sequence, dtype, profile)
    if the_model is not None and runs(the_model):
        the_model = the_model.fused()
    options["memory_bytes"] = None if memory is None else memory_of(memory, 0)
    options["within_memory"] = not ignore_memory
    instance, found = strategy_instance(the_model, cluster_of(cluster), batch, profile=profile, **options)
    return instance, found, the_model


def _engine_instance(
    files: FilePath | Sequence[FilePath],
    batch: int,
    memory: str | int | None,
    default_dp_type: str,
    both_orders: bool,
    shape: Mapping[str, int | None],
) -> pipeline_problem.Instance:
    """What Galvatron's published engine searches with these files. Raises InputError."""
    if default_dp_type not in ENGINE_DP_TYPES:
        told = f"give one of: {', '.join(ENGINE_DP_TYPES)}"
        raise InputError("command line", "--default-dp-type", f"is {default_dp_type!r}", told)
    if not 1 <= batch <= LARGEST_ENGINE_BATCH:
        raise InputError("command line", "--batch", f"is {batch}", f"give 1 to {LARGEST_ENGINE_BATCH} samples")
    if memory is None:
        raise InputError("command line", "--memory", "is missing", "give it, such as 36GiB: the engine's files have none")
    memory_bytes = memory_of(memory, 0)
    if published.usable_bytes(memory_bytes) <= 0:
        raise InputError("command line", "--memory", f"is {memory_bytes} bytes", "give at least 1MiB: the engine counts in MiB")
    paths = [Path(files)] if isinstance(files, str | os.PathLike) else [Path(path) for path in files]
    if not paths:
        raise InputError("command line", "--engine-files", "are none", "name the engine's profile files, or their folder")
    found = read_engine_profile([file for path in paths for file in _engine_files(path)], **shape)
    options = EngineOptions(bool(found.measured), default_dp_type == "zero2", both_orders)
    return published.build(found, memory_bytes, batch, options)


def _engine_files(path: Path) -> list[Path]:
    """A file, or those of a folder but the plans that the engine wrote."""
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.glob("*.json") if not file.name.startswith("galvatron_config_"))
    if not found:
        raise InputError(str(path), "", "holds no profile of the engine (*.json)", "name its files, or their folder")
    return found
