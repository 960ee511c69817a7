"""ViT: an encoder of an image's patches and a class token."""

from __future__ import annotations

from trainplan.profiling.models.families.fields import Family, Fields, Unit, names, uniform_chain
from trainplan.profiling.models.sublayers import Attention, FeedForward, InputProjection, ValueHead


def vit(fields: Fields) -> tuple[list[Unit], bool]:
    """Build the chain of sub-layers of a ViT model: a class token before the patches, and a head on that token. Head and
    embedding share no matrix.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    fields.no_length()
    hidden, heads = fields.size("hidden_size", 768), fields.size("num_attention_heads", 12)
    layers, inner = fields.layers("num_hidden_layers", such_as=12), fields.size("intermediate_size", 3072)
    fields.divisor("num_attention_heads", heads, "hidden_size", hidden)
    image, patch = fields.side("image_size", 224), fields.side("patch_size", 16)
    channels, labels = fields.count("num_channels", 3), fields.labels()
    fields.divisor("patch_size", patch, "image_size", image)
    activation = fields.activation("hidden_act", "gelu")
    bias = fields.flag("qkv_bias", True)
    attended = fields.counted_dropout("attention_probs_dropout_prob", 0.0)
    dropped = fields.counted_dropout("hidden_dropout_prob", 0.0)
    patches = (image // patch) ** 2
    common = fields.common(fields.share("layer_norm_eps", 1e-12)) | {"tokens": patches + 1, "hidden": hidden}
    common |= {"dropout": dropped}
    embedding = InputProjection(**common, features=channels * patch**2, groups=patches, class_token=True, positions=True)
    attention = Attention(**common, heads=heads, kv_heads=heads, width=hidden // heads, bias=bias, attention_dropout=attended)
    ffn = FeedForward(**common, inner=inner, activation=activation)
    head = ValueHead(**common, values=labels)
    return uniform_chain(embedding, layers, {"attention": attention, "ffn": ffn}, head), False


# As of transformers' ViTConfig.
FIELDS = names(
    """
    hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_act hidden_dropout_prob
    attention_probs_dropout_prob layer_norm_eps image_size patch_size num_channels qkv_bias encoder_stride
    pooler_output_size pooler_act
    """
)
FAMILY = Family(vit, fields=FIELDS)
