"""Evidence of a bound on the joint problem, for `formulations.joint.certificate` to check without any solver.

The check has no exact stages, so what it can prove is weaker than what the search has proven: of every configuration the
largest step that prices of memory, or weighted paths, show to be impossible. Prices come first, which most configurations need
no more than.
"""

from __future__ import annotations

from dataclasses import replace

from trainplan.formulations.joint.certificate import possible
from trainplan.formulations.joint.closed_form import closed_form_ns
from trainplan.formulations.joint.evidence import SCALE, ConfigurationEvidence, Evidence
from trainplan.formulations.joint.first_spans import least_single_ns
from trainplan.formulations.joint.price_check import PriceCheck
from trainplan.formulations.joint.problem import Instance
from trainplan.solvers.core.search import Search
from trainplan.solvers.joint.path_evidence import by_paths
from trainplan.solvers.joint.span_bounds import prices_of
from trainplan.solvers.joint.stage_tables import stage_tables

FINENESS = 1e-4  # of a step, to which the largest claim that the check follows is sought
GRID = 1.25  # between neighbouring numbers of micro-batches in flight
FEW = 3  # prices that are tried first
NOTHING = ConfigurationEvidence(-1)


def evidence(instance: Instance, objective_ns: int, search: Search | None = None) -> Evidence:
    """Evidence of the largest bound that prices alone give, of a plan's step at most; each claim has been checked.

    The bound is the least of all configurations', so none is shown to be impossible further than another one is. search: whose
    time limit counts: configurations that it does not come to have their bound in closed form alone.
    """
    search, configurations = search or Search(lambda _: None), instance.configurations
    claims, target = [NOTHING] * len(configurations), objective_ns - 1
    least = [closed_form_ns(instance, configuration) for configuration in configurations]
    for place in sorted(range(len(claims)), key=least.__getitem__):
        if search.out_of_time():
            break
        if least[place] <= target:
            claims[place] = _of(instance, place, least[place], target, search)
            target = min(target, max(claims[place].impossible_ns, least[place] - 1))
    return Evidence(instance.digest, tuple(claims))


def _of(instance: Instance, place: int, least: int, target: int, search: Search) -> ConfigurationEvidence:
    """What can be shown to be impossible of a configuration, up to a step that is enough. least: its bound in closed form."""
    configuration = instance.configurations[place]
    schedule = configuration.schedule
    if schedule.sliced or schedule.chunks > 1:
        return NOTHING
    in_flight = sorted({configuration.in_flight(x) for x in range(configuration.stages)})
    prices = prices_of(stage_tables(configuration.tables[configuration.sites[0].kind]), [in_flight[0], in_flight[-1]])
    scaled = tuple(sorted({round(float(price) * SCALE) for price in prices}))
    few = scaled[:: max(1, len(scaled) // FEW)]
    rough = ConfigurationEvidence(target, few, tuple(in_flight[:1]))
    if not possible(instance, configuration, rough):  # as of most configurations, in a fraction of the time
        return rough
    if configuration.stages == 1:
        finer = tuple(sorted({price * part // 4 for price in scaled for part in range(1, 9)} | {0}))
        shown = min(least_single_ns(instance, configuration, finer) - 1, target)
        return ConfigurationEvidence(shown, finer, tuple(in_flight)) if shown >= least else NOTHING
    depths = [in_flight[0]]
    while (following := max(depths[-1] + 1, int(depths[-1] * GRID))) <= in_flight[-1]:
        depths.append(following)
    largest = ConfigurationEvidence(target, scaled, tuple(depths))
    check = PriceCheck(instance, configuration, largest)
    if not check.possible(target):
        return largest
    paths = by_paths(instance, place, target, search) or NOTHING
    low, high = max(least - 1, paths.impossible_ns), target
    step = max(1, int(FINENESS * high))
    if high - low <= step or check.possible(low + step):
        return paths if paths.impossible_ns >= least else NOTHING
    low += step
    while high - low > step and not search.out_of_time():
        middle = (low + high) // 2
        low, high = (low, middle) if check.possible(middle) else (middle, high)
    return replace(largest, impossible_ns=low)
