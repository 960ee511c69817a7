"""Galvatron-BMW's Tables II to V and Figure 4: our cells next to the printed ones. `pytest -s` shows every figure.

All cells are in study.json (`make study`); some are computed again here, so that a change shows.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from benchmarks.studies import galvatron_study
from tests.helpers.papers.tables import COLUMNS, FIGURE_4_BERT, PLANNERS, TABLE_IV
from tests.helpers.sizes import first_and_others

STUDY: dict[str, Any] = galvatron_study.load_study()


def test_printed_numbers_keep_the_papers_order() -> None:
    """Statements of the text about the tables hold for the numbers as read from the scan: a check of both."""
    for column in COLUMNS.values():
        for larger, smaller in galvatron_study.ORDER:
            above, below = column.printed[larger], column.printed[smaller]
            assert above is None or below is None or above.throughput >= below.throughput, (column.key, larger, smaller)


def test_devices_in_tf32() -> None:
    """One printed throughput is above what CUDA cores can do, and below what tensor cores can."""
    key, planner = galvatron_study.TF32_CELL
    needed = galvatron_study.least_flops_per_s(COLUMNS[key], planner)
    print(f"{COLUMNS[key]}, {planner}: {needed / 1e12:.1f}e12 operations a second on a device; 19.5e12 in fp32")
    assert 19.5e12 < needed < galvatron_study.TF32


RECOMPUTED = ("II rtx-titan-8 20 bert-huge-48", "III rtx-titan-16 8 bert-huge-48")


@pytest.mark.long
@pytest.mark.parametrize("key", first_and_others(list(RECOMPUTED)))
def test_stored_cells_are_those_of_today(key: str) -> None:
    column = COLUMNS[key]
    found = {name: galvatron_study.cell(column, galvatron_study.READINGS[name]) for name in PLANNERS}
    assert found == STUDY["columns"][key]["cells"], "run `make study`"


# At least: mean and least rank correlation of the columns. Exactly: cells in which both fit, only ours, only the paper's,
# neither; columns with the same winner.
AGREEMENT: dict[str, Any] = {
    "II": (0.89, 0.72, (214, 6, 2, 18), 23),
    "III": (0.93, 0.86, (237, 8, 0, 18), 23),
    "V": (0.88, 0.79, (23, 3, 3, 3), 3),
}


@pytest.mark.parametrize("table", ("II", "III", "V"))
def test_table(table: str) -> None:
    score = galvatron_study.score(STUDY, table)
    for key, column in COLUMNS.items():
        if column.table != table:
            continue
        cells = STUDY["columns"][key]["cells"]
        rank = score.correlations.get(key)
        print(f"\n{column}" + ("" if rank is None else f": rank correlation {rank:.2f}"))
        for name in PLANNERS:
            printed, ours = column.printed[name], cells[name]
            reported = "unreadable" if printed is None else f"{printed.throughput:8.2f} ({printed.batch})"
            note = "  calibrated, not scored" if galvatron_study.calibrated(column, name) else ""
            print(f"  {name:<22}{ours['throughput']:8.2f} ({ours['batch']:>4}) ours {reported:>16} printed{note}")
    ranks = [value for value in score.correlations.values() if not math.isnan(value)]
    same = sum(printed in ours for _, ours, printed in score.winners)
    agree = score.fits[True, True] + score.fits[False, False]
    throughput, batch = score.ratio(2), score.ratio(3)
    print(f"\nTable {table}: rank correlation {np.mean(ranks):.3f} in the mean, {min(ranks):.2f} to {max(ranks):.2f}")
    print(f"  the order of the rows alone would have {np.nanmean(list(score.row_order.values())):.3f}")
    print(f"  fits or not: {agree} of {score.cells} as printed; {score.fits}")
    ties = sum(len(ours) > 1 for _, ours, printed in score.winners if printed in ours)
    print(f"  same winner in {same} of {len(score.winners)} columns, in {ties} of them tied with another")
    print(f"  throughput over the printed: {throughput[0]:.2f} in the mean, typically a factor {throughput[1]:.2f} apart")
    print(f"  batch size over the printed: {batch[0]:.2f} in the mean, typically a factor {batch[1]:.2f} apart")
    mean, least, counts, winners = AGREEMENT[table]
    assert np.mean(ranks) >= mean
    assert min(ranks) >= least
    assert tuple(score.fits.values()) == counts
    assert same == winners


def test_gaps_of_base_and_bmw() -> None:
    """Never below the optimum of the same instance; the distance, at the batch size that the planner chose."""
    for name in ("galvatron-base", "galvatron-bmw"):
        found = [(STUDY["columns"][key]["gaps"][name], key) for key in STUDY["columns"] if STUDY["columns"][key]["gaps"][name]]
        gaps = [given["gap"] for given, _ in found]
        every = [given["gap_all_micro_batches"] for given, _ in found]
        worst = max(found, key=lambda pair: pair[0]["gap"])
        print(f"{name}: median {np.median(gaps):.2%}, worst {worst[0]['gap']:.2%} ({worst[1]}, batch {worst[0]['batch']})")
        print(f"  with every number of micro-batches: median {np.median(every):.2%}, worst {max(every):.2%}")
        assert all(given["gap_to_bound"] >= 0 for given, _ in found)


def test_exceptions_to_the_papers_order() -> None:
    """Every one has a cause by name; a larger space or a better schedule is never it."""
    count = sum(len(column["exceptions"]) for column in STUDY["columns"].values())
    print(f"{count} of {galvatron_study.comparable(STUDY)} pairs")
    for key, column in STUDY["columns"].items():
        for found in column["exceptions"]:
            print(f"{key}: {found['larger']} is {found['ratio']:.3f} of {found['smaller']}: {found['cause']}")
            assert found["cause"] != galvatron_study.UNEXPLAINED


ORDERED = (
    ("II rtx-titan-8 8 bert-huge-32", 8),
    ("II rtx-titan-8 20 vit-huge-48", 64),
    ("II rtx-titan-8 8 bert-huge-32", 144),
    ("II rtx-titan-8 16 t5-large-48", 16),
    ("III a100-16 8 t5-512-4-48", 48),
)


@pytest.mark.parametrize(("key", "batch"), first_and_others(list(ORDERED), 2))
def test_optima_are_ordered(key: str, batch: int) -> None:
    """At equal batch size and micro-batches: every method against its optimum, every space against those inside it."""
    assert list(galvatron_study.order_at(COLUMNS[key], batch)) == []


def test_readings_of_what_the_paper_leaves_open() -> None:
    """With 8 micro-batches, GPipe is nearer than 1F1B for Galvatron, DP+PP and DeepSpeed 3D: by batch sizes at 12 GiB."""
    apart = galvatron_study.reading_distances(STUDY)
    for reported, (batch, throughput) in apart.items():
        print(f"{reported:<52} batch size a factor {batch:.2f} from the printed, throughput {throughput:.2f}")
    for name in ("deepspeed-3d", "galvatron-dp-pp", "galvatron"):
        own = galvatron_study.READINGS[name].schedule
        assert own == "gpipe"
        assert apart[f"{name}, gpipe, m <= 8, micro-batch"][0] < apart[f"{name}, 1f1b, m <= 8, micro-batch"][0]


def test_table_iv() -> None:
    """Partitions and throughput of the memory-balanced and the time-balanced partition, and of Algorithm 2."""
    in_order, apart = 0, []
    for (memory, model), printed in TABLE_IV.items():
        ours = STUDY["table_iv"][f"{memory} {model}"]
        for name, cell in printed.items():
            mine = ours[name]
            print(
                f"{memory:>2} GiB {model:<13}{name:<13}{mine['throughput']:8.2f} ({mine['batch']:>3}) "
                f"{mine['partition']!s:<12} ours {cell.throughput:8.2f} ({cell.batch:>3}) {list(cell.partition)} printed"
            )
            if mine["stages"] == len(cell.partition):
                apart.append(sum(abs(a - b) for a, b in zip(mine["partition"], cell.partition, strict=True)) // 2)
        in_order += ours["bi-objective"]["throughput"] >= max(ours[name]["throughput"] for name in ("memory", "time"))
    print(f"Algorithm 2 is no slower than either partition in {in_order} of {len(TABLE_IV)} cells")
    print(f"partitions: {len(apart)} of 24 with as many stages, {apart.count(0)} equal, blocks apart {sorted(apart)}")
    assert in_order == 4
    assert (len(apart), apart.count(0)) == (21, 4)
    assert np.median(apart) <= 3


@pytest.mark.parametrize(("model", "batch"), (("bert-huge-48", 32), ("t5-512-4-48", 64)))
def test_figure_4(model: str, batch: int) -> None:
    """Throughput time >= optimal >= memory; balance degrees the other way round; the time-balanced one exceeds 16 GiB."""
    found = galvatron_study.figure_4(model, batch)
    for name, bar in found.items():
        printed = FIGURE_4_BERT.get(name) if model.startswith("bert") else None
        reported = f"   printed {list(printed[0])} {printed[1]:.3f} {printed[2]:.3f} {printed[3]:.2f}" if printed else ""
        print(f"{model} {name:<8} {bar['partition']} {bar['time']:.3f} {bar['memory']:.3f} {bar['throughput']:.2f}{reported}")
    time, best, memory = found["time"], found["optimal"], found["memory"]
    assert time["throughput"] > best["throughput"] > memory["throughput"]
    assert time["time"] > best["time"] > memory["time"]
    assert time["memory"] < best["memory"] < memory["memory"]
    assert best["fits"] and memory["fits"] and not time["fits"]
    if model.startswith("bert"):
        for name, bar in found.items():
            assert sum(abs(a - b) for a, b in zip(bar["partition"], FIGURE_4_BERT[name].partition, strict=True)) <= 6
            assert bar["memory"] == pytest.approx(FIGURE_4_BERT[name].memory, abs=0.03)


def test_ranks_and_correlation() -> None:
    assert galvatron_study.ranks([3.0, 1.0, 3.0]).tolist() == [1.5, 0.0, 1.5]
    assert galvatron_study.spearman([1, 2, 3], [10, 20, 30]) == pytest.approx(1)
    assert galvatron_study.spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert math.isnan(galvatron_study.spearman([0, 0], [1, 2]))
