"""Dataclasses that are file formats, too: pydantic checks them where a file is read, and nothing where code builds them.

A subclass of `DataclassRecord` says in its annotations what its file holds. Lists of a file are tuples of the object (`Items`);
types of other modules say by pydantic's `__get_pydantic_core_schema__` how they are read, and by `to_dict` or `str` how they
are written. As of every file format, unknown fields are refused and numbers are never coerced.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Annotated, Any, ClassVar, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, TypeAdapter
from pydantic_core import CoreSchema, core_schema

Item = TypeVar("Item")


class _FromList:
    """Reads a tuple from a list of a file."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        item, _ = get_args(source)
        return core_schema.no_info_after_validator_function(tuple, handler.generate_schema(list[item]))  # type: ignore[valid-type]


Items = Annotated[tuple[Item, ...], _FromList()]
"""A tuple, which is a list in files."""


class DataclassRecord:
    """Base of dataclasses that are file formats. Fields stand in files in the order of the class.

    noun: what users call such a file where files of another format may be taken for it. optional: the fields that are left out
    of files where they have their default.
    """

    noun: ClassVar[str] = ""
    optional: ClassVar[tuple[str, ...]] = ()
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        inner: Any = handler.resolve_ref_schema(schema)
        while inner["type"] != "dataclass":
            inner = inner["schema"]
        inner["strict"] = False  # else only an object of the class would do; its fields stay strict
        return schema

    @classmethod
    def _adapter(cls) -> TypeAdapter[Self]:
        record: Any = cls
        return _adapter(record)

    @classmethod
    def model_validate(cls, value: Any) -> Self:
        """The object that a value of a file states. Raises pydantic's ValidationError; `files.parse` tells users of it."""
        return cls._adapter().validate_python(value)

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        """The JSON schema of the file format."""
        return cls._adapter().json_schema()

    def to_dict(self) -> dict[str, Any]:
        """The object in its file format."""
        record: Any = type(self)
        values = ((name, getattr(self, name), default) for name, default in _defaults(record))
        return {name: written(value) for name, value, default in values if default is MISSING or not _same(value, default)}


@cache
def _defaults(record: Any) -> list[tuple[str, Any]]:
    """The fields of a class with their defaults, which are MISSING of fields that always stand in files."""
    return [(field.name, field.default if field.name in record.optional else MISSING) for field in fields(record)]


def _same(value: Any, default: Any) -> bool:
    return value is default or (type(value) is type(default) and bool(value == default))


@dataclass(frozen=True)
class ReadAs:
    """Says of a field how files have it. form: the type in files; convert: the object of a value of that type.

    Where `convert` raises ValueError, the file has a fault in that field.
    """

    form: Any
    convert: Callable[[Any], Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.convert, handler.generate_schema(self.form))


@cache
def _adapter(record: Any) -> TypeAdapter[Any]:
    return TypeAdapter(record)


def written(value: Any) -> Any:
    """A value as JSON has it: tuples and arrays as lists, objects as their `to_dict` says, or else their text."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, tuple | list):
        return [written(item) for item in value]
    if isinstance(value, dict):
        return {name: written(item) for name, item in value.items()}
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_none=True)
    convert = getattr(value, "to_dict", None) or getattr(value, "tolist", None)  # numpy's arrays and numbers have the second
    return str(value) if convert is None else convert()
