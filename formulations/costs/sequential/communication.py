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
    """Bytes per sample of the hidden states that may have to be re-laid before and after a sub-layer, as two numbers: its
    input, and its output together with tensors that bypass it. 0 before an embedding and after a head. sublayer: its name
    in the profile. profile: measured or estimated costs of the model's sub-layers and of the devices' links.
    """
    shape = profile.shapes[sublayer]
    before = 0 if shape.kind == "embedding" else shape.input_bytes + shape.carried_bytes
    return before, 0 if shape.kind == "head" else shape.output_bytes + shape.carried_bytes


def slice_gather_ns(profile: Profile, before: Strategy, after: Strategy, samples: int, sample_bytes: int) -> float:
    """The time in ns, not rounded, of gathering samples in a re-layout of hidden states from one strategy to another, in one
    direction: each rank gathers the samples that it works on under `after` but not under `before` from the ranks that hold
    them; the slowest rank counts.

    profile: the costs of the devices' links. samples: samples per micro-batch, over all devices of the stage. sample_bytes:
    bytes of one sample's hidden states.
    """
    block = samples // before.data_degree * sample_bytes
    if alike_over(profile.network, profile.devices, before, after):
        size, link = _first_gather(profile, before, after)
        return 0.0 if link is None else ring_ns("all-gather", block * size, size, link)
    groups = gather_groups(before, after)
    messages = (collective_ns(profile.network, "all-gather", block * len(ranks), ranks) for ranks in groups)
    return max(messages, default=0.0)


def _first_gather(profile: Profile, before: Strategy, after: Strategy) -> tuple[int, Link | None]:
    """For the re-layout of samples from strategy `before` to `after`: the number of ranks in the group of the first rank that
    gathers samples, and the link that this group uses; (0, None) if ranks only slice. The result is kept with the profile,
    since groups may have thousands of ranks. profile: measured or estimated costs of the model's sub-layers and of the
    devices' links.
    """
    key = "first gather", before.layout, after.layout
    if key not in profile.derived:
        ranks = next(gather_groups(before, after), ())
        profile.derived[key] = len(ranks), profile.network.link(ranks, "all-gather") if ranks else None
    size, link = profile.derived[key]
    return size, link


def gather_tokens_ns(profile: Profile, before: Strategy, after: Strategy, samples: int, sample_bytes: int) -> float:
    """The time in ns, not rounded, of the all-gather of tokens that begins a re-layout of hidden states if ranks split tokens
    (sequence parallelism) under strategy `before`; 0 if samples and tokens are laid out alike under `after`. The slowest
    group of ranks counts.

    profile: the costs of the devices' links. samples: samples per micro-batch, over all devices of the stage. sample_bytes:
    bytes of one sample's hidden states.
    """
    if before.token_digit is None or (before.layout, before.token_digit) == (after.layout, after.token_digit):
        return 0.0
    rows = samples // before.data_degree * sample_bytes
    ranks = [0] if alike_over(profile.network, profile.devices, before) else range(before.group)
    groups = {before.peers(rank, "tp") for rank in ranks}
    return max(collective_ns(profile.network, "all-gather", rows, group) for group in groups)


def shares_table(strategies: Sequence[Strategy], stage: Sequence[int]) -> bool:
    """Whether a weight table that embedding and head share is one parameter: both sub-layers are in the stage, and each rank
    of the stage has the same part of the table, and of its states, under both of their strategies. Otherwise it is two
    parameters, whose gradients are summed once per step.

    strategies: the strategy of each sub-layer of the model. stage: the indices of the stage's sub-layers.
    """
    first, last = strategies[0], strategies[-1]
    ends = 0 in stage and len(strategies) - 1 in stage
    return ends and (first.levels, first.zero_stage) == (last.levels, last.zero_stage)


def tied_ns(profile: Profile, size: int, stages: int = 1, precision: Precision | None = None) -> int:
    """The time in whole ns to sum the gradients of a weight table that embedding and head share, over all devices of the first
    and the last stage; 0 if no table is shared.

    size: the number of devices of a stage. stages: the number of stages, whose devices follow each other. precision: the
    precision of gradients; None for the profile's.
    """
    last = size * (stages - 1)
    table = profile.tied_parameters * (precision or profile.precision).gradient_bytes(profile.parameter_bytes)
    return collective(profile, "all-reduce", table, sorted({*range(size), *range(last, last + size)})) if table else 0


def slowest_message_ns(profile: Profile, message_bytes: int, pairs: Iterable[tuple[int, int]]) -> int:
    """The time in whole ns of a message of `message_bytes` bytes between two devices, over the slowest of some pairs of
    devices; 0 for no pairs. pairs: (device, device), as indices in the profile's network."""
    return max((collective(profile, "p2p", message_bytes, pair) for pair in pairs), default=0)
