"""The computation before the matrices of a sub-layer: its norm, and what else works on each token by itself."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor
from trainplan.profiling.models.dropout import Draw, drop
from trainplan.profiling.models.fused import rms_norm
from trainplan.profiling.models.sublayers import Attention, LanguageHead, Sublayer, TokenEmbedding
from trainplan.profiling.models.torch_units.attention_bias import into_windows
from trainplan.profiling.models.torch_units.parameters import Parameters

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "relu2": lambda x: F.relu(x).square(),
}


def enter(sublayer: Sublayer, parameters: Parameters, x: Tensor, draw: Draw | None = None) -> Tensor:
    """Compute the input of a sub-layer's matrices (its matrix multiplications and everything between them) from the
    sub-layer's input x, (samples, tokens, hidden). It works on tokens independently, so x may have any of the samples' tokens.

    The result is x normed; in a language head also transformed and scaled; in attention within windows regrouped to (samples
    x windows, tokens of a window, hidden). An embedding has nothing before its table: its x is returned. parameters: the
    rank's slices of the sub-layer's parameters, by name. draw: seed, step and samples that determine the dropout masks; None
    for no dropout.
    """
    if isinstance(sublayer, TokenEmbedding):
        return x
    entered = normed(sublayer, parameters, x)
    if isinstance(sublayer, Attention):
        entered = drop(entered, draw, "input", sublayer.input_dropout)
        return into_windows(sublayer, entered) if sublayer.window else entered
    if isinstance(sublayer, LanguageHead):
        if sublayer.transform:
            entered = ACTIVATIONS[sublayer.transform](F.linear(entered, parameters["dense.weight"], parameters["dense.bias"]))
            entered = normed(sublayer, parameters, entered, "dense_norm")
        if sublayer.scale != 1:
            entered = entered * sublayer.scale
    return entered


def normed(sublayer: Sublayer, parameters: Parameters, x: Tensor, name: str = "norm") -> Tensor:
    """Apply a sub-layer's layer norm or RMS norm to x, along its last dimension; returns a new tensor.

    parameters: the sub-layer's tensors by name. name: the beginning of the names of the norm's parameters: `name`.weight and,
    for a layer norm, `name`.bias.
    """
    weight = parameters[f"{name}.weight"]
    if sublayer.norm == "rms":
        return rms_norm(x, weight, sublayer.epsilon)
    return F.layer_norm(x, weight.shape, weight, parameters.get(f"{name}.bias"), sublayer.epsilon)
