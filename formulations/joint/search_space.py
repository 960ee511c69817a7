"""Search spaces of the joint problem: what may be chosen, and how a step is judged. The problem of each paper is one such
space.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations
from typing import Literal, get_args

from trainplan.formulations.joint.problem import Schedule, ScheduleName, Step
from trainplan.formulations.joint.tables import HostPart, Option
from trainplan.formulations.plan.strategy import MODULES, TREE, Module, Paradigm, Strategy
from trainplan.formulations.schedule.orders import most_sliced
from trainplan.profiling.base.quantities import divisors
from trainplan.profiling.models.optimizers import OptimizerName
from trainplan.profiling.models.sublayers import Sublayer, modules_of, why_not_shared

Filter = Callable[[Strategy], bool]
ZeroStage = Literal[0, 1, 2, 3]
Recompute = Literal["none", "modules", "full"]
ZERO_STAGES: tuple[ZeroStage, ...] = get_args(ZeroStage)
SCHEDULES: tuple[ScheduleName, ...] = get_args(ScheduleName)


@dataclass(frozen=True)
class Space:
    """The choices that a plan may have; a field that is None leaves all that are possible.

    depths: numbers of device groups in a pipeline. micro_batches: their numbers. schedules: by name. most_sliced: the largest
    number of sliced micro-batches. most_chunks: the largest number of stages on a device group. zero: ZeRO stages of ranks that
    split the samples, 0 for copies (dp). hybrid: whether such ranks may also hold copies of shards (HSDP). sequence_parallel:
    whether ranks that split a unit may also share its tokens (not where micro-batches are sliced). recompute: the parts of a
    unit that may be recomputed: nothing, all of it, or any of its modules. host: the parts that units may keep on the host (not
    where micro-batches are sliced). strategies: a filter of strategies. cuts: the first units of the stages after the first.
    even_chunks: whether interleaved stages have equally many layers (see `schedule.even_chunks`); even_stages: whether all
    stages do. by_unit: whether every sub-layer is a unit; else every layer is one. between_layers: whether a stage begins with
    a layer. step: how a step is judged. optimizer: of the parameters of all units. messages_beside: whether messages of
    interleaved stages overlap passes. least_memory: whether tables have a lower bound of the programs' bytes, not an upper
    bound.
    """

    depths: Sequence[int] | None = None
    micro_batches: Sequence[int] | None = None
    schedules: tuple[ScheduleName, ...] = ("1f1b",)
    most_sliced: int = 0
    most_chunks: int = 1
    zero: tuple[ZeroStage, ...] = ZERO_STAGES
    hybrid: bool = False
    sequence_parallel: bool = True
    recompute: tuple[Recompute, ...] = ("none", "full")
    host: tuple[HostPart, ...] = ()
    strategies: Filter = lambda strategy: True
    cuts: tuple[int, ...] | None = None
    even_chunks: bool = False
    even_stages: bool = False
    by_unit: bool = True
    between_layers: bool = False
    step: Step = "simulated"
    optimizer: OptimizerName = "adamw"
    messages_beside: bool = False
    least_memory: bool = False

    def schedules_of(self, depth: int, micro_batches: int, units: int) -> Iterator[Schedule]:
        """The schedules of the space for a number of device groups, of micro-batches and of units. Of schedules with equal
        orders only one is given."""
        if "1f1b" in self.schedules:
            yield Schedule("1f1b")
            for sliced in range(1, min(self.most_sliced, most_sliced(depth, micro_batches)) + 1):
                yield Schedule("1f1b", sliced=sliced)
        if "gpipe" in self.schedules and ("1f1b" not in self.schedules or (depth > 1 and micro_batches > 1)):
            yield Schedule("gpipe")
        if "interleaved" in self.schedules and depth > 1 and micro_batches % depth == 0:
            for chunks in range(2, self.most_chunks + 1):
                if depth * chunks <= units:
                    yield Schedule("interleaved", chunks=chunks, beside=self.messages_beside)


def every_strategy(
    group: int, tp_degrees: Sequence[int], zero: Sequence[ZeroStage] = (0, 3), hybrid: bool = False
) -> list[Strategy]:
    """All strategies of a unit on `group` devices with these tensor-parallel degrees, without recomputation.

    Degrees are divisors of the group, 2 or more. zero: ZeRO stages, 0 for dp and others for sdp. hybrid: also dp with sdp
    inside it, one level next to the other, so that shards are gathered over the faster links. For a power of two, stages 0 and
    3 and no hybrids, these are the strategies of Galvatron-BMW's decision trees, in their order.
    """
    sharing: tuple[Literal[1, 2, 3], ...] = (3, 2, 1)
    stages, strategies = [stage for stage in sharing if stage in zero], list[Strategy]()
    for count in range(len(TREE) + 1):
        for order in permutations(TREE, count):
            mixed = {"dp", "sdp"} <= set(order)
            if mixed and not (hybrid and order.index("sdp") == order.index("dp") + 1):
                continue
            if "dp" in order and not mixed and 0 not in zero:
                continue
            for degrees in _factors(group, count):
                levels = tuple(zip(order, degrees, strict=True))
                strategies += [Strategy(levels, zero=stage) for stage in (stages if "sdp" in order else sharing[:1])]
    return [strategy for strategy in strategies if strategy.degree("tp") in tp_degrees]


def options(space: Space, layouts: Sequence[Strategy], parts: Sequence[Sublayer]) -> list[Option]:
    """The options of one unit in a space, made from its layouts; those that recompute less come first.

    layouts: strategies without recomputation. parts: the sub-layers of the unit; none where no model is described, and then
    ranks share no tokens, no modules are recomputed, and nothing is on the host.
    """
    strategies = []
    for ckpt, modules in _recomputed(space, parts):
        for layout in layouts:
            shared = space.sequence_parallel and bool(parts) and layout.degree("tp") > 1
            shared = shared and not any(why_not_shared(part, layout.degree("tp")) for part in parts)
            plain = replace(layout, ckpt=ckpt, modules=modules)
            strategies += [plain, replace(plain, sequence_parallel=True)] if shared else [plain]
    return [
        Option.of(strategy, host)
        for strategy in strategies
        if space.strategies(strategy)
        for host in _on_host(space, strategy, parts)
    ]


def _on_host(space: Space, strategy: Strategy, parts: Sequence[Sublayer]) -> list[tuple[HostPart, ...]]:
    """The sets of parts that a unit under a strategy may have on the host. Parameters may be there only where the optimizer
    works there, and the optimizer only where all states are sharded or none; inputs only of units with one sub-layer that is
    recomputed whole and that no other tensor passes by."""
    states: list[tuple[HostPart, ...]] = [()]
    if "optimizer" in space.host and parts and strategy.zero_stage in (0, 3):
        states += [("optimizer",), *([("optimizer", "parameters")] if "parameters" in space.host else [])]  # type: ignore[list-item]
    away = "hidden" in space.host and strategy.ckpt and len(parts) == 1 and not parts[0].carried_tokens
    return [(*state, *hidden) for hidden in ((), ("hidden",))[: 1 + away] for state in states]


def _recomputed(space: Space, parts: Sequence[Sublayer]) -> list[tuple[bool, tuple[Module, ...]]]:
    """The possible recomputations of a unit: whether all of it is recomputed, and else which of its modules are."""
    named = {module for part in parts for module in modules_of(part)}
    modules = [module for module in MODULES if module in named]
    some = [chosen for count in range(1, len(modules) + 1) for chosen in combinations(modules, count)]
    choices: list[tuple[bool, tuple[Module, ...]]] = [(False, ())] * ("none" in space.recompute)
    choices += [(False, chosen) for chosen in some if "modules" in space.recompute]
    return choices + [(True, ())] * ("full" in space.recompute)


def _factors(number: int, count: int) -> Iterator[tuple[int, ...]]:
    """The ordered factorisations of a number into `count` factors of at least 2, by ascending first factor."""
    if count == 0:
        if number == 1:
            yield ()
        return
    for factor in divisors(number)[1:]:
        for rest in _factors(number // factor, count - 1):
            yield (factor, *rest)


def only(*paradigms: Paradigm, ckpt: bool = True) -> Filter:
    """A filter of strategies with no other paradigms than these, and without recomputation unless `ckpt` is true."""
    return lambda strategy: {paradigm for paradigm, _ in strategy.levels} <= set(paradigms) and (ckpt or not strategy.ckpt)
