"""The orders of passes: written out by hand, by their definitions, and as torch has them."""

from collections.abc import Iterator
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
from trainplan.formulations.schedule.orders import (
    Pass,
    gpipe,
    in_flight,
    interleaved,
    is_sliced,
    most_in_flight,
    most_sliced,
    one_f_one_b,
)


def plain(order: list[Pass]) -> str:
    """Such as F0a F0b F1 B0."""
    halves = {None: "", 0: "a", 1: "b"}
    return " ".join(f"{one.kind[0].upper()}{one.micro_batch}{halves[one.half]}" for one in order)


def staged(order: list[Pass]) -> str:
    """Such as 0F0 2F0 2B0, the stage first."""
    return " ".join(f"{one.stage}{one.kind[0].upper()}{one.micro_batch}" for one in order)


WRITTEN: list[tuple[list[list[Pass]], list[str]]] = [
    (one_f_one_b(1, 3), ["F0 B0 F1 B1 F2 B2"]),
    (one_f_one_b(2, 4), ["F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"]),
    (one_f_one_b(4, 2), ["F0 F1 B0 B1", "F0 F1 B0 B1", "F0 F1 B0 B1", "F0 B0 F1 B1"]),
    (gpipe(2, 3), ["F0 F1 F2 B0 B1 B2"] * 2),
    (
        one_f_one_b(4, 4, sliced=1),
        [
            "F0a F0b F1 F2 F3 B0 B1 B2 B3",
            "F0a F0b F1 F2 B0 F3 B1 B2 B3",
            "F0a F0b F1 B0 F2 B1 F3 B2 B3",
            "F0a F0b B0 F1 B1 F2 B2 F3 B3",
        ],
    ),
    (
        one_f_one_b(4, 4, sliced=2),
        [
            "F0a F0b F1a F1b F2 F3 B0 B1 B2 B3",
            "F0a F0b F1a F1b F2 B0 F3 B1 B2 B3",
            "F0a F0b F1 B0 F2 B1 F3 B2 B3",
            "F0a F0b B0 F1 B1 F2 B2 F3 B3",
        ],
    ),
]


@pytest.mark.parametrize("orders, wanted", WRITTEN)
def test_orders_written_by_hand(orders: list[list[Pass]], wanted: list[str]) -> None:
    assert [plain(order) for order in orders] == wanted
    assert all(one.stage == device for device, order in enumerate(orders) for one in order)


def test_the_interleaved_order_written_by_hand() -> None:
    """Megatron-LM's, for two devices with two stages each."""
    assert [staged(order) for order in interleaved(2, 2, 4)] == [
        "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3",
        "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3",
    ]


def test_one_stage_on_each_device_is_interleaved_with_twice_the_warm_up() -> None:
    """Megatron-LM's interleaved schedule counts two passes for each device after, 1F1B one."""
    assert [plain(order) for order in interleaved(3, 1, 6)] == [
        "F0 F1 F2 F3 F4 B0 F5 B1 B2 B3 B4 B5",
        "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5",
        "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5",
    ]


def test_every_pass_is_there_once_and_what_is_held_is_bounded() -> None:
    for p, m in product(range(1, 7), range(1, 10)):
        for sliced in range(most_sliced(p, m) + 1):
            for x, order in enumerate(one_f_one_b(p, m, sliced)):
                whole = [one for one in order if one.half != 0]  # a sliced micro-batch counts with its second half
                assert sorted(whole) == sorted(order_once(m, x, sliced, p))
                assert [one.micro_batch for one in whole if one.kind == "forward"] == list(range(m))
                assert [one.micro_batch for one in whole if one.kind == "backward"] == list(range(m))
                assert in_flight(order) == min(m, p - x)
        assert [in_flight(order) for order in gpipe(p, m)] == [m] * p


def order_once(m: int, x: int, sliced: int, p: int) -> Iterator[Pass]:
    for q in range(m):
        yield Pass("forward", q, x, 1 if is_sliced(x, q, p, sliced) else None)
        yield Pass("backward", q, x)


def test_halves_come_in_pairs_in_the_warm_up_and_on_the_last_device() -> None:
    for p, m in product(range(2, 8), range(1, 16)):
        for sliced in range(most_sliced(p, m) + 1):
            for x, order in enumerate(one_f_one_b(p, m, sliced)):
                warm_up = [one.kind for one in order].index("backward") - (x < p - 1 and m > p - 1 - x)
                for index, one in enumerate(order):
                    if one.half == 0:
                        assert order[index + 1] == one._replace(half=1)
                        assert one.micro_batch < sliced
                        assert index < warm_up
                halved = {one.micro_batch for one in order if one.half is not None}
                assert halved == (set(range(min(sliced, p - 1 - x))) if x < p - 1 else set(range(min(sliced, 1))))


def test_more_slices_than_the_warm_up_has_change_nothing() -> None:
    for p, m in product(range(2, 8), range(1, 12)):
        most = most_sliced(p, m)
        assert most == min(m, p - 1)
        assert one_f_one_b(p, m, most) == one_f_one_b(p, m, most + 3)
        assert one_f_one_b(p, m, most) != one_f_one_b(p, m, most - 1)
    assert most_sliced(1, 9) == 0


@pytest.mark.parametrize("devices, chunks", [(1, 1), (2, 1), (2, 2), (2, 4), (3, 3), (4, 2)])
def test_interleaved_runs_every_stage_on_its_device(devices: int, chunks: int) -> None:
    for m in (devices, 2 * devices, 5 * devices):
        for x, order in enumerate(interleaved(devices, chunks, m)):
            own = [chunk * devices + x for chunk in range(chunks)]
            for kind in ("forward", "backward"):
                for stage in own:
                    found = [one.micro_batch for one in order if (one.kind, one.stage) == (kind, stage)]
                    assert found == list(range(m))
            assert len(order) == 2 * m * chunks
            assert in_flight(order) == min(m * chunks, 2 * (devices - x - 1) + (chunks - 1) * devices + 1)


def torchs(actions: list[Any]) -> str:
    return " ".join(str(one) for one in actions if one is not None and one.is_compute_op)


@pytest.mark.parametrize("p, v, m", [(4, 2, 8), (3, 3, 6), (2, 2, 4), (4, 3, 12), (4, 2, 4), (2, 4, 2), (1, 2, 3), (5, 1, 10)])
def test_interleaved_is_torchs_order(p: int, v: int, m: int) -> None:
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    known = SimpleNamespace(n_local_stages=v, pp_group_size=p, microbatches_per_round=p, _n_microbatches=m)
    for x, order in enumerate(interleaved(p, v, m)):
        assert staged(order) == torchs(schedules.ScheduleInterleaved1F1B._calculate_single_rank_operations(known, x))


@pytest.mark.parametrize("p, m", [(2, 2), (2, 5), (4, 4), (4, 8), (6, 13)])
def test_1f1b_and_gpipe_are_torchs_order(p: int, m: int) -> None:
    """The orders are those of all devices but the last one under 1F1B, whose order torch 2.13 writes with micro-batches 1 to
    m."""
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    known = SimpleNamespace(_num_stages=p, _n_microbatches=m)
    for x, order in enumerate(gpipe(p, m)):
        assert staged(order) == torchs(schedules.ScheduleGPipe._get_pipeline_order(known)[x])
    for x, order in enumerate(one_f_one_b(p, m)[:-1]):
        assert staged(order) == torchs(schedules.Schedule1F1B._get_pipeline_order(known)[x])


def test_most_in_flight_is_that_of_the_orders() -> None:
    for stages, micro_batches in product(range(1, 7), range(1, 9)):
        for schedule, orders in (("1f1b", one_f_one_b(stages, micro_batches)), ("gpipe", gpipe(stages, micro_batches))):
            counts = [most_in_flight(schedule, stages, micro_batches, stage) for stage in range(stages)]
            assert counts == [in_flight(order) for order in orders], (schedule, stages, micro_batches)
