"""Describe, for the error that refuses it, a configuration of a family that trainplan does not have."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainplan.profiling.base.errors import InputError, shown
from trainplan.profiling.models.families.classes import other_file
from trainplan.profiling.models.families.fields import Family, Fields, Unit, names
from trainplan.profiling.shipped import known_configs, mixture_of

EXPERTS = re.compile(r"(^|_)(n|num|number_of)_(\w+_)?experts$|^n_?experts?$|^num_experts_total$")
NO_COUNT = re.compile(r"shared|selected|activ|_per_|top|group|zero|dense|limit|copy")
CHOSEN = names(
    """
    num_experts_per_tok num_experts_per_token experts_per_token experts_per_tok moe_topk moe_top_k moe_k num_selected_experts
    top_k_experts n_activated_experts num_activated_experts n_experts_per_token moe_router_topk router_topk topk
    """
)
OFF = (
    "is_moe",
    "enable_moe_block",
    "use_moe",
    "moe",
)  # fields that are false in files of dense models that state numbers of experts
NESTED = ("text_config", "ffn_config", "moe_config", "llm_config", "language_config", "thinker_config")
# Numbers of experts, and of those that process each token, where a file leaves out its class's defaults in transformers 5;
# those of dots1, whose class has no defaults, are of its publisher's file.
MIXTURES: dict[str, tuple[int, int]] = {
    "afmoe": (64, 6),
    "aria_text": (8, 2),
    "axk1": (192, 8),
    "axk2": (128, 8),
    "bailing_hybrid": (512, 8),
    "cohere2_moe": (8, 2),
    "dbrx": (4, 1),
    "deepseek_v2": (64, 6),
    "deepseek_v3": (256, 8),
    "deepseek_v32": (256, 8),
    "deepseek_v4": (256, 6),
    "doge": (16384, 64),
    "dots1": (128, 6),
    "ernie4_5_moe": (64, 6),
    "ernie4_5_vl_moe_text": (64, 6),
    "exaone_moe": (64, 8),
    "flex_olmo": (7, 5),
    "flint": (256, 6),
    "glm4_moe": (128, 8),
    "glm4_moe_lite": (64, 4),
    "glm4v_moe_text": (128, 8),
    "glm_moe_dsa": (256, 8),
    "gpt_oss": (128, 4),
    "granitemoe": (8, 2),
    "granitemoe_swa": (8, 2),
    "granitemoeshared": (8, 2),
    "hy_v3": (192, 8),
    "hy_v4": (256, 8),
    "jamba": (16, 2),
    "jetmoe": (8, 2),
    "kimi_linear": (256, 8),
    "laguna": (256, 8),
    "lfm2_moe": (32, 4),
    "llama4": (16, 1),
    "llama4_text": (16, 1),
    "longcat_flash": (512, 12),
    "mellum": (64, 8),
    "mimo_v2_flash": (256, 8),
    "minimax": (8, 2),
    "minimax_m2": (256, 8),
    "minimax_m3_vl_text": (128, 4),
    "mistral4": (128, 4),
    "mixtral": (8, 2),
    "olmoe": (64, 8),
    "phimoe": (16, 2),
    "qwen2_moe": (60, 4),
    "qwen3_5_moe_text": (256, 8),
    "qwen3_moe": (128, 8),
    "qwen3_next": (512, 10),
    "qwen3_omni_moe_text": (128, 8),
    "qwen3_vl_moe_text": (60, 4),
    "solar_open": (128, 8),
    "step3p5": (288, 8),
    "zaya": (16, 1),
}
VARIED = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "num_kv_heads", "ffn_hidden_size")
DENSE = "give a dense decoder, or --model NAME"
SHOWS = "`trainplan model show` has this one's parameters, flops and bytes"
MOST_NAMED = 12
OTHER_INPUT = re.compile(
    r"^(vision|visual|audio|speech)(_\w+)?$|^mm_(vision|hidden|projector)|^img_processor$|_(vision|audio)_config$"
)
STATES = "state-space, linear-attention or convolution layers"
STATE_TYPES = names(
    """
    mamba mamba2 falcon_mamba rwkv rwkv5 rwkv6 rwkv7 recurrent_gemma xlstm bamba zamba zamba2 falcon_h1 nemotron_h lfm2 lfm3
    qwen3_next qwen3_5 qwen3_5_text olmo_hybrid kimi_linear bailing_hybrid granitemoehybrid minimax retnet hyena stripedhyena
    """
)
STATE_FIELD = re.compile(r"^(ssm_|mamba_|linear_(num|key|value|conv)|lru_|rwkv_)|^(state_size|time_step_rank|conv_L_cache)$")
STATE_LAYERS = re.compile(r"linear|mamba|recurrent|conv|rwkv|lightning")
ENCODERS = re.compile(r"bert|electra|bird|ernie$|roformer|canine|fnet|nystromformer|mpnet|perceiver")
# Other fields of decoders with features that no family of trainplan has.
FEATURES = {
    "kv_lora_rank": "keys and values of low rank (multi-head latent attention)",
    "attention_chunk_size": "attention in chunks",
    "keep_window_size": "attention under a learned mask",
    "hidden_size_per_layer_input": "embeddings of each layer",
    "num_kv_shared_layers": "layers that share keys and values",
    "cross_attention_layers": "layers that attend to images",
    "block_configs": "blocks of different sizes",
    "num_key_value_heads_per_layer": "layers of different heads",
    "num_query_heads": "layers of different heads",
    "blocksparse_block_size": "sparse attention",
    "sparse_config": "sparse attention",
    "position_encoding_2d": "positions in two dimensions",
    "num_nextn_predict_layers": "layers that predict further tokens",
    "use_cla": "layers that share keys and values",
    "lambda_std_dev": "attention that is a difference of two",
    "altup_num_inputs": "several streams of hidden states",
}


def refuse_unread(fields: Fields, families: Mapping[str, Family]) -> InputError:
    """Build the error about a configuration of an unknown model family, for the caller to raise. It names the kind of model,
    or the known model or family that is closest to it.

    families: all known families, by `model_type`.
    """
    config, kind = fields.config, fields.config.get("model_type")
    usual = f"give a config of one of: {', '.join(list(families)[:MOST_NAMED])} and {len(families) - MOST_NAMED} others"
    if "model_type" not in config:
        if (file := other_file(config)) is not None:
            return fields.fail("model_type", f"is missing: this is {file[0]}", file[1])
        return fields.fail("model_type", "is missing", usual)
    described = unsupported_kind(config)
    if described is not None:
        return fields.fail("model_type", f"is {shown(kind)}: {described} is not planned", DENSE)
    known = [name for name, family in families.items() if family.fields is not None]
    fix = usual
    if nearest := _nearest(config, {name: families[name] for name in known}):
        name, unlike = nearest
        others = f", which does not read {', '.join(unlike[:6])}" if unlike else ""
        fix = f'its fields are nearest to a {name}{others}: give "model_type": "{name}" only if its layers are the same'
    if (twin := _same_sizes(config)) is not None:
        fix = f"--model {twin} has the same sizes, and stands in for it; {fix}"
    return fields.fail("model_type", f"is {shown(kind)}, which trainplan does not read", fix)


def _varied(config: Mapping[str, Any]) -> str | None:
    """The name of a field with a size that varies by layer, because its value is a list with a number per layer; None if no
    size varies.
    """
    return next((name for name in VARIED if isinstance(config.get(name), list)), None)


def refuse_features(fields: Fields, described: Family) -> None:
    """Raise InputError for features that no family of trainplan has, such as low-rank keys and values.

    described: the configuration's family; a field that this family reads itself is not refused.
    """
    for name, what in FEATURES.items():
        value = fields.config.get(name)
        if value and name not in (described.fields or ()):
            raise fields.fail(name, f"is {shown(value)}: a model with {what} is not planned", DENSE)
    if (varied := _varied(fields.config)) is not None:
        problem = f"is {shown(fields.config[varied])}: a model with layers of different sizes is not planned"
        raise fields.fail(varied, problem, DENSE)


def refuse_unplanned(fields: Fields, units: Sequence[Unit]) -> None:
    """Raise InputError if any unit of a model's chain, read from these fields, has what is not planned yet, such as experts."""
    features = dict.fromkeys(feature for unit in units if (feature := unit.sublayer.unplanned_feature))
    if features:
        problem = f"is {shown(fields.config.get('model_type'))}: plans of {' and '.join(features)}: not yet"
        raise fields.fail("model_type", problem, f"{DENSE}; {SHOWS}")


def check_dense(fields: Fields, reads: bool = False) -> None:
    """Raise InputError for a mixture of experts, recognised by any of its fields or its `model_type`; other models pass.

    reads: whether the model's family is read and shown, as the error then says."""
    kind = str(fields.config.get("model_type"))
    fix = f"give a dense model; {SHOWS}" if reads else "give a dense model"
    counted = False
    for path, config in _nested_configs(fields.config):
        if any(config.get(name) is False for name in OFF) or (kind == "doge" and not config.get("is_moe")):
            return
        for name, value in config.items():
            counted = counted or (_counts_experts(name) and value is not None)
            if _counts_experts(name) and (count := _experts(value)) > 1:
                chosen = next((_experts(config[key]) for key in config if key in CHOSEN and _experts(config[key])), 0)
                raise fields.fail(path + name, f"is {shown(value)}: {mixture_of(count, chosen)} is not planned yet", fix)
    if kind in MIXTURES and all(value is None for name, value in fields.config.items() if _counts_experts(name)):
        raise fields.fail("model_type", f"is {kind!r}: {mixture_of(*MIXTURES[kind])} is not planned yet", fix)
    if reads and counted:  # one expert or none: a dense model
        return
    if "moe" in re.split(r"[^a-z]+", kind.lower()) or kind.lower().endswith("moe"):
        raise fields.fail("model_type", f"is {kind!r}: a mixture of experts is not planned yet", fix)


def _counts_experts(name: str) -> bool:
    """Whether a field of this name counts experts that a router chooses from."""
    return bool(EXPERTS.search(name)) and not NO_COUNT.search(name)


def _nested_configs(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield a configuration and the configurations nested in it, as pairs of the prefix of its fields' names ("" or such as
    "text_config.") and its fields.
    """
    yield "", config
    for name in NESTED:
        if isinstance(part := config.get(name), Mapping):
            yield f"{name}.", part


def _experts(value: Any) -> int:
    """The number of experts that a field's value states; the largest number if it lists one per layer; 0 if it states none."""
    several = value if isinstance(value, list) else [value]
    return max((count for count in several if type(count) is int), default=0)


def unsupported_kind(config: Mapping[str, Any]) -> str | None:
    """A phrase for the kind of a model that trainplan does not plan, such as "an encoder", judged by its configuration; None
    if it may be a decoder of attention and feed-forward networks.
    """
    kind, classes = str(config.get("model_type")).lower(), " ".join(map(str, config.get("architectures") or ()))
    types = config.get("layer_types") or config.get("layers_block_type") or ()
    hybrid = isinstance(types, list | tuple) and any(STATE_LAYERS.search(str(layer_type)) for layer_type in types)
    if kind in STATE_TYPES or hybrid or any(STATE_FIELD.search(name) for name in config):
        return f"a model with {STATES}"
    if config.get("is_encoder_decoder") is True or re.search(r"ForConditionalGeneration|Seq2Seq", classes):
        both = config.get("is_encoder_decoder") is True or "num_decoder_layers" in config or "decoder_layers" in config
        return "a model of an encoder and a decoder" if both else "a model of several kinds of input"
    if re.search(r"MaskedLM|SequenceClassification|TokenClassification|QuestionAnswering", classes) or ENCODERS.search(kind):
        return "an encoder"
    if re.search(r"Image|Vision|ObjectDetection|Segmentation|CTC|Audio|Speech", classes) or "image_size" in config:
        return "a model of images or sound"
    for name, what in FEATURES.items():
        if config.get(name):
            return f"a model with {what} ({name} is {shown(config[name])})"
    if (varied := _varied(config)) is not None:
        return f"a model with layers of different sizes ({varied} is {shown(config[varied])})"
    if any(OTHER_INPUT.search(name) and value for name, value in config.items()):
        return "a model of several kinds of input"
    return None


def _same_sizes(config: Mapping[str, Any]) -> str | None:
    """The name of a shipped model with the same sizes and heads as a configuration; None if there is none or a size is
    missing."""
    wanted, keys = _sizes(config), _kv_heads(config)
    if None in wanted:
        return None
    return next((name for name, known in known_configs() if _sizes(known) == wanted and _kv_heads(known) == keys), None)


def _kv_heads(config: Mapping[str, Any]) -> Any:
    """The number of heads of keys and values that a configuration states, under any of the names of this field; else the
    number of heads of queries; None if it states neither.
    """
    from trainplan.profiling.models.families.naming import SYNONYMS

    named = (config[name] for role in (SYNONYMS[2], SYNONYMS[1]) for name in role if config.get(name) is not None)
    return next(named, None)


def _sizes(config: Mapping[str, Any]) -> tuple[Any, ...]:
    """Hidden size, heads, layers, inner size and vocabulary of a configuration, under any of their names, in this order.

    A size that the configuration does not state is None.
    """
    from trainplan.profiling.models.families.naming import SYNONYMS

    roles = (SYNONYMS[0], SYNONYMS[1], SYNONYMS[3], SYNONYMS[4], SYNONYMS[5])
    return tuple(next((config[name] for name in role if config.get(name) is not None), None) for role in roles)


def _nearest(config: Mapping[str, Any], families: Mapping[str, Family]) -> tuple[str, list[str]] | None:
    """The family whose fields are closest to the fields of a configuration: its name, and a sorted list of the configuration's
    fields that it lacks.

    families: the families to choose from, by name. Returns None if no family has all its size fields in the configuration.
    """
    from trainplan.profiling.models.families.naming import COMMON

    own = {name for name, value in config.items() if value not in (None, False)} - COMMON
    best: tuple[int, str, list[str]] | None = None
    for name, described in families.items():
        wanted = (described.fields or frozenset()) | described.aliases.keys()
        sizes = set(described.sizes.values()) - {"head_dim"}
        unlike = sorted(own - wanted)
        if sizes and sizes <= own and (best is None or len(unlike) < best[0]):
            best = len(unlike), name, unlike
    return None if best is None else best[1:]
