"""Dataclasses that are file formats: checked where a file is read, not where code builds them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, model_validator
from trainplan.formulations.numbers import ArrayOf, Integers
from trainplan.profiling.base.dataclass_records import DataclassRecord, Items, ReadAs, written
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import parse

from tests.helpers.refusals import refused

Count = Annotated[int, Field(ge=0, le=2**53)]


def rate(text: str) -> float:
    """Gigabytes a second of a text such as `3 GB/s`."""
    number, unit = text.split()
    if unit != "GB/s":
        raise InputError("", "", f"is {text!r}", "give GB/s")
    return float(number)


@dataclass(frozen=True)
class Link(DataclassRecord):
    ends: Items[Count]
    rate: Annotated[float, ReadAs(str, rate)]

    @model_validator(mode="after")
    def _two(self) -> Link:
        if len(self.ends) != 2:
            raise InputError("", "ends", f"are {len(self.ends)}", "give two")
        return self

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {"rate": f"{self.rate} GB/s"}


@dataclass(frozen=True, eq=False)
class Chain(DataclassRecord):
    name: str
    links: Annotated[Items[Link], Field(max_length=3)]
    times_ns: Annotated[Integers, ArrayOf(Count, 2)]
    flag: bool = False
    note: str | None = None
    tags: Items[str] = ()

    optional = ("note", "tags")


def chain() -> dict[str, Any]:
    """A chain in its file format."""
    links = [{"ends": [0, 1], "rate": "3.0 GB/s"} for _ in range(2)]
    return {"name": "a", "links": links, "times_ns": [[1, 2, 3], [4, 5, 6]], "flag": True}


def test_lists_become_tuples_arrays_and_objects() -> None:
    read = parse(chain(), Chain)
    assert read.links == (Link((0, 1), 3.0),) * 2 and (read.note, read.tags) == (None, ())
    assert read.times_ns.dtype == np.int64 and read.times_ns.tolist() == [[1, 2, 3], [4, 5, 6]]


numbers = st.integers(0, 2**53)


@given(
    st.text(),
    st.lists(st.tuples(numbers, numbers), max_size=3),
    st.lists(numbers, min_size=1),
    st.booleans(),
    st.none() | st.text(),
    st.lists(st.text()),
)
def test_what_is_written_is_read_again(
    name: str, ends: list[tuple[int, int]], times: list[int], flag: bool, note: str | None, tags: list[str]
) -> None:
    built = Chain(name, tuple(Link(pair, 1.5) for pair in ends), np.array([times] * 2), flag, note, tuple(tags))
    content = json.loads(json.dumps(built.to_dict()))
    assert list(content) == [
        name for name in ("name", "links", "times_ns", "flag", "note", "tags") if name not in absent(note, tags)
    ]
    jsonschema.validate(content, Chain.model_json_schema())
    assert parse(content, Chain).to_dict() == content


def absent(note: str | None, tags: list[str]) -> set[str]:
    """The optional fields that have their defaults."""
    return ({"note"} if note is None else set()) | (set() if tags else {"tags"})


FAULTS: dict[str, tuple[Callable[[dict[str, Any]], Any], tuple[Any, ...]]] = {
    "a field too many": (lambda d: d.update(extra=1), ("extra",)),
    "one within": (lambda d: d["links"][1].update(extra=1), ("links[1].extra",)),
    "a field too few": (lambda d: d.pop("times_ns"), ("times_ns",)),
    "no object": (lambda d: d.update(links=[3]), ("links[0]", 3, "{...}")),
    "no list": (lambda d: d["links"][0].update(ends=(0, 1)), ("links[0].ends", "(0, 1)", "[...]")),
    "too many": (lambda d: d.update(links=d["links"] * 2), ("links", (), 3)),
    "a text": (lambda d: d["links"][0].update(ends=[0, "1"]), ("links[0].ends[1]", "'1'", 1)),
    "true": (lambda d: d["times_ns"][1].__setitem__(2, True), ("times_ns[1][2]", "true", 1000)),
    "one for true": (lambda d: d.update(flag=1), ("flag", 1, ("true", "false"))),
    "below": (lambda d: d["times_ns"][0].__setitem__(0, -1), ("times_ns[0][0]", -1, 0)),
    "beyond 64 bits": (lambda d: d["times_ns"][0].__setitem__(0, 2**70), ("times_ns[0][0]", 2**70, 2**53)),
    "its own check": (lambda d: d["links"][1].update(ends=[1]), ("links[1].ends", 1, "two")),
    "its own text": (lambda d: d["links"][1].update(rate="3 GB"), ("links[1].rate", "3 GB", "GB/s")),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_reported_with_field_value_and_fix(name: str) -> None:
    content, (break_it, refusal) = chain(), FAULTS[name]
    break_it(content)
    with refused(*refusal, where="chain") as caught:
        parse(content, Chain, "chain")
    assert "\n" not in str(caught.value)


def test_code_builds_objects_unchecked() -> None:
    assert replace(Link((), 1.0), ends=(-1,)).ends == (-1,)


def test_lists_of_unequal_lengths_stay_lists() -> None:
    assert parse(chain() | {"times_ns": [[1], [1, 2]]}, Chain).times_ns == [[1], [1, 2]]


def test_numbers_of_numpy_are_written_as_numbers() -> None:
    assert json.dumps(written({"a": (np.int64(3), np.array([1, 2]), None)})) == '{"a": [3, [1, 2], null]}'
