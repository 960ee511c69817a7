"""Swin: attention within windows of patches, in stages of falling resolution."""

from __future__ import annotations

from typing import Any

from trainplan.profiling.models.families.fields import MOST_LAYERS, Family, Fields, Unit, names
from trainplan.profiling.models.sublayers import Attention, FeedForward, InputProjection, PatchMerging, Sublayer, ValueHead


def swin(fields: Fields) -> tuple[list[Unit], bool]:
    """Build the chain of sub-layers of a Swin model: attention within windows of patches, in stages of falling resolution.
    Head and embedding share no matrix.

    Every second block shifts its windows by half of their side, unless one window covers the stage. fields: the configuration
    (config.json), written to: `fields.read` gets every field that is read, with its value. Returns the units (sub-layers with
    names) in order, and whether head and embedding share one matrix. Raises InputError for fields that are missing or
    invalid.
    """
    fields.no_length()
    width, depths = fields.size("embed_dim", 96), fields.counts("depths", [2, 2, 6, 2])
    heads = fields.counts("num_heads", [3, 6, 12, 24], length=len(depths))
    image, patch, window = fields.side("image_size", 224), fields.side("patch_size", 4), fields.size("window_size", 7)
    channels, labels, bias = fields.count("num_channels", 3), fields.labels(), fields.flag("qkv_bias", True)
    ratio, activation = fields.share("mlp_ratio", 4.0, most=64), fields.activation("hidden_act", "gelu")
    fields.absent("use_absolute_embeddings")
    if sum(depths) > MOST_LAYERS:
        raise fields.fail("depths", f"add up to {sum(depths)}", f"give at most {MOST_LAYERS} layers")
    fields.divisor("patch_size", patch, "image_size", image)
    attended = fields.counted_dropout("attention_probs_dropout_prob", 0.0)
    dropped = fields.counted_dropout("hidden_dropout_prob", 0.0)
    common = fields.common(fields.share("layer_norm_eps", 1e-5)) | {"dropout": dropped}
    side = image // patch
    fields.divisor("patch_size", 2 ** (len(depths) - 1), "the patches of a side, halved with every stage,", side)
    fixed = {"epsilon": 1e-5}  # of the norms of patches, for which published code reads no field
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
            windows: dict[str, Any] = {"window": min(window, side >> stage), "shift": shift, "attention_dropout": attended}
            parts["attention"] = Attention(**sizes, **heading, **windows, relative="swin", holds_table=True)
            inside: Any = {"inner": int(ratio * (width << stage)), "activation": activation}
            parts["ffn"] = FeedForward(**sizes, **inside)
            chain += [Unit(f"block{layer}.{name}", layer + 1, part) for name, part in parts.items()]
    last = common | {"tokens": (side >> len(depths) - 1) ** 2, "hidden": width << len(depths) - 1}
    return [*chain, Unit("head", sum(depths) + 1, ValueHead(**last, values=labels, pool="mean"))], False


# As of transformers' SwinConfig; the last ones are what it derives, and of its earlier versions.
FIELDS = names(
    """
    image_size patch_size num_channels embed_dim depths num_heads window_size mlp_ratio qkv_bias hidden_dropout_prob
    attention_probs_dropout_prob drop_path_rate hidden_act use_absolute_embeddings layer_norm_eps encoder_stride
    num_layers hidden_size hidden_sizes stage_names out_features out_indices path_norm
    """
)
ALIASES = {"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"}
FAMILY = Family(swin, fields=FIELDS, aliases=ALIASES)
