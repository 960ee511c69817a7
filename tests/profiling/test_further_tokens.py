"""Modules that predict further tokens: transformers' own as the oracle of their parameters, and the head's further sets of
logits."""

from __future__ import annotations

from typing import Any

import pytest
from trainplan.profiling.models.model import Model, load_model, model_from_config
from trainplan.profiling.models.sublayers import LanguageHead

from tests.helpers.refusals import refused

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SMALL: dict[str, dict[str, Any]] = {
    "deepseek_v3": {"hidden_size": 64, "num_hidden_layers": 3, "first_k_dense_replace": 1, "n_routed_experts": 8}
    | {"num_attention_heads": 4, "num_key_value_heads": 4, "n_group": 2, "topk_group": 1, "moe_intermediate_size": 24}
    | {"q_lora_rank": 20, "kv_lora_rank": 12, "vocab_size": 128, "num_experts_per_tok": 2},
    "glm4_moe": {"hidden_size": 64, "num_hidden_layers": 2, "first_k_dense_replace": 1, "n_routed_experts": 8}
    | {"num_attention_heads": 4, "num_key_value_heads": 2, "moe_intermediate_size": 24, "vocab_size": 128},
}


def added(model: Model) -> int:
    """Number of parameters of the modules that predict further tokens."""
    return sum(unit.sublayer.parameter_count() for unit in model.units if unit.name.startswith("mtp"))


@pytest.mark.parametrize("kind", SMALL)
def test_parameters_are_those_of_transformers_modules(kind: str) -> None:
    from transformers.modeling_layers import MtpLayer

    config = transformers.AutoConfig.for_model(kind, **SMALL[kind])
    with torch.device("meta"):
        main = transformers.AutoModelForCausalLM.from_config(config)
        layer, norm = type(main.model.layers[-1]), type(main.model.norm)
        module = MtpLayer(config, layer, norm, config.num_hidden_layers - 1)
    fields = {**config.to_dict(), "mtp_num_layers": 2}
    model = model_from_config(fields, "config.json", 256, planned=False)
    without = model_from_config({**fields, "mtp_num_layers": 0}, "config.json", 256, planned=False)
    trained = sum(parameter.numel() for parameter in module.parameters())
    assert added(model) == 2 * trained == model.total_parameters - without.total_parameters
    again = model_from_config(model.config, "plan.json", 256, planned=False)
    assert again.units == model.units and again.digest == model.digest != without.digest


def test_deepseek_v3_has_a_module_of_11_billion_parameters() -> None:
    """Its files hold 14 billion, with copies of embedding and head (DeepSeek's README_WEIGHTS)."""
    model = load_model("deepseek-v3", 4096, planned=False).with_fields(mtp_num_layers=1)
    copies = 2 * model.vocabulary * 7168
    assert (added(model) + copies) / 1e9 == pytest.approx(14, abs=0.6)
    assert [unit.name for unit in model.units[-5:]] == ["mtp0.join", "mtp0.attention", "mtp0.experts", "mtp0.norm", "head"]
    with refused(problem="experts"):
        model_from_config(model.config, "config.json", 4096)


def test_the_head_computes_a_set_of_logits_more_for_each_module() -> None:
    fields = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 512}
    fields |= {"intermediate_size": 128, "max_position_embeddings": 64, "num_key_value_heads": 4, "torch_dtype": "bfloat16"}
    plain = model_from_config(fields, "config.json")
    model = model_from_config({**fields, "mtp_num_layers": 2}, "config.json", planned=False)
    head, one = model.units[-1].sublayer, plain.units[-1].sublayer
    assert isinstance(head, LanguageHead) and head.sets == 3 and model.layers == plain.layers + 2
    assert head.forward_flops(1, 1) == 3 * one.forward_flops(1, 1)
    assert head.output_bytes(1, 1) == 3 * one.output_bytes(1, 1) and head.input_bytes(1) == 3 * one.input_bytes(1)
    assert head.parameter_count() == one.parameter_count()
    ends = [unit.sublayer.boundary_bytes(1) // (64 * 64 * 2) for unit in model.units if unit.name.endswith("norm")]
    assert ends == [2, 3]  # the hidden states of the model and of the modules so far
    with refused(problem="further tokens"):
        model_from_config({**fields, "mtp_num_layers": 2}, "config.json")


def test_nemotron_s_module_has_the_units_of_its_pattern() -> None:
    model = load_model("nemotron-3-nano-30b-a3b", 4096, planned=False)
    with_one = model.with_fields(mtp_num_layers=1, mtp_hybrid_override_pattern="*E")
    names = [unit.name for unit in with_one.units[-5:-1]]
    assert names == ["mtp0.join", "mtp0.attention", "mtp0.experts", "mtp0.norm"]
    with refused("mtp_hybrid_override_pattern", fix="M*E"):
        model.with_fields(mtp_num_layers=1, mtp_hybrid_override_pattern="*-")
    with refused("mtp_num_layers", fix="0"):
        load_model("bert-large").with_fields(mtp_num_layers=1)
