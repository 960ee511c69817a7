"""Where Hugging Face has the parameters of each family: classes of models, and names of modules."""

from __future__ import annotations

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
    "internlm3": "LlamaForCausalLM",
    "arcee": "ArceeForCausalLM",
    "helium": "HeliumForCausalLM",
    "ernie4_5": "Ernie4_5ForCausalLM",
    "gemma": "GemmaForCausalLM",
    "seed_oss": "SeedOssForCausalLM",
    "ministral": "MinistralForCausalLM",
    "cwm": "CwmForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "iquestcoder": "LlamaForCausalLM",
    "starcoder2": "Starcoder2ForCausalLM",
    "jais2": "Jais2ForCausalLM",
    "cohere2": "Cohere2ForCausalLM",
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
    """The table of names of a family whose modules are arranged as Llama's: unit (block numbers as #) -> (prefix, trainplan's
    name -> Hugging Face's name). attention, ffn: the names within attention and feed-forward network."""
    return {
        "embedding": ("model.", {"tokens": "embed_tokens"}),
        "block#.attention": ("model.layers.{i}.", attention),
        "block#.ffn": ("model.layers.{i}.", ffn),
        "head": ("", {"norm": "model.norm", "logits": "lm_head"}),
    }


def _without(names: dict[str, str], *omitted: str) -> dict[str, str]:
    """The mapping from trainplan's names of parameters to Hugging Face's without some entries. omitted: trainplan's names to
    leave out."""
    return {ours: theirs for ours, theirs in names.items() if ours not in omitted}


def _in_parallel(layer: str, attention: str, first: str, second: str) -> dict[str, tuple[str, dict[str, str]]]:
    """The table of names of GPT-NeoX and Falcon, whose blocks are one unit (sub-layer) or two: unit -> (prefix, trainplan's
    name -> Hugging Face's name). layer: the prefix of a block. attention: the name of its attention. first, second: the names
    of its norms."""
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
    **dict.fromkeys(("internlm3", "arcee", "helium", "ernie4_5", "gemma", "seed_oss", "ministral", "cwm"), LLAMA),
    **dict.fromkeys(("smollm3", "iquestcoder", "jais2"), LLAMA),
    "starcoder2": _like_llama(LLAMA_ATTENTION, LLAMA_FFN | {"up": "mlp.c_fc", "down": "mlp.c_proj"}),
    "cohere2": {
        **_like_llama(LLAMA_ATTENTION, LLAMA_FFN),
        "block#.block": ("model.layers.{i}.", {**LLAMA_FFN, **LLAMA_ATTENTION}),
    },
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
