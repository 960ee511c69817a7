"""Digits of ranks: what is moved digit by digit keeps its groups, and what lies alike in islands has equal links."""

from __future__ import annotations

import random
from itertools import pairwise
from math import prod

import pytest
from trainplan.formulations.plan.rank_grid import Digits, alike_over, common_digits
from trainplan.formulations.plan.strategy import Strategy, gather_ranks
from trainplan.profiling.clusters.network import Island, Network

from tests.helpers.plans import all_strategies, parse_strategy

SIZES = [1, 2, 4, 6, 8, 12, 18, 24, 36]


def _strategies(rng: random.Random, size: int) -> list[Strategy]:
    texts = all_strategies(size)
    return [parse_strategy(text) for text in rng.sample(texts, min(len(texts), rng.randint(1, 3)))]


@pytest.mark.parametrize("seed", range(40))
def test_groups_of_a_moved_rank_are_the_moved_groups(seed: int) -> None:
    rng = random.Random(seed)
    size = rng.choice(SIZES)
    strategies = _strategies(rng, size)
    digits = common_digits(strategies)
    if digits is None:
        strides = [{*s.strides().values(), size, 1} for s in strategies]
        assert any(b % a and a % b for one in strides for other in strides for a in one for b in other)
        return
    assert digits.size == size and all(degree > 1 for degree in digits.degrees)
    origin, target = rng.randrange(size), rng.randrange(size)
    moved = [digits.moved(index, origin, target) for index in range(size)]
    assert sorted(moved) == list(range(size)) and moved[origin] == target
    for strategy in strategies:
        for paradigm in ("dp", "sdp", "tp"):
            group = strategy.peers(origin, paradigm)
            assert tuple(sorted(moved[index] for index in group)) == strategy.peers(target, paradigm)
            reached = digits.reach(group)
            assert reached is not None and prod(digits.degrees[number] for number in reached) == len(group)
    for before, after in pairwise(strategies):
        group = gather_ranks(before, after, origin)
        assert tuple(sorted(moved[index] for index in group)) == gather_ranks(before, after, target)
        assert digits.reach(group) is not None


def test_places_that_are_no_whole_span_of_digits_reach_none() -> None:
    digits = Digits((2, 3))
    assert digits.reach([0, 1]) == (0,) and digits.reach([1, 3, 5]) == (1,) and digits.reach(range(6)) == (0, 1)
    assert digits.reach([0, 2]) is None and digits.reach([0, 3]) is None and digits.reach([4]) == ()


def _network(sizes: list[int], devices: int) -> Network:
    islands = [
        Island(devices=size, bandwidth_bytes_per_s=1e9 * (index + 1), shared_by=sizes[0]) for index, size in enumerate(sizes)
    ]
    return Network(islands=[*islands, Island(devices=devices, bandwidth_bytes_per_s=1e8, shared_by=sizes[0])])


@pytest.mark.parametrize("seed", range(60))
def test_what_lies_alike_has_equal_links(seed: int) -> None:
    """Groups, re-layouts and messages of all stages, each looked up by itself; and not all that have equal links lie alike."""
    rng = random.Random(seed)
    size, stages = rng.choice(SIZES), rng.choice([1, 2, 3, 4])
    network = _network(sorted(rng.sample([2, 3, 4, 6, 8, 12], rng.choice([1, 2]))), size * stages)
    strategies = _strategies(rng, size)
    if not alike_over(network, size * stages, *strategies):
        return

    def links(groups: list[list[int]]) -> int:
        return len({network.link(group) for group in groups if len(group) > 1})

    for strategy in strategies:
        for other in strategies:
            every = [
                [stage * size + r for r in gather_ranks(strategy, other, p)] for stage in range(stages) for p in range(size)
            ]
            assert links(every) <= 1
        for paradigm in ("dp", "sdp", "tp"):
            every = [[stage * size + r for r in strategy.peers(p, paradigm)] for stage in range(stages) for p in range(size)]
            assert links(every) <= 1
    for stage in range(stages - 1):
        assert links([[stage * size + index, (stage + 1) * size + index] for index in range(size)]) <= 1


def test_islands_that_cut_groups_in_two_are_unlike() -> None:
    network = _network([8], 96)
    assert alike_over(network, 96, parse_strategy("dp3-tp8")) and alike_over(network, 96, parse_strategy("dp12-tp8"))
    assert alike_over(network, 96, parse_strategy("sdp48"), parse_strategy("dp6-tp8"))
    assert not alike_over(network, 96, parse_strategy("dp2-tp6"))  # devices 6 to 11 are on two nodes, 0 to 5 on one
    assert not alike_over(network, 96, parse_strategy("dp2-tp6"), parse_strategy("dp12"))
