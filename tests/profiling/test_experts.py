"""Mixtures of experts and latent attention: their units, and transformers as the oracle of their parameters."""

from __future__ import annotations

from typing import Any

import pytest
from trainplan.profiling.models.model import model_from_config

from tests.helpers.refusals import refused

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("kind", ["mixtral", "qwen3_moe", "deepseek_v3"])
def test_parameters_are_those_of_transformers_class(kind: str) -> None:
    """The class's own default sizes, of 15 to 671 billion parameters, built without memory for them."""
    config = transformers.AutoConfig.for_model(kind)
    with torch.device("meta"):
        theirs = transformers.AutoModelForCausalLM.from_config(config)
    fields: dict[str, Any] = {**config.to_dict(), "num_nextn_predict_layers": 0}
    model = model_from_config(fields, "config.json", 4096, planned=False)
    assert model.total_parameters == sum(parameter.numel() for parameter in theirs.parameters())
    with refused(problem="experts", fix="dense"):
        model_from_config(fields, "config.json", 4096)
