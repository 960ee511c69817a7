"""Types for the numbers of instances and their files that pydantic checks, and checks of lengths and sums."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass
from functools import reduce
from typing import Annotated, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Discriminator, Field, GetCoreSchemaHandler, Tag
from pydantic_core import CoreSchema, core_schema
from trainplan.profiling.base.errors import InputError

Integers = NDArray[np.int64]

# Limits that keep every sum of 10,000 layers within 64 bits.
TimeNs = Annotated[int, Field(ge=0, le=10**14, description="nanoseconds")]
Bytes = Annotated[int, Field(ge=0, le=2**48, description="bytes")]
Entry = TypeVar("Entry")
OneOrMany = Annotated[
    Annotated[Entry, Tag("list[one]")] | Annotated[list[Entry], Tag("list[many]")],
    Discriminator(lambda value: "list[many]" if isinstance(value, list) else "list[one]"),
]
LARGEST_NS, LARGEST_BYTES = 2**53, 2**62


@dataclass(frozen=True)
class ArrayOf:
    """Pydantic annotation of a NumPy array field whose file format is lists of `entry`, nested `dimensions` deep.

    Lists of unequal lengths make no array and stay lists: the reader of arrays of several dimensions checks their lengths.
    """

    entry: Any
    dimensions: int = 1
    dtype: type = np.int64

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        lists = reduce(lambda inner, _: list[inner], range(self.dimensions), self.entry)  # type: ignore[valid-type]
        return core_schema.no_info_after_validator_function(self._array, handler.generate_schema(lists))

    def _array(self, lists: list[Any]) -> Any:
        """The nested lists as an array of `dtype`; the lists themselves if their lengths are unequal."""
        try:
            return np.array(lists, self.dtype)
        except ValueError:  # lists of unequal lengths
            return lists


def check_length(name: str, entries: Sized, wanted: int, meaning: str = "", noun: str = "entries") -> None:
    """Raise InputError if a list does not have the wanted number of entries.

    name: the field that the error names. meaning: what the entries are, such as "one for each layer". noun: the word for
    entries in the error.
    """
    if len(entries) != wanted:
        raise InputError("", name, f"has {len(entries)} {noun}", f"give {wanted}" + (f", {meaning}" if meaning else ""))


def check_sums(where: str, micro_batches: int, chain: str, time_ns: int, size_bytes: int = 0) -> None:
    """Raise InputError if sums of times could reach 2^53 ns, where floats are no longer exact, or sums of bytes 2^62.

    where: the name of the field that holds `micro_batches`, for the error. chain: what takes the time and bytes, such as "12
    layers", for the error. time_ns, size_bytes: the largest sums that can occur.
    """
    for unit, total, limit in (("ns", time_ns, LARGEST_NS), ("bytes", size_bytes, LARGEST_BYTES)):
        if total >= limit:
            problem = f"is {micro_batches}, with which {chain} may take {total:.3g} {unit}"
            raise InputError("", where, problem, f"give numbers that stay below {limit:.3g}")
