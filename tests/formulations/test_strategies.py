"""Strategies: the search space of Galvatron-BMW, re-layouts between its strategies, and their names in words."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainplan.formulations.plan.strategy import (
    Strategy,
    decision_tree,
    gather_groups,
    gather_ranks,
    parse_strategy,
    rows_of,
    without_cp,
)
from trainplan.formulations.plan.strategy_words import in_words, strategy_words
from trainplan.profiling.base.errors import InputError

from tests.helpers.refusals import refused

TREES = (1, 2, 4, 8)


@pytest.mark.parametrize(
    ("takeaway3", "ckpt", "total"), [(False, False, 34), (False, True, 68), (True, False, 22), (True, True, 44)]
)
def test_counts_of_the_paper(takeaway3: bool, ckpt: bool, total: int) -> None:
    assert sum(len(decision_tree(group, takeaway3=takeaway3, ckpt=ckpt)) for group in TREES) == total


def test_counts_by_group() -> None:
    assert [len(decision_tree(group, ckpt=False)) for group in TREES] == [1, 3, 7, 11]


@pytest.mark.parametrize("group", [1, 2, 4, 8, 16, 64])
def test_strategies_are_distinct_and_read_back(group: int) -> None:
    found = decision_tree(group, takeaway3=False)
    assert len(set(found)) == len(found)
    assert all(strategy.group == group for strategy in found)
    assert [parse_strategy(str(strategy), group=group) for strategy in found] == found


def test_first_level_spans_the_slowest_links() -> None:
    strategy = parse_strategy("dp2-tp4")
    assert strategy.peers(1, "dp") == (1, 5)
    assert strategy.peers(1, "tp") == (0, 1, 2, 3)
    assert [strategy.data_index(rank) for rank in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [parse_strategy("tp4-dp2").data_index(rank) for rank in range(8)] == [0, 1] * 4


@pytest.mark.parametrize(
    "text", ["dp03", "dp2-dp4", "dp1", "xx8", "dp2tp4", "", "ckpt", "dp8-ckpt-ckpt", "dp0", "tp2h", "dp2-cp4hh"]
)
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_strategy(text)


def test_an_exchange_of_heads_is_written_after_its_level() -> None:
    keys, heads = (parse_strategy(text, group=16) for text in ("sdp2-cp4-tp2-zero1-sp-ckpt", "sdp2-cp4h-tp2-zero1-sp-ckpt"))
    assert str(heads) == "sdp2-cp4h-tp2-zero1-sp-ckpt" and heads == replace(keys, exchange="heads") != keys
    assert heads.exchanges_heads and not keys.exchanges_heads and not without_cp(heads).exchanges_heads
    assert without_cp(heads) == without_cp(keys), "what lies among the same ranks is the same"
    with refused("", problem="tp2h", fix="cp4h"):
        parse_strategy("tp2h")


def test_degrees_must_multiply_to_the_group() -> None:
    with refused("", problem=("dp2-tp2", 4), fix=(8, "dp8")):
        parse_strategy("dp2-tp2", group=8)


@given(st.sampled_from([2, 4, 8]), st.data())
def test_relayout_gives_each_rank_its_rows_from_the_fewest_ranks(group: int, data: st.DataObject) -> None:
    tree = decision_tree(group, takeaway3=False, ckpt=False)
    before, after = data.draw(st.sampled_from(tree)), data.draw(st.sampled_from(tree))
    for rank in range(group):
        ranks = gather_ranks(before, after, rank)
        held = {row for r in ranks for row in rows_of(before, r, 0, group)}
        needed = set(rows_of(after, rank, 0, group))
        assert rank in ranks
        assert needed <= held
        # Every rank of a gather takes part in the same one, and no block comes twice.
        assert all(gather_ranks(before, after, r) == ranks for r in ranks)
        assert len(held) == sum(len(rows_of(before, r, 0, group)) for r in ranks)
        if before.layout == after.layout:
            assert ranks == (rank,)
    groups = list(gather_groups(before, after))
    assert sorted(groups) == sorted({g for g in (gather_ranks(before, after, r) for r in range(group)) if len(g) > 1})
    assert not groups or groups[0] == gather_ranks(before, after, 0)


def _factorisations(group: int) -> list[tuple[int, ...]]:
    factors = (factor for factor in range(2, group + 1) if group % factor == 0)
    return [(factor, *rest) for factor in factors for rest in _factorisations(group // factor)] if group > 1 else [()]


@pytest.mark.parametrize("group", [3, 6, 9, 12])
def test_relayout_of_any_degrees_gives_each_rank_its_rows(group: int) -> None:
    """For all pairs of strategies, all ranks of a gather take part in the same one, and equal layouts need none."""
    degrees = [degrees for degrees in _factorisations(group) if len(degrees) <= 3]
    orders = [(order, degree) for degree in degrees for order in permutations(("dp", "sdp", "tp"), len(degree))]
    strategies = [Strategy(tuple(zip(order, one_order, strict=True))) for order, one_order in orders]
    for before, after in product(strategies, strategies):
        count = 2 * before.data_degree * after.data_degree
        for rank in range(group):
            ranks = gather_ranks(before, after, rank)
            needed = set(rows_of(after, rank, 0, count))
            assert needed <= {row for r in ranks for row in rows_of(before, r, 0, count)}
            assert rank in ranks and all(gather_ranks(before, after, r) == ranks for r in ranks)
            if before.layout == after.layout:
                assert ranks == (rank,) and needed == set(rows_of(before, rank, 0, count))


def test_samples_are_covered_once_by_every_data_group() -> None:
    for strategy, count in product(decision_tree(8, takeaway3=False), (8, 24)):
        for index in range(strategy.degree("tp")):
            ranks = [r for r in range(8) if strategy.index(r, "tp") == index]
            rows = sorted(row for rank in ranks for row in rows_of(strategy, rank, 0, count))
            assert rows == list(range(count))


@pytest.mark.parametrize(
    ("short", "words"),
    [
        ("sdp16-tp4-sp", "dp16 ZeRO-3, tp4, sp"),
        ("sdp8-zero1", "dp8 ZeRO-1"),
        ("dp4-tp2-ckpt", "dp4, tp2, recomputed"),
        ("dp2-sdp8-tp4-zero2", "dp16 ZeRO-2 over 8, tp4"),
        ("dp2-tp2-sdp4", "dp2, tp2, ZeRO-3 over 4"),
        ("cp4h-tp2-ckpt:attention+norms", "cp4 by heads, tp2, attention and norms recomputed"),
        ("single", "one device"),
        ("tp4, input on the host", "tp4, input on the host"),
        ("sdp4-ckpt, optimizer on the host", "dp4 ZeRO-3, recomputed, optimizer on the host"),
        ("layers of dp2", "layers of dp2"),
        ("dp1-something", "dp1-something"),
    ],
)
def test_short_forms_are_written_out(short: str, words: str) -> None:
    assert in_words(short) == words


def test_different_strategies_have_different_words() -> None:
    tree = decision_tree(16, takeaway3=False)
    tree += [replace(entry, zero=1) for entry in tree if entry.degree("sdp") > 1]
    tree += [replace(entry, sequence_parallel=True) for entry in tree if entry.degree("tp") > 1]
    tree += [parse_strategy(text) for text in ("cp4-tp4", "cp4h-tp4", "tp16-ckpt:norms", "tp16-ckpt:attention+norms")]
    words = [strategy_words(entry) for entry in tree]
    assert len(set(words)) == len(set(tree)) == len(tree)
    assert strategy_words(Strategy()) == "one device"
