"""Keys that nobody knows are refused where their names say that they bear on the run, misspelt or not, and else are named."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainplan.execution.launch_files.run_configuration import OTHER_WORDS, WORDS, UserSettings, affects_plan

from tests.configurations.test_megatron import BF16
from tests.helpers.refusals import Fact, refused
from trainplan.imported_runs.to_plan import read, read_text

TITAN = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\n'


@pytest.mark.parametrize(
    "key",
    [
        *("gradient_acumulation", "accum_steps", "microbatches", "bacth_size", "seq_lenght", "offlaod", "precison"),
        *("sharded_states", "recomputation", "decoder_layers", "cpuoffload"),
    ],
)
def test_keys_of_torchtitan_with_a_bearing_word_are_refused(tmp_path: Path, key: str) -> None:
    path = tmp_path / "titan.toml"
    path.write_text(f"{TITAN}{key} = 4\n")
    with refused(f"training.{key}", problem=4, fix=f"--ignore training.{key}"):
        read(path)
    assert f"training.{key}" in read(path, user=UserSettings(ignored=frozenset({f"training.{key}"}))).unread


@pytest.mark.parametrize(
    ("field", "problem", "near"),
    [("--num-lyaers-at-end", 3, ()), ("--recompute-granularty", "full", ("--recompute-granularity",))],
)
def test_misspelt_arguments_of_megatron_are_refused(field: str, problem: Fact, near: tuple[str, ...]) -> None:
    with refused(field, problem=problem, fix=(f"--ignore {field}", *near)) as error:
        read_text(f"{BF16} {field} {problem}", "run.sh")
    assert near or "write" not in error.value.fix, "nothing is near"


@pytest.mark.parametrize("key", ["--my-new-flag", "--use-shared-fs", "--our-log-directory", "--patch-size"])
def test_names_that_bear_on_nothing_are_named(key: str) -> None:
    assert read_text(f"{BF16} {key} 3", "run.sh").unknown == (key,)


@given(st.sampled_from([word for word in WORDS if len(word) > 6]), st.data())
def test_words_with_a_letter_dropped_or_two_turned_are_found(word: str, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(word) - 2))
    dropped = word[:index] + word[index + 1 :]
    turned = word[:index] + word[index + 1] + word[index] + word[index + 2 :]
    for entry in (dropped, turned):
        assert entry in OTHER_WORDS or affects_plan(f"training.my_{entry}"), entry
