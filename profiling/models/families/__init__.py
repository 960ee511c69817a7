"""Builders: a Hugging Face configuration becomes a chain of sub-layers. One function for each family.

A builder reads its fields through `Fields`, which checks them and notes what was read: that, with its defaults filled in, is
the architecture which a plan or a profile carries, and from which the same chain can be built again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from trainplan.profiling.base.errors import shown
from trainplan.profiling.models.families.encoder_decoder import t5
from trainplan.profiling.models.families.fields import Chain, Fields, Unit
from trainplan.profiling.models.families.language import bert, gpt2, llama
from trainplan.profiling.models.families.vision import swin, transgan, vit

__all__ = ["FAMILIES", "ROLES", "Chain", "Fields", "Role", "Unit", "build_chain"]

FAMILIES: dict[str, Callable[[Fields], tuple[Chain, bool]]] = {
    "gpt2": gpt2,
    "bert": bert,
    "llama": llama,
    "t5": t5,
    "vit": vit,
    "swin": swin,
    "transgan": transgan,
}

# Fields of the size of a model, by what they stand for: what `Model.scaled` makes smaller.
Role = Literal["hidden", "heads", "inner", "vocabulary", "positions", "width"]
ROLES: dict[str, dict[Role, str]] = {
    "gpt2": {"hidden": "n_embd", "heads": "n_head", "inner": "n_inner", "vocabulary": "vocab_size", "positions": "n_positions"},
    "bert": {
        "hidden": "hidden_size",
        "heads": "num_attention_heads",
        "inner": "intermediate_size",
        "vocabulary": "vocab_size",
        "positions": "max_position_embeddings",
    },
    "llama": {
        "hidden": "hidden_size",
        "heads": "num_attention_heads",
        "inner": "intermediate_size",
        "vocabulary": "vocab_size",
        "positions": "max_position_embeddings",
        "width": "head_dim",
    },
}


def build_chain(fields: Fields) -> tuple[Chain, bool]:
    """The chain of a configuration, and whether its head's matrix is the embedding's. Raises InputError."""
    family = fields.config.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise fields.fail("model_type", f"is {shown(family)}", f"give a config of one of: {known}")
    fields.read["model_type"] = family
    return FAMILIES[family](fields)
