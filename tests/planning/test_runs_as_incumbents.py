"""The run of a file is a plan like any other: no bound, no best plan and no change that is offered may contradict it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from trainplan.execution.runtimes.export_common import write_export
from trainplan.profiling.models.model import load_model

import trainplan as tp
from tests.helpers.plans import plan_of
from tests.helpers.sizes import first_and_others
from trainplan.imported_runs.assess import LEAST_GAIN, JudgedRun
from trainplan.imported_runs.neighbours import neighbours

FILES = {
    "megatron": "launch.sh",
    "torchtitan": "torchtitan.toml",
    "deepspeed": "ds_config.json",
    "accelerate": "accelerate.yaml",
    "megatron-bridge": "bridge.yaml",
}
CLUSTERS = ("h100:8", "a100:8", "a100-16")  # of the last, a paper's, the simulations are the prediction
SIZES = {"hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 16, "num_key_value_heads": 8}


def judged(seed: int, folder: Path) -> tuple[JudgedRun, dict[str, Any]]:
    """A random plan of a random runtime, some decisions away from a usual one, exported and judged; and the request."""
    rng = random.Random(seed)
    to, cluster = rng.choice(list(FILES)), rng.choice(CLUSTERS)
    model = load_model("llama3-8b", 2048, "bfloat16")
    if to != "torchtitan":  # whose files name a flavor
        model = model.with_fields(num_hidden_layers=rng.choice([4, 8]), head_dim=128, **SIZES)
    world = 16 if cluster == "a100-16" else 8
    plan = plan_of(
        model, [f"sdp{world}{'-zero1' * to.startswith('megatron')}"] * len(model.units), world, 64, rng.choice([1, 4])
    )
    plan = plan.changed(precision={"master": "float32"}, memory_bytes=2**47)  # so that what does not fit is exported, too
    for _ in range(rng.randrange(4)):
        plan = rng.choice([other for _, other in neighbours(to, plan)] or [plan])
    made = tp.export(plan, to)
    write_export(made, folder)
    (folder / "config.json").write_text(json.dumps(model.config))
    requested: dict[str, Any] = {
        "model": "llama3-8b" if to == "torchtitan" else folder / "config.json",
        "cluster": cluster,
        "gap": 0.05,
        "time_limit": 4,
    }
    if to in ("deepspeed", "accelerate"):
        strategy = made.plan.units[1].strategy
        requested |= {"sequence": 2048, "batch": 64, "micro_batch": 64 // made.plan.batch.micro_batches // strategy.data_degree}
        requested |= {"dtype": "bfloat16", "recompute": "full" if strategy.ckpt else "none"} if to == "deepspeed" else {}
    return tp.import_run(folder / FILES[to], **requested), requested


@pytest.mark.parametrize("seed", first_and_others(list(range(40)), 2, 3))
def test_a_run_is_a_feasible_incumbent(seed: int, tmp_path: Path) -> None:
    """The bound is at most the run's step in kind, the best plan at most the run's own prediction, and every change gains by
    that prediction, and fits.

    Where neither the run nor any change of it fits, a busy machine may find no plan in the time of the search, which then says
    so: it does not know, rather than that nothing fits."""
    run, requested = judged(seed, tmp_path)
    assert run.best is not None and run.within is not None
    if run.found is None:
        assert not run.fits and not run.changes and run.within.plan is None and run.within.answer.status == "unknown"
        return
    assert run.fits or run.found.source != "run"
    if run.bound_ns is not None:
        assert run.bound_ns <= run.measured_ns and (run.by_prediction or run.measured_ns <= run.judged.step_ns)
        assert run.checked_ns is None or run.checked_ns <= run.measured_ns
    if run.fits:
        assert run.found.step_ns <= run.step_ns
    if run.by_prediction:
        assert run.within is not None and run.within.step_ns is not None and run.found.step_ns <= run.within.step_ns
    elif max(run.judged.peak_bytes) <= run.plan.memory_bytes:
        assert run.best_walk_ns is not None and run.best_walk_ns <= run.judged.step_ns
    for number, change in enumerate(run.changes):
        assert not run.fits or change.share >= LEAST_GAIN
        own = change.plan.changed(predicted=None, claim=None)
        again = tp.simulate(own, cluster=requested["cluster"])
        assert max(again.peak_bytes) <= run.plan.memory_bytes, change.what
        assert again.step_ns == pytest.approx((1 - change.share) * run.step_ns, rel=1e-6), change.what
        assert run.found.step_ns <= again.step_ns + 1, (number, change.what)
