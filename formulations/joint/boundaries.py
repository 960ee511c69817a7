"""Times of boundaries between units, from a profile: re-layouts within stages and messages between them, by interface state.

The interface state of a strategy says how the ranks of a stage share the hidden states: the samples that each rank has and,
with sequence parallelism, the tokens. Where two neighbouring units differ in it, programs move the difference, forward and
backward alike: a rank gathers all tokens of its own samples, gathers missing samples from the ranks that have them, and keeps
its own tokens. A message between stages has the sender's state. Strategies whose ranks cannot be numbered in common digits
(such as dp2-tp3 and dp3-tp2) may not be neighbours, since every rank would have to gather a whole micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
from trainplan.formulations.costs.sequential.communication import gather_tokens_ns, slice_gather_ns, slowest_message_ns
from trainplan.formulations.joint.cluster_symmetry import Pairs, stage_links, stage_pairs
from trainplan.formulations.joint.tables import FORBIDDEN, Boundary
from trainplan.formulations.numbers import Integers
from trainplan.formulations.plan.rank_grid import common_digits
from trainplan.formulations.plan.strategy import Digit, Strategy
from trainplan.profiling.profiles import Profile

State = tuple[tuple[Digit, ...], Digit | None]


def state_of(strategy: Strategy) -> State:
    """The interface state of a strategy, which says how ranks share the hidden states before and after a unit: the digits of a
    rank's number that say which samples the rank has, and the digit that says which tokens (None without sequence
    parallelism). Neighbouring units whose strategies have equal states need no re-layout.
    """
    return strategy.layout, strategy.token_digit


def state_name(state: State) -> str:
    """The name of an interface state (how ranks share hidden states) for users. It writes each digit of the rank's number as
    number of values x distance of ranks: if samples are numbered by 4 values at distance 2, and tokens by 2 at distance 1,
    `4x2, tokens 2x1`; `whole` if all ranks have all samples.
    """
    samples, tokens = state
    words = ["-".join(f"{degree}x{stride}" for stride, degree in samples) or "whole"]
    return ", tokens ".join([*words, *(f"{degree}x{stride}" for stride, degree in ([] if tokens is None else [tokens]))])


class Boundaries:
    """Times and sizes of the boundaries between the units (sub-layers, or layers) of one profiled model, in pipelines whose
    stages have equally many devices.

    An interface state says which samples and tokens of the hidden states between two units each rank of a stage has. A
    re-layout brings hidden states from one interface state into another.
    """

    state_of: Callable[[Strategy], Any] = staticmethod(state_of)
    state_name: Callable[[Any], str] = staticmethod(state_name)

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.links = cache(partial(stage_links, profile))
        self.pairs: Callable[[int], list[Pairs]] = cache(partial(stage_pairs, profile))

    def boundary(
        self, size: int, strategies: Sequence[Strategy], group: int, samples: int, sliced: bool, chunks: int = 1
    ) -> Boundary:
        """The costs of one kind of boundary between two units: the re-layout between each pair of interface states, and the
        message where a stage begins after the boundary.

        size: bytes of one sample's hidden states. strategies: one strategy for each interface state, in the order of the
        states' numbers. group: the number of devices of a stage. samples: samples per micro-batch. sliced: whether
        micro-batches may run in halves; times of halves are then added. chunks: unused; part of a signature that a subclass
        uses, the number of stages on each device group.
        """
        shape = (len(self.pairs(group)), len(strategies), len(strategies))
        there, sent = self._relayouts(size, strategies, samples), self._messages(size, strategies, group, samples)
        halves: dict[str, Any] = {}
        if sliced:
            half = self._relayouts(size, strategies, samples // 2)
            half_sent = self._messages(size, strategies, group, samples // 2)
            halves["halved_relayout_forward_ns"], halves["halved_relayout_backward_ns"] = (
                half,
                np.minimum(2 * half.T, FORBIDDEN),
            )
            halves["halved_message_forward_ns"] = np.broadcast_to(half_sent[:, :, None], shape).copy()
        sizes = np.array([message_bytes(strategy, samples, size) for strategy in strategies], np.int64)
        return Boundary(
            message_forward_bytes=np.broadcast_to(sizes[:, None], shape[1:]).copy(),
            message_backward_bytes=np.broadcast_to(sizes[None, :], shape[1:]).copy(),
            relayout_forward_ns=there,
            relayout_backward_ns=there.T.copy(),
            message_forward_ns=np.broadcast_to(sent[:, :, None], shape).copy(),
            message_backward_ns=np.broadcast_to(sent[:, None, :], shape).copy(),
            **halves,
        )

    def _relayouts(self, size: int, strategies: Sequence[Strategy], samples: int) -> Integers:
        """(C, C): the time in ns to bring the hidden states of `samples` samples from the interface state of one strategy (row)
        into that of another (column); FORBIDDEN where neighbouring units may not have the two states. size: bytes of one
        sample's hidden states. strategies: one for each of the C interface states."""
        times = np.zeros((len(strategies), len(strategies)), np.int64)
        for a, before in enumerate(strategies):
            for b, after in enumerate(strategies):
                if common_digits([before, after]) is None:
                    times[a, b] = FORBIDDEN
                    continue
                moves = (slice_gather_ns, gather_tokens_ns)
                times[a, b] = sum(round(move(self.profile, before, after, samples, size)) for move in moves)
        return times

    def _messages(self, size: int, strategies: Sequence[Strategy], group: int, samples: int) -> Integers:
        """(K, C): the time in ns to send the hidden states of `samples` samples to the next stage, by kind of link (K kinds)
        and by the interface state of each strategy (C strategies). size: bytes of one sample's hidden states. group: the number
        of devices of a stage. strategies: one for each of the C interface states.
        """
        messages = [message_bytes(strategy, samples, size) for strategy in strategies]
        times = [[slowest_message_ns(self.profile, message, ranks) for message in messages] for ranks in self.pairs(group)]
        return np.array(times, np.int64).reshape(len(times), len(strategies))


def message_bytes(strategy: Strategy, samples: int, size: int) -> int:
    """The bytes of hidden states that one rank sends to the next stage for a micro-batch. samples: samples per micro-batch.
    size: bytes of one sample's hidden states."""
    return samples // strategy.data_degree * size // strategy.share(0)[1]
