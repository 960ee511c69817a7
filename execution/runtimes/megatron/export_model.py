"""The arguments of Megatron-LM's GPTModel that describe a model.

Names as of `megatron/training/arguments.py` (core 0.15, 2025). A property of the model that GPTModel has no argument for is
refused by name, so that the exported model is the planned one.
"""

from __future__ import annotations

from trainplan.execution.runtimes.megatron.fields import MODEL, ModelParts, words_of
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.models.model import Model
from trainplan.profiling.models.sublayers import Attention, FeedForward, LanguageHead, TokenEmbedding

ACTIVATIONS = {("silu", True), ("relu2", False), ("gelu", False), ("gelu_tanh", False)}  # by name, and whether it is gated


def model_arguments(model: Model, runtime: str, where: str, counted: bool = False) -> list[str]:
    """The arguments with which Megatron Core's GPTModel becomes this model, as words of a command. runtime: the runtime's
    name, for messages. where: the plan's file. counted: whether other arguments give the number of layers. Raises InputError
    naming a property of the model that GPTModel lacks."""
    embedding, attention, ffn, head = _parts(model, runtime, where)
    _refuse_odd(embedding, attention, ffn, head, runtime, where)
    layers = None if counted else sum(isinstance(unit.sublayer, Attention) for unit in model.units)
    return words_of(MODEL, ModelParts(model, embedding, attention, ffn, layers))


def _parts(model: Model, runtime: str, where: str) -> tuple[TokenEmbedding, Attention, FeedForward, LanguageHead]:
    """The model's token embedding, attention, feed-forward network and language head, in this order: the four sub-layers of
    which Megatron Core's GPTModel consists. runtime: the name of the runtime that is exported to, for the error. where: the
    plan's file, for the error.

    Raises InputError if one of the four is missing, if the model has any other sub-layer, or if it has more than one distinct
    sub-layer of one of the four types, such as attentions of different sizes."""
    kinds = (TokenEmbedding, Attention, FeedForward, LanguageHead)
    parts = [[part for part in model.sublayers.values() if isinstance(part, kind)] for kind in kinds]
    if any(len(of_kind) != 1 for of_kind in parts) or len(model.sublayers) != len(kinds):
        names = ", ".join(model.sublayers)
        fix = (
            f"give a plan of a model of equal layers of attention and feed-forward network: {runtime}'s GPTModel has no others"
        )
        raise InputError(where, "model.config", f"has the parts {names}", fix)
    (embedding,), (attention,), (ffn,), (head,) = parts
    return embedding, attention, ffn, head  # type: ignore[return-value]


def _refuse_odd(
    embedding: TokenEmbedding, attention: Attention, ffn: FeedForward, head: LanguageHead, runtime: str, where: str
) -> None:
    """Check that Megatron Core's GPTModel has arguments for all properties of a model. embedding, attention, ffn, head: the
    model's sub-layers, one of each kind. runtime: the runtime's name, for messages. where: the plan's file. Raises
    InputError naming the first property that it lacks."""
    scaling, width = attention.scaling, attention.rotary_width or attention.width
    odd = [
        *((part.unexecuted_feature, bool(part.unexecuted_feature)) for part in (embedding, attention, ffn, head)),
        ("norms after the sub-layers", attention.post_norm or ffn.post_norm),
        ("norms on both sides of the sub-layers", attention.sandwich or ffn.sandwich),
        ("norms without bias", embedding.norm == "layer" and not embedding.norm_bias),
        ("scaled embeddings", embedding.scale != 1),
        ("token types", embedding.token_types > 0),
        ("dropout of the attention's input", attention.input_dropout > 0),
        ("several probabilities of dropout", len({embedding.dropout, attention.dropout, ffn.dropout}) > 1 or ffn.inner_dropout),
        ("attention in both directions", not attention.causal),
        ("windows", attention.window > 0 or attention.shift > 0),
        ("relative positions", bool(attention.relative) or attention.alibi > 0),
        ("capped logits", attention.softcap > 0 or head.softcap > 0),
        ("a scale of queries of its own", attention.scale not in (0, attention.width**-0.5)),
        ("rotation of an odd part of a head", width % 2 > 0),
        (f"rotary scaling of kind {scaling.kind if scaling else ''}", scaling is not None and scaling.kind != "llama3"),
        (f"{ffn.activation} feed-forward networks", (ffn.activation, ffn.gated) not in ACTIVATIONS),
        ("biases in some linear layers alone", attention.out_bias != ffn.bias or (ffn.bias and not attention.bias)),
        ("a transformed or scaled head", head.transform is not None or head.scale != 1 or head.bias),
    ]
    for what, present in odd:
        if present:
            fix = f"run it by trainplan: {runtime}'s GPTModel has no {what}"
            raise InputError(where, "model.config", f"has {what}", fix)
