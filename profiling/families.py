"""Builders: a Hugging Face configuration becomes a chain of sub-layers. One function for each family.

A builder reads its fields through `Fields`, which checks them and notes what was read: that, with its defaults filled in, is
the architecture which a plan or a profile carries, and from which the same chain can be built again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trainplan.profiling.errors import InputError, shown
from trainplan.profiling.sublayers import (
    Attention,
    FeedForward,
    InputProjection,
    LanguageHead,
    Norm,
    PatchMerging,
    Sublayer,
    TokenEmbedding,
    Upsample,
    ValueHead,
)

LARGEST = 10**7
MOST_LAYERS = 4096


@dataclass(frozen=True)
class Unit:
    """One sub-layer of the chain. `layer` numbers the layers that a planner decides on: embedding 0, blocks 1.., head last."""

    name: str
    layer: int
    sublayer: Sublayer

    @property
    def kind(self) -> str:
        return self.sublayer.kind


@dataclass
class Fields:
    """A configuration under reading. `read` collects what was used. Every fault is an InputError naming the field."""

    config: Mapping[str, Any]
    where: str
    sequence: int | None = None
    dtype: str = "float32"
    read: dict[str, Any] = field(default_factory=dict)

    def fail(self, name: str, problem: str, fix: str) -> InputError:
        return InputError(self.where, name, problem, fix)

    def _value(self, name: str, default: Any) -> Any:
        value = self.config.get(name)
        if value is None:
            value = default
        if value is None:
            raise self.fail(name, "is missing", "give a Hugging Face config.json with it")
        self.read[name] = value
        return value

    def count(self, name: str, default: int | None = None, least: int = 1, most: int = LARGEST) -> int:
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.fail(name, f"is {shown(value)}", f"give a whole number from {least} to {most}")
        return value

    def layers(self, name: str, default: int | None = None) -> int:
        return self.count(name, default, most=MOST_LAYERS)

    def counts(self, name: str, least: int = 1, length: int | None = None) -> list[int]:
        value = self._value(name, None)
        if not isinstance(value, list) or not 1 <= len(value) <= 16 or (length is not None and len(value) != length):
            wanted = f"a list of {length}" if length else "a list of up to 16"
            raise self.fail(name, f"is {shown(value)}", f"give {wanted} whole numbers")
        for i, item in enumerate(value):
            if isinstance(item, bool) or not isinstance(item, int) or not least <= item <= LARGEST:
                raise self.fail(f"{name}[{i}]", f"is {shown(item)}", f"give a whole number from {least} to {LARGEST}")
        return value

    def share(self, name: str, default: float, most: float = 1.0) -> float:
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < most:
            raise self.fail(name, f"is {shown(value)}", f"give a number between 0 and {most:g}, such as {default:g}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self.fail(name, f"is {shown(value)}", "give true or false")
        return value

    def choice(self, name: str, default: str, known: Mapping[str, str]) -> str:
        value = self._value(name, default)
        if not isinstance(value, str) or value not in known:
            raise self.fail(name, f"is {shown(value)}", f"give {' or '.join(map(repr, known))}")
        return known[value]

    def dropout(self, *names: str, default: float = 0.1) -> bool:
        """Whether any of these probabilities is above 0."""
        found = False
        for name in names:
            value = self.config.get(name, default)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
                raise self.fail(name, f"is {shown(value)}", "give a probability from 0 to below 1, such as 0.1")
            found |= value > 0
        return found

    def absent(self, *names: str) -> None:
        """Features that trainplan's chains do not have."""
        for name in names:
            if self.config.get(name):
                raise self.fail(name, f"is {shown(self.config[name])}", "give false: trainplan's models do not have it")

    def divisor(self, name: str, value: int, of: str, size: int) -> None:
        if size % value:
            raise self.fail(name, f"is {value}", f"give a divisor of {of} = {size}")

    def length(self, name: str, most: int) -> int:
        """The sequence length asked for, at most what the model's positions allow."""
        length = most if self.sequence is None else self.sequence
        if not 1 <= length <= most:
            raise InputError("command line", "--sequence", f"is {length}", f"give 1 to {most} ({name} of {self.where})")
        return length

    def no_length(self) -> None:
        if self.sequence is not None:
            raise InputError("command line", "--sequence", f"is {self.sequence}", "leave it out: the image gives the tokens")

    def labels(self) -> int:
        given = self.config.get("id2label")
        names = len(given) if isinstance(given, Mapping) and given else 2
        return self.count("num_labels", names)

    def common(self, dropout: bool, epsilon: float) -> dict[str, Any]:
        """What every sub-layer of the chain shares."""
        implementation = self.config.get("attn_implementation", self.config.get("_attn_implementation"))
        unfused = implementation == "eager"
        if unfused:
            self.read["attn_implementation"] = "eager"
        return {"dtype": self.dtype, "epsilon": epsilon, "unfused": unfused, "dropout": unfused and dropout}


Chain = list[Unit]
GELUS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}


def _blocks(count: int, parts: Mapping[str, Sublayer], first_layer: int = 1, prefix: str = "block") -> Chain:
    return [
        Unit(f"{prefix}{i}.{name}", first_layer + i, part) for i in range(count) for name, part in parts.items()
    ]  # fmt: skip


def _gpt2(fields: Fields) -> tuple[Chain, bool]:
    hidden, heads, layers = fields.count("n_embd"), fields.count("n_head"), fields.layers("n_layer")
    positions, vocabulary = fields.count("n_positions"), fields.count("vocab_size")
    fields.divisor("n_head", heads, "n_embd", hidden)
    inner = fields.count("n_inner", 4 * hidden)
    activation: Any = fields.choice("activation_function", "gelu_new", {"gelu_new": "gelu_tanh"})
    fields.absent("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "add_cross_attention")
    dropped = fields.dropout("attn_pdrop", "resid_pdrop", "embd_pdrop")
    tied = fields.flag("tie_word_embeddings", True)
    common = fields.common(dropped, fields.share("layer_norm_epsilon", 1e-5))
    common |= {"tokens": fields.length("n_positions", positions), "hidden": hidden}
    attention = Attention(**common, heads=heads, kv_heads=heads, width=hidden // heads, causal=True)
    ffn = FeedForward(**common, inner=inner, activation=activation)
    embedding = TokenEmbedding(**common, vocabulary=vocabulary, positions=positions)
    head = LanguageHead(**common, vocabulary=vocabulary)
    return _stack(embedding, _blocks(layers, {"attention": attention, "ffn": ffn}), head), tied


def _stack(embedding: Sublayer, blocks: Chain, head: Sublayer) -> Chain:
    return [Unit("embedding", 0, embedding), *blocks, Unit("head", blocks[-1].layer + 1, head)]


def _bert(fields: Fields) -> tuple[Chain, bool]:
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    layers, positions = fields.layers("num_hidden_layers"), fields.count("max_position_embeddings")
    fields.divisor("num_attention_heads", heads, "hidden_size", hidden)
    vocabulary, inner = fields.count("vocab_size"), fields.count("intermediate_size", 4 * hidden)
    activation: Any = fields.choice("hidden_act", "gelu", {"gelu": "gelu"})
    fields.absent("is_decoder", "add_cross_attention")
    types = fields.count("type_vocab_size", 2, least=0)
    tied = fields.flag("tie_word_embeddings", True)
    dropped = fields.dropout("attention_probs_dropout_prob", "hidden_dropout_prob")
    common = fields.common(dropped, fields.share("layer_norm_eps", 1e-12))
    common |= {"tokens": fields.length("max_position_embeddings", positions), "hidden": hidden}
    attention = Attention(**common, heads=heads, kv_heads=heads, width=hidden // heads, post_norm=True)
    ffn = FeedForward(**common, inner=inner, activation=activation, post_norm=True)
    embedding = TokenEmbedding(**common, vocabulary=vocabulary, positions=positions, token_types=types)
    head = LanguageHead(**common, vocabulary=vocabulary, transform=True, bias=True)
    return _stack(embedding, _blocks(layers, {"attention": attention, "ffn": ffn}), head), tied


def _llama(fields: Fields) -> tuple[Chain, bool]:
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    layers, positions = fields.layers("num_hidden_layers"), fields.count("max_position_embeddings", 2048)
    kv_heads = fields.count("num_key_value_heads", heads)
    fields.divisor("num_key_value_heads", kv_heads, "num_attention_heads", heads)
    if fields.config.get("head_dim") is None:
        fields.divisor("num_attention_heads", heads, "hidden_size", hidden)
    width = fields.count("head_dim", max(1, hidden // heads))
    if width % 2:
        raise fields.fail("head_dim", f"is {width}", "give an even number: rotary positions turn pairs")
    vocabulary, inner = fields.count("vocab_size"), fields.count("intermediate_size")
    activation: Any = fields.choice("hidden_act", "silu", {"silu": "silu"})
    given = fields.config.get("rope_parameters")
    theta = given.get("rope_theta") if isinstance(given, Mapping) and "rope_theta" not in fields.config else None
    theta = fields.share("rope_theta", theta if isinstance(theta, int | float) else 10000.0, most=1e12)
    bias, inner_bias = fields.flag("attention_bias", False), fields.flag("mlp_bias", False)
    tied = fields.flag("tie_word_embeddings", False)
    common = fields.common(fields.dropout("attention_dropout", default=0.0), fields.share("rms_norm_eps", 1e-6))
    common |= {"tokens": fields.length("max_position_embeddings", positions), "hidden": hidden, "norm": "rms"}
    attention = Attention(
        **common, heads=heads, kv_heads=kv_heads, width=width, causal=True, bias=bias, out_bias=bias, rotary=theta
    )
    ffn = FeedForward(**common, inner=inner, activation=activation, gated=True, bias=inner_bias)
    embedding, head = TokenEmbedding(**common, vocabulary=vocabulary), LanguageHead(**common, vocabulary=vocabulary)
    return _stack(embedding, _blocks(layers, {"attention": attention, "ffn": ffn}), head), tied


def _t5(fields: Fields) -> tuple[Chain, bool]:
    """Both streams travel together: the decoder's tokens pass the encoder by, the encoder's result passes the decoder by.

    decoder_positions: our own field, the decoder's length where it is not the encoder's (T5-512/4).
    """
    hidden, heads, width = fields.count("d_model"), fields.count("num_heads"), fields.count("d_kv")
    encoders = fields.layers("num_layers")
    decoders, vocabulary = fields.layers("num_decoder_layers", encoders), fields.count("vocab_size")
    positions, buckets = fields.count("n_positions", 512), fields.count("relative_attention_num_buckets", 32)
    inner, tied = fields.count("d_ff"), fields.flag("tie_word_embeddings", True)
    gated = {"relu": "relu", "gated-gelu": "gelu_tanh", "gated-silu": "silu"}
    activation: Any = fields.choice("feed_forward_proj", "relu", gated)
    common = fields.common(fields.dropout("dropout_rate"), fields.share("layer_norm_epsilon", 1e-6))
    long = positions if fields.sequence is None else fields.sequence
    if not 1 <= long <= LARGEST:
        raise InputError("command line", "--sequence", f"is {long}", f"give 1 to {LARGEST}")
    short = fields.count("decoder_positions", long) if "decoder_positions" in fields.config else long
    common |= {"hidden": hidden, "norm": "rms"}
    encoder = common | {"tokens": long, "carried_tokens": short}
    decoder = common | {"tokens": short, "carried_tokens": long}
    projected: dict[str, Any] = {"heads": heads, "kv_heads": heads, "width": width, "scale": 1.0}
    projected |= {"bias": False, "out_bias": False}
    inside = {"inner": inner, "activation": activation, "bias": False, "inner_dropout": True}
    inside["gated"] = fields.read["feed_forward_proj"] != "relu"
    chain = [Unit("embedding", 0, TokenEmbedding(**common, tokens=long + short, vocabulary=vocabulary))]
    for i in range(encoders):
        biased: dict[str, Any] = {"relative": "t5", "buckets": buckets, "holds_table": i == 0}
        parts = {"attention": Attention(**encoder, **projected, **biased), "ffn": FeedForward(**encoder, **inside)}
        chain += [Unit(f"encoder{i}.{name}", i + 1, part) for name, part in parts.items()]
    chain.append(Unit("encoder.norm", encoders, Norm(**encoder)))
    for i in range(decoders):
        biased = {"relative": "t5-causal", "buckets": buckets, "holds_table": i == 0, "causal": True}
        parts = {
            "attention": Attention(**decoder, **projected, **biased),
            "cross": Attention(**decoder, **projected, memory_tokens=long),
            "ffn": FeedForward(**decoder, **inside),
        }
        chain += [Unit(f"decoder{i}.{name}", encoders + i + 1, part) for name, part in parts.items()]
    head = LanguageHead(**common, tokens=short, vocabulary=vocabulary, scale=hidden**-0.5 if tied else 1.0)
    return [*chain, Unit("head", encoders + decoders + 1, head)], tied


def _vit(fields: Fields) -> tuple[Chain, bool]:
    fields.no_length()
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    layers, inner = fields.layers("num_hidden_layers"), fields.count("intermediate_size", 4 * hidden)
    fields.divisor("num_attention_heads", heads, "hidden_size", hidden)
    image, patch = fields.count("image_size", 224), fields.count("patch_size", 16)
    channels, labels = fields.count("num_channels", 3), fields.labels()
    fields.divisor("patch_size", patch, "image_size", image)
    activation: Any = fields.choice("hidden_act", "gelu", GELUS)
    bias = fields.flag("qkv_bias", True)
    dropped = fields.dropout("attention_probs_dropout_prob", "hidden_dropout_prob", default=0.0)
    patches = (image // patch) ** 2
    common = fields.common(dropped, fields.share("layer_norm_eps", 1e-12)) | {"tokens": patches + 1, "hidden": hidden}
    embedding = InputProjection(
        **common, features=channels * patch**2, groups=patches, class_token=True, positions=True
    )  # fmt: skip
    attention = Attention(**common, heads=heads, kv_heads=heads, width=hidden // heads, bias=bias)
    ffn = FeedForward(**common, inner=inner, activation=activation)
    blocks = _blocks(layers, {"attention": attention, "ffn": ffn})
    return _stack(embedding, blocks, ValueHead(**common, values=labels)), False


def _swin(fields: Fields) -> tuple[Chain, bool]:
    """Every second block shifts its windows by half of their side, unless one window covers all."""
    fields.no_length()
    width, depths = fields.count("embed_dim"), fields.counts("depths")
    heads = fields.counts("num_heads", length=len(depths))
    image, patch, window = fields.count("image_size", 224), fields.count("patch_size", 4), fields.count("window_size", 7)
    channels, labels, bias = fields.count("num_channels", 3), fields.labels(), fields.flag("qkv_bias", True)
    ratio, activation = fields.share("mlp_ratio", 4.0, most=64), fields.choice("hidden_act", "gelu", GELUS)
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


def _transgan(fields: Fields) -> tuple[Chain, bool]:
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


FAMILIES: dict[str, Callable[[Fields], tuple[Chain, bool]]] = {
    "gpt2": _gpt2,
    "bert": _bert,
    "llama": _llama,
    "t5": _t5,
    "vit": _vit,
    "swin": _swin,
    "transgan": _transgan,
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
