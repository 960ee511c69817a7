"""Models with state spaces and gated delta nets: every family's parameters are those of transformers' class, layer by layer;
the pattern of layers is the file's; and published files are read as they are."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from trainplan.profiling.base.errors import InputWarning
from trainplan.profiling.models.model import Model, model_from_config

from tests.helpers.refusals import refused

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

NANO = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"  # Nemotron 3 Nano's 52 layers
# As the file of Nemotron 3 Nano 30B-A3B has it, in tests of Megatron-Bridge's conversion, with its experts.
PUBLISHED: dict[str, Any] = {
    "architectures": ["NemotronHForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attention_head_dim": 128,
    "auto_map": {
        "AutoConfig": "configuration_nemotron_h.NemotronHConfig",
        "AutoModelForCausalLM": "modeling_nemotron_h.NemotronHForCausalLM",
    },
    "chunk_size": 128,
    "conv_kernel": 4,
    "expand": 2,
    "hidden_dropout": 0.0,
    "hidden_size": 2688,
    "hybrid_override_pattern": NANO,
    "intermediate_size": 1856,
    "layer_norm_epsilon": 1e-05,
    "mamba_head_dim": 64,
    "mamba_hidden_act": "silu",
    "mamba_num_heads": 64,
    "mamba_proj_bias": False,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "mlp_hidden_act": "relu2",
    "model_type": "nemotron_h",
    "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712,
    "n_group": 1,
    "n_groups": 8,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 52,
    "num_key_value_heads": 2,
    "num_logits_to_keep": 1,
    "pad_token_id": 0,
    "rescale_prenorm_residual": True,
    "residual_in_fp32": False,
    "rms_norm_eps": 1e-05,
    "routed_scaling_factor": 2.5,
    "ssm_state_size": 128,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "torch_dtype": "bfloat16",
    "use_bias": False,
    "use_conv_bias": True,
    "use_mamba_kernels": True,
    "vocab_size": 131072,
}
# Sizes that differ from the classes' own, by which a field that is read as another would show.
SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "nemotron_h": (
        "nemotron_h",
        {"hidden_size": 96, "intermediate_size": 200, "hybrid_override_pattern": "M-M*M-", "mamba_num_heads": 12}
        | {"mamba_head_dim": 8, "n_groups": 3, "ssm_state_size": 16, "conv_kernel": 3, "use_bias": True, "mlp_bias": True},
    ),
    "nemotron_h of experts": (
        "nemotron_h",
        {"hidden_size": 96, "hybrid_override_pattern": "MEM*E-", "n_routed_experts": 6, "moe_intermediate_size": 40}
        | {"num_experts_per_tok": 3, "moe_shared_expert_intermediate_size": 56, "use_conv_bias": False},
    ),
    "nemotron_h of experts on a latent": (
        "nemotron_h",
        {"hidden_size": 96, "layers_block_type": ["mamba", "moe", "attention"], "moe_latent_size": 24, "mlp_bias": True},
    ),
    "jamba": (
        "jamba",
        {"hidden_size": 96, "intermediate_size": 200, "num_hidden_layers": 6, "attn_layer_period": 3, "attn_layer_offset": 1}
        | {"num_experts": 5, "expert_layer_period": 2, "expert_layer_offset": 0, "mamba_d_state": 8, "mamba_proj_bias": True},
    ),
    "jamba without experts": (
        "jamba",
        {"hidden_size": 96, "num_hidden_layers": 5, "num_experts": 1, "mamba_dt_rank": 7, "mamba_conv_bias": False},
    ),
    "bamba": (
        "bamba",
        {"hidden_size": 128, "num_hidden_layers": 3, "attn_layer_indices": [1], "mamba_n_heads": 16, "mamba_n_groups": 2}
        | {"attention_bias": True, "mlp_bias": True, "mamba_proj_bias": True},
    ),
    "granitemoehybrid": (
        "granitemoehybrid",
        {"hidden_size": 96, "num_hidden_layers": 3, "layer_types": ["linear_attention", "full_attention", "linear_attention"]}
        | {"num_local_experts": 6, "intermediate_size": 40, "shared_intermediate_size": 56, "mamba_n_heads": 16}
        | {"num_attention_heads": 4, "mamba_n_groups": 2, "tie_word_embeddings": True, "residual_multiplier": 0.2},
    ),
    "granitemoehybrid without experts": (
        "granitemoehybrid",
        {"hidden_size": 96, "num_hidden_layers": 2, "num_local_experts": 0, "num_experts_per_tok": 0, "mamba_n_heads": 16}
        | {"num_attention_heads": 4, "shared_intermediate_size": 56, "position_embedding_type": "rope"},
    ),
    "mamba2": (
        "mamba2",
        {"hidden_size": 96, "num_hidden_layers": 3, "num_heads": 16, "head_dim": 12, "n_groups": 4, "use_bias": True},
    ),
    "qwen3_next": (
        "qwen3_next",
        {"hidden_size": 96, "num_hidden_layers": 5, "num_experts": 6, "num_experts_per_tok": 2, "mlp_only_layers": [1]}
        | {"linear_num_key_heads": 3, "linear_num_value_heads": 6, "linear_key_head_dim": 20, "linear_value_head_dim": 12},
    ),
    "qwen3_next of dense layers": (
        "qwen3_next",
        {"hidden_size": 96, "num_hidden_layers": 2, "decoder_sparse_step": 5, "attention_bias": True, "head_dim": 24}
        | {"layer_types": ["full_attention", "linear_attention"]},
    ),
    "qwen3_5_text": ("qwen3_5_text", {"hidden_size": 96, "num_hidden_layers": 5, "tie_word_embeddings": True}),
    "qwen3_5_moe_text": (
        "qwen3_5_moe_text",
        {
            "hidden_size": 96,
            "num_hidden_layers": 4,
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "shared_expert_intermediate_size": 40,
        },
    ),
}
# Classes' own sizes, which are those of a published model; of Nemotron 3 Nano those of its file.
LARGE: dict[str, tuple[str, dict[str, Any]]] = {
    "nemotron 3 nano 30b-a3b": ("nemotron_h", {k: v for k, v in PUBLISHED.items() if k not in ("model_type", "auto_map")}),
    "jamba v0.1": ("jamba", {}),
    "bamba 9b": ("bamba", {"attn_layer_indices": [9, 18, 27]}),
    "mamba2 codestral 7b": ("mamba2", {}),
    "qwen3-next 80b-a3b": ("qwen3_next", {}),
    "qwen3.5 9b": ("qwen3_5_text", {}),
    "qwen3.5 35b-a3b": ("qwen3_5_moe_text", {}),
}


def by_layer(model: Any) -> Counter[int]:
    """Parameters of a transformers model by layer from 1 on; 0 for all others."""
    found: Counter[int] = Counter()
    for name, parameter in model.named_parameters():
        _, _, rest = name.partition(".layers.")
        found[int(rest.split(".")[0]) + 1 if rest else 0] += parameter.numel()
    return found


def ours_by_layer(model: Model) -> Counter[int]:
    found: Counter[int] = Counter()
    for unit in model.units:
        found[0 if unit.kind in ("embedding", "head") else unit.layer] += unit.sublayer.parameter_count()
    found[0] -= model.tied_elements
    return found


def both(kind: str, fields: dict[str, Any]) -> tuple[Model, Any]:
    """Our model of a configuration as transformers writes it, and transformers' own, without memory."""
    config = transformers.AutoConfig.for_model(kind, **fields)
    with torch.device("meta"):
        theirs = transformers.AutoModelForCausalLM.from_config(config)
    return model_from_config(config.to_dict(), "config.json", 512, planned=False), theirs


@pytest.mark.parametrize("name", SMALL)
def test_every_layer_has_the_parameters_of_transformers(name: str) -> None:
    model, theirs = both(*SMALL[name])
    assert ours_by_layer(model) == by_layer(theirs)
    again = model_from_config(model.config, "plan.json", 512, planned=False)
    assert again.units == model.units


@pytest.mark.long
@pytest.mark.parametrize("name", LARGE)
def test_published_sizes_have_the_parameters_of_transformers(name: str) -> None:
    model, theirs = both(*LARGE[name])
    assert ours_by_layer(model) == by_layer(theirs)


def test_a_published_file_is_read_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    """Its publisher calls it 31.6B parameters, of which 3.6B work on a token (with embeddings)."""
    model = model_from_config(PUBLISHED, "config.json", planned=False)
    assert not recwarn.list
    assert model.total_parameters == 31_577_937_344 and model.active_parameters == 3_580_073_408
    assert Counter(unit.kind for unit in model.units[1:-1]) == {"state_space": 23, "experts": 23, "attention": 6}
    assert [unit.name for unit in model.units[1:4]] == ["block0.state_space", "block1.experts", "block2.state_space"]


def test_layers_that_predict_further_tokens_are_left_out_with_a_warning() -> None:
    fields = {**PUBLISHED, "num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E"}
    with pytest.warns(InputWarning, match="further tokens"):
        model = model_from_config(fields, "config.json", planned=False)
    assert model.total_parameters == 31_577_937_344


def test_a_multimodal_file_is_read_for_its_language_model() -> None:
    config = transformers.AutoConfig.for_model("qwen3_5").to_dict()
    with pytest.warns(InputWarning, match="text_config"):
        model = model_from_config(config, "config.json", 4096, planned=False)
    assert model.family == "qwen3_5_text" and model.layers == 32
    assert [unit.kind for unit in model.units[1:9:2]] == ["delta_net", "delta_net", "delta_net", "attention"]


@pytest.mark.parametrize(
    "wrong, field, fix",
    [
        ({"hybrid_override_pattern": "MX"}, "hybrid_override_pattern", "M-M*-"),
        ({"hybrid_override_pattern": None}, "hybrid_override_pattern", "M-M*-"),
        ({"layers_block_type": ["mamba", "rnn"]}, "layers_block_type", "full_attention"),
        ({"num_hidden_layers": 51}, "num_hidden_layers", "52"),
        ({"n_groups": 5}, "n_groups", "64"),
        ({"mamba_num_heads": None}, "mamba_num_heads", "128"),
        ({"num_experts_per_tok": 200}, "num_experts_per_tok", "128"),
    ],
)
def test_mistakes_are_named(wrong: dict[str, Any], field: str, fix: str) -> None:
    with refused(field, fix=fix):
        model_from_config(PUBLISHED | wrong, "config.json", planned=False)


def test_plans_are_refused_in_one_line() -> None:
    with refused(problem="128, 6 a token", fix="dense"):
        model_from_config(PUBLISHED, "config.json")
    jamba = transformers.JambaConfig(num_experts=1).to_dict()
    with refused("model_type", problem="state-space", fix="dense"):
        model_from_config(jamba, "config.json")


def test_a_hybrid_without_experts_is_planned() -> None:
    dense = {**PUBLISHED, "hybrid_override_pattern": NANO.replace("E", "-")}
    assert model_from_config(dense, "config.json").layers == 52
