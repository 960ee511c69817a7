"""Strategies as people write them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from trainplan.formulations.plan.strategy import Strategy, decision_tree, parse_strategy
from trainplan.formulations.plan.strategy_words import in_words, strategy_words


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
    tree += [replace(each, zero=1) for each in tree if each.degree("sdp") > 1]
    tree += [replace(each, sequence_parallel=True) for each in tree if each.degree("tp") > 1]
    tree += [parse_strategy(text) for text in ("cp4-tp4", "cp4h-tp4", "tp16-ckpt:norms", "tp16-ckpt:attention+norms")]
    words = [strategy_words(each) for each in tree]
    assert len(set(words)) == len(set(tree)) == len(tree)
    assert strategy_words(Strategy()) == "one device"
