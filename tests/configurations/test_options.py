"""Attributes of variables, options of the shell, aliases and loops that nobody knows the end of."""

from __future__ import annotations

import pytest

from tests.configurations.test_shell import RUN, of
from tests.configurations.test_statuses import TP, command, size, undecided
from tests.helpers.refusals import refused


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("declare -i TP=2*2; TP+=4", "8"),
        ("declare -i TP; TP=2+2", "4"),
        ("f() { local -i n=2+2; n+=1; TP=$n; }; f; n=1+1; TP=$TP$n", "51+1"),
        ("readonly TP=2; TP=4 2>/dev/null", "2"),
        ("TP=2; readonly TP; TP=4", "2"),
        ("f() { local -r n=$1; TP=$n; }; f 2; f 4", "4"),
        ("declare -u A=x; A=y; [ $A = Y ] && TP=2", "2"),
        ("export -n A; TP=2; export -n TP", "2"),
        ("f() { local -n out=$1; out=8; }; f TP", "8"),
        ("f() { local -n out=$1; out+=(4 8); }; A=(2); f A; TP=${A[2]}", "8"),
        ("f() { local -n into=$1; TP=${into[b]}; }; declare -A A=([a]=2 [b]=4); f A", "4"),
        ("f() { local -n out=$1; out=8; }; f TP; out=2", "8"),
    ],
)
def test_attributes_of_variables(text: str, value: str) -> None:
    assert size(text) == value


@pytest.mark.parametrize(("on", "off"), [("set -a", "set +a"), ("set -o allexport", "set +o allexport")])
def test_what_is_set_under_allexport_is_exported(on: str, off: str) -> None:
    made = command(f"{on}; TP=4; {off}; MB=2\nbash -c '{RUN} {TP} $TP --seed ${{MB:-1}}'")
    assert (made.values[TP], made.values["--seed"]) == ("4", "1")


@pytest.mark.parametrize(
    "text",
    [
        "set -e; false",
        "set -euo pipefail; f() { return 3; }; f",
        "set -e; (( 1 > 2 ))",
        "set -e; X=$(false)",
        "set -e; (exit 2)",
        "set -eo pipefail; false | cat",
        "set -o errexit; f() { [ a = b ] && echo; }; f",
        "set -e; true && false",
    ],
)
def test_a_script_ends_where_a_command_fails(text: str) -> None:
    with refused("", problem="run.sh:1", fix=("--set NAME=VALUE", "1=VALUE")):
        of(f"{text}\n{RUN}")


@pytest.mark.parametrize(
    "text",
    [
        "false",
        "set -e; [ 1 = 2 ] && X=8",
        "set -e; (( 1 > 2 )) && X=8",
        "set -e; false || true",
        "set -e; if false; then X=1; fi",
        "set -e; ! true",
        "set -e; while false; do X=1; done; until true; do X=1; done",
        "set -e; f() { false; X=1; }; f || X=2; if f; then X=3; fi",
        "set -e; false | cat",
        "set -e; set +e; false",
        "set -e; export X=$(false)",
        "set -e; X=$(false; echo 1)",
        "set -e; nvidia-smi; mkdir -p x; cd y",
        "set -e; bash -c 'false; true'",
        "set -e; for ((i = 0; i < 2; i++)); do X=$i; done",
    ],
)
def test_a_script_goes_on_where_a_condition_asks_or_nothing_fails(text: str) -> None:
    assert size(f"TP=2\n{text}") == "2"


def test_aliases() -> None:
    on = "shopt -s expand_aliases\n"
    made = command(f"{on}alias run='{RUN} {TP} 2'\nrun --seed 4\n")
    assert (made.values[TP], made.values["--seed"]) == ("2", "4")
    assert command(f"{on}alias torchrun='torchrun --nnodes 2'\n{RUN}\n").devices == 16
    assert command(f"alias torchrun='torchrun --nnodes 2'\n{RUN}\n").devices == 8


def test_a_function_of_the_name_of_a_command_starts_it() -> None:
    made = command(f'torchrun() {{ command torchrun "$@" {TP} 4; }}\n{RUN}\n')
    assert made.values[TP] == "4" and not made.open


@pytest.mark.parametrize(
    "loop",
    [
        "while true; do squeue -u x | grep -q PEND || break; sleep 5; done",
        "while :; do if nc -z host 1; then break; fi; sleep 5; done",
        "for ((;;)); do nc -z host 1 && break; done",
        "while true; do nc -z host 1 && break; n=$((n + 1)); [ $n -gt 60 ] && exit 1; done",
        "until nc -z host 1; do sleep 1; done",
    ],
)
def test_a_loop_that_waits_is_taken_to_end(loop: str) -> None:
    assert size(f"TP=2; n=0\n{loop}") == "2"


def test_what_such_a_loop_counts_is_undecided() -> None:
    assert "loop" in undecided("TP=1; while true; do nc -z host 1 && break; TP=$((TP * 2)); done")
    assert command(f"while true; do nc -z host 1 || break; {RUN} {TP} 4; done").values[TP] == "4"
