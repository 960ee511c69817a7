"""trainplan's models in Hugging Face's own implementation, with equal configurations and parameters, for comparison."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from trainplan.execution.training.huggingface import FROM_ZERO, NORM, matches, to_theirs
from trainplan.execution.training.huggingface_names import CLASSES
from trainplan.execution.training.single_process import Reference
from trainplan.profiling.models import rotary
from trainplan.profiling.models.model import Model


def same_architecture(transformers: Any, model: Model) -> Any:
    """The transformers model of a trainplan model's configuration, with eager attention and without dropout.

    Its parameters are those that transformers initialises, on torch's current device.
    """
    config = transformers.AutoConfig.for_model(**{**model.config, "attn_implementation": "eager"})
    named = CLASSES.get(model.family)  # else of a family that is planned and not run
    other = (
        transformers.AutoModelForCausalLM.from_config(config) if named is None else getattr(transformers, named)(config)
    ).eval()
    if model.family == "t5" and not model.tied:  # transformers ties them, whatever the configuration says
        other.lm_head.weight = torch.nn.Parameter(torch.empty_like(other.shared.weight))
    return other


def as_huggingface(transformers: Any, reference: Reference) -> Any:
    """A reference's model in transformers' own implementation, in float64, with the reference's parameters.

    It has eager attention and no dropout.
    """
    other = same_architecture(transformers, reference.model).double()
    with torch.no_grad():
        for parameter, value in matched(other, reference.model, reference.parameters):
            parameter.copy_(value)
        for name, parameter in other.named_parameters():
            if reference.model.family in FROM_ZERO and NORM.search(name):
                parameter.sub_(1)
    return other


def matched(other: Any, model: Model, values: Sequence[dict[str, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs of a parameter of the transformers model and its counterpart in `values`, in the parameter's layout.

    values: tensors by name, a dict for each unit of trainplan's model.
    """
    theirs = dict(other.named_parameters(remove_duplicate=False))
    for position, own in enumerate(values):
        placed = set[str]()
        for match in matches(model, position):
            placed.update(match.ours)
        assert placed == set(own), (model.units[position].name, placed ^ set(own))
        for names, value in to_theirs(model, position, own, as_kept=False):
            there = next((name for name in names if name in theirs), None)
            assert there is not None, names
            yield theirs[there], value.reshape(theirs[there].shape)


@contextmanager
def float64_throughout() -> Iterator[None]:
    """Within this context, computations that trainplan and transformers always do in float32 (rotary angles, RMS norms,
    softmax) are done in float64, so that both can be compared to its last digits."""
    with (
        patch.multiple(torch, float=torch.float64, float32=torch.float64),
        patch.object(torch.Tensor, "float", torch.Tensor.double),
    ):
        rotary._angles.cache_clear()
        yield
        rotary._angles.cache_clear()
