"""Dataclasses that are also file formats: pydantic checks them when a file is read, not when code builds them.

A subclass of `DataclassRecord` states in its annotations what its file holds. A list in a file is a tuple in the object
(`Items`). A type of another module defines `__get_pydantic_core_schema__` to be read, and `to_dict` or `__str__` to be written.
Unknown fields are refused and numbers are never coerced, as in all of trainplan's file formats.
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
    """Annotation for pydantic: reads a tuple from a list of a file."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """The schema of a list of the tuple's items, whose value becomes a tuple."""
        item, _ = get_args(source)
        return core_schema.no_info_after_validator_function(tuple, handler.generate_schema(list[item]))  # type: ignore[valid-type]


Items = Annotated[tuple[Item, ...], _FromList()]
"""A tuple, which is a list in files."""


class DataclassRecord:
    """Base class of dataclasses that define a file format; a file has their fields, in the order of the class.

    noun: the users' name for such a file, used in errors when a file of another format is given. optional: names of the
    fields that are omitted from a file if they have their default.
    """

    noun: ClassVar[str] = ""
    optional: ClassVar[tuple[str, ...]] = ()
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """The class's schema, made lenient at the top so that a dict of a file is accepted; its fields stay strict."""
        schema = handler(source)
        inner: Any = handler.resolve_ref_schema(schema)
        while inner["type"] != "dataclass":
            inner = inner["schema"]
        inner["strict"] = False  # else only an object of the class would do; its fields stay strict
        return schema

    @classmethod
    def _adapter(cls) -> TypeAdapter[Self]:
        """The pydantic validator of this dataclass, built when it is first used."""
        record: Any = cls
        return _adapter(record)

    @classmethod
    def model_validate(cls, value: Any) -> Self:
        """Build the object from a value read from a file, such as a dict. Raises pydantic's ValidationError, which
        `files.parse` turns into a message for users.
        """
        return cls._adapter().validate_python(value)

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        """The JSON schema of the file format that this class defines."""
        return cls._adapter().json_schema()

    def to_dict(self) -> dict[str, Any]:
        """Convert the object to the dict that is written to its file; fields named in `optional` are omitted if they have
        their default.
        """
        record: Any = type(self)
        values = ((name, getattr(self, name), default) for name, default in _defaults(record))
        return {name: written(value) for name, value, default in values if default is MISSING or not _same(value, default)}


@cache
def _defaults(record: Any) -> list[tuple[str, Any]]:
    """The fields of a dataclass as pairs (name, default), in order; the default MISSING marks a field that is always written
    to files. record: the class.
    """
    return [(field.name, field.default if field.name in record.optional else MISSING) for field in fields(record)]


def _same(value: Any, default: Any) -> bool:
    """Whether a value equals a default and has the same type as the default; so 1 and True are different."""
    return value is default or (type(value) is type(default) and bool(value == default))


@dataclass(frozen=True)
class ReadAs:
    """Annotation of a field whose type in files differs from its type in the object.

    form: the type in files; convert: builds the object from a value of that type. If `convert` raises ValueError, the file is
    reported as faulty in that field.
    """

    form: Any
    convert: Callable[[Any], Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """The schema of the type in files, whose value is then converted."""
        return core_schema.no_info_after_validator_function(self.convert, handler.generate_schema(self.form))


@cache
def _adapter(record: Any) -> TypeAdapter[Any]:
    """The pydantic validator of a dataclass (`record`). It is costly to build, so it is cached."""
    return TypeAdapter(record)


def written(value: Any) -> Any:
    """Convert a value to JSON-ready values: tuples and arrays become lists; objects become the result of their `to_dict`, or
    else their text.
    """
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
