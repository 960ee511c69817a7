"""Number types (dtypes): their names, the aliases that people write, and their bytes."""

from __future__ import annotations

from trainplan.profiling.base.errors import COMMAND_LINE, InputError, named, one_of

DTYPE_BYTES = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2}
# Bytes of the statistics that a loss is computed from, a few numbers per token: no narrower than float32.
STATISTIC_BYTES = {name: max(4, size) for name, size in DTYPE_BYTES.items()}
SHORT = {
    "float32": ("fp32", "f32", "float"),
    "float64": ("fp64", "f64", "double"),
    "bfloat16": ("bf16",),
    "float16": ("fp16", "f16", "half"),
}
ALIASES = {alias: name for name, short in SHORT.items() for alias in (*short, f"torch.{name}")}


def parse_dtype(text: object, field: str = "--dtype") -> str:
    """Normalise a dtype given by name or by an alias, in upper or lower case, to its full name: ``bf16`` -> ``bfloat16``.
    field: the command's option to name in errors. Raises InputError if there is no such dtype.
    """
    dtype = named(text, DTYPE_BYTES, ALIASES)
    if dtype is None or dtype not in DTYPE_BYTES:
        raise InputError(COMMAND_LINE, field, f"is {text!r}", one_of(text, DTYPE_BYTES))
    return dtype
