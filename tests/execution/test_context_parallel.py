"""Context parallelism: programs of plans that cut samples, checked, and run on processes next to one that cuts nothing."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from typing import Any

import pytest
from trainplan.execution.analysis.memory.peak import memory_walk
from trainplan.execution.analysis.verify.checks import check
from trainplan.execution.analysis.verify.rank_class_checks import check_classes
from trainplan.execution.compile.compiler import compile_classes, compile_plan
from trainplan.execution.compile.reduced_plan import fold
from trainplan.execution.instructions import Op
from trainplan.execution.launch.processes import run_plans
from trainplan.execution.program import Program
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.strategy import parse_strategy
from trainplan.profiling.models.model import Model, load_model
from trainplan.profiling.models.sublayers import Attention, HeadShare, halves

import trainplan as tp
from tests.helpers.mutations import KINDS, OF_ORDER, cut_programs, mutants
from tests.helpers.plans import DROPPING, LLAMA, UNTIED, plan_of
from tests.helpers.refusals import refused
from tests.helpers.residence_plans import ON_HOST, resident
from tests.helpers.sizes import first_and_others
from trainplan.verification import CheckedPlan

GROUPED = LLAMA.with_fields(num_key_value_heads=2)
LONGER = GROUPED.with_fields(sequence=16)
PLANS = [
    *((UNTIED, "cp2", 2), (GROUPED, "sdp2-cp2-tp2-sp", 8), (LLAMA, "cp2-tp2-ckpt", 4), (GROUPED, "dp2-cp2", 4)),
    *((UNTIED, "sdp2-cp2-zero1", 4), (UNTIED, "sdp2-cp2-zero2", 4), (LLAMA, "cp3", 3), (GROUPED, "sdp2-cp2-ckpt", 4)),
    *((UNTIED, "cp2-ckpt:norms", 2), (DROPPING[1], "cp2", 2), (DROPPING[3], "cp2-tp2", 4), (LLAMA, "cp2-tp2-sp-ckpt", 4)),
]

BY_HEADS = [  # grouped keys with as many heads as ranks, and with copies; eight ranks with dp, tp and shared tokens
    *((UNTIED, "cp2h", 2), (GROUPED, "sdp2-cp2h-tp2-sp", 8), (LONGER, "cp4h", 4), (LLAMA, "cp2h-tp2-ckpt", 4)),
    *((GROUPED, "dp2-cp2h", 4), (UNTIED, "sdp2-cp2h-zero1", 4), (UNTIED, "sdp2-cp2h-zero2", 4), (LONGER, "sdp2-cp4h-ckpt", 8)),
    *((UNTIED, "cp2h-ckpt:norms", 2), (GROUPED, "cp2h-ckpt:attention", 2), (LLAMA, "cp2h-ckpt:attention+norms", 2)),
    *(
        (DROPPING[0], "cp2h-tp2", 4),
        (DROPPING[1], "cp2h", 2),
        (DROPPING[3].with_fields(sequence=16), "cp4h", 4),
        (LLAMA, "cp2h-tp2-sp-ckpt", 4),
    ),
]


def cut(model: Model, strategy: str, world: int, stages: int = 1) -> Plan:
    units = len(model.units)
    cuts = [units * x // stages for x in range(1, stages)]
    return plan_of(model, [strategy] * units, world * stages, 8, 2, cuts)


def test_pieces_are_two_parts_from_both_ends_of_a_sample() -> None:
    for pieces, tokens in ((2, 6), (3, 4), (4, 2)):
        parts = [halves(piece, pieces, tokens) for piece in range(pieces)]
        assert sorted(index for part in parts for half in part for index in half) == list(range(pieces * tokens))
        earlier = {sum(index + 1 for half in part for index in half) for part in parts}
        assert max(earlier) - min(earlier) == 0, "all pieces meet equally many earlier keys"


@pytest.mark.parametrize(("model", "name", "world"), first_and_others(PLANS, 2, 2) + first_and_others(BY_HEADS, 2, 2))
def test_gradients_are_those_of_one_process(model: Model, name: str, world: int) -> None:
    (report,) = run_plans([cut(model, name, world)], steps=2)
    for difference in (report.gradient_difference, report.parameter_difference, report.loss_difference):
        assert difference is not None and difference < 1e-12


@pytest.mark.long
def test_pipelines_of_cut_samples_run() -> None:
    for name in ("cp2", "cp2h"):
        (report,) = run_plans([cut(UNTIED, name, 2, stages=2)], steps=2)
        assert report.gradient_difference is not None and report.gradient_difference < 1e-12


@pytest.mark.parametrize(
    ("model", "name", "world"),
    first_and_others([(GROUPED, "cp2", 2), (LLAMA, "cp2h-tp2-sp", 4), (GROUPED, "sdp2-cp2", 4), (LONGER, "sdp2-cp4h", 8)], 1),
)
def test_inputs_and_states_may_be_on_the_host(model: Model, name: str, world: int) -> None:
    plan = cut(model, name, world)
    inputs = {unit: {"hidden": True} for unit in range(1, len(plan.units) - 1)}
    states = {unit: {"states": ON_HOST} for unit in range(len(plan.units))}
    both = {unit: state | inputs.get(unit, {}) for unit, state in states.items()}
    plans = [resident(plan, units) for units in (inputs, states, both)]
    for resided in plans:
        assert check(compile_plan(resided)) == []
    for report in run_plans(plans, steps=2):
        for difference in (report.gradient_difference, report.parameter_difference, report.loss_difference):
            assert difference is not None and difference < 1e-12


@pytest.mark.long
def test_peaks_are_those_of_the_memory_analysis() -> None:
    wide = UNTIED.with_fields(n_embd=128, n_inner=512, n_positions=128).with_fields(sequence=96)
    plans = [cut(wide, name, 2) for name in ("cp2", "cp2-ckpt", "cp2h", "cp2h-ckpt")]
    # Where attention is most of a layer: heads of keys, their copies, norms of them, and cores that are computed again.
    large = {"hidden_size": 64, "intermediate_size": 64, "head_dim": 128, "max_position_embeddings": 512}
    for keys, words in ((2, ("cp2h", "cp2h-ckpt", "cp2h-ckpt:norms", "cp2h-ckpt:attention")), (1, ("cp2h",))):
        model = LLAMA.with_fields(**large, num_key_value_heads=keys).with_fields(sequence=256)
        plans += [cut(model, word, 2) for word in words]
    small = {"num_hidden_layers": 2, "vocab_size": 63, "hidden_size": 64, "intermediate_size": 64, "head_dim": 64}
    qwen = load_model("qwen3-0.6b", 256, "float64").with_fields(**small, num_attention_heads=4, num_key_value_heads=2)
    plans += [cut(qwen, "cp2h", 2), cut(DROPPING[0].with_fields(n_positions=128).with_fields(sequence=128), "cp2h", 2)]
    for plan, report in zip(plans, run_plans(plans, steps=1, compare=False, measure_memory=True), strict=True):
        assert report.peak_bytes == pytest.approx(report.predicted_peak_bytes, rel=0.001), plan.strategies()[0]


@pytest.mark.parametrize(
    "name", ["cp2", "sdp2-cp2-tp2-sp", "dp2-cp2-ckpt", "cp2h", "sdp2-cp2h-tp2-sp", "dp2-cp2h-ckpt", "cp2h-ckpt:attention+norms"]
)
def test_programs_are_checked(name: str) -> None:
    strategy = parse_strategy(name)
    programs = compile_plan(cut(GROUPED, name, strategy.group))
    assert check(programs) == []
    for op in (Op.EXCHANGE_HEADS, Op.EXCHANGE_TOKENS) if strategy.exchanges_heads else (Op.GATHER_KEYS, Op.SCATTER_KEYS):
        index, one = next((at, i) for at, i in enumerate(programs[0].instructions) if i.op is op)
        assert len(one.group) == 2
        for wrong in ({"group": (0,)}, {"message_bytes": one.message_bytes // 2}, {"reads": ()}):
            assert check([_with(programs[0], index, wrong), *programs[1:]]), (op, wrong)


def _with(program: Program, index: int, fields: dict[str, object]) -> Program:
    instructions = list(program.instructions)
    instructions[index] = instructions[index].changed(**fields)
    return replace(program, instructions=tuple(instructions))


def test_longer_samples_take_less_memory_on_more_ranks() -> None:
    peaks = [max(memory_walk(program).peak_bytes for program in compile_plan(cut(UNTIED, f"cp{c}", c))) for c in (2, 3)]
    assert peaks[1] < peaks[0]


@pytest.mark.parametrize(("model", "name"), [(GROUPED, "dp2-cp2h"), (LONGER, "cp4h"), (GROUPED, "cp2h-tp2-ckpt")])
def test_programs_move_the_bytes_that_the_cost_model_counts(model: Model, name: str) -> None:
    """The exchanges of one micro-batch and unit are queries, keys with copies and values to heads, results back; gradients the
    other way."""
    strategy = parse_strategy(name)
    part = next(unit.sublayer for unit in model.units if isinstance(unit.sublayer, Attention))
    share = HeadShare(part, strategy.degree("tp"), strategy.degree("cp"))
    rows = 8 // 2 // strategy.data_degree
    entering, leaving = share.entering_bytes(rows, 8), share.leaving_bytes(rows, 8)
    (program, *_) = compile_plan(cut(model, name, strategy.group))
    moved = [
        i.message_bytes
        for i in program.instructions
        if i.op.spec.transfer == "all-to-all" and (i.unit, i.micro_batch) == (1, 0)
    ]
    assert moved == [entering, leaving] * (1 + strategy.ckpt) + [leaving, entering]


def test_wrong_exchanges_are_found() -> None:
    """Found are exchanges made twice, with others, or instead of another, and a core that has not all tokens."""
    programs = compile_plan(cut(GROUPED, "dp2-cp2h", 4))
    for rank, program in enumerate(programs):
        for index, one in enumerate(program.instructions):
            if one.op.spec.piece != "core":
                continue
            others = {
                Op.EXCHANGE_HEADS: Op.EXCHANGE_TOKENS, Op.EXCHANGE_TOKENS: Op.EXCHANGE_HEADS, Op.CORE: Op.CORE_WITHOUT_GRAPH,
                Op.CORE_BACKWARD: Op.CORE,
            }  # fmt: skip
            wrongs: list[dict[str, object]] = [{"op": others[one.op]}, {"workspace_bytes": one.workspace_bytes + 8}]
            wrongs += [{"unit": 3 if one.unit == 1 else 1}, {"frees": ()}, {"reads": one.reads[::-1]}] if one.frees else []
            wrongs += [{"group": (0, 1, 2, 3)}, {"group": (rank,)}] if one.op.spec.transfer == "all-to-all" else []
            for wrong in wrongs:
                made = _with(program, index, wrong)
                if made.instructions != program.instructions:
                    assert check([*programs[:rank], made, *programs[rank + 1 :]]), (str(one), wrong)


def test_100_mutations_that_must_be_seen() -> None:
    kinds = [kind for kind in KINDS if kind.split(",")[0] not in OF_ORDER]
    for mutant in mutants(random.Random(7), 100, kinds, cut_programs):
        faults = check(mutant.programs)
        assert faults and faults[0].startswith("rank "), mutant[:3]


@pytest.mark.parametrize(("name", "heads"), [("dp2-cp8h", 8), ("cp3h", 3), ("sdp4-cp4h-tp2-sp", 8), ("cp6h", 6)])
def test_plans_are_folded_to_ranks_that_share_heads(name: str, heads: int) -> None:
    """One rank of a class stands for all; where two ranks cannot share the heads that three do, nothing is folded."""
    sizes = {"n_head": heads, "n_embd": 8 * heads, "n_positions": 96}
    strategy, model = parse_strategy(name), UNTIED.with_fields(**sizes).with_fields(sequence=96)
    plan = cut(model, name, strategy.group)
    folded = fold(plan, plan.planned_model()).folded
    assert (folded.world < plan.world) == (name not in ("cp3h",)), folded.units[0]
    assert check_classes(compile_classes(plan)) == []


def test_heads_and_keys_do_not_mix() -> None:
    names = [f"cp2{'h' * (index % 2)}" for index in range(len(GROUPED.units))]
    with refused("units[1].strategy", problem="cp2h", fix="cp2"):
        compile_plan(plan_of(GROUPED, names, 2, 8, 2, []))


@pytest.mark.parametrize(
    ("name", "model", "refusal"),
    [
        ("cp5", UNTIED, ("units[0].strategy", ("cp5", 10, 12))),
        ("tp2-cp2", UNTIED, ("units[0].strategy", "tp2-cp2", ("dp", "sdp", "cp", "tp"))),
    ],
)
def test_what_cannot_be_cut_is_refused(name: str, model: Model, refusal: tuple[Any, ...]) -> None:
    with refused(*refusal):
        compile_plan(cut(model, name, 5 if name == "cp5" else 4))


@pytest.mark.parametrize("exchange", ["keys", "heads"])
def test_a_plan_with_context_parallelism_is_checked_and_analysed(exchange: str) -> None:
    request = {"model": "llama3.2-1b", "cluster": "h100:8", "batch": 8, "sequence": 32768, "dtype": "bfloat16"}
    answer = tp.plan(**request, cp="4", cp_exchange=exchange, gap=0.05, comparisons=False)
    assert answer.plan is not None and answer.plan.strategies()[0].degree("cp") == 4
    checked = tp.check(answer.plan)
    assert isinstance(checked, CheckedPlan) and answer.plan.predicted is not None
    assert checked.violations == () and checked.peak_bytes <= answer.plan.predicted.most_bytes  # type: ignore[operator]
    assert answer.step_ns is not None and answer.answer.bound_ns is not None and answer.answer.bound_ns <= answer.step_ns


@pytest.mark.parametrize(
    ("model", "more", "refusal"),
    [
        ("llama3.2-1b", {"precision": "fp8"}, ("matrix multiplications in fp8",)),
        ("gpt-neox-20b", {"cp": "2"}, ("context parallelism of layers whose samples programs cannot cut",)),
    ],
)
def test_programs_that_stand_for_a_plan_are_checked_and_named(
    model: str, more: dict[str, str], refusal: tuple[str, ...]
) -> None:
    request = {"model": model, "cluster": "h100:8", "batch": 16, "sequence": 2048, "dtype": "bfloat16"}
    answer = tp.certify(tp.plan(**request, **more, gap=0.05, comparisons=False))
    assert answer.plan is not None and answer.plan.predicted is not None
    checked = tp.check(answer.plan)
    assert isinstance(checked, CheckedPlan) and checked.claim is not None and checked.claim.evidence
    assert checked.stood_in_for == refusal and checked.violations == ()
    assert checked.peak_bytes is not None and checked.peak_bytes <= answer.plan.predicted.most_bytes
    with refused(re.compile(r"units\[1\]\.(layout|precision)"), re.compile("sdp2-cp2-tp2|fp8")):
        compile_plan(answer.plan)
