"""Launch files in the styles that people write, held word for word against what bash makes of them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from trainplan.execution.launch_files.shell import Command, command_of

from tests.helpers import bash

LAUNCH = Path(__file__).parent / "launch"
NAMES = sorted(path.name for path in LAUNCH.glob("*.sh"))
# Settings stated apart from a file: variables of the environment, and arguments by position.
SAID: dict[str, list[dict[str, str]]] = {
    "arrays.sh": [{"1": "out", "2": "data/text"}],
    "options_as_text.sh": [{}, {"ACTIVATIONS": "1"}],
    "case_of_sizes.sh": [{}, {"MODEL_SIZE": "13b"}, {"MODEL_SIZE": "1B"}],
    "sbatch_given.sh": [{}, {"TP": "8"}],
    "places.sh": [
        {str(index + 1): word for index, word in enumerate(words.split())}
        for words in (
            "one 7B 1 64 4096 bf16 2 1 sel true",
            "one 13B 2 128 2048 fp8 4 2 full false",
            "one 7B 1 8 128 fp16 1 1 none true",
        )
    ],
    "defaults_of_environment.sh": [{}, {"TE_FP8": "1", "MBS": "1"}, {"RECOMPUTE": "4", "TP": "4", "PP": "2"}],
    "options_by_name.sh": [{}, {"1": "--tp", "2": "4", "3": "--sp"}, {"1": "--tp=8", "2": "--", "3": "--no-load-optim"}],
    "getopts.sh": [{}, {"1": "-l", "2": "24"}, {"1": "-l24"}],
    "profiled.sh": [{}, {"PROFILE": "0"}],
    "nested_ifs.sh": [{}, {"FSDP": "true"}, {"LEN": "32768"}, {"MODE": "dpo-2"}, {"LEN": "16384"}, {"MODE": "other"}],
    "fallthrough.sh": [{}, {"LEVEL": "3"}, {"LEVEL": "0"}, {"LEVEL": "1"}],
    "dollar_at.sh": [{"EXTRA": "--no-load-rng --seed 3"}, {"EXTRA": ""}],
}
# What Slurm sets, and conditions that are not decided but bear on nothing.
SLURM = {"sbatch_given.sh": {"SLURM_NNODES": "2"}}
OPEN = {"guards.sh": {"--load"}}


def runs_of(name: str) -> list[tuple[str, Mapping[str, str]]]:
    return [(name, stated) for stated in SAID.get(name, [{}])]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if bash.bash() is None:
        pytest.skip("there is no bash")
    folder = tmp_path_factory.mktemp("programs")
    bash.opened(folder)
    return bash.stubs(folder / "bin")


def ours(command: Command) -> list[str]:
    return [*command.launcher, command.program, *command.words]


@pytest.mark.parametrize(("name", "stated"), [run for name in NAMES for run in runs_of(name)])
def test_words_are_those_that_bash_makes(name: str, stated: Mapping[str, str], tmp_path: Path, programs: Path) -> None:
    folder = tmp_path / "launch"
    shutil.copytree(LAUNCH, folder)
    bash.opened(folder)
    command = command_of(folder / name, stated)
    indices = sorted((int(key), value) for key, value in stated.items() if key.isdecimal())
    variables = {key: value for key, value in stated.items() if not key.isdecimal()}
    theirs = bash.runs(folder / name, programs, variables | SLURM.get(name, {}), [value for _, value in indices])
    assert theirs and ours(command) in theirs, (ours(command), theirs)
    assert command.tool == "megatron" and set(command.open) == OPEN.get(name, set())


def test_forty_files_are_read() -> None:
    assert len(NAMES) >= 40
