"""Tables of times that are no sound ones: each is refused in one line that names the file and the place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.imports import import_profile
from trainplan.profiling.profiles import Profile


def profile_of(path: Path) -> Profile:
    return import_profile(path, cluster=load_cluster("cpu-4"), communication="included")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("layer,tp1,tp0\n0,0.1,0.06", "column tp0 counts 0; give 1 to"),
        ("layer,tp1,tp9999999\n0,0.1,0.06", "column tp9999999 counts 9999999"),
        ("layer,tp1,tpx\n0,0.1,0.06", "columns are layer, tp1, tpx"),
        ("layer,tp,seconds\n0,0,0.1", "layer 0 tp is 0.0; give at least 1"),
        ("layer,tp,seconds\n0,1.5,0.1", "layer 0 tp is 1.5; give a whole number, such as 2"),
        ("layer,tp1\n0,0.1\n2,0.1", "layer 1 is missing; give every layer a row"),
        ("layer,tp1\n2,0.1\n3,0.1", "layer 1 is missing"),
        ("layer,tp,seconds\n0,1,0.1\n0,2,0.1\n2,1,0.1\n2,2,0.1", "layer 1 is missing"),
        ("layer,tp1,parameters\n0,0.1,1.5", "layer 0 parameters is 1.5; give a whole number, such as 2"),
        ("layer,tp1,kept_bytes\n0,0.1,0.25", "layer 0 kept_bytes is 0.25; give a whole number, such as 1"),
    ],
)
def test_a_table_of_text(text: str, part: str, tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        profile_of(path)
    assert f"{path}: {part}" in str(caught.value)


def test_an_archive_of_arrays(tmp_path: Path) -> None:
    path = tmp_path / "times.npy"
    with path.open("wb") as file:
        np.savez(file, a=np.ones(3))
    with pytest.raises(InputError, match="is an archive of arrays; save one array with"):
        profile_of(path)
    path.write_bytes(b"PK\x03\x04" + bytes(50))
    with pytest.raises(InputError, match="is no array of numbers"):
        profile_of(path)
    path.write_bytes(b"\x93NUMPY\x01\x00\x10\x00{'descr': 'f4', }" + bytes(10))
    with pytest.raises(InputError, match="is no array of numbers"):
        profile_of(path)


def test_layers_with_numbers_stand_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_text("layer,tp1\n2,0.3\n1,0.1\n3,0.2")
    assert [unit.name for unit in profile_of(path).units] == ["layer-1", "layer-2", "layer-3"]
