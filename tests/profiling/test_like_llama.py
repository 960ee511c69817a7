"""Families that are a Llama with other names or one more switch: their parameters are those of transformers' classes, unit by
unit, or of the published models; and the same chain comes from what a plan carries."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from typing import Any

import pytest
from trainplan.execution.executable_models import EXECUTED_FAMILIES, WALKED_FAMILIES
from trainplan.profiling.models.families import BUILT_IN
from trainplan.profiling.models.model import Model, model_from_config, model_from_shape

from tests.helpers.like_llama import LIKE_LLAMA, RUN, WALKED
from tests.helpers.refusals import refused
from trainplan.inputs import compiles, runs
from trainplan.planning.trials import runnable

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

EMBEDDINGS = re.compile(r"(^|\.)(embed_tokens|embed_positions|wte|wpe|word_embeddings(_layernorm)?)\.")
LAYER = re.compile(r"(^|\.)(layers|h)\.(\d+)\.")
TEXT_MODELS = {
    "qwen2_vl_text": "Qwen2VLTextModel",
    "qwen2_5_vl_text": "Qwen2_5_VLTextModel",
    "qwen3_vl_text": "Qwen3VLTextModel",
}


def theirs(config: dict[str, Any]) -> Any:
    """The transformers model of a configuration, without memory."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = config["model_type"]
    made = CONFIG_MAPPING[kind](
        **{
            name: value
            for name, value in config.items()
            if name != "model_type" and (value is not None or name == "pad_token_id")
        }
    )
    with torch.device("meta"):
        if kind not in TEXT_MODELS:
            return transformers.AutoModelForCausalLM.from_config(made)
        model = torch.nn.Module()  # these are of no class with a head of their own
        model.text = _text_class(kind)(made)
        if not config.get("tie_word_embeddings", False):
            model.lm_head = torch.nn.Linear(made.hidden_size, made.vocab_size, bias=False)
        return model


def _text_class(kind: str) -> Any:
    module = kind.removesuffix("_text")
    return getattr(importlib.import_module(f"transformers.models.{module}.modeling_{module}"), TEXT_MODELS[kind])


def by_layer(model: Any) -> Counter[int]:
    """Parameters of a transformers model by layer: 0 its embeddings, then its layers from 1 on, and -1 all after them."""
    found: Counter[int] = Counter()
    for name, parameter in model.named_parameters():
        layer = LAYER.search(name)
        found[int(layer[3]) + 1 if layer else 0 if EMBEDDINGS.search(name) else -1] += parameter.numel()
    return found


def ours_by_layer(model: Model) -> Counter[int]:
    found: Counter[int] = Counter()
    for unit in model.units:
        found[-1 if unit.kind == "head" else unit.layer] += unit.sublayer.parameter_count()
    found[-1] -= model.tied_elements
    return found


@pytest.mark.filterwarnings("ignore::trainplan.profiling.base.errors.InputWarning")
@pytest.mark.parametrize("name", LIKE_LLAMA)
def test_every_layer_has_the_parameters_of_transformers(name: str) -> None:
    config = LIKE_LLAMA[name]
    model = model_from_config(config, name)
    assert ours_by_layer(model) == by_layer(theirs(config))
    assert model_from_shape(model.shape(), "plan.json") == model


def test_the_tables_are_of_all_families_that_run_or_are_analysed() -> None:
    assert {config["model_type"] for config in RUN.values()} <= set(EXECUTED_FAMILIES)
    own_code = {"internlm", "internlm2", "orion", "qwen", "minicpm", "baichuan", "exaone", "chatglm"}
    assert {config["model_type"] for config in WALKED.values()} == set(WALKED_FAMILIES) - own_code
    assert set(BUILT_IN) == {*EXECUTED_FAMILIES, *WALKED_FAMILIES, "t5", "vit", "swin", "transgan"}


@pytest.mark.filterwarnings("ignore::trainplan.profiling.base.errors.InputWarning")
@pytest.mark.parametrize("name", WALKED)
def test_what_is_analysed_only_is_refused_where_it_would_run(name: str) -> None:
    model = model_from_config(WALKED[name], name)
    assert compiles(model) and not runs(model)
    with refused("model.config.model_type", fix=("gpt2", "bert", "llama")):
        runnable(model, "float32", name)
