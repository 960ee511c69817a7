"""A bound on the step of given stages under every order of their passes."""

from __future__ import annotations

from trainplan.formulations.joint.evaluation import Evaluation
from trainplan.formulations.joint.problem import Configuration


def any_schedule_ns(configuration: Configuration, evaluation: Evaluation) -> int:
    """No order of the passes of these stages with these options has a shorter step, whatever memory it needs: passes of whole
    micro-batches, unless the schedule slices some, with one thing at a time on each device.

    Proof: stage x begins no earlier than micro-batch 0's, or any one's, forward passes through the stages before it allow; then
    its devices run m passes each way; its last backward pass is followed by those of the same micro-batch on the stages before
    x and by what stage 0 adds at last, and by what stage x adds itself. Of chunks on one site, each alone, and all of their
    passes together. A table that both ends of the pipeline share is added up once on each of their sites, which may be one.
    """
    m, stages = configuration.micro_batches, [stage.times for stage in evaluation.stages]
    forward = [each.forward_ns + each.message_forward_ns for each in stages]
    backward = [each.backward_ns + each.message_backward_ns for each in stages]
    if configuration.schedule.sliced:  # whole or in halves, the cheaper of both
        halves = [each.first_half_ns + each.second_half_ns + 2 * each.message_half_ns for each in stages]
        forward = [min(pair) for pair in zip(forward, halves, strict=True)]
        backs = [each.halved_backward_ns + each.message_backward_ns for each in stages]
        backward = [min(pair) for pair in zip(backward, backs, strict=True)]
    ends = [each.reduce_ns + each.optimizer_ns for each in stages]
    ends[0] += evaluation.tied_ns
    if len(stages) > 1:
        ends[-1] += evaluation.tied_ns
    sites, bounds = len(configuration.sites), []
    head = [0] if configuration.schedule.sliced else [sum(forward[:x]) for x in range(len(stages))]
    for x in range(len(stages)):
        begins = head[x] if x < len(head) else 0
        work = begins + m * (forward[x] + backward[x])
        bounds += [work + sum(backward[:x]) + ends[0], work + ends[x]]
    for site in range(sites):
        mine = range(site, len(stages), sites)
        begins = head[site] if site < len(head) else 0
        work = begins + sum(m * (forward[x] + backward[x]) for x in mine)
        tied_twice = evaluation.tied_ns if sites == 1 < len(stages) else 0
        bounds += [work + sum(backward[:site]) + ends[0], work + sum(ends[x] for x in mine) - tied_twice]
    return max(bounds)
