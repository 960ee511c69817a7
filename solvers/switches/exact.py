"""memory-switches, exactly: label-setting over the segments of the synchronised step (H3T, Section 3.3.2, without a grid).

Where synchronisation is forced, the step is a `MemoryChain`: layer i takes a column (r_{i-1}, s_i, lazy_{i+1}) with a time and,
as in Algorithm 4, f = delta_i, ms = resident_i and b = peak_i - delta_i; neighbours agree on the state between them. Equal
layers share their columns. Where synchronisation is free, segments run into each other: see `free_switches`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise, starmap
from typing import Any

import numpy as np
from trainplan.formulations.memory_switches import enumeration
from trainplan.formulations.memory_switches.problem import Instance, Solution, evaluate
from trainplan.formulations.memory_switches.segment_columns import Columns, undominated
from trainplan.formulations.memory_switches.segments import segments
from trainplan.profiling.base.quantities import enough_bytes, format_bytes
from trainplan.solvers.chain.chain import Link, MemoryChain
from trainplan.solvers.chain.label_setting import label_setting as shortest_chain
from trainplan.solvers.chain.least_memory import least_memory
from trainplan.solvers.core.result import Infeasibility
from trainplan.solvers.core.search import Outcome, Search
from trainplan.solvers.switches.free_segments import free_segments


def label_setting(instance: Instance, search: Search) -> Outcome:
    """The optimum with proof, or the best solution and the bound where time runs out. Option: none."""
    if not instance.forced:
        from trainplan.solvers.switches.free_switches import unsynchronised

        return unsynchronised(instance, search)
    try:
        return synchronised(instance, search)
    except TimeoutError:
        return Outcome(message="time ran out before every segment was simulated")


def synchronised(instance: Instance, search: Search) -> Outcome:
    """As `label_setting`, where synchronisation is forced. Raises TimeoutError where time runs out before it has a solution."""
    columns = undominated(segments(instance, search.check_time), search.check_time)
    chain = chain_of_columns(columns, instance.memory_bytes)

    def report(_: object) -> None:
        search.report(None if inner.best is None else solution_of(instance, columns, inner.best), inner.bound)

    inner = search.inner(chain.objective, gap=search.gap, progress=report)
    outcome = shortest_chain(chain, inner)
    return outcome if outcome.infeasible else replace(outcome, choice=None, bound=search.bound)


def chain_of_columns(columns: Sequence[Columns], memory_bytes: int) -> MemoryChain:
    """The chain whose options are columns; links between equal layers are one."""
    link = cache(lambda of_layer, following: Link(of_layer.leaves, following.enters))
    return MemoryChain(
        memory_bytes,
        tuple(of_layer.time_ns for of_layer in columns),
        tuple(of_layer.delta_bytes for of_layer in columns),
        tuple(of_layer.peak_bytes - of_layer.delta_bytes for of_layer in columns),
        tuple(of_layer.resident_bytes for of_layer in columns),
        tuple(starmap(link, pairwise(columns))),
    )


def solution_of(instance: Instance, columns: Sequence[Columns], choice: Sequence[int]) -> Solution:
    """The switches that a choice of columns stands for."""
    return Solution(tuple(instance.options[int(of_layer.option[c])] for of_layer, c in zip(columns, choice, strict=True)))


def explain(instance: Instance) -> Infeasibility | None:
    """Why no solution fits, in the user's terms; None where one does, or where that is not certain.

    It is not where synchronisation is free and layers are many: the least memory that is named is that of synchronised steps,
    and others may need less.
    """
    least, solution = least_switches(instance)
    if _fits(instance, least) is not False:
        return None
    result = evaluate(instance, solution)
    assert result.peak_bytes == least
    running = [o for o in result.timeline if o.lane == "compute" and o.start_ns <= result.peak_ns]
    latest = max(running, key=lambda o: o.start_ns, default=None)
    layer, forward = (latest.layer, latest.what == "forward") if latest else (0, True)
    advice = [f"give --memory of at least {enough_bytes(least)} (the instance's memory_bytes)"]
    whole = int(instance["gathered_parameter_bytes"][layer] + instance["gathered_gradient_bytes"][layer])
    if 2 * whole >= least:
        advice.append(f"split the layer: its whole parameters and gradients take {format_bytes(whole)}, the larger part")
    else:
        batch: Any = instance.provenance.get("batch")
        smaller = f" than {batch}" if isinstance(batch, int) else ""
        advice.append(f"take a smaller --batch{smaller}, or a --cluster of more devices")
    return Infeasibility(
        instance.memory_bytes,
        least,
        layer,
        instance.name_of(layer),
        result.resident_bytes,
        least - result.resident_bytes,
        tuple(advice),
        "forward" if forward else "backward",
        ("shards that stay", "all that comes and goes"),
    )


def fits(instance: Instance) -> bool | None:
    """Whether some solution fits; None where that is not certain, see `explain`."""
    return _fits(instance, least_switches(instance)[0])


def _fits(instance: Instance, least_bytes: int) -> bool | None:
    if least_bytes <= instance.memory_bytes:
        return True
    return False if instance.forced or _certainly_too_much(instance) else None


def least_switches(instance: Instance) -> tuple[int, Solution]:
    """The least peak in bytes of all choices, and one that has it; of synchronised ones alone where there are too many."""
    if not instance.forced and _few(instance):
        return _least_simulated(instance)
    forced = replace(instance, synchronisation="forced")
    columns = undominated(segments(forced))
    least, choice = least_memory(chain_of_columns(columns, instance.memory_bytes))
    return least, solution_of(forced, columns, choice)


def _few(instance: Instance) -> bool:
    return enumeration.count(instance) <= enumeration.most(instance)


def _least_simulated(instance: Instance) -> tuple[int, Solution]:
    """The least peak of all choices, one after the other."""
    lowest = ((int(peaks.min()), choices[peaks.argmin()]) for choices, _, peaks in enumeration.whole_steps(instance))
    least, choice = min(lowest, key=lambda pair: pair[0])
    return least, Solution(tuple(instance.options[int(s)] for s in choice))


def _certainly_too_much(instance: Instance) -> bool:
    """Whether no choice fits, synchronised or not: by all of them where they are few, else by what any of them holds."""
    if _few(instance):
        return True  # by `least_switches`
    certain = free_segments(instance)
    columns = certain.columns(np.zeros_like(certain.peak_bytes))
    return least_memory(chain_of_columns(columns, instance.memory_bytes))[0] > instance.memory_bytes
