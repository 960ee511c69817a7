"""Mixtures of experts and latent attention: transformers and published counts as the oracles of their units."""

from __future__ import annotations

import json
from typing import Any

import pytest
from trainplan.profiling.models.model import Model, load_model, model_from_config, model_from_shape
from trainplan.profiling.models.sublayers import Experts, FeedForward, LatentAttention, LightningAttention
from trainplan.profiling.shipped import mixture, mixture_of, shipped, sized_names

from tests.helpers.refusals import cautioned, refused
from trainplan.inputs import model_of

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tests.helpers.experts import kept_bytes, theirs, trained, used  # noqa: E402

BASES, SIZED = shipped("mixtures"), sized_names("mixtures")


def shown(name: str) -> Model:
    """A well-known mixture, on samples of 4,096 tokens."""
    return load_model(name, 4096, planned=False)


def mixtures_of(model: Model) -> list[Experts]:
    """The distinct units of experts of a model."""
    return [part for part in model.sublayers.values() if isinstance(part, Experts)]


def counts_as_transformers(name: str) -> None:
    """Check the parameters of a well-known mixture, all of them and those of one token, against transformers' class."""
    model = shown(name)
    module, chosen = theirs(transformers, model), {part.chosen for part in mixtures_of(model)}
    assert model.total_parameters == trained(module)
    assert model.active_parameters == used(module, chosen.pop()) and not chosen


@pytest.mark.parametrize("name", BASES)
def test_parameters_are_those_of_transformers(name: str) -> None:
    counts_as_transformers(name)


@pytest.mark.long
@pytest.mark.parametrize("name", SIZED)
def test_parameters_of_further_sizes_are_those_of_transformers(name: str) -> None:
    counts_as_transformers(name)


@pytest.mark.parametrize("kind", ["flex_olmo", "granitemoeshared", "exaone_moe", "hy_v3"])
def test_families_without_a_shipped_model_count_as_transformers(kind: str) -> None:
    """The sizes that are their classes' defaults."""
    fields = transformers.AutoConfig.for_model(kind).to_dict()
    changed = {"shared_intermediate_size": 512} if kind == "granitemoeshared" else {}
    model = model_from_config({**fields, **changed}, "config.json", 2048, planned=False)
    assert model.total_parameters == trained(theirs(transformers, model))
    assert model_from_config(model.config, "config.json", 2048, planned=False).units == model.units


# Parameters in billions, of the whole model and of a token, as publishers state them in their reports and on their model cards,
# and how many of the two matrices of embedding and head they leave out of a token's.
PUBLISHED = """
mixtral-8x7b 46.7 12.9 0, mixtral-8x22b 141 39 0, qwen1.5-moe-a2.7b 14.3 2.7 0, qwen2-57b-a14b 57 14 0, qwen3-30b-a3b
30.5 3.3 0, qwen3-235b-a22b 235 22 0, qwen3-coder-480b-a35b 480 35 0, deepseek-v2 236 21 0, deepseek-v2-lite 15.7 2.4 1,
deepseek-v3 671 37 0, kimi-k2 1026 32 0, moonlight-16b-a3b 16 3 0, moonlight-16b-a3b 16 2.24 2, glm-4.5-air 106 12 2,
gpt-oss-120b 116.83 5.13 1, gpt-oss-20b 20.91 3.61 1, llama4-maverick 400 17 0, olmoe-1b-7b 6.9 1.3 0, phi-3.5-moe 41.9
6.6 0, granite-3.0-1b-a400m 1.3 0.4 0, granite-3.0-3b-a800m 3.3 0.8 1, minimax-text-01 456 45.9 2, minimax-m2 229 10 2,
glm-5 744 40 2, solar-open-100b 102 12 0, ernie-4.5-21b-a3b 21 3 0, ernie-4.5-300b-a47b 300 47 0, hunyuan-a13b 80 13 0,
dots.llm1 142 14 0
"""


@pytest.mark.parametrize("row", [row.split() for row in PUBLISHED.split(",")], ids=lambda row: row[0])
def test_parameters_are_those_that_publishers_state(row: list[str]) -> None:
    """To one unit of the last digit that they state."""
    model, (whole, active, left_out) = shown(row[0]), row[1:]
    used_ones = model.active_parameters - int(left_out) * model.vocabulary * model.units[-1].sublayer.hidden
    for stated, counted in ((whole, model.total_parameters), (active, used_ones)):
        digits = len(stated.partition(".")[2])
        assert counted / 1e9 == pytest.approx(float(stated), abs=10**-digits)


def test_the_error_that_refuses_a_mixture_has_its_numbers() -> None:
    for name in (*BASES, *SIZED):
        part = mixtures_of(shown(name))[0]
        assert mixture(name) == mixture_of(part.experts, part.chosen), name
        with refused("--model", problem=(part.experts, part.chosen), fix=("dense", f"model show {name}")):
            load_model(name)


def test_a_mixture_survives_a_file() -> None:
    for name in BASES:
        model = shown(name)
        shape = json.loads(json.dumps(model.shape()))
        again = model_from_config(shape["config"], name, shape["sequence"], shape["dtype"], name, planned=False)
        assert again == model and again.digest == model.digest


def test_flops_of_a_token_are_those_of_deepseeks_report() -> None:
    """250 GFLOP a token for all three passes at 4,096 tokens, by Zhao et al. (2025, Table 2), who leave out masked scores."""
    model = shown("deepseek-v3")
    forward = sum(unit.sublayer.forward_flops(1, 1) for unit in model.units) / 4096
    assert 3 * forward / 1e9 == pytest.approx(250, rel=0.01)


def test_products_use_each_chosen_expert_once() -> None:
    """Two operations for a parameter of a product and token, whatever the number of experts and of ranks that split them."""
    experts = mixtures_of(shown("qwen3-235b-a22b"))[0]
    products = sum(parameter.shape[-1] * parameter.shape[-2] for parameter in experts.parameters() if parameter.routed)
    for ranks in (1, 2, 4):
        routed = experts.routed_operators(experts.copies(3), 128, ranks)
        assert sum(operator.flops for operator in routed) == 2 * products * 3 * 4096 * 8 // ranks
        assert {operator.groups for operator in routed if operator.flops} == {128}


def test_active_and_shards_cover_the_parameters() -> None:
    for name in BASES:
        for part in shown(name).sublayers.values():
            assert part.active_count() <= part.parameter_count()
            shards = [part.parameter_count(4, index) for index in range(4)]
            assert sum(part.active_count(4, index) for index in range(4)) - 3 * part.replicated_count <= part.active_count()
            assert sum(shards) - 3 * part.replicated_count == part.parameter_count()
            assert part.kept_bytes(2, 1) == 2 * part.kept_bytes(1, 1) or part.kind == "attention"


SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 6,
    "intermediate_size": 48,
    "moe_intermediate_size": 16,
    "max_position_embeddings": 64,
    "vocab_size": 128,
    "num_experts_per_tok": 2,
}
QWEN = {"model_type": "qwen3_moe", **SMALL, "num_experts": 4, "head_dim": 8}
MLA: dict[str, Any] = {"qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6, "kv_lora_rank": 10, "q_lora_rank": None}
GROUPS = {"n_group": 2, "topk_group": 1}
DEEPSEEK = {"model_type": "deepseek_v3", **SMALL, **MLA, **GROUPS, "n_routed_experts": 4, "num_key_value_heads": 4}
ERNIE = {"model_type": "ernie4_5_moe", **SMALL, "moe_num_experts": 4, "moe_k": 2}
OWN = {name: value for name, value in SMALL.items() if name != "moe_intermediate_size"}
LLAMA4 = {"model_type": "llama4_text", **OWN, "num_local_experts": 4, "intermediate_size_mlp": 40, "head_dim": 8}
# Fields that say which of six layers have experts, and these layers.
LAYERS: list[tuple[dict[str, Any], dict[str, Any], list[int]]] = [
    (QWEN, {}, [0, 1, 2, 3, 4, 5]),
    (QWEN, {"decoder_sparse_step": 2}, [1, 3, 5]),
    (QWEN, {"decoder_sparse_step": 2, "mlp_only_layers": [3]}, [1, 5]),
    (QWEN, {"num_experts": 0}, []),
    (DEEPSEEK, {}, [3, 4, 5]),
    (DEEPSEEK, {"first_k_dense_replace": 1}, [1, 2, 3, 4, 5]),
    ({**DEEPSEEK, "model_type": "glm4_moe_lite"}, {"mlp_layer_types": ["dense", "sparse"] * 3}, [1, 3, 5]),
    (ERNIE, {}, [1, 2, 3, 4, 5]),
    (ERNIE, {"moe_layer_start_index": 2, "moe_layer_end_index": 4, "moe_layer_interval": 2}, [3]),
    ({**DEEPSEEK, "model_type": "glm_moe_dsa", "q_lora_rank": 12}, {"index_topk_freq": 2}, [3, 4, 5]),
    (LLAMA4, {"interleave_moe_layer_step": 3}, [2, 5]),
    (LLAMA4, {"moe_layers": [0, 4]}, [0, 4]),
]


@pytest.mark.parametrize(("config", "changed", "layers"), LAYERS)
def test_layers_of_experts_are_those_of_transformers(
    config: dict[str, Any], changed: dict[str, Any], layers: list[int]
) -> None:
    model = model_from_config({**config, **changed}, "config.json", planned=False)
    assert [unit.layer - 1 for unit in model.units if isinstance(unit.sublayer, Experts)] == layers
    assert model.total_parameters == trained(theirs(transformers, model))
    assert model_from_config(model.config, "config.json", planned=False) == model


def test_every_nth_layer_and_lists_of_published_code_are_read() -> None:
    """`moe_layer_freq`, which transformers' classes do not read any more."""
    model = model_from_config({**DEEPSEEK, "first_k_dense_replace": 1, "moe_layer_freq": 2}, "config.json", planned=False)
    assert [unit.layer - 1 for unit in model.units if isinstance(unit.sublayer, Experts)] == [2, 4]


@pytest.mark.parametrize("name", ["num_experts", "num_local_experts"])
def test_one_expert_is_a_dense_model_that_is_planned(name: str) -> None:
    config = {key: value for key, value in QWEN.items() if key != "num_experts"}
    model = model_from_config({**config, name: 1}, "config.json")
    assert not mixtures_of(model) and model.active_parameters == model.total_parameters
    assert {part.inner for part in model.sublayers.values() if isinstance(part, FeedForward)} == {16}


def test_switches_are_in_the_units() -> None:
    gpt, deepseek, qwen, kimi = map(shown, ("gpt-oss-20b", "deepseek-v2", "qwen2-57b-a14b", "Kimi-K2-Thinking"))
    part = mixtures_of(gpt)[0]
    assert part.bias and part.router_bias and not part.shared_inner and (part.experts, part.chosen) == (32, 4)
    part = mixtures_of(deepseek)[0]
    assert (part.groups, part.chosen_groups, part.shared_inner, part.scoring) == (8, 3, 3072, "softmax")
    assert mixtures_of(qwen)[0].shared_gate and mixtures_of(qwen)[0].shared_inner == 20480
    part = mixtures_of(kimi)[0]
    assert (part.experts, part.groups, part.scoring, part.balanced) == (384, 1, "sigmoid", True)
    assert mixtures_of(shown("llama4-scout"))[0].weighted == "input"
    kinds = [type(unit.sublayer) for unit in shown("minimax-text-01").units if unit.kind == "attention"]
    assert kinds.count(LightningAttention) == 70 and len(kinds) == 80
    sparse = next(part for part in shown("deepseek-v3.2").sublayers.values() if isinstance(part, LatentAttention))
    assert sparse.indexer is not None and sparse.indexer.keys == 2048


def test_experts_keep_what_torch_keeps() -> None:
    """Of transformers' grouped products, without the results of activations and the norm's result before its weight, which the
    fused kernels that are counted here do not keep."""
    more = {"num_experts": 8, "shared_expert_intermediate_size": 80, "num_hidden_layers": 1, "max_position_embeddings": 256}
    model = model_from_config({"model_type": "qwen2_moe", **SMALL, **more}, "config.json", planned=False)
    config = transformers.AutoConfig.for_model(**model.config)
    module = transformers.AutoModelForCausalLM.from_config(config, experts_implementation="grouped_mm")
    layer, x = module.model.layers[0], torch.randn(1, 256, 32, requires_grad=True)
    theirs_bytes = kept_bytes(lambda: layer.mlp(layer.post_attention_layernorm(x)), x, module)
    unfused = 256 * (2 * 16 + 80 + 32) * 4
    assert mixtures_of(model)[0].kept_bytes(1, 1) == pytest.approx(theirs_bytes - unfused, rel=0.02)


def test_latent_attention_keeps_what_torch_keeps() -> None:
    """Of transformers' class, without the scores, which fused kernels do not keep, the norms' results before their weights, and
    the part of a projection that it keeps with the values in one tensor."""
    sizes = {**DEEPSEEK, "q_lora_rank": 24, "num_hidden_layers": 1, "max_position_embeddings": 256}
    model = model_from_config(sizes, "config.json", planned=False)
    module = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**model.config))
    layer, x = module.model.layers[0], torch.randn(1, 256, 32, requires_grad=True)
    turned = module.model.rotary_emb(x, torch.arange(256)[None])

    def attend() -> Any:
        """The result of norm and attention."""
        return layer.self_attn(hidden_states=layer.input_layernorm(x), position_embeddings=turned, attention_mask=None)[0]

    unfused = 4 * 256 * 256 + 256 * (32 + 24 + 10) + 256 * 4 * 8
    assert model.sublayers["attention"].kept_bytes(1, 1) == pytest.approx(kept_bytes(attend, x, module) - unfused * 4, rel=0.05)


REFUSED: list[tuple[dict[str, Any], dict[str, Any], tuple[Any, ...]]] = [
    (QWEN, {"num_experts_per_tok": 5}, ("num_experts_per_tok", 5, 4)),
    (QWEN, {"moe_intermediate_size": None}, ("moe_intermediate_size", "missing", 1408)),
    (QWEN, {"mlp_only_layers": [6]}, ("mlp_only_layers", 6, 5)),
    (QWEN, {"decoder_sparse_step": 0}, ("decoder_sparse_step", 0, 1)),
    (DEEPSEEK, {"n_group": 3}, ("n_group", 3, 4)),
    (DEEPSEEK, {"kv_lora_rank": None}, ("kv_lora_rank", "missing", 512)),
    (DEEPSEEK, {"mlp_layer_types": ["dense"]}, ("mlp_layer_types", "dense", 6)),
    (LLAMA4, {"moe_layers": [-1]}, ("moe_layers", -1, 5)),
]


@pytest.mark.parametrize(("config", "changed", "refusal"), REFUSED)
def test_bad_fields_of_experts_get_one_line(config: dict[str, Any], changed: dict[str, Any], refusal: tuple[Any, ...]) -> None:
    with refused(*refusal):
        model_from_config({**config, **changed}, "config.json", planned=False)


@pytest.mark.parametrize("config", [QWEN, DEEPSEEK, LLAMA4])
def test_mixtures_are_refused_where_they_would_be_planned(config: dict[str, Any]) -> None:
    model = model_from_config(config, "config.json", planned=False)
    for work in (
        lambda: model_from_config(config, "config.json"),
        lambda: model_from_shape(model.shape(), "plan.json"),
        lambda: model_of(model, None, None),
    ):
        with refused(problem="experts", fix="dense"):
            work()


def test_latent_attention_without_experts_is_refused_where_it_would_be_planned() -> None:
    config = {**DEEPSEEK, "n_routed_experts": 1, "n_group": 1}
    assert not mixtures_of(model_from_config(config, "config.json", planned=False))
    with refused("model_type", "latent attention", "dense"):
        model_from_config(config, "config.json")


def test_layers_that_predict_further_tokens_are_said_to_be_left_out() -> None:
    with cautioned("num_nextn_predict_layers", 1):
        model = model_from_config({**DEEPSEEK, "num_nextn_predict_layers": 1}, "config.json", planned=False)
    assert model == model_from_config(DEEPSEEK, "config.json", planned=False)


def test_a_long_sequence_of_a_model_that_is_not_planned_is_said_to_be_counted() -> None:
    with cautioned("--sequence", ("deepseek-v3", 163840), ("are counted", 4096)):
        assert model_of("deepseek-v3", None, None, planned=False).sequence_tokens == 163840
