"""The simulation against the recurrences, against longest paths in a graph written out here, and against closed forms."""

import random
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trainplan.formulations.pipeline_partition.end_times import one_f_one_b_rows
from trainplan.formulations.schedule.autopipe_recurrences import iteration_ns, pass_ends
from trainplan.formulations.schedule.critical_path import critical_path
from trainplan.formulations.schedule.end_time_rows import Sum
from trainplan.formulations.schedule.orders import Pass, Stuck, gpipe, interleaved, most_sliced, one_f_one_b
from trainplan.formulations.schedule.simulate import Event, Timeline, Work, simulate

from tests.helpers.partition_instances import random_work

Orders = list[list[Pass]]
Times = dict[Pass, tuple[int, int, int]]


@st.composite
def works(draw: st.DrawFn, stages: int = 7) -> Work:
    """Hypothesis's own, which shrink to small numbers."""
    p = draw(st.integers(1, stages))
    times = st.integers(0, draw(st.sampled_from([1, 5, 1000, 10**12])))
    forward, backward, moves = (draw(st.lists(times, min_size=size, max_size=size)) for size in (p, p, p - 1))
    return Work(tuple(forward), tuple(backward), tuple(moves))


@st.composite
def scheduled(draw: st.DrawFn) -> tuple[Work, Orders]:
    """A work and one of all schedules for it."""
    work, kind = draw(works()), draw(st.sampled_from(["1f1b", "gpipe", "sliced", "interleaved"]))
    p, m = work.stages, draw(st.integers(1, 12))
    if kind == "interleaved":
        devices = draw(st.sampled_from([d for d in range(1, p + 1) if p % d == 0]))
        return work, interleaved(devices, p // devices, devices * draw(st.integers(1, 3)))
    if kind == "sliced":
        return work, one_f_one_b(p, m, draw(st.integers(0, most_sliced(p, m))))
    return work, one_f_one_b(p, m) if kind == "1f1b" else gpipe(p, m)


def longest_paths(work: Work, orders: Orders) -> Times | None:
    """When each pass is ready, starts and ends, by longest paths in a graph with an edge for each wait; None for a cycle."""
    before: dict[Pass, list[Pass]] = {one: [] for order in orders for one in order}
    moved = dict.fromkeys(before, 0)
    for order in orders:
        for a, b in pairwise(order):
            before[b].append(a)
    for one in before:
        neighbour = one.stage - 1 if one.kind == "forward" else one.stage + 1
        if not 0 <= neighbour < work.stages:
            continue
        moved[one] = work.transfer_ns[min(one.stage, neighbour)]
        wanted = (one.kind, one.micro_batch, neighbour)
        parts = [other for other in before if (other.kind, other.micro_batch, other.stage) == wanted]
        if len(parts) == 2 and one.half is not None:
            parts = [other for other in parts if other.half == one.half]
            moved[one] = (moved[one] + one.half) // 2
        before[one] += parts  # the later one of two counts
    after: dict[Pass, list[Pass]] = {one: [] for one in before}
    for one, others in before.items():
        for other in others:
            after[other].append(one)
    found: Times = {}
    left = {one: len(others) for one, others in before.items()}
    free = [one for one, count in left.items() if count == 0]
    while free:
        one = free.pop()
        ready = max((found[other][2] for other in before[one]), default=0)
        start = ready + moved[one]
        found[one] = (ready, start, start + lasts_ns(work, one))
        for other in after[one]:
            left[other] -= 1
            if left[other] == 0:
                free.append(other)
    return found if len(found) == len(before) else None


def lasts_ns(work: Work, one: Pass) -> int:
    time = work.forward_ns[one.stage] if one.kind == "forward" else work.backward_ns[one.stage]
    return time if one.half is None else (time + one.half) // 2


def times_of(timeline: Timeline) -> Times:
    return {event.task: (event.ready_ns, event.start_ns, event.end_ns) for own in timeline.devices for event in own}


@settings(max_examples=300)
@given(scheduled())
def test_the_simulation_is_the_longest_paths_of_every_schedule(case: tuple[Work, Orders]) -> None:
    work, orders = case
    timeline = simulate(work, orders)
    assert [[event.task for event in own] for own in timeline.devices] == orders
    assert all(event.device == device for device, own in enumerate(timeline.devices) for event in own)
    found = longest_paths(work, orders)
    assert found is not None
    assert times_of(timeline) == found
    assert timeline.time_ns == max(end for _, _, end in found.values())
    assert sum(timeline.busy_ns) == sum(lasts_ns(work, one) for one in found)
    idle = sum(timeline.time_ns - busy for busy in timeline.busy_ns)
    assert timeline.bubble * timeline.time_ns * len(orders) == pytest.approx(idle, abs=1e-6 * timeline.time_ns)


def assert_recurrences_agree(work: Work, m: int) -> None:
    timeline = simulate(work, one_f_one_b(work.stages, m))
    ends = pass_ends(work, m)
    for own in timeline.devices:
        for event in own:
            by_stage = ends.forward if event.task.kind == "forward" else ends.backward
            assert by_stage[event.task.stage][event.task.micro_batch] == event.end_ns
    assert iteration_ns(work, m) == timeline.time_ns


@settings(max_examples=300)
@given(works(), st.integers(1, 16))
def test_the_recurrences_are_the_simulation(work: Work, m: int) -> None:
    assert_recurrences_agree(work, m)


def test_the_recurrences_are_the_simulation_on_3000_random_works() -> None:
    rng = random.Random(1)
    for _ in range(3000):
        assert_recurrences_agree(random_work(rng), rng.randint(1, 16))


@settings(max_examples=300)
@given(works(), st.integers(1, 16))
def test_rows_of_end_times_are_the_recurrences_in_unknown_times(work: Work, m: int) -> None:
    known, times, starts = one_f_one_b_rows(work.stages, m), (*work.forward_ns, *work.backward_ns, *work.transfer_ns), []

    def value(one: Sum[int]) -> int:
        ahead = 0 if one.start is None else starts[one.start]
        return ahead + sum(count * times[number] for number, count in one.times)

    for sums in known.rows:
        assert len(sums) == 2
        starts.append(max(map(value, sums)))
    assert value(known.ends[0]) == iteration_ns(work, m)


def test_rows_share_what_the_exchanges_share() -> None:
    """About half of the 2pm passes; none where each pass waits for one other only."""
    for (p, m), wanted in {(1, 9): 0, (2, 1): 0, (2, 4): 4, (4, 8): 27, (8, 16): 133}.items():
        assert len(one_f_one_b_rows(p, m).rows) == wanted


@settings(max_examples=200)
@given(scheduled(), st.randoms(use_true_random=False))
def test_an_order_with_a_cycle_is_stuck(case: tuple[Work, Orders], rng: random.Random) -> None:
    """Orders with passes exchanged, the halves in their place: the simulation is stuck exactly where the graph has a cycle."""
    work, orders = case
    for order in orders:
        if rng.random() < 0.4:
            i, j = rng.randrange(len(order)), rng.randrange(len(order))
            if order[i].half is order[j].half is None:
                order[i], order[j] = order[j], order[i]
    found = longest_paths(work, orders)
    if found is None:
        with pytest.raises(Stuck):
            simulate(work, orders)
    else:
        assert times_of(simulate(work, orders)) == found


def test_a_backward_pass_before_its_forward_passes_downstream_is_stuck() -> None:
    first = [Pass("backward", 0, 0), Pass("forward", 0, 0)]
    with pytest.raises(Stuck):
        simulate(Work((1, 1), (1, 1), (0,)), [first, [Pass("forward", 0, 1), Pass("backward", 0, 1)]])


def test_halves_by_hand() -> None:
    """Passes of 7 and 9 ns and a message of 5 ns are cut into 3 + 4, 4 + 5 and 2 + 3."""
    found = simulate(Work((7, 9), (10, 11), (5,)), one_f_one_b(2, 2, sliced=1))
    assert [(str(e.task.micro_batch) + e.task.kind[0], e.ready_ns, e.start_ns, e.end_ns) for e in found.devices[0]] == [
        ("0f", 0, 0, 3),
        ("0f", 3, 3, 7),
        ("1f", 7, 7, 14),
        ("0b", 28, 33, 43),
        ("1b", 53, 58, 68),
    ]
    assert [(str(e.task.micro_batch) + e.task.kind[0], e.ready_ns, e.start_ns, e.end_ns) for e in found.devices[1]] == [
        ("0f", 3, 5, 9),
        ("0f", 9, 12, 17),
        ("0b", 17, 17, 28),
        ("1f", 28, 33, 42),
        ("1b", 42, 42, 53),
    ]
    assert (found.startup_ns, found.busy_ns) == (5, (34, 40))


@given(st.integers(1, 8), st.integers(1, 20), st.integers(0, 50), st.integers(0, 90), st.integers(0, 30))
def test_equal_stages_have_closed_forms(p: int, m: int, f: int, b: int, c: int) -> None:
    """Narayanan et al. (Megatron-LM, 2021), Section 2.2: m + p - 1 slots; GPipe with the transfers that passes wait for."""
    free, paid = Work((f,) * p, (b,) * p, (0,) * (p - 1)), Work((f,) * p, (b,) * p, (c,) * (p - 1))
    whole = (m + p - 1) * (f + b)
    assert simulate(free, gpipe(p, m)).time_ns == simulate(free, one_f_one_b(p, m)).time_ns == whole
    slots = 2 * c * (m + p - 2) if p > 1 else 0
    assert simulate(paid, gpipe(p, m)).time_ns == whole + slots
    assert simulate(paid, gpipe(p, m)).startup_ns == simulate(paid, one_f_one_b(p, m)).startup_ns == (p - 1) * (f + c)


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 4), st.integers(0, 50), st.integers(0, 90), st.integers(0, 30))
def test_interleaving_cuts_bubble_and_start_up_by_the_stages_of_a_device(
    p: int, v: int, rounds: int, f: int, b: int, c: int
) -> None:
    """Narayanan et al. (Megatron-LM, 2021), Section 2.2: the bubble is (p - 1)(f + b) / v. Here f, b are of one stage, of v."""
    m = rounds * p
    found = simulate(Work((f,) * (p * v), (b,) * (p * v), (0,) * (p * v - 1)), interleaved(p, v, m))
    assert found.time_ns == m * v * (f + b) + (p - 1) * (f + b)
    paid = simulate(Work((f,) * (p * v), (b,) * (p * v), (c,) * (p * v - 1)), interleaved(p, v, m))
    assert paid.startup_ns == (p - 1) * (f + c)


@pytest.mark.parametrize("p", range(2, 13))
def test_slicing_halves_the_start_up_of_equal_stages_exactly(p: int) -> None:
    """With k micro-batches sliced the step loses all of half the start-up once p f <= (p + 1) f / 2 + k b: the last stage's
    first backward pass comes back no later than the first stage has sent what fills its pipeline."""
    f = 60
    for b in (f, 2 * f, 3 * f):
        work = Work((f,) * p, (b,) * p, (0,) * (p - 1))
        found = [simulate(work, one_f_one_b(p, 2 * p, k)) for k in range(p)]
        enough = max(1, -(-(p - 1) * f // (2 * b)))
        assert {one.startup_ns for one in found[1:]} == {found[0].startup_ns // 2} == {(p - 1) * f // 2}
        saved = [found[0].time_ns - one.time_ns for one in found]
        assert max(saved) == (p - 1) * f // 2
        assert saved.index(max(saved)) == enough
        assert set(saved[enough:]) == {max(saved)}
    moved = Work((f,) * p, (2 * f,) * p, (14,) * (p - 1))
    assert simulate(moved, one_f_one_b(p, 2 * p, 1)).startup_ns == (p - 1) * (f + 14) // 2


def all_longest(timeline: Timeline) -> Iterator[list[Event]]:
    """Every longest path of the step, from its last event back."""
    events = {event.task: event for own in timeline.devices for event in own}
    before = {b.task: a for own in timeline.devices for a, b in pairwise(own)}

    def back(path: list[Event]) -> Iterator[list[Event]]:
        task, found = path[-1].task, []
        neighbour = task.stage - 1 if task.kind == "forward" else task.stage + 1
        if 0 <= neighbour < timeline.work.stages:
            found.append(events[Pass(task.kind, task.micro_batch, neighbour)])
        if task in before:
            found.append(before[task])
        if not found:
            yield path
        for event in found:
            if event.end_ns == path[-1].ready_ns:
                yield from back([*path, event])

    for own in timeline.devices:
        if own[-1].end_ns == timeline.time_ns:
            yield from back([own[-1]])


@settings(max_examples=300)
@given(scheduled())
def test_the_critical_path_is_contiguous_and_as_long_as_the_step(case: tuple[Work, Orders]) -> None:
    timeline = simulate(*case)
    path = critical_path(timeline).path
    assert path[0].ready_ns == 0
    assert all(a.end_ns == b.ready_ns for a, b in pairwise(path))
    assert sum(event.end_ns - event.ready_ns for event in path) == timeline.time_ns
    for a, b in pairwise(path):
        same_device = a.device == b.device
        assert same_device or (a.task.kind, a.task.micro_batch) == (b.task.kind, b.task.micro_batch)


@settings(max_examples=300)
@given(st.integers(0, 10**6), st.integers(1, 5), st.booleans())
def test_no_longest_path_goes_nearer_the_last_stage(seed: int, m: int, equal: bool) -> None:
    """At no moment is any longest path on a later stage than the critical one."""
    rng = random.Random(seed)
    work = random_work(rng, 4)
    if equal:
        p = work.stages
        work = Work((2,) * p, (rng.choice([2, 4]),) * p, (rng.choice([0, 1]),) * (p - 1))
    timeline = simulate(work, one_f_one_b(work.stages, m))
    critical = critical_path(timeline)
    paths = list(all_longest(timeline))
    assert list(reversed(critical.path)) in paths
    for path in paths:
        for ns in {event.ready_ns for event in (*path, *critical.path)}:
            assert stage_at(path, ns) <= stage_at(critical.path, ns)


def stage_at(path: list[Event] | tuple[Event, ...], ns: int) -> int:
    """The stage of a path during the nanosecond after `ns`."""
    return next((event.task.stage for event in path if event.ready_ns <= ns < event.end_ns), 0)


def test_equal_stages_are_not_always_critical_by_one_path() -> None:
    """The test above rests on this: there are instances with many longest paths."""
    counts = Counter(
        len(list(all_longest(simulate(Work((2,) * p, (4,) * p, (0,) * (p - 1)), one_f_one_b(p, 4))))) for p in (2, 3)
    )
    assert min(counts) > 3


@pytest.mark.parametrize("p", range(1, 7))
def test_the_slowest_stage_is_the_master(p: int) -> None:
    for slow in range(p):
        forward, backward = ([time + (x == slow) * 5 for x in range(p)] for time in (10, 20))
        timeline = simulate(Work(tuple(forward), tuple(backward), (1,) * (p - 1)), one_f_one_b(p, 4 * p))
        critical = critical_path(timeline)
        assert critical.master == slow
        steady = [event.task.stage for event in critical.path[2 * p : -2 * p]]
        assert set(steady) == {slow}
    equal = simulate(Work((10,) * p, (20,) * p, (0,) * (p - 1)), one_f_one_b(p, 4 * p))
    assert critical_path(equal).master == p - 1


@settings(max_examples=300)
@given(st.integers(0, 10**6), st.integers(0, 6))
def test_the_master_has_most_of_the_paths_1f1b_passes(seed: int, more: int) -> None:
    """On stage x these are the forward passes from p - 1 - x on, and as many backward passes; the later stage has a tie."""
    work = random_work(random.Random(seed), 5)
    p, m = work.stages, work.stages + more
    critical = critical_path(simulate(work, one_f_one_b(p, m)))
    counts = [0] * p
    for event in critical.path:
        kind, q, x, _ = event.task
        counts[x] += q >= p - 1 - x if kind == "forward" else q < m - (p - 1 - x)
    assert critical.master == max(x for x in range(p) if counts[x] == max(counts))
