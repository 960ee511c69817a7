"""MPT: no biases at all, and ALiBi slopes on scores in place of positions."""

from __future__ import annotations

from collections.abc import Mapping

from trainplan.profiling.base.errors import shown
from trainplan.profiling.models.families.decoder import Decoder
from trainplan.profiling.models.families.fields import Family, Fields, Unit, names

ATTENTION = "attn_config"


def mpt(fields: Fields) -> tuple[list[Unit], bool]:
    """Build the chain of sub-layers of an MPT model with ALiBi and without biases.

    The slopes follow the field `alibi_bias_max`; transformers takes 8 whatever the field says. fields: the configuration
    (config.json), written to: `fields.read` gets every field that is read, with its value. Returns the units (sub-layers with
    names) in order, and whether head and embedding share one matrix. Raises InputError for fields that are missing or
    invalid.
    """
    hidden, heads, layers = fields.size("d_model", 2048), fields.size("n_heads", 16), fields.layers("n_layers", such_as=24)
    positions, vocabulary = fields.size("max_seq_len", 2048), fields.size("vocab_size", 50368)
    fields.divisor("n_heads", heads, "d_model", hidden)
    fields.only("expansion_ratio", 4)
    fields.only("no_bias", True)
    fields.absent("logit_scale")
    settings = fields.config.get(ATTENTION)
    if settings is not None and not isinstance(settings, Mapping):
        raise fields.fail(ATTENTION, f"is {shown(settings)}", 'give an object such as {"alibi": true}')
    part = Fields(settings or {}, fields.where, part=f"{fields.part}{ATTENTION}.")
    part.absent("clip_qkv", "qk_ln", "prefix_lm")
    part.only("attn_type", "multihead_attention")
    part.only("alibi", True)
    slopes, dropped = part.count("alibi_bias_max", 8), part.dropout("attn_pdrop", default=0)
    scale = part.share("softmax_scale", (hidden // heads) ** -0.5, most=1e3)
    fields.read[ATTENTION] = part.read
    tied = fields.flag("tie_word_embeddings", True)
    common = fields.common(fields.share("layer_norm_epsilon", 1e-5))
    common |= {"tokens": fields.length("max_seq_len", positions), "hidden": hidden, "norm_bias": False}
    sizes = Decoder(hidden, heads, heads, hidden // heads, layers, positions, vocabulary, 4 * hidden, common)
    plain = {"bias": False, "dropout": dropped}
    attention = sizes.attention(**plain, out_bias=False, alibi=float(slopes), scale=scale, attention_dropout=dropped)
    return sizes.uniform({"attention": attention, "ffn": sizes.feed_forward(**plain)}, sizes.embedding()), tied


# As of transformers' MptConfig; the last ones are of its earlier versions, and of published files.
FIELDS = names(
    """
    d_model n_heads n_layers expansion_ratio max_seq_len vocab_size resid_pdrop layer_norm_epsilon emb_pdrop learned_pos_emb
    attn_config init_device logit_scale no_bias embedding_fraction norm_type
    verbose init_config
    """
)
ALIASES = {"num_attention_heads": "n_heads", "hidden_size": "d_model", "num_hidden_layers": "n_layers"}
FAMILY = Family(mpt, {}, FIELDS, ALIASES)
