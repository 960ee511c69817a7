"""Logs of the three runtimes next to a prediction: steps, units, ranks, and what does not belong together."""

from __future__ import annotations

from pathlib import Path

import pytest
from trainplan.formulations.plan.plan import Plan
from trainplan.profiling.models.model import load_model

import trainplan as tp
from tests.helpers.calls import call
from tests.helpers.plans import plan_of
from tests.helpers.refusals import Facts, refused

MIB, GIB = 2**20, 2**30
TOOLS_OF_LOGS = ("Megatron-LM", "torchtitan", "DeepSpeed", "transformers")


def planned() -> Plan:
    """Four ranks, 64 samples of 1024 tokens a step, 2 s predicted."""
    model = load_model("gpt2", 1024, "bfloat16")
    plan = plan_of(model, ["dp4"] * len(model.units), 4, 64, 4)
    predicted = {"step_ns": 2 * 10**9, "peak_bytes": [GIB, 2 * GIB, GIB, GIB]}
    return plan.changed(predicted={**predicted, "cost_model": "executed", "backend": "serial", "profile_origin": "estimated"})


def megatron(times: list[float], batch: int = 64) -> str:
    lines = ["[Rank 1] (after 1 iterations) memory (MB) | allocated: 10.5 | max allocated: 1536.0 | reserved: 1800.0\n"]
    lines += [
        f" [2025-11-01 00:00:00] iteration {i:8}/     100 | consumed samples: {i * batch:12} | "
        f"elapsed time per iteration (ms): {1e3 * s:.1f} | global batch size: {batch:5} | lm loss: 9.1 |\n"
        for i, s in enumerate(times, 1)
    ]
    return "".join(lines)


TITAN = "\x1b[31mstep: {:2}\x1b[32m  loss: 8.1  memory: {:.2f}GiB(50.68%)  tps: {:,}  tflops: 1.0  mfu: 4.2%\x1b[39m\n"
SPEED = (
    "[INFO] [timer.py:264:stop] epoch=0/micro_step={0}/global_step={0}, RunningAvgSamplesPerSec=9.9, "
    "CurrSamplesPerSec={1}, MemAllocated=1.0GB, MaxMemAllocated=1.5GB\n"
)


def test_the_median_after_the_first_steps_counts(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(megatron([90.0, 9.0, 9.0, 2.4, 2.5, 2.6]))
    run = tp.compare_log(planned(), path)
    assert (run.log.runtime, run.lines, run.step_s, run.predicted_s) == ("megatron", 6, 2.5, 2.0)
    assert run.tokens_per_s == pytest.approx(64 * 1024 / 2.5)
    assert run.peaks == ((1, 1536 * MIB, 2 * GIB),)
    path.write_text(megatron([3.0]))
    assert tp.compare_log(planned(), path).step_s == 3.0


def test_tokens_of_a_device_and_samples_of_all_become_steps(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(TITAN.format(i, 1.25, 8192) for i in range(1, 9)))
    run = tp.compare_log(planned(), path)
    assert run.log.runtime == "torchtitan" and run.log.reserved and run.peaks == ((None, round(1.25 * GIB), 2 * GIB),)
    assert run.step_s == pytest.approx(64 * 1024 / 4 / 8192)  # tokens of a step on a device, over tokens/s of it
    path.write_text("".join(SPEED.format(i, 16.0) for i in range(1, 9)))
    run = tp.compare_log(planned(), path)
    assert run.log.runtime == "deepspeed" and run.step_s == pytest.approx(4.0) and run.peaks[0][1] == round(1.5 * GIB)


def test_a_log_of_another_run_is_refused(tmp_path: Path) -> None:
    path, plan = tmp_path / "log", planned()
    cases: list[tuple[str, Plan, str, Facts, Facts]] = [
        (megatron([1.0], 32), plan, "batch.global_samples", (64, 32), "plan"),
        (megatron([1.0]).replace("Rank 1", "Rank 4"), plan, "world", (4, "rank 4"), "plan"),
        (megatron([1.0]), plan.changed(predicted=None), "predicted", (), ("`plan -o`", "`import-run -o`")),
        ("epoch 1 of 3\n", plan, "", "step", TOOLS_OF_LOGS),
    ]
    for text, made, field, problem, fix in cases:
        path.write_text(text)
        with refused(field, problem=problem, fix=fix):
            tp.compare_log(made, path)


def test_the_command_prints_both(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(megatron([2.5] * 5))
    (tmp_path / "plan.json").write_text(planned().model_dump_json())
    done = call("compare", tmp_path / "plan.json", "--log", tmp_path / "train.log")
    assert done.returncode == 0, done.stderr
    assert "2.5 s a step, the median of 3 steps after the first 2" in done.stdout and "2 s a step (-20.0%)" in done.stdout
    assert "1.5 GiB" in done.stdout and "+33.3%" in done.stdout
    plans = [tmp_path / "plan.json"] * 2
    wrong = call("compare", *plans, "--log", tmp_path / "train.log")
    assert wrong.returncode == 2 and "--log is given with 2 files" in wrong.stderr


TIMES = [21.2, 4.2, 4.4]  # the first with its warm-up
PRINTED = {
    "megatron": lambda count: megatron(TIMES[:count]),
    "torchtitan": lambda count: "".join(TITAN.format(i, 1.25, round(16384 / s)) for i, s in enumerate(TIMES[:count], 1)),
    "deepspeed": lambda count: "".join(SPEED.format(i, 64 / s) for i, s in enumerate(TIMES[:count], 1)),
}


@pytest.mark.parametrize("runtime", PRINTED)
def test_a_short_log_leaves_its_first_step_out_where_others_remain(runtime: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    for count, step_s, of in [
        (1, 21.2, "the first step alone, with its warm-up"),
        (2, 4.2, "1 line after the first"),
        (3, 4.3, "2 lines after the first"),
    ]:
        path.write_text(PRINTED[runtime](count))
        run = tp.compare_log(planned(), path)
        assert (run.log.runtime, run.log.of("line")) == (runtime, of)
        assert run.step_s == pytest.approx(step_s, rel=1e-3)


def test_the_rate_of_a_progress_bar_is_a_measured_step_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "log"
    bar = "Loading checkpoint shards: 100%|###| 2/2 [00:01<00:00,  1.10it/s]\n 10%|#    | {}/100 [00:20<03:00,  {}]\n"
    for rate, step_s in [("2.01s/it", 2.01), ("4.00it/s", 0.25)]:
        path.write_text(bar.format(10, rate))
        run = tp.compare_log(planned(), path)
        assert (run.step_s, run.log.of("line")) == (step_s, "the progress bar's, smoothed over its last steps")
    for text in [bar.format(2, "9.50s/it"), bar.format(10, "2.01s/it") + " 50%|##  | 4/8 [00:04<00:04,  1.00s/it]\n"]:
        path.write_text(text)  # the warm-up alone; and another bar without a name, such as evaluation's
        with refused("", where=path, problem="step", fix=TOOLS_OF_LOGS):
            tp.compare_log(planned(), path)
