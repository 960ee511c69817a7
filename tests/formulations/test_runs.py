"""Lists of units in few rows."""

from hypothesis import given
from hypothesis import strategies as st
from trainplan.formulations.plan.run_length import runs


def units(blocks: int) -> list[str]:
    """An embedding, the two parts of a given number of blocks, and a head."""
    parts = [f"block{block}.{part}" for block in range(blocks) for part in ("attention", "ffn")]
    return ["embedding", *parts, "head"]


def test_equal_labels_are_one_row() -> None:
    assert runs(units(2), ["a"] * 6) == [(0, "embedding .. head", 6, "a")]
    assert runs(units(2), ["a", "b", "b", "b", "b", "a"]) == [
        (0, "embedding", 1, "a"),
        (1, "block0.attention .. block1.ffn", 4, "b"),
        (5, "head", 1, "a"),
    ]


def test_labels_that_alternate_are_a_row_each() -> None:
    assert runs(units(3), ["x", *"abababx"][:8]) == [
        (0, "embedding", 1, "x"),
        (1, "block0 .. block2 attention", 3, "a"),
        (2, "block0 .. block2 ffn", 3, "b"),
        (7, "head", 1, "x"),
    ]
    assert runs(list("pqrstu"), list("ababab")) == [(0, "p .. t, every 2nd", 3, "a"), (1, "q .. u, every 2nd", 3, "b")]


def test_few_changes_stay_in_order() -> None:
    assert [row[3] for row in runs(units(1), list("abab"))] == ["a", "b"]
    assert [row[1:] for row in runs(list("pqr"), list("aba"))] == [("p", 1, "a"), ("q", 1, "b"), ("r", 1, "a")]


@given(st.lists(st.sampled_from("abc"), max_size=30))
def test_every_unit_is_in_one_row(labels: list[str]) -> None:
    names = [f"u{index}" for index in range(len(labels))]
    rows = runs(names, labels)
    assert sum(count for _, _, count, _ in rows) == len(labels)
    assert all(labels[first] == label for first, _, _, label in rows)
    assert [first for first, *_ in rows] == sorted(first for first, *_ in rows)
