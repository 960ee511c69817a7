"""Traces hold every pass once, nothing overlaps on a row, arrows lead from slice to slice; pictures show the same passes."""

from __future__ import annotations

import json
import random
from importlib.machinery import ModuleSpec
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from trainplan.formulations.schedule.critical_path import critical_path
from trainplan.formulations.schedule.orders import gpipe, interleaved, most_sliced, one_f_one_b
from trainplan.formulations.schedule.simulate import Timeline, Work, simulate
from trainplan.profiling.base.errors import MissingExtra
from trainplan.profiling.base.quantities import format_time

import trainplan as tp
from tests.helpers.partition_instances import random_work
from tests.helpers.refusals import refused
from trainplan import pictures
from trainplan.pictures import timeline as timelines
from trainplan.pictures.timeline import draw_timeline, draw_timelines
from trainplan.prediction.chrome_trace import chrome_trace


def equal_stages(p: int, transfer: int = 10) -> Work:
    return Work((100,) * p, (200,) * p, (transfer,) * (p - 1))


SLICED = simulate(equal_stages(4), one_f_one_b(4, 8, 2))
CHUNKED = simulate(equal_stages(8), interleaved(4, 2, 8))
WHOLE = simulate(equal_stages(4), one_f_one_b(4, 8))


def random_timeline(seed: int) -> Timeline:
    rng = random.Random(seed)
    work, m = random_work(rng), rng.randint(1, 9)
    if work.stages % 2 == 0 and rng.random() < 0.4:
        devices = work.stages // 2
        return simulate(work, interleaved(devices, 2, devices * rng.randint(1, 3)))
    if rng.random() < 0.3:
        return simulate(work, gpipe(work.stages, m))
    return simulate(work, one_f_one_b(work.stages, m, rng.randint(0, most_sliced(work.stages, m))))


def passes(timeline: Timeline) -> int:
    return sum(map(len, timeline.devices))


def of_phase(trace: dict[str, Any], phase: str) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == phase]


def nanoseconds(us: float) -> int:
    """As a reader has it that cuts off, which must be what one has that rounds."""
    assert int(us * 1000) == round(us * 1000)
    return int(us * 1000)


@pytest.mark.parametrize("seed", range(150))
def test_traces_hold_what_was_simulated(seed: int) -> None:
    timeline = random_timeline(seed)
    trace = json.loads(json.dumps(chrome_trace(timeline)))
    slices = [(e["tid"], nanoseconds(e["ts"]), nanoseconds(e["ts"]) + nanoseconds(e["dur"]), e) for e in of_phase(trace, "X")]
    rows: dict[int, list[tuple[int, int]]] = {}
    for tid, start, end, _ in slices:
        rows.setdefault(tid, []).append((start, end))
    for own in rows.values():
        assert all(before[1] <= after[0] for before, after in pairwise(sorted(own)))
    computed = sorted((start, end, e["args"]["stage"]) for _, start, end, e in slices if e["cat"] != "transfer")
    events = [event for own in timeline.devices for event in own]
    assert computed == sorted((event.start_ns, event.end_ns, event.task.stage) for event in events)
    received = sorted((start, end) for _, start, end, e in slices if e["cat"] == "transfer")
    assert received == sorted((event.ready_ns, event.start_ns) for event in events if event.start_ns > event.ready_ns)
    starts, ends = ({e["id"]: e for e in of_phase(trace, phase)} for phase in "sf")
    assert starts.keys() == ends.keys()
    for number, arrow in starts.items():
        assert (arrow["name"], arrow["cat"]) == (ends[number]["name"], ends[number]["cat"])
        for end in (arrow, ends[number]):
            at = nanoseconds(end["ts"])
            assert any(first <= at < last for first, last in rows[end["tid"]])
        assert nanoseconds(arrow["ts"]) < nanoseconds(ends[number]["ts"])


def test_a_small_trace_word_for_word() -> None:
    trace = chrome_trace(simulate(Work((1001, 2000), (3000, 4000), (500,)), one_f_one_b(2, 1)), name="two", stages=["a", "b"])
    found = [(e["name"], e["tid"], nanoseconds(e["ts"]), nanoseconds(e["dur"])) for e in of_phase(trace, "X")]
    assert found == [
        ("F0", 1, 0, 1001),
        ("B0", 1, 8001, 3000),
        ("gradient 0", 2, 7501, 500),
        ("F0", 11, 1501, 2000),
        ("activation 0", 12, 1001, 500),
        ("B0", 11, 3501, 4000),
    ]
    assert [e["args"]["holds"] for e in of_phase(trace, "X") if "holds" in e["args"]] == ["a", "a", "b", "b"]
    arrows = [(e["ph"], e["tid"], nanoseconds(e["ts"])) for e in trace["traceEvents"] if e["ph"] in "sf"]
    assert sorted(arrows) == [("f", 2, 7501), ("f", 12, 1001), ("s", 1, 1000), ("s", 11, 7500)]
    named = {e["tid"]: e["args"]["name"] for e in of_phase(trace, "M") if e["name"] == "thread_name"}
    assert named == {1: "device 0", 2: "device 0 receives", 11: "device 1", 12: "device 1 receives"}
    assert [e["args"]["name"] for e in of_phase(trace, "M") if e["name"] == "process_name"] == ["two"]
    assert trace["otherData"]["iteration_ns"] == 11001


def test_traces_name_halves_and_chunks() -> None:
    names = {e["name"] for e in of_phase(chrome_trace(SLICED), "X")}
    assert {"F0a", "F0b", "F1a", "F2", "B0"} <= names and "F0" not in names
    names = {e["name"] for e in of_phase(chrome_trace(CHUNKED), "X")}
    assert {"F0.0", "F0.1", "B7.1"} <= names and "F0" not in names
    marked = [e for e in of_phase(chrome_trace(SLICED), "X") if e["args"].get("critical")]
    assert len(marked) == len(critical_path(SLICED).path)


def boxes(figure: Any, gid: str) -> list[Any]:
    found = [artist for artist in figure.findobj() if artist.get_gid() == gid]
    return [path for collection in found for path in collection.get_paths()]


def numbers(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.findobj() if (text.get_gid() or "").startswith("number ")]


@pytest.mark.parametrize("timeline", [WHOLE, SLICED, CHUNKED], ids=["1f1b", "sliced", "interleaved"])
def test_pictures_show_every_pass_once(timeline: Timeline) -> None:
    figure = draw_timeline(timeline, title="a pipeline")
    figure.draw_without_rendering()
    events = [event for own in timeline.devices for event in own]
    for kind in ("forward", "backward"):
        assert len(boxes(figure, kind)) == sum(event.task.kind == kind for event in events)
    drawn = sorted(tuple(path.get_extents().intervalx) for kind in ("forward", "backward") for path in boxes(figure, kind))
    wanted = sorted((event.start_ns / 1e3, event.end_ns / 1e3) for event in events)
    assert np.array(drawn) == pytest.approx(np.array(wanted))
    assert len(boxes(figure, "messages")) == sum(event.start_ns > event.ready_ns for event in events)
    assert len(boxes(figure, "critical path")) == len(critical_path(timeline).path)
    assert len(numbers(figure)) == passes(timeline), "there is space for every number"
    title = figure.axes[0].get_title(loc="left")
    assert title.startswith("a pipeline\n")
    for reported in (timeline.time_ns, timeline.startup_ns):
        assert format_time(reported) in title
    assert f"bubble {timeline.bubble:.1%}" in title


def test_numbers_are_those_of_micro_batches() -> None:
    assert sorted(numbers(draw_timeline(WHOLE))) == sorted(8 * [str(n) for n in range(8)])
    assert {"0a", "0b", "1a", "7"} <= set(numbers(draw_timeline(SLICED)))
    assert {"0.0", "7.1"} <= set(numbers(draw_timeline(CHUNKED)))
    legend = draw_timeline(CHUNKED).legends[0]
    assert "after the dot" in legend.get_title().get_text()


def test_forward_and_backward_differ_in_colour() -> None:
    figure = draw_timeline(CHUNKED)
    colours = {
        kind: {to_hex(c) for a in figure.findobj() if a.get_gid() == kind for c in a.get_facecolor()}
        for kind in ("forward", "backward")
    }
    assert colours["forward"] == {timelines.FORWARD, timelines.LATER_FORWARD}
    assert colours["backward"] == {timelines.BACKWARD, timelines.LATER_BACKWARD}


def test_sizes_are_bounded() -> None:
    small = draw_timeline(simulate(equal_stages(2), one_f_one_b(2, 4)))
    middle = draw_timeline(simulate(equal_stages(16), one_f_one_b(16, 32)))
    large = draw_timeline(simulate(equal_stages(64), one_f_one_b(64, 128)))
    assert len(numbers(small)) == 16 and len(numbers(middle)) == 2 * 16 * 32 and not numbers(large)
    for figure in (small, middle, large):
        assert all(size <= most for size, most in zip(figure.get_size_inches(), timelines.LARGEST, strict=True))
    assert len(boxes(large, "forward")) == 64 * 128
    assert len(large.findobj()) < 2000, "bars are drawn together"


def test_several_timelines_share_one_axis() -> None:
    figure = draw_timelines({"1F1B": WHOLE, "sliced": SLICED, "interleaved": CHUNKED})
    assert [axes.get_title(loc="left").splitlines()[0] for axes in figure.axes] == ["1F1B", "sliced", "interleaved"]
    assert len({axes.get_xlim() for axes in figure.axes}) == 1
    assert figure.axes[0].get_xlim()[1] == pytest.approx(max(t.time_ns for t in (WHOLE, SLICED, CHUNKED)) / 1e3)
    with refused("", fix="name"):
        draw_timelines({})


def test_stages_are_named_next_to_their_devices() -> None:
    figure = draw_timeline(WHOLE, stages=["embedding .. block1", "block2", "block3", "head"])
    figure.draw_without_rendering()
    reported = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert reported == ["0: embedding .. block1", "1: block2", "2: block3", "3: head"]


def test_a_step_of_no_time_is_drawn() -> None:
    figure = draw_timeline(simulate(Work((0, 0), (0, 0), (0,)), one_f_one_b(2, 2)))
    figure.draw_without_rendering()
    assert not boxes(figure, "forward") and "iteration 0 ns" in figure.axes[0].get_title(loc="left")


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> ModuleSpec | None:
        return None

    monkeypatch.setattr(pictures, "find_spec", absent)
    for draw in (lambda: tp.draw_timeline(WHOLE), lambda: tp.draw_timelines({"one": WHOLE})):
        with pytest.raises(MissingExtra, match=r"trainplan\[plot\]"):
            draw()
