"""The order of passes against its definition, and what it makes a stage hold."""

from collections import Counter
from itertools import accumulate, pairwise, product

import pytest
from trainplan.execution.analysis.memory.peak import memory_walk
from trainplan.execution.compile.compiler import compile_plan
from trainplan.execution.program import Program
from trainplan.formulations.schedule.orders import Pass, PassOrder, gpipe, in_flight, one_f_one_b

from tests.helpers.plans import GPT2, SCHEDULES, pipeline


def _passes(stage: int, stages: int, micro_batches: int, schedule: PassOrder, sliced: int = 0) -> list[Pass]:
    return (gpipe(stages, micro_batches) if schedule == "gpipe" else one_f_one_b(stages, micro_batches, sliced))[stage]


def _in_flight(stage: int, stages: int, micro_batches: int, schedule: PassOrder) -> int:
    return micro_batches if schedule == "gpipe" else min(micro_batches, stages - stage)


def test_known_orders() -> None:
    def written(stage: int, stages: int, micro_batches: int, schedule: PassOrder, sliced: int = 0) -> str:
        order = _passes(stage, stages, micro_batches, schedule, sliced)
        assert {one.stage for one in order} == {stage}
        return " ".join(f"{p.kind[0].upper()}{p.micro_batch}{'' if p.half is None else 'ab'[p.half]}" for p in order)

    assert written(0, 4, 5, "1f1b") == "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4"
    assert written(2, 4, 4, "1f1b") == "F0 F1 B0 F2 B1 F3 B2 B3"
    assert written(3, 4, 3, "1f1b") == "F0 B0 F1 B1 F2 B2"
    assert written(0, 4, 2, "1f1b") == "F0 F1 B0 B1"
    assert written(1, 2, 3, "gpipe") == "F0 F1 F2 B0 B1 B2"
    assert written(0, 4, 5, "1f1b", 3) == "F0a F0b F1a F1b F2a F2b F3 B0 F4 B1 B2 B3 B4"
    assert written(1, 4, 5, "1f1b", 3) == "F0a F0b F1a F1b F2 B0 F3 B1 F4 B2 B3 B4"
    assert written(2, 4, 5, "1f1b", 3) == "F0a F0b F1 B0 F2 B1 F3 B2 F4 B3 B4"
    assert written(3, 4, 3, "1f1b", 3) == "F0a F0b B0 F1 B1 F2 B2"
    assert written(0, 4, 2, "1f1b", 1) == "F0a F0b F1 B0 B1"


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_passes_are_those_of_the_definition(schedule: PassOrder) -> None:
    for stages in range(1, 7):
        for stage, micro_batches in product(range(stages), range(1, 10)):
            order = _passes(stage, stages, micro_batches, schedule)
            for kind in ("forward", "backward"):
                assert [one.micro_batch for one in order if one.kind == kind] == list(range(micro_batches))
            held = list(accumulate(1 if one.kind == "forward" else -1 for one in order))
            assert min(held) == 0
            assert max(held) == in_flight(order) == _in_flight(stage, stages, micro_batches, schedule)
            kinds = [one.kind for one in order]
            ahead = kinds.index("backward")
            assert ahead == max(held), "all that is held at once is held before the first backward pass"
            turns = kinds[ahead - 1 : len(kinds) - ahead + 1]
            assert turns == ["forward", "backward"] * (micro_batches - ahead + 1)


def _held_at_once(program: Program, kind: str, unit: int) -> int:
    live, most = set[str](), 0
    for instruction in program.instructions:
        live |= {name for name in instruction.writes if name.startswith(f"{kind}.{unit}.")}
        most = max(most, len(live))
        live -= set(instruction.frees)
    return most


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_programs_hold_the_micro_batches_of_the_definition(stages: int, schedule: PassOrder) -> None:
    for micro_batches in range(1, 9):
        for program in compile_plan(pipeline(GPT2, stages, micro_batches, schedule)):
            held = {_held_at_once(program, kind, unit) for kind in ("graph", "hidden") for unit in program.units}
            assert held == {_in_flight(program.rank, stages, micro_batches, schedule)}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_simulation_grows_by_one_micro_batch(schedule: PassOrder) -> None:
    """One more micro-batch in flight is exactly its units' inputs and graphs more; at the last stage also its logits."""
    stages, rows = 4, 2
    by_count = [compile_plan(pipeline(GPT2, stages, m, schedule, rows)) for m in range(1, 9)]
    grown = Counter[int]()
    for before, after in pairwise(by_count):
        for small, large in zip(before, after, strict=True):
            counts = [_in_flight(p.rank, stages, p.micro_batches, schedule) for p in (small, large)]
            parts = [GPT2.units[unit].sublayer for unit in small.units]
            one = sum(part.input_bytes(rows) + part.kept_bytes(rows, 1) for part in parts)
            one += parts[-1].output_bytes(rows, 1) if small.rank == stages - 1 else 0
            more = memory_walk(large).peak_bytes - memory_walk(small).peak_bytes
            if counts[0] == counts[1] > 1 or small.rank == stages - 1 or counts[0] < counts[1]:
                assert more == (counts[1] - counts[0]) * one, (small.rank, small.micro_batches)
                grown[small.rank] += counts[1] - counts[0]
    assert +grown == ({0: 3, 1: 2, 2: 1} if schedule == "1f1b" else dict.fromkeys(range(stages), 7))
