"""Decoders with the usual field names: their sizes, and a chain of embedding, blocks and language head.

The module of a family reads the fields that are its own, and declares its units with the methods of `Decoder`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from trainplan.profiling.base.errors import caution, shown
from trainplan.profiling.models.families.class_defaults import class_sizes
from trainplan.profiling.models.families.fields import USUAL_SIZES, Fields, Role, Unit, chain, names
from trainplan.profiling.models.sublayers import (
    Attention,
    Experts,
    FeedForward,
    LanguageHead,
    Sublayer,
    TokenEmbedding,
)

MOST_POSITIONS = 2**26
LAYER_TYPES = ("full_attention", "sliding_attention")
SIZES: dict[Role, str] = {**USUAL_SIZES, "width": "head_dim"}
# Fields that every such family has in transformers; the last two are of its earlier versions.
USUAL_FIELDS = names(
    """
    vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim
    max_position_embeddings attention_dropout rope_parameters
    rope_theta rope_scaling
    """
)


@dataclass(frozen=True)
class Decoder:
    """Sizes of a decoder-only model, and constructors of its sub-layers, which are the units of its chain.

    hidden: hidden size. heads, kv_heads: number of heads of queries, and of keys and values. width: size of a head. layers:
    number of blocks. positions: the longest sequence in tokens. vocabulary: number of tokens in the embedding table. inner:
    output size of the feed-forward network's up-projection. common: keyword arguments that all sub-layers get.
    """

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
        """The sequence length: tokens per sample."""
        return int(self.common["tokens"])

    def changed(self, **fields: Any) -> Decoder:
        """A copy whose sub-layers get the given keyword arguments in addition to the common ones."""
        return replace(self, common={**self.common, **fields})

    def attention(self, **fields: Any) -> Attention:
        """A causal attention sub-layer with these sizes. fields: further keyword arguments of `Attention`."""
        return Attention(**self.common, heads=self.heads, kv_heads=self.kv_heads, width=self.width, causal=True, **fields)

    def feed_forward(self, **fields: Any) -> FeedForward:
        """A feed-forward sub-layer with these sizes. fields: further keyword arguments of `FeedForward`."""
        return FeedForward(**{**self.common, "inner": self.inner, **fields})

    def experts(self, **fields: Any) -> Experts:
        """A mixture of experts as a sub-layer, in place of a feed-forward network. fields: further keyword arguments of
        `Experts`: at least their number, how many work on a token, and their inner size."""
        return Experts(**{**self.common, **fields})

    def embedding(self, **fields: Any) -> TokenEmbedding:
        """The sub-layer that embeds token ids. fields: further keyword arguments of `TokenEmbedding`."""
        return TokenEmbedding(**self.common, vocabulary=self.vocabulary, **fields)

    def head(self, **fields: Any) -> LanguageHead:
        """The language head: final norm and logits. fields: further keyword arguments of `LanguageHead`."""
        return LanguageHead(**self.common, vocabulary=self.vocabulary, **fields)

    def uniform(self, parts: Mapping[str, Sublayer], embedding: Sublayer, head: Sublayer | None = None) -> list[Unit]:
        """Build the chain of a model whose blocks are all equal: the units (named sub-layers) in order: embedding, `layers`
        blocks and head.

        parts: the sub-layers of a block by name, in order. head: None for the plain language head.
        """
        return self.varied([parts] * self.layers, embedding, head)

    def varied(self, blocks: Sequence[Mapping[str, Sublayer]], embedding: Sublayer, head: Sublayer | None = None) -> list[Unit]:
        """Build the chain of a model with the given blocks: the units (named sub-layers) in order: embedding, blocks and head.

        blocks: the sub-layers of each block by name, in order. head: None for the plain language head.
        """
        return chain(embedding, blocks, self.head() if head is None else head)

    def patterned(
        self,
        mixers: Sequence[Sublayer | None],
        networks: Sequence[Sublayer | None],
        embedding: Sublayer,
        head: Sublayer | None = None,
    ) -> list[Unit]:
        """Build the chain of a model each of whose layers has its own two units: one that mixes tokens (attention, latent
        attention, a state space), then one that works on each token (a feed-forward network, experts). Returns the units (named
        sub-layers) in order: embedding, layers and head; a layer's units are named by their kinds.

        mixers, networks: the two of each layer, in order; None where a layer has only the other one. head: None for the plain
        language head.
        """
        layers = [[part for part in pair if part is not None] for pair in zip(mixers, networks, strict=True)]
        return self.varied([{part.kind: part for part in parts} for parts in layers], embedding, head)


def decoder(
    fields: Fields,
    norm: Literal["layer", "rms"] = "rms",
    epsilon: str = "rms_norm_eps",
    usual_epsilon: float = 1e-6,
    width: int | None = None,
) -> Decoder:
    """Read the sizes of a decoder-only model from a configuration with the usual field names.

    fields: the configuration. norm: the kind of all norms. epsilon: the name of the field with the norms' epsilon;
    usual_epsilon: its value if the field is absent. width: size of a head if the configuration has no `head_dim`; None takes
    hidden size over heads. Raises InputError for fields that are missing or invalid.
    """
    hidden, heads = fields.size("hidden_size", 4096), fields.size("num_attention_heads", 32)
    layers, positions = (
        fields.layers("num_hidden_layers", such_as=32),
        fields.count("max_position_embeddings", most=MOST_POSITIONS, such_as=4096),
    )
    kv_heads = _kv_heads(fields, heads)
    if fields.config.get("head_dim") is None and width is None:
        fields.divisor("num_attention_heads", heads, "hidden_size", hidden)
    width = fields.count("head_dim", max(1, hidden // heads) if width is None else width)
    vocabulary, inner = fields.size("vocab_size", 32000), fields.size("intermediate_size", 11008)
    common = fields.common(fields.share(epsilon, usual_epsilon))
    common |= {"tokens": fields.length("max_position_embeddings", positions), "hidden": hidden, "norm": norm}
    return Decoder(hidden, heads, kv_heads, width, layers, positions, vocabulary, inner, common)


def _kv_heads(fields: Fields, heads: int) -> int:
    """Read the number of heads of keys and values, with a warning if the configuration does not state it.

    fields: the configuration; fields that are read are recorded in it. heads: the number of heads of queries, which it must
    divide; else InputError is raised.
    """
    usual = heads
    if fields.config.get("num_key_value_heads") is None:
        usual, why = _usual_kv_heads(fields, heads)
        fix = f"{usual} are taken, {why}; give it where they are {'fewer' if usual == heads else 'others'}"
        caution(fields.where, f"{fields.part}num_key_value_heads", "is missing", fix)
    kv_heads = fields.count("num_key_value_heads", usual)
    fields.divisor("num_key_value_heads", kv_heads, "num_attention_heads", heads)
    return kv_heads


def _usual_kv_heads(fields: Fields, heads: int) -> tuple[int, str]:
    """The number of heads of keys and values to assume for a file that states none, and the reason as text.

    It is the default of the family's class in transformers, if that divides `heads`, the number of heads of queries; else
    `heads`. fields: the configuration; fields that are read are recorded in it.
    """
    own = class_sizes(str(fields.read.get("model_type"))).get("num_key_value_heads", heads)
    if "num_key_value_heads" in fields.config or own == heads or heads % own:
        return heads, "as many as num_attention_heads"
    return own, "as transformers' class has them"


def sliding_window(fields: Fields, missing: int | None = None) -> int:
    """Read the sliding window: the number of keys that a query attends to, itself included; 0 for all, if `sliding_window` is
    null.

    fields: the configuration; fields that are read are recorded in it. missing: the number that transformers takes for files
    without the field; None takes all keys. Raises InputError for a value that is no whole number above 0.
    """
    value = fields.config.get("sliding_window", missing)
    fields.read["sliding_window"] = value
    if value is None:
        return 0
    if type(value) is not int or value < 1:
        raise fields.fail("sliding_window", f"is {shown(value)}", "give null, or a whole number of tokens, such as 4096")
    return int(value)


def layer_windows(fields: Fields, layers: int, window: int, usual: Sequence[bool]) -> list[int]:
    """The sliding window of each layer in tokens, 0 for a layer that attends to all earlier keys, from the field
    `layer_types`.

    fields: the configuration; fields that are read are recorded in it. layers: the number of layers. window: the window of
    sliding layers, in tokens. usual: whether each layer slides if the configuration has no `layer_types`. Raises InputError
    for an invalid list.
    """
    types = fields.config.get("layer_types")
    if types is None:
        return [window if slides else 0 for slides in usual]
    if not isinstance(types, list) or len(types) != layers:
        length = f"{len(types)} types" if isinstance(types, list) else shown(types)
        raise fields.fail("layer_types", f"has {length}", f"give one of {', '.join(LAYER_TYPES)} for each of {layers} layers")
    for index, layer_type in enumerate(types):
        if layer_type not in LAYER_TYPES:
            raise fields.fail(f"layer_types[{index}]", f"is {shown(layer_type)}", f"give one of: {', '.join(LAYER_TYPES)}")
    fields.read["layer_types"] = types
    return [window if layer_type == "sliding_attention" else 0 for layer_type in types]
