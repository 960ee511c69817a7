"""Plans for other runtimes: the best within what a runtime runs, which its export then takes."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
from trainplan.formulations.runtimes import RUNTIMES
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.quantities import format_time

import trainplan as tp
from tests.helpers.calls import call
from tests.helpers.sizes import first_and_others
from trainplan.api import export_verbs

REQUEST = {"model": "llama3-8b", "cluster": "h100:8x2", "batch": 64, "sequence": 4096}


@pytest.mark.parametrize("runtime", sorted(RUNTIMES))
@pytest.mark.parametrize("asked", first_and_others([{"pipeline": 2, "micro_batches": 8}, {}, {"memory": "32GiB"}]))
def test_the_best_plan_for_a_runtime_is_exported_to_it(runtime: str, asked: dict[str, object]) -> None:
    if RUNTIMES[runtime].one_stage:
        asked = {name: value for name, value in asked.items() if name not in ("pipeline", "micro_batches")}
    free, within = tp.plan(**REQUEST, **asked), tp.plan(**REQUEST, **asked, for_=runtime)
    assert within.plan is not None and free.plan is not None
    assert within.plan.predicted is not None and free.plan.predicted is not None
    assert within.plan.predicted.step_ns >= (free.plan.claim.bound_ns or 0)  # type: ignore[union-attr]
    assert within.plan.one_strategy is not None or len({s.levels for s in within.plan.strategies()}) == 1
    if runtime == "trainplan":  # which runs all that the default problem knows, and takes no files but the plan's own
        assert within.plan.units == free.plan.units and tp.check(within.plan).faults == ()
        return
    found = tp.export(within.plan, runtime)
    assert not any("more memory" in line for line in found.left_out if "stay whole" not in line)
    if runtime == "torchtitan":
        settings = tomllib.loads(found.files["torchtitan.toml"])
        parallel, training = settings["parallelism"], settings["training"]
        degrees = [parallel[f"{name}_degree"] for name in ("pipeline_parallel", "tensor_parallel", "data_parallel_replicate")]
        world = parallel["data_parallel_shard_degree"]
        for degree in degrees:
            world *= degree
        assert world == within.plan.world and training["mixed_precision_param"] == "bfloat16"
        assert ("module_fqns_per_model_part" in parallel) == (len(within.plan.stages) > 1)


def test_a_plan_that_fills_the_memory_is_exported_to_torchtitan() -> None:
    """Gradients are in float32 there, with which the plan without the runtime does not fit."""
    asked: dict[str, Any] = {"model": "qwen3-8b", "cluster": "h100:8", "batch": 64, "sequence": 4096, "gap": 1e-3}
    within = tp.plan(**asked, for_="torchtitan", beside=False)
    assert within.plan is not None and within.plan.precision.gradients == "float32" and within.plan.predicted is not None
    found = tp.export(within.plan, "torchtitan")
    assert not any("gradients" in line for line in found.left_out)
    assert found.settings["peak_bytes"] <= within.plan.memory_bytes
    assert tp.check(within.plan).faults == ()
    assert tp.plan(**asked, for_="torchtitan", dtype="float32", beside=False).plan is not None  # gradients are so already


def test_an_export_says_that_embedding_and_head_are_not_recomputed() -> None:
    asked: dict[str, Any] = {"model": "qwen3-8b", "cluster": "a100-16", "batch": 256, "sequence": 4096, "micro_batches": 8}
    plan = tp.plan(**asked, for_="deepspeed", beside=False).plan
    assert plan is not None and all(strategy.ckpt for strategy in plan.strategies())
    assert [line for line in tp.export(plan, "deepspeed").left_out if "embedding and head" in line]


def test_the_price_of_a_runtime_is_printed() -> None:
    done = call(
        "plan", "--model", "llama3-8b", "--cluster", "h100:8x1", "--batch", "16", "--sequence", "4096", "--for", "megatron",
        "--details",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "price of --for megatron" in done.stdout and "--for megatron" in done.stdout.split("search space")[1]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"for_": "megatron", "schedule": "gpipe"}, "give 1f1b or interleaved: megatron runs no other"),
        ({"for_": "megatron", "zero": "3"}, "give some of 0,1: megatron runs no other"),
        ({"for_": "nemo"}, "megatron, megatron-bridge, torchtitan, deepspeed, accelerate"),
        ({"for_": "deepspeed", "pipeline": 2}, "give 1: deepspeed runs no other"),
        ({"for_": "accelerate", "tp": 2}, "give 1: accelerate runs no other"),
        ({"for_": "torchtitan", "model": "gpt2", "sequence": 1024}, "torchtitan, which has no gpt2 models; give megatron or"),
        ({"for_": "torchtitan", "model": "llama3.2-1b"}, "torchtitan, which has no heads tied to the embedding"),
        ({"for_": "accelerate", "zero": "1"}, "give some of 0,2,3: accelerate runs no other"),
        ({"for_": "megatron", "host": "hidden"}, "megatron has no hidden there; leave it out, or give for trainplan"),
        ({"for_": "deepspeed", "host": "all,cpu"}, "give some of optimizer, parameters, hidden"),
    ],
)
def test_what_a_runtime_does_not_run_is_refused(asked: dict[str, str], said: str) -> None:
    with pytest.raises(InputError) as error:
        tp.plan(**{**REQUEST, **asked})
    assert said in str(error.value)


def test_the_nearest_plan_is_exported_in_place_of_one_that_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is one that the runtime takes, and no faster than the optimum that is refused; the refusal names it."""
    planned = tp.certify(
        tp.plan(model="gpt2-345m", dtype="float32", cluster="autopipe-3090-16", batch=16, gap=0.01, beside=False), 1e-6
    )
    assert planned.plan is not None and planned.plan.one_strategy is None
    nearest = tp.nearest_plan(planned.plan, "megatron", time_limit=None)
    assert nearest is not None and nearest.plan is not None and nearest.plan.one_strategy is not None
    assert nearest.step_ns >= (1 - 0.01) * planned.step_ns
    assert tp.nearest_plan(planned.plan, "nemo") is None
    assert tp.nearest_plan(planned.plan.changed(claim=None), "megatron") is None
    monkeypatch.setattr(export_verbs, "nearest_plan", lambda *_: nearest)  # however slow this machine is
    with pytest.raises(InputError, match=f"takes {re.escape(format_time(nearest.step_ns))} a step, .*add nearest to"):
        tp.export(planned.plan, "megatron")
    assert tp.export(planned.plan, "megatron", nearest=True).files == tp.export(nearest.plan, "megatron").files


@pytest.mark.parametrize("runtime", ["accelerate", "deepspeed"])
def test_plans_for_a_runtime_fit_as_the_runtime_holds_them(runtime: str) -> None:
    """By its programs alone the fastest plan fits; what transformers' modules keep takes 93 GiB of 74."""
    made = tp.plan(model="llama3-8b", cluster="h100:8", batch=64, sequence=4096, for_=runtime, beside=False)
    assert made.plan is not None and made.plan.predicted is not None and made.judged is not None
    assert max(made.plan.predicted.peak_bytes) <= made.plan.memory_bytes
    assert made.plan.predicted.software and max(made.judged.peak_bytes) <= made.plan.memory_bytes
