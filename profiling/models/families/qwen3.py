"""Dense Qwen 3: Qwen 2 with norms of queries and keys in place of biases, and a head width of its own."""

from __future__ import annotations

from trainplan.profiling.models.families.decoder import SIZES, decoder
from trainplan.profiling.models.families.fields import Family, Fields, Unit
from trainplan.profiling.models.families.qwen2 import FIELDS, qwen_chain


def qwen3(fields: Fields) -> tuple[list[Unit], bool]:
    """Build the chain of sub-layers of a dense Qwen 3 model: Qwen 2 with norms on queries and keys in place of biases, and
    head size 128.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    sizes, bias = decoder(fields, width=128), fields.flag("attention_bias", False)
    return qwen_chain(fields, sizes, bias=bias, out_bias=bias, normed_heads=True)


# As of transformers' Qwen3Config.
FAMILY = Family(qwen3, SIZES, FIELDS | {"attention_bias"})
