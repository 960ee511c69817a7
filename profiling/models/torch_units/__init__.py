"""The sub-layers of `models.sublayers` computed in torch by one tensor-parallel rank, with their parameters and the loss.

The same functions are measured by profiles and executed by training. None of them communicates. `forward` maps a rank's slice
of the parameters and its input to a partial output: the sum over the ranks of a tensor-parallel group is the sub-layer's
output. (A language head instead gives the rank's columns of the logits.)

With sequence parallelism (Korthikanti et al., 2022, Section 4.2.2) each rank holds a part of the tokens, and `forward` is run
as three pieces: `enter`, the norm before the matrices, on the rank's own tokens; `matrices`, on all tokens; and `leave`,
dropout and residual, on the rank's own tokens of the sum. The all-gather between the first two and the reduce-scatter between
the last two are instructions of the program that runs them.
"""

from trainplan.profiling.models.torch_units.attention import (
    core_of_heads,
    keys_and_values,
    mixed_values,
    queries_keys_and_values,
)
from trainplan.profiling.models.torch_units.entry import ACTIVATIONS, enter
from trainplan.profiling.models.torch_units.forward import activated_values, forward, leave, leave_gradient, matrices
from trainplan.profiling.models.torch_units.parameters import (
    DTYPES,
    Parameters,
    Shard,
    flat_layout,
    sharded,
    unit_seed,
    whole_parameters,
)
from trainplan.profiling.models.torch_units.vocabulary_loss import loss_gradient, loss_statistics, loss_value

__all__ = [
    "ACTIVATIONS",
    "DTYPES",
    "Parameters",
    "Shard",
    "activated_values",
    "core_of_heads",
    "enter",
    "flat_layout",
    "forward",
    "keys_and_values",
    "leave",
    "leave_gradient",
    "loss_gradient",
    "loss_statistics",
    "loss_value",
    "matrices",
    "mixed_values",
    "queries_keys_and_values",
    "sharded",
    "unit_seed",
    "whole_parameters",
]
