"""Galvatron-BMW, Table II, pure strategies: out of memory or the largest batch, from shapes alone.

Memory of a device = model states (16 bytes a parameter) + activations + one constant for everything else (CUDA context, the
allocator's rounding, communication buffers), the same for all models, strategies and budgets; budgets are GiB. The table's
batch sizes are those of the largest throughput in steps of 8, which for pure strategies are the largest that fit.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from trainplan.profiling.models.model import Model, load_model

from tests.helpers.papers.galvatron import TABLE_I, TABLE_II_MODELS, TABLE_II_PURE

GIB = 2**30
OVERHEAD_BYTES = int(1.4 * GIB)
STATE_BYTES = 16
DEVICES = 8

Miss = tuple[str, int, int, int]


def states(model: Model, ranks: int, tp: int = 1) -> int:
    """Model states of one device. Tied matrices once."""
    counts = (unit.sublayer.parameter_count(tp if unit.sublayer.splits_into(tp) else 1) for unit in model.units)
    return STATE_BYTES * (sum(counts) - model.tied_elements // tp) // ranks


def activations(model: Model, rows: int, tp: int) -> int:
    """Bytes that forward leaves for backward on one of `tp` devices; a part that cannot be split is whole on each."""
    found = 0
    for unit in model.units:
        part = unit.sublayer
        found += part.input_bytes(rows) + part.kept_bytes(rows, tp if part.splits_into(tp) else 1)
    return found


def fullest_stage(model: Model, samples: int) -> int:
    """GPipe over eight stages of equally many layers: all samples' activations are there at once."""
    most = 0
    for stage in range(DEVICES):
        first = stage * model.layers // DEVICES + 1 if stage else 0
        last = (stage + 1) * model.layers // DEVICES + (stage == DEVICES - 1)
        parts = [unit.sublayer for unit in model.units if first <= unit.layer <= last]
        held = sum(STATE_BYTES * p.parameter_count() + p.input_bytes(samples) + p.kept_bytes(samples, 1) for p in parts)
        most = max(most, held)
    return most


NEEDS: dict[str, Callable[[Model, int], int]] = {
    "dp": lambda model, batch: states(model, 1) + model.activation_bytes(batch // DEVICES),
    "sdp": lambda model, batch: states(model, DEVICES) + model.activation_bytes(batch // DEVICES),
    "tp": lambda model, batch: states(model, 1, DEVICES) + activations(model, batch, DEVICES),
    "pp": fullest_stage,
}


def largest_batch(needed: Callable[[int], int], memory_bytes: int) -> int:
    batch = 0
    while needed(batch + DEVICES) + OVERHEAD_BYTES <= memory_bytes:
        batch += DEVICES
    return batch


def compared(strategy: str) -> list[Miss]:
    """(model, GiB, batch in the table, batch here) of every cell that differs."""
    misses = []
    for memory, row in TABLE_II_PURE[strategy].items():
        for name, expected in zip(TABLE_II_MODELS, row, strict=True):
            model = load_model(name)
            found = largest_batch(lambda batch, model=model: NEEDS[strategy](model, batch), memory * GIB)  # type: ignore[misc]
            if found != expected:
                misses.append((name, memory, expected, found))
    return misses


# Exact cells, and cells at most one step of 8 away, of 32.
AGREEMENT = {"dp": (30, 32), "tp": (23, 32), "sdp": (22, 27), "pp": (8, 23)}


@pytest.mark.parametrize("strategy", AGREEMENT)
def test_table_ii_from_shapes(strategy: str) -> None:
    """Every miss, with its cause:

    dp: ViT-Huge-32 at 12 GiB has room for 8 samples here and 16 in the table, with 86 MiB missing; Swin-Huge-32 at 20 GiB the
    other way round, for our count of Swin's activations is 2 % below Table I's. No single constant gives both.
    tp: all nine are one step. With 1.2 GiB it is 26 cells: the constant that fits data parallelism is a little large here.
    sdp: ten cells, all too large here: FairScale's gathered parameters and unsharded gradients are not counted.
    pp: equal layers a stage stand for a partition that the paper does not give (its code balances the memory of Swin's unlike
    layers, hence 8 to 48 samples too few here); elsewhere one step too large, or two: GPipe's buffers at cuts are not counted.
    """
    misses = compared(strategy)
    near = sum(abs(found - expected) <= DEVICES for _, _, expected, found in misses)
    print(f"{strategy}: {32 - len(misses)} of 32 cells, {32 - len(misses) + near} within one step of {DEVICES}")
    for name, memory, expected, found in misses:
        print(f"  {name} at {memory} GiB: {expected} in the table, {found} here")
    assert (32 - len(misses), 32 - len(misses) + near) == AGREEMENT[strategy]


def test_data_parallelism_with_the_papers_own_sizes() -> None:
    """Table I's parameters and activations in place of ours: 31 of 32 cells with 1.3 GiB, from 30 with 1.2 to 1.5."""
    exact = {}
    for tenths in range(12, 16):
        count = 0
        for memory, row in TABLE_II_PURE["dp"].items():
            for name, expected in zip(TABLE_II_MODELS, row, strict=True):
                millions, megabytes = TABLE_I[name]
                free = memory * GIB - STATE_BYTES * millions * 1e6 - tenths / 10 * GIB
                count += max(0, int(free // (megabytes * 2**20))) * DEVICES == expected
        exact[tenths / 10] = count
    print(f"exact cells by overhead in GiB: {exact}")
    assert exact == {1.2: 30, 1.3: 31, 1.4: 30, 1.5: 30}
