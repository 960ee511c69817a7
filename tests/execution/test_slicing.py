"""Micro-batches in halves: their samples, messages, checks, memory and gradients; and cuts at any sub-layer."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from trainplan.execution.analysis.memory.peak import Backend, memory_walk
from trainplan.execution.analysis.verify.checks import check, lifetimes, meanings, races
from trainplan.execution.compile.compiler import compile_plan
from trainplan.execution.instructions import Op
from trainplan.execution.launch.processes import run_plans
from trainplan.execution.program import Instruction, Program
from trainplan.formulations.plan.plan import Plan, load_plan
from trainplan.formulations.schedule.orders import is_sliced, most_sliced

from tests.helpers.measured import memory_follows_the_walk
from tests.helpers.plans import (
    BERT,
    GPT2,
    LLAMA,
    UNTIED,
    pipeline,
    plan_of,
    random_plan,
    random_sliced_plan,
    random_uneven_plan,
    uneven_plan,
)
from tests.helpers.refusals import refused
from tests.helpers.sizes import first_and_others, some_and_all

UNITS = len(GPT2.units)
MIXED = ["dp2", "tp2", "sdp2", "dp2-ckpt", "dp2", "sdp2-ckpt", "tp2", "dp2"]


def _changed(program: Program, change: Callable[[Instruction], Sequence[Instruction]]) -> Program:
    """With other instructions in the place of each; without waits, which name places."""

    def apart(i: Instruction) -> list[Instruction]:
        halves = tuple(new for message in i.grouped for new in change(message))
        return [replace(new, waits=(), grouped=halves) for new in change(i)]

    return replace(program, instructions=tuple(new for i in program.instructions for new in apart(i)))


def _faults(programs: Sequence[Program]) -> list[str]:
    return [fault for program in programs for fault in lifetimes(program)] or meanings(programs)


def _messages(program: Program, op: Op) -> list[Instruction]:
    return [m for i in program.instructions for m in (i.grouped or (i,)) if m.op is op]


def test_no_number_of_stages_micro_batches_and_halves_gets_stuck() -> None:
    model = GPT2.with_fields(n_layer=3)
    for stages in range(2, 7):
        for micro_batches in range(1, 9):
            for sliced in range(1, most_sliced(stages, micro_batches) + 1):
                plan = pipeline(model, stages, micro_batches, sliced=sliced)
                assert check(compile_plan(plan)) == [], (stages, micro_batches, sliced)


@pytest.mark.parametrize(("world", "plans"), [(2, 30), (4, 40), (8, 30), (16, 15), (32, 5)])
def test_120_random_plans_are_sound(world: int, plans: int) -> None:
    rng = random.Random(world)
    model = GPT2.with_fields(n_head=16)
    for _ in range(plans):
        assert check(compile_plan(random_sliced_plan(rng, world, model))) == []


def test_passes_are_those_of_the_schedule() -> None:
    programs = compile_plan(pipeline(GPT2, 4, 5, sliced=3))
    for stage, program in enumerate(programs):
        last = program.units[-1]
        done = [(i.micro_batch, i.half) for i in program.instructions if i.op is Op.FORWARD and i.unit == last]
        back = [(i.micro_batch, i.half) for i in program.instructions if i.op is Op.BACKWARD and i.unit == last]
        wanted = [(q, half) for q in range(5) for half in ((0, 1) if is_sliced(stage, q, 4, 3) else (None,))]
        assert done == back == wanted
        assert len([half for _, half in wanted if half == 0]) == (3, 2, 1, 1)[stage]


def test_halves_travel_alone_up_to_the_first_stage_that_runs_them_whole() -> None:
    programs = compile_plan(pipeline(GPT2, 4, 5, sliced=3))
    whole = _messages(programs[0], Op.SEND)[-1].message_bytes
    for stage, program in enumerate(programs):
        forward = [m for m in _messages(program, Op.SEND) if m.reads[0].startswith("hidden")]
        expected = []
        for q in range(5 if stage < 3 else 0):
            expected += [(q, 0, whole // 2), (q, 1, whole // 2)] if is_sliced(stage + 1, q, 4, 3) else [(q, None, whole)]
        assert [(m.micro_batch, m.half, m.message_bytes) for m in forward] == expected
        gradients = [m for m in _messages(program, Op.SEND) if m.reads[0].startswith("input-gradient")]
        assert [(m.micro_batch, m.half) for m in gradients] == [(q, None) for q in range(5 if stage else 0)]
        joined = [i.micro_batch for i in program.instructions if i.op is Op.JOIN and i.reads[0].startswith("hidden")]
        assert joined == ([2 - stage] if stage < 2 else []), "micro-batch 0 stays in halves to the end"
        for index, i in enumerate(program.instructions):
            if i.op is Op.JOIN:
                assert i.writes[0] in program.instructions[index + 1].reads, "sent as soon as it is joined"


def test_a_half_is_laid_out_as_a_small_micro_batch_of_its_own() -> None:
    """4 samples on 2 ranks: a rank's joined samples are not consecutive, also on a stage that never saw the halves."""
    programs = compile_plan(plan_of(GPT2, ["dp2"] * UNITS, 6, 12, 3, [2, 5], sliced=2))
    for rank, (even, odd) in ((0, (0, 2)), (1, (1, 3))):
        inputs = [i.args["rows"] for i in programs[rank].instructions if i.op is Op.INPUT]
        assert inputs == [(even,), (odd,), (4 + even,), (4 + odd,), (8 + 2 * rank, 9 + 2 * rank)]
        received = [m.args["rows"] for m in _messages(programs[4 + rank], Op.RECEIVE)]
        targets = [i.args["rows"] for i in programs[4 + rank].instructions if i.op is Op.TARGETS]
        assert received == targets == [(even,), (odd,), (4 + even, 4 + odd), (8 + 2 * rank, 9 + 2 * rank)]


def test_parameters_and_gradients_move_once_for_both_halves() -> None:
    """In the backward pass: as many collectives on them as without halves. Forward passes gather for each half."""
    rng = random.Random(4)
    kinds = (Op.GATHER_PARAMETERS, Op.REDUCE_SCATTER_GRADIENTS, Op.ALL_REDUCE_GRADIENTS, Op.REDUCE_REPLICATED)
    seen = Counter[Op]()
    for _ in range(20):
        plan = random_sliced_plan(rng, 4)
        for program, other in zip(*(map(compile_plan, (plan, plan.model_copy(update={"sliced": 0})))), strict=True):
            found, without = (Counter(i.op for i in p.instructions if i.op in kinds) for p in (program, other))
            halves = {(i.unit, i.micro_batch) for i in program.instructions if i.op is Op.GATHER_PARAMETERS and i.half == 0}
            assert found - without == (Counter({Op.GATHER_PARAMETERS: len(halves)}) if halves else Counter())
            assert not without - found
            seen += found
    assert set(seen) == set(kinds)


def _mixed() -> list[Program]:
    """Two stages with re-layouts, three micro-batches, one in halves; both stages run it so."""
    programs = compile_plan(plan_of(GPT2, MIXED, 4, 12, 3, [4], sliced=1))
    assert check(programs) == []
    return programs


def _one_to_whole() -> list[Program]:
    """Three stages of one rank, two sliced micro-batches: the first stage joins the second of them."""
    programs = compile_plan(pipeline(GPT2, 3, 3, sliced=2))
    assert check(programs) == []
    return programs


def _replaced(programs: list[Program], op: Op, change: Callable[[Instruction], Sequence[Instruction]]) -> list[list[Program]]:
    """For each instruction of that kind on any rank, the programs with that one changed."""
    found = []
    for rank, program in enumerate(programs):
        for i in program.instructions:
            if i.op is op:

                def one(other: Instruction, i: Instruction = i) -> Sequence[Instruction]:
                    return change(other) if other is i else [other]

                found.append([*programs[:rank], _changed(program, one), *programs[rank + 1 :]])
    return found


def _blocks(change: Callable[[Any], Any]) -> Callable[[Instruction], list[Instruction]]:
    return lambda i: [replace(i, args={**i.args, "blocks": change(i.args["blocks"])})]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda i: [], "not there|never freed"),
        (lambda i: [replace(i, reads=i.reads[::-1])], "joins other samples"),
        (lambda i: [replace(i, reads=(i.reads[0], i.reads[0]))], "joins other samples"),
        (_blocks(lambda blocks: blocks[::-1]), "joins other samples"),
        (_blocks(lambda blocks: (blocks[0], tuple(row + 1 for row in blocks[1]))), "joins other samples"),
        (lambda i: [replace(i, unit=i.unit + 1)], "joins what is not all parts of one boundary"),
        (lambda i: [i, i], "not there|still held"),
    ],
)
def test_a_wrong_join_is_seen(change: Callable[[Instruction], Sequence[Instruction]], message: str) -> None:
    for programs in (_mixed(), _one_to_whole()):
        variants = _replaced(programs, Op.JOIN, change)
        assert len(variants) >= 2
        for changed in variants:
            faults = _faults(changed)
            assert faults
            assert any(part in faults[0] for part in message.split("|")), faults[0]


@pytest.mark.parametrize("name", ["hidden.2.1.0", "hidden.2.1.1", "input-gradient.2.0.0", "input-gradient.5.0.1"])
def test_partial_sums_are_not_joined(name: str) -> None:
    """The last unit's output where the next stage runs the micro-batch whole, and the first units' input gradients."""

    def without(i: Instruction) -> list[Instruction]:
        return [] if i.op is Op.ALL_REDUCE and i.writes == (name,) else [i]

    programs = compile_plan(plan_of(GPT2, ["tp2"] * UNITS, 6, 6, 3, [2, 5], sliced=2))
    changed = [_changed(p, without) for p in programs]
    assert sum(len(p.instructions) for p in programs) - sum(len(p.instructions) for p in changed) == 2
    assert "joins what is not all parts of one boundary, whole" in _faults(changed)[0]


def test_halves_that_are_mixed_up_in_the_backward_pass_are_seen() -> None:
    """The rows of the other half, graphs of the other half, rows of other samples, and one half left out."""
    programs = _mixed()
    taken = [i for i in programs[0].instructions if i.op is Op.BACKWARD and i.args]
    assert [(i.unit, i.half) for i in taken] == [(3, 0), (3, 1)]

    def other_rows(i: Instruction) -> list[Instruction]:
        return [replace(i, half=1 - i.half)] if i.op is Op.BACKWARD and i.args and i.half is not None else [i]

    def other_samples(i: Instruction) -> list[Instruction]:
        return _blocks(lambda blocks: blocks[::-1])(i) if i.op is Op.BACKWARD and i.args else [i]

    def other_graph(i: Instruction) -> list[Instruction]:
        names = {f"graph.2.0.{half}": f"graph.2.0.{1 - half}" for half in (0, 1)}
        swapped = {name: tuple(names.get(n, n) for n in getattr(i, name)) for name in ("reads", "frees")}
        return [replace(i, **swapped)] if i.op is Op.BACKWARD else [i]

    for change, reported in (
        (other_rows, "has a graph of samples"),
        (other_samples, "holds other samples"),
        (other_graph, "has a graph of samples"),
    ):
        faults = meanings([_changed(p, change) for p in programs])
        assert reported in faults[0]
    for unit in range(UNITS):
        for half in (0, 1):

            def without(i: Instruction, unit: int = unit, half: int = half) -> list[Instruction]:
                return [] if i.op is Op.BACKWARD and (i.unit, i.half) == (unit, half) else [i]

            assert _faults([_changed(p, without) for p in programs]), (unit, half)


def test_a_second_half_that_does_not_add_to_the_first_is_seen() -> None:
    """The unit is sharded, and its whole gradient is there for both halves."""

    def fresh(i: Instruction) -> list[Instruction]:
        again = i.op is Op.BACKWARD and i.half == 1 and i.writes[-1].startswith("whole-gradient")
        return [replace(i, reads=i.reads[:-1])] if again else [i]

    changed = [_changed(p, fresh) for p in _mixed()]
    assert "still held" in lifetimes(changed[0])[0]
    assert "does not hold each sample once" in meanings(changed)[0]


def test_permuted_samples_are_seen() -> None:
    """Consecutive samples on a rank, as without halves: inputs, targets, or what a stage that runs them whole expects."""
    sliced = compile_plan(plan_of(GPT2, ["dp2"] * UNITS, 6, 12, 3, [2, 5], sliced=2))
    assert check(sliced) == []
    consecutive = {(0, 2): (0, 1), (1, 3): (2, 3), (4, 6): (4, 5), (5, 7): (6, 7)}
    halves = {(a,): (b,) for pair in consecutive.items() for a, b in zip(*pair, strict=True)}
    for op, reported in ((Op.INPUT, "gets"), (Op.TARGETS, "targets"), (Op.RECEIVE, "gets")):

        def permuted(i: Instruction, op: Op = op) -> list[Instruction]:
            rows = i.args.get("rows")
            new = {**consecutive, **halves}.get(rows, rows) if i.op is op else rows
            return [replace(i, args={**i.args, "rows": new})] if "rows" in i.args else [i]

        faults = meanings([_changed(p, permuted) for p in sliced])
        assert reported in faults[0]
        assert "samples" in faults[0]


def test_swapped_halves_of_a_message_or_a_collective_are_seen() -> None:
    programs = _mixed()
    sends = [i for i in programs[0].instructions if i.op is Op.SEND][:2]
    assert [m.half for m in sends] == [0, 1]
    swapped = {id(sends[0]): sends[1], id(sends[1]): sends[0]}
    first = _changed(programs[0], lambda i: [swapped.get(id(i), i)])
    assert _faults([first, *programs[1:]])
    sums = [i for i in programs[0].instructions if i.op is Op.ALL_REDUCE and i.micro_batch == 0 and i.half is not None]
    assert len(sums) == 4, "forward and backward, of one unit with tensor parallelism"
    other = _changed(programs[0], lambda i: [replace(i, half=1 - i.half) if i in sums and i.half is not None else i])
    assert "meets" in meanings([other, *programs[1:]])[0]


def test_every_deleted_wait_and_free_is_seen() -> None:
    rng = random.Random(8)
    deleted = 0
    for _ in range(6):
        program = rng.choice(compile_plan(random_sliced_plan(rng)))
        for index, instruction in enumerate(program.instructions):
            variants = [(races, replace(instruction, waits=()))] if instruction.waits else []
            for name in instruction.frees:
                kept = tuple(other for other in instruction.frees if other != name)
                variants.append((lifetimes, replace(instruction, frees=kept)))
            for judge, changed in variants:
                rest = (*program.instructions[:index], changed, *program.instructions[index + 1 :])
                assert judge(replace(program, instructions=rest)), instruction
                deleted += 1
    assert deleted > 100


@pytest.mark.long
@pytest.mark.parametrize("backend", first_and_others(["serial", "fused"]))
def test_halves_hold_no_more_than_the_whole(backend: Backend) -> None:
    """But for what every graph keeps once, however many rows it has, such as the numbers of the positions."""
    rng = random.Random(5)
    less = 0
    for world in (2, 4, 8):
        for _ in range(40):
            plan = random_sliced_plan(rng, world)
            samples = plan.batch.global_samples // plan.batch.micro_batches
            for program, other in zip(*(map(compile_plan, (plan, plan.model_copy(update={"sliced": 0})))), strict=True):
                stage, again = program.rank // plan.stage_sizes[0], 0
                for unit in program.units:
                    part, strategy = program.model.units[unit].sublayer, program.strategies[unit]
                    rows, tp = samples // strategy.data_degree, strategy.degree("tp")
                    again += 2 * part.kept_bytes(rows // 2, tp) - part.kept_bytes(rows, tp)
                again *= sum(is_sliced(stage, q, len(plan.stages), plan.sliced) for q in range(program.micro_batches))
                more = memory_walk(program, backend).peak_bytes - memory_walk(other, backend).peak_bytes
                assert more <= again, program.rank
                less += more < 0
    assert less > 20, "a half's workspace is smaller"


def _cut_plans() -> list[Plan]:
    """On 4 ranks: embedding alone, a cut between attention and feed-forward, head alone; sliced and not."""
    plans = [
        plan_of(model, ["single"] * len(model.units), 4, 4 * m, m, [1, 2, len(model.units) - 1], sliced=sliced)
        for model, m, sliced in ((GPT2, 3, 0), (GPT2, 4, 3), (UNTIED, 2, 2), (BERT, 4, 1), (LLAMA, 1, 1))
    ]
    for plan in plans:
        kinds = [unit.sublayer.kind for unit in plan.planned_model().units]
        assert [kinds[stage.first_unit] for stage in plan.stages] == ["embedding", "attention", "ffn", "head"]
        assert [len(range(s.first_unit, s.last_unit + 1)) for s in plan.stages] == [1, 1, len(kinds) - 3, 1]
    return plans


def _hold(plans: list[Plan], backend: Backend) -> None:
    for plan, report in zip(plans, run_plans(plans, backend=backend), strict=True):
        for found in (report.gradient_difference, report.parameter_difference, report.loss_difference):
            assert found is not None
            assert found < 1e-12, plan
        assert report.losses == sorted(report.losses, reverse=True), "the same batch thrice: the loss must fall"


@pytest.mark.parametrize("share", some_and_all(4, 1, 2))
@pytest.mark.parametrize(("backend", "plans"), first_and_others([("fused", 12), ("serial", 14)]))
def test_gradients_on_4_processes(backend: Backend, plans: int, share: int) -> None:
    rng = random.Random(30)
    some = [random_sliced_plan(rng) for _ in range(plans)]
    assert {str(unit.strategy).removesuffix("-ckpt") for plan in some for unit in plan.units} == {
        "single",
        "dp2",
        "sdp2",
        "tp2",
    }
    assert {plan.planned_model().name for plan in some} == {model.name for model in (GPT2, BERT, LLAMA)}
    assert {plan.planned_model().tied for plan in some} == {True, False}
    assert {(len(plan.stages), plan.sliced) for plan in some} == {(2, 1), (4, 1), (4, 2), (4, 3)}
    uneven = [uneven_plan(model, shares, 2, rows=2, rng=rng, sliced=1) for model, shares in ((GPT2, [3, 1]), (BERT, [1, 2]))]
    _hold([*some[::share], *uneven, *(_cut_plans() if backend == "serial" else [])], backend)


@pytest.mark.long
@pytest.mark.parametrize("count", some_and_all(4, 14, 8))
def test_gradients_on_2_processes(count: int) -> None:
    rng = random.Random(31)
    _hold([random_sliced_plan(rng, 2) for _ in range(count)], "serial")


@pytest.mark.long
def test_measured_memory_follows_the_memory_analysis() -> None:
    rng = random.Random(3)
    sizes = {"n_embd": 128, "n_inner": 512, "vocab_size": 2000, "n_positions": 128}
    model = GPT2.with_fields(sequence=128, **sizes).in_dtype("float32")
    some = (random_sliced_plan(rng, 4, model, stages) for stages in (2, 4, 2, 4, 2, 4, 2, 4, 2, 4))
    plans = [plan for plan in some if plan.batch.micro_batches in (2, 3)][:4]
    assert {(len(plan.stages), plan.sliced) for plan in plans} == {(2, 1), (4, 1), (4, 3)}
    memory_follows_the_walk(run_plans(plans, steps=1, compare=False, measure_memory=True))


def test_each_replica_slices_its_own_first_micro_batches() -> None:
    """One with fewer micro-batches than are sliced: all that it has."""
    rng = random.Random(6)
    programs = compile_plan(uneven_plan(GPT2, [1, 4], 4, rows=2, sliced=3))
    assert check(programs) == []
    for program in programs[:2]:
        inputs = [(i.micro_batch, i.half) for i in program.instructions if i.op is Op.INPUT]
        own, begin = ([0], 0) if program.index_in_stage == 0 else ([0, 1, 2], 2)
        assert [key for key in inputs if key[1] is not None] == [(q, half) for q in own for half in (0, 1)]
        assert len(inputs) == 2 * len(own) + (program.index_in_stage == 1)
        assert [row for i in program.instructions if i.op is Op.INPUT for row in i.args["rows"]] == list(
            range(begin, begin + 2 * program.micro_batches)
        )
    for _ in range(30):
        plan = random_uneven_plan(rng, 8, stages=rng.choice([2, 4]))
        content = plan.model_dump()
        samples = 2 * plan.batch.global_samples
        sliced = rng.randint(1, most_sliced(len(plan.stages), plan.batch.micro_batches))
        changed = {"schedule": "1f1b", "sliced": sliced, "batch": {**content["batch"], "global_samples": samples}}
        assert check(compile_plan(load_plan({**content, **changed}))) == []


def test_a_plan_comes_back_from_its_file_and_one_without_the_field_is_not_sliced() -> None:
    content = pipeline(GPT2, 4, 5, sliced=2).model_dump()
    assert content["sliced"] == 2
    assert load_plan(content).model_dump() == content
    del content["sliced"]
    assert load_plan(content).sliced == 0
    assert compile_plan(load_plan(content)) == compile_plan(pipeline(GPT2, 4, 5))
    assert random_plan(random.Random(0)).model_dump()["sliced"] == 0


@pytest.mark.parametrize(
    ("changed", "refusal"),
    [
        ({"sliced": 3}, ("sliced", 3, 2)),
        ({"sliced": -1}, ("sliced", -1, 0)),
        ({"schedule": "gpipe"}, ("sliced", 1, ("1f1b", "gpipe"))),
        (
            {"batch": {"global_samples": 12, "micro_batches": 2}},
            ("sliced", (1, "6 samples"), "8 samples"),
        ),
    ],
)
def test_what_cannot_be_sliced_gets_one_line(changed: dict[str, Any], refusal: tuple[Any, ...]) -> None:
    strategies = ["dp2"] + ["tp2"] * (UNITS - 1)
    content = plan_of(GPT2, strategies, 8, 8, 2, [2, 4, 6], sliced=1).model_dump()
    with refused(*refusal):
        load_plan({**content, **changed})


def test_uneven_replicas_and_single_stages_are_refused_in_the_same_way() -> None:
    with refused("sliced", problem=(1, "3 samples"), fix="4 samples"):
        uneven_plan(GPT2, [2, 1], 2, rows=3, sliced=1)
    with refused("sliced", problem=1, fix=0):
        pipeline(GPT2, 1, 3, sliced=1)
