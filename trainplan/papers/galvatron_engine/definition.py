"""The problem galvatron-engine as trainplan offers it to users: its options, and its instances from the engine's own profile
files.

A plan file that the engine writes is read as a solution, too (see `plans`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainplan.formulations.parameters import Parameter
from trainplan.formulations.pipeline.definition import StagedProblem
from trainplan.formulations.pipeline.enumeration import plan_count, plans
from trainplan.formulations.pipeline.problem import Solution
from trainplan.formulations.plan.request import Request
from trainplan.formulations.problem import Enumeration
from trainplan.papers.galvatron_engine import instances, problem
from trainplan.papers.galvatron_engine.costs import EngineOptions
from trainplan.papers.galvatron_engine.problem import Instance, InstanceRecord
from trainplan.papers.galvatron_engine.profile import read_engine_profile
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.imports.galvatron_blocks import MOST_MIB
from trainplan.profiling.imports.source import SMALLEST

LARGEST_BATCH = 2**16
SWITCHES = ("both_orders", "micro_batches", "most_tp", "most_stages", "async_grad_reduce", "sequence_parallel", "uniform")


def improving(instance: Instance) -> Iterator[Solution | None]:
    """Enumerate all solutions of an instance (layers with the costs of their strategies) whose layers are split evenly into
    stages. Yields each solution that fits into memory and is better than all solutions before it; from time to time it yields
    None, so that the caller can check the time limit.
    """
    counted = [configuration.counted for configuration in instance.configurations]
    return plans(instance, counted, problem.even_partition, lambda index, *times: problem.iteration_ns(
        instance.configurations[index], *times))  # fmt: skip


class GalvatronEngine(StagedProblem):
    """The problem that the published engine of the paper Galvatron searches, under the engine's own cost model: choose number
    of stages, micro-batches, and a strategy for every layer. An instance is one such problem with its costs.
    """

    solved_by = "trainplan.papers.galvatron_engine"
    name = problem.NAME
    record, solution_record = InstanceRecord, Solution
    parameters = (
        Parameter("engine_files", str, "files or folders of Hetu-Galvatron's profile", many=True),
        Parameter("layers", int, "Transformer layers, where the files leave them open", least=1),
        Parameter("sequence", int, "tokens of a sample, where the files leave them open", least=1),
        Parameter("hidden_size", int, "hidden size, where the files leave it open", least=1),
        Parameter("default_dp_type", str, "what plain dp is", "zero2", ("zero2", "ddp")),
        Parameter("both_orders", bool, "also tensor parallelism over ranks that are apart", False),
        Parameter("micro_batches", int, "their number, as settle_chunk; else all divisors of the batch", least=1),
        Parameter("most_tp", int, "the largest tensor-parallel degree, as max_tp_deg", least=1),
        Parameter("most_stages", int, "the largest number of stages, as max_pp_deg", least=1),
        Parameter("async_grad_reduce", bool, "gradients are reduced once a step, not with every micro-batch", True),
        Parameter("sequence_parallel", bool, "tensor-parallel ranks share the rest of a layer too", True),
        Parameter("uniform", bool, "one strategy for all layers, as fine_grained_mode 0", False),
        Parameter("parameter_mib", float, "MiB of a layer's parameters in fp32, in place of the files'"),
    )
    needs = ()
    solution_reader = "trainplan.papers.galvatron_engine.plans:read_if_plan"
    enumeration = Enumeration(lambda instance: plan_count(instance, problem.even_partition), improving)
    load = staticmethod(problem.load)
    evaluate = staticmethod(problem.evaluate)
    violations = staticmethod(problem.violations)
    describe = staticmethod(problem.describe)

    def cost_model(self, instance: Instance) -> str:
        """The name of the cost model and of the objective, as text for users. instance: unused; part of the signature that all
        problems share.
        """
        return f"{instances.COST_MODEL}, the engine's iteration time"

    def instance(self, request: Request) -> Instance:
        """Build an instance (costs of all strategies) of the problem that Galvatron's engine searches, from the engine's
        profile files, which the request's options name.

        Raises InputError if no files are named, if the request also names a model, cluster or profile of trainplan, or if a
        value is missing or out of range.
        """
        options = request.options
        if not options["engine_files"]:
            raise InputError("command line", "--engine-files", "are none", "name the engine's profile files, or their folder")
        for flag, value in (("--model", request.model), ("--cluster", request.cluster), ("--profile", request.profile)):
            if value is not None:
                fix = "leave it out: --engine-files has what the engine searches"
                raise InputError("command line", flag, f"is {value.name!r}", fix)
        if request.samples > LARGEST_BATCH:
            raise InputError("command line", "--batch", f"is {request.samples}", f"give 1 to {LARGEST_BATCH} samples")
        memory_bytes = request.memory_bytes
        if memory_bytes is None:
            raise InputError("command line", "--memory", "is missing", "give it, such as 36GiB: the engine's files have none")
        if instances.usable_bytes(memory_bytes) <= 0:
            fix = "give at least 1MiB: the engine counts in MiB"
            raise InputError("command line", "--memory", f"is {memory_bytes} bytes", fix)
        shape = {name: options[name] for name in ("layers", "sequence", "hidden_size")}
        switches = {name: options[name] for name in SWITCHES}
        sequence_parallel, parameter_mib = options["sequence_parallel"], options["parameter_mib"]
        profile = read_engine_profile(_paths(options["engine_files"]), **shape, sequence_parallel=sequence_parallel)
        if parameter_mib is not None:
            if not SMALLEST <= parameter_mib <= MOST_MIB:
                fix = f"give MiB from {SMALLEST:g} to {MOST_MIB:g}"
                raise InputError("command line", "--parameter-mib", f"is {parameter_mib:g}", fix)
            profile = replace(profile, parameter_mib=float(parameter_mib))
        zero2 = options["default_dp_type"] == "zero2"
        engine_options = EngineOptions(measured_messages=bool(profile.measured), zero2=zero2, **switches)
        return instances.build(profile, memory_bytes, request.samples, engine_options)


def _paths(files: Any) -> list[Path]:
    """List the profile files of Galvatron that one or several paths name: files as given, and of folders all *.json except for
    plans that the engine wrote.

    files: a path, or an iterable of paths. Raises InputError for a folder without such files.
    """
    paths: list[Path] = []
    for path in [Path(files)] if isinstance(files, str | os.PathLike) else map(Path, files):
        inside = [path]
        if path.is_dir():
            inside = sorted(file for file in path.glob("*.json") if not file.name.startswith("galvatron_config_"))
        if not inside:
            raise InputError(str(path), "", "holds no profile of the engine (*.json)", "name its files, or their folder")
        paths += inside
    return paths


PROBLEM = GalvatronEngine()
