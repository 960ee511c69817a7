"""Costs of moving hidden states: messages between sub-layers, re-layouts between two strategies, and reductions of a tied
table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trainplan.formulations.costs.sequential.primitives import collective
from trainplan.formulations.plan.rank_grid import alike_over
from trainplan.formulations.plan.strategy import Strategy, gather_groups
from trainplan.profiling.clusters.network import Link
from trainplan.profiling.costs import collective_ns, ring_ns
from trainplan.profiling.models.precision import Precision
from trainplan.profiling.profiles import Profile


def moved_bytes(profile: Profile, sublayer: str) -> tuple[int, int]:
    """Bytes of hidden states of one sample that may be re-laid before and after a sub-layer."""
    shape = profile.shapes[sublayer]
    before = 0 if shape.kind == "embedding" else shape.input_bytes + shape.carried_bytes
    return before, 0 if shape.kind == "head" else shape.output_bytes + shape.carried_bytes


def slice_gather_ns(profile: Profile, before: Strategy, after: Strategy, samples: int, sample_bytes: int) -> float:
    """Time of a re-layout in one direction, not rounded: each rank gathers the rows that it works on under `after` but not
    under `before` from the ranks that hold them; the slowest rank counts.

    samples: of a micro-batch over all devices; sample_bytes: hidden states of one sample between the two layers.
    """
    block = samples // before.data_degree * sample_bytes
    if alike_over(profile.network, profile.devices, before, after):
        size, link = _first_gather(profile, before, after)
        return 0.0 if link is None else ring_ns("all-gather", block * size, size, link)
    groups = gather_groups(before, after)
    messages = (collective_ns(profile.network, "all-gather", block * len(ranks), ranks) for ranks in groups)
    return max(messages, default=0.0)


def _first_gather(profile: Profile, before: Strategy, after: Strategy) -> tuple[int, Link | None]:
    """The size of the group of the first rank that gathers rows, and its link; None where ranks only slice. Kept with the
    profile, as groups may have thousands of ranks."""
    key = "first gather", before.layout, after.layout
    if key not in profile.derived:
        ranks = next(gather_groups(before, after), ())
        profile.derived[key] = len(ranks), profile.network.link(ranks, "all-gather") if ranks else None
    size, link = profile.derived[key]
    return size, link


def gather_tokens_ns(profile: Profile, before: Strategy, after: Strategy, samples: int, sample_bytes: int) -> float:
    """Time of a re-layout in one direction before rows are moved, not rounded: all tokens are gathered where ranks share them
    under `before`, unless rows and tokens lie in the same way under `after`. The slowest group counts. Arguments as of
    `slice_gather_ns`."""
    if before.token_digit is None or (before.layout, before.token_digit) == (after.layout, after.token_digit):
        return 0.0
    rows = samples // before.data_degree * sample_bytes
    ranks = [0] if alike_over(profile.network, profile.devices, before) else range(before.group)
    groups = {before.peers(rank, "tp") for rank in ranks}
    return max(collective_ns(profile.network, "all-gather", rows, group) for group in groups)


def shares_table(strategies: Sequence[Strategy], stage: Sequence[int]) -> bool:
    """Whether a table that embedding and head share is one parameter: both are in the stage, and each of its ranks has the same
    part of the table, and of its states, under either strategy. Otherwise it is two, whose gradients are summed once a step.

    strategies: of all units of the model; stage: the indices of the stage's units.
    """
    first, last = strategies[0], strategies[-1]
    ends = 0 in stage and len(strategies) - 1 in stage
    return ends and (first.levels, first.zero_stage) == (last.levels, last.zero_stage)


def tied_ns(profile: Profile, size: int, stages: int = 1, precision: Precision | None = None) -> int:
    """Time to sum the gradients of a table that embedding and head share, over all devices of the first and the last stage.

    size: devices of a stage, of stages that follow each other; precision: of gradients, where it is not the profile's. 0 where
    no table is shared.
    """
    last = size * (stages - 1)
    table = profile.tied_parameters * (precision or profile.precision).gradient_bytes(profile.parameter_bytes)
    return collective(profile, "all-reduce", table, sorted({*range(size), *range(last, last + size)})) if table else 0


def slowest_message_ns(profile: Profile, message_bytes: int, pairs: Iterable[tuple[int, int]]) -> int:
    """Time of a message between two devices, over the slowest of the given pairs."""
    return max((collective(profile, "p2p", message_bytes, pair) for pair in pairs), default=0)
