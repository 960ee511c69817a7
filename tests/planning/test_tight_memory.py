"""Plans under tight memory: what is proven is true, and what fits is found, whoever holds the most: programs or a runtime."""

from __future__ import annotations

from typing import Any

import pytest
from trainplan.execution.prediction.overlap import predict_overlapped
from trainplan.formulations.joint.problem import Instance, Solution
from trainplan.formulations.plan.request import Request
from trainplan.formulations.problem import problem
from trainplan.formulations.runtimes import predict
from trainplan.profiling.models.model import Model, load_model

import trainplan as tp
from trainplan.inputs import request_of

JOINT = problem("joint")
FIELDS: dict[str, Any] = {"num_hidden_layers": 1, "hidden_size": 512, "intermediate_size": 1024, "vocab_size": 4096}
LLAMA = load_model("llama3-8b", 1024, "bfloat16").with_fields(
    **FIELDS, num_attention_heads=8, num_key_value_heads=4, head_dim=64
)
GPT2 = load_model("gpt2", 1024, "bfloat16").with_fields(n_layer=2)
ASKED: dict[str, Any] = {"cost_model": "streams", "reserve": 0}


def instance_of(model: Model, cluster: str, batch: int, memory: int, **options: Any) -> tuple[Instance, Any]:
    requested = request_of(
        JOINT.parameters, "joint", model=model, cluster=cluster, batch=batch, memory=memory, memory_tables="least",
        **ASKED, **options,
    )  # fmt: skip
    return JOINT.instance(requested), requested


def alike(instance: Instance) -> list[Solution]:
    """One solution of each configuration whose cuts are not to be chosen, with the first option of every unit."""
    return [
        Solution(index, (), (0,) * instance.length)
        for index, configuration in enumerate(instance.configurations)
        if configuration.stages == 1
    ]  # fmt: skip


def test_a_plan_for_a_script_of_torch_is_not_called_impossible_for_memory_that_is_left_free() -> None:
    """The script holds alongside the programs 2 bytes for every parameter of a shard: no ninth of all memory."""
    options: dict[str, Any] = {"for_": "torch", "pipeline": 1}
    instance, requested = instance_of(LLAMA, "h100:1x2", 8, 2**20, **options)
    plans = [JOINT.plan(instance, entry, requested) for entry in alike(instance)]
    peaks = [max(predict_overlapped(plan, requested.cluster, checked=False).peak_bytes) for plan in plans]
    options |= {"like": "joint", "model": LLAMA, "cluster": "h100:1x2", "batch": 8, "comparisons": False, **ASKED}
    answer = tp.plan(memory=min(peaks), **options)
    assert answer.answer.status != "infeasible" and answer.plan is None  # it is the script that does not fit
    parameters = sum(unit.sublayer.parameter_count() for unit in LLAMA.units)
    enough = min(peaks) + 2 * parameters
    found = tp.plan(memory=enough, **options)
    assert found.plan is not None
    tp.export(found.plan, "torch")


def held_by_megatron(instance: Instance, solution: Solution, requested: Request) -> tuple[int, int]:
    """The step of a plan as Megatron-LM runs it, and the most that it holds."""
    plan = JOINT.plan(instance, solution, requested)
    assert requested.cluster is not None
    told = predict(plan, requested.cluster, "megatron")
    assert not isinstance(told, str)
    return told.step_ns, told.most_bytes


def test_the_best_plan_is_found_that_a_runtime_holds() -> None:
    """Megatron holds far more than programs do, by amounts that are unlike under each layout; of plans of one stage there are
    few enough to look at each."""
    options: dict[str, Any] = {"for_": "megatron", "pipeline": 1}
    instance, requested = instance_of(GPT2, "l40s:1x4", 8, 2**20, **options)
    every = [held_by_megatron(instance, entry, requested) for entry in alike(instance)]
    most = max(held for _, held in every)
    for tenths in (4, 7):
        memory = most * tenths // 10
        best_ns = min(step_ns for step_ns, held in every if held <= memory)
        found = tp.plan(
            like="joint", model=GPT2, cluster="l40s:1x4", batch=8, memory=memory, comparisons=False, **ASKED, **options
        )
        assert found.plan is not None and found.plan.predicted is not None
        assert found.step_ns == best_ns and found.plan.predicted.most_bytes <= memory
        assert found.answer.bound_ns == best_ns


def test_the_memory_that_is_advised_is_what_the_runtime_holds_too() -> None:
    options: dict[str, Any] = {"for_": "megatron", "pipeline": 1, "one_strategy": True}
    requested: dict[str, Any] = {
        "like": "joint",
        "model": GPT2,
        "cluster": "h100:1x2",
        "batch": 2,
        "comparisons": False,
        **ASKED,
    }
    memory = 400 * 2**20
    short = tp.plan(memory=memory, **requested, **options)
    assert short.plan is None
    assert short.needed_bytes is not None and short.needed_bytes > memory
    assert tp.plan(memory=short.needed_bytes, **requested, **options).plan is not None


def test_what_was_found_until_an_interrupt_is_the_answer_with_its_bound() -> None:
    model = LLAMA.with_fields(num_hidden_layers=4, hidden_size=1024, intermediate_size=4096, vocab_size=32768)
    requested: dict[str, Any] = {
        "like": "joint",
        "model": model,
        "cluster": "h100:1x4",
        "batch": 8,
        "comparisons": False,
        **ASKED,
    }
    begun: list[str] = []

    def interrupt(stated: Any) -> None:
        if isinstance(stated, str):
            begun.append(stated)
            if begun[-2:] == [AGAIN, WALKING]:
                raise KeyboardInterrupt

    whole = tp.plan(memory="600MiB", **requested)
    answer = tp.plan(memory="600MiB", progress=interrupt, **requested)
    assert AGAIN in begun and answer.interrupted
    assert answer.plan is not None and answer.judged is not None and max(answer.judged.peak_bytes) <= 600 * 2**20
    assert answer.answer.bound_ns == whole.answer.bound_ns and answer.answer.bound_ns <= answer.judged.step_ns


AGAIN = "solving again, with what programs hold beyond the tables"
WALKING = "compiling and simulating the plan's programs"


@pytest.mark.parametrize("pair", [(0, 0), (5000, 0), (0, 7000), (5000, 7000)])
def test_what_is_counted_beyond_tables_is_added_to_every_stage_or_to_the_last(pair: tuple[int, int]) -> None:
    instance, _ = instance_of(LLAMA, "h100:2x2", 8, 2**30)
    counted = JOINT.refinement.with_extra_bytes(instance, [pair] * len(instance.configurations))
    for index, configuration in enumerate(instance.configurations):
        cuts = configuration.cuts if configuration.cuts is not None else tuple(range(1, configuration.stages))
        solution = Solution(index, cuts, (0,) * instance.length)
        before, after = (JOINT.evaluate(it, solution) for it in (instance, counted))
        assert before.time_ns == after.time_ns
        for stage, more in zip(before.stages, after.stages, strict=True):
            last = stage.last == instance.length - 1
            assert stage.peak_bytes + pair[0] <= more.peak_bytes <= stage.peak_bytes + pair[0] + last * pair[1]
