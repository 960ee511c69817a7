"""Step against memory of the joint problem: proven, falling, and drawn."""

from __future__ import annotations

import json
from pathlib import Path

from trainplan.profiling.models.model import load_model

import trainplan as tp
from tests.helpers.calls import call
from tests.helpers.instances import random_instance
from trainplan.pictures.palette import BEST, series
from trainplan.planning.memory_frontier import memory_limits

MODEL = load_model("gpt2", 64, "float32").with_fields(
    n_embd=128, n_head=4, n_inner=512, n_positions=64, vocab_size=1009, n_layer=4
)


def test_a_frontier_of_the_joint_problem_is_proven_and_falls() -> None:
    instance = tp.build("joint", model=MODEL, cluster="rtx-titan-8", batch=16)
    limits = [size + 7 for size in memory_limits(instance, 3)]
    for gap in (0.0, 0.05):
        points = tp.frontier(instance, limits, ["exact"], gap=gap)
        steps = [point.result.objective for point in points]
        bounds = [point.result.bound for point in points]
        assert [point.memory_bytes for point in points] == limits
        assert all(point.result.status == "optimal" for point in points)
        assert steps == sorted(steps, reverse=True) and bounds == sorted(bounds, reverse=True)  # type: ignore[type-var]
        for point, limit in zip(points, limits, strict=True):
            alone = tp.solve(instance.with_memory(limit), gap=gap)
            assert alone.bound is not None and point.result.bound >= alone.bound  # type: ignore[operator]
            assert point.result.objective <= alone.objective  # type: ignore[operator]
            checked = tp.check(instance.with_memory(limit), point.result)
            assert checked.violations == () and checked.objective == point.result.objective  # type: ignore[union-attr]
    assert tp.frontier(instance, [1000, *limits[:1]], ["exact"])[0].result.status == "infeasible"


def test_the_command_draws_a_frontier(tmp_path: Path) -> None:
    path, picture = tmp_path / "instance.json", tmp_path / "f.png"
    path.write_text(json.dumps(tp.build("joint", model=MODEL, cluster="cpu-4", batch=8).to_dict()))
    words = ["--method", "exact", "--from", "16MB", "--to", "64MB", "--points", "3", "--picture", picture]
    done = call("frontier", path, *words, "--json")
    assert done.returncode == 0, done.stderr
    points = json.loads(done.stdout)
    assert [point["memory_bytes"] for point in points] == [16 * 10**6, 40 * 10**6, 64 * 10**6]
    assert picture.read_bytes().startswith(b"\x89PNG")
    shown = call("frontier", path, *words[:6], "--points", "3").stdout
    assert "lower bound" in shown and shown.count("decomposition") == 3
    for wrong, reported in ((["--from", "1GiB"], "--to are not both given"), (["--points", "1"], "--points is 1")):
        refused = call("frontier", path, *wrong)
        assert refused.returncode == 2 and reported in refused.stderr


def test_what_is_proven_alone_has_the_strongest_colour() -> None:
    instance = random_instance(3)
    points = tp.frontier(instance, [instance.memory_bytes, 2 * instance.memory_bytes], ["exact", "galvatron-dp"])
    colours = {line.get_label(): line.get_color() for line in points.picture().axes[0].lines}
    assert [label for label, colour in colours.items() if colour == BEST] == ["label-setting (proven)"]
    assert len(set(colours.values())) == 2
    lines = [(series(index)["color"], series(index)["marker"]) for index in range(24)]
    assert len(set(lines)) == 24 and all(colour != BEST for colour, _ in lines)
