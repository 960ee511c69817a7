"""Pictures of placements show every device once, each stage's and pipeline's figures, and what does not fit."""

import re
from dataclasses import replace
from importlib.machinery import ModuleSpec
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from trainplan.formulations.cluster_strategy.instance import Degrees, Instance, Kind, LayerTable, Shard
from trainplan.formulations.cluster_strategy.problem import Solution, evaluate, solution_dict
from trainplan.profiling.base.errors import MissingExtra
from trainplan.profiling.base.quantities import format_time
from trainplan.profiling.clusters.network import Network

import trainplan as tp
from tests.helpers.refusals import refused
from trainplan import pictures
from trainplan.pictures import placement as placements
from trainplan.pictures.placement import draw_placement, draw_placements

FAST, SLOW = Kind("Fast GPU", 2**34), Kind("Slow GPU", 2**33)
MIXED = Solution(Degrees(4, 2, 2, 1), (*range(8, 16), *range(8)), (2, 5, 6), (5, 3))


def instance_of(nodes: int, per_node: int, tmp: int, layers: int = 8, batch: int = 8) -> Instance:
    """Equal layers on nodes of a slow kind (the last one) and a fast kind (the others), a slow link between nodes."""
    devices = nodes * per_node
    islands = [{"devices": size, "bandwidth_bytes_per_s": rate} for size, rate in ((per_node, 2e10), (devices, 1e9))]

    def all_layers(value: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.full(layers, value, np.int64)

    return Instance(
        batch=batch,
        layer_names=tuple(f"block{layer}" for layer in range(layers)),
        kinds=(FAST, SLOW),
        device_kinds=(0,) * (devices - per_node) + (1,) * per_node,
        network=Network.model_validate({"islands": islands}),
        reductions=all_layers(4),
        reduced_bytes=all_layers(10**6),
        boundary_bytes=all_layers(10**6)[1:],
        shards={tmp: Shard(all_layers(10**8), all_layers(2**30))},
        tables={
            (tmp, 1): LayerTable(np.stack([all_layers(10**6), all_layers(3 * 10**6)]), all_layers(2**26), all_layers(2**20))
        },
        uneven_shares=True,
    )


def texts(figure: Any) -> list[str]:
    figure.draw_without_rendering()
    found = [text for artist in figure.findobj() if hasattr(artist, "get_text") for text in [artist.get_text()]]
    return [text for text in found if text]


def with_gid(figure: Any, start: str) -> list[Any]:
    return [artist for artist in figure.findobj() if (artist.get_gid() or "").startswith(start)]


def axes_by_label(figure: Any, label: str) -> Any:
    return next(axes for axes in figure.axes if axes.get_xlabel().startswith(label))


def test_every_device_has_one_square_with_its_rank() -> None:
    figure = draw_placement(instance_of(4, 4, tmp=2), MIXED)
    squares = with_gid(figure, "device ")
    assert sorted(square.get_gid() for square in squares) == sorted(f"device {device}" for device in range(16))
    assert len({square.get_xy() for square in squares}) == 16
    cluster = squares[0].axes
    indices = {text.get_position(): text.get_text() for text in cluster.texts}
    for square in squares:
        rank = MIXED.placement.index(int(square.get_gid().split()[1]))
        x, y = square.get_center()
        inside = [text for (u, v), text in indices.items() if text and abs(u - x) < 0.4 and abs(v - y) < 0.4]
        assert sorted(inside) == sorted([f"S{rank // 4}", f"P{rank // 2 % 2} T{rank % 2}"])
    colours = {to_hex(square.get_facecolor()) for square in squares}
    assert len(colours) == 4


def test_boxes_name_their_devices_and_arrows_follow_each_pipeline() -> None:
    figure = draw_placement(instance_of(4, 4, tmp=2), MIXED)
    for name in ("0-3: Fast GPU", "4-7: Fast GPU", "8-11: Fast GPU", "12-15: Slow GPU"):
        assert texts(figure).count(name) == 1
    for pipeline in range(2):
        assert len(with_gid(figure, f"pipeline {pipeline}")) == 3


def test_the_heading_is_what_evaluate_says() -> None:
    instance = instance_of(4, 4, tmp=2)
    found = evaluate(instance, MIXED)
    heading = draw_placement(instance, solution_dict(MIXED), title="The plan").get_suptitle()
    parts = [format_time(time) for time in (found.time_ns, max(found.pipelines_ns), found.sync_ns)]
    assert heading.startswith("The plan\npp 4, dp 2, tmp 2, mbs 1, shares 5, 3, ")
    assert re.findall(r"[\d.]+ (?:s|ms|us)\b", heading.splitlines()[2]) == parts
    assert "does not fit" not in heading


def test_bars_of_stages_are_those_of_evaluate() -> None:
    instance = instance_of(4, 4, tmp=2)
    figure, stages = draw_placement(instance, MIXED), evaluate(instance, MIXED).stages
    time = axes_by_label(figure, "a micro-batch")
    widths = [bar.get_width() for bar in time.patches]
    wanted = [stage.time_ns / 1e6 for stage in stages] + [stage.transfer_ns / 1e6 for stage in stages]
    assert widths == pytest.approx(wanted)
    sync = axes_by_label(figure, "gradients")
    assert [bar.get_width() for bar in sync.patches] == pytest.approx([stage.sync_ns / 1e6 for stage in stages])
    memory = axes_by_label(figure, "memory")
    assert [bar.get_width() for bar in memory.patches] == pytest.approx([stage.peak_bytes / 2**30 for stage in stages])
    assert [label.get_text() for label in time.get_yticklabels()] == ["S0: 0-1 (2)", "S1: 2-4 (3)", "S2: 5", "S3: 6-7 (2)"]


def test_what_does_not_fit_is_red() -> None:
    instance = instance_of(4, 4, tmp=2)
    small = replace(instance, kinds=(replace(FAST, memory_bytes=2**31), SLOW), within_memory=False)
    figure, stages = draw_placement(small, MIXED), evaluate(small, MIXED).stages
    over = [stage.peak_bytes > stage.limit_bytes for stage in stages]
    assert any(over) and not all(over)
    bars = axes_by_label(figure, "memory").patches
    assert [to_hex(bar.get_facecolor()) == placements.OVER for bar in bars] == over
    assert sum(" of 2 GiB" in text for text in texts(figure)) == sum(over)
    assert "does not fit" in figure.get_suptitle()


def test_pipelines_that_are_alike_are_drawn_once() -> None:
    instance = instance_of(4, 4, tmp=1)
    alike = Solution(Degrees(1, 16, 1, 1), tuple(range(16)), (), (1,) * 16)
    figure = draw_placement(replace(instance, batch=16), alike)
    names = [label.get_text() for label in axes_by_label(figure, "ms").get_yticklabels()]
    assert names == ["P12-15", "P0-11"]
    assert not with_gid(figure, "pipeline ")


def test_one_micro_batch_takes_the_sum_of_its_stages_and_transfers() -> None:
    instance = instance_of(4, 4, tmp=2)
    figure = draw_placement(instance, replace(MIXED, shares=(4, 4)))
    once = evaluate(replace(instance, batch=2), replace(MIXED, shares=(1, 1)))
    bars = axes_by_label(figure, "ms").patches
    assert max(bar.get_x() + bar.get_width() for bar in bars) == pytest.approx(max(once.pipelines_ns) / 1e6)


def test_a_large_cluster_is_summarised_by_node() -> None:
    instance = instance_of(512, 8, tmp=8, layers=16, batch=256)
    solution = Solution(Degrees(16, 32, 8, 1), tuple(range(4096)), tuple(range(1, 16)), (8,) * 32)
    figure = draw_placement(instance, solution)
    figure.draw_without_rendering()
    assert len(with_gid(figure, "devices from")) == 512
    assert not with_gid(figure, "device ") and max(figure.get_size_inches()) < 25
    assert len(figure.findobj()) < 20_000


def test_devices_that_are_alike_to_none_stand_together() -> None:
    rates = [[1e9 * (1 + abs(a - b)) for b in range(4)] for a in range(4)]
    instance = replace(instance_of(1, 4, tmp=1), network=Network.model_validate({"matrix": {"bandwidth_bytes_per_s": rates}}))
    assert len(set(instance.classes.tolist())) > 2
    figure = draw_placement(instance, Solution(Degrees(4, 1, 1, 1), (2, 0, 3, 1), (2, 4, 6), (8,)))
    assert "0-3: Slow GPU" in texts(figure) and len(with_gid(figure, "device ")) == 4


def test_several_placements_stand_side_by_side() -> None:
    instance = instance_of(4, 4, tmp=2)
    other = replace(MIXED, placement=tuple(range(16)))
    figure = draw_placements(instance, {"here": MIXED, "there": other})
    assert len(with_gid(figure, "device ")) == 32
    for axes, name, solution in zip(figure.axes, ("here", "there"), (MIXED, other), strict=True):
        assert axes.get_title().startswith(f"{name}: {format_time(evaluate(instance, solution).time_ns)}\n")
    with refused("", fix="name"):
        draw_placements(instance, {})


def test_a_solution_of_another_instance_is_refused() -> None:
    with refused("", problem=("cluster-strategy", "4 x 2 x 2", 8)):
        draw_placement(instance_of(2, 4, tmp=2), MIXED)


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> ModuleSpec | None:
        return None

    monkeypatch.setattr(pictures, "find_spec", missing)
    with pytest.raises(MissingExtra, match=r"trainplan\[plot\]"):
        tp.draw_placement(instance_of(4, 4, tmp=2), MIXED)
