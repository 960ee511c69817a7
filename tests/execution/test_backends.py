"""Back-ends of threads: lanes in parallel, held back by the program's waits alone; and what runs on which device."""

import random
import threading
from collections.abc import Callable
from itertools import pairwise

import pytest
from trainplan.execution.analysis.verify.checks import lifetimes, races
from trainplan.execution.instruction_spec import STREAMS
from trainplan.execution.launch.processes import run_plans
from trainplan.execution.program import Instruction, Program
from trainplan.execution.run import threads
from trainplan.execution.run.threads import Lanes, PausingLanes, fused_lanes

from tests.helpers.laned_programs import all_waits, random_program, without_wait
from tests.helpers.plans import DROPPING, GPT2, plan_of, random_plan, random_sliced_plan, random_uneven_plan
from tests.helpers.refusals import refused
from tests.helpers.switch_plans import random_switch_plan

Run = Callable[[Instruction], None]


class Record:
    """Runs instructions on nothing: when each begins and ends, on which thread, and what it finds in the buffers it reads."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.began: dict[int, int] = {}
        self.ended: dict[int, int] = {}
        self.threads: dict[int, int] = {}
        self.wrong: list[str] = []
        self._now = 0
        self._lock = threading.Lock()
        self._contents: dict[str, int] = {}
        self._expected: list[dict[str, int]] = []
        contents: dict[str, int] = {}
        for index, instruction in enumerate(program.instructions):
            self._expected.append({name: contents.get(name, -1) for name in instruction.reads})
            contents.update(dict.fromkeys(instruction.writes, index))

    def run(self, instruction: Instruction) -> None:
        index = instruction.unit
        assert index is not None
        with self._lock:
            self._now += 1
            self.began[index], self.threads[index] = self._now, threading.get_ident()
            found = {name: self._contents.get(name, -1) for name in instruction.reads}
            if found != self._expected[index]:
                self.wrong.append(f"{instruction} finds {found}")
            self._contents.update(dict.fromkeys(instruction.writes, index))
        with self._lock:
            self._now += 1
            self.ended[index] = self._now


def _fused(program: Program, seed: int) -> Lanes:
    return fused_lanes(program.instructions)


def _threads(program: Program, seed: int) -> Lanes:
    return PausingLanes(program.instructions, random.Random(seed), longest_pause_s=0.0005)


def _step(lanes: Lanes, program: Program, run: Run) -> None:
    lanes.step(lambda index: run(program.instructions[index]))


@pytest.mark.parametrize(("backend", "lanes"), [(_fused, 2), (_threads, 5)])
def test_lanes_keep_their_order_and_their_waits_and_nothing_else(backend: Callable[[Program, int], Lanes], lanes: int) -> None:
    rng, overtaken = random.Random(8), 0
    for seed in range(20):
        program = random_program(rng)
        assert races(program) == lifetimes(program) == []
        record = Record(program)
        _step(backend(program, seed), program, record.run)
        assert record.wrong == []
        assert sorted(record.ended) == list(range(len(program.instructions)))
        for position, index in all_waits(program):
            assert record.ended[index] < record.began[position]
        ident = {position: record.threads[position] for position in record.threads}
        assert len(set(ident.values())) == lanes
        compute = [position for position, i in enumerate(program.instructions) if i.stream == "compute"]
        assert {ident[position] for position in compute} == {threading.get_ident()}, (
            "torch's backward pass stays on this thread"
        )
        for thread in set(ident.values()):
            own = [position for position in range(len(ident)) if ident[position] == thread]
            assert all(record.ended[one] < record.began[other] for one, other in pairwise(own)), "a lane in issue order"
        overtaken += sum(record.began[a] > record.began[b] for a, b in pairwise(range(len(ident))))
    assert overtaken > 20, "what no wait holds back goes ahead"


def test_pauses_show_orders_that_no_wait_forces() -> None:
    """Most of the waits that the data need are missed within a few runs when they are left out."""
    rng, seen, left_out = random.Random(2), 0, 0
    for _ in range(4):
        program = random_program(rng, 40)
        for position, index in all_waits(program)[::3]:
            changed = without_wait(program, position, index)
            assert races(changed)
            left_out += 1
            for seed in range(8):
                record = Record(changed)
                _step(_threads(changed, seed), changed, record.run)
                if record.wrong or record.ended[index] > record.began[position]:
                    seen += 1
                    break
    assert left_out > 20
    assert seen / left_out > 0.6


def test_pauses_follow_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    program, slept = random_program(random.Random(0)), list[float]()
    monkeypatch.setattr(threads.time, "sleep", slept.append)
    paused = []
    for seed in (1, 1, 2):
        _step(PausingLanes(program.instructions, random.Random(seed), longest_pause_s=0.5), program, Record(program).run)
        paused.append(sorted(slept))
        slept.clear()
    assert paused[0] == paused[1] != paused[2]
    assert 0 < len(paused[0]) < len(program.instructions)
    assert 0 < max(paused[0]) <= 0.5


@pytest.mark.parametrize("backend", [_fused, _threads])
@pytest.mark.parametrize("lane", STREAMS)
def test_an_error_of_any_lane_stops_all_of_them_and_is_raised(backend: Callable[[Program, int], Lanes], lane: str) -> None:
    program = random_program(random.Random(4))
    of_lane = [index for index, i in enumerate(program.instructions) if i.stream == lane]
    lanes = backend(program, 0)
    for failing in (of_lane[0], of_lane[len(of_lane) // 2], of_lane[-1]):
        record, failed = Record(program), threading.Event()

        def run(instruction: Instruction, failing: int = failing, record: Record = record, failed: object = failed) -> None:
            if instruction.unit == failing:
                failed.set()  # type: ignore[attr-defined]
                raise ArithmeticError(f"in {instruction}")
            record.run(instruction)

        with pytest.raises(ArithmeticError, match=f"in .* unit {failing}$"):
            _step(lanes, program, run)
        later = {index for index in range(len(program.instructions)) if failing in program.instructions[index].waits}
        assert failing not in record.began
        assert not later & set(record.began), "what waits for it never begins"
        assert all(index < failing for index in record.began if program.instructions[index].stream == lane)


@pytest.mark.parametrize(("backend", "threads"), [(_fused, 2), (_threads, 5)])
def test_threads_live_from_step_to_step_and_end_with_their_lanes(
    backend: Callable[[Program, int], Lanes], threads: int
) -> None:
    program = random_program(random.Random(8))
    lanes, alive = backend(program, 0), set[threading.Thread]()
    for _ in range(5):
        _step(lanes, program, lambda instruction: alive.add(threading.current_thread()))
    assert len(alive) == threads
    del lanes
    for thread in alive - {threading.current_thread()}:
        thread.join(timeout=60)
        assert not thread.is_alive()


def test_a_lane_that_hangs_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collective whose other ranks have failed may never end."""
    monkeypatch.setattr(threads, "GRACE_S", 0.1)
    never = threading.Event()
    entered = threading.Event()

    def run(index: int) -> None:
        if index == 0:
            entered.set()
            never.wait()
        else:
            entered.wait()
            raise MemoryError

    with pytest.raises(MemoryError):
        Lanes([(), ()], ["communication", "compute"], here="compute").step(run)
    with pytest.raises(MemoryError):
        Lanes([(), ()], ["communication", "host"], here="compute").step(run)
    never.set()  # it never ended, and both calls did


def test_an_interrupt_is_an_error_too() -> None:
    def run(index: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Lanes([(), (0,)], ["compute", "copy"], here="compute").step(run)


@pytest.mark.long
def test_plans_on_threads_equal_one_process() -> None:
    """Plans of every kind, each rank's lanes paused at random: gradients, parameters and losses are those of one process. With
    dropout too: the same numbers are dropped whatever is split, sliced or recomputed, and with every step other ones."""
    rng = random.Random(6)
    kinds = [random_plan, random_sliced_plan, random_uneven_plan, random_switch_plan]
    for world, entry in ((4, 1), (1, 2)):
        chosen = kinds if world > 1 else [random_plan, random_switch_plan]
        plans = [kind(rng, world) for kind in chosen for _ in range(entry)]
        plans += [kind(rng, world, model) for kind in chosen for model in DROPPING]
        for report in run_plans(plans, backend="threads"):
            assert report.backend == "threads"
            assert report.gradient_difference is not None
            assert report.parameter_difference is not None
            assert report.loss_difference is not None
            assert max(report.gradient_difference, report.parameter_difference, report.loss_difference) < 1e-12


def test_each_device_has_its_back_ends() -> None:
    plan = plan_of(GPT2, ["single"] * len(GPT2.units), 1)
    for backend, device, refusal in (
        ("streams", "cpu", ("backend", "streams", ("serial", "fused", "threads", "--device cuda"))),
        ("threads", "cuda", ("backend", "threads", ("serial", "streams", "--device cpu"))),
        ("fused", "cuda", ("backend", "fused", ("serial", "streams", "--device cpu"))),
        ("magic", "cpu", ("backend", "magic", ("serial", "fused", "threads", "streams"))),
    ):
        with refused(*refusal):
            run_plans([plan], backend=backend, device=device)  # type: ignore[arg-type]
    with refused("measure_memory", problem="threads", fix="--backend serial"):
        run_plans([plan], backend="threads", measure_memory=True)
