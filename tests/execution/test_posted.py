"""Receives that are posted one pass ahead: a sender then need not wait until the receiver comes to them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from trainplan.execution.analysis.memory.peak import Backend, memory_walk
from trainplan.execution.analysis.verify.checks import check
from trainplan.execution.compile.compiler import compile_classes, compile_plan
from trainplan.execution.instructions import Op
from trainplan.execution.launch.processes import run_plans
from trainplan.execution.prediction.compiled_plan import programs_of
from trainplan.execution.program import Instruction, Program, grouped, with_waits
from trainplan.execution.run.settings import TransportName
from trainplan.formulations.plan.plan import Plan, load_plan
from trainplan.profiling.base.processes import run_workers

from tests.helpers.plans import (
    GPT2,
    pipeline,
    plan_of,
    random_interleaved_plan,
    random_plan,
    random_sliced_plan,
    random_unlike_plan,
)
from tests.helpers.sizes import first_and_others

Generator = Callable[[random.Random, int], Plan]
GENERATORS: tuple[Generator, ...] = (
    lambda rng, world: random_plan(rng, world, stages=2),
    random_sliced_plan,
    random_interleaved_plan,
    random_unlike_plan,
)


def posts_of(program: Program) -> list[Instruction]:
    return [i for i in program.instructions if i.op is Op.POST_RECEIVE]


def passes_between(program: Program, begin: int, end: int) -> int:
    """How many passes compute between two instructions."""
    passes = set()
    for i in program.instructions[begin:end]:
        if i.op in (Op.FORWARD, Op.FORWARD_WITHOUT_GRAPH):
            passes.add((True, i.micro_batch, i.half, next(chunk for chunk in program.chunks if i.unit in chunk)))
        elif i.op is Op.BACKWARD:
            passes.add((False, i.micro_batch, None, next(chunk for chunk in program.chunks if i.unit in chunk)))
    return len(passes)


@pytest.mark.parametrize("make", GENERATORS)
def test_programs_post_one_pass_ahead_and_are_sound(make: Generator) -> None:
    rng, posted = random.Random(5), 0
    for _ in range(12):
        programs = compile_plan(make(rng, 4), ahead=True)
        assert check(programs) == []
        for program in programs:
            indices = {i.writes[0]: n for n, i in enumerate(program.instructions) if i.op is Op.POST_RECEIVE}
            for n, i in enumerate(program.instructions):
                for message in i.messages:
                    if message.op is Op.RECEIVE and message.reads:
                        assert passes_between(program, indices.pop(message.writes[0]), n) == 1
                        posted += 1
            assert not indices
    assert posted


def faults(programs: list[Program], change: Callable[[list[Instruction]], None]) -> str:
    """The faults that the checks find once the second rank's instructions are changed."""
    instructions = list(programs[1].instructions)
    change(instructions)
    return "; ".join(check([programs[0], replace(programs[1], instructions=with_waits(instructions))]))


def test_what_is_posted_in_another_way_is_refused() -> None:
    programs = compile_plan(pipeline(GPT2, 2, 4), ahead=True)
    instructions = programs[1].instructions
    index = next(n for n, i in enumerate(instructions) if i.op is Op.POST_RECEIVE)
    post, name = instructions[index], "hidden.4.1"
    received = next(n for n, i in enumerate(instructions) if name in (*i.reads, *i.writes) and n > index)

    def unposted(instructions: list[Instruction]) -> None:
        send, receive = instructions[received].grouped
        instructions[received] = grouped(send, receive.changed(reads=()))

    def used(instructions: list[Instruction]) -> None:
        """A computation takes what has not come yet."""
        uses = next(n for n, i in enumerate(instructions) if i.op is Op.FORWARD and name in i.reads)
        instructions.insert(received, instructions.pop(uses))

    assert post.writes == (name,)
    assert f"reads {name}, which is not there" in faults(programs, lambda i: i.__delitem__(index))
    assert f"writes {name}, which is still held" in faults(programs, lambda i: i.insert(received, post))
    assert f"{name} is posted, and never received" in faults(programs, lambda i: i.append(post))
    assert f"comes where {name} is posted" in faults(programs, unposted)
    assert "hidden.5.1 has" in faults(programs, used), "of no samples yet"
    send = post.changed(op=Op.SEND, reads=post.writes, writes=(), group=(0, 1), message_bytes=programs[1].buffers[name])
    assert "is of unit 4" in faults(programs, lambda i: i.insert(index + 1, send))


def test_receives_of_one_sender_come_in_the_order_in_which_they_are_posted() -> None:
    plan = pipeline(GPT2, 2, 4, "gpipe")
    programs = compile_plan(plan, ahead=True)
    first, second = [n for n, i in enumerate(programs[1].instructions) if i.op is Op.POST_RECEIVE][:2]
    assert "comes where hidden.4.2" in faults(programs, lambda i: i.insert(first, i.pop(second)))


def test_lanes_post_where_the_plan_s_memory_holds_it() -> None:
    plan = pipeline(GPT2, 2, 4)
    assert not any(map(posts_of, programs_of(plan, "serial")))
    ahead = programs_of(plan, "fused")
    assert all(map(posts_of, ahead))
    most = max(memory_walk(program, "fused").peak_bytes for program in ahead)
    assert programs_of(plan.changed(memory_bytes=most), "fused") == ahead
    assert not any(map(posts_of, programs_of(plan.changed(memory_bytes=most - 1), "fused")))


@pytest.mark.parametrize("transport", first_and_others(["direct", "staged"]))
def test_a_sender_does_not_wait_for_a_receiver_that_has_posted(
    transport: TransportName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without posts it does: gloo's sends are done when they are received."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    plan = pipeline(GPT2, 2, 3, "gpipe")
    for ahead in (True, False):
        job = {"jobs": [{"programs": compile_plan(plan, ahead=ahead)}], "gpus": None, "transport": transport}
        assert run_workers("tests.helpers.posted_ranks:run_rank", 2, job, timeout=60.0)[1] is ahead


@pytest.mark.parametrize(
    ("backend", "transport"), first_and_others([("threads", "direct"), ("fused", "direct"), ("threads", "staged")])
)
def test_gradients_are_those_of_one_process(backend: Backend, transport: TransportName) -> None:
    rng = random.Random(f"{backend} {transport}")
    plans = [make(rng, 4) for make in GENERATORS]
    plans.append(plan_of(GPT2, ["tp2-sp"] * len(GPT2.units), 4, 8, 4, cuts=[3]))
    assert all(any(map(posts_of, programs_of(plan, backend))) or len(plan.stages) == 1 for plan in plans)
    for plan, report in zip(plans, run_plans(plans, backend=backend, transport=transport), strict=True):
        differences = report.gradient_difference, report.parameter_difference, report.loss_difference
        assert all(difference is not None and difference < 1e-12 for difference in differences), plan


def test_long_pipelines_repeat_in_rounds_with_posts_too() -> None:
    """The program of few micro-batches tells that of many, and has its peak."""
    units = len(GPT2.units)
    plans = [pipeline(GPT2, 4, 24), pipeline(GPT2, 4, 24, sliced=2)]
    content = plan_of(GPT2, ["single"] * units, 1, 24, 24).model_dump() | {"world": 2, "schedule": "interleaved-1f1b"}
    bounds = [stage * units // 4 for stage in range(5)]
    content["stages"] = [
        {"ranks": [stage % 2], "first_unit": bounds[stage], "last_unit": bounds[stage + 1] - 1} for stage in range(4)
    ]
    for plan in [*plans, load_plan(content)]:
        for device_class, program in zip(compile_classes(plan, ahead=True), compile_plan(plan, ahead=True), strict=True):
            assert device_class.rounds.count > 0
            assert posts_of(device_class.program)
            assert device_class.program == program
            assert memory_walk(device_class.walked, "streams").peak_bytes == memory_walk(program, "streams").peak_bytes
