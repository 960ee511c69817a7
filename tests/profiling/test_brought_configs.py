"""Models as people bring them: a file of another kind, a class's own defaults, or a name as it is commonly written.

Each gives the sizes of the model that is meant, or one line that says what it is and what to give.
"""

from __future__ import annotations

import dataclasses
import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from trainplan.profiling.base.errors import InputError, InputWarning
from trainplan.profiling.models.families.class_defaults import FIELDS, SIZES
from trainplan.profiling.models.model import Model, load_model, model_from_config

from tests.helpers.refusals import cautioned, refused

LLAMA: dict[str, Any] = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 48}
LLAMA |= {"vocab_size": 64, "max_position_embeddings": 16, "num_key_value_heads": 2, "rms_norm_eps": 1e-5}


def quietly(config: dict[str, Any]) -> Model:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)
        return model_from_config(config, "config.json")


def test_sizes_of_classes_are_those_of_transformers() -> None:
    mapping = pytest.importorskip("transformers").CONFIG_MAPPING
    for kind, sizes in SIZES.items():
        own = {field.name: field.default for field in dataclasses.fields(mapping[kind])}
        assert sizes == tuple(own.get(name) for name in FIELDS), kind


@pytest.mark.parametrize(
    ("kind", "alike"),
    [
        ("Yi", "llama"),
        ("aquila", "llama"),
        ("xverse", "llama"),
        ("skywork", "llama"),
        ("stablelm_epoch", "stablelm"),
        ("PanguEmbedded", "internlm"),
    ],
)
def test_other_names_of_a_family_are_read(kind: str, alike: str) -> None:
    bias = {"bias": True} if alike == "internlm" else {}
    sizes = {name: value for name, value in LLAMA.items() if name != "rms_norm_eps"} | bias
    assert model_from_config({"model_type": kind, **sizes}, "config.json") == quietly({"model_type": alike, **sizes})


def test_the_first_files_of_falcon_are_read() -> None:
    """40B has groups of keys and values, which its `model_type` says; 7B one key."""
    common = {"hidden_size": 8192, "n_head": 128, "n_layer": 60, "vocab_size": 65024, "bias": False, "parallel_attn": True}
    large = quietly({"model_type": "RefinedWeb", **common, "n_head_kv": 8, "auto_map": {}, "architectures": ["RWForCausalLM"]})
    assert large.total_parameters == 41_303_293_952
    small = {**common, "hidden_size": 4544, "n_head": 71, "n_layer": 32, "multi_query": True}
    assert quietly({"model_type": "RefinedWebModel", **small}).total_parameters == 6_921_720_704


def test_the_first_files_of_phi_are_read() -> None:
    """The parameters are those of the later ones, and those of the published checkpoints."""
    sizes = {"n_embd": 2560, "n_head": 32, "n_layer": 32, "n_positions": 2048, "vocab_size": 51200, "rotary_dim": 32}
    older = {"n_inner": None, "n_head_kv": None, "activation_function": "gelu_new", "resid_pdrop": 0.1, "flash_attn": False}
    found = model_from_config({"model_type": "phi-msft", **sizes, **older, "layer_norm_epsilon": 1e-5}, "config.json")
    assert (found.family, found.total_parameters, found.config["partial_rotary_factor"]) == ("phi", 2_779_683_840, 0.4)


def test_orion_is_a_llama_with_layer_norms() -> None:
    llama, orion = (quietly({"model_type": kind, **LLAMA}) for kind in ("llama", "orion"))
    assert orion.total_parameters == llama.total_parameters + (2 * 2 + 1) * 32


def test_a_file_without_a_family_is_of_that_of_its_class() -> None:
    with cautioned("model_type", fix="minicpm"):
        model = model_from_config({"architectures": ["MiniCPMForCausalLM"], **LLAMA, "scale_emb": 12}, "config.json")
    assert model.family == "minicpm"


@pytest.mark.parametrize(("kind", "taken"), [("mistral", 8), ("glm4", 2), ("llama", 16)])
def test_heads_of_keys_that_a_file_lacks_are_those_of_its_class(kind: str, taken: int) -> None:
    config = {"model_type": kind, **LLAMA, "num_attention_heads": 16, "head_dim": 4, "pad_token_id": None}
    config.pop("num_key_value_heads")
    with cautioned("num_key_value_heads", fix=taken):
        model_from_config(config, "config.json")


@pytest.mark.parametrize(("outer", "inner"), [(True, None), (None, True), (True, False)])
def test_the_head_of_a_multimodal_model_is_tied_where_either_says_so(outer: bool | None, inner: bool | None) -> None:
    text = {"model_type": "qwen3_vl_text", **LLAMA, "tie_word_embeddings": inner}
    file = {"model_type": "qwen3_vl", "vision_config": {}, "text_config": text, "tie_word_embeddings": outer}
    assert quietly(file).tied
    assert not quietly({**file, "tie_word_embeddings": False, "text_config": {**text, "tie_word_embeddings": None}}).tied


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"peft_type": "LORA", "r": 64, "base_model_name_or_path": "meta-llama/Llama-2-7b-hf"}, "adapter"),
        ({"metadata": {"total_size": 1}, "weight_map": {}}, "index"),
        ({"_class_name": "FluxTransformer2DModel", "num_layers": 19}, "diffusers"),
        ({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}, "DeepSpeed"),
        ({"add_bos_token": True, "tokenizer_class": "LlamaTokenizer"}, "tokenizer"),
        ({"version": "1.0", "added_tokens": [], "model": {"type": "BPE"}}, "tokenizer"),
        ({"do_sample": True, "temperature": 0.6, "eos_token_id": 1}, "generation"),
        ({"dim": 8192, "n_layers": 80, "n_heads": 64, "n_kv_heads": 8, "vocab_size": 128256}, "params.json"),
        ({"encoder_seq_length": 4096, "num_layers": 32, "hidden_size": 4096}, "NeMo"),
    ],
)
def test_what_is_no_configuration_of_a_model_is_named(config: dict[str, Any], message: str) -> None:
    with refused("model_type", message, re.compile("config.json|--model"), where="config.json") as caught:
        model_from_config(config, "config.json")
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("kind", "says", "refusal"),
    [
        (
            "mllama_text_model",
            {"cross_attention_layers": [3, 8]},
            ("model_type", ("mllama_text_model", "images", "cross_attention_layers")),
        ),
        (
            "nemotron-nas",
            {"block_configs": [{"ffn": {"ffn_mult": 1.3}}]},
            ("model_type", ("nemotron-nas", "blocks", "block_configs")),
        ),
        ("deci", {"num_key_value_heads_per_layer": [4, 2]}, ("model_type", ("deci", "num_key_value_heads_per_layer"))),
        ("openelm", {"num_query_heads": [12, 16]}, ("model_type", ("openelm", "num_query_heads"))),
        (
            "phi3small",
            {"blocksparse_block_size": 64},
            ("model_type", ("phi3small", "sparse attention", "blocksparse_block_size")),
        ),
        ("mimo", {"num_nextn_predict_layers": 1}, ("model_type", ("mimo", "num_nextn_predict_layers"))),
        ("dots_ocr", {"vision_config": {"depth": 42}}, ("model_type", ("dots_ocr", "kinds"))),
        ("llava_llama", {"mm_vision_tower": "openai/clip"}, ("model_type", ("llava_llama", "kinds"))),
        ("zamba2", {"hybrid_layer_ids": [6, 12]}, ("model_type", ("zamba2", "state-space"))),
        ("llama", {"intermediate_size": [48, 64]}, ("intermediate_size", ("[48, 64]", "sizes"))),
        ("newlm", {"num_key_value_heads": [2, 4]}, ("model_type", ("newlm", "sizes", "num_key_value_heads"))),
        ("llama", {"kv_lora_rank": 512}, ("kv_lora_rank", (512, "latent attention"))),
        ("chatglm", {"position_encoding_2d": True}, ("position_encoding_2d", ("true", "positions"))),
        ("minicpm", {"sparse_config": {"block_size": 64}}, ("sparse_config", ("{'block_size': 64}", "sparse attention"))),
        ("hunyuan_v1_dense", {"use_cla": True}, ("use_cla", ("true", "layers"))),
    ],
)
def test_layers_that_no_chain_has_are_named(kind: str, says: dict[str, Any], refusal: tuple[Any, ...]) -> None:
    with refused(*refusal, "dense decoder", where="config.json"):
        quietly({"model_type": kind, **LLAMA, **says})


def test_other_sizes_than_the_same_do_not_stand_in() -> None:
    """Mistral 7B has 8 heads of keys and values."""
    sizes = {"hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32, "intermediate_size": 14336}
    with pytest.raises(InputError) as caught:
        model_from_config({"model_type": "newlm", **LLAMA, **sizes, "vocab_size": 32000, "num_key_value_heads": 4}, "c.json")
    assert "stands in" not in str(caught.value)


def test_switches_of_own_code_are_not_left_out_of_account() -> None:
    gpt = {"model_type": "gpt2", "n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 16, "vocab_size": 64}
    own = {**gpt, "auto_map": {"AutoModelForCausalLM": "modeling_gpt2_mq.GPT2LMHeadCustomModel"}}
    with refused("attention_head_type", where="c.json", problem="multiquery"):
        model_from_config({**own, "attention_head_type": "multiquery"}, "c.json")
    with cautioned("num_heads", problem="gpt2"):  # which n_head says, too
        model_from_config({**own, "num_heads": 4}, "c.json")
    with cautioned("architectures", problem="['GPT2LMHeadCustomModel']", fix="gpt2"):
        model_from_config({**own, "architectures": ["GPT2LMHeadCustomModel"]}, "c.json")


def test_families_of_own_code_leave_no_switch_out_of_account() -> None:
    """With `auto_map` or without; and what their files leave out is as of that code: EXAONE's heads are tied."""
    with refused("use_emb_norm", where="c.json", problem="true"):
        model_from_config({"model_type": "minicpm", **LLAMA, "use_emb_norm": True}, "c.json")
    exaone = {name: value for name, value in LLAMA.items() if name != "rms_norm_eps"}
    assert model_from_config({"model_type": "exaone", **exaone}, "c.json").tied
    assert not model_from_config({"model_type": "exaone", **exaone, "tie_word_embeddings": False}, "c.json").tied


def test_a_null_is_no_misspelt_field() -> None:
    model_from_config({"model_type": "llama", **LLAMA, "max_sequence_length": 16, "max_position_embeddings": None}, "c.json")
    with cautioned("v_head_dim", problem="llama"):
        model_from_config({"model_type": "llama", **LLAMA, "v_head_dim": None}, "c.json")


def test_the_language_model_of_a_flat_file_is_planned_alone() -> None:
    with cautioned("this", problem="llama", fix="visual"):
        flat = model_from_config({"model_type": "llama", **LLAMA, "visual": {"layers": 48}}, "c.json")
    assert flat.total_parameters == quietly({"model_type": "llama", **LLAMA}).total_parameters


def test_a_granite_of_attention_alone_is_dense() -> None:
    """As the micro sizes of Granite 4; transformers' class of hybrids has as many parameters."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    own = {
        **LLAMA,
        "shared_intermediate_size": 40,
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "embedding_multiplier": 12.0,
    }
    config = {**own, "layer_types": ["attention"] * 2, "position_embedding_type": "rope", "tie_word_embeddings": True}
    with torch.device("meta"):
        theirs = transformers.AutoModelForCausalLM.from_config(transformers.GraniteMoeHybridConfig(**config, mamba_n_heads=8))
    found = quietly({"model_type": "granitemoehybrid", **config, "mamba_n_heads": 16})
    assert found.family == "granite" and found.total_parameters == sum(parameter.numel() for parameter in theirs.parameters())
    scan = {"mamba_n_heads": 4, "mamba_n_groups": 1, "mamba_d_state": 16}
    for says in ({"layer_types": ["attention", "mamba"]}, {"position_embedding_type": "nope"}):
        assert quietly({"model_type": "granitemoehybrid", **config, **says, **scan}).family == "granitemoehybrid"
    with refused("model_type", problem=("experts", 8, 2)):
        quietly({"model_type": "granitemoehybrid", **config, "num_local_experts": 8, "num_experts_per_tok": 2})


def test_sizes_of_a_class_are_not_those_of_another_name() -> None:
    """GLM-4.1V's language model is a GLM-4 by another class, whose sizes are its own."""
    text = {"model_type": "glm4v_text", **LLAMA, "partial_rotary_factor": 0.5, "pad_token_id": None}
    assert quietly({"model_type": "glm4v", "text_config": text}).family == "glm4"
    with refused("text_config.vocab_size", fix=32000):
        quietly({"model_type": "glm4v", "text_config": {name: text[name] for name in text if name != "vocab_size"}})


def test_a_folder_of_a_checkpoint_is_its_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **LLAMA}))
    assert load_model(tmp_path).total_parameters == quietly({"model_type": "llama", **LLAMA}).total_parameters


# Parameters of the published checkpoints.
KNOWN = {
    "llama-3.1-70b": 70_553_706_496,
    "meta-llama/Llama-3.3-70B-Instruct": 70_553_706_496,
    "nvidia/Llama-3.1-Nemotron-70B-Instruct-HF": 70_553_706_496,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B": 32_763_876_352,
    "qwq-32b": 32_763_876_352,
    "Qwen/Qwen3-4B-Thinking-2507": 4_022_468_096,
    "mistralai/Mistral-7B-Instruct-v0.1": 7_241_732_096,
    "mistralai/Mistral-7B-Instruct-v0.3": 7_248_023_552,
    "tiiuae/Falcon3-10B-Base": 10_305_653_760,
    "microsoft/Phi-4-reasoning": 14_659_507_200,
    "01-ai/Yi-34B-200K": 34_388_917_248,
    "HuggingFaceTB/SmolLM3-3B": 3_075_098_624,
    "CohereForAI/c4ai-command-r-v01": 34_980_831_232,
    "openbmb/MiniCPM-2B-sft-bf16": 2_724_880_896,
    "LGAI-EXAONE/EXAONE-4.0-32B": 32_003_216_384,
}


@pytest.mark.parametrize("name", KNOWN)
def test_a_name_has_the_parameters_of_its_checkpoint(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", InputWarning)
        assert load_model(name, 512).total_parameters == KNOWN[name]


@pytest.mark.parametrize(
    ("name", "refusal"),
    [
        ("mixtral", ("model", ("mixtral", 8, 2))),
        ("qwen3-235b", ("model", ("qwen3-235b", 128, 8))),
        ("llama4 scout", ("model", ("llama4 scout", 16, 1))),
        ("arctic", ("model", ("arctic", "experts"))),
        ("ernie-4.5-300b-a47b", ("model", ("ernie-4.5-300b-a47b", "experts"))),
        ("Qwen2.5-VL-72B", ("model", ("Qwen2.5-VL-72B", "config.json"), "config.json")),
        ("meta-llama/Llama-3.2-11B-Vision", ("model", ("Llama-3.2-11B-Vision", "config.json"), "config.json")),
        ("tiiuae/Falcon-H1-7B-Base", ("model", ("tiiuae/Falcon-H1-7B-Base", "state-space"), "config.json")),
        ("falcon-mamba-7b", ("model", ("falcon-mamba-7b", "state-space"), "config.json")),
        ("tulu-3-70b", ("model", "tulu-3-70b", "llama3-70b")),
        ("saiga", ("model", "saiga", ("`trainplan model list`", "config.json"))),
    ],
)
def test_a_name_that_is_not_planned_says_what_it_is(name: str, refusal: tuple[Any, ...]) -> None:
    with refused(*refusal) as caught:
        load_model(name)
    assert len(str(caught.value)) < 240


def test_a_known_name_of_another_publisher_is_warned_of() -> None:
    """T5 XL of another publisher is twice as wide."""
    with cautioned("model", problem=("t5-xl", "retrieva-jp"), fix="t5-xl"):
        load_model("retrieva-jp/t5-xl")
