"""Gemma 3's language model: Gemma 2 with norms of queries and keys, and other rotary positions in sliding-window layers."""

from __future__ import annotations

from collections.abc import Mapping

from trainplan.profiling.models.families.decoder import SIZES, decoder, layer_windows, sliding_window
from trainplan.profiling.models.families.fields import Family, Fields, Unit
from trainplan.profiling.models.families.gemma2 import FIELDS as GEMMA2_FIELDS
from trainplan.profiling.models.families.gemma2 import HEAD_WIDTH, gemma_chain, soft_cap
from trainplan.profiling.models.families.rotation import rotation


def gemma3_text(fields: Fields) -> tuple[list[Unit], bool]:
    """Build the chain of sub-layers of the language model of Gemma 3: Gemma 2 with norms on queries and keys, and two kinds of
    rotary positions.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    _split_rotations(fields)
    sizes = decoder(fields, width=HEAD_WIDTH)
    pattern = fields.count("sliding_window_pattern", 6)
    window = sliding_window(fields, missing=4096)
    windows = layer_windows(fields, sizes.layers, window, [(i + 1) % pattern > 0 for i in range(sizes.layers)])
    rotary = {0: rotation(fields, sizes.positions, sizes.tokens, sizes.width, base=1e6)}
    near = {"rotary": fields.share("rope_local_base_freq", 10000.0, most=1e12), "scaling": None, "rotary_width": 0}
    rotary |= {size: near for size in windows if size}
    caps = {name: soft_cap(fields, name, None) for name in ("attn_logit_softcapping", "final_logit_softcapping")}
    return gemma_chain(fields, sizes, windows, rotary, caps, normed_heads=True)


def _split_rotations(fields: Fields) -> None:
    """Convert `rope_parameters` by type of layer, as transformers 5 writes it, to the fields of earlier versions, in
    `fields.config`, which is written to: `rope_parameters` then has the rotation of layers with full attention, and
    `rope_local_base_freq` the base of layers with a sliding window. Raises InputError for invalid parameters.
    """
    rope = fields.config.get("rope_parameters")
    if not isinstance(rope, Mapping) or not {"full_attention", "sliding_attention"} & set(rope):
        return
    far, near = rope.get("full_attention") or {}, rope.get("sliding_attention") or {}
    for name, value in (("rope_parameters.full_attention", far), ("rope_parameters.sliding_attention", near)):
        if not isinstance(value, Mapping):
            raise fields.fail(name, "is not an object", 'give an object such as {"rope_type": "default"}')
    if near.get("rope_type", "default") != "default":
        problem = f"is {near['rope_type']!r}, which trainplan does not have within windows"
        raise fields.fail("rope_parameters.sliding_attention.rope_type", problem, "give 'default'")
    base = near.get("rope_theta", fields.config.get("rope_local_base_freq"))
    fields.config = {**fields.config, "rope_parameters": far, "rope_local_base_freq": base}


# As of transformers' Gemma3TextConfig; the last ones are of its earlier versions.
FIELDS = GEMMA2_FIELDS | {"rope_local_base_freq", "sliding_window_pattern", "_sliding_window_pattern"}
FAMILY = Family(gemma3_text, SIZES, FIELDS)
