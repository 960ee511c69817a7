"""Patterns of scripts match as bash's do, and none takes long."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trainplan.execution.launch_files.shell.edits import edited
from trainplan.execution.launch_files.shell.marks import TooMuch
from trainplan.execution.launch_files.shell.patterns import Pattern, expression

from tests.configurations.test_statuses import size, undecided
from tests.helpers import bash

SIGNS = ("#", "##", "%", "%%", "/", "//", "/#", "/%")
SETS = ("[ab]", "[!a]", "[^b]", "[a-b]", "[[:alpha:]]", "[]a]", "[a-]", "[[:digit:]a]")
PLAIN = st.sampled_from(["a", "b", "-", "ab", "*", "?", *SETS])
PATTERNS = st.recursive(
    st.lists(PLAIN, min_size=1, max_size=4).map("".join),
    lambda inner: st.tuples(st.sampled_from("?*+@"), inner, inner, PLAIN).map(lambda p: f"{p[0]}({p[1]}|{p[2]}){p[3]}"),
    max_leaves=4,
)


@pytest.mark.skipif(bash.bash() is None, reason="has no bash")
@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(PATTERNS, st.text("ab-1]", min_size=1, max_size=6)), min_size=20, max_size=20))
def test_patterns_match_as_in_bash(cases: list[tuple[str, str]]) -> None:
    lines = ["shopt -s extglob", "export LC_ALL=C"]
    for pattern, text in cases:
        parts = " ".join(f'"${{t{sign}{pattern}{"/X" if sign[0] == "/" else ""}}}"'.replace("//X}", "/X}") for sign in SIGNS)
        lines.append(f"t={shlex.quote(text)}; [[ $t == {pattern} ]]; printf '%s|' $? {parts}; echo")
    run = subprocess.run(
        [str(bash.bash()), "-c", "source /dev/stdin"], input="\n".join(lines), capture_output=True, text=True, check=True
    )
    for (pattern, text), line in zip(cases, run.stdout.splitlines(), strict=True):
        pieces = [(pattern, False)]
        mine = [str(int(not Pattern(pieces).whole(text))), *(edited(text, s, pieces, "X" * (s[0] == "/")) for s in SIGNS)]
        assert "|".join(mine) + "|" == line, (pattern, text)


def test_a_pattern_of_many_stars_takes_few_steps() -> None:
    pattern = Pattern([("*a" * 40 + "*b", False)])
    assert not pattern.whole("a" * 200)
    assert pattern.steps < 20000
    assert size(f"x={'a' * 60}c; case $x in {'*a' * 20}*b) TP=4 ;; *) TP=2 ;; esac") == "2"
    with pytest.raises(TooMuch):
        Pattern([("*(a|aa)" * 4, False)]).ends("a" * 2**20)


def test_an_expression_that_may_try_too_many_ways_is_not_tried() -> None:
    assert expression("^(a+)+b$", 40) is None and expression("(x|xx)*y", 200) is None
    assert expression("^.*-.*-.*-.*-.*-b$", 200) is None and expression("(?=a)", 1) is None
    assert "regular expression" in undecided(f"x={'a' * 40}c; [[ $x =~ ^(a+)+b$ ]] && TP=2")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("x=llama-70b; [[ $x =~ ^([a-z]+)-([0-9]+)b$ ]] && TP=${BASH_REMATCH[2]}", "70"),
        ("x=7,8,9; [[ $x =~ ^[0-9]+(,[0-9]+)*$ ]] && TP=2 || TP=4", "2"),
        ("x='a b'; [[ $x =~ [[:space:]]b$ ]] && TP=2 || TP=4", "2"),
        ("x=a]; [[ $x =~ ^[]a]+$ ]] && TP=2 || TP=4", "2"),
        ("x=a_1; [[ $x =~ ^[[:alpha:]_]+[^[:alpha:]]$ ]] && TP=2 || TP=4", "2"),
        ("x=a/b/c; y=${x##*/}; [[ $y == c ]] && TP=2", "2"),
    ],
)
def test_expressions_that_are_tried(text: str, value: str) -> None:
    assert size(text) == value
