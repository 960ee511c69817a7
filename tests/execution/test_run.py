"""Plans on real processes against one process."""

import os
import random
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from trainplan.execution.analysis.verify.checks import check
from trainplan.execution.compile.compiler import compile_plan
from trainplan.execution.instructions import Op
from trainplan.execution.launch.processes import run_plans
from trainplan.execution.launch.report import RunReport

from tests.helpers import warm
from tests.helpers.measured import memory_follows_the_walk
from tests.helpers.plans import (
    BERT,
    DROPPING,
    GPT2,
    SCHEDULES,
    UNTIED,
    plan_of,
    random_plan,
)
from tests.helpers.refusals import refused
from tests.helpers.sizes import first_and_others, some_and_all

PLANS = 24


def _equal(report: RunReport) -> None:
    assert report.gradient_difference is not None
    assert report.parameter_difference is not None
    assert report.loss_difference is not None
    assert report.gradient_difference < 1e-12
    assert report.parameter_difference < 1e-12
    assert report.loss_difference < 1e-12


def _hold(reports: list[RunReport], plans: int) -> None:
    assert len(reports) == plans
    for report in reports:
        _equal(report)
        assert report.losses == sorted(report.losses, reverse=True), "the same batch thrice: the loss must fall"


@pytest.mark.parametrize("count", some_and_all(8, PLANS))
@pytest.mark.parametrize("backend", first_and_others(["fused", "serial"]))
def test_gradients_of_random_plans_on_4_processes(backend: str, count: int) -> None:
    rng = random.Random(20)
    plans = [random_plan(rng) for _ in range(PLANS)]
    used = {str(unit.strategy).removesuffix("-ckpt") for plan in plans for unit in plan.units}
    assert len(used) == 9 + 3 + 1, "every strategy of four devices, of two and of one has its part"
    assert {(len(plan.stages), plan.schedule) for plan in plans} == set(product((1, 2, 4), SCHEDULES))
    split = [plan for plan in plans if len(plan.stages) > 1]
    assert {plan.planned_model().tied for plan in split} == {True, False}
    assert {plan.batch.micro_batches for plan in split} == {1, 2, 3, 5, 8}
    _hold(run_plans(plans[:count], backend=backend), count)  # type: ignore[arg-type]


def test_samples_that_dropout_follows_from_are_checked() -> None:
    programs = compile_plan(plan_of(DROPPING[0], ["dp2"] * len(GPT2.units), 2))
    assert check(programs) == []
    for op in (Op.FORWARD, Op.FORWARD_WITHOUT_GRAPH, Op.RECOMPUTE):
        programs = compile_plan(plan_of(DROPPING[0], ["dp2-ckpt" if op is not Op.FORWARD else "dp2"] * len(GPT2.units), 2))
        index = next(n for n, i in enumerate(programs[0].instructions) if i.op is op and i.args)
        instructions = list(programs[0].instructions)
        instructions[index] = replace(instructions[index], args={"rows": instructions[index].args["rows"][::-1]})
        programs[0] = replace(programs[0], instructions=tuple(instructions))
        assert "drops numbers as of samples" in check(programs)[0]


def test_two_processes_and_one() -> None:
    """Also of models with dropout, whose losses need not fall."""
    rng = random.Random(5)
    for world in (1, 2):
        plans = [random_plan(rng, world) for _ in range(4)] + [random_plan(rng, world, model) for model in DROPPING]
        reports = run_plans(plans)
        _hold(reports[:4], 4)
        for report in reports[4:]:
            _equal(report)


def test_the_comparison_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gradient that is averaged, not summed, is seen: the check that all plans pass is not an empty one."""
    from trainplan.execution.launch import processes as run

    plan = plan_of(GPT2, ["dp4"] * len(GPT2.units), 4)
    programs = []
    for program in compile_plan(plan):
        changed = [
            replace(i, args={**i.args, "scale": i.args["scale"] / 2}) if i.op is Op.LOSS else i for i in program.instructions
        ]
        programs.append(replace(program, instructions=tuple(changed)))
    job = {
        "jobs": [{"programs": programs}],
        "steps": 1,
        "backend": "serial",
        "gpus": None,
        "seed": 0,
        "compare": True,
        "memory": False,
        "record": False,
    }
    monkeypatch.setattr(warm, "folder", None)  # a start as usual, not from a process that has imported all
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]  # the first is where the ranks find `tests`
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    found, imported = run.run_workers("tests.helpers.fork_imports:run_rank", 4, job)[0]
    assert found[0]["gradient_difference"] > 0.1
    assert imported == [], "each rank imports it by itself: name it in IMPORTED_BEFORE_FORKS"


@pytest.mark.parametrize("count", some_and_all(1, 6))
def test_measured_memory_follows_the_memory_analysis(count: int) -> None:
    """Against torch's own allocations, on plans of a size at which tensors outweigh bookkeeping."""
    rng = random.Random(3)
    sizes = {"n_embd": 128, "n_inner": 512, "vocab_size": 2000, "n_positions": 128}
    models = [model.with_fields(sequence=128, **sizes).in_dtype("float32") for model in (GPT2, DROPPING[0])]
    plans = [random_plan(rng, 4, model, stages) for stages in (1, 2, 4) for _ in range(count) for model in models]
    memory_follows_the_walk(run_plans(plans, steps=1, compare=False, measure_memory=True))


@pytest.mark.parametrize("model", [GPT2, UNTIED, BERT], ids=["gpt2", "untied", "bert"])
def test_models_agree_with_transformers(model: object) -> None:
    """The reference itself: logits and gradients equal those of the Hugging Face implementation."""
    transformers = pytest.importorskip("transformers")
    import torch
    from trainplan.execution.training.single_process import Reference, batch_tokens

    from tests.helpers.huggingface import as_huggingface

    reference = Reference(model, seed=1)  # type: ignore[arg-type]
    other = as_huggingface(transformers, reference)
    tokens = batch_tokens(reference.model, 3, 1)
    tokens[0, 2:5] = 0  # which BERT fills samples up with: no look-up gives it a gradient
    ours, theirs = reference.logits(tokens[:, :-1]), other(tokens[:, :-1]).logits
    assert torch.allclose(ours, theirs, rtol=0, atol=1e-12)
    reference.gradients(tokens)
    loss = torch.nn.functional.cross_entropy(theirs.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    name, mine = (
        ("transformer.wte", "tokens.weight")
        if reference.model.family == "gpt2"
        else ("bert.embeddings.word_embeddings", "tokens.weight")
    )
    assert torch.allclose(other.get_submodule(name).weight.grad, reference.parameters[0][mine].grad, rtol=0, atol=1e-12)


def test_bad_arguments_are_reported() -> None:
    plan = plan_of(GPT2, ["dp4"] * len(GPT2.units), 4)
    with refused("steps", problem=0, fix=1):
        run_plans([plan], steps=0)
    with refused("backend", problem="magic", fix=("serial", "fused", "threads", "streams")):
        run_plans([plan], backend="magic")  # type: ignore[arg-type]
    with refused("measure_memory", problem="fused", fix="--backend serial"):
        run_plans([plan], backend="fused", measure_memory=True)
