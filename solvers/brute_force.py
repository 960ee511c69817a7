"""Every choice, one after the other: the judge of tiny instances."""

from __future__ import annotations

from itertools import product
from math import prod

from trainplan.formulations.layer_strategies.problem import Instance, evaluate
from trainplan.solvers.search import Outcome, Search, TooLarge

LARGEST = 2_000_000


def brute_force(instance: Instance, search: Search) -> Outcome:
    """The optimum of an instance with at most two million choices. Raises TooLarge for a larger one."""
    count = prod(instance.options)
    if count > LARGEST:
        shown = f"{count:.3g}" if count < 10**300 else "over 1e300"
        raise TooLarge(
            "command line", "--method", f"is 'brute-force' for {shown} choices", "give 'exact'; brute force takes 2e6"
        )
    for number, choice in enumerate(product(*(range(options) for options in instance.options))):
        if number % 4096 == 0 and search.out_of_time():
            return Outcome(message="time ran out")
        result = evaluate(instance, choice)
        if result.peak_bytes <= instance.memory_bytes and (search.objective is None or result.time_ns < search.objective):
            search.report(choice)
    if search.objective is None:
        return Outcome(infeasible=True, bound_source="enumeration of all choices")
    search.report(bound=search.objective)
    return Outcome(bound=search.objective, bound_source="enumeration of all choices")
