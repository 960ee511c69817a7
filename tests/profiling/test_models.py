"""Models from their configs: the papers' sizes, and byte formulas against what torch allocates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.models.families import BUILT_IN, BY_UNITS
from trainplan.profiling.models.model import load_model, model_from_config, model_from_shape
from trainplan.profiling.shipped import mixture, shipped, sized_names

from tests.helpers.papers.galvatron import TABLE_I
from tests.helpers.refusals import refused
from tests.helpers.small_models import SMALL

# Millions of parameters: H3T Table 2 (and its GPT-3), AutoPipe Table I, GPT-2's and Llama's own releases; and TABLE_I.
PAPERS: dict[str, float] = {
    "bert-1.8b": 1840,
    "bert-6b": 6680,
    "bert-13b": 13_800,
    "bert-100b": 102_000,
    "gpt3-175b": 175_000,
    "gpt2-1.3b": 1314,
    "gpt2": 124.44,
    "gpt2-xl": 1557.6,
    "llama2-7b": 6738.4,
    "llama3-8b": 8030.3,
} | {name: millions for name, (millions, _) in TABLE_I.items()}

# How far our count of unfused code may be from Table I's activations.
TOLERANCES = {"bert": 0.015, "vit-huge": 0.001, "vit-xhuge": 0.03, "t5-large": 0.002, "swin": 0.021}


@pytest.mark.parametrize(("name", "millions"), PAPERS.items())
def test_parameter_counts_are_the_papers(name: str, millions: float) -> None:
    assert load_model(name).total_parameters == pytest.approx(millions * 1e6, rel=0.01)


@pytest.mark.parametrize(("name", "millions"), [("gpt2-345m", 345), ("gpt2-762m", 762)])
def test_gpt2s_first_counts_were_of_a_smaller_vocabulary(name: str, millions: float) -> None:
    """AutoPipe's 345M and 762M are names from GPT-2's first report, whose counts its authors later corrected to 355M and 774M.
    They come out with GPT-1's vocabulary of 40,478; the models that AutoPipe ran have 50,257."""
    model = load_model(name)
    assert model.with_fields(vocab_size=40_478).total_parameters == pytest.approx(millions * 1e6, rel=0.001)
    assert 1.015 < model.total_parameters / (millions * 1e6) < 1.03


def test_bert_large_is_rounded_in_its_own_paper() -> None:
    """340M there; without its pooler and next-sentence head it has 335.2M, 1.4 % fewer."""
    assert load_model("bert-large", dtype="float32").total_parameters == pytest.approx(340e6, rel=0.015)


@pytest.mark.parametrize("name", [name for name in TABLE_I if not name.startswith("t5-512-4")])
def test_activations_are_table_ones(name: str) -> None:
    tolerance = next(value for prefix, value in TOLERANCES.items() if name.startswith(prefix))
    assert load_model(name).activation_bytes() == pytest.approx(TABLE_I[name][1] * 2**20, rel=tolerance)


@pytest.mark.parametrize(("name", "short"), [("t5-512-4-32", 0.134), ("t5-512-4-48", 0.068)])
def test_the_imbalanced_t5s_activations_fall_short(name: str, short: float) -> None:
    """Reported, not hidden: Table I's are larger by a constant 239 and 168 MiB for 32 and 48 layers. The authors' earlier code
    has 91 MiB for an encoder layer, which is ours; these two rows imply 87 MiB for an encoder and a decoder layer together."""
    assert load_model(name).activation_bytes() / 2**20 / TABLE_I[name][1] == pytest.approx(1 - short, abs=0.002)


def test_a_layers_activations_are_those_of_the_authors_profile() -> None:
    """MiB a sample of one layer, from the published code of Galvatron's first version (T5 encoder and decoder, BERT, ViT)."""
    t5, bert = load_model("t5-large-48"), load_model("bert-huge-32")

    def layer(model: Any, prefix: str) -> float:
        parts = [unit.sublayer for unit in model.units if unit.name.startswith(prefix)]
        return sum(part.input_bytes(1) + part.kept_bytes(1, 1) for part in parts) / 2**20

    # A decoder's input is counted by two of its three units; the authors' count has one tensor more for the encoder's result.
    assert layer(t5, "encoder1.") == pytest.approx(91.003, rel=0.001)
    assert layer(t5, "decoder1.") == pytest.approx(157.755, rel=0.002)
    assert layer(bert, "block1.") == pytest.approx(94.07, rel=0.01)


def test_every_shipped_model_loads_and_round_trips() -> None:
    names = shipped("models")
    assert len(names) >= 30
    assert {load_model(name).family for name in names} <= {*BUILT_IN, *BY_UNITS}
    for name in names:
        model = load_model(name)
        again = model_from_shape(json.loads(json.dumps(model.shape())), "plan.json")
        assert again == model
        assert again.digest == model.digest
        layers = [unit.layer for unit in model.units]
        assert layers == sorted(layers)
        assert set(layers) == set(range(model.layers + 2))


PUBLISHED_NAMES = """
Llama-2-7b-chat-hf llama2-7b, Llama-2-70b llama2-70b, Meta-Llama-3-8B llama3-8b, Llama-3.1-8B llama3.1-8b,
meta-llama/Llama-3.3-70B-Instruct llama3.1-70b, Qwen/Qwen2.5-7B-Instruct qwen2.5-7b, Qwen-3-8B qwen3-8b, qwen_3_32b qwen3-32b,
mistralai/Mistral-7B-v0.1 mistral-7b, gemma-2-9b-it gemma2-9b, gemma-3-12b-pt gemma3-12b, Phi-3-mini-4k-instruct phi3-mini,
EleutherAI/gpt-neox-20b gpt-neox-20b, GPT-NeoX gpt-neox-20b, nemotron-4-15b nemotron4-15b, GLM4-9B glm-4-9b, gpt2-1.5b gpt2-xl,
google/vit-base-patch16-224-in21k vit-base, bert-large-uncased bert-large
"""


@pytest.mark.parametrize(("name", "shipped_name"), [one_name.split() for one_name in PUBLISHED_NAMES.split(",")])
def test_models_have_the_names_that_their_publishers_give_them(name: str, shipped_name: str) -> None:
    assert name not in shipped("models") and shipped_name in shipped("models")
    assert load_model(name).digest == load_model(shipped_name).digest


def test_near_names_are_suggested() -> None:
    with refused("model", problem="qwen3-8", fix="qwen3-8b"):
        load_model("qwen3-8")
    with refused("model", problem="mistral-nemo-12", fix="mistral-nemo-12b"):
        load_model("mistral-nemo-12")


@pytest.mark.parametrize(
    ("name", "experts"),
    [
        ("mixtral-8x7b", (8, 2)),
        ("mistralai/Mixtral-8x22B-Instruct-v0.1", (8, 2)),
        ("deepseek-ai/DeepSeek-V2-Lite-Chat", (64, 6)),
        ("deepseek-v2", (160, 6)),
        ("deepseek-ai/DeepSeek-R1-0528", (256, 8)),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", (128, 8)),
        ("openai/gpt-oss-20b", (32, 4)),
        ("meta-llama/Llama-4-Maverick-17B-128E-Original", (128, 1)),
        ("zai-org/GLM-4.5-Air", (128, 8)),
        ("ibm-granite/granite-3.0-1b-a400m-base", (32, 8)),
        ("nobody/New-10B-A2B", ()),
        ("nobody/new-moe-4x2b", ()),
    ],
)
def test_a_mixture_of_experts_is_refused_by_its_name(name: str, experts: tuple[int, ...]) -> None:
    with refused("model", (f"'{name}'", "experts", *experts), "dense model"):
        load_model(name)


def test_no_dense_model_passes_for_a_mixture() -> None:
    names = [*shipped("models"), *sized_names(), "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "meta-llama/Llama-3.1-8B"]
    assert not [name for name in names if mixture(name)]


# What the checkpoints of these names hold, by their publishers.
PUBLISHED_PARAMETERS = """
bloom-560m 559214592, bloom-1.1b 1065314304, bloom-1.7b 1722408960, bloom-3b 3002557440, bloom-7.1b 7069016064,
bloom-176b 176247271424, gpt-j-6b 6050882784, phi-1.5 1418270720, phi-2 2779683840, olmo-1b 1176764416, olmo-7b 6888095744,
olmo2-1b 1484916736, olmo2-7b 7298617344, olmo2-13b 13716198400, olmo2-32b 32234279936, stablelm2-1.6b 1644515328,
llama-7b 6738415616, llama-13b 13015864320, llama-33b 32528943616, llama-65b 65285660672, llama3.2-3b 3212749824,
codellama-7b 6738546688, codellama-13b 13016028160, codellama-34b 33743970304, tinyllama-1.1b 1100048384,
mistral-nemo-12b 12247782400, mistral-small-24b 23572403200, mistral-large-123b 122610069504, ministral-8b 8019808256,
codestral-22b 22247282688, qwen1.5-0.5b 463987712, qwen1.5-1.8b 1836828672, qwen1.5-4b 3950369280, qwen1.5-7b 7721324544,
qwen1.5-14b 14167290880, qwen1.5-32b 32512218112, qwen1.5-72b 72287920128, qwen1.5-110b 111209914368, qwen2.5-0.5b 494032768,
qwen2.5-1.5b 1543714304, qwen2.5-3b 3085938688, qwen2.5-14b 14770033664, qwen2.5-32b 32763876352, qwen2.5-72b 72706203648,
qwen3-0.6b 596049920, qwen3-1.7b 1720574976, qwen3-4b 4022468096, qwen3-14b 14768307200, gemma-2b 2506172416,
gemma-7b 8537680896, gemma2-2b 2614341888, gemma2-27b 27227128320, gemma3-1b 999885952, gemma3-270m 268098176,
phi3-medium-14b 13960238080, phi3.5-mini 3821079552, phi4-14b 14659507200, phi4-mini 3836021760, smollm-135m 134515008,
smollm-360m 361821120, smollm-1.7b 1711376384, yi-6b 6061035520, yi-9b 8829407232, yi-34b 34388917248,
internlm2-1.8b 1889110016, internlm2-7b 7737708544, internlm2-20b 19861149696, baichuan-7b 7000559616,
baichuan-13b 13264901120, baichuan2-7b 7505973248, baichuan2-13b 13896668160, deepseek-llm-7b 6910365696,
chatglm2-6b 6243584000, starcoder2-3b 3030371328, starcoder2-7b 7173923840, starcoder2-15b 15957889024, opt-125m 125239296,
opt-1.3b 1315758080, opt-2.7b 2651596800, opt-13b 12853473280, opt-30b 29974540288, pythia-70m 70426624,
pythia-160m 162322944, pythia-410m 405334016, pythia-1b 1011781632, pythia-1.4b 1414647808, pythia-2.8b 2775208960,
pythia-6.9b 6857302016, pythia-12b 11846072320, t5-small 60506624, t5-base 222903552, t5-large 737668096,
flan-t5-small 76961152, flan-t5-base 247577856, flan-t5-large 783150080, flan-t5-xl 2849757184, flan-t5-xxl 11135332352,
mt5-small 300176768, mt5-base 582401280, mt5-large 1229581312, mt5-xl 3742619648, mt5-xxl 12921057280,
swin-small 49606258, swin-base 87768224, gpt-neo-125m 125198592, gpt-neo-1.3b 1315575808, gpt-neo-2.7b 2651307520,
internlm-7b 7321948160, starcoder-15b 15517456384, granite-20b-code 20066993152
"""
# Of these the nearest family stands in, which has other norms, positions or biases (`trainplan/data/sizes.yaml` says which).
NEARLY = """
stablelm2-12b 12143605760,
granite-3b-code 3482603520, granite-8b-code 8054870016, deepseek-llm-67b 67424722944
"""


@pytest.mark.parametrize(
    ("name", "parameters", "within"),
    [(*parameter.split(), 0.0) for parameter in PUBLISHED_PARAMETERS.split(",")]
    + [(*entry.split(), 4e-3) for entry in NEARLY.split(",")],
)
def test_sizes_have_the_published_parameters(name: str, parameters: str, within: float) -> None:
    assert name in sized_names()
    assert load_model(name).total_parameters == pytest.approx(int(parameters), rel=within)


def test_t5_has_two_streams_of_their_own_lengths() -> None:
    model = load_model("t5-512-4-48")
    lengths = {unit.name: (unit.sublayer.tokens, unit.sublayer.carried_tokens) for unit in model.units}
    assert lengths["encoder3.ffn"] == (512, 4)
    assert lengths["decoder3.cross"] == (4, 512)
    assert model.layers == 48
    boundaries = {unit.sublayer.boundary_bytes(1) for unit in model.units[:-1]}
    assert boundaries == {(512 + 4) * 1024 * 4}, "both streams pass every cut"


def test_swin_has_four_stages() -> None:
    model = load_model("swin-huge-32")
    shapes = [(u.sublayer.tokens, u.sublayer.hidden) for u in model.units if u.kind == "attention"]
    assert [shapes.count(shape) for shape in dict.fromkeys(shapes)] == [2, 2, 26, 2]
    assert list(dict.fromkeys(shapes)) == [(3136, 320), (784, 640), (196, 1280), (49, 2560)]
    assert [u.name for u in model.units if u.kind == "merge"] == ["block2.merge", "block4.merge", "block30.merge"]
    # Each cut carries half of what the one before it did, from stage to stage.
    cuts = [u.sublayer.boundary_bytes(1) for u in model.units if u.kind == "ffn"]
    assert [cuts[0] // cuts[index] for index in (1, 2, 4, 30)] == [1, 2, 4, 8]


def test_transgan_generates_at_two_widths() -> None:
    """AMP's: twelve layers of 1,024 and twelve of 16, as wide as an image of 288 pixels."""
    model = load_model("amp-transgan")
    shapes = [(u.sublayer.tokens, u.sublayer.hidden) for u in model.units if u.kind == "ffn"]
    assert {shape: shapes.count(shape) for shape in shapes} == {(81, 1024): 12, (288**2, 16): 12}


@pytest.mark.parametrize("tp", [1, 4])
@pytest.mark.parametrize("family", SMALL)
def test_bytes_are_those_that_torch_holds(family: str, tp: int) -> None:
    """For every distinct sub-layer: what its graph keeps within 1 %, its peak within 6 %, or 20 % of a quarter of it."""
    import torch
    from trainplan.profiling.measure.tasks import SublayerTrial
    from trainplan.profiling.models import torch_units

    torch.set_num_threads(1)
    model, rows = model_from_config({"model_type": family, **SMALL[family]}, family), 3
    for name, part in model.sublayers.items():
        if not part.splits_into(tp):
            continue
        trial = SublayerTrial(part, rows, torch_units.Shard(tp, 0), torch.device("cpu"), seed=0)
        found, incoming, output = trial.memory(), trial.incoming_bytes, part.output_bytes(rows, tp)
        assert part.kept_bytes(rows, tp) == pytest.approx(found["kept_bytes"], rel=0.01, abs=64), name

        def peak(kept: int, forward: int, backward: int, output: int = output, incoming: int = incoming) -> int:
            return max(kept + output + forward, kept + incoming + backward)

        ours = (part.kept_bytes(rows, tp), part.forward_workspace_bytes(rows, tp), part.backward_workspace_bytes(rows, tp))
        assert peak(*ours) == pytest.approx(peak(*found.values()), rel=0.06 if tp == 1 else 0.2, abs=2**17), name


@pytest.mark.long
def test_bytes_of_real_layers() -> None:
    """The two shapes that plans of this project's demonstration run on, at their real width."""
    import torch
    from trainplan.profiling.measure.tasks import SublayerTrial
    from trainplan.profiling.models import torch_units

    torch.set_num_threads(1)
    for model in (load_model("gpt2", 256, "float32"), load_model("bert-large", 128, "float32")):
        for name in ("attention", "ffn", "embedding", "head"):
            for tp in (1, 4):
                part = model.sublayers[name]
                trial = SublayerTrial(part, 2, torch_units.Shard(tp, 0), torch.device("cpu"), seed=0)
                found = trial.memory()
                assert part.kept_bytes(2, tp) == pytest.approx(found["kept_bytes"], rel=0.01)
                backward = found["kept_bytes"] + trial.incoming_bytes + found["backward_workspace_bytes"]
                ours = part.kept_bytes(2, tp) + trial.incoming_bytes + part.backward_workspace_bytes(2, tp)
                assert ours == pytest.approx(backward, rel=0.03), (name, tp)


@pytest.mark.parametrize("name", ["gpt2", "llama3-8b", "t5-large-32", "swin-huge-32", "vit-huge-32", "bert-huge-32"])
def test_shards_cover_the_parameters(name: str) -> None:
    model = load_model(name)
    for part in model.sublayers.values():
        for tp in (t for t in (2, 4, 8) if part.splits_into(t)):
            split = sum(part.parameter_count(tp, i) - part.replicated_count for i in range(tp))
            assert split + part.replicated_count == part.parameter_count()


def test_flops_are_six_times_the_parameters_a_token() -> None:
    """The rule of thumb (Kaplan et al., 2020): 2 N a token forward, without attention and what only looks things up."""
    model = load_model("llama2-7b", sequence=128)
    looked_up = model.units[0].sublayer.parameter_count()
    found = sum(unit.sublayer.forward_flops(1, 1) for unit in model.units) / 128
    assert found == pytest.approx(2 * (model.total_parameters - looked_up), rel=0.01)


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("gpt2", {"model_type": "mamba"}, ("model_type", ("mamba", "state-space"))),
    ("gpt2", {"model_type": ["gpt2"]}, ("model_type", "['gpt2']", "gpt2")),
    ("gpt2", {"n_embd": -4}, ("n_embd", -4, 1)),
    ("gpt2", {"n_embd": 255}, ("n_head", 8, "n_embd = 255")),
    ("gpt2", {"n_layer": 2.5}, ("n_layer", 2.5, (1, 4096))),
    ("gpt2", {"n_layer": 10**6}, ("n_layer", 1000000, (1, 4096))),
    ("gpt2", {"n_head": True}, ("n_head", "true", 1)),
    ("gpt2", {"activation_function": "mish"}, ("activation_function", "mish", ("gelu", "gelu_new"))),
    ("gpt2", {"layer_norm_epsilon": float("nan")}, ("layer_norm_epsilon", "NaN")),
    ("gpt2", {"vocab_size": 10**12}, ("vocab_size", 1000000000000)),
    ("gpt2", {"attn_pdrop": 1.5}, ("attn_pdrop", 1.5, 1)),
    ("gpt2", {"add_cross_attention": True}, ("add_cross_attention", "true", "false")),
    ("bert", {"type_vocab_size": -1}, ("type_vocab_size", -1)),
    ("bert", {"tie_word_embeddings": "yes"}, ("tie_word_embeddings", "yes", ("true", "false"))),
    ("llama", {"num_key_value_heads": 3}, ("num_key_value_heads", 3, "num_attention_heads = 8")),
    ("llama", {"head_dim": 7}, ("head_dim", 7)),
    ("llama", {"hidden_act": 3}, ("hidden_act", 3, "gelu")),
    ("llama", {"rope_theta": "big"}, ("rope_theta", "big", 10000)),
    ("mistral", {"sliding_window": 0}, ("sliding_window", 0, "null")),
    ("qwen2", {"layer_types": ["full_attention"] * 2}, ("layer_types", 2, ("full_attention", "sliding_attention"))),
    (
        "qwen3",
        {"layer_types": ["chunked_attention"]},
        ("layer_types[0]", "chunked_attention", ("full_attention", "sliding_attention")),
    ),
    ("qwen3", {"head_dim": 7}, ("head_dim", 7)),
    ("phi3", {"partial_rotary_factor": 0.1}, ("partial_rotary_factor", (0.1, 3, 32))),
    (
        "phi3",
        {"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0]}},
        ("rope_scaling.short_factor", "[1.0]"),
    ),
    ("gemma2", {"attn_logit_softcapping": -1}, ("attn_logit_softcapping", -1, ("null", 0))),
    ("gemma3_text", {"use_bidirectional_attention": True}, ("use_bidirectional_attention", "true", "false")),
    ("gpt_neox", {"rotary_pct": 2}, ("rotary_pct", 2, (0, 1))),
    ("falcon", {"num_kv_heads": 3}, ("num_kv_heads", 3, "num_attention_heads = 8")),
    ("opt", {"word_embed_proj_dim": 128}, ("word_embed_proj_dim", (128, "hidden_size 256"))),
    ("opt", {"do_layer_norm_before": False}, ("do_layer_norm_before", "false", "true")),
    ("mpt", {"attn_config": {"alibi": False}}, ("attn_config.alibi", "false", "true")),
    ("mpt", {"attn_config": {"clip_qkv": 8}}, ("attn_config.clip_qkv", 8, "false")),
    ("t5", {"feed_forward_proj": "tanh"}, ("feed_forward_proj", "tanh", "gelu")),
    ("t5", {"decoder_positions": 0}, ("decoder_positions", 0)),
    ("vit", {"patch_size": 15}, ("patch_size", 15, "image_size = 112")),
    ("vit", {"num_labels": 0}, ("num_labels", 0)),
    ("swin", {"depths": []}, ("depths", "[]")),
    ("swin", {"depths": [2, -1]}, ("depths[1]", -1, 1)),
    ("swin", {"num_heads": [8]}, ("num_heads", "[8]", 2)),
    ("swin", {"window_size": 6}, ("window_size", 6, 28)),
    ("swin", {"mlp_ratio": 0}, ("mlp_ratio", 0, 0)),
    ("swin", {"use_absolute_embeddings": True}, ("use_absolute_embeddings", "true")),
    ("transgan", {"hidden_sizes": [256, 128, 64]}, ("hidden_sizes[1]", 128, 256)),
    ("transgan", {"depths": [0, 0, 0]}, ("depths", 0)),
]


@pytest.mark.parametrize(("family", "change", "refusal"), BAD)
def test_bad_configs_get_one_line(family: str, change: dict[str, Any], refusal: tuple[Any, ...]) -> None:
    with refused(*refusal, where="c.json") as caught:
        model_from_config({"model_type": family, **SMALL[family], **change}, "c.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "[]", "null", "{", '{"model_type": "gpt2"', "\x00", '"gpt2"', '{"n_embd": 1, "n_embd": 2}']
)
def test_broken_files_get_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_model(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


ODD: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"model_type": "gpt2", "attn_pdrop": None}, {"total_parameters": 1_335_040}),
    ({"model_type": "bert", "is_decoder": True}, {"layers": 1}),
    ({"model_type": "llama", "num_key_value_heads": None}, {"total_parameters": 1_827_584}),
    ({"model_type": "t5", "n_positions": None, "feed_forward_proj": "gelu"}, {"layers": 4, "sequence_tokens": 512}),
    ({"model_type": "vit", "image_size": [112, 112]}, {"layers": 1}),
    ({"model_type": "swin", "mlp_ratio": None}, {"layers": 4}),
    ({"model_type": "gpt2", "n_positions": None, "n_ctx": 2048, "n_inner": None}, {"tokens": 2048}),
    ({"model_type": "gpt2", "scale_attn_by_inverse_layer_idx": True, "activation_function": "relu"}, {"layers": 1}),
    ({"model_type": "llama", "rope_parameters": {"rope_type": "yarn", "rope_theta": 5e5}}, {"layers": 1}),
]


@pytest.mark.parametrize(("config", "expected"), ODD)
def test_what_a_config_leaves_out_is_transformers_default(config: dict[str, Any], expected: dict[str, Any]) -> None:
    """Files older than a field have none of it. What makes a model another one is never assumed."""
    model = model_from_config(SMALL[config["model_type"]] | config, "config.json")
    assert {name: getattr(model, name) for name in expected} == expected
    assert model_from_shape(json.loads(json.dumps(model.shape())), "plan.json") == model


def test_dropout_of_unfused_code_survives_a_file() -> None:
    config = {"model_type": "bert", "attn_implementation": "eager", "attention_probs_dropout_prob": 0, "hidden_dropout_prob": 0}
    model = model_from_config(SMALL["bert"] | config, "config.json")
    again = model_from_shape(json.loads(json.dumps(model.shape())), "plan.json")
    assert again.activation_bytes() == model.activation_bytes()
    assert model.activation_bytes() < model.with_fields(hidden_dropout_prob=0.1).activation_bytes()


def test_sequences_that_a_model_cannot_have() -> None:
    for name, length in (("gpt2", 1025), ("gpt2", 0), ("vit-base", 64), ("t5-3b", -1)):
        with refused("sequence", problem=length):
            load_model(name, length)
    assert load_model("t5-3b", 2048, "float32").tokens == 2048, "relative positions have no end"


def test_scaled_models_keep_their_chain() -> None:
    for name in ("gpt2", "bert-large", "llama2-7b"):
        model = load_model(name)
        for factor in (2, 8, 64):
            small = model.scaled(factor)
            assert [unit.name for unit in small.units] == [unit.name for unit in model.units]
            assert small.total_parameters < model.total_parameters
        assert model.scaled(1) is model
    with refused("scale_down", problem=(2, "vit")):
        load_model("vit-base", dtype="float32").scaled(2)
