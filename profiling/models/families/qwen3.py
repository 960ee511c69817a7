"""Dense Qwen 3: Qwen 2 with norms of queries and keys in place of biases, and heads of a width of their own."""

from __future__ import annotations

from trainplan.profiling.models.families.decoder import SIZES, decoder
from trainplan.profiling.models.families.fields import Family, Fields, Unit
from trainplan.profiling.models.families.qwen2 import FIELDS, qwen_chain


def qwen3(fields: Fields) -> tuple[list[Unit], bool]:
    """The chain of a dense Qwen 3 configuration."""
    sizes, bias = decoder(fields, width=128), fields.flag("attention_bias", False)
    return qwen_chain(fields, sizes, bias=bias, out_bias=bias, normed_heads=True)


# As of transformers' Qwen3Config.
FAMILY = Family(qwen3, SIZES, FIELDS | {"attention_bias"})
