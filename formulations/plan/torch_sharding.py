"""Tensors of sub-layers that DTensor and FSDP2 cannot split as a strategy requires, and models that they cannot split."""

from __future__ import annotations

from collections.abc import Iterator

from trainplan.formulations.plan.strategy import Strategy
from trainplan.profiling.models.model import Model
from trainplan.profiling.models.sublayers import Parameter, Sublayer, TokenEmbedding

PACKED = ("qkv.", "kv.")  # of parameters that are several matrices, one after the other
PACKED_BY_TRANSFORMERS = {"gpt2": "c_attn", "phi3": "qkv_proj", "glm": "gate_up_proj"}


def uneven_splits(part: Sublayer, strategy: Strategy) -> Iterator[tuple[str, str]]:
    """For each tensor of a sub-layer that torch's DTensor and FSDP2 cannot split as a strategy requires, a pair of texts for
    an error: the problem and a fix. Yields nothing if all tensors can be split, or without tensor parallelism.

    The columns of a matrix must split evenly over tensor-parallel ranks, since the next matrix takes the parts as its rows;
    and one dimension cannot be split unevenly over both tp and sdp. A vocabulary may split unevenly, as long as every rank
    has some of it. part: the sub-layer.
    """
    tp, sdp = strategy.degree("tp"), strategy.degree("sdp")
    if tp == 1:
        return
    if part.sandwich:
        yield f"is {str(strategy)!r}, of a sub-layer with a norm after its matrices", "give no tp level"
    for parameter in part.parameters():
        if parameter.split is None or parameter.name == "logits.bias":
            continue
        shape, split = _of_module(parameter)
        name, size, table = parameter.name, shape[split], parameter.name in ("tokens.weight", "logits.weight")
        if size % tp and not table:
            yield f"splits {name} of {size} over tp{tp}", f"give a tp that divides {size}"
        elif table and -(-size // tp) * (tp - 1) >= size:
            yield f"splits {name} of {size} over tp{tp}", "give a smaller tp, so that every rank has some"
        elif len(shape) > 1 and split == 0 and shape[1] % sdp:
            yield f"splits {name} by {shape[1]} columns over sdp{sdp}", f"give a divisor of {shape[1]}"
        elif len(shape) == 1 and size % (tp * sdp):
            yield f"splits {name} of {size} over tp{tp} and sdp{sdp}", f"give degrees whose product divides {size}"


def _of_module(parameter: Parameter) -> tuple[tuple[int, ...], int]:
    """The shape of the tensor that transformers has for a parameter, and the dimension in which tensor parallelism splits it.
    For a parameter that packs several matrices (queries, keys and values) it is the shape of one of them.
    """
    assert parameter.split is not None
    packed = parameter.name.startswith(PACKED)
    return parameter.shape[packed:], parameter.split - packed


def why_not_split(model: Model) -> str | None:
    """The reason, in words, why torch's `parallelize_module` cannot split a model as transformers builds it; None if it can."""
    if (matrix := PACKED_BY_TRANSFORMERS.get(model.family)) is not None:
        return f"transformers packs matrices of {model.family} into {matrix}, which parallelize_module cannot split"
    first = model.units[0].sublayer
    if isinstance(first, TokenEmbedding) and first.padding is not None:
        return f"its table of tokens has a padding row ({first.padding}), which is lost where the table is split"
    return None


def split_by_torch(model: Model | None, strategy: Strategy) -> bool:
    """Whether torch (DTensor, FSDP2) can split all sub-layers of a model, as transformers builds it, under a strategy. True if
    no model is given, or without tensor parallelism."""
    if strategy.degree("tp") == 1 or model is None:
        return True
    return why_not_split(model) is None and not any(
        True for part in model.sublayers.values() for _ in uneven_splits(part, strategy)
    )
