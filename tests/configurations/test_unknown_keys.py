"""Keys that nobody knows are refused where their names say that they bear on the run, misspelt or not, and else are named."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainplan.execution.launch_files.run_configuration import OTHER_WORDS, WORDS, UserSettings, affects_plan
from trainplan.profiling.base.errors import InputError

from tests.configurations.test_megatron import BF16
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
    with pytest.raises(InputError, match=f"training.{key} is 4, and no key that is read"):
        read(path)
    assert f"training.{key}" in read(path, user=UserSettings(ignored=frozenset({f"training.{key}"}))).unread


@pytest.mark.parametrize(
    ("words", "meant"), [("--num-lyaers-at-end 3", ""), ("--recompute-granularty full", ", or write --recompute-granularity")]
)
def test_misspelt_arguments_of_megatron_are_refused(words: str, meant: str) -> None:
    with pytest.raises(InputError, match="no key that is read: ") as error:
        read_text(f"{BF16} {words}", "run.sh")
    assert error.value.command_text.endswith(f"by --ignore {words.split()[0]}{meant}")


@pytest.mark.parametrize("key", ["--my-new-flag", "--use-shared-fs", "--our-log-directory", "--patch-size"])
def test_names_that_bear_on_nothing_are_named(key: str) -> None:
    assert read_text(f"{BF16} {key} 3", "run.sh").unknown == (key,)


@given(st.sampled_from([word for word in WORDS if len(word) > 6]), st.data())
def test_words_with_a_letter_dropped_or_two_turned_are_found(word: str, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(word) - 2))
    dropped = word[:place] + word[place + 1 :]
    turned = word[:place] + word[place + 1] + word[place] + word[place + 2 :]
    for each in (dropped, turned):
        assert each in OTHER_WORDS or affects_plan(f"training.my_{each}"), each
