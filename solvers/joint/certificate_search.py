"""Finds evidence of a lower bound of the joint problem, which `formulations.joint.certificates` checks without any solver.

The check has no exact stages, so it can prove less than the search has: for every configuration the largest step that prices of
memory, or weighted paths, show to be impossible. The bound is the least of all configurations', so the configuration that has
the least at the time gets the next of its proof methods, the cheapest first:

    few prices    of one number of micro-batches in flight: enough for most configurations
    prices        all of them, and many numbers in flight; of one stage the best one
    paths         `by_paths`; before prices where pipelines mostly fill and empty

The search ends where the configuration of the least bound has no method left, its bound reaches the plan's step, or time is up.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from trainplan.formulations.joint.certificates.file import SCALE, ConfigurationEvidence, Evidence, WeightedPath
from trainplan.formulations.joint.certificates.path_bound import least_by_paths_ns
from trainplan.formulations.joint.certificates.price_bound import PriceCheck, TooLarge, least_single_ns
from trainplan.formulations.joint.lower_bounds import closed_form_ns
from trainplan.formulations.joint.problem import Configuration, Instance
from trainplan.solvers.core.search import Search
from trainplan.solvers.joint.fixed_cuts.critical_path import Path
from trainplan.solvers.joint.free_cuts.lp_bound import DualPoint, FreeCuts
from trainplan.solvers.joint.stages.option_tables import stage_tables
from trainplan.solvers.joint.stages.span_bounds import prices_of

ROUGH, FINE = 1e-2, 1e-4  # of a step, to which the largest claim that the check follows is sought
GRID = 1.25  # between neighbouring numbers of micro-batches in flight
FEW = 3  # prices that are tried first
AROUND, GROWTH = 8, 1.01  # how far prices of one stage lie around these; between neighbouring ones
SOURCE = "evidence"
NOTHING = ConfigurationEvidence(-1)

# From an instance and the index of a configuration: the largest step that can be shown to be impossible, of at least the first
# number and at most the second one; NOTHING where there is none.
ProofMethod = Callable[[Instance, int, int, int, Search], ConfigurationEvidence]


def evidence(instance: Instance, objective_ns: int, search: Search | None = None) -> Evidence:
    """Find evidence of the largest lower bound that can be shown without a solver, up to a plan's step time: for every
    configuration (number of stages and micro-batches, with a schedule) the claim that no step takes at most some number of ns,
    with the numbers that prove it; every claim returned has been checked.

    instance: the units (sub-layers) of a model, their options (parallel strategies) with times and memory, and the
    configurations (number of stages and micro-batches, schedule) to choose from. objective_ns: the plan's step time in ns.
    search: gives the time limit, and receives the lower bound on all configurations whenever it rises; None for no limit.
    Configurations for which there is no time have a bound in closed form. Bounds of a runtime's prediction need no evidence:
    whoever checks them computes them again."""
    if instance.runtime is not None:
        return Evidence(instance.digest, ())
    search, configurations = search or Search(lambda _: None), instance.configurations
    claims, target = [NOTHING] * len(configurations), objective_ns - 1
    waiting = [
        (closed_form_ns(instance, configuration), configuration_index, _proof_methods(configuration))
        for configuration_index, configuration in enumerate(configurations)
    ]
    heapq.heapify(waiting)
    while not search.out_of_time():
        bound, configuration_index, methods = waiting[0]
        search.report(bound=min(bound, objective_ns), source=SOURCE)
        if bound > target or not methods:
            break
        claim = methods[0](instance, configuration_index, bound, target, search)
        if claim.impossible_ns >= bound:
            claims[configuration_index], bound = claim, claim.impossible_ns + 1
        heapq.heapreplace(waiting, (bound, configuration_index, methods[1:]))
    return Evidence(instance.digest, tuple(claims))


def _proof_methods(configuration: Configuration) -> tuple[ProofMethod, ...]:
    """The functions that look for evidence of a configuration's lower bound, which depend on its schedule and number of stages,
    in the order in which they are tried; empty for schedules that have none (interleaved or sliced)."""
    if not configuration.schedule.has_closed_forms:
        return ()
    if configuration.stages == 1:
        return (_by_one_price,)
    if configuration.micro_batches < 2 * configuration.stages:
        return _by_few_prices, _by_paths, _by_prices
    return _by_few_prices, _by_prices, _by_paths


def _prices(instance: Instance, configuration_index: int) -> tuple[int, ...]:
    """Prices of a byte of memory at which some sub-layer's option of least (time + price x bytes) changes, ascending, as whole
    numbers in units of 1 / SCALE ns.

    instance: the units (sub-layers) of a model, their options (parallel strategies) with times and memory, and the
    configurations (number of stages and micro-batches, schedule) to choose from. configuration_index: the configuration's index
    in the instance."""
    configuration = instance.configurations[configuration_index]
    in_flight = [configuration.in_flight(0), configuration.in_flight(configuration.stages - 1)]
    prices = prices_of(stage_tables(configuration.tables[configuration.device_groups[0].kind]), sorted(in_flight))
    return tuple(sorted({round(float(price) * SCALE) for price in prices}))


def _few(prices: tuple[int, ...]) -> tuple[int, ...]:
    """About three of the given prices of memory, evenly spaced by index, as the first to try. prices: whole numbers in units of
    1 / SCALE ns per byte."""
    return prices[:: max(1, len(prices) // FEW)]


def _by_one_price(
    instance: Instance, configuration_index: int, bound: int, target: int, search: Search
) -> ConfigurationEvidence:
    """Look for evidence that no plan of a configuration (number of stages and micro-batches, with a schedule) of one stage has
    a step time of at most some number of ns, by a single price of a byte of memory (a Lagrangian bound). The bound that a price
    shows rises up to the best price and falls after it, so bisection finds it.

    instance: the units (sub-layers) of a model, their options (parallel strategies) with times and memory, and the
    configurations (number of stages and micro-batches, schedule) to choose from. configuration_index: the configuration's index
    in the instance. search: the run's limits and options, and its best solution so far; only read here. bound: a known lower
    bound in ns. target: the step time in ns up to which evidence is wanted. Returns the evidence for the largest time found,
    NOTHING (no evidence) if less than `bound` is shown."""
    configuration, prices = instance.configurations[configuration_index], _dense(_prices(instance, configuration_index))
    shown: dict[int, int] = {}

    def value(number: int) -> int:
        if number not in shown:
            shown[number] = least_single_ns(instance, configuration, prices[number : number + 1]) - 1
        return shown[number]

    low, high = 0, len(prices) - 1
    while low < high and max(shown.values(), default=-1) < target and not search.out_of_time():
        middle = (low + high) // 2
        low, high = (middle + 1, high) if value(middle) < value(middle + 1) else (low, middle)
    best = max(shown, key=shown.__getitem__, default=0)
    claim = ConfigurationEvidence(min(value(best), target), (prices[best],), (configuration.in_flight(0),))
    return claim if claim.impossible_ns >= bound else NOTHING


def _dense(prices: tuple[int, ...]) -> tuple[int, ...]:
    """A fine grid of prices of memory around the given ones, ascending, 0 included, each about 1 % larger than the one before.
    Prices are whole numbers in units of 1 / SCALE ns per byte. prices: the given ones, ascending."""
    positive = [price for price in prices if price]
    dense, price = [0], min(positive, default=1) // AROUND
    while price <= max(positive, default=1) * AROUND:
        price = max(price + 1, int(price * GROWTH))
        dense.append(price)
    return tuple(dense)


def _by_few_prices(
    instance: Instance, configuration_index: int, bound: int, target: int, search: Search
) -> ConfigurationEvidence:
    """Look for evidence that no plan of a configuration (number of stages and micro-batches, with a schedule) of several stages
    has a step time of at most some number of ns, by Lagrangian bounds at a few prices of a byte of memory, with memory counted
    for the least number of micro-batches in flight only.

    instance: the units (sub-layers) of a model, their options (parallel strategies) with times and memory, and the
    configurations (number of stages and micro-batches, schedule) to choose from. configuration_index: the configuration's index
    in the instance. search: the run's limits and options, and its best solution so far. bound: a known lower bound in ns.
    target: the step time in ns up to which evidence is wanted. Returns the evidence for the largest time found, NOTHING (no
    evidence) if less than `bound` is shown."""
    configuration = instance.configurations[configuration_index]
    least = min(configuration.in_flight(x) for x in range(configuration.stages))
    claim = ConfigurationEvidence(target, _few(_prices(instance, configuration_index)), (least,))
    return _largest(instance, configuration, claim, bound, ROUGH, search)


def _by_prices(instance: Instance, configuration_index: int, bound: int, target: int, search: Search) -> ConfigurationEvidence:
    """Look for evidence that no plan of a configuration (number of stages and micro-batches, with a schedule) of several stages
    has a step time of at most some number of ns, by Lagrangian bounds at all prices of a byte of memory, with memory counted
    for many numbers of micro-batches in flight.

    instance: the units (sub-layers) of a model, their options (parallel strategies) with times and memory, and the
    configurations (number of stages and micro-batches, schedule) to choose from. configuration_index: the configuration's index
    in the instance. search: the run's limits and options, and its best solution so far. bound: a known lower bound in ns.
    target: the step time in ns up to which evidence is wanted. Returns the evidence for the largest time found, NOTHING (no
    evidence) if less than `bound` is shown."""
    configuration = instance.configurations[configuration_index]
    in_flight = [configuration.in_flight(x) for x in range(configuration.stages)]
    depths = [min(in_flight)]
    while (following := max(depths[-1] + 1, int(depths[-1] * GRID))) <= max(in_flight):
        depths.append(following)
    claim = ConfigurationEvidence(target, _prices(instance, configuration_index), tuple(depths))
    return _largest(instance, configuration, claim, bound, FINE, search)


def _by_paths(instance: Instance, configuration_index: int, bound: int, target: int, search: Search) -> ConfigurationEvidence:
    """Look for evidence that no plan of a configuration (number of stages and micro-batches, with a schedule) has a step time
    of at most some number of ns, by weighted paths (chains of passes that wait for one another) through its schedule.

    instance: the units (sub-layers) of a model, their options (parallel strategies) with times and memory, and the
    configurations (number of stages and micro-batches, schedule) to choose from. configuration_index: the configuration's index
    in the instance. search: the run's limits and options, and its best solution so far. bound: a known lower bound in ns.
    target: the step time in ns up to which evidence is wanted. Returns the evidence for the largest time found, NOTHING (no
    evidence) if less than `bound` is shown."""
    claim = by_paths(instance, configuration_index, target, search)
    return NOTHING if claim is None or claim.impossible_ns < bound else claim


def _largest(
    instance: Instance, configuration: Configuration, claim: ConfigurationEvidence, bound: int, fineness: float, search: Search
) -> ConfigurationEvidence:
    """Find the largest step time in ns that a claim's prices of memory show to be impossible, by bisection between `bound` and
    the step time that the claim states.

    instance: the units (sub-layers) of a model, their options (parallel strategies) with times and memory, and the
    configurations (number of stages and micro-batches, schedule) to choose from. claim: evidence for a configuration (number of
    stages and micro-batches, with a schedule), with prices of memory and the step time up to which the claim is to hold. bound:
    a known lower bound in ns. fineness: the relative precision of the bisection. search: gives the time limit. Returns the
    claim with that step time; NOTHING (no evidence) if it is less than `bound` or the check would be too large."""
    try:
        check = PriceCheck(instance, configuration, claim)
    except TooLarge:
        return NOTHING
    low, high = bound - 1, claim.impossible_ns  # low is shown, or known anyway
    if not check.possible(high):
        return claim
    while high - low > max(1, fineness * high) and not search.out_of_time():
        middle = (low + high) // 2
        low, high = (low, middle) if check.possible(middle) else (middle, high)
    return replace(claim, impossible_ns=low) if low >= bound else NOTHING


WHOLE = 2**20  # of which weights are parts
LEAST_WHOLE = 2**8


def by_paths(instance: Instance, configuration_index: int, target: int, search: Search) -> ConfigurationEvidence | None:
    """Evidence, by weighted paths (chains of passes that wait for one another) through the schedule, that no plan of a
    configuration (number of stages and micro-batches, with a schedule) has a step time of at most `target` ns, or at most the
    largest number of ns for which that can be shown. For configurations with one stage on each of several equal device groups.

    instance: the units (sub-layers) of a model, their options (parallel strategies) with times and memory, and the
    configurations (number of stages and micro-batches, schedule) to choose from. configuration_index: the configuration's index
    in the instance. search: the run's limits and options, and its best solution so far; only read here.

    target: a step time in ns. Returns None if nothing is shown, or the configuration is too large."""
    configuration = instance.configurations[configuration_index]
    cuts = FreeCuts(instance, configuration_index, 0.0)
    with suppress(TimeoutError):
        cuts.run(lambda: cuts.bound <= target, search.check_time)
    whole = WHOLE
    while cuts.point is not None and whole >= LEAST_WHOLE:
        claim = _rounded(cuts, cuts.point, whole)
        with suppress(ValueError):  # numbers that are too large for 64 bits
            shown = least_by_paths_ns(instance, configuration, claim) - 1
            return ConfigurationEvidence(min(shown, target), paths=claim.paths, memory=claim.memory, host=claim.host)
        whole //= 16
    return None


def _rounded(cuts: FreeCuts, point: DualPoint, whole: int) -> ConfigurationEvidence:
    """Turn a dual solution of the linear program, in floats, into evidence in whole numbers, which can be checked exactly.
    cuts: the linear program, with its paths. point: the weights of paths, which add up to 1, and the prices of memory. whole:
    the number that the rounded weights approximately add up to."""
    paths = [weighted(cuts.paths[key], round(weight * whole)) for key, weight in point.weights.items()]
    paths = [path for path in paths if path.weight]
    total = sum(path.weight for path in paths)
    memory, host = (tuple(round(float(price) * total) for price in prices) for prices in (point.memory, point.host))
    return ConfigurationEvidence(-1, paths=tuple(paths), memory=memory, host=host if any(host) else ())


def weighted(path: Path, weight: int) -> WeightedPath:
    """Encode a path through the schedule (a chain of passes that wait for one another) with a whole-number weight in the form
    in which evidence is stored: the path's turns, that is, its choices among the passes that a pass waits for, are packed into
    the bits of one number."""
    return WeightedPath(weight, path.end, path.last_pass_group, int("1" + "".join(map(str, path.turns[::-1])), 2))
