"""Solve memory-switches exactly, by label-setting over the segments of the synchronised step (H3T, Section 3.3.2, without a
grid).

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
    """The method `label-setting` of the problem `memory-switches`, which chooses for every layer which switches (such as
    recomputation or offloading) are on: the fastest choice that fits the memory, with a proof of optimality, or the best choice
    found and a lower bound if time runs out. The method has no options.

    instance: the times and bytes of each layer of a model on one device, and the device's memory. search: the run's limits and
    options, and its best solution so far, to which better ones are reported."""
    try:
        columns = undominated(segments(instance, search.check_time), search.check_time)
    except TimeoutError:
        return Outcome(message="time ran out before every segment was simulated")
    chain = chain_of_columns(columns, instance.memory_bytes)

    def report(_: object) -> None:
        """Pass the best choice and the bound of the search over columns on as switches."""
        search.report(None if inner.best is None else solution_of(instance, columns, inner.best), inner.bound)

    inner = search.inner(chain.objective, gap=search.gap, progress=report)
    outcome = shortest_chain(chain, inner)
    return outcome if outcome.infeasible else replace(outcome, choice=None, bound=search.bound)


def chain_of_columns(columns: Sequence[Columns], memory_bytes: int) -> MemoryChain:
    """Restate the problem `memory-switches` (choose for every layer which switches, such as recomputation or offloading, are
    on) as a memory chain: layers with options under one memory limit, which the label-setting search solves.

    columns: for each layer its options, in parallel arrays: each is a combination of switches, together with the switch states
    that the neighbouring layers must share with it. memory_bytes: the limit. Pairs of neighbouring layers that have equal
    options share one link object."""
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
    """Translate a choice in the memory chain into a solution of the problem `memory-switches`: the switches (such as
    recomputation or offloading) that are on in each layer.

    columns: for each layer its options in the chain, each a combination of switches together with the switch states shared with
    its neighbours. choice: for each layer, the index of the chosen option in `columns`. instance: the times and bytes of each
    layer of a model on one device, and the device's memory."""
    return Solution(tuple(instance.options[int(of_layer.option[c])] for of_layer, c in zip(columns, choice, strict=True)))


def explain(instance: Instance) -> Infeasibility | None:
    """The reason, for users, why no choice of memory switches (for each layer, which of recomputation, offloading, and others
    are on) fits the memory, with advice; None if some choice fits.

    instance: the times and bytes of each layer of a model on one device, and the device's memory."""
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
    """Whether some choice of memory switches (for each layer, which of recomputation, offloading, and others are on) fits the
    instance's memory. The answer is exact.

    instance: the times and bytes of each layer of a model on one device, and the device's memory."""
    return least_switches(instance)[0] <= instance.memory_bytes


def at_least_memory(instance: Instance) -> Instance | None:
    """A copy of the instance whose memory is the least with which some choice of memory switches (for each layer, which of
    recomputation, offloading, and others are on) fits; None if even one byte is enough.

    instance: the times and bytes of each layer of a model on one device, and the device's memory."""
    reason = explain(instance.with_memory(1))
    return None if reason is None else instance.with_memory(reason.least_memory_bytes)


def least_switches(instance: Instance) -> tuple[int, Solution]:
    """The least peak memory in bytes over all choices of memory switches (for each layer, which of recomputation, offloading,
    and others are on), exactly, and a choice that has it.

    instance: the times and bytes of each layer of a model on one device, and the device's memory."""
    columns = undominated(segments(instance))
    least, choice = least_memory(chain_of_columns(columns, instance.memory_bytes))
    return least, solution_of(instance, columns, choice)
