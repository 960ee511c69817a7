"""Configurations in config.json: unknown and missing fields, other names, dtype, rotations, parts."""

from __future__ import annotations

import dataclasses
import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from trainplan.profiling.base.errors import InputError, InputWarning
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.models.families import BUILT_IN, family
from trainplan.profiling.models.families.naming import COMMON
from trainplan.profiling.models.model import load_model, model_from_config, model_from_shape
from trainplan.profiling.shipped import shipped

from tests.helpers.refusals import assert_refusal, cautioned, refused
from tests.helpers.small_models import SMALL
from trainplan.inputs import request_of
from trainplan.planning.trials import runnable

# The fields that make a model another one, of each family.
SIZES = {
    "gpt2": "n_embd n_head n_layer n_positions vocab_size",
    "bert": "hidden_size num_attention_heads num_hidden_layers max_position_embeddings intermediate_size vocab_size",
    "llama": "hidden_size num_attention_heads num_hidden_layers max_position_embeddings intermediate_size vocab_size",
    "t5": "d_model d_kv num_heads num_layers d_ff vocab_size",
    "vit": "hidden_size num_attention_heads num_hidden_layers intermediate_size image_size patch_size",
    "swin": "embed_dim depths num_heads image_size patch_size window_size",
    "transgan": "hidden_sizes depths bottom_width latent_size",
    "falcon": "hidden_size num_attention_heads num_hidden_layers vocab_size",
    "opt": "hidden_size num_attention_heads num_hidden_layers max_position_embeddings ffn_dim vocab_size",
    "mpt": "d_model n_heads n_layers max_seq_len vocab_size",
} | dict.fromkeys(
    ("mistral", "qwen2", "qwen3", "phi3", "gemma2", "gemma3_text", "glm", "glm4", "nemotron", "gpt_neox"),
    "hidden_size num_attention_heads num_hidden_layers max_position_embeddings intermediate_size vocab_size",
)


# Families whose configuration classes are not of transformers.
OWN_CODE = ("transgan", "internlm", "internlm2", "orion", "qwen", "minicpm", "baichuan", "exaone", "chatglm")


def small(kind: str, **changes: Any) -> dict[str, Any]:
    """A small configuration of a family; a field that is changed to None is left out."""
    config = {"model_type": kind, **SMALL[kind], **changes}
    return {name: value for name, value in config.items() if value is not None}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, fields in SIZES.items() for name in fields.split()])
def test_a_size_that_is_missing_is_refused(kind: str, name: str) -> None:
    with refused(name, where="c.json", fix=re.compile(r"\d")):
        model_from_config(small(kind, **{name: None}), "c.json")


@pytest.mark.parametrize(
    ("kind", "name", "meant"),
    [
        ("llama", "hiden_size", "hidden_size"),
        ("llama", "num_hidden_layer", "num_hidden_layers"),
        ("llama", "num_keyvalue_heads", "num_key_value_heads"),
        ("llama", "rope_scalling", "rope_scaling"),
        ("llama", "torch_dtypes", "torch_dtype"),
        ("llama", "tie_word_embedding", "tie_word_embeddings"),
        ("gpt2", "n_layers", "n_layer"),
        ("gpt2", "hidden_sizes", "hidden_size"),
        ("bert", "intermediate_sise", "intermediate_size"),
        ("t5", "num_decoder_layer", "num_decoder_layers"),
        ("vit", "imagesize", "image_size"),
        ("swin", "window_sizes", "window_size"),
        ("transgan", "latent_sizes", "latent_size"),
    ],
)
def test_a_field_near_a_known_name_is_refused(kind: str, name: str, meant: str) -> None:
    """Whether or not the field that was meant is there too."""
    with refused(name, (7, kind), meant, where="c.json"):
        model_from_config(small(kind, **{name: 7}), "c.json")


def test_fields_that_nobody_knows_are_warned_of_in_one_line() -> None:
    config = small("llama", router_tokens=8, router_jitter=0.1, use_cache=True, architectures=["LlamaForCausalLM"])
    with pytest.warns(InputWarning) as caught:
        model = model_from_config(config, "c.json")
    [warned] = [entry.message for entry in caught]
    assert isinstance(warned, InputWarning) and "\n" not in str(warned)
    assert_refusal(warned.error, "router_tokens, router_jitter", "llama", where="c.json")
    assert "router_tokens" not in model.config


def test_shipped_models_have_no_unknown_fields() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", InputWarning)
        assert all(load_model(name) for name in shipped("models"))


@pytest.mark.parametrize("kind", [name for name in BUILT_IN if name not in OWN_CODE])
def test_the_fields_of_a_family_are_those_of_transformers(kind: str) -> None:
    """All that the configuration class has, its aliases, and nothing that it lacks but names of earlier versions."""
    transformers = pytest.importorskip("transformers")
    described = family(kind)
    assert described is not None and described.fields is not None
    theirs = transformers.CONFIG_MAPPING[kind]
    known = described.fields | COMMON
    assert {field.name for field in dataclasses.fields(theirs)} <= known, "a newer transformers has more fields"
    assert set(theirs().to_dict()) <= known
    assert theirs.attribute_map.items() <= described.aliases.items()


@pytest.mark.parametrize("kind", ["gpt2", "t5"])
def test_other_names_of_fields_are_read(kind: str) -> None:
    described = family(kind)
    assert described is not None
    config = small(kind)
    other = {alias: config.pop(name) for alias, name in described.aliases.items()}
    assert model_from_config({**config, **other}, "c.json") == model_from_config(small(kind), "c.json")
    wider = small(kind, hidden_size=512)
    with refused("hidden_size", problem=512, fix=(256, re.compile("n_embd|d_model"))):
        model_from_config(wider, "c.json")


@pytest.mark.parametrize(
    ("says", "dtype"),
    [
        ({}, "float32"),
        ({"torch_dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": "float16"}, "float16"),
        ({"dtype": "bfloat16", "torch_dtype": "torch.bfloat16"}, "bfloat16"),
        ({"torch_dtype": "BF16"}, "bfloat16"),
        ({"torch_dtype": "torch.bfloat16"}, "bfloat16"),
        ({"torch_dtype": "auto"}, "float32"),
    ],
)
def test_the_dtype_is_that_of_the_config(says: dict[str, str], dtype: str) -> None:
    model = model_from_config(small("llama", **says), "c.json")
    assert model.dtype == dtype == model.units[0].sublayer.dtype
    assert model_from_config(small("llama", **says), "c.json", dtype="float64").dtype == "float64"
    assert model_from_shape(json.loads(json.dumps(model.shape())), "plan.json") == model


def test_a_dtype_that_is_not_planned_needs_another() -> None:
    config = small("llama", torch_dtype="float8_e4m3fn")
    with refused(
        "torch_dtype", where="c.json", problem="float8_e4m3fn", fix=("--dtype", "float32", "float64", "bfloat16", "float16")
    ):
        model_from_config(config, "c.json")
    assert model_from_config(config, "c.json", dtype="bfloat16").dtype == "bfloat16"


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("says", "theta", "noted"),
    [
        ({"rope_theta": 5e5}, 5e5, False),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, 5e5, False),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}}, 5e5, True),
        ({"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}}, 5e5, True),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, 1e4, True),
        ({"rope_scaling": None}, 1e4, False),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, 1e4, True),
    ],
)
def test_rotations_are_read(says: dict[str, Any], theta: float, noted: bool) -> None:
    """The base, wherever it is; that angles are stretched is noted, and changes neither shapes nor parameters."""
    model = model_from_config(small("llama", **says), "c.json")
    assert model.sublayers["attention"].rotary == theta  # type: ignore[attr-defined]
    assert ("rope_scaling" in model.config) == noted
    assert model.total_parameters == model_from_config(small("llama"), "c.json").total_parameters
    assert model_from_shape(json.loads(json.dumps(model.shape())), "plan.json") == model


def test_interleaved_rotations_are_noted() -> None:
    """As in the files of SmolLM2, where they are off: no shape depends on them, and programs do not have them."""
    assert "rope_interleaved" not in model_from_config(small("llama", rope_interleaved=False, is_llama_config=True), "c").config
    assert model_from_config(small("llama", rope_interleaved=True), "c").config["rope_interleaved"] is True


@pytest.mark.parametrize(
    ("says", "refusal"),
    [
        ({"rope_scaling": 2}, ("rope_scaling", 2, "null")),
        (
            {"rope_parameters": {"rope_type": "spiral"}},
            ("rope_parameters.rope_type", "spiral", ("default", "linear", "dynamic", "yarn", "longrope", "llama3")),
        ),
        ({"rope_parameters": {"rope_theta": "big"}}, ("rope_theta", "big", 10000)),
        ({"rope_scaling": {"rope_type": "linear"}}, ("rope_scaling.factor", (), (1, 8))),
        ({"rope_scaling": {"rope_type": "llama3", **LLAMA3, "factor": "8"}}, ("rope_scaling.factor", "'8'", (1, 8))),
        (
            {"rope_scaling": {"rope_type": "llama3", **LLAMA3, "high_freq_factor": 0.5}},
            ("rope_scaling.high_freq_factor", 0.5, "low_freq_factor = 1"),
        ),
    ],
)
def test_rotations_that_are_none_are_refused(says: dict[str, Any], refusal: tuple[Any, ...]) -> None:
    with refused(*refusal):
        model_from_config(small("llama", **says), "c.json")


def test_stretched_rotations_make_another_architecture() -> None:
    """In the digest, wherever the file has them; and in what every attention computes."""
    plain = model_from_config(small("llama"), "c.json")
    digests = {plain.digest}
    for factor in (4.0, 8.0):
        model = model_from_config(small("llama", rope_scaling={"rope_type": "llama3", **LLAMA3, "factor": factor}), "c.json")
        digests.add(model.digest)
        assert model.sublayers["attention"] != plain.sublayers["attention"]
    assert len(digests) == 3


@pytest.mark.parametrize(
    ("rope", "refusal"),
    [
        (
            {"rope_type": "longrope", "factor": 4.0},
            ("model.config.rope_scaling.rope_type", "longrope", ("short_factor", "long_factor")),
        ),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, ("model.config.rope_scaling.partial_rotary_factor", 0.5, 1)),
    ],
)
def test_rotations_that_no_program_has_are_planned_and_not_run(rope: dict[str, Any], refusal: tuple[Any, ...]) -> None:
    model = model_from_config(small("llama", rope_scaling=rope), "c.json")
    with refused(*refusal):
        runnable(model, None, "plan.json")
    assert runnable(model.with_fields(rope_scaling={"rope_type": "llama3", **LLAMA3}), None, "plan.json").layers == 1


@pytest.mark.parametrize(
    ("kind", "says", "padding"),
    [
        ("bert", {}, 0),
        ("bert", {"pad_token_id": 7}, 7),
        ("llama", {}, None),
        ("llama", {"pad_token_id": -1}, 1999),
        ("gpt2", {"pad_token_id": 7}, None),
    ],
)
def test_the_padding_token_is_that_of_transformers(kind: str, says: dict[str, Any], padding: int | None) -> None:
    """It changes what a step learns and no shape: a plan that was made without it is of the same model."""
    model = model_from_config(small(kind, **says), "c.json")
    assert model.sublayers["embedding"].padding == padding  # type: ignore[attr-defined]
    assert model.digest == model_from_config(small(kind), "c.json").digest
    assert model_from_shape(json.loads(json.dumps(model.shape())), "plan.json") == model


def test_a_padding_token_outside_the_vocabulary_is_refused() -> None:
    with refused("pad_token_id", where="c.json", problem=2000, fix=("null", "vocab_size = 2000")):
        model_from_config(small("bert", pad_token_id=2000), "c.json")
    assert model_from_config({**small("bert"), "pad_token_id": None}, "c.json").sublayers["embedding"].padding is None  # type: ignore[attr-defined]


def multimodal(**text: Any) -> dict[str, Any]:
    return {
        "model_type": "llava",
        "torch_dtype": "bfloat16",
        "text_config": small("llama", **text),
        "vision_config": {"model_type": "clip_vision_model", "hidden_size": 1024},
        "image_token_index": 32000,
    }


def test_sizes_that_multimodal_files_leave_out_are_as_of_their_class() -> None:
    """As in the published file of Gemma 3 4B, whose language model has this number of parameters in transformers, too."""
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    text |= {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}
    config = {"model_type": "gemma3", "text_config": text, "vision_config": {}}
    with cautioned(
        re.compile(r"text_config\.vocab_size, text_config\.num_attention_heads, .*"), fix=("gemma3_text", "vocab_size = 262208")
    ):
        model = model_from_config(config, "c.json")
    assert model.total_parameters == 3_880_263_168
    assert model_from_shape(json.loads(json.dumps(model.shape())), "plan.json") == model
    with refused("num_attention_heads", where="c.json", fix=32):
        model_from_config(text, "c.json")


def test_the_language_model_of_a_multimodal_file_is_planned_alone() -> None:
    with cautioned("text_config", problem="llava", fix="vision_config"):
        model = model_from_config(multimodal(), "c.json")
    assert model == model_from_config(small("llama"), "c.json", dtype="bfloat16", name=model.name)
    with pytest.warns(InputWarning):
        assert model_from_config(multimodal(dtype="float16"), "c.json").dtype == "float16"
    with pytest.warns(InputWarning), refused("text_config.hidden_size", where="c.json", fix=4096):
        model_from_config(multimodal(hidden_size=None, model_type="internlm2"), "c.json")
    with cautioned("text_config.hidden_size", fix=("llama", "hidden_size = 4096")):
        assert model_from_config(multimodal(hidden_size=None), "c.json").config["hidden_size"] == 4096
    with (
        pytest.warns(InputWarning),
        refused("text_config.model_type", where="c.json", problem="xglm", fix='"model_type": "llama"'),
    ):
        model_from_config(multimodal(model_type="xglm"), "c.json")


@pytest.mark.parametrize(
    ("kind", "says", "refusal"),
    [
        ("bert", {"position_embedding_type": "relative_key"}, ("position_embedding_type", "relative_key", "absolute")),
        ("gpt2", {"pruned_heads": {"0": [1]}}, ("pruned_heads", "{'0': [1]}", "false")),
        (
            "t5",
            {"is_gated_act": True, "dense_act_fn": "gelu_new"},
            ("is_gated_act", ("true", "feed_forward_proj 'relu'"), ("feed_forward_proj", "gated-gelu")),
        ),
    ],
)
def test_other_architectures_are_refused(kind: str, says: dict[str, Any], refusal: tuple[Any, ...]) -> None:
    with refused(*refusal):
        model_from_config(small(kind, **says), "c.json")


@pytest.mark.parametrize(
    ("kind", "name", "task", "fix"),
    [
        ("llama", "LlamaForSequenceClassification", "classifier", "...ForCausalLM"),
        ("qwen2", "Qwen2ForTokenClassification", "classifier", "...ForCausalLM"),
        ("llama", "LlamaForQuestionAnswering", "answers", "...ForCausalLM"),
        ("qwen2", "Qwen2ForRewardModel", "reward", "...ForCausalLM"),
        ("llama", "LlamaModel", "head", "...ForCausalLM"),
        ("bert", "BertForSequenceClassification", "classifier", "...ForMaskedLM"),
        ("bert", "BertModel", "head", "...ForMaskedLM"),
        ("t5", "T5EncoderModel", "head", "...ForConditionalGeneration"),
        ("gpt2", "GPT2DoubleHeadsModel", "two heads", "...ForCausalLM"),
    ],
)
def test_a_model_with_another_head_is_refused(kind: str, name: str, task: str, fix: str) -> None:
    with refused("architectures", (f"['{name}']", task), fix, where="c.json"):
        model_from_config(small(kind, architectures=[name], num_labels=1), "c.json")


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("llama", {"architectures": ["MyOwnForCausalLM"]}),
        ("llama", {"architectures": ["LlamaForSequenceClassification", "LlamaForCausalLM"]}),
        ("llama", {"architectures": None}),
        ("llama", {"architectures": ["OwnModel"], "auto_map": {"AutoModelForCausalLM": "own.OwnModel"}}),
        ("gpt2", {"architectures": ["GPT2LMHeadModel"]}),
        ("bert", {"architectures": ["BertForPreTraining"]}),
        ("vit", {"architectures": ["ViTForImageClassification"]}),
    ],
)
def test_the_head_of_a_language_model_goes_by_many_names(kind: str, says: dict[str, Any]) -> None:
    assert model_from_config(small(kind, **says), "c.json").digest == model_from_config(small(kind), "c.json").digest


def test_a_file_is_named_in_every_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(small("llama", hiden_size=8192)))
    with refused("hiden_size", (8192, "llama"), "hidden_size", where=path):
        load_model(path)


@pytest.mark.parametrize(
    ("kind", "absent", "name", "meant"),
    [
        ("llama", None, "Hidden_Size", "hidden_size"),
        ("llama", "hidden_size", "HIDDEN_SIZE", "hidden_size"),
        ("llama", None, "hiddenSize", "hidden_size"),
        ("llama", "num_attention_heads", "num_heads", "num_attention_heads"),
        ("llama", "num_attention_heads", "num_attn_heads", "num_attention_heads"),
        ("llama", "num_key_value_heads", "kv_heads", "num_key_value_heads"),
        ("llama", "num_key_value_heads", "n_kv_heads", "num_key_value_heads"),
        ("llama", "num_key_value_heads", "num_kv_heads", "num_key_value_heads"),
        ("llama", "num_hidden_layers", "n_layers", "num_hidden_layers"),
        ("llama", "vocab_size", "vocab", "vocab_size"),
        ("llama", "attention_bias", "attn_bias", "attention_bias"),
        ("gpt2", "n_inner", "intermediate_size", "n_inner"),
        ("gpt2", "n_head", "heads", "n_head"),
        ("t5", "num_layers", "n_layers", "num_layers"),
        ("swin", "embed_dim", "d_model", "embed_dim"),
    ],
)
def test_a_name_of_another_format_is_refused(kind: str, absent: str | None, name: str, meant: str) -> None:
    config = small(kind, **({absent: None} if absent else {})) | {name: 7}
    with refused(name, (7, kind), meant, where="c.json"):
        model_from_config(config, "c.json")


def test_a_name_of_another_format_next_to_the_familys_own_is_left_out() -> None:
    with cautioned("n_kv_heads", problem="llama"):
        model_from_config(small("llama", n_kv_heads=7), "c.json")


def test_key_value_heads_that_are_missing_are_warned_of() -> None:
    with cautioned("num_key_value_heads", where="c.json", fix=(8, "num_attention_heads")):
        model = model_from_config(small("llama", num_key_value_heads=None), "c.json")
    with warnings.catch_warnings():
        warnings.simplefilter("error", InputWarning)
        model_from_shape(model.shape(), "plan.json")


def test_dtypes_that_contradict_or_say_nothing() -> None:
    with refused("torch_dtype", where="c.json", problem="float16", fix=("bfloat16", "dtype")):
        model_from_config(small("llama", dtype="bfloat16", torch_dtype="float16"), "c.json")


def test_models_are_planned_in_half_precision_unless_the_user_says_otherwise(tmp_path: Path) -> None:
    def planned(**options: Any) -> tuple[str, list[InputError]]:
        """The dtype of a model, and the warnings of dtypes."""
        with warnings.catch_warnings(record=True) as reported:
            warnings.simplefilter("always", InputWarning)
            dtype = load_model(path, **options).dtype
        errors = [entry.message.error for entry in reported if isinstance(entry.message, InputWarning)]
        return dtype, [error for error in errors if error.field.endswith("dtype")]

    path = tmp_path / "config.json"
    for says, expected in (({}, "bfloat16"), ({"torch_dtype": "float16"}, "float16"), ({"dtype": "float64"}, "float64")):
        path.write_text(json.dumps(small("llama", **says)))
        assert planned() == (expected, [])
    for says in ("float32", "auto"):
        path.write_text(json.dumps(small("llama", torch_dtype=says)))
        dtype, (warned,) = planned()
        assert dtype == "bfloat16"
        assert_refusal(warned, "torch_dtype", says, "bfloat16", where=path)
        assert planned(dtype="float32") == ("float32", []), "which was asked for"
        assert planned(half="float16")[0] == "float16"
    path.write_text(json.dumps({"model_type": "some_vl", "text_config": small("llama", torch_dtype="float32")}))
    assert_refusal(planned()[1][0], "text_config.torch_dtype", "float32")


def test_a_model_that_is_refused_is_not_warned_of(tmp_path: Path) -> None:
    """No note names the dtype that it is planned in."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "mamba", "hidden_size": 64, "state_size": 16, "torch_dtype": "float32"}))
    with warnings.catch_warnings():
        warnings.simplefilter("error", InputWarning)
        with refused("model_type", problem=("mamba", "state-space")):
            load_model(path)


@pytest.mark.parametrize("field", ["attn_implementation", "_attn_implementation"])
def test_attention_of_separate_kernels_is_reported_where_a_configuration_asks_for_it(tmp_path: Path, field: str) -> None:
    path = tmp_path / "config.json"
    for value, words in (("eager", "scores are kept"), ("sdpa", ""), (None, "")):
        path.write_text(json.dumps(small("llama") | ({field: value} if value else {})))
        model = load_model(path, dtype="float32")
        assert words in model.attention and bool(model.attention) == bool(words)
        assert model.units[1].sublayer.unfused == bool(words)


@pytest.mark.parametrize(("name", "dtype"), [("llama2-70b", "bfloat16"), ("bert-huge-32", "float32"), ("bert-13b", "float16")])
def test_shipped_models_are_in_the_dtype_that_they_are_trained_in(name: str, dtype: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", InputWarning)
        assert load_model(name).dtype == dtype, "float32 and float16 are of the papers' runs"


@pytest.mark.parametrize(("cluster", "dtype"), [("h100:8", "bfloat16"), ("v100:8", "float16"), ("cpu-4", "float32")])
def test_half_precision_is_what_the_devices_have(cluster: str, dtype: str) -> None:
    assert load_cluster(cluster).training_dtype == dtype
    assert request_of((), "plan", model="gpt2", cluster=cluster, batch=8, sequence=64).described_model.dtype == dtype


@pytest.mark.parametrize(
    ("says", "refusal"),
    [
        ({"rope_scaling": {"type": "linear", "facter": 2.0}}, ("rope_scaling.facter", 2.0, "factor")),
        ({"rope_parameters": {"rope_typ": "linear"}}, ("rope_parameters.rope_typ", "linear", "rope_type")),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "linear", "factor": 4.0}},
            ("rope_parameters.factor", 4.0, (2.0, "rope_scaling")),
        ),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "default"}},
            ("rope_parameters.rope_type", "default", ("linear", "rope_scaling")),
        ),
    ],
)
def test_rotations_that_are_misspelt_or_contradict(says: dict[str, Any], refusal: tuple[Any, ...]) -> None:
    with refused(*refusal):
        model_from_config(small("llama", **says), "c.json")


def test_models_in_half_precision_are_planned_in_float32_where_devices_are_no_faster_in_it(tmp_path: Path) -> None:
    """As on CPUs, whatever a file says of how its weights are stored; and the same by a model's name."""
    path = tmp_path / "config.json"
    for says in ("bfloat16", "float16"):
        path.write_text(json.dumps(small("llama", torch_dtype=says)))
        with cautioned("torch_dtype", problem=says, fix=f"--dtype {says}"):
            assert load_model(path, half=load_cluster("cpu-4").training_dtype).dtype == "float32"
        assert load_model(path, dtype=says, half="float32").dtype == says
    with cautioned("torch_dtype", problem="bfloat16", fix=("float32", "--dtype bfloat16")):
        assert load_model("llama3-8b", 128, half="float32").dtype == "float32"
    assert load_model("bert-13b", half="float32").dtype == "float16", "which is of the paper's run"


@pytest.mark.parametrize("name", ["llama3-8b", "qwen2.5-7b"])
def test_models_in_bfloat16_are_planned_in_float16_where_devices_have_no_other_half(name: str) -> None:
    half = load_cluster("v100:8").training_dtype
    with cautioned("torch_dtype", problem="bfloat16", fix=("float16", "--dtype")):
        assert load_model(name, 128, half=half).dtype == half == "float16"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_model(name, 128, "float32", half).dtype == "float32"
