"""Evidence of a bound on the joint problem, for `formulations.joint.certificate` to check without any solver.

The check has no exact stages, so what it can prove is weaker than what the search has proven: of every configuration the
largest step that bounds from prices alone show to be impossible, a little less, so that no rounding is in the way.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from trainplan.formulations.joint.certificate import (
    SCALE,
    ConfigurationEvidence,
    Evidence,
    PriceCheck,
    closed_form_ns,
    least_single_ns,
)
from trainplan.formulations.joint.problem import Instance
from trainplan.solvers.core.search import Search
from trainplan.solvers.joint.candidate import Candidate
from trainplan.solvers.joint.span_bounds import prices_of
from trainplan.solvers.joint.stage_tables import stage_tables

FINENESS = 1e-4  # of a step, to which the largest claim that the check follows is sought
TOLERANCE = 1e-5
NOTHING = ConfigurationEvidence(-1)


def evidence(instance: Instance, objective_ns: int, search: Search | None = None) -> Evidence:
    """Evidence of the largest bound that prices alone give, of a plan's step at most; each claim has been checked.

    search: whose time limit counts: configurations that it does not come to have their bound in closed form alone.
    """
    search, claims = search or Search(lambda _: None), [NOTHING] * len(instance.configurations)
    for place in range(len(claims)):
        try:
            claims[place] = _of(instance, place, objective_ns, search)
        except TimeoutError:
            break
    return Evidence(instance.digest, tuple(claims))


def _of(instance: Instance, place: int, objective_ns: int, search: Search) -> ConfigurationEvidence:
    configuration = instance.configurations[place]
    schedule, least = configuration.schedule, closed_form_ns(instance, configuration)
    if schedule.sliced or schedule.chunks > 1 or least >= objective_ns:
        return NOTHING
    search.check_time()
    depths = sorted({configuration.in_flight(x) for x in range(configuration.stages)})
    prices = prices_of(stage_tables(configuration.tables[configuration.sites[0].kind]), [depths[0], depths[-1]])
    scaled = tuple(sorted({round(float(price) * SCALE) for price in prices}))
    if configuration.stages == 1:
        finer = tuple(sorted({price * part // 4 for price in scaled for part in range(1, 9)} | {0}))
        bound = least_single_ns(instance, configuration, finer)
        return ConfigurationEvidence(min(bound, objective_ns) - 1, finer, tuple(depths))
    candidate = Candidate(instance, place, search)
    candidate.prepare(objective_ns, coarse=False)
    value, _ = candidate.master.bound(objective_ns, TOLERANCE)
    top = float(objective_ns) if np.isinf(value) else min(value, float(objective_ns))
    largest = ConfigurationEvidence(int(top) - 1, scaled, tuple(candidate.grid))
    check = PriceCheck(instance, configuration, largest)
    if not check.possible(largest.impossible_ns):
        return largest
    low, high = least, largest.impossible_ns
    while high - low > max(1, FINENESS * high):
        search.check_time()
        middle = (low + high) // 2
        low, high = (low, middle) if check.possible(middle) else (middle, high)
    return replace(largest, impossible_ns=low) if low > least else NOTHING
