"""Images in or out: ViT, Swin, and TransGAN's generator."""

from __future__ import annotations

from typing import Any

from trainplan.profiling.models.families.fields import MOST_LAYERS, Chain, Fields, Unit, blocks, stack
from trainplan.profiling.models.sublayers import (
    Attention,
    FeedForward,
    InputProjection,
    PatchMerging,
    Sublayer,
    Upsample,
    ValueHead,
)


def vit(fields: Fields) -> tuple[Chain, bool]:
    fields.no_length()
    hidden, heads = fields.count("hidden_size", 768), fields.count("num_attention_heads", 12)
    layers, inner = fields.layers("num_hidden_layers", 12), fields.count("intermediate_size", 3072)
    fields.divisor("num_attention_heads", heads, "hidden_size", hidden)
    image, patch = fields.side("image_size", 224), fields.side("patch_size", 16)
    channels, labels = fields.count("num_channels", 3), fields.labels()
    fields.divisor("patch_size", patch, "image_size", image)
    activation = fields.activation("hidden_act", "gelu")
    bias = fields.flag("qkv_bias", True)
    dropped = fields.dropout("attention_probs_dropout_prob", "hidden_dropout_prob", default=0.0)
    patches = (image // patch) ** 2
    common = fields.common(dropped, fields.share("layer_norm_eps", 1e-12)) | {"tokens": patches + 1, "hidden": hidden}
    embedding = InputProjection(
        **common, features=channels * patch**2, groups=patches, class_token=True, positions=True
    )  # fmt: skip
    attention = Attention(**common, heads=heads, kv_heads=heads, width=hidden // heads, bias=bias)
    ffn = FeedForward(**common, inner=inner, activation=activation)
    middle = blocks(layers, {"attention": attention, "ffn": ffn})
    return stack(embedding, middle, ValueHead(**common, values=labels)), False


def swin(fields: Fields) -> tuple[Chain, bool]:
    """Every second block shifts its windows by half of their side, unless one window covers all."""
    fields.no_length()
    width, depths = fields.count("embed_dim", 96), fields.counts("depths", [2, 2, 6, 2])
    heads = fields.counts("num_heads", [3, 6, 12, 24], length=len(depths))
    image, patch, window = fields.side("image_size", 224), fields.side("patch_size", 4), fields.count("window_size", 7)
    channels, labels, bias = fields.count("num_channels", 3), fields.labels(), fields.flag("qkv_bias", True)
    ratio, activation = fields.share("mlp_ratio", 4.0, most=64), fields.activation("hidden_act", "gelu")
    fields.absent("use_absolute_embeddings")
    if sum(depths) > MOST_LAYERS:
        raise fields.fail("depths", f"add up to {sum(depths)}", f"give at most {MOST_LAYERS} layers")
    fields.divisor("patch_size", patch, "image_size", image)
    dropped = fields.dropout("attention_probs_dropout_prob", "hidden_dropout_prob", default=0.0)
    common = fields.common(dropped, fields.share("layer_norm_eps", 1e-5))
    side = image // patch
    fields.divisor("patch_size", 2 ** (len(depths) - 1), "the patches of a side, halved with every stage,", side)
    fixed = {"epsilon": 1e-5}  # of the norms of patches, which published code takes from no field
    patches: dict[str, Any] = {"features": channels * patch**2, "groups": side**2, "normed": True}
    chain = [Unit("embedding", 0, InputProjection(**common | fixed, tokens=side**2, hidden=width, **patches))]
    for stage, (depth, count) in enumerate(zip(depths, heads, strict=True)):
        sizes = common | {"tokens": (side >> stage) ** 2, "hidden": width << stage}
        fields.divisor(f"num_heads[{stage}]", count, "this stage's hidden size", width << stage)
        if (side >> stage) % min(window, side >> stage):
            raise fields.fail("window_size", f"is {window}", f"give a divisor of {side >> stage}, the side of stage {stage}")
        for block in range(depth):
            layer = sum(depths[:stage]) + block
            whole = window >= side >> stage
            shift = 0 if whole or block % 2 == 0 else window // 2
            parts: dict[str, Sublayer] = {"merge": PatchMerging(**sizes | fixed)} if stage and not block else {}
            heading: dict[str, Any] = {"heads": count, "kv_heads": count, "width": (width << stage) // count, "bias": bias}
            windows: dict[str, Any] = {"window": min(window, side >> stage), "shift": shift}
            parts["attention"] = Attention(**sizes, **heading, **windows, relative="swin", holds_table=True)
            inside: Any = {"inner": int(ratio * (width << stage)), "activation": activation}
            parts["ffn"] = FeedForward(**sizes, **inside)
            chain += [Unit(f"block{layer}.{name}", layer + 1, part) for name, part in parts.items()]
    last = common | {"tokens": (side >> len(depths) - 1) ** 2, "hidden": width << len(depths) - 1}
    return [*chain, Unit("head", sum(depths) + 1, ValueHead(**last, values=labels, pool="mean"))], False


def transgan(fields: Fields) -> tuple[Chain, bool]:
    """TransGAN's generator (Jiang et al., 2021), in AMP's variant (Section 4.3): `depths` blocks of `hidden_sizes` a stage.

    The latent vector becomes bottom_width squared tokens; every later stage doubles the side, by pixel shuffle where the hidden
    size falls to a quarter, by interpolation where it stays. Where a side exceeds window_size, attention is in windows of it.
    """
    fields.no_length()
    sizes = fields.counts("hidden_sizes")
    depths = fields.counts("depths", least=0, length=len(sizes))
    heads, bottom, latent = (
        fields.count("num_attention_heads", 4),
        fields.count("bottom_width", 8),
        fields.count("latent_size", 512),
    )
    window, channels = fields.count("window_size", 16), fields.count("num_channels", 3)
    if not 0 < sum(depths) <= MOST_LAYERS:
        raise fields.fail("depths", f"add up to {sum(depths)}", f"give 1 to {MOST_LAYERS} layers")
    common = fields.common(False, fields.share("layer_norm_eps", 1e-5))
    made: dict[str, Any] = {"features": latent, "groups": 1, "positions": True}
    embedding = InputProjection(**common, tokens=bottom**2, hidden=sizes[0], **made)
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
