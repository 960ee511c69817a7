"""The matrix that embedding and head share: one parameter where both lie on the same ranks, laid out alike; else two."""

import random
from dataclasses import replace

import pytest
from trainplan.execution.analysis.memory.peak import Backend, memory_walk
from trainplan.execution.analysis.verify.checks import check, meanings
from trainplan.execution.compile.compiler import compile_plan
from trainplan.execution.instructions import Op
from trainplan.execution.launch.processes import run_plans
from trainplan.execution.program import Instruction, Program
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.strategy import decision_tree
from trainplan.profiling.models.model import Model, load_model

from tests.helpers.plans import BERT, GPT2, UNTIED, plan_of
from tests.helpers.sizes import first_and_others
from tests.helpers.switch_plans import random_switch_plan

ALIKE = [str(strategy) for strategy in decision_tree(4, takeaway3=False)]


def even_plan(model: Model, strategy: str, world: int = 4, micro_batches: int = 2) -> Plan:
    return plan_of(model, [strategy] * len(model.units), world, 4 * micro_batches, micro_batches)


def reduces_table(programs: list[Program]) -> bool:
    return any(i.op is Op.REDUCE_TIED for program in programs for i in program.instructions)


def test_gpt2_is_stored_once() -> None:
    """In fp32, 16 bytes for each of its 124.4 million parameters: value, gradient, two moments. And the loss."""
    model = load_model("gpt2", dtype="float32")
    (program,) = compile_plan(plan_of(model, ["single"] * len(model.units), 1, 1))
    assert program.persistent_bytes == 16 * model.total_parameters + 8 == 1_991_036_928 + 8


@pytest.mark.parametrize("strategy", ALIKE)
def test_laid_out_alike_it_is_one_parameter(strategy: str) -> None:
    for model in (GPT2, BERT):
        programs = compile_plan(even_plan(model, strategy))
        assert check(programs) == []
        assert not reduces_table(programs)
        untied = compile_plan(even_plan(model.with_fields(tie_word_embeddings=False), strategy))
        for one, two in zip(programs, untied, strict=True):
            assert one.shares_table and not two.shares_table
            assert one.persistent_bytes < two.persistent_bytes
            assert memory_walk(one).peak_bytes <= memory_walk(two).peak_bytes


def test_recomputation_alone_is_no_other_layout() -> None:
    strategies = ["sdp2-tp2", *["dp4"] * (len(GPT2.units) - 2), "sdp2-tp2-ckpt"]
    assert not reduces_table(compile_plan(plan_of(GPT2, strategies, 4, 8)))


def test_elsewhere_it_is_two_parameters() -> None:
    """Under another layout, on another stage, and with memory switches, which move the shards of each unit by themselves."""
    between = ["dp4"] * (len(GPT2.units) - 2)
    for ends in (("dp4", "sdp4"), ("dp2-tp2", "tp2-dp2"), ("dp2-sdp2", "sdp2-dp2")):
        programs = compile_plan(plan_of(GPT2, [ends[0], *between, ends[1]], 4, 8))
        assert check(programs) == [] and reduces_table(programs)
    assert reduces_table(compile_plan(plan_of(GPT2, ["dp2"] * len(GPT2.units), 4, 8, cuts=[2])))
    assert reduces_table(compile_plan(random_switch_plan(random.Random(0), 2, GPT2)))
    assert not reduces_table(compile_plan(even_plan(UNTIED, "dp4")))


@pytest.mark.long
@pytest.mark.parametrize("backend", first_and_others(["threads", "serial"]))
def test_its_gradients_are_those_of_one_process(backend: Backend) -> None:
    """Under every strategy of four devices, over three steps: both uses are in it, and the optimizer steps it once."""
    plans = [even_plan((GPT2, BERT)[n % 2], strategy, micro_batches=1 + n % 3) for n, strategy in enumerate(ALIKE)]
    for plan, report in zip(plans, run_plans(plans, backend=backend), strict=True):
        differences = report.gradient_difference, report.parameter_difference, report.loss_difference
        assert all(difference is not None and difference < 1e-12 for difference in differences), plan


def changed(program: Program, index: int, instruction: Instruction) -> Program:
    return replace(program, instructions=(*program.instructions[:index], instruction, *program.instructions[index + 1 :]))


@pytest.mark.parametrize("strategy", ["dp4", "sdp4", "dp2-tp2"])
def test_a_use_that_is_left_out_is_seen(strategy: str) -> None:
    """The gradient is checked of the first micro-batch, where the head's part is written, and of the second, where it is
    added."""
    programs = compile_plan(even_plan(GPT2, strategy))
    last = len(GPT2.units) - 1
    for micro_batch in (0, 1):
        wrong = []
        for program in programs:
            index = next(
                n
                for n, i in enumerate(program.instructions)
                if (i.op, i.unit, i.micro_batch) == (Op.BACKWARD, last, micro_batch)
            )
            backward = program.instructions[index]
            rest = [n for n, i in enumerate(program.instructions) if i.unit == 0 and i.op is Op.BACKWARD][micro_batch]
            embedding = program.instructions[rest]
            fresh = embedding.changed(reads=tuple(name for name in embedding.reads if name != "gradient.0"))
            stale = backward.changed(writes=(*backward.writes[:-2], "elsewhere", backward.writes[-1]))
            wrong.append((changed(program, rest, fresh), changed(program, index, stale)))
        without_head, elsewhere = zip(*wrong, strict=True)
        assert meanings(list(elsewhere))
        assert strategy == "sdp4" or meanings(list(without_head))
