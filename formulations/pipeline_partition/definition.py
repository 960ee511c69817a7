"""pipeline-partition as a `Problem`: from a request to instances and plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from trainplan.formulations import parameters
from trainplan.formulations.chain_problem import Cutting, cut_enumeration
from trainplan.formulations.parameters import DP, IGNORE_MEMORY, MICRO_BATCHES, PIPELINE, RECOMPUTE, TP, Parameter
from trainplan.formulations.pipeline_partition import problem
from trainplan.formulations.pipeline_partition.costs import build
from trainplan.formulations.pipeline_partition.degrees import PipelineDegrees, degrees_of, possible_degrees
from trainplan.formulations.pipeline_partition.problem import Instance, Solution
from trainplan.formulations.plan.plan import Batch, Plan, staged_plan
from trainplan.formulations.plan.request import Request
from trainplan.formulations.problem import Table
from trainplan.formulations.schedule.orders import most_sliced
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.quantities import format_bytes, format_time, plural, span

BY_UNIT = replace(parameters.BY_UNIT, about="cut between any two sub-layers, not between layers only", default=True)
SLICED = Parameter("sliced", int, "micro-batches to begin in two halves (default: the fewest that do; 0: none)", least=0)
OBJECTIVE = Parameter(
    "objective",
    str,
    "of the exact method: the whole step, or the iteration alone, which is proven",
    "step",
    ("step", "iteration"),
)


class PipelinePartition(Cutting):
    """The problem `pipeline-partition`: cut a chain of sub-layers into pipeline stages for the shortest simulated 1F1B
    iteration (AutoPipe).
    """

    name = problem.NAME
    solved_by = "trainplan.solvers.partition"
    record = problem.InstanceRecord
    solution_record = problem.Solution
    picture = "trainplan.pictures.timeline:draw_partition"
    parameters = (PIPELINE, MICRO_BATCHES, DP, TP, RECOMPUTE, IGNORE_MEMORY, BY_UNIT, SLICED, OBJECTIVE)
    enumeration = cut_enumeration(Solution)
    load = staticmethod(problem.load)
    load_solution = staticmethod(problem.load_solution)
    solution_dict = staticmethod(problem.solution_dict)
    evaluate = staticmethod(problem.evaluate)
    violations = staticmethod(problem.violations)
    describe = staticmethod(problem.describe)

    def cost_model(self, instance: Instance) -> str:
        """The names of an instance's cost model (by default `executed`, the costs of trainplan's own programs) and of its
        objective, the simulated 1F1B step. instance: the times of a chain of sub-layers, the numbers of stages and
        micro-batches, and the memory limits.
        """
        return f"{instance.provenance.get('cost_model', 'executed')}, simulated 1F1B step"

    def instance(self, request: Request) -> Instance:
        """The instance of one of several equal pipelines, with the numbers of stages, micro-batches, pipelines and
        tensor-parallel devices of the request; by default one stage, one micro-batch, and pipelines on all devices.
        request: the user's model, cluster, batch and options. Raises InputError if the problem cannot express the request.
        """
        options = request.options
        degrees = (options[name] for name in ("pipeline", "micro_batches", "dp", "tp"))
        [instance] = self._built(request, [degrees_of(request.origin.devices, *degrees)])
        return instance

    def instances(self, request: Request) -> list[Instance]:
        """The instances of all numbers of stages and micro-batches that are possible, or of those that the request names.
        request: the user's model, cluster, batch and options. Raises InputError if none is possible.
        """
        options = request.options
        given = (options[name] for name in ("pipeline", "micro_batches", "dp", "tp"))
        possible = possible_degrees(request.origin.devices, len(request.chain.units), request.samples, *given)
        if options["sliced"]:
            possible = _that_slice(possible, request.samples, options["sliced"])
        return self._built(request, possible)

    def _built(self, request: Request, degrees: Sequence[PipelineDegrees]) -> list[Instance]:
        """The instances of some degrees of parallelism, from one profile. degrees: numbers of stages, pipelines and
        micro-batches, all with one tensor-parallel degree. request: the user's model, cluster, batch and options. Raises
        InputError if the model does not support that degree, or layers are too few.
        """
        options, batch, tp = request.options, request.samples, degrees[0].tp
        if tp not in (tps := request.chain.tp_degrees(tp)):
            raise InputError("command line", "--tp", f"is {tp}", f"give one of: {', '.join(map(str, tps))}")
        profile = request.profile_for(sorted({depth.rows(batch) for depth in degrees}), [tp])
        instances = [
            build(
                profile,
                batch,
                depth,
                memory_bytes=None if options["ignore_memory"] else request.limit_bytes,
                recompute=options["recompute"],
                name=f"{profile.name} on {request.cluster_name}, {depth.pp} stages",
                provenance={"cluster": request.cluster_name},
            )
            for depth in degrees
        ]
        if options["by_unit"]:
            return instances
        whole = [instance.between_layers()[0] for instance in instances]
        if not (possible := [instance for instance in whole if instance.stages <= instance.sublayers]):
            fix = f"give at most {whole[0].sublayers}, one layer a stage, or --by-unit"
            raise InputError("command line", "--pipeline", f"is {whole[0].stages}", fix)
        return possible

    def plan(self, instance: Instance, solution: Solution, request: Request) -> Plan:
        """The plan of a solution; its stages may also be cut between whole layers. instance: the times of a chain of
        sub-layers, the numbers of stages and micro-batches, and the memory limits. solution: the index of the first
        sub-layer of every stage but the first, and the number of micro-batches that run in halves. request: the user's
        model, cluster, batch and options. Raises InputError if the request has no model.
        """
        source = instance.provenance
        degrees = PipelineDegrees(instance.stages, source["dp"], source["tp"], instance.micro_batches)
        return staged_plan(
            request,
            solution.spans(instance.sublayers),
            [str(degrees.strategy(source["recompute"]))] * instance.sublayers,
            Batch(global_samples=request.samples, micro_batches=instance.micro_batches),
            world=degrees.devices,
            sliced=solution.sliced,
        )

    def tables(self, instance: Instance, solution: Solution) -> list[Table]:
        """Two tables for the screen: the stages of a partition; and its start-up time (until the last stage begins) and bubble
        (share of time in which devices are idle). instance: the times of a chain of sub-layers, the numbers of stages and
        micro-batches, and the memory limits. solution: the index of the first sub-layer of every stage but the first, and
        the number of micro-batches that run in halves.
        """
        return stage_tables(instance, problem.describe(instance, solution))


def _that_slice(possible: Sequence[PipelineDegrees], batch: int, sliced: int) -> list[PipelineDegrees]:
    """The possible degrees of parallelism (numbers of stages, pipelines and micro-batches) with which `sliced` first
    micro-batches can run in two halves. batch: samples per step. Raises InputError if there are none.
    """
    counts = [most_sliced(depth.pp, depth.micro_batches) if depth.rows(batch) % 2 == 0 else 0 for depth in possible]
    if sliced > (most := max(counts)):
        fix = f"give at most {most}" if most else "give more than one stage, and an even number of samples a micro-batch"
        raise InputError("command line", "--sliced", f"is {sliced}", fix)
    return [depth for depth, count in zip(possible, counts, strict=True) if count >= sliced]


def stage_tables(instance: Instance, described: Mapping[str, Any]) -> list[Table]:
    """Two tables for the screen: the stages of a partition, with the master stage marked (on which most passes of the critical
    path lie); and its start-up time and bubble. described: the costs of the solution, as `describe` returns them. instance:
    the times of a chain of sub-layers, the numbers of stages and micro-batches, and the memory limits.
    """
    memory, master = instance.memory, described["master_stage"]
    columns = ["stage", "sub-layers", "count", "forward", "backward", "transfer", *(["peak", "of"] if memory else []), ""]
    rows = []
    for x, stage in enumerate(described["stages"]):
        first, last = stage["first"], stage["last"]
        row = [str(x), span(instance.name_of(first), instance.name_of(last)), str(last - first + 1)]
        row += [format_time(stage[name]) for name in ("forward_ns", "backward_ns", "transfer_ns")]
        if memory is not None:
            row += [format_bytes(stage["peak_bytes"]), format_bytes(int(memory.limit_bytes[x]))]
        rows.append((*row, "<- master stage" if x == master else ""))
    step = (format_time(described["startup_ns"]), f"{described['bubble']:.1%}")
    pipelines = plural(instance.provenance.get("dp", 1), "pipeline")
    title = f"{pipelines} of {plural(instance.stages, 'stage')}, {instance.sublayers} sub-layers; "
    title += plural(instance.micro_batches, "micro-batch")
    return [Table(title, tuple(columns), tuple(rows)), Table("", ("start-up", "bubble"), (step,))]


PROBLEM = PipelinePartition()
