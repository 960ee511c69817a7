"""What is between a plan's step and the bound, by cause, as far as the plan itself shows it."""

from __future__ import annotations

from trainplan.formulations.joint.evaluation import evaluate
from trainplan.formulations.joint.problem import Instance, Solution
from trainplan.solvers.joint.free_cuts.critical_path_bounds import gpipe_ns, one_f_one_b_ns


def gap_parts(instance: Instance, solution: Solution, gap_ns: int, loosest: float) -> dict[str, int]:
    """The parts of a gap, in ns, which they add up to. loosest: the largest relative gap of a stage that was solved.

    tolerance of stages: what such a stage may be off, of the whole step, at most; step above its longest path: by how much the
    plan's simulated step is above the bounds of single paths, with its own stages' times; left to search: the rest, which is
    what stages may gain between the weights that they were solved at, other cuts, and what time did not allow.
    """
    evaluation, configuration = evaluate(instance, solution), instance.configurations[solution.configuration]
    tolerance = min(gap_ns, int(loosest * evaluation.time_ns))
    path = 0
    if configuration.schedule.chunks == 1 and not configuration.schedule.sliced and configuration.stages > 1:
        path = min(gap_ns - tolerance, evaluation.time_ns - _by_paths_ns(instance, solution))
    return {"tolerance of stages": tolerance, "step above its longest path": path, "left to search": gap_ns - tolerance - path}


def _by_paths_ns(instance: Instance, solution: Solution) -> int:
    """The longest of the single paths that `path_bounds` knows through the stages of a plan, with what stage 0 adds."""
    configuration, evaluation = instance.configurations[solution.configuration], evaluate(instance, solution)
    times, m = [stage.times for stage in evaluation.stages], configuration.micro_batches
    u = [time.micro_batch_ns + time.message_forward_ns + time.message_backward_ns for time in times]
    extra = times[0].last_ns + times[0].reduce_ns + times[0].optimizer_ns + evaluation.tied_ns
    longest = 0
    for x, mine in enumerate(u):
        w, after = len(u) - 1 - x, sum(u[x + 1 :])
        path = gpipe_ns if configuration.schedule.name == "gpipe" else one_f_one_b_ns
        longest = max(longest, sum(u[:x]) + int(path(mine, after, w, m)) + extra)
    return min(longest, evaluation.time_ns)
