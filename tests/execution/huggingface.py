"""Our models in Hugging Face's own implementation: the same configuration, the same parameters, other code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
}

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

# For each unit (numbers as #) where its modules are, and their names there; several names share a stack of ours.
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
    "llama": {
        "embedding": ("model.", {"tokens": "embed_tokens"}),
        "block#.attention": (
            "model.layers.{i}.",
            {
                "norm": "input_layernorm",
                "q": "self_attn.q_proj",
                "kv": "self_attn.k_proj self_attn.v_proj",
                "out": "self_attn.o_proj",
            },
        ),
        "block#.ffn": (
            "model.layers.{i}.",
            {"norm": "post_attention_layernorm", "up": "mlp.up_proj", "gate": "mlp.gate_proj", "down": "mlp.down_proj"},
        ),
        "head": ("", {"norm": "model.norm", "logits": "lm_head"}),
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
    return other


def matched(other: Any, model: Model, values: Sequence[dict[str, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Each parameter of the transformers model, beside what belongs there of `values`, one dictionary a unit, in its layout."""
    theirs = dict(other.named_parameters(remove_duplicate=False))
    for unit, own in zip(model.units, values, strict=True):
        number = re.search(r"\d+", unit.name)
        i = int(number[0]) if number else unit.layer - 1
        prefix, names = NAMES[model.family][re.sub(r"\d+", "#", unit.name)]
        fields = {"i": i, "before": i - 1, **_stage(model, i), "wi": "wi_1" if "gate.weight" in own else "wi"}
        for name, value in own.items():
            module, suffix = name.split(".")
            places = names[module].split()
            for place, piece in zip(places, value if len(places) > 1 else [value], strict=True):
                path = (prefix + place).format(**fields).replace("encoder.layer.-1.output", "embeddings")
                parameter = theirs.get(f"{path}.{suffix}", theirs.get(path))
                assert parameter is not None, path
                turned = path.endswith(("c_attn", "c_proj", "c_fc")) and suffix == "weight"  # GPT-2's are (inputs, outputs)
                yield parameter, (piece.flatten(0, -2).T if turned else piece).reshape(parameter.shape)


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
