"""Context parallelism: programs of plans that cut samples, checked, and run on processes beside one that cuts nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from trainplan.execution.compile.compiler import compile_plan
from trainplan.execution.program import Op, Program
from trainplan.execution.run.processes import run_plans
from trainplan.execution.walk.checks import check
from trainplan.execution.walk.memory import memory_walk
from trainplan.formulations.plan import Plan
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.models.model import Model
from trainplan.profiling.models.sublayers import halves

import trainplan as tp
from tests.execution.plans import DROPPING, LLAMA, UNTIED, plan_of
from tests.sizes import first_and_others
from trainplan.checking import CheckedPlan

GROUPED = LLAMA.with_fields(num_key_value_heads=2)
PLANS = [
    *((UNTIED, "cp2", 2), (GROUPED, "sdp2-cp2-tp2-sp", 8), (LLAMA, "cp2-tp2-ckpt", 4), (GROUPED, "dp2-cp2", 4)),
    *((UNTIED, "sdp2-cp2-zero1", 4), (UNTIED, "sdp2-cp2-zero2", 4), (LLAMA, "cp3", 3), (GROUPED, "sdp2-cp2-ckpt", 4)),
    *((UNTIED, "cp2-ckpt:norms", 2), (DROPPING[1], "cp2", 2), (DROPPING[3], "cp2-tp2", 4), (LLAMA, "cp2-tp2-sp-ckpt", 4)),
]


def cut(model: Model, strategy: str, world: int, stages: int = 1) -> Plan:
    units = len(model.units)
    cuts = [units * x // stages for x in range(1, stages)]
    return plan_of(model, [strategy] * units, world * stages, 8, 2, cuts)


def test_pieces_are_two_parts_from_both_ends_of_a_sample() -> None:
    for pieces, tokens in ((2, 6), (3, 4), (4, 2)):
        parts = [halves(piece, pieces, tokens) for piece in range(pieces)]
        assert sorted(place for part in parts for half in part for place in half) == list(range(pieces * tokens))
        earlier = {sum(place + 1 for half in part for place in half) for part in parts}
        assert max(earlier) - min(earlier) == 0, "all pieces meet equally many earlier keys"


@pytest.mark.parametrize(("model", "name", "world"), first_and_others(PLANS, 2))
def test_gradients_are_those_of_one_process(model: Model, name: str, world: int) -> None:
    (report,) = run_plans([cut(model, name, world)], steps=2)
    for difference in (report.gradient_difference, report.parameter_difference, report.loss_difference):
        assert difference is not None and difference < 1e-12


@pytest.mark.long
def test_pipelines_of_cut_samples_run() -> None:
    (report,) = run_plans([cut(UNTIED, "cp2", 2, stages=2)], steps=2)
    assert report.gradient_difference is not None and report.gradient_difference < 1e-12


@pytest.mark.long
def test_peaks_are_those_of_the_walk() -> None:
    wide = UNTIED.with_fields(n_embd=128, n_inner=512, n_positions=128).with_fields(sequence=96)
    plans = [cut(wide, name, 2) for name in ("cp2", "cp2-ckpt")]
    for plan, report in zip(plans, run_plans(plans, steps=1, compare=False, measure_memory=True), strict=True):
        assert report.peak_bytes == pytest.approx(report.predicted_peak_bytes, rel=0.001), plan.strategies()[0]


@pytest.mark.parametrize("name", ["cp2", "sdp2-cp2-tp2-sp", "dp2-cp2-ckpt"])
def test_programs_are_checked(name: str) -> None:
    world = {"cp2": 2, "sdp2-cp2-tp2-sp": 8, "dp2-cp2-ckpt": 4}[name]
    programs = compile_plan(cut(GROUPED, name, world))
    assert check(programs) == []
    for op in (Op.GATHER_KEYS, Op.SCATTER_KEYS):
        place, one = next((at, i) for at, i in enumerate(programs[0].instructions) if i.op is op)
        assert len(one.group) == 2
        for wrong in ({"group": (0,)}, {"message_bytes": one.message_bytes // 2}, {"reads": ()}):
            assert check([_with(programs[0], place, wrong), *programs[1:]]), (op, wrong)


def _with(program: Program, place: int, fields: dict[str, object]) -> Program:
    instructions = list(program.instructions)
    instructions[place] = instructions[place].changed(**fields)
    return replace(program, instructions=tuple(instructions))


def test_longer_samples_take_less_memory_on_more_ranks() -> None:
    peaks = [max(memory_walk(program).peak_bytes for program in compile_plan(cut(UNTIED, f"cp{c}", c))) for c in (2, 3)]
    assert peaks[1] < peaks[0]


@pytest.mark.parametrize(
    ("name", "model", "said"),
    [
        ("cp5", UNTIED, "10 does not divide its 12 tokens"),
        ("tp2-cp2", UNTIED, "in the order dp, sdp, cp, tp"),
    ],
)
def test_what_cannot_be_cut_is_refused(name: str, model: Model, said: str) -> None:
    with pytest.raises(InputError, match=said):
        compile_plan(cut(model, name, 5 if name == "cp5" else 4))


def test_a_plan_with_context_parallelism_is_checked_and_walked() -> None:
    request = {"model": "llama3.2-1b", "cluster": "h100:8", "batch": 8, "sequence": 32768, "dtype": "bfloat16"}
    answer = tp.plan(**request, cp="4", gap=0.05, beside=False)
    assert answer.plan is not None and answer.plan.strategies()[0].degree("cp") == 4
    checked = tp.check(answer.plan)
    assert isinstance(checked, CheckedPlan) and answer.plan.predicted is not None
    assert checked.violations == () and checked.peak_bytes <= answer.plan.predicted.most_bytes  # type: ignore[operator]
    assert answer.step_ns is not None and answer.answer.bound_ns is not None and answer.answer.bound_ns <= answer.step_ns
