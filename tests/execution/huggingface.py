"""Our parameters in a Hugging Face model."""

from __future__ import annotations

from typing import Any

import torch
from trainplan.execution.reference import Reference


def as_huggingface(transformers: Any, reference: Reference) -> Any:
    """The same model and parameters in transformers' own implementation, eager attention, no dropout."""
    m = reference.model
    with torch.no_grad():
        return _gpt2(transformers, reference) if m.family == "gpt2" else _bert(transformers, reference)


def _set(module: Any, prefix: str, values: dict[str, torch.Tensor], transposed: bool = False) -> None:
    weight = values[f"{prefix}.weight"].flatten(0, -2)
    module.weight.copy_(weight.T if transposed else weight)
    module.bias.copy_(values[f"{prefix}.bias"].flatten())


def _set_norm(module: Any, prefix: str, values: dict[str, torch.Tensor]) -> None:
    module.weight.copy_(values[f"{prefix}.weight"])
    module.bias.copy_(values[f"{prefix}.bias"])


def _gpt2(transformers: Any, reference: Reference) -> Any:
    m, p = reference.model, reference.parameters
    config = transformers.GPT2Config(
        vocab_size=m.vocabulary, n_positions=m.positions, n_embd=m.hidden, n_layer=m.layers, n_head=m.heads, n_inner=m.inner,
        layer_norm_epsilon=m.norm_epsilon, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, tie_word_embeddings=m.tied,
        attn_implementation="eager",
    )  # fmt: skip
    other = transformers.GPT2LMHeadModel(config).double()
    body = other.transformer
    body.wte.weight.copy_(p[0]["tokens.weight"])
    body.wpe.weight.copy_(p[0]["positions.weight"])
    for layer, block in enumerate(body.h):
        attention, ffn = p[1 + 2 * layer], p[2 + 2 * layer]
        _set_norm(block.ln_1, "norm", attention)
        _set(block.attn.c_attn, "qkv", attention, transposed=True)
        _set(block.attn.c_proj, "out", attention, transposed=True)
        _set_norm(block.ln_2, "norm", ffn)
        _set(block.mlp.c_fc, "up", ffn, transposed=True)
        _set(block.mlp.c_proj, "down", ffn, transposed=True)
    _set_norm(body.ln_f, "norm", p[-1])
    if not m.tied:
        other.lm_head.weight.copy_(p[-1]["logits.weight"])
    return other


def _bert(transformers: Any, reference: Reference) -> Any:
    m, p = reference.model, reference.parameters
    config = transformers.BertConfig(
        vocab_size=m.vocabulary, hidden_size=m.hidden, num_hidden_layers=m.layers, num_attention_heads=m.heads,
        intermediate_size=m.inner, max_position_embeddings=m.positions, type_vocab_size=m.token_types,
        layer_norm_eps=m.norm_epsilon, hidden_dropout_prob=0, attention_probs_dropout_prob=0, tie_word_embeddings=m.tied,
        attn_implementation="eager",
    )  # fmt: skip
    other = transformers.BertForMaskedLM(config).double()
    embeddings = other.bert.embeddings
    embeddings.word_embeddings.weight.copy_(p[0]["tokens.weight"])
    embeddings.position_embeddings.weight.copy_(p[0]["positions.weight"])
    embeddings.token_type_embeddings.weight.copy_(p[0]["types.weight"])
    norms = [embeddings.LayerNorm]
    for layer, block in enumerate(other.bert.encoder.layer):
        attention, ffn = p[1 + 2 * layer], p[2 + 2 * layer]
        for place, part in enumerate((block.attention.self.query, block.attention.self.key, block.attention.self.value)):
            part.weight.copy_(attention["qkv.weight"][place])
            part.bias.copy_(attention["qkv.bias"][place])
        _set(block.attention.output.dense, "out", attention)
        _set(block.intermediate.dense, "up", ffn)
        _set(block.output.dense, "down", ffn)
        norms += [block.attention.output.LayerNorm, block.output.LayerNorm]
    # A unit begins with its norm: BERT's norms belong to the unit after the one that its code writes them in.
    for norm, values in zip(norms, p[1:], strict=True):
        _set_norm(norm, "norm", values)
    transform = other.cls.predictions.transform
    _set(transform.dense, "dense", p[-1])
    _set_norm(transform.LayerNorm, "dense_norm", p[-1])
    other.cls.predictions.bias.copy_(p[-1]["logits.bias"])
    other.cls.predictions.decoder.bias.copy_(p[-1]["logits.bias"])
    return other
