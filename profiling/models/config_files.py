"""What a `config.json` says beside its family's fields: which part of it is a language model, and in which dtype."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainplan.profiling.base.dtypes import ALIASES, DTYPE_BYTES
from trainplan.profiling.base.errors import InputError, caution, named, shown
from trainplan.profiling.models.families import family_names

TEXT = "text_config"
DTYPE_FIELDS = ("dtype", "torch_dtype")  # as transformers 5 writes it, and as it did before
UNSAID = (None, "auto")


def language_part(config: Mapping[str, Any], where: str) -> tuple[Mapping[str, Any], str]:
    """The configuration that a chain is built from, and where in its file it lies: `text_config.` of multimodal files, else "".

    Warns that the other parts of a multimodal model are not planned.
    """
    text, kind = config.get(TEXT), config.get("model_type")
    if not isinstance(text, Mapping) or kind in family_names():
        return config, ""
    others = ", ".join(name for name in config if name.endswith("_config") and name != TEXT)
    problem = f"is the language model of a {shown(kind)}"
    caution(where, TEXT, problem, f"it is planned alone, without {others or 'what else there is'}")
    return text, f"{TEXT}."


def dtype_of(*configs: Mapping[str, Any], where: str) -> str:
    """The dtype that the first of these configurations that has one says; float32 where none does, with a warning where that is
    left to the weights. Raises InputError."""
    for config in configs:
        stated = {name: _dtype(where, name, value) for name in DTYPE_FIELDS if (value := config.get(name)) not in UNSAID}
        if len(set(stated.values())) > 1:
            fix = f"give {shown(stated['dtype'])}, as dtype has it, or leave it out"
            raise InputError(where, "torch_dtype", f"is {shown(config['torch_dtype'])}", fix)
        if stated:
            return next(iter(stated.values()))
    if left := [name for config in configs for name in DTYPE_FIELDS if config.get(name) == "auto"]:
        caution(where, left[0], "is 'auto', which is that of the weights", "float32 is taken; give --dtype, such as bfloat16")
    return "float32"


def _dtype(where: str, name: str, value: Any) -> str:
    dtype = named(value, DTYPE_BYTES, ALIASES)
    if dtype is None:
        raise InputError(where, name, f"is {shown(value)}", f"give --dtype of {', '.join(DTYPE_BYTES)}")
    return dtype
