"""Lists as bash makes them: what separates words, what `read` and `mapfile` take, and how many there are."""

from __future__ import annotations

from pathlib import Path

import pytest
from trainplan.execution.launch_files.shell import command_of_text, values_of

from tests.helpers import bash


def taken(text: str) -> dict[str, object]:
    """The arguments after `x.py --a ..` of a script, which depend on nothing."""
    command = command_of_text(text + "\npython pretrain_gpt.py --num-layers 1 --hidden-size 1 $OUT\n", {}, "run.sh", Path("."))
    assert not command.open
    return {key: value for key, value in command.values.items() if key not in ("--num-layers", "--hidden-size")}


SCRIPTS = [
    ('OUT=; while getopts "ab:c" o -ac -b5 -cb 6 x; do OUT+=" --$o=$OPTARG"; done; OUT+=" --n=$OPTIND"',
     {"--a": "", "--c": "", "--b": "6", "--n": "5"}),
    ('OUT=; while getopts ":b:" o -xb; do OUT+=" --$o$OPTARG"; done; OUT=${OUT//\\?/u}; OUT=${OUT//:/m}',
     {"--ux": True, "--mb": True}),
    ("OUT=\"--a $(echo 0,1,5 | awk -F, '{print NF}') --b $(echo 7 8 | awk '{print $NF}')\"", {"--a": "3", "--b": "8"}),
    ("OUT=\"--a $(printf '1\\n2\\n' | awk 'END{print NR}') --b $(echo 7 8 | awk '{print $3 }')\"", {"--a": "2", "--b": True}),
    ("OUT=\"--a $(echo 'x=1, y=22' | grep -o '[0-9]*' | tail -n1)\"", {"--a": "22"}),
    ('OUT="--a $(seq -s, 1 3)"', {"--a": "1,2,3"}),
    ("IFS=:; set -- a:b:c; set -- $1; OUT=\"--n $#\"; unset IFS", {"--n": "3"}),
    ("IFS=,; X=1,,3; set -- $X; unset IFS; OUT=\"--n $# --b=[$2] --c $3\"", {"--n": "3", "--b": "[]", "--c": "3"}),
    ("IFS=,; X=1,2,; set -- ${NONE:-a,b} $X; unset IFS; OUT=\"--n $#\"", {"--n": "4"}),
    ("IFS=, read a b c <<< 1,,3; OUT=\"--b=[$b] --c $c\"", {"--b": "[]", "--c": "3"}),
    ("IFS=', ' read -r a b <<< '1 , 2 , 3'; OUT=\"--a $a --b=$b\"", {"--a": "1", "--b": "2 , 3"}),
    ("IFS=, read -r a b <<< 1,2,; OUT=\"--a $a --b $b\"", {"--a": "1", "--b": "2"}),
    ("read -d '' OUT <<'EOF'\n--a 1 \\\n--b 2\nEOF", {"--a": "1", "--b": "2"}),
    ("read a b <<'EOF'\n1 \\\n2\nEOF\nOUT=\"--a $a --b $b\"", {"--a": "1", "--b": "2"}),
    ("mapfile -t -s 1 -n 2 L <<'EOF'\nx\n--a\n7\n--b\nEOF\nOUT=${L[*]}", {"--a": "7"}),
    ("mapfile -d, -t L <<< '--a,7'; OUT=${L[*]}", {"--a": "7"}),
    ("L=(--a); mapfile -t -O 1 L <<< 7; OUT=${L[*]}", {"--a": "7"}),
    ("printf -v 'L[1]' %s 7; L[0]=--a; OUT=${L[*]}", {"--a": "7"}),
    ("declare -A L; printf -v 'L[a b]' %s 7; OUT=\"--a ${L[a b]}\"", {"--a": "7"}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), SCRIPTS)
def test_lists_are_those_of_bash(text: str, expected: dict[str, object], tmp_path: Path) -> None:
    assert taken(text) == expected
    if bash.bash() is not None:
        script = tmp_path / "run.sh"
        script.write_text(text + "\npython pretrain_gpt.py $OUT\n")
        programs = bash.stubs(tmp_path / "programs")
        bash.opened(tmp_path)
        for ran in bash.runs(script, programs) or []:
            assert values_of(ran[2:]) == expected


@pytest.mark.parametrize(
    "text",
    [
        "mapfile -t L < <(scontrol show hostnames $LIST)",
        "L=($(scontrol show hostnames $LIST))",
        "L=($LIST)",
        "IFS=, read -ra L <<< $LIST",
        "set -- $LIST; L=(\"$@\")",
        "L=(\"${LIST[@]}\")",
    ],
)  # fmt: skip
def test_nobody_knows_how_many_words_an_unknown_text_has(text: str) -> None:
    """Neither one, as it is written, nor where it ends: what follows it in the list has no known position."""
    script = f"{text}\nL+=(7)\nN=${{#L[@]}}\npython pretrain_gpt.py --num-layers $N --hidden-size 8 --seq-length ${{L[1]}}\n"
    assert {"--num-layers", "--seq-length"} <= set(command_of_text(script, {}, "run.sh", Path(".")).open)


def test_fields_of_a_line_that_is_not_known_are_not_known() -> None:
    text = "read -r a b <<< $LINE\npython pretrain_gpt.py --num-layers $a --hidden-size ${b:-1}\n"
    assert set(command_of_text(text, {}, "run.sh", Path(".")).open) == {"--num-layers", "--hidden-size"}
    assert not command_of_text(text, {"LINE": "3 4"}, "run.sh", Path(".")).open


def test_nobody_knows_how_many_arguments_an_unknown_text_has() -> None:
    text = "f() { N=$#; }\nf a $LIST\npython pretrain_gpt.py --num-layers $N --hidden-size 8\n"
    assert set(command_of_text(text, {}, "run.sh", Path(".")).open) == {"--num-layers"}
    assert command_of_text(text, {"LIST": "b c"}, "run.sh", Path(".")).values["--num-layers"] == "3"
