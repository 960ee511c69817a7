"""Mixtures of experts in Hugging Face's own implementation, built without memory for their weights, and what they count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from trainplan.profiling.models.model import Model


def theirs(transformers: Any, model: Model) -> Any:
    """The transformers model of a trainplan model's configuration, on the meta device."""
    config = transformers.AutoConfig.for_model(**model.config)
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config)


def trained(module: Any) -> int:
    """Number of parameters that have gradients; numbers that balance the load of experts have none."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def used(module: Any, chosen: int) -> int:
    """Number of trained parameters that one token uses, of a model whose tokens meet `chosen` experts of every mixture.

    A module named `experts` has the routed experts of one layer, as tensors whose first dimension counts them.
    """
    mixtures = [part for name, part in module.named_modules() if name.rsplit(".", 1)[-1] == "experts"]
    assert mixtures
    unused = 0
    for mixture in mixtures:
        sizes = {parameter.shape[0] for parameter in mixture.parameters()}
        assert len(sizes) == 1
        unused += trained(mixture) // sizes.pop() * (len(next(mixture.parameters())) - chosen)
    return trained(module) - unused


def kept_bytes(work: Callable[[], Tensor], inputs: Tensor, module: Any) -> int:
    """Bytes that torch keeps for the backward pass of `work`, by what autograd saves, without its inputs and parameters."""
    outside = {tensor.untyped_storage().data_ptr() for tensor in (inputs, *module.parameters())}
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        """Note a saved tensor by its memory, which stays alive."""
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        work()
    return sum(tensor.untyped_storage().nbytes() for address, tensor in kept.items() if address not in outside)
