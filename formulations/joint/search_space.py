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
from trainplan.formulations.plan.strategy import (
    COPIES,
    DATA,
    LEVELS,
    MODULES,
    TREE,
    Exchange,
    Module,
    Paradigm,
    Strategy,
    mixes_states,
)
from trainplan.formulations.schedule.orders import SCHEDULES as SCHEDULE_SPECS
from trainplan.formulations.schedule.orders import most_sliced
from trainplan.profiling.base.quantities import divisors
from trainplan.profiling.models.optimizers import OptimizerName
from trainplan.profiling.models.sublayers import Sublayer, modules_of, why_not_shared

Filter = Callable[[Strategy], bool]
ZeroStage = Literal[0, 1, 2, 3]
Recompute = Literal["none", "modules", "full"]
ZERO_STAGES: tuple[ZeroStage, ...] = get_args(ZeroStage)
SCHEDULES: tuple[ScheduleName, ...] = get_args(ScheduleName)
BOUNDED = tuple(  # those that every method solves, which `--schedule all` means
    name for name in SCHEDULES if Schedule(name).has_closed_forms or SCHEDULE_SPECS[Schedule(name).planned].chunked
)


@dataclass(frozen=True)
class Space:
    """The choices that a plan may have; a field that is None leaves all that are possible. A unit is a sub-layer or, with
    by_unit False, a layer: what has one option.

    depths: numbers of device groups in a pipeline. micro_batches: numbers of micro-batches per step. schedules: names of
    schedules. most_sliced: the largest number of sliced micro-batches. most_chunks: the largest number of stages on a device
    group. zero: ZeRO stages of ranks that split the samples, 0 for copies (dp). hybrid: whether such ranks may also hold copies
    of shards (HSDP). sequence_parallel: whether ranks that split a unit may also share its tokens (not where micro-batches are
    sliced). recompute: the parts of a unit that may be recomputed: nothing, all of it, or any of its modules. host: the parts
    that units may keep on the host (not where micro-batches are sliced). strategies: a function that says whether a strategy is
    allowed. cuts: the first units of the stages after the first. even_chunks: whether interleaved stages have equally many
    layers (see `schedule.even_chunks`); even_stages: whether all stages do. by_unit: whether every sub-layer is a unit; else
    every layer is one. between_layers: whether a stage begins with a layer. step: the formula by which stages' times add up to
    the step. optimizer: the optimizer of the parameters of all units. least_memory: whether tables have a lower bound of the
    programs' bytes, not an upper bound. overlapped: whether costs are those of the cost model `streams`, in which collectives,
    and messages of interleaved stages, overlap passes. cp, exchange: the context-parallel degree of all units, and what
    context-parallel ranks send each other for attention. first_layers: the user's text for how many first layers of each stage
    are recomputed (`--recompute-first`), where nothing else is. shards_in_pipelines: whether ranks of one of several stages may
    share parameters and gradients (ZeRO stages 2 and 3) where costs count overlap; those of a runtime that does so are known.
    unit_layouts: whether, with costs that count overlap, units of one plan may have unlike layouts.
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
    least_memory: bool = False
    overlapped: bool = False
    cp: int = 1
    exchange: Exchange = "keys"
    first_layers: str | None = None
    shards_in_pipelines: bool = False
    unit_layouts: bool = False

    def schedules_of(self, depth: int, micro_batches: int, units: int) -> Iterator[Schedule]:
        """The schedules that the space allows for a pipeline; of several schedules with equal orders of passes only one is
        given. depth: the number of device groups. micro_batches: the number of micro-batches per step. units: the number of
        units of the model.
        """
        if "1f1b" in self.schedules:
            yield Schedule("1f1b")
            for sliced in range(1, min(self.most_sliced, most_sliced(depth, micro_batches)) + 1):
                yield Schedule("1f1b", sliced=sliced)
        if "1f1b" not in self.schedules or (depth > 1 and micro_batches > 1):
            for name in self.schedules:
                if name != "1f1b" and not SCHEDULE_SPECS[Schedule(name).planned].chunked:
                    yield Schedule(name)
        if "interleaved" in self.schedules and depth > 1 and micro_batches % depth == 0:
            for chunks in range(2, self.most_chunks + 1):
                if depth * chunks <= units:
                    yield Schedule("interleaved", chunks=chunks, overlaps_messages=self.overlapped)


def every_strategy(
    group: int, tp_degrees: Sequence[int], zero: Sequence[ZeroStage] = (0, 3), hybrid: bool = False
) -> list[Strategy]:
    """All strategies of a unit (sub-layer or layer) on a stage of `group` devices, without recomputation.

    tp_degrees: the tensor-parallel degrees to choose from; 1 stands for none. zero: ZeRO stages, 0 for dp and others for sdp.
    hybrid: also dp with sdp inside it, one level next to the other, so that shards are gathered over the faster links. For a
    power of two, stages 0 and 3 and no hybrids, these are the strategies of Galvatron-BMW's decision trees, in their order.
    """
    sharing: tuple[Literal[1, 2, 3], ...] = (3, 2, 1)
    stages, strategies = [stage for stage in sharing if stage in zero], list[Strategy]()
    for count in range(len(TREE) + 1):
        for order in permutations(TREE, count):
            data = [index for index, name in enumerate(order) if name in DATA]
            copies, mixed = any(name in COPIES for name in order), mixes_states(order)
            if mixed and not (hybrid and data[-1] - data[0] == len(data) - 1 and LEVELS[order[data[-1]]].shares):
                continue
            if copies and not mixed and 0 not in zero:
                continue
            for degrees in _factors(group, count):
                levels = tuple(zip(order, degrees, strict=True))
                strategies += [Strategy(levels, zero=stage) for stage in (stages if "sdp" in order else sharing[:1])]
    return [strategy for strategy in strategies if strategy.degree("tp") in tp_degrees]


def options(space: Space, layouts: Sequence[Strategy], parts: Sequence[Sublayer]) -> list[Option]:
    """The options of one unit in a search space, made from layouts; those that recompute less come first.

    layouts: strategies without recomputation. parts: the sub-layers of the unit; none where no model is described, and then
    ranks share no tokens, no modules are recomputed, and nothing is on the host. space: the allowed schedules, stages,
    strategies and recomputations.
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
    """The sets of parts that a unit under a strategy may keep on the host, each a tuple in the order of HOST_PARTS; the empty
    one is always included. parts: the sub-layers of the unit. Parameters may be there only where the optimizer works there, and
    the optimizer only where all states are sharded or none; inputs only of units with one sub-layer that is recomputed whole
    and that no other tensor bypasses. space: the search space, which names the parts that may be there at all."""
    states: list[tuple[HostPart, ...]] = [()]
    if "optimizer" in space.host and parts and strategy.zero_stage in (0, 3):
        states += [("optimizer",), *([("optimizer", "parameters")] if "parameters" in space.host else [])]  # type: ignore[list-item]
    away = "hidden" in space.host and strategy.ckpt and len(parts) == 1 and not parts[0].carried_tokens
    return [(*state, *hidden) for hidden in ((), ("hidden",))[: 1 + away] for state in states]


def _recomputed(space: Space, parts: Sequence[Sublayer]) -> list[tuple[bool, tuple[Module, ...]]]:
    """The possible recomputations of a unit, as pairs: whether the whole unit is recomputed, and otherwise the names of its
    modules that are. parts: the sub-layers of the unit. space: the search space, which names the allowed kinds of
    recomputation.
    """
    named = {module for part in parts for module in modules_of(part)}
    modules = [module for module in MODULES if module in named]
    some = [chosen for count in range(1, len(modules) + 1) for chosen in combinations(modules, count)]
    choices: list[tuple[bool, tuple[Module, ...]]] = [(False, ())] * ("none" in space.recompute)
    choices += [(False, chosen) for chosen in some if "modules" in space.recompute]
    return choices + [(True, ())] * ("full" in space.recompute)


def _factors(number: int, count: int) -> Iterator[tuple[int, ...]]:
    """The ordered factorisations of a number into `count` factors of at least 2, by ascending first factor: 12 into 2 -> (2,
    6), (3, 4), (4, 3), (6, 2)."""
    if count == 0:
        if number == 1:
            yield ()
        return
    for factor in divisors(number)[1:]:
        for rest in _factors(number // factor, count - 1):
            yield (factor, *rest)


def only(*paradigms: Paradigm, ckpt: bool = True) -> Filter:
    """A function (filter) that says whether a strategy is allowed: all of its parallelism levels must be among `paradigms`.
    ckpt: whether strategies with recomputation are allowed.
    """
    return lambda strategy: {paradigm for paradigm, _ in strategy.levels} <= set(paradigms) and (ckpt or not strategy.ckpt)
