"""memory-switches, exactly: label-setting over the segments of the synchronised step (H3T, Section 3.3.2, without a grid).

The step is a `MemoryChain`: layer i takes a column (r_{i-1}, s_i, lazy_{i+1}) with a time and, as in Algorithm 4, f = delta_i,
ms = resident_i and b = peak_i - delta_i; neighbours agree on the state between them. Equal layers share their columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise, starmap
from typing import Any

from trainplan.formulations.memory_switches.problem import Instance, Solution, evaluate
from trainplan.formulations.memory_switches.segment_columns import Columns, undominated
from trainplan.formulations.memory_switches.segments import segments
from trainplan.profiling.base.quantities import enough_bytes, format_bytes
from trainplan.solvers.chain.chain import Link, MemoryChain
from trainplan.solvers.chain.label_setting import label_setting as shortest_chain
from trainplan.solvers.chain.least_memory import least_memory
from trainplan.solvers.core.result import Infeasibility
from trainplan.solvers.core.search import Outcome, Search


def label_setting(instance: Instance, search: Search) -> Outcome:
    """The optimum with proof, or the best solution and the bound where time runs out. Option: none."""
    try:
        columns = undominated(segments(instance, search.check_time), search.check_time)
    except TimeoutError:
        return Outcome(message="time ran out before every segment was simulated")
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
    """Why no solution fits, in the user's terms; None where one does."""
    least, solution = least_switches(instance)
    if least <= instance.memory_bytes:
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


def fits(instance: Instance) -> bool:
    """Whether some solution fits."""
    return least_switches(instance)[0] <= instance.memory_bytes


def at_least_memory(instance: Instance) -> Instance | None:
    """The instance with the least memory that any solution needs; None where nothing needs any."""
    reason = explain(instance.with_memory(1))
    return None if reason is None else instance.with_memory(reason.least_memory_bytes)


def least_switches(instance: Instance) -> tuple[int, Solution]:
    """The least peak in bytes of all choices, and one that has it."""
    columns = undominated(segments(instance))
    least, choice = least_memory(chain_of_columns(columns, instance.memory_bytes))
    return least, solution_of(instance, columns, choice)
