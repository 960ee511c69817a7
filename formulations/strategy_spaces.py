"""Search spaces by name: which numbers of stages, and which strategies in a stage, a planner may choose from.

    full            PP x the decision tree of DP, SDP, TP with and without CKPT                 (Galvatron-BMW, Section III-B)
    no-ckpt         the same without CKPT                                                        (Galvatron)
    dp+tp, dp+pp    earlier automatic planners: two paradigms, tensor parallelism on the fastest links
    dp, tp, pp, sdp one paradigm: PyTorch DDP, Megatron, GPipe, FSDP or ZeRO-3
    3d              two stages, two-way tensor parallelism, data parallelism over the rest               (DeepSpeed 3D)

PP is pipeline, DP data, SDP sharded data and TP tensor parallelism; CKPT is recomputation. A larger space contains every
smaller one: dp, tp, sdp, pp, dp+tp, dp+pp and 3d lie in no-ckpt, which lies in full.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trainplan.formulations.plan.strategy import Paradigm, Strategy, decision_tree
from trainplan.profiling.base.errors import InputError, one_of
from trainplan.profiling.base.quantities import divisors


@dataclass(frozen=True)
class Space:
    """A search space of strategies, with or without pipeline stages.

    Attributes:
        name: the name that users write.
        about: one line for the help.
        stages: takes the number of devices; returns the numbers of stages that the space allows. Callers keep those that
            leave each stage a power of two of devices.
        strategies: takes the number of devices of a stage; returns the strategies that one layer may have on them.
    """

    name: str
    about: str
    stages: Callable[[int], list[int]]
    strategies: Callable[[int], list[Strategy]]


def stage_sizes(devices: int) -> list[int]:
    """The numbers of devices that a stage may have, ascending: the powers of two that divide the number of all devices."""
    return [1 << i for i in range(devices.bit_length()) if devices % (1 << i) == 0]


def stage_depths(devices: int) -> list[int]:
    """The possible numbers of pipeline stages, ascending, if every stage has the same power of two of devices: 48 devices -> 3,
    6, 12, 24 and 48 stages."""
    return [devices // size for size in reversed(stage_sizes(devices))]


def stage_counts(devices: int, pipeline: int | None) -> list[int]:
    """The numbers of pipeline stages to try: the user's (`pipeline`), or, if that is None, all that leave each stage a power of
    two of devices. Raises InputError if the user's is none of these."""
    possible = stage_depths(devices)
    if pipeline is None:
        return possible
    if pipeline not in possible:
        raise InputError("command line", "--pipeline", f"is {pipeline}", f"give one of: {', '.join(map(str, possible))}")
    return [pipeline]


def micro_batch_counts(batch: int, micro_batches: int | None) -> list[int]:
    """The numbers of micro-batches to try: the user's (`micro_batches`), or, if that is None, all divisors of the batch. batch:
    samples per step. Raises InputError if the user's number does not divide the batch."""
    if micro_batches is None:
        return divisors(batch)
    if micro_batches < 1 or batch % micro_batches:
        problem = f"is {batch} in {micro_batches} micro-batches"
        raise InputError("command line", "--batch", problem, "give a multiple of --micro-batches")
    return [micro_batches]


def _one(devices: int) -> list[int]:
    """The only number of stages of a space without pipelines: 1. devices: unused; part of the signature that all spaces
    share."""
    return [1]


def _pure(paradigm: Paradigm) -> Callable[[int], list[Strategy]]:
    """A function that takes the number of devices of a stage and lists the one strategy that uses a single paradigm over all of
    them.

    paradigm: a kind of parallelism, such as "dp" or "tp".
    """
    return lambda group: [Strategy.of((paradigm, group))]


def _without_ckpt(group: int) -> list[Strategy]:
    """All strategies on `group` devices of Galvatron's decision tree (data, sharded data and tensor parallelism) without
    recomputation."""
    return decision_tree(group, ckpt=False)


def _dp_tp(group: int) -> list[Strategy]:
    """All strategies on `group` devices that use data or tensor parallelism or both, with tensor parallelism on the fastest
    links."""
    return [s for s in _without_ckpt(group) if s.degree("sdp") == 1 and [p for p, _ in s.levels] != ["tp", "dp"]]


def _three(group: int) -> list[Strategy]:
    """The one strategy of two-way tensor parallelism with data parallelism over the rest of `group` devices; none on one
    device."""
    return [Strategy.of(("dp", group // 2), ("tp", 2))] if group > 1 else []


SPACES = {
    space.name: space
    for space in (
        Space("full", "PP, DP, SDP, TP and CKPT", stage_depths, decision_tree),
        Space("full-dp-sdp", "full, with DP and SDP mixed (without Takeaway 3)", stage_depths,
              lambda group: decision_tree(group, takeaway3=False)),
        Space("no-ckpt", "PP, DP, SDP and TP", stage_depths, _without_ckpt),
        Space("dp+tp", "DP and TP, one stage", _one, _dp_tp),
        Space("dp+pp", "DP and PP", stage_depths, _pure("dp")),
        Space("dp", "data parallelism", _one, _pure("dp")),
        Space("tp", "tensor parallelism", _one, _pure("tp")),
        Space("sdp", "sharded data parallelism", _one, _pure("sdp")),
        Space("pp", "one device a stage", lambda devices: [devices], _pure("dp")),
        Space("3d", "two stages, two-way TP, DP over the rest", lambda devices: [2] if devices > 3 else [], _three),
    )
}  # fmt: skip


def space(name: str) -> Space:
    """The search space of strategies with a given name. Raises InputError if there is none."""
    if name not in SPACES:
        raise InputError("command line", "--space", f"is {name!r}", one_of(name, SPACES))
    return SPACES[name]
