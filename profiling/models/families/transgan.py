"""TransGAN's generator, which makes an image from a latent vector."""

from __future__ import annotations

from typing import Any

from trainplan.profiling.models.families.fields import MOST_LAYERS, Family, Fields, Unit, names
from trainplan.profiling.models.sublayers import Attention, FeedForward, InputProjection, Upsample, ValueHead


def transgan(fields: Fields) -> tuple[list[Unit], bool]:
    """Build the chain of sub-layers of TransGAN's generator (Jiang et al., 2021) in the variant of the AMP paper (Section
    4.3); head and embedding share no matrix.

    Stage i has `depths[i]` blocks of hidden size `hidden_sizes[i]`. The latent vector becomes bottom_width squared tokens;
    each later stage doubles the side, by pixel shuffle if the hidden size falls to a quarter, by interpolation if it stays.
    If a stage's side exceeds window_size, its attention is within windows of that side.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    fields.no_length()
    sizes = fields.counts("hidden_sizes", [1024, 256, 64])
    depths = fields.counts("depths", [5, 4, 2], least=0, length=len(sizes))
    heads, bottom, latent = (
        fields.count("num_attention_heads", 4),
        fields.size("bottom_width", 8),
        fields.size("latent_size", 512),
    )
    window, channels = fields.count("window_size", 16), fields.count("num_channels", 3)
    if not 0 < sum(depths) <= MOST_LAYERS:
        raise fields.fail("depths", f"add up to {sum(depths)}", f"give 1 to {MOST_LAYERS} layers")
    common = fields.common(fields.share("layer_norm_eps", 1e-5))
    embedded: dict[str, Any] = {"features": latent, "groups": 1, "positions": True}
    embedding = InputProjection(**common, tokens=bottom**2, hidden=sizes[0], **embedded)
    chain, layer, waiting = [Unit("embedding", 0, embedding)], 1, []
    for stage, (hidden, depth) in enumerate(zip(sizes, depths, strict=True)):
        side = bottom << stage
        if side > 4096:
            raise fields.fail("hidden_sizes", f"has {len(sizes)} stages", "give fewer: their sides double from bottom_width")
        shape = common | {"tokens": side**2, "hidden": hidden}
        fields.divisor("num_attention_heads", heads, f"hidden_sizes[{stage}]", hidden)
        if stage and sizes[stage - 1] not in (hidden, 4 * hidden):
            raise fields.fail(f"hidden_sizes[{stage}]", f"is {hidden}", f"give {sizes[stage - 1]} or a quarter of it")
        if depth and side > window and side % window:
            raise fields.fail("window_size", f"is {window}", f"give a divisor of {side}, the side of stage {stage}")
        if stage:
            waiting.append((f"upsample{stage}", Upsample(**shape, from_hidden=sizes[stage - 1])))
        for _ in range(depth):
            heading: dict[str, Any] = {"heads": heads, "kv_heads": heads, "width": hidden // heads, "bias": False}
            attention = Attention(**shape, **heading, window=window if side > window else 0)
            parts = [*waiting, ("attention", attention), ("ffn", FeedForward(**shape, inner=4 * hidden))]
            chain += [Unit(f"block{layer - 1}.{name}", layer, part) for name, part in parts]
            layer, waiting = layer + 1, []
    chain += [Unit(f"block{layer - 2}.{name}", layer - 1, part) for name, part in waiting]
    return [*chain, Unit("head", layer, ValueHead(**shape, values=channels, pool="none"))], False


FIELDS = names("hidden_sizes depths num_attention_heads bottom_width latent_size window_size num_channels layer_norm_eps")
FAMILY = Family(transgan, fields=FIELDS)
