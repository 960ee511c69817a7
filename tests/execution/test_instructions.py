"""The table of instructions: complete, without contradictions, and all that a new instruction needs in addition to its own
code."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

pytest.importorskip("torch")

import torch
from trainplan.execution.analysis.memory.peak import memory_walk
from trainplan.execution.analysis.timing.profiled_costs import CarriedCosts, carried
from trainplan.execution.analysis.timing.simulate import time_walk
from trainplan.execution.analysis.verify import semantics
from trainplan.execution.analysis.verify.checks import check
from trainplan.execution.analysis.verify.interpreter import Interpreter
from trainplan.execution.compile.compiler import compile_plan
from trainplan.execution.instruction_spec import OpSpec
from trainplan.execution.instructions import Op
from trainplan.execution.program import Instruction, Program, with_waits
from trainplan.execution.run import executor
from trainplan.execution.run.ranks import make_executor

from tests.helpers.plans import GPT2, plan_of
from trainplan.pictures.plans import kind_of


def test_every_instruction_has_code_and_one_meaning() -> None:
    """Collectives and messages mean something for all their ranks together, as does what may be done without a group (`slice`);
    all else for one rank."""
    assert executor._METHODS.keys() == set(Op)
    assert not semantics._RULES.keys() & semantics._TOGETHER.keys()
    assert semantics._RULES.keys() | semantics._TOGETHER.keys() == set(Op)
    for op in Op:
        assert (op in semantics._TOGETHER) == (op.spec.kind in ("collective", "message") or op is Op.SLICE), op


@pytest.mark.parametrize("op", Op)
def test_an_entry_does_not_contradict_itself(op: Op) -> None:
    spec = op.spec
    assert op == spec.name == op.name.lower().replace("_", "-")
    assert sum(map(bool, (spec.pass_time, spec.transfer, spec.copied, spec.steps))) <= 1
    assert spec.operands or spec.of_unit == "none"
    assert (spec.group_axis is not None) == (spec.kind in ("collective", "message")) or op is Op.SEND_RECEIVE
    assert not (spec.has_halves and (spec.smallest_part != "half" or spec.transfer is None))
    assert (spec.workspace == "piece") == (spec.piece is not None and spec.kind != "collective")
    assert spec.graph is None or spec.piece is not None
    assert spec.measured_as is None or spec.pass_time is not None
    assert not spec.copied or spec.is_copy
    assert not set(spec.args) & set(spec.optional_args)


def test_instructions_survive_the_way_to_another_process() -> None:
    for op in Op:
        assert pickle.loads(pickle.dumps(op)) is op


def _stage_input() -> Op:
    """An instruction that the table does not have: `stage-input`, which copies a unit's input to a buffer of its own."""
    operands, name = ("hidden.u.p -> input.u.p",), "stage-input"
    op = str.__new__(Op, name)
    op._name_, op._value_ = name, name
    op.spec = OpSpec(name, operands, kind="arrange", moved="written")
    return op


def _with_staged_input(program: Program, op: Op, unit: int) -> Program:
    """The program whose unit computes on a copy of its input, in each micro-batch."""
    issued, buffers = list[Instruction](), dict(program.buffers)
    for i in program.instructions:
        hidden, staged = f"hidden.{unit}.{i.micro_batch}", f"input.{unit}.{i.micro_batch}"
        if i.unit == unit and hidden in i.reads:
            if i.op is Op.FORWARD:
                size = buffers[staged] = buffers[hidden]
                args = {"reads": (hidden,), "writes": (staged,), "frees": (hidden,)}
                issued.append(Instruction(op, unit, i.micro_batch, message_bytes=size, **args))
            names = {name: tuple(staged if n == hidden else n for n in getattr(i, name)) for name in ("reads", "frees")}
            i = i.changed(**names)
        issued.append(i.changed(waits=()))
    return replace(program, instructions=with_waits(issued), buffers=buffers)


def test_a_new_instruction_is_an_entry_its_code_and_its_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    """With these three it is checked, analysed for memory and time, carried, drawn and run, and programs without it are not."""
    op = _stage_input()
    sound = compile_plan(plan_of(GPT2, ["single"] * len(GPT2.units), 1, micro_batches=2))[0]
    program = _with_staged_input(sound, op, 2)
    staged = [i for i in program.instructions if i.op is op]
    assert len(staged) == 2

    def meaning(run: Interpreter, rank: int, head: Instruction) -> None:
        run.values[rank][head.writes[0]] = run.value(rank, head.reads[0])

    def code(self: executor.Executor, instruction: Instruction) -> None:
        self.values[instruction.writes[0]] = self.values[instruction.reads[0]].clone()

    monkeypatch.setitem(semantics._RULES, op, meaning)
    monkeypatch.setitem(executor._METHODS, op, code)

    assert check([program]) == []
    index = program.instructions.index(staged[0])

    def faults(**fields: object) -> str:
        made = (*program.instructions[:index], staged[0].changed(**fields), *program.instructions[index + 1 :])
        return check([replace(program, instructions=made)])[0]

    assert "not what its operation does" in faults(reads=staged[0].writes, frees=staged[0].writes)
    assert f"moves 7 bytes and takes 0 of workspace, not {staged[0].message_bytes}" in faults(message_bytes=7)
    assert "is on the stream copy, not on compute" in faults(lane="copy")
    assert "is of unit 99" in faults(unit=99)
    assert "is of micro-batch None" in faults(micro_batch=None)

    def price(_: Program, i: Instruction) -> int:
        return 1000 + i.message_bytes

    steps = [time_walk([entry], price).step_ns for entry in (program, sound)]
    assert steps[0] - steps[1] == sum(1000 + i.message_bytes for i in staged)
    table = carried([program], lambda _, i: 0 if i.op.spec.is_free else 5)
    assert all(CarriedCosts(table)(program, i) == 0 for i in staged)
    during = memory_walk(program).during_bytes
    assert during[index] - during[index - 1] == staged[0].message_bytes - program.instructions[index - 1].workspace_bytes
    assert kind_of(op) == "other"

    losses = [make_executor(entry, {}, 3, torch.device("cpu")).step() for entry in (program, sound)]
    assert losses[0] == losses[1] > 0
