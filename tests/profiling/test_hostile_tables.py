"""Tables of times that are no sound ones: each is refused in one line that names the file and the place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.imports import import_profile
from trainplan.profiling.profiles import Profile

from tests.helpers.refusals import refused


def profile_of(path: Path) -> Profile:
    return import_profile(path, cluster=load_cluster("cpu-4"), communication="included")


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("layer,tp1,tp0\n0,0.1,0.06", ("column tp0", 0, (1, 1048576))),
        ("layer,tp1,tp9999999\n0,0.1,0.06", ("column tp9999999", 9999999, (1, 1048576))),
        ("layer,tp1,tpx\n0,0.1,0.06", ("columns", "layer, tp1, tpx", ("layer,tp1,tp2", "layer,tp,seconds"))),
        ("layer,tp,seconds\n0,0,0.1", ("layer 0 tp", 0.0, 1)),
        ("layer,tp,seconds\n0,1.5,0.1", ("layer 0 tp", 1.5, 2)),
        ("layer,tp1\n0,0.1\n2,0.1", ("layer 1",)),
        ("layer,tp1\n2,0.1\n3,0.1", ("layer 1",)),
        ("layer,tp,seconds\n0,1,0.1\n0,2,0.1\n2,1,0.1\n2,2,0.1", ("layer 1",)),
        ("layer,tp1,parameters\n0,0.1,1.5", ("layer 0 parameters", 1.5, 2)),
        ("layer,tp1,kept_bytes\n0,0.1,0.25", ("layer 0 kept_bytes", 0.25, 1)),
    ],
)
def test_a_table_of_text(text: str, refusal: tuple[Any, ...], tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_text(text)
    with refused(*refusal, where=path):
        profile_of(path)


def test_an_archive_of_arrays(tmp_path: Path) -> None:
    path = tmp_path / "times.npy"
    with path.open("wb") as file:
        np.savez(file, a=np.ones(3))
    with refused("", problem="archive", fix="numpy.save"):
        profile_of(path)
    path.write_bytes(b"PK\x03\x04" + bytes(50))
    with refused("", problem="zip file", fix="numpy.save"):
        profile_of(path)
    path.write_bytes(b"\x93NUMPY\x01\x00\x10\x00{'descr': 'f4', }" + bytes(10))
    with refused("", fix="numpy.save"):
        profile_of(path)


def test_layers_with_numbers_stand_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_text("layer,tp1\n2,0.3\n1,0.1\n3,0.2")
    assert [unit.name for unit in profile_of(path).units] == ["layer-1", "layer-2", "layer-3"]
