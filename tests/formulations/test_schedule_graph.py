"""The graph of a schedule: its evaluations agree with each other, with AutoPipe's recurrences and with longest paths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trainplan.formulations.schedule.autopipe_recurrences import pass_ends
from trainplan.formulations.schedule.end_time_rows import Sum, end_time_rows
from trainplan.formulations.schedule.graph import FEW_COLUMNS, Duration, Graph, Symbol
from trainplan.formulations.schedule.orders import most_sliced
from trainplan.formulations.schedule.recorded import Shape, recorded
from trainplan.formulations.schedule.simulate import Work

NAMES = ("forward_ns", "backward_ns", "first_half_ns", "second_half_ns", "halved_backward_ns", "last_ns")
NAMES += ("message_forward_ns", "message_backward_ns", "message_half_ns")
Times = dict[Symbol, int]


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    """Every schedule with every way of messages that it may have."""
    kind, devices, micro_batches = draw(st.sampled_from(["1f1b", "gpipe", "interleaved-1f1b"])), draw(st.integers(1, 5)), 0
    if kind == "interleaved-1f1b":
        chunks, micro_batches = draw(st.integers(2, 3)), devices * draw(st.integers(1, 3))
        messages = draw(st.sampled_from(["received", "ordered", "parallel"]))
        return Shape(kind, devices * chunks, micro_batches, chunks=chunks, messages=messages)
    micro_batches = draw(st.integers(1, 9))
    sliced = draw(st.integers(0, most_sliced(devices, micro_batches))) if kind == "1f1b" else 0
    return Shape(kind, devices, micro_batches, sliced, messages=draw(st.sampled_from(["received", "parallel"])))


def random_times(shape: Shape, seed: int, columns: int = 1) -> dict[Symbol, np.ndarray]:
    rng = np.random.default_rng(seed)
    most = rng.choice([1, 3, 1000])
    return {(name, stage): rng.integers(0, most + 1, columns) for name in NAMES for stage in range(shape.stages)}


def column(times: dict[Symbol, np.ndarray], number: int) -> Times:
    return {symbol: int(values[number]) for symbol, values in times.items()}


def total(times: Times, duration: Duration) -> int:
    return sum(times[symbol] for symbol in duration)


def all_path_lengths(graph: Graph, times: Times, node: int) -> int:
    """The longest path to a node, by going back from it, with what is known of earlier nodes kept."""
    known: dict[int, int] = {}

    def longest(index: int) -> int:
        if index not in known:
            earlier, duration, _ = graph.nodes[index]
            known[index] = max((longest(other) for other in earlier), default=0) + total(times, duration)
        return known[index]

    for index in range(node):
        longest(index)
    return longest(node)


@settings(max_examples=150, deadline=None)
@given(shapes(), st.integers(0, 10**6), st.sampled_from([1, 3, FEW_COLUMNS + 1]))
def test_arrays_hold_the_ends_of_whole_numbers(shape: Shape, seed: int, columns: int) -> None:
    graph, times = recorded(shape), random_times(shape, seed, columns)
    found = graph.ends_of_columns(lambda duration: sum((times[symbol] for symbol in duration), np.zeros(columns, np.int64)))
    assert found.shape == (len(graph.nodes), columns)
    for number in {0, columns - 1}:
        own = column(times, number)
        assert found[:, number].tolist() == graph.ends_ns(lambda duration: total(own, duration))  # noqa: B023


@settings(max_examples=150, deadline=None)
@given(shapes(), st.integers(0, 10**6), st.booleans())
def test_the_longest_path_is_as_long_as_its_end_and_its_turns_lead_along_it(shape: Shape, seed: int, last: bool) -> None:
    graph, times = recorded(shape), column(random_times(shape, seed), 0)
    ends = graph.ends_ns(lambda duration: total(times, duration))
    for end in graph.last:
        path, turns = graph.longest_path(ends, end, last)
        assert (
            sum(total(times, graph.nodes[node].duration) for node in path) == ends[end] == all_path_lengths(graph, times, end)
        )
        node, followed = end, iter(turns)
        for expected in path:
            assert node == expected
            earlier = graph.nodes[node].earlier
            node = earlier[next(followed)] if len(earlier) > 1 else earlier[0] if earlier else -1
        assert node == -1 and next(followed, None) is None


@settings(max_examples=100, deadline=None)
@given(shapes(), st.integers(0, 10**6))
def test_rows_of_linear_models_hold_with_the_simulated_ends(shape: Shape, seed: int) -> None:
    """Each variable at the largest of its sums gives the ends of all devices."""
    graph, times = recorded(shape), column(random_times(shape, seed), 0)
    rows, variables = end_time_rows(graph, lambda duration: duration), list[int]()

    def value(moment: Sum[Symbol]) -> int:
        start = 0 if moment.start is None else variables[moment.start]
        return start + sum(count * times[symbol] for symbol, count in moment.times)

    for sums in rows.rows:
        assert len(sums) > 1
        variables.append(max(map(value, sums)))
    ends = graph.ends_ns(lambda duration: total(times, duration))
    assert [value(moment) for moment in rows.ends] == [ends[index] for index in graph.last]


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 6), st.integers(1, 12), st.integers(0, 10**6))
def test_every_pass_of_1f1b_ends_as_by_the_recurrences(stages: int, micro_batches: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    forward, backward, moved = (tuple(rng.integers(0, 50, size).tolist()) for size in (stages, stages, stages - 1))
    times = {("message_forward_ns", x): cut for x, cut in enumerate((0, *moved))}
    times |= {("message_backward_ns", x): cut for x, cut in enumerate((*moved, 0))}
    for x in range(stages):
        times |= {("forward_ns", x): forward[x], ("backward_ns", x): backward[x], ("last_ns", x): 0}
    graph, expected = recorded(Shape("1f1b", stages, micro_batches)), pass_ends(Work(forward, backward, moved), micro_batches)
    for node, end in zip(graph.nodes, graph.ends_ns(lambda duration: total(times, duration)), strict=True):
        assert node.task is not None
        by_stage = expected.forward if node.task.kind == "forward" else expected.backward
        assert end == by_stage[node.task.stage][node.task.micro_batch]


@pytest.mark.parametrize("messages", ["received", "parallel"])
def test_a_message_takes_the_time_of_the_receiver_or_travels_in_parallel(messages: str) -> None:
    """Two stages, two micro-batches: passes of 10 and 20 ns, messages of 3 ns. Stage 1 begins at 13 ns; stage 0 has sent the
    second micro-batch at 20 ns, so with messages in parallel it is there at 23 ns, before the first backward pass has ended."""
    graph = recorded(Shape("1f1b", 2, 2, messages=messages))  # type: ignore[arg-type]
    times = {"forward_ns": 10, "backward_ns": 20, "message_forward_ns": 3, "message_backward_ns": 3}
    ends_ns = graph.ends_ns(
        lambda duration: sum(
            times.get(name, 0)
            for name, x in duration
            if (name, x) not in (("message_forward_ns", 0), ("message_backward_ns", 1))
        )
    )
    stage_1 = [end for node, end in zip(graph.nodes, ends_ns, strict=True) if node.task is not None and node.task.stage == 1]
    assert stage_1 == ([23, 43, 56, 76] if messages == "received" else [23, 43, 53, 73])
