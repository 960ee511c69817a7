"""Cost primitives against their formulas and against the collectives followed step by step."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainplan.profiling.clusters.network import Island, Link, Matrix, Network
from trainplan.profiling.costs import collective_ns, copy_ns, overlapped_ns, ring_ns, tree_ns

LINK = Link(bandwidth_bytes_per_s=1e9, latency_ns=0)


def test_ring_volumes() -> None:
    assert ring_ns("all-reduce", 8e6, 8, LINK) == pytest.approx(2 * 7 / 8 * 8e6)
    assert ring_ns("all-gather", 8e6, 8, LINK) == pytest.approx(7 / 8 * 8e6)
    assert ring_ns("all-to-all", 8e6, 8, LINK) == pytest.approx(7 / 8 * 8e6)
    assert ring_ns("p2p", 8e6, 2, LINK) == copy_ns(8e6, LINK) == pytest.approx(8e6)
    sharded = 2 * ring_ns("all-gather", 8e6, 8, LINK) + ring_ns("reduce-scatter", 8e6, 8, LINK)
    assert sharded == pytest.approx(1.5 * ring_ns("all-reduce", 8e6, 8, LINK))


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_a_ring_followed_step_by_step(ranks: int) -> None:
    """Every rank sends one n-th of the message to its neighbour a step, until all hold the sum of all: count the steps."""
    link = Link(bandwidth_bytes_per_s=2e9, latency_ns=700)
    held = [[{rank} for _ in range(ranks)] for rank in range(ranks)]  # who is summed in which piece, by rank
    steps = 0
    for step in range(2 * (ranks - 1)):
        sent = [(rank, (rank - step) % ranks) for rank in range(ranks)]
        arriving = [((rank + 1) % ranks, piece, set(held[rank][piece])) for rank, piece in sent]
        for rank, piece, summed in arriving:
            held[rank][piece] = held[rank][piece] | summed if step < ranks - 1 else summed
        steps += 1
    assert all(piece == set(range(ranks)) for rank in held for piece in rank)
    message = 6_000_000
    assert ring_ns("all-reduce", message, ranks, link) == pytest.approx(steps * (message / ranks / 2 + 700))


def test_a_tree_is_better_where_latency_rules() -> None:
    link = Link(bandwidth_bytes_per_s=1e11, latency_ns=5000)
    islands = [Island(devices=1024, bandwidth_bytes_per_s=1e11, latency_ns=5000)]
    for message in (1e3, 1e9):
        ring, tree = ring_ns("all-reduce", message, 1024, link), tree_ns(message, 1024, link)
        assert (tree < ring) == (message == 1e3) or tree < ring
        best = Network(islands=islands, algorithm="fastest")
        assert collective_ns(best, "all-reduce", message, range(1024)) == min(ring, tree)
    assert tree_ns(1e3, 1024, link) == pytest.approx(2 * (1e3 / 100 + 10 * 5000))
    assert tree_ns(1e3, 1, link) == 0


def test_overlap_slows_both_down() -> None:
    assert overlapped_ns(10, 4, 1.3) == pytest.approx(11.2)
    assert overlapped_ns(4, 10, 1.3) == overlapped_ns(10, 4, 1.3)


@given(x=st.floats(0, 1e9), y=st.floats(0, 1e9), a=st.floats(1, 5), b=st.floats(1, 5))
def test_overlap_by_progress(x: float, y: float, a: float, b: float) -> None:
    """Both go on at their slowed pace until one is done, the other then at its own: followed in two phases."""
    together = min(x * a, y * b)
    left = max(x - together / a, y - together / b, 0.0)
    assert overlapped_ns(x, y, a, b) == pytest.approx(together + left, rel=1e-9, abs=1e-3)
    assert overlapped_ns(x, y, a, b) >= max(x, y) * (1 - 1e-12)
    assert overlapped_ns(x, y, a, a) == pytest.approx(max(x, y) + (a - 1) * min(x, y), rel=1e-9, abs=1e-3)


def network(**change: Any) -> Network:
    inner = Island(devices=4, bandwidth_bytes_per_s=1e11)
    return Network(islands=[inner, Island(devices=16, bandwidth_bytes_per_s=1e10, **change)])


def test_the_slowest_link_of_the_actual_group_counts() -> None:
    assert network().link((4, 5, 6)).bandwidth_bytes_per_s == 1e11
    assert network().link((3, 4)).bandwidth_bytes_per_s == 1e10
    assert collective_ns(network(), "all-reduce", 1e9, (7,)) == 0


def test_groups_share_a_nodes_network_card() -> None:
    shared = network(shared_by=4, node_bytes_per_s=1.6e10)
    bandwidths = [shared.link(group).bandwidth_bytes_per_s for group in ((0, 4), (0, 1, 4, 5), range(8))]
    assert bandwidths == [4e9, 8e9, 1e10]


def test_a_link_fitted_for_an_operation_goes_first() -> None:
    own = Island(devices=16, bandwidth_bytes_per_s=3e9, operation="all-to-all")
    both = Network(islands=[own, Island(devices=16, bandwidth_bytes_per_s=1e10)])
    assert both.link((0, 9), "all-to-all").bandwidth_bytes_per_s == 3e9
    assert both.link((0, 9), "all-gather").bandwidth_bytes_per_s == 1e10


def test_a_matrix_gives_every_pair_its_link() -> None:
    rates = [[0 if i == j else 1e9 * (1 + (i + j) % 3) for j in range(4)] for i in range(4)]
    full = Network(matrix=Matrix(bandwidth_bytes_per_s=rates, latency_ns=50))
    assert full.link((0, 1)).bandwidth_bytes_per_s == 2e9
    assert full.link((0, 1, 2)).bandwidth_bytes_per_s == 1e9
    assert collective_ns(full, "p2p", 1e9, (0, 1)) == pytest.approx(5e8 + 50)
