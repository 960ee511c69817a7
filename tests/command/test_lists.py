"""Lists of models, clusters and kinds: grouped, filtered by words, and in columns at 80."""

from __future__ import annotations

import json
from itertools import groupby

import pytest

from tests.helpers.calls import call


def names(*words: str) -> list[str]:
    """The names that a list has."""
    rows = json.loads(call(*words, "--json").stdout)
    return [row.get("name") or row["kind"] for row in rows]


def test_models_stand_by_family_with_their_sizes() -> None:
    lines = call("model", "list").stdout.splitlines()
    head = next(line for line in lines if "parameters" in line)
    assert head.split() == ["family", "model", "parameters", "layers", "hidden", "heads", "kv", "heads", "context"]
    rows = json.loads(call("model", "list", "--json").stdout)
    families = [row["family"] for row in sorted(rows, key=lambda row: row["family"])]
    shown = [line.split()[0] for line in lines if line[2:3].strip() and "─" not in line and line is not head]
    assert shown == [family for family, _ in groupby(families)]
    qwen = next(line for line in lines if " qwen3-32b " in line)
    assert qwen.split()[-7:] == ["qwen3-32b", "32.76B", "64", "5120", "64", "8", "40,960"]


@pytest.mark.parametrize(
    ("words", "some"),
    [
        (["model", "list", "QWEN3"], {"qwen3-0.6b", "qwen3-32b"}),
        (["model", "list", "llama", "70b"], {"llama2-70b", "llama3-70b", "llama3.1-70b"}),
        (["cluster", "list", "v100"], {"amp-p3-16", "amp-heterogeneous-16"}),
        (["cluster", "kinds", "h100"], {"h100", "h100-nvl", "h100-pcie"}),
    ],
)
def test_words_leave_the_rows_that_have_them(words: list[str], some: set[str]) -> None:
    found, every = names(*words), names(*words[:2])
    assert some <= set(found) < set(every)
    if words[0] == "model":
        assert all(word.lower() in name for name in found for word in words[2:])


@pytest.mark.parametrize("listed", ["model list", "cluster list", "cluster kinds"])
def test_a_word_that_nothing_has_is_refused_in_one_line(listed: str) -> None:
    done = call(*listed.split(), "saiga")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and f"`trainplan {listed}` lists all" in done.stderr
