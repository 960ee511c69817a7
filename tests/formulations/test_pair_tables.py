"""Tables of pairs of options in files: each form says the same, what is equal stands once, and what does not fit is named."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from trainplan.formulations.pair_tables import ClassTable, arrays_of, tables_in_file
from trainplan.profiling.base.files import LARGEST_FILE_BYTES, check_readable, json_text

import trainplan as tp
from tests.helpers.instances import paper_instance, random_dict
from tests.helpers.refusals import refused


def in_full(record: dict[str, Any]) -> dict[str, Any]:
    """A layer-strategies file as it was written before: every table and every layer's options in full."""
    layers = record["layers"]
    every = [
        {"name": layer["name"], "options": layers[layer.get("like", index)]["options"]} for index, layer in enumerate(layers)
    ]
    return {**record, "layers": every, "transitions_ns": [t.tolist() for t in tp.load(record).transitions_ns]}


def test_equal_tables_and_layers_stand_once_and_old_files_are_read() -> None:
    instance = paper_instance("bert-huge-48", takeaway3=False)
    record = instance.to_dict()
    assert [layer.get("like") for layer in record["layers"][2:5]] == [1, 1, 1]
    assert record["transitions_ns"][1:4] == [0, 0, 0] and set(record["transitions_ns"][0]) == {"before", "after", "costs_ns"}
    old = in_full(record)
    assert 20 * len(json.dumps(record)) < len(json.dumps(old))
    read, read_old = tp.load(record), tp.load(old)
    assert read.digest == read_old.digest == instance.digest and read_old.to_dict() == record
    assert read.transitions_ns[0] is read.transitions_ns[1] and read.time_ns[2] is read.time_ns[1]


@pytest.mark.parametrize("seed", range(20))
def test_random_tables_come_back(seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrays = [rng.integers(0, rng.choice([1, 2, 9]), tuple(rng.integers(1, 12, 2))) for _ in range(4)]
    arrays += [arrays[0].copy(), arrays[2]]
    written = tables_in_file(arrays)
    back = arrays_of([ClassTable.model_validate(table) if isinstance(table, dict) else table for table in written])
    assert all(np.array_equal(a, b) for a, b in zip(arrays, back, strict=True))
    assert back[4] is back[0] and back[5] is back[2]


CLASSES = {"before": [0, 1], "after": [0, 0], "costs_ns": [[1], [2]]}
FAULTS: list[tuple[list[Any], tuple[Any, ...]]] = [
    ([5, CLASSES], ("transitions_ns[0]", 5, "index")),
    ([CLASSES, 1], ("transitions_ns[1]", 1, "index")),
    ([True, CLASSES], ("transitions_ns[0]", "true", "{...}")),
    ([{**CLASSES, "before": [0]}, 0], ("transitions_ns[0].before", 1, (2, "layer 0"))),
    ([{**CLASSES, "after": [0, 1]}, 0], ("transitions_ns[0].costs_ns[0]", 1, 2)),
    ([{**CLASSES, "before": [0, 10**9]}, 0], ("transitions_ns[0].costs_ns", 2, 1000000001)),
    ([{**CLASSES, "costs_ns": [[1], [-2]]}, 0], ("transitions_ns[0].costs_ns[1][0]", -2, 0)),
    ([{**CLASSES, "colour": 1}, 0], ("transitions_ns[0].colour",)),
]


@pytest.mark.parametrize(("tables", "expected"), FAULTS, ids=[expected[0] for _, expected in FAULTS])
def test_what_does_not_fit_is_named(tables: list[Any], expected: tuple[Any, ...]) -> None:
    option = {"strategy": "a", "time_ns": 1, "forward_bytes": 1, "backward_bytes": 1, "state_bytes": 1}
    layers = [{"options": [option, {**option, "strategy": "b"}]}, {"like": 0}, {"like": 0}]
    record = {"problem": "layer-strategies", "version": 1, "memory_bytes": 9, "layers": layers, "transitions_ns": [CLASSES, 0]}
    assert tp.load(record).transitions_ns[1].tolist() == [[1, 1], [2, 2]]
    with refused(*expected):
        tp.load({**record, "transitions_ns": tables})


def test_layers_without_options_and_with_both_are_named() -> None:
    record = random_dict(random.Random(3))
    for layer, expected in (({"name": "a"}, ("layers[0].options",)), ({"like": 0}, ("layers[0].like", 0))):
        with refused(*expected):
            tp.load({**record, "layers": [layer, *record["layers"][1:]]})
    with refused("layers[0].like", "options"):
        tp.load({**record, "layers": [{**record["layers"][0], "like": 0}, *record["layers"][1:]]})


def test_json_for_people_is_the_same_json() -> None:
    rng = random.Random(1)
    value = {"a": [[rng.random() for _ in range(3)], {"b": None}], "c": {}, "d": [], "e": "😀", "f": [{}, []]}
    assert json.loads(json_text(value)) == value
    assert json_text({"rows": [[1, 2], [3]]}) == '{\n "rows": [\n  [1, 2],\n  [3]\n ]\n}'


def test_no_file_is_written_that_is_too_large_to_be_read() -> None:
    with refused("", where="big.json", problem="104,857,601", fix="100 MiB"):
        check_readable("big.json", "x" * (LARGEST_FILE_BYTES + 1))
