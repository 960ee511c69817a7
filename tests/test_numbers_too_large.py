"""What a slip of the hand makes of a batch, a sequence or a number of devices is answered at once, or refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.request import MOST_SAMPLES
from trainplan.profiling.base.errors import InputError

import trainplan as tp
from tests.helpers.plans import GPT2

BILLION = 10**9
ROW: dict[str, Any] = {
    "id": "a", "model": "llama3-8b", "gpu": "H100", "gpus": 64, "framework": "megatron", "seq": 8192, "gbs": 64, "mbs": 1,
    "tp": 8, "pp": 8, "vpp": 2, "precision": "bf16", "step_s": 2.9, "date": "2024-10", "source": "x",
}  # fmt: skip
SCRIPT = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 256 --num-attention-heads 4 --bf16 "
    "--seq-length 512 --max-position-embeddings 512 --vocab-size 1000 --micro-batch-size 4 --global-batch-size {} "
    "--pipeline-model-parallel-size 2 --use-distributed-optimizer"
)


def validated(folder: Path, **changes: Any) -> Any:
    file = folder / "runs.json"
    file.write_text(json.dumps([ROW | changes]))
    return tp.validate(file)[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"gbs": BILLION},
        {"gbs": BILLION, "vpp": None},
        {"gbs": BILLION, "pp": 1, "tp": 1, "vpp": None, "framework": "torchtitan", "fsdp": "FSDP2"},
        {"gbs": 10**6, "mbs": 10**6},
        {"seq": 8_192_000},
    ],
)
def test_runs_of_any_size_are_predicted_at_once(tmp_path: Path, changes: dict[str, Any]) -> None:
    usual, large = validated(tmp_path, **changes | {"gbs": 512, "mbs": 1, "seq": 8192}), validated(tmp_path, **changes)
    assert usual.step_s is not None and large.step_s is not None and not large.cannot
    more = changes.get("gbs", 512) / 512
    if changes.get("mbs") is None and "seq" not in changes:  # behind the pipeline's filling, all micro-batches take as long
        assert 0.3 * more * usual.step_s < large.step_s < 1.05 * more * usual.step_s


@pytest.mark.parametrize(("field", "value"), [("gbs", 10**30), ("seq", 10**12), ("pp", 10**6), ("vpp", 10**6)])
def test_runs_that_cannot_be_say_which_number_is_wrong(tmp_path: Path, field: str, value: int) -> None:
    assert str(value) in validated(tmp_path, **{field: value}).cannot


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"batch": BILLION}, f"batch is {BILLION}; give 1 to {MOST_SAMPLES} samples"),
        ({"batch": 16, "micro_batches": 10**6}, "batch is 16 in 1000000 micro-batches; give a multiple"),
        ({"batch": 16, "sequence": 8_192_000}, "sequence is 8192000; give 1 to 1024"),
        ({"batch": 16, "cluster": f"h100:{BILLION}"}, "cluster is 'h100:1000000000'; give KIND:DEVICES"),
        ({"batch": 16, "cluster": "h100:8x1000000"}, "cluster has 1000000 nodes; give 1 to 131072"),
    ],
)
def test_plans_of_impossible_numbers_are_refused_in_one_line(asked: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError) as refused:
        tp.plan(**{"model": "gpt2-345m", "cluster": "h100:8", "time_limit": 5.0, **asked})
    assert told in str(refused.value) and "\n" not in str(refused.value)


def test_launch_files_of_very_large_batches_are_judged_or_refused(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    steps = []
    for batch in (2**15, 2**20):
        script.write_text(SCRIPT.format(batch))
        steps.append(tp.import_run(script, cluster="h100:8", search=False).judged.step_ns)
    assert 31.9 < steps[1] / steps[0] < 32.1
    script.write_text(SCRIPT.format(BILLION))
    with pytest.raises(InputError, match=rf"global.batch.size is {BILLION}; give at most {MOST_SAMPLES} samples"):
        tp.import_run(script, cluster="h100:8", search=False)
    script.write_text(SCRIPT.format(2**20).replace("--micro-batch-size 4", "--micro-batch-size 131072"))
    with pytest.raises(InputError, match=r"batch.micro_batches is 2, each of 131072 samples on a rank; give more"):
        tp.import_run(script, cluster="h100:8", search=False)


def planned(schedule: str, micro_batches: int) -> Plan:
    made = tp.plan(model=GPT2, cluster="h100:2", batch=8, pipeline=2, micro_batches=4, schedule="1f1b", gap=0.5).plan
    assert made is not None
    batch = made.batch.changed(global_samples=2 * micro_batches, micro_batches=micro_batches)
    return made.changed(batch=batch, schedule=schedule, predicted=None, claim=None)


def test_plans_of_very_many_micro_batches_are_simulated_and_checked() -> None:
    few, many = (tp.simulate(planned("1f1b", count), cluster="h100:2") for count in (2**14, BILLION // 4))
    assert many.timeline is None and few.timeline is not None
    with pytest.raises(InputError, match=r"batch.micro_batches is 250000000; give at most \d+ to show every one"):
        many.trace()
    pieces = (BILLION // 4) / 2**14
    assert 0.99 * pieces < many.step_ns / few.step_ns < 1.01 * pieces
    assert many.performance is not None and few.performance is not None
    assert many.performance.compute == pytest.approx(few.performance.compute, rel=1e-2)
    with pytest.raises(InputError, match=r"batch.micro_batches is 250000000, each with .*; give at most \d+"):
        tp.simulate(planned("gpipe", BILLION // 4), cluster="h100:2")
