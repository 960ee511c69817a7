"""Limits and interrupts, by clocks that count their readings and by methods that never look at one."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from trainplan.formulations.problem import problem_of
from trainplan.solvers.adapters import highs
from trainplan.solvers.adapters.worker import Late, Worker
from trainplan.solvers.core import answer, clock, incumbents, method_registry
from trainplan.solvers.core.clock import Clock, Overrun, ended_after, grace_seconds
from trainplan.solvers.core.heuristic import cheap_bound, first_plan
from trainplan.solvers.core.search import Outcome, Search
from trainplan.solvers.core.solve import solve

import trainplan as tp
from tests.helpers.instances import paper_instance, random_instance, random_pipeline

AMPLE = 2**45


class Hand:
    """A clock's hand that is moved by hand."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def instance() -> Any:
    return paper_instance().with_memory(AMPLE)


def no_first_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainplan.solvers.core.solve.first_plan", lambda instance: None)


def choices() -> list[list[int]]:
    """Two choices for the instance, the better one last."""
    problem, taken = problem_of(instance()), instance()
    both = [[option] * taken.layers for option in (0, 1)]
    return sorted(both, key=lambda choice: problem.evaluate(taken, choice).objective, reverse=True)


def method_is(monkeypatch: pytest.MonkeyPatch, method: Callable[[Any, Search], Outcome]) -> None:
    monkeypatch.setattr(method_registry.Entry, "method", lambda self: method)


def test_a_paused_clock_does_not_count() -> None:
    hand = Hand()
    clock = Clock(hand)
    search = Search(lambda _: None, 10.0, clock=clock)
    hand.seconds = 3.0
    with clock.paused():
        hand.seconds = 100.0
        assert search.elapsed() == 3.0
        with clock.paused():
            hand.seconds = 101.0
    hand.seconds += 2.0
    assert (search.elapsed(), search.remaining(), clock.seconds_apart) == (5.0, 5.0, 98.0)


def test_what_goes_on_for_ever_is_ended() -> None:
    looks = []

    def left() -> float:
        looks.append(len(looks))
        return 0.01 if len(looks) < 4 else 0.0

    with pytest.raises(Overrun), ended_after(left):
        while True:
            pass
    assert len(looks) >= 4


def test_an_end_within_an_end_leaves_the_outer_one_in_force() -> None:
    with pytest.raises(Overrun), ended_after(lambda: 0.05):  # whose seconds never run out before the inner ones do
        with pytest.raises(Overrun), ended_after(lambda: 0.0):
            while True:
                pass
        raise Overrun


@pytest.mark.parametrize("code", [contextmanager, clock.wait_seconds, signal.getsignal, pytest.raises])
def test_no_alarm_raises_in_what_begins_and_ends_an_end(monkeypatch: pytest.MonkeyPatch, code: Any) -> None:
    """It comes again at once, when something else goes on; else its handler would remain."""
    timers, left = list[float](), [100.0]
    monkeypatch.setattr(signal, "setitimer", lambda _, seconds: timers.append(seconds))
    frame = SimpleNamespace(f_code=code.__code__)
    with ended_after(lambda: left[0]):
        look: Any = signal.getsignal(signal.SIGALRM)
        left[0] = 0.0
        with pytest.raises(Overrun) if code is pytest.raises else nullcontext():
            look(signal.SIGALRM, frame)
    assert timers == [100.0, clock.AGAIN_SECONDS if code is pytest.raises else clock.TICK_SECONDS, 0]


def test_the_grace_is_a_tenth_or_half_a_second() -> None:
    assert [grace_seconds(limit) for limit in (1.0, 5.0, 100.0)] == [0.5, 0.5, 10.0]


def test_a_method_that_never_looks_at_the_clock_is_ended_with_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    hand, (worse, better), bound = Hand(), choices(), cheap_bound(instance())[0] + 1

    def method(instance: Any, search: Search) -> Outcome:
        search.report(worse, bound=bound, source="a stage of it")
        search.report(better)
        hand.seconds = 1.3
        while True:
            pass

    method_is(monkeypatch, method)
    no_first_plan(monkeypatch)  # which is below this bound
    result = solve(instance(), time_limit=1.0, clock=Clock(hand))
    assert (result.status, result.stopped, result.bound, result.bound_source) == (
        "feasible",
        "time limit",
        bound,
        "a stage of it",
    )
    assert result.solution == {"choice": better}
    assert [point.source for point in result.history] == ["a stage of it", "label-setting"]
    assert "was ended" in str(result.message)


def test_an_interrupt_gives_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    (_, better), bound = choices(), cheap_bound(instance())[0] + 1

    def method(instance: Any, search: Search) -> Outcome:
        search.report(better, bound=bound)
        raise KeyboardInterrupt

    method_is(monkeypatch, method)
    no_first_plan(monkeypatch)
    result = solve(instance())
    assert (result.status, result.stopped, result.solution, result.bound) == (
        "feasible",
        "interrupt",
        {"choice": better},
        bound,
    )
    compared, _ = tp.compare(instance(), ["exact", "milp"])
    assert [entry.stopped for entry in compared] == ["interrupt"]
    whole = answer.best_answer([instance(), instance()], "exact")
    assert (whole.result.stopped, whole.solution, whole.bound_ns) == ("interrupt", tuple(better), None)


def test_an_interrupt_before_there_is_anything_explains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def method(instance: Any, search: Search) -> Outcome:
        raise KeyboardInterrupt

    method_is(monkeypatch, method)
    no_first_plan(monkeypatch)
    monkeypatch.setattr("trainplan.solvers.core.solve.explain", lambda *_: pytest.fail("explained"))
    result = solve(instance())
    assert (result.status, result.stopped, result.reason) == ("unknown", "interrupt", None)
    assert (result.bound, result.bound_source) == cheap_bound(instance())


def test_an_interrupt_before_the_method_leaves_the_first_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hash of a large instance takes longer than its first plan."""
    taken, digest = random_instance(3, 12, 5), type(random_instance(3)).digest

    def interrupted(_: Any) -> str:
        monkeypatch.setattr(type(taken), "digest", digest)
        raise KeyboardInterrupt

    monkeypatch.setattr(type(taken), "digest", property(interrupted))
    result = solve(taken)
    assert result.solution is not None and len(result.instance_hash) == 64
    assert result.solution_source == incumbents.FIRST_PLAN


def test_an_interrupt_of_the_explanation_is_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    method_is(monkeypatch, lambda instance, search: Outcome(message="nothing"))
    no_first_plan(monkeypatch)
    monkeypatch.setattr("trainplan.solvers.core.solve.explain", interrupted)
    result = solve(instance())
    assert (result.status, result.stopped, result.message) == ("unknown", "interrupt", "nothing")


@pytest.mark.parametrize("claimed", [False, True])
def test_an_explanation_keeps_the_limit(monkeypatch: pytest.MonkeyPatch, claimed: bool) -> None:
    """A proof of the method stays, though there was no time left to find out why."""
    hand = Hand()

    def explain(*_: Any) -> None:
        hand.seconds = 2.0
        while True:
            pass

    method_is(monkeypatch, lambda instance, search: Outcome(infeasible=claimed))
    monkeypatch.setattr("trainplan.solvers.core.solve.explain", explain)
    result = solve(instance(), time_limit=1.0, clock=Clock(hand))
    assert (result.status, result.reason) == ("infeasible" if claimed else "unknown", None)
    assert f"no time left to find out {'why nothing' if claimed else 'whether anything'} fits" in str(result.message)


def test_a_method_that_proves_nothing_is_given_a_bound_and_its_source() -> None:
    result = tp.solve(paper_instance(), "galvatron-dp")
    assert result.status == "feasible"
    assert (result.bound, result.bound_source) == cheap_bound(paper_instance())
    assert result.gap is not None


@pytest.mark.parametrize("cold", [False, True])
def test_models_begin_from_a_fast_plan_and_give_it_back(monkeypatch: pytest.MonkeyPatch, cold: bool) -> None:
    exact, entries, hand = tp.solve(paper_instance()), method_registry.Entry.method, Hand()
    started = []

    def nothing(instance: Any, search: Search) -> Outcome:
        started.append(search.objective)
        hand.seconds = 5.0
        return Outcome(stopped="time limit")

    monkeypatch.setattr(method_registry.Entry, "method", lambda self: nothing if self.name == "milp" else entries(self))
    result = solve(paper_instance(), "milp", time_limit=5.0, cold=cold, clock=Clock(hand))
    if cold:
        assert (started, result.status, result.solution) == ([None], "unknown", None)
    else:
        assert (result.status, result.solution_source, result.stopped) == ("feasible", incumbents.FIRST_PLAN, "time limit")
        assert started == [result.objective]
        assert exact.objective is not None and result.objective is not None and result.bound is not None
        assert result.bound <= exact.objective <= result.objective
        assert {point.source for point in result.history} == {incumbents.FIRST_PLAN}


def test_a_first_plan_that_the_cheap_bound_proves_needs_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ample memory all layers take their fastest option, which is the bound."""
    method_is(monkeypatch, lambda *_: pytest.fail("built"))
    for model in ("milp", "cpsat"):
        result = solve(instance(), model)
        assert (result.status, result.solution_source, result.stopped) == ("optimal", incumbents.FIRST_PLAN, None)
        assert (result.bound, result.bound_source) == cheap_bound(instance())


def test_a_first_plan_gives_way_to_one_as_good() -> None:
    ties = 0
    for seed in range(60):
        drawn = random_pipeline(seed)
        result, plan = solve(drawn), first_plan(drawn)
        if plan is not None and result.objective == problem_of(drawn).evaluate(drawn, plan).objective:
            ties += 1
            assert (result.status, result.solution_source) == ("optimal", "branch-and-bound"), seed
    assert ties > 5


@pytest.mark.parametrize("method", ["milp", "cpsat"])
@pytest.mark.parametrize("cold", [False, True])
def test_cold_and_warm_prove_the_same(method: str, cold: bool) -> None:
    for drawn in (random_instance(3), random_instance(5), random_pipeline(1), random_pipeline(2)):
        exact, result = solve(drawn), solve(drawn, method, cold=cold)
        assert (result.status, result.objective, result.bound) == (exact.status, exact.objective, exact.bound)


@pytest.fixture
def stubborn(monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    """A process that never ends by itself."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent.parent))
    worker = Worker("tests.helpers.stubborn_worker")
    yield worker
    worker.close()


def wait_for_end_of(process: int) -> None:
    """Until a process that was killed has ended, if only for its server to take note of it."""
    with suppress(FileNotFoundError):
        while Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
            time.sleep(0.01)


def test_a_process_that_does_not_stop_is_ended_and_what_it_sent_is_kept(stubborn: Worker) -> None:
    hand, received = Hand(), []

    def receive(kind: str, content: Any) -> None:
        received.append((kind, content))
        hand.seconds = 2e6

    with pytest.raises(Late):
        stubborn.answer({}, Search(lambda choice: choice, 1e6, clock=Clock(hand)), receive)
    assert [kind for kind, _ in received] == ["process"]
    wait_for_end_of(received[0][1])
    assert stubborn.answer({"ends": "again"}, Search(lambda choice: choice), receive) == {"echo": "again"}


def test_an_interrupt_ends_the_process(stubborn: Worker) -> None:

    received = []

    def receive(kind: str, content: Any) -> None:
        received.append(content)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stubborn.answer({}, Search(lambda choice: choice), receive)
    wait_for_end_of(received[0])


def test_a_server_that_is_closed_ends_its_process(stubborn: Worker) -> None:
    received = []

    def receive(kind: str, content: Any) -> None:
        received.append(content)
        stubborn.close()

    assert stubborn.answer({}, Search(lambda choice: choice), receive) == {"error": "its process broke off"}
    wait_for_end_of(received[0])
    assert stubborn.answer({"ends": "again"}, Search(lambda choice: choice), receive) == {"echo": "again"}


def test_a_process_that_takes_too_much_memory_says_so(stubborn: Worker) -> None:
    search = Search(lambda choice: choice)
    search.memory_bytes = 2**27
    assert stubborn.answer({"taken_bytes": 2**20}, search, lambda *_: None) == {"taken": 2**20}
    assert stubborn.answer({"taken_bytes": 2**29}, search, lambda *_: None) == {"out_of_memory": True}
    search.memory_bytes = None
    assert stubborn.answer({"taken_bytes": 2**29}, search, lambda *_: None) == {"taken": 2**29}


def test_a_method_that_takes_too_much_memory_keeps_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    _, better = choices()

    def method(instance: Any, search: Search) -> Outcome:
        search.report(better)
        return Outcome(statistics={"taken": len(bytearray(2**32))})

    method_is(monkeypatch, method)
    no_first_plan(monkeypatch)
    result = solve(instance(), solver_memory="256MiB")
    assert (result.status, result.stopped, result.solution) == ("feasible", "memory limit", {"choice": better})


@pytest.mark.parametrize(
    "choice, repairs, termination, bound, stated",
    [
        (7, 0, highs.FINISHED, 7, None),
        (7, 0, highs.FINISHED, 5, "proves these times to 2 ns only; cpsat and exact prove them"),
        (7, 3, highs.FINISHED, 5, "and the memory to its rounding"),
        (None, 6, highs.FINISHED, 5, "exceeds the memory by its rounding, and 6 searches in less memory found none"),
        (None, 0, "unknown", None, "HiGHS ended with unknown and no solution"),
        (7, 0, "maxTimeLimit", 5, None),
    ],
)
def test_highs_says_why_it_proves_nothing(
    choice: Any, repairs: int, termination: str, bound: int | None, stated: str | None
) -> None:
    search = Search(lambda choice: choice)
    search.report(choice)
    answer = {"choice": choice, "repairs": repairs, "termination": termination, "bound": bound, "noise_ns": 2.0}
    message = highs._message(answer, search)
    assert message is None if stated is None else stated in str(message)
