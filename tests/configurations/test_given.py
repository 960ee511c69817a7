"""Commands of scripts read pipes, here-documents and files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.configurations.test_shell import RUN, of
from tests.configurations.test_statuses import TP, command, size, undecided
from tests.helpers.refusals import refused

DP = "--micro-batch-size"
PROGRAM = RUN.replace(f"{DP} 2 ", "")


@pytest.mark.parametrize(
    "text",
    [
        f'echo "{DP} 4 {TP} 2" | xargs {PROGRAM}',
        f'printf "%s\\n" {DP} 4 {TP} 2 | xargs {PROGRAM}',
        f"printf '%s\\0' {DP} 4 {TP} 2 | xargs -0 {PROGRAM}",
        f"printf '%s\\n' {DP} 4 {TP} 2 | xargs -d '\\n' {PROGRAM}",
        f"echo '{DP} 4' > af; echo {TP} 2 >> af; xargs -a af {PROGRAM}",
        f"echo '{DP} 4 {TP} 2' > af; cat af | xargs -r -t {PROGRAM}",
        f"echo '{DP} 4 {TP} 2' > af; xargs --arg-file=af {PROGRAM}",
        f"xargs {PROGRAM} <<EOF\n{DP} 4\n{TP} 2\nEOF",
        f"echo 4 | xargs -I{{}} {PROGRAM} {DP} {{}} {TP} 2",
        f"echo 4 | xargs -I N bash -c '{PROGRAM} {DP} N {TP} 2'",
        f"echo '{DP} 4' | xargs -n 2 {PROGRAM} {TP} 2",
        f"echo '{DP} 4 {TP} 2' | xargs nohup {PROGRAM}",
        f"echo '{DP} 4 {TP} 2' | srun xargs {PROGRAM}",
        f"echo '{DP} \"4\" {TP} '\\''2'\\''' | xargs {PROGRAM}",
        f"xargs -a <(echo '{DP} 4 {TP} 2') {PROGRAM}",
        f"{PROGRAM} $(printf '# no\\n{DP} 4\\n{TP} 2\\n' | grep -v '^#' | xargs)",
        f"X=$(cat <<'EOF' | grep -v '^#' | tr '\\n' ' '\n{DP} 4\n# --fp16\n{TP} 2\nEOF\n)\n{PROGRAM} $X",
        f"cat > m.args <<'EOF'\n# no\n{DP} 4\n{TP} 2\nEOF\n{PROGRAM} $(grep -v '^#' m.args | xargs)",
    ],
)
def test_a_command_takes_the_words_that_it_is_given(text: str, tmp_path: Path) -> None:
    made = command(text, tmp_path)
    assert (made.values[DP], made.values[TP]) == ("4", "2") and not made.open
    assert "--fp16" not in made.values


@pytest.mark.parametrize("text", ["", "cat nowhere.args | ", "python make_args.py | "])
def test_words_that_are_not_known_are_refused(text: str) -> None:
    for command_of_xargs in (f"{text}xargs {RUN}", f"{text}xargs -n 4 srun {RUN}"):
        with refused("", problem=("arguments", "run.sh:1")):
            of(command_of_xargs)


def test_one_of_several_runs_is_not_chosen() -> None:
    made = command(f"echo 2 4 | xargs -n 1 {RUN} {TP}")
    assert "several commands" in made.open[TP].problem


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("mapfile -t A < <(printf '%s\\n' 2 4); TP=${A[1]}", "4"),
        ("while IFS='=' read -r k v; do declare \"$k=$v\"; done < <(printf 'MB=4\\nTP=2\\n'); X=$MB", "2"),
        ("source <(echo TP=8)", "8"),
        ("TP=$(cat <(echo 4))", "4"),
        ("printf 'a=1\\ntp=4\\n' | grep -q '^tp=' && TP=2 || TP=1", "2"),
        ("if printf 'a=1\\n' | grep -q '^tp='; then TP=2; else TP=1; fi", "1"),
        ("TP=$(printf 'a=1\\ntp=4\\n' | grep -E '^(tp|pp)=' | cut -d= -f2)", "4"),
        ("TP=$(printf 'a+\\na\\n' | grep -c 'a+')", "1"),
        ("TP=$(grep tp conf | cut -d= -f2)", "4"),
    ],
)
def test_texts_that_are_known(text: str, value: str, tmp_path: Path) -> None:
    (tmp_path / "conf").write_text("a=1\ntp=4\n")
    assert size(text, tmp_path) == value


def test_what_grep_finds_elsewhere_is_undecided() -> None:
    assert "grep" in undecided("if grep -q H100 /proc/gpus; then TP=2; fi")
    assert "grep" in undecided("if lspci | grep -q H100; then TP=2; fi")
