"""Search spaces of the joint problem: what may be chosen, and how a step is judged. A paper's problem is one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import get_args

from trainplan.formulations.joint.problem import Schedule, ScheduleName, Step
from trainplan.formulations.step.schedules import most_sliced
from trainplan.formulations.strategies import TREE, Paradigm, Strategy
from trainplan.profiling.base.quantities import divisors

Filter = Callable[[Strategy], bool]
SCHEDULES: tuple[ScheduleName, ...] = get_args(ScheduleName)


@dataclass(frozen=True)
class Space:
    """What may be chosen. Where a field is None, all that is possible.

    depths: numbers of sites in a pipeline; micro_batches: their numbers; schedules: by name, and how many micro-batches may be
    sliced at most, and how many stages a site may have. strategies: those that may be options. cuts: the first units of the
    stages after the first. even_chunks: whether interleaved stages have as many layers each (see `step.chunks`). by_unit:
    whether every sub-layer is cut and chosen by itself; else all of one layer are one. between_layers: whether stages begin
    with a layer. step: how a step is judged.
    """

    depths: Sequence[int] | None = None
    micro_batches: Sequence[int] | None = None
    schedules: tuple[ScheduleName, ...] = ("1f1b",)
    most_sliced: int = 0
    most_chunks: int = 1
    strategies: Filter = lambda strategy: True
    cuts: tuple[int, ...] | None = None
    even_chunks: bool = False
    by_unit: bool = True
    between_layers: bool = False
    step: Step = "simulated"

    def schedules_of(self, depth: int, micro_batches: int, units: int) -> Iterator[Schedule]:
        """The schedules of so many sites, micro-batches and units. Those that come to the same stand once."""
        if "1f1b" in self.schedules:
            yield Schedule("1f1b")
            for sliced in range(1, min(self.most_sliced, most_sliced(depth, micro_batches)) + 1):
                yield Schedule("1f1b", sliced=sliced)
        if "gpipe" in self.schedules and ("1f1b" not in self.schedules or (depth > 1 and micro_batches > 1)):
            yield Schedule("gpipe")
        if "interleaved" in self.schedules and depth > 1 and micro_batches % depth == 0:
            for chunks in range(2, self.most_chunks + 1):
                if depth * chunks <= units:
                    yield Schedule("interleaved", chunks=chunks)


def every_strategy(group: int, tp_degrees: Sequence[int]) -> list[Strategy]:
    """All strategies of one unit on `group` devices with these tensor-parallel degrees, those with recomputation last.

    Degrees are any divisors of the group, of 2 or more. DP and SDP are not mixed, as SDP alone is never worse (Takeaway 3 of
    Galvatron-BMW). For a power of two these are those of the paper's decision trees, in their order.
    """
    strategies = []
    for count in range(len(TREE) + 1):
        for order in permutations(TREE, count):
            if {"dp", "sdp"} <= set(order):
                continue
            strategies += [Strategy(tuple(zip(order, degrees, strict=True))) for degrees in _factors(group, count)]
    kept = [strategy for strategy in strategies if strategy.degree("tp") in tp_degrees]
    return kept + [Strategy(strategy.levels, True) for strategy in kept]


def _factors(number: int, count: int) -> Iterator[tuple[int, ...]]:
    """Ordered factorisations of a number into `count` factors of at least 2, the first factor ascending."""
    if count == 0:
        if number == 1:
            yield ()
        return
    for factor in divisors(number)[1:]:
        for rest in _factors(number // factor, count - 1):
            yield (factor, *rest)


def only(*paradigms: Paradigm, ckpt: bool = True) -> Filter:
    """The strategies of these paradigms, with recomputation or without."""
    return lambda strategy: {paradigm for paradigm, _ in strategy.levels} <= set(paradigms) and (ckpt or not strategy.ckpt)
