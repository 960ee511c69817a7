"""Our models in Hugging Face's own implementation: the same configuration, the same parameters, other code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from trainplan.execution.run.reference import Reference
from trainplan.profiling.models import rotary
from trainplan.profiling.models.model import Model

CLASSES = {
    "gpt2": "GPT2LMHeadModel",
    "bert": "BertForMaskedLM",
    "llama": "LlamaForCausalLM",
    "t5": "T5ForConditionalGeneration",
    "vit": "ViTForImageClassification",
    "swin": "SwinForImageClassification",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "gpt_neox": "GPTNeoXForCausalLM",
    "falcon": "FalconForCausalLM",
    "opt": "OPTForCausalLM",
    "mpt": "MptForCausalLM",
    "nemotron": "NemotronForCausalLM",
    "glm": "GlmForCausalLM",
    "glm4": "Glm4ForCausalLM",
}
INTERLEAVED = ("gpt_neox", "falcon")  # whose queries, keys and values are in one matrix, group by group
FROM_ZERO = ("gemma2", "gemma3_text", "nemotron")  # whose norms' weights are kept less 1

T5_ATTENTION = {
    "norm": "layer_norm",
    "q": "SelfAttention.q",
    "kv": "SelfAttention.k SelfAttention.v",
    "out": "SelfAttention.o",
    "relative": "SelfAttention.relative_attention_bias",
}
T5_FFN = {
    "norm": "layer_norm",
    "up": "DenseReluDense.{wi}",
    "gate": "DenseReluDense.wi_0",
    "down": "DenseReluDense.wo",
}
VISION_ATTENTION = {
    "norm": "layernorm_before",
    "qkv": "attention.q_proj attention.k_proj attention.v_proj",
    "out": "attention.o_proj",
}
VISION_FFN = {"norm": "layernorm_after", "up": "mlp.fc1", "down": "mlp.fc2"}

LLAMA_ATTENTION = {
    "norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "kv": "self_attn.k_proj self_attn.v_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "out": "self_attn.o_proj",
}
LLAMA_FFN = {"norm": "post_attention_layernorm", "up": "mlp.up_proj", "gate": "mlp.gate_proj", "down": "mlp.down_proj"}


def _like_llama(attention: dict[str, str], ffn: dict[str, str]) -> dict[str, tuple[str, dict[str, str]]]:
    return {
        "embedding": ("model.", {"tokens": "embed_tokens"}),
        "block#.attention": ("model.layers.{i}.", attention),
        "block#.ffn": ("model.layers.{i}.", ffn),
        "head": ("", {"norm": "model.norm", "logits": "lm_head"}),
    }


def _without(names: dict[str, str], *left_out: str) -> dict[str, str]:
    return {ours: theirs for ours, theirs in names.items() if ours not in left_out}


def _in_parallel(layer: str, attention: str, first: str, second: str) -> dict[str, tuple[str, dict[str, str]]]:
    """Blocks of GPT-NeoX and Falcon, as one unit or as two; names of the attention and of the norms."""
    attending = {"norm": first, "q+kv": f"{attention}.query_key_value", "out": f"{attention}.dense"}
    ffn = {"up": "mlp.dense_h_to_4h", "down": "mlp.dense_4h_to_h"}
    return {
        "block#.block": (layer, {**attending, "ffn_norm": second, **ffn}),
        "block#.attention": (layer, attending),
        "block#.ffn": (layer, {"norm": second, **ffn}),
    }


LLAMA = _like_llama(LLAMA_ATTENTION, LLAMA_FFN)

# For each unit (numbers as #) where its modules are, and their names there; several names share a stack of ours, and several of
# ours, joined by +, share one of theirs. Of names between |, the first that there is.
NAMES: dict[str, dict[str, tuple[str, dict[str, str]]]] = {
    "gpt2": {
        "embedding": ("transformer.", {"tokens": "wte", "positions": "wpe"}),
        "block#.attention": ("transformer.h.{i}.", {"norm": "ln_1", "qkv": "attn.c_attn", "out": "attn.c_proj"}),
        "block#.ffn": ("transformer.h.{i}.", {"norm": "ln_2", "up": "mlp.c_fc", "down": "mlp.c_proj"}),
        "head": ("", {"norm": "transformer.ln_f", "logits": "lm_head"}),
    },
    "bert": {  # a unit begins with its norm: BERT's norms belong to the unit after the one that its code writes them in
        "embedding": (
            "bert.embeddings.",
            {"tokens": "word_embeddings", "positions": "position_embeddings", "types": "token_type_embeddings"},
        ),
        "block#.attention": (
            "bert.encoder.layer.",
            {
                "norm": "{before}.output.LayerNorm",
                "qkv": "{i}.attention.self.query {i}.attention.self.key {i}.attention.self.value",
                "out": "{i}.attention.output.dense",
            },
        ),
        "block#.ffn": (
            "bert.encoder.layer.{i}.",
            {"norm": "attention.output.LayerNorm", "up": "intermediate.dense", "down": "output.dense"},
        ),
        "head": (
            "",
            {
                "norm": "bert.encoder.layer.{before}.output.LayerNorm",
                "dense": "cls.predictions.transform.dense",
                "dense_norm": "cls.predictions.transform.LayerNorm",
                "logits": "cls.predictions.decoder",
            },
        ),
    },
    "llama": LLAMA,
    "mistral": LLAMA,
    "qwen2": LLAMA,
    "qwen3": LLAMA,
    "phi3": _like_llama(
        _without(LLAMA_ATTENTION, "q", "kv") | {"q+kv": "self_attn.qkv_proj"},
        _without(LLAMA_FFN, "up", "gate") | {"gate+up": "mlp.gate_up_proj"},
    ),
    "gemma2": _like_llama(
        LLAMA_ATTENTION | {"post_norm": "post_attention_layernorm"},
        LLAMA_FFN | {"norm": "pre_feedforward_layernorm", "post_norm": "post_feedforward_layernorm"},
    ),
    "glm": _like_llama(LLAMA_ATTENTION, _without(LLAMA_FFN, "up", "gate") | {"gate+up": "mlp.gate_up_proj"}),
    "glm4": _like_llama(
        LLAMA_ATTENTION | {"post_norm": "post_self_attn_layernorm"},
        _without(LLAMA_FFN, "up", "gate") | {"gate+up": "mlp.gate_up_proj", "post_norm": "post_mlp_layernorm"},
    ),
    "nemotron": LLAMA,
    "gpt_neox": {
        "embedding": ("gpt_neox.", {"tokens": "embed_in"}),
        **_in_parallel("gpt_neox.layers.{i}.", "attention", "input_layernorm", "post_attention_layernorm"),
        "head": ("", {"norm": "gpt_neox.final_layer_norm", "logits": "embed_out|lm_head"}),
    },
    "falcon": {
        "embedding": ("transformer.", {"tokens": "word_embeddings"}),
        **_in_parallel("transformer.h.{i}.", "self_attention", "ln_attn|input_layernorm", "ln_mlp|post_attention_layernorm"),
        "head": ("", {"norm": "transformer.ln_f", "logits": "lm_head"}),
    },
    "opt": {
        "embedding": ("model.decoder.", {"tokens": "embed_tokens", "positions": "embed_positions"}),
        "block#.attention": (
            "model.decoder.layers.{i}.",
            {
                "norm": "self_attn_layer_norm",
                "qkv": "self_attn.q_proj self_attn.k_proj self_attn.v_proj",
                "out": "self_attn.out_proj",
            },
        ),
        "block#.ffn": ("model.decoder.layers.{i}.", {"norm": "final_layer_norm", "up": "fc1", "down": "fc2"}),
        "head": ("", {"norm": "model.decoder.final_layer_norm", "logits": "lm_head"}),
    },
    "mpt": {
        "embedding": ("transformer.", {"tokens": "wte"}),
        "block#.attention": ("transformer.blocks.{i}.", {"norm": "norm_1", "qkv": "attn.Wqkv", "out": "attn.out_proj"}),
        "block#.ffn": ("transformer.blocks.{i}.", {"norm": "norm_2", "up": "ffn.up_proj", "down": "ffn.down_proj"}),
        "head": ("", {"norm": "transformer.norm_f", "logits": "lm_head"}),
    },
    "t5": {
        "embedding": ("", {"tokens": "shared"}),
        "encoder#.attention": ("encoder.block.{i}.layer.0.", T5_ATTENTION),
        "encoder#.ffn": ("encoder.block.{i}.layer.1.", T5_FFN),
        "encoder.norm": ("encoder.", {"norm": "final_layer_norm"}),
        "decoder#.attention": ("decoder.block.{i}.layer.0.", T5_ATTENTION),
        "decoder#.cross": (
            "decoder.block.{i}.layer.1.",
            {name: theirs.replace("Self", "EncDec") for name, theirs in T5_ATTENTION.items()},
        ),
        "decoder#.ffn": ("decoder.block.{i}.layer.2.", T5_FFN),
        "head": ("", {"norm": "decoder.final_layer_norm", "logits": "lm_head"}),
    },
    "vit": {
        "embedding": (
            "vit.embeddings.",
            {"patches": "patch_embeddings.projection", "class": "cls_token", "positions": "position_embeddings"},
        ),
        "block#.attention": ("vit.layers.{i}.", VISION_ATTENTION),
        "block#.ffn": ("vit.layers.{i}.", VISION_FFN),
        "head": ("", {"norm": "vit.layernorm", "values": "classifier"}),
    },
    "swin": {
        "embedding": ("swin.embeddings.", {"patches": "patch_embeddings.projection", "norm": "norm"}),
        "block#.merge": ("swin.encoder.layers.{stage_before}.downsample.", {"norm": "norm", "reduction": "reduction"}),
        "block#.attention": (
            "swin.encoder.layers.{stage}.blocks.{block}.",
            {**VISION_ATTENTION, "relative": "attention.relative_position_bias.relative_position_bias_table"},
        ),
        "block#.ffn": ("swin.encoder.layers.{stage}.blocks.{block}.", VISION_FFN),
        "head": ("", {"norm": "swin.layernorm", "values": "classifier"}),
    },
}


NAMES["gemma3_text"] = NAMES["gemma2"]


def same_architecture(transformers: Any, model: Model) -> Any:
    """The transformers model of our configuration, eager attention, no dropout; parameters as torch's device context says."""
    config = transformers.AutoConfig.for_model(**{**model.config, "attn_implementation": "eager"})
    other = getattr(transformers, CLASSES[model.family])(config).eval()
    if model.family == "t5" and not model.tied:  # transformers ties them, whatever the configuration says
        other.lm_head.weight = torch.nn.Parameter(torch.empty_like(other.shared.weight))
    return other


def as_huggingface(transformers: Any, reference: Reference) -> Any:
    """The same model and parameters in transformers' own implementation, eager attention, no dropout."""
    other = same_architecture(transformers, reference.model).double()
    with torch.no_grad():
        for parameter, value in matched(other, reference.model, reference.parameters):
            parameter.copy_(value)
        for name, parameter in other.named_parameters():
            if reference.model.family in FROM_ZERO and re.search(r"norm\d*\.weight$|layernorm\.weight$", name):
                parameter.sub_(1)
    return other


def matched(other: Any, model: Model, values: Sequence[dict[str, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Each parameter of the transformers model, beside what belongs there of `values`, one dictionary a unit, in its layout."""
    theirs = dict(other.named_parameters(remove_duplicate=False))
    for unit, own in zip(model.units, values, strict=True):
        number = re.search(r"\d+", unit.name)
        i = int(number[0]) if number else unit.layer - 1
        prefix, names = NAMES[model.family][re.sub(r"\d+", "#", unit.name)]
        fields = {"i": i, "before": i - 1, **_stage(model, i), "wi": "wi_1" if "gate.weight" in own else "wi"}
        left = dict(own)
        for (ours, places), suffix in product(names.items(), ("weight", "bias")):
            pieces = [left.pop(f"{name}.{suffix}", None) for name in ours.split("+")]
            if pieces[0] is None:
                continue
            value = pieces[0] if len(pieces) == 1 else _joined(model, pieces)
            several = places.split()
            for place, piece in zip(several, value if len(several) > 1 else [value], strict=True):
                paths = [(prefix + each).format(**fields) for each in place.split("|")]
                paths = [path.replace("encoder.layer.-1.output", "embeddings") for path in paths]
                there = [path for path in paths if f"{path}.{suffix}" in theirs or path in theirs]
                assert there, paths
                parameter = theirs.get(f"{there[0]}.{suffix}", theirs.get(there[0]))
                turned = there[0].endswith(("c_attn", "c_proj", "c_fc")) and suffix == "weight"  # GPT-2's: (inputs, outputs)
                yield parameter, (piece.flatten(0, -2).T if turned else piece).reshape(parameter.shape)
        assert not left, f"{unit.name} has more: {sorted(left)}"


def _joined(model: Model, pieces: list[Any]) -> Tensor:
    """Our queries, keys and values, or gate and up-projection, as one matrix: one after the other, or group by group."""
    if model.family in INTERLEAVED:
        q, (k, v) = pieces
        one = model.config.get("multi_query") and not model.config["new_decoder_architecture"]
        groups = 1 if one else model.config.get("num_kv_heads", model.config["num_attention_heads"])
        return torch.cat([each.unflatten(0, (groups, -1)) for each in (q, k, v)], 1).flatten(0, 1)
    split = [list(each) if each.dim() > pieces[0].dim() else [each] for each in pieces]
    return torch.cat([each for several in split for each in several])


def _stage(model: Model, i: int) -> dict[str, int]:
    """Stage and place in it of a model's i-th block, where blocks come in stages."""
    for stage, depth in enumerate(model.config.get("depths", ())):
        if i < depth:
            return {"stage": stage, "stage_before": stage - 1, "block": i}
        i -= depth
    return {}


@contextmanager
def float64_throughout() -> Iterator[None]:
    """What our code and transformers' write down as float32, whatever the weights' dtype (angles, RMS norms, softmax), is
    float64 here: so both can be compared to its last digits."""
    with (
        patch.multiple(torch, float=torch.float64, float32=torch.float64),
        patch.object(torch.Tensor, "float", torch.Tensor.double),
    ):
        rotary._angles.cache_clear()
        yield
        rotary._angles.cache_clear()
