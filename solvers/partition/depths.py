"""Plan by pipeline-partition: the depth, the cuts and the slicing with the shortest whole step, and a lower bound over all of
them.

Each instance is a depth (number of stages) with a number of micro-batches. For each, a method finds cuts for a short iteration;
with the exact one, cuts are then moved for a short step (`whole_step`), and as few micro-batches are sliced as help (`slicer`).
No cuts of an instance have a step below the larger of

    least_step_ns                                    the bound of `step_bound`, for whole or sliced micro-batches;
    the method's bound + what the first stage adds   where nothing may be sliced: the first stage ends last, and the least that
        it adds is its first sub-layer's part (with one stage, that of all sub-layers).

The least of these bounds over all instances is a bound on every plan that they stand for. An instance whose bound is not below
a step that is known already is not worked on any further.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from trainplan.formulations.pipeline_partition.definition import OBJECTIVE, SLICED
from trainplan.formulations.pipeline_partition.problem import Instance, Solution, evaluate, load_solution
from trainplan.formulations.pipeline_partition.step_bound import least_step_ns
from trainplan.profiling.base.errors import InputError
from trainplan.solvers.core.answer import Answer, in_turn, least_bound, rank, stopped_with
from trainplan.solvers.core.clock import Clock
from trainplan.solvers.core.result import Result
from trainplan.solvers.core.search import Progress, Unsupported
from trainplan.solvers.core.solve import check_arguments, solve
from trainplan.solvers.partition.slicer import least_sliced
from trainplan.solvers.partition.whole_step import shortest_step

PARAMETERS = (SLICED, OBJECTIVE)  # of the problem's, those that `search` takes
FAR = 2**62


@dataclass(frozen=True)
class DepthCandidate:
    """One instance (a number of pipeline stages with a number of micro-batches), and the best solution found for it.

    result: the method's result for the iteration of whole micro-batches. solution: cuts, and the number of first micro-batches
    that run as two halves (sliced); None if no solution was found. iteration_ns, step_ns: the solution's times in ns with its
    sliced micro-batches; the step adds gradient synchronisation and what else follows the last backward pass of each stage.
    bound_ns: a lower bound in ns on the step time of all cuts of this instance."""

    instance: Instance
    result: Result
    solution: Solution | None = None
    iteration_ns: int | None = None
    step_ns: int | None = None
    bound_ns: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """The candidate as one of an answer's `alternatives`, a dict of JSON values: `pipeline` (number of stages), `dp` and
        `tp` (degrees of data and tensor parallelism), `micro_batches`, `status` (of the search), `cuts` (index of the first
        sub-layer of every stage but the first), `sliced` (number of micro-batches that run in halves), `iteration_ns`,
        `step_ns` and `bound_ns`. `cuts` and times are None, `sliced` 0, if no solution was found."""
        return {
            "pipeline": self.instance.stages,
            "dp": self.instance.provenance.get("dp", 1),
            "tp": self.instance.provenance.get("tp", 1),
            "micro_batches": self.instance.micro_batches,
            "status": self.result.status,
            "cuts": None if self.solution is None else list(self.solution.cuts),
            "sliced": 0 if self.solution is None else self.solution.sliced,
            "iteration_ns": self.iteration_ns,
            "step_ns": self.step_ns,
            "bound_ns": self.bound_ns,
        }


def search(
    instances: Sequence[Instance],
    method: str = "exact",
    *,
    sliced: int | None = None,
    objective: str = "step",
    time_limit: float | None = None,
    clock: Clock | None = None,
    gap: float = 0.0,
    seed: int = 0,
    progress: Progress | None = None,
    **options: Any,
) -> Answer:
    """Find the pipeline partition with the shortest whole step (iteration and gradient synchronisation) over several instances,
    which differ in their numbers of stages and micro-batches. The instances share the time limit.

    instances: the inputs to choose among. method: name of the solution method. sliced: the number of first micro-batches that
    run as two halves, at most as many as an instance allows (None: the fewest that give all of the gain). objective: `step`:
    cuts that the exact method finds are moved afterwards if that shortens the whole step; `iteration`: they are kept. Cuts of
    other methods are always kept. time_limit: seconds for all instances together. clock: counts the seconds. gap: relative gap
    at which a method may stop. seed: the seed of random choices. progress: called with each better solution or bound. options:
    the method's own parameters.

    The answer's objective and bound are in ns of the whole step; its result is the method's, for the iteration of whole
    micro-batches; its alternatives are one row of numbers per instance, the best first. Raises InputError for arguments that do
    not exist, and Unsupported if the method does not support the only instance."""
    check_arguments(time_limit, gap, seed)
    OBJECTIVE.check(objective)
    interrupted, clock = False, clock or Clock()
    candidates, exact_step = list[DepthCandidate](), method == "exact" and objective == "step"
    for instance, seconds in in_turn(instances, time_limit, clock):
        shortest = min((candidate.step_ns for candidate in candidates if candidate.step_ns is not None), default=FAR)
        deadline = float("inf") if seconds is None else clock() + seconds
        try:
            result = solve(instance, method, time_limit=seconds, clock=clock, gap=gap, seed=seed, progress=progress, **options)
        except Unsupported:
            if len(instances) == 1:
                raise
            continue
        candidates.append(_candidate(instance, result, sliced, exact_step, shortest, partial(_late, clock, deadline)))
        if interrupted := result.stopped == "interrupt":
            break
    if not candidates:
        raise InputError("command line", "--method", f"is {method!r}, which supports no depth", "give another method")
    candidates.sort(key=lambda candidate: rank(candidate.result, candidate.step_ns))
    best = candidates[0]
    bound = None if interrupted else least_bound((candidate.result, candidate.bound_ns) for candidate in candidates)
    rows = tuple(candidate.to_dict() for candidate in candidates)
    result = stopped_with(best.result, [candidate.result for candidate in candidates])
    return Answer(best.instance, result, best.solution, best.step_ns, bound, rows)


def _late(clock: Clock, deadline: float) -> bool:
    """Whether a deadline has passed. deadline: a reading of the clock, in seconds. clock: counts the seconds."""
    return clock() > deadline


def _candidate(
    instance: Instance, result: Result, sliced: int | None, exact_step: bool, shortest_ns: int, out_of_time: Callable[[], bool]
) -> DepthCandidate:
    """Turn a method's result on an instance into a candidate: improve its cuts for the whole step (iteration and gradient
    synchronisation), choose the number of sliced micro-batches (first micro-batches that run as two halves), and evaluate the
    times.

    instance: the sub-layers' pass times, the number of pipeline stages and of micro-batches, and memory limits. sliced: the
    number of micro-batches to slice in halves, None for the fewest that give all of the gain. exact_step: whether to move the
    result's cuts for a shorter step, until out_of_time returns True. shortest_ns: the shortest step known in ns; a candidate
    that cannot be shorter is not improved."""
    if result.solution is None:
        return DepthCandidate(instance, result)
    slices = sliced != 0 and instance.most_sliced > 0
    bound = step_bound_ns(instance, result.bound, slices)
    hopeless = bound >= shortest_ns
    cuts = load_solution(result.solution).cuts
    if exact_step and not hopeless:
        cuts = shortest_step(instance, cuts, out_of_time)
    count = min(sliced or 0, instance.most_sliced)
    if slices and sliced is None and not hopeless:
        count = least_sliced(instance.work(cuts), instance.micro_batches, instance.syncs_ns(cuts))
    solution = Solution(cuts, count)
    evaluation = evaluate(instance, solution)
    return DepthCandidate(instance, result, solution, evaluation.time_ns, evaluation.step_ns, bound)


def step_bound_ns(instance: Instance, iteration_bound_ns: int | None, slices: bool) -> int:
    """A lower bound in ns on the whole step (the iteration, and gradient synchronisation and other work that stages do after
    their last backward pass) of any cuts of an instance.

    iteration_bound_ns: a lower bound in ns on the iteration in which no micro-batch is sliced, None if there is none; it holds
    for the step only if no micro-batch may be sliced. slices: whether micro-batches may be sliced in halves.

    instance: the sub-layers' pass times, the number of pipeline stages and of micro-batches, and memory limits.

    Proof: the iteration is the end of the first stage, whose step ends with what its sub-layers add, at least the first one's
    part."""
    bound = least_step_ns(instance, slices)
    if slices or iteration_bound_ns is None:
        return bound
    first = instance.sync_ns[:1] if instance.stages > 1 else instance.sync_ns
    return max(bound, iteration_bound_ns + int(first.sum()))
