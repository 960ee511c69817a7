"""Where the values of arguments come from: the argument's line, and that of the variable which it is taken from."""

from __future__ import annotations

from pathlib import Path

import pytest
from trainplan.execution.launch_files.shell import command_of, command_of_text

SCRIPT = """#!/bin/bash
TP=8
local_only() { local TP=2 SEQ=1; echo x; }
PP=${PP:-2}
SEQ=4096
ARGS=(
  --num-layers 24 --hidden-size ${HIDDEN:-64} --seq-length "$SEQ"
  # --num-layers 48
)
while read -r G; do
torchrun --nproc_per_node 16 pretrain_gpt.py ${ARGS[@]} --bf16 --global-batch-size=$G --vocab-size $V \\
  --tensor-model-parallel-size ${TP} \\
  --pipeline-model-parallel-size \\
     $PP --micro-batch-size $1 --lr ${LR}e-4
done <<< 64
"""


def test_lines_of_arguments_and_of_their_variables_are_reported() -> None:
    sources = command_of_text(SCRIPT, {"V": "50257", "PP": "4", "1": "2", "LR": "3"}, "run.sh", Path(".")).sources
    assert sources["--tensor-model-parallel-size"] == "run.sh:12, TP=8 of line 2"
    assert sources["--pipeline-model-parallel-size"] == "run.sh:13, --set PP=4"
    assert sources["--vocab-size"] == "run.sh:11, --set V=50257"
    assert sources["--micro-batch-size"] == "run.sh:14, --set 1=2"
    assert sources["--seq-length"] == "run.sh:7, SEQ=4096 of line 5"
    assert sources["--global-batch-size"] == "run.sh:11, G=64 of line 10"
    assert sources["--num-layers"] == sources["--hidden-size"] == "run.sh:7"


def test_a_variable_of_another_file_is_reported_with_that_file(tmp_path: Path) -> None:
    (tmp_path / "sizes.sh").write_text("\nLAYERS=4\n")
    script = tmp_path / "run.sh"
    script.write_text(
        "source ./sizes.sh\nLAYERS=$((LAYERS * 2)) true\npython pretrain_gpt.py --num-layers $LAYERS --hidden-size 8\n"
    )
    source = command_of(script, {}).sources["--num-layers"]
    assert source.startswith(f"{script}:3, LAYERS=4 of ") and source.endswith("sizes.sh:2")


def test_a_variable_that_stands_in_front_of_a_command_has_no_other_line(tmp_path: Path) -> None:
    (tmp_path / "inner.sh").write_text("python pretrain_gpt.py --num-layers $LAYERS --hidden-size 8\n")
    script = tmp_path / "run.sh"
    script.write_text("export LAYERS=4\nLAYERS=2 bash inner.sh\n")
    command = command_of(script, {})
    assert command.values["--num-layers"] == "2" and "LAYERS" not in command.sources["--num-layers"]


@pytest.mark.parametrize("start", ['bash -c "RANK=0 $RUN"', 'eval "$RUN"', 'srun -l bash -c "$RUN"', 'ssh node1 "$RUN"'])
def test_arguments_of_a_command_in_a_text_are_found_where_they_are_written(tmp_path: Path, start: str) -> None:
    """Not at the line that starts the text, which holds none of them."""
    path = tmp_path / "run.sh"
    lines = ["SIZES=(", "  --num-layers 24", "  --hidden-size 3072", ")"]
    lines += ['RUN="python pretrain_gpt.py ${SIZES[@]} --num-attention-heads 24"', f"{start} "]
    path.write_text("\n".join(lines))
    sources = command_of(path, {}).sources
    names = {"--num-layers": 2, "--hidden-size": 3, "--num-attention-heads": 5}
    assert {name: sources[name] for name in names} == {name: f"{path}:{line}" for name, line in names.items()}


def test_arguments_that_are_written_in_the_text_itself_are_found_there(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(
        "SIZES='--num-layers 24'\nbash -c \\\n  \"python pretrain_gpt.py $SIZES --num-layers 32 --hidden-size 64\"\n"
    )
    assert {command_of(path, {}).sources[name] for name in ("--num-layers", "--hidden-size")} == {f"{path}:3"}
