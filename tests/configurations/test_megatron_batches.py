"""Batches of Megatron-LM that grow are read at their end, and those that its assertions do not let start are refused."""

from __future__ import annotations

import pytest
from trainplan.execution.launch_files.run_configuration import RunConfiguration
from trainplan.profiling.base.errors import InputError

from tests.configurations.test_megatron_keys import BF16
from trainplan.imported_runs.to_plan import read_text

PLAIN = BF16.replace("--global-batch-size 64", "")


def made(words: str) -> RunConfiguration:
    return read_text(f"{PLAIN} {words}", "run.sh")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            "--rampup-batch-size 16 32 100 --global-batch-size 64",
            r"from 16 by 32 no batch is 64: .*give \S*global.batch.size 48",
        ),
        (
            "--rampup-batch-size 64 32 100 --global-batch-size 64",
            r"from 64 by 32 no batch is 64: .*give \S*global.batch.size 96",
        ),
        ("--rampup-batch-size 96 32 100 --global-batch-size 64", "from 96 by 32 no batch is 64"),
        ("--rampup-batch-size 16 0 100 --global-batch-size 64", "is '16 0 100'"),
        ("--rampup-batch-size 16 16 100 --global-batch-size 64 --train-iters 10", "with .*train.iters"),
        ('--step-batch-size-schedule "0:16 1B:64" --global-batch-size 128', "is 128, and .*ends with 64"),
        ('--step-batch-size-schedule "1B:64"', "no threshold 0"),
        ('--step-batch-size-schedule "0:16 0:64"', "two sizes of one threshold"),
        ('--step-batch-size-schedule "0:16 8191:64"', "two sizes of one threshold"),  # tokens of one sample
        ('--step-batch-size-schedule "0:16 1B"', "thresholds and sizes"),
    ],
)
def test_batches_that_do_not_start_are_refused(words: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        made(words)


@pytest.mark.parametrize(
    ("words", "samples", "says"),
    [
        ("--rampup-batch-size 16 16 100 --global-batch-size 64 --train-samples 1000", 64, "grow from 16 by 16"),
        ('--step-batch-size-schedule "0:16,1B:64"', 64, "batches of 16, 64 in turn"),
        ('--step-batch-size-schedule "1.5B:1K 0:16"', 1000, "batches of 16, 1000 in turn"),
        ('--step-batch-size-schedule "0:16 1B:64" --global-batch-size 64', 64, "read as without it"),
        ('--step-batch-size-schedule "0:16 1B:64" --rampup-batch-size 8 8 100', 64, "the first has no effect"),
    ],
)
def test_batches_that_grow_are_read_at_their_end(words: str, samples: int, says: str) -> None:
    configuration = made(words)
    assert configuration.samples == samples
    assert any(says in note for note in configuration.notes), configuration.notes
