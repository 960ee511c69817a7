"""Sequence parallelism: plans that mix units with and without it, checked, analysed, and run against one process."""

import random
from collections import Counter

import pytest
from trainplan.execution.analysis.memory.peak import BACKENDS, memory_walk
from trainplan.execution.analysis.verify.checks import check
from trainplan.execution.compile.compiler import compile_plan
from trainplan.execution.instructions import Op
from trainplan.execution.launch.processes import run_plans
from trainplan.execution.launch.report import RunReport
from trainplan.execution.program import Program
from trainplan.formulations.plan.plan import Plan, load_plan
from trainplan.profiling.models.model import Model, load_model

from tests.helpers.plans import (
    BERT,
    DROPPING,
    GPT2,
    LLAMA,
    UNTIED,
    plan_of,
    random_interleaved_plan,
    random_plan,
    random_sliced_plan,
    random_uneven_plan,
    random_unlike_plan,
    sharing_tokens,
)
from tests.helpers.refusals import refused
from tests.helpers.sizes import first_and_others, some_and_all

MAKES = (random_plan, random_sliced_plan, random_uneven_plan, random_unlike_plan, random_interleaved_plan)
PIECES = (
    *(Op.ENTER, Op.ENTER_WITHOUT_GRAPH, Op.LEAVE, Op.LEAVE_BACKWARD, Op.ENTER_BACKWARD),
    *(Op.SLICE_TOKENS, Op.GATHER_TOKENS, Op.REDUCE_SCATTER_TOKENS),
)


def any_plan(rng: random.Random, world: int, number: int) -> Plan:
    """A random plan of any kind, every other one of a model with dropout."""
    plan = MAKES[number % len(MAKES)](rng, world)
    if number // len(MAKES) % 2:
        model = dict(zip((GPT2.digest, UNTIED.digest, BERT.digest, LLAMA.digest), DROPPING, strict=True))[plan.model_digest]
        plan = plan.changed(model=model.shape(), model_digest=model.digest)
    return sharing_tokens(rng, plan)


def operations(programs: list[Program]) -> Counter[Op]:
    return Counter(i.op for program in programs for instruction in program.instructions for i in instruction.messages)


@pytest.mark.parametrize("count", some_and_all(40, 400, 150))
def test_random_plans_are_sound(count: int) -> None:
    used, apart = Counter[Op](), 0
    for seed in range(count):
        rng = random.Random(seed)
        programs = compile_plan(any_plan(rng, rng.choice([4, 4, 6, 8] if seed % len(MAKES) > 2 else [4, 8]), seed))
        assert check(programs) == [], seed
        for backend in BACKENDS:
            assert memory_walk(programs[0], backend).peak_bytes >= memory_walk(programs[0]).peak_bytes
        used += operations(programs)
        messages = [m for program in programs for i in program.instructions for m in i.messages if m.op is Op.RECEIVE]
        apart += any("tokens" in message.args for message in messages)
    assert min(used[op] for op in PIECES) > count // 4
    assert apart > count // 10, "messages of a rank's tokens alone"


def _hold(reports: list[RunReport]) -> None:
    for report in reports:
        assert report.gradient_difference is not None and report.parameter_difference is not None
        assert report.loss_difference is not None
        differences = (report.gradient_difference, report.parameter_difference, report.loss_difference)
        assert max(differences) < 1e-12, differences


@pytest.mark.parametrize(("world", "backend"), first_and_others([(2, "serial"), (4, "fused"), (4, "threads")]))
@pytest.mark.parametrize("count", some_and_all(6, 30, 15))
def test_random_plans_agree_with_one_process(world: int, backend: str, count: int) -> None:
    """Gradients, and parameters after three steps; masks of dropout are the same whoever has which tokens."""
    rng = random.Random(world)
    numbers = [n for n in range(count) if world > 2 or n % len(MAKES) != 4]
    plans = [any_plan(rng, world, number) for number in numbers]
    assert any(unit.strategy.sequence_parallel for plan in plans for unit in plan.units)
    _hold(run_plans(plans, backend=backend))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "model", first_and_others([DROPPING[2], GPT2, BERT, LLAMA, *DROPPING[:2], DROPPING[3]], stride=2), ids=str
)
def test_every_unit_of_a_model_shares_its_tokens(model: Model) -> None:
    units = len(model.units)
    _hold(run_plans([plan_of(model, [s] * units, 2, 4, 2) for s in ("tp2-sp", "tp2-sp-ckpt")]))


def large(model: Model) -> Model:
    """The model at a size at which tensors outweigh bookkeeping, and activations the head's matrix."""
    if model.family == "gpt2":
        fields = {"n_embd": 128, "n_inner": 512, "n_positions": 128}
    else:
        fields = {"hidden_size": 128, "intermediate_size": 512, "max_position_embeddings": 128}
        fields |= {"head_dim": 32} if model.family == "llama" else {}
    return model.with_fields(sequence=128, vocab_size=500, **fields).in_dtype("float32")


@pytest.mark.long
def test_measured_memory_follows_the_memory_analysis() -> None:
    """Against torch's own allocations; and a rank that shares its tokens needs less than one that does not."""
    models = [large(model) for model in (GPT2, BERT, LLAMA, DROPPING[0])]
    plans = [plan_of(m, [s] * len(m.units), 2, 16, 2) for m in models for s in ("tp2", "tp2-sp", "tp2-sp-ckpt")]
    plans += [sharing_tokens(random.Random(n), plan_of(m, ["tp2"] * len(m.units), 2, 8)) for n, m in enumerate(models)]
    reports = run_plans(plans, steps=1, compare=False, measure_memory=True)
    for report in reports:
        assert report.peak_bytes is not None
        for predicted, measured in zip(report.predicted_peak_bytes, report.peak_bytes, strict=True):
            assert abs(predicted / measured - 1) < 0.01
    for index in range(0, 3 * len(models), 3):
        whole, shared, recomputed = (max(report.peak_bytes or [0]) for report in reports[index : index + 3])
        assert recomputed < shared < whole


def test_a_rank_holds_and_sends_its_tokens_alone() -> None:
    units = len(GPT2.units)
    whole, shared = (compile_plan(plan_of(GPT2, [s] * units, 4, 4, 2, [4])) for s in ("tp2", "tp2-sp"))
    for name in ("hidden.4.0", "input-gradient.4.0"):
        assert shared[0].buffers[name] == whole[0].buffers[name] // 2

    def sent(programs: list[Program]) -> int:
        return sum(m.message_bytes for i in programs[0].instructions for m in i.messages if m.op is Op.SEND)

    assert sent(shared) == sent(whole) // 2
    recomputed = compile_plan(plan_of(GPT2, ["tp2-sp-ckpt"] * units, 4, 4, 2, [4]))
    assert memory_walk(recomputed[0]).peak_bytes < memory_walk(shared[0]).peak_bytes < memory_walk(whole[0]).peak_bytes
    assert not operations(whole).keys() & set(PIECES)
    assert not operations(shared)[Op.ALL_REDUCE], "gathered and scattered instead"


def test_tokens_that_cannot_be_shared_are_refused_in_words() -> None:
    units = len(GPT2.units)
    uneven = GPT2.with_fields(sequence=11)
    with refused("units[0].strategy", problem="tp2-sp", fix=(2, 11)):
        plan_of(uneven, ["tp2-sp"] * units, 2)
    plan = plan_of(uneven, ["tp2"] * units, 2).model_dump()
    plan["units"][3]["layout"]["sequence_parallel"] = True
    with refused("units[3].layout.sequence_parallel", problem="true", fix=("false", 2)):
        load_plan(plan)
    swin = load_model("swin-huge-32")
    strategies = ["single"] * len(swin.units)
    for kind, refusal in (
        ("attention", ("units[1].strategy", "tp2-sp", "attention")),
        ("merge", ("units[5].strategy", "tp2-sp", "merge")),
    ):
        index = next(n for n, unit in enumerate(swin.units) if unit.kind == kind)
        with refused(*refusal):
            plan_of(swin, [*["tp2"] * index, "tp2-sp", *["tp2"] * (len(strategies) - index - 1)], 2)
