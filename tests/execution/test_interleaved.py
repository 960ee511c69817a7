"""Several stages on each rank, in turn (interleaved 1F1B): checked, analysed, and run against one process."""

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from trainplan.execution.analysis.memory.peak import BACKENDS
from trainplan.execution.analysis.timing.simulate import time_walk
from trainplan.execution.analysis.verify.checks import check
from trainplan.execution.compile.compiler import compile_plan
from trainplan.execution.instructions import Op
from trainplan.execution.launch.processes import run_plans
from trainplan.execution.program import Instruction, Program
from trainplan.formulations.plan.plan import load_plan
from trainplan.formulations.schedule.message_order import TIMES, with_messages
from trainplan.formulations.schedule.orders import interleaved
from trainplan.formulations.schedule.simulate import Event, Work, simulate

import trainplan as tp
from tests.helpers.plans import GPT2, all_strategies, plan_of, random_interleaved_plan
from tests.helpers.refusals import refused
from tests.helpers.sizes import first_and_others, some_and_all


def interleaved_dict(depth: int = 2, chunks: int = 2, micro_batches: int = 4) -> dict[str, Any]:
    """A device a stage, in turn, cut evenly."""
    units, stages = len(GPT2.units), depth * chunks
    cuts = [stage * units // stages for stage in range(1, stages)]
    plan = plan_of(GPT2, ["single"] * units, stages, 2 * micro_batches, micro_batches, cuts).model_dump()
    plan |= {"world": depth, "schedule": "interleaved-1f1b"}
    plan["stages"] = [stage | {"ranks": [number % depth]} for number, stage in enumerate(plan["stages"])]
    return plan


@pytest.mark.parametrize("count", some_and_all(30, 300, 120))
def test_random_plans_are_sound(count: int) -> None:
    for seed in range(count):
        rng = random.Random(seed)
        programs = compile_plan(random_interleaved_plan(rng, rng.choice([2, 3, 4, 5, 6, 8])))
        assert check(programs) == [], seed
        assert {len(program.chunks) for program in programs} & {2, 3, 4}


@pytest.mark.long
@pytest.mark.parametrize(("world", "backend"), first_and_others([(4, "threads"), (2, "serial"), (3, "fused")]))
@pytest.mark.parametrize("count", some_and_all(5, 24, 12))
def test_random_plans_agree_with_one_process(world: int, backend: str, count: int) -> None:
    rng = random.Random(world)
    reports = run_plans([random_interleaved_plan(rng, world) for _ in range(count)], backend=backend)  # type: ignore[arg-type]
    for report in reports:
        assert report.gradient_difference is not None and report.parameter_difference is not None
        assert report.gradient_difference < 1e-12 and report.parameter_difference < 1e-12


def times_of(events: Sequence[Event]) -> list[tuple[object, ...]]:
    """When each pass of each stage begins and ends."""
    return sorted((*event.task[:3], event.start_ns, event.end_ns) for event in events)


@pytest.mark.parametrize(("depth", "chunks", "micro_batches"), [(2, 2, 4), (2, 4, 2), (4, 2, 8), (3, 2, 9)])
def test_the_time_of_programs_is_that_of_the_simulated_pipeline(depth: int, chunks: int, micro_batches: int) -> None:
    """Where messages take no time, and backward passes twice as long as forward ones: step, and every pass of every stage."""
    programs = compile_plan(load_plan(interleaved_dict(depth, chunks, micro_batches)))
    times = {Op.FORWARD: 1, Op.BACKWARD: 2}
    sizes = {unit: len(units) for program in programs for units in program.chunks for unit in units}

    def duration_ns(_: Program, instruction: Instruction) -> int:
        share = 840 // sizes[instruction.unit] if instruction.unit in sizes else 0
        return times.get(instruction.op, 0) * share

    stages = depth * chunks
    work = Work((840,) * stages, (1680,) * stages, (0,) * (stages - 1))
    timeline = simulate(work, interleaved(depth, chunks, micro_batches))
    walk = time_walk(programs, duration_ns)
    assert walk.step_ns == timeline.time_ns
    for events, expected in zip(walk.passes(), timeline.devices, strict=True):
        assert times_of(events) == times_of(expected)
    for backend in BACKENDS:
        assert time_walk(programs, duration_ns, backend).step_ns <= walk.step_ns


def test_messages_stand_between_the_passes_that_make_and_need_them() -> None:
    for depth, chunks, micro_batches in ((2, 2, 4), (4, 3, 8), (8, 2, 16)):
        stages = depth * chunks
        everything = with_messages(interleaved(depth, chunks, micro_batches), stages)
        sent = sum(item.what == "send" for items in everything for item in items)
        assert sent == 2 * micro_batches * (stages - 1) == sum(i.what == "receive" for items in everything for i in items)
        for items in everything:
            indices = {item: index for index, item in enumerate(items)}
            for item, index in indices.items():
                if item.what == "send":
                    assert indices[item._replace(what="pass")] < index
                elif item.what == "receive":
                    step = 1 if item.task.kind == "forward" else -1
                    needed_by = item.task._replace(stage=item.task.stage + step)
                    assert index < indices[item._replace(what="pass", task=needed_by)]
    assert TIMES["forward"] < TIMES["backward"]


def test_stages_that_cannot_be_interleaved_are_refused_in_words() -> None:
    good = interleaved_dict()
    assert (load_plan(good).depth, load_plan(good).chunks) == (2, 2)
    batch = {"global_samples": 6, "micro_batches": 3}
    for changes, refusal in (
        ({"batch": batch}, ("batch.micro_batches", 3, (2, 4))),
        ({"schedule": "1f1b"}, ("stages[2].ranks[0]", (0, "stages[0]"), (0, 1))),
        ({"sliced": 1}, ("sliced", 1, "1f1b")),
        ({"stages": on_ranks(good, (0, 1, 1, 0))}, ("stages[2].ranks[0]", (1, "stages[1]"), (0, 1))),
        ({"stages": on_ranks(good, (0, 1, 0, 0))}, ("stages[3].ranks", "[0]", ("[1]", "stages[1]"))),
    ):
        with refused(*refusal):
            load_plan({**good, **changes})


def on_ranks(plan: dict[str, Any], ranks: Sequence[int]) -> list[dict[str, Any]]:
    """The stages of a plan, each on one rank."""
    return [stage | {"ranks": [rank]} for stage, rank in zip(plan["stages"], ranks, strict=True)]


def test_all_strategies_of_a_group_are_drawn() -> None:
    assert {"single"} == set(all_strategies(1)) and {"dp3", "sdp3", "tp3"} == set(all_strategies(3))
    assert {"dp2-tp3", "tp3-dp2", "sdp6"} < set(all_strategies(6))


def test_an_interleaved_plan_is_simulated_drawn_and_exported_to_torch_alone() -> None:
    plan = load_plan(interleaved_dict())
    simulation = tp.simulate(plan, cluster="cpu-4")
    assert simulation.performance is not None and [row.stage for row in simulation.performance.stages] == [0, 1]
    labels = [text.get_text() for text in tp.draw_simulation(simulation).axes[0].get_yticklabels()]
    assert labels == ["stage 0, all", "stage 1, all"]
    assert tp.draw_plan(plan, simulation.performance).axes
    assert simulation.judged is not None
    events = [entry for entry in simulation.trace()["traceEvents"] if entry["ph"] == "X"]
    assert len(events) == len(list(simulation.judged.time.operations()))
    moments = [(event["tid"], round(1000 * event["ts"]), round(1000 * (event["ts"] + event["dur"]))) for event in events]
    assert max(end for _, _, end in moments) == simulation.judged.step_ns
    for row in {tid for tid, _, _ in moments}:  # what is on one row does not overlap
        spans = sorted((start, end) for tid, start, end in moments if tid == row)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert "schedule = ScheduleInterleaved1F1B(stages, MICRO_BATCHES" in tp.export(plan, "torch").files["train.py"]
    with refused("model.config.model_type", problem=("gpt2", "torchtitan"), fix=("llama", "qwen3")):
        tp.export(plan, "torchtitan")
    assert tp.check(plan).violations == ()
