"""The back-end of CUDA streams, on a device that does what streams and events allow and no more (see fake_cuda.py)."""

import random
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from trainplan.execution.analysis.memory import deferred_frees as frees
from trainplan.execution.analysis.memory.deferred_frees import LAG, Frees, deferred_frees
from trainplan.execution.analysis.memory.peak import Backend, memory_walk, peak_buffers
from trainplan.execution.analysis.verify.checks import races
from trainplan.execution.compile.compiler import compile_plan
from trainplan.execution.instructions import Op
from trainplan.execution.launch.processes import sound_programs
from trainplan.execution.program import Instruction, Program, with_waits
from trainplan.execution.run import cuda_streams, threads
from trainplan.execution.run.cuda_streams import CudaStreams
from trainplan.formulations.plan.switches import Switches
from trainplan.profiling.base.processes import run_workers

from tests.helpers.fake_cuda import FakeCuda, Machine
from tests.helpers.laned_programs import all_waits, random_program, without_wait
from tests.helpers.plans import GPT2, plan_of, random_plan, random_sliced_plan, sharing_tokens
from tests.helpers.residence_plans import random_residence_plan
from tests.helpers.switch_plans import random_switch_plan, switch_plan

EAGERNESS = (0.0, 0.3, 2.0, 10.0)
CPU = torch.device("cpu")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Machine]:
    """Steps of a program on a fake device, and what went wrong there."""

    def steps(program: Program, seed: int, given: Frees | None = None) -> Machine:
        fake = FakeCuda(random.Random(seed), EAGERNESS[seed % len(EAGERNESS)])
        monkeypatch.setattr(cuda_streams, "cuda", fake)
        monkeypatch.setattr(threads, "_Progress", fake.threads_progress())
        if given is not None:
            monkeypatch.setattr(cuda_streams, "deferred_frees", lambda program: given)
        cuda_streams.lane_stream.cache_clear()
        streams, machine = CudaStreams(program, CPU), Machine(fake, program)
        for _ in range(2):
            machine.step(streams)
        cuda_streams.lane_stream.cache_clear()
        return machine

    return steps


def _kinds(machine: Machine) -> set[str]:
    return {fault.split(":")[0] for fault in machine.faults}


def _at_once(program: Program) -> Frees:
    """As if the host worked in step with the device."""
    none = ((),) * len(program.instructions)
    return Frees(none, tuple(instruction.frees for instruction in program.instructions), (), none)


def test_random_lanes_run_in_order_and_memory_is_given_back_in_time(run: Callable[..., Machine]) -> None:
    rng, reused = random.Random(1), 0
    for seed in range(40):
        machine = run(random_program(rng), seed)
        assert machine.faults == []
        reused += machine.reused
    assert reused, "memory that was given back early enough to be used again in the step"


def test_compiled_plans_run_in_order_and_memory_is_given_back_in_time(run: Callable[..., Machine]) -> None:
    rng = random.Random(3)
    kinds = (random_switch_plan, random_residence_plan, random_residence_plan, random_plan, random_sliced_plan)
    for seed in range(60):
        plan = kinds[seed % len(kinds)](rng, rng.choice([2, 4]))
        program = rng.choice(compile_plan(plan, ahead=rng.choice([True, False])))
        assert run(program, seed).faults == []
    for seed in range(10):  # what is gathered is let go of, and gathered again
        plan = sharing_tokens(rng, random_plan(rng, rng.choice([2, 4])))
        assert run(rng.choice(compile_plan(plan)), seed).faults == []


def test_memory_that_is_given_back_at_once_is_overwritten(run: Callable[..., Machine]) -> None:
    """The rule of `deferred_frees` is needed: without it, both what happens and what might is wrong."""
    rng, seen = random.Random(5), list[str]()
    for seed in range(20):
        program = random_program(rng) if seed % 2 else compile_plan(random_switch_plan(rng, 2))[0]
        kinds = _kinds(run(program, seed, given=_at_once(program)))
        assert "free" in kinds
        seen += kinds
    assert "content" in seen
    assert seen.count("order") > 10


@pytest.mark.long
def test_every_wait_is_kept(run: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch) -> None:
    """One wait less, on the device, of it or of the host, is seen, except for those that only a free needs, which
    `deferred_frees` moves."""
    monkeypatch.setattr(frees, "LAG", 10**9)  # waits for memory's sake could stand in for one that is left out
    rng, seen, content = random.Random(7), 0, 0
    for seed in range(5):
        program = random_program(rng)
        for position, index in all_waits(program):
            changed = without_wait(program, position, index)
            kept = replace(changed, instructions=tuple(replace(i, frees=()) for i in changed.instructions))
            if not races(_as_issued(kept)):
                continue
            machine = run(changed, seed)
            assert _kinds(machine) & {"order", "free"}, (position, index)
            seen, content = seen + 1, content + ("content" in _kinds(machine))
    assert seen > 80
    assert content, "what the threads' own pace shows of it"


def _as_issued(program: Program) -> Program:
    """With what the calling thread knows: what it has waited for of the host is done before all that it then issues."""
    waited, instructions = set[int](), []
    for instruction in program.instructions:
        if instruction.stream != "host":
            waited |= {index for index in instruction.waits if program.instructions[index].stream == "host"}
            instruction = instruction.changed(waits=tuple({*instruction.waits, *waited}))
        instructions.append(instruction)
    return replace(program, instructions=tuple(instructions))


def test_the_processor_waits_for_copies_of_its_own_lane(run: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without NVLink, copies of gradients and the sum of the tied ones on the host share a lane: no wait tells of them."""
    plans = [switch_plan(GPT2, 2, [Switches()] * len(GPT2.units), nvlink) for nvlink in (False, True)]
    programs = [compile_plan(plan)[0] for plan in plans]
    assert all(any(i.op is Op.REDUCE_TIED and i.by_processor for i in program.instructions) for program in programs)
    for seed, program in enumerate(programs):
        assert run(program, seed).faults == []
    on_host_lane = property(lambda self: self.op is Op.HOST_OPTIMIZER_STEP)
    monkeypatch.setattr(Machine, "by_processor", staticmethod(Instruction.by_processor.fget))
    monkeypatch.setattr(Instruction, "by_processor", on_host_lane)
    assert all("order" in _kinds(run(program, seed)) for seed, program in enumerate(programs))


def test_issuing_waits_for_nothing_but_the_host(run: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a plain step is issued before the host waits for the device; with the optimizer on the host, all up to it."""
    rng = random.Random(9)
    log: list[str] = []
    for method in ("Stream", "Event"):
        monkeypatch.setattr(FakeCuda, method, _logged(getattr(FakeCuda, method), log))
    execute = Machine.run
    monkeypatch.setattr(Machine, "run", lambda self, instruction: (log.append("run"), execute(self, instruction))[1])
    for seed in range(8):
        program = compile_plan(random_plan(rng))[0]
        log.clear()
        run(program, seed)
        half = log[: len(log) // 2]
        assert half.index("wait") == len(program.instructions), "first all is issued, then the step's end is awaited"
        plan = random_switch_plan(rng, 2, GPT2.with_fields(tie_word_embeddings=False))
        program = compile_plan(plan)[0]
        log.clear()
        run(program, seed)
        first = next(index for index, i in enumerate(program.instructions) if i.stream == "host")
        assert log.index("wait") >= first


def _logged(make: Callable[..., Any], log: list[str]) -> Callable[..., Any]:
    def made(self: FakeCuda, *arguments: object) -> Any:
        thing = make(self, *arguments)
        synchronize = thing.synchronize
        thing.synchronize = lambda: (log.append("wait"), synchronize())[1]
        return thing

    return made


def test_an_error_while_issuing_is_raised(run: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch) -> None:
    program = compile_plan(switch_plan(GPT2, 1, [Switches(lazy_prefetch=True)] * len(GPT2.units)))[0]
    execute = Machine.run
    for op in (Op.BACKWARD, Op.HOST_OPTIMIZER_STEP, Op.OFFLOAD_GRADIENT):

        def failing(self: Machine, instruction: Instruction, op: Op = op) -> None:
            if instruction.op is op and instruction.unit == 2:
                raise MemoryError(str(instruction))
            execute(self, instruction)

        monkeypatch.setattr(Machine, "run", failing)
        with pytest.raises(MemoryError, match=f"{op} unit 2"):
            run(program, 1)


def test_the_memory_analysis_is_what_the_device_holds(run: Callable[..., Machine]) -> None:
    """Byte for byte: what is handed out and not given back while each instruction is issued."""
    rng = random.Random(11)
    for seed in range(30):
        program = random_program(rng) if seed % 3 == 0 else compile_plan(random_switch_plan(rng, rng.choice([1, 2])))[0]
        bare = replace(program, instructions=tuple(replace(i, workspace_bytes=0) for i in program.instructions))
        machine = run(bare, seed)
        assert machine.peaks == [memory_walk(bare, "streams").peak_bytes] * 2


def test_frees_with_switches_are_not_held_for_the_whole_step() -> None:
    """Offloads that nothing waits for, and gradients of parameters that stay whole: all is gone a few units later."""
    model = GPT2.with_fields(n_layer=24, sequence=16)
    units = len(model.units)
    for switches in (Switches(ckpt=True, offload_hidden=True), Switches(ckpt=True, offload_hidden=True, eco_backward=True)):
        program = compile_plan(switch_plan(model, 2, [switches] * units))[0]
        found = deferred_frees(program)
        freed = {name: index for index, i in enumerate(program.instructions) for name in i.frees}
        late = [(freed[name], index) for index, names in enumerate(found.before) for name in names]
        assert any(found.waits)
        assert len(late) > units
        for begin, end in late:
            assert len({i.unit for i in program.instructions[begin:end] if i.stream == "compute"}) <= LAG + 1
        assert len(found.at_end) < LAG + 2
        assert memory_walk(program, "streams").peak_bytes < 1.1 * memory_walk(program).peak_bytes
    plain = compile_plan(random_plan(random.Random(0)))[0]
    shared = compile_plan(switch_plan(model, 2, [switches] * units, nvlink=False))[0]
    for program in (plain, shared):
        assert not any(deferred_frees(program).waits), "computations wait for the one other lane all the time"
    assert memory_walk(shared, "streams").peak_bytes < 1.1 * memory_walk(shared).peak_bytes


def test_whole_gradients_are_given_back_a_few_units_after_they_are_reduced() -> None:
    """In ZeRO's stage 2 computations need nothing of the lane that reduces them."""
    model = GPT2.with_fields(n_layer=24, sequence=16)
    program = compile_plan(plan_of(model, ["sdp2-zero2"] * len(model.units), 2, micro_batches=2))[0]
    walk = memory_walk(program, "streams")
    whole = [name for name in peak_buffers(program, walk) if name.startswith("whole-gradient.")]
    assert len(whole) <= LAG + 2 and walk.peak_bytes < 1.1 * memory_walk(program).peak_bytes
    assert any(deferred_frees(program).waits) and not any(deferred_frees(program, "compute").waits)


def test_a_name_is_written_anew_only_once_its_memory_is_back() -> None:
    """Else what the first writer's lane gives back would be the second writer's."""
    made = [
        Instruction(Op.MARK, unit=0, writes=("hidden",), lane="compute"),
        Instruction(Op.MARK, unit=1, reads=("hidden",), frees=("hidden",), lane="copy"),
        Instruction(Op.MARK, unit=2, writes=("hidden",), lane="copy"),
        Instruction(Op.MARK, unit=3, reads=("hidden",), frees=("hidden",), lane="compute"),
    ]
    program = Program(0, 1, (range(1),), ((0,),), 0, range(1), GPT2, (), 1, 1, {"hidden": 8}, frozenset(), with_waits(made))
    with pytest.raises(AssertionError, match="writes hidden anew"):
        deferred_frees(program)
    made[2:2] = [Instruction(Op.MARK, unit=4, after=("mark",), lane="compute")]
    made[1] = replace(made[1], marks=("mark",))
    found = deferred_frees(replace(program, instructions=with_waits(made)))
    assert found.before == ((), (), ("hidden",), (), ())
    assert found.at_end == ("hidden",), "the copy lane, which allocated it, waits for nothing more"


def test_one_process_and_the_executor_on_streams_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real ranks, whose streams stand still: gradients, parameters, losses, and what torch allocates against the memory
    analysis."""
    rng = random.Random(13)
    small = [kind(rng, 2) for kind in (*[random_switch_plan, random_residence_plan] * 3, random_plan, random_sliced_plan)]
    small.append(plan_of(GPT2, ["tp2-sp", "tp2-sp-ckpt:loss+norms"] * (len(GPT2.units) // 2), 2, 8, 2))
    sizes = {"n_layer": 8, "n_embd": 128, "n_inner": 512, "vocab_size": 500, "n_positions": 128}
    model = GPT2.with_fields(sequence=128, **sizes).in_dtype("float32")
    programs = [
        sound_programs(plan, None, "streams")
        for plan in (
            *small,
            *(random_switch_plan(rng, 2, model) for _ in range(3)),
            *(random_residence_plan(rng, 2, lambda rng, world: random_plan(rng, world, model)) for _ in range(3)),
        )
    ]
    job = {
        "jobs": [{"programs": one_program} for one_program in programs],
        "steps": 3,
        "backend": "streams",
        "gpus": None,
        "seed": 0,
        "compare": True,
        "memory": True,
        "record": False,
    }
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))  # where the ranks find `tests`
    ranks = run_workers("tests.helpers.eager_streams:run_rank", 2, job)
    for found in ranks[0][: len(small)]:
        assert found["gradient_difference"] < 1e-12
        assert found["parameter_difference"] < 1e-12
        assert found["loss_difference"] < 1e-12
    errors: dict[Backend, list[float]] = {"streams": [], "serial": []}
    for rank, results in enumerate(ranks):
        for found, program in list(zip(results, programs, strict=True))[len(small) :]:
            for backend, all_errors in errors.items():
                all_errors.append(abs(memory_walk(program[rank], backend).peak_bytes / found["peak_bytes"] - 1))
    median, worst = statistics.median(errors["streams"]), max(errors["streams"])
    print(f"walk of streams against torch: median error {median:.2%}, worst {worst:.2%}")
    assert median < 0.01
    assert worst < 0.03
    assert max(errors["serial"]) > 0.03, "memory that goes later is seen"
