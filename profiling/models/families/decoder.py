"""What decoders of today share: their sizes by the usual names, and a chain of embedding, blocks and language head.

A family's module reads what is its own, and declares its units with the methods of `Decoder`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from trainplan.profiling.base.errors import caution, shown
from trainplan.profiling.models.families.class_defaults import class_sizes
from trainplan.profiling.models.families.fields import USUAL_SIZES, Fields, Role, Unit, chain, names
from trainplan.profiling.models.sublayers import Attention, FeedForward, LanguageHead, Sublayer, TokenEmbedding

LAYER_TYPES = ("full_attention", "sliding_attention")
SIZES: dict[Role, str] = {**USUAL_SIZES, "width": "head_dim"}
# Of every such family in transformers; the last two are of its earlier versions.
USUAL_FIELDS = names(
    """
    vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim
    max_position_embeddings attention_dropout rope_parameters
    rope_theta rope_scaling
    """
)


@dataclass(frozen=True)
class Decoder:
    """The sizes of a decoder's configuration, and its units. common: keyword arguments of all of them."""

    hidden: int
    heads: int
    kv_heads: int
    width: int
    layers: int
    positions: int
    vocabulary: int
    inner: int
    common: Mapping[str, Any]

    @property
    def tokens(self) -> int:
        """Of a sample."""
        return int(self.common["tokens"])

    def changed(self, **fields: Any) -> Decoder:
        """The same sizes with these keyword arguments of all units, too."""
        return replace(self, common={**self.common, **fields})

    def attention(self, **fields: Any) -> Attention:
        """Causal attention."""
        return Attention(**self.common, heads=self.heads, kv_heads=self.kv_heads, width=self.width, causal=True, **fields)

    def feed_forward(self, **fields: Any) -> FeedForward:
        """The feed-forward network."""
        return FeedForward(**self.common, inner=self.inner, **fields)

    def embedding(self, **fields: Any) -> TokenEmbedding:
        """The table of tokens."""
        return TokenEmbedding(**self.common, vocabulary=self.vocabulary, **fields)

    def head(self, **fields: Any) -> LanguageHead:
        """Final norm and logits."""
        return LanguageHead(**self.common, vocabulary=self.vocabulary, **fields)

    def uniform(self, parts: Mapping[str, Sublayer], embedding: Sublayer, head: Sublayer | None = None) -> list[Unit]:
        """The chain of equal blocks of these parts. head: default a plain one."""
        return self.varied([parts] * self.layers, embedding, head)

    def varied(self, blocks: Sequence[Mapping[str, Sublayer]], embedding: Sublayer, head: Sublayer | None = None) -> list[Unit]:
        """The chain of these blocks, each by its parts."""
        return chain(embedding, blocks, self.head() if head is None else head)


def decoder(
    fields: Fields,
    norm: Literal["layer", "rms"] = "rms",
    epsilon: str = "rms_norm_eps",
    usual_epsilon: float = 1e-6,
    width: int | None = None,
) -> Decoder:
    """The sizes of a configuration with the usual names. epsilon: the field of the norms'. width: of a head, where neither
    `head_dim` nor hidden size and heads say it (None: the hidden size over the heads). Raises InputError."""
    hidden, heads = fields.size("hidden_size", 4096), fields.size("num_attention_heads", 32)
    layers, positions = fields.layers("num_hidden_layers", such_as=32), fields.size("max_position_embeddings", 4096)
    kv_heads = _kv_heads(fields, heads)
    if fields.config.get("head_dim") is None and width is None:
        fields.divisor("num_attention_heads", heads, "hidden_size", hidden)
    width = fields.count("head_dim", max(1, hidden // heads) if width is None else width)
    vocabulary, inner = fields.size("vocab_size", 32000), fields.size("intermediate_size", 11008)
    common = fields.common(fields.share(epsilon, usual_epsilon))
    common |= {"tokens": fields.length("max_position_embeddings", positions), "hidden": hidden, "norm": norm}
    return Decoder(hidden, heads, kv_heads, width, layers, positions, vocabulary, inner, common)


def _kv_heads(fields: Fields, heads: int) -> int:
    usual = heads
    if fields.config.get("num_key_value_heads") is None:
        usual, why = _usual_kv_heads(fields, heads)
        fix = f"{usual} are taken, {why}; give it where they are {'fewer' if usual == heads else 'others'}"
        caution(fields.where, f"{fields.part}num_key_value_heads", "is missing", fix)
    kv_heads = fields.count("num_key_value_heads", usual)
    fields.divisor("num_key_value_heads", kv_heads, "num_attention_heads", heads)
    return kv_heads


def _usual_kv_heads(fields: Fields, heads: int) -> tuple[int, str]:
    """Heads of keys and values of a file without them, and why: those of the family's class, where they divide heads."""
    own = class_sizes(str(fields.read.get("model_type"))).get("num_key_value_heads", heads)
    if "num_key_value_heads" in fields.config or own == heads or heads % own:
        return heads, "as many as num_attention_heads"
    return own, "as transformers' class has them"


def sliding_window(fields: Fields, missing: int | None = None) -> int:
    """The keys that a query of a sliding layer meets, itself among them, from `sliding_window`; 0: all, which null means.

    missing: what transformers takes for files without the field.
    """
    value = fields.config.get("sliding_window", missing)
    fields.read["sliding_window"] = value
    if value is None:
        return 0
    if type(value) is not int or value < 1:
        raise fields.fail("sliding_window", f"is {shown(value)}", "give null, or a whole number of tokens, such as 4096")
    return int(value)


def layer_windows(fields: Fields, layers: int, window: int, usual: Sequence[bool]) -> list[int]:
    """Of each layer its sliding window; 0 where a query meets all keys before it. usual: which layers slide where the
    configuration has no `layer_types`. Raises InputError."""
    types = fields.config.get("layer_types")
    if types is None:
        return [window if slides else 0 for slides in usual]
    if not isinstance(types, list) or len(types) != layers:
        length = f"{len(types)} types" if isinstance(types, list) else shown(types)
        raise fields.fail("layer_types", f"has {length}", f"give one of {', '.join(LAYER_TYPES)} for each of {layers} layers")
    for index, each in enumerate(types):
        if each not in LAYER_TYPES:
            raise fields.fail(f"layer_types[{index}]", f"is {shown(each)}", f"give one of: {', '.join(LAYER_TYPES)}")
    fields.read["layer_types"] = types
    return [window if each == "sliding_attention" else 0 for each in types]
