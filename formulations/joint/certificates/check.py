"""Checks lower bounds in whole numbers, without trust in the solver that found them.

For every configuration the evidence names a step V that it claims to be impossible, and the prices of memory (points 1 to 3) or
the weighted paths (point 4) that show it. The check needs tables and evidence, nothing else, and shares no code with any
solver:

1. For every span of units, each number n of micro-batches in flight that the evidence lists, and each price w, the least u of
   a stage (both passes of a micro-batch, with the cheapest messages) is at least

       min over choices of  u + w ( sum state + n sum (kept + held) + work of the last unit - E )

   a shortest path along the units by interface states. Likewise the least u + g, g the work after the last micro-batch. Numbers
   in flight between two of the list have at least the bound of the smaller one. Times are scaled by `SCALE`, so that prices are
   whole numbers.
2. With S and H the least sums of u of the stages after and before a span, a step up to V needs, of every stage x of P with
   w = P - 1 - x and m micro-batches,

       1F1B, w < m      H + (m - w) u + max( 2 S, S + w u / 2, w u ) <= V        the paths of micro-batches through x
       1F1B, w >= m     H + max( m u, S + (m + 1) u / 2 ) <= V
       GPipe            H + m u + S <= V

   where the first stage's u counts with its g, in H and in its own row, by the least p u + g for p = 1 and p = m - w (or m of
   GPipe), by which the row rises with u. Spans that break a row are removed; where then no partition is left, V is impossible.
3. Of one stage, the step is m u + g, and bounded likewise. Of schedules with halves or chunks the bound is m times an even
   share of the least u, and the least that the first unit adds.
4. Paths through the passes of a schedule, and prices of each stage's memory, bound every pipeline of the configuration at once
   (`path_bound`): sharper than 2 where there are few micro-batches, since there no path through one stage is the longest.

Such a bound is weaker than the solver's own, which solves stages exactly; users are told both.
"""

from __future__ import annotations

from trainplan.formulations.joint.certificates.file import ConfigurationEvidence, Evidence
from trainplan.formulations.joint.certificates.path_bound import least_by_paths_ns
from trainplan.formulations.joint.certificates.price_bound import PriceCheck, least_single_ns
from trainplan.formulations.joint.lower_bounds import closed_form_ns
from trainplan.formulations.joint.problem import Configuration, Instance, uncounted


def checked_bound_ns(instance: Instance, evidence: Evidence) -> int:
    """The lower bound in ns on the simulated step of every plan of an instance that evidence proves, checked without a solver:
    the smallest of the bounds of all configurations (schedule, number of micro-batches and device groups). evidence: what a
    solver gathered, for each configuration.

    instance: the configurations to choose from, with costs and memory limits. Raises ValueError if the evidence belongs to
    another instance, or claims more than it proves.
    """
    if instance.step != "simulated":
        raise ValueError(f"the step is {instance.step!r}; evidence is of simulated ones")
    if evidence.instance != instance.digest:
        raise ValueError("the evidence is of another instance")
    if len(evidence.configurations) != len(instance.configurations):
        raise ValueError("the evidence does not have one entry for each configuration")
    if why := uncounted(instance):
        raise ValueError(f"the instance has {why}, which evidence does not count")
    bounds = []
    for index, (configuration, claim) in enumerate(zip(instance.configurations, evidence.configurations, strict=True)):
        bound = closed_form_ns(instance, configuration)
        if claim.impossible_ns >= bound:
            if possible(instance, configuration, claim):
                raise ValueError(f"configurations[{index}] may have a step of {claim.impossible_ns} ns by this evidence")
            bound = claim.impossible_ns + 1
        bounds.append(bound)
    return min(bounds)


def possible(instance: Instance, configuration: Configuration, claim: ConfigurationEvidence) -> bool:
    """Whether, as far as the evidence shows, a plan of a configuration (schedule, number of micro-batches and device groups)
    may still have a step up to `claim.impossible_ns`, which the evidence claims to be impossible. True also where the
    evidence has a form that this check does not support. claim: the evidence for the configuration. instance: the
    configurations to choose from, with costs and memory limits.
    """
    schedule = configuration.schedule
    if not schedule.has_closed_forms or len({group.kind for group in configuration.device_groups}) > 1:
        return True
    if len({(instance.limit_bytes(group), instance.host_limit_bytes(group)) for group in configuration.device_groups}) > 1:
        return True
    if claim.paths and configuration.stages > 1:
        return least_by_paths_ns(instance, configuration, claim) <= claim.impossible_ns
    if not claim.prices or not claim.depths or min(claim.prices) < 0:
        return True
    in_flight = [configuration.in_flight(x) for x in range(configuration.stages)]
    depths = claim.depths
    if not 1 <= depths[0] <= min(in_flight) or depths[-1] > max(in_flight) or list(depths) != sorted(depths):
        return True
    if configuration.stages == 1:
        return least_single_ns(instance, configuration, claim.prices) <= claim.impossible_ns
    return PriceCheck(instance, configuration, claim).possible(claim.impossible_ns)
