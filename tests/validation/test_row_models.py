"""The models of rows: well-known names, families, and what the number of parameters decides."""

from __future__ import annotations

import re
from typing import Any

import pytest
from trainplan.profiling.models.model import load_model
from trainplan.profiling.shipped import sized, sized_names

from tests.helpers.refusals import refused
from tests.validation.test_words import laid


def sizes(layers: int, hidden: int, heads: int, kv: int | None = None, ffn: int | None = None, vocab: int | None = None) -> Any:
    return {"layers": layers, "hidden": hidden, "heads": heads, "kv_heads": kv, "ffn": ffn, "vocab": vocab, "gpus": 512}


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        *(("LLaMA-65B", 65_285_660_672), ("llama-33b", 32_528_943_616), ("meta-llama/Llama-3.2-3B", 3_212_749_824)),
        *(("llama3.3-70b", 70_553_706_496), ("Llama-2-70b-chat-hf", 68_976_648_192), ("Qwen2.5-72B", 72_706_203_648)),
        *(("qwen3-0.6b", 596_049_920), ("gemma2-27b", 27_227_128_320), ("Phi-4-14B", 14_659_507_200)),
        *(("opt-30b", 29_974_540_288), ("mistral-small-24b", 23_572_403_200), ("Llama-3.1-8B-Instruct", 8_030_261_248)),
    ],
)
def test_well_known_names_need_no_sizes(name: str, parameters: int) -> None:
    model = laid(model=name, gpus=512, seq=512).model
    assert model.total_parameters == parameters
    assert load_model(name.split("/")[-1], 512).total_parameters == parameters


@pytest.mark.parametrize(
    ("words", "name"),
    [
        *(
            ("Mistral 7B v0.1", "mistral-7b"),
            ("Mistral 7B v0.3", "mistral-7b-v0.3"),
            ("Meta Llama3.1 405B", "llama3.1-405b"),
            ("Phi-3 mini 4k", "phi3-mini"),
        ),
        *(("bert large uncased", "bert-large"), ("llama2-70b (GQA)", "llama2-70b"), ("qwen2_5-72b", "qwen2.5-72b")),
        *(
            ("nemotron 340b", "nemotron-340b"),
            ("GPT-3", "gpt3"),
            ("megatron-1t", "megatron-1t"),
            ("MT-NLG 530B", "mt-nlg-530b"),
        ),
        *(("GPT-2 124M", "gpt2-124m"), ("gpt2 (124M)", "gpt2-124m"), ("GLM-4-32B", "glm-4-32b"), ("T5 XXL", "t5-xxl")),
        *(("DeepSeek-R1-Distill-Llama-8B", "deepseek-r1-distill-llama-8b"), ("mistral", "mistral"), ("mpt-70b", "mpt-70b")),
        *(("llama3_8b", "llama3-8b"), ("qwen_3_32b", "qwen3-32b"), ("llama2-70b-lora", "llama2-70b"), ("Mixtral 8x7B", None)),
    ],
)
def test_names_as_tables_have_them(words: str, name: str | None) -> None:
    known = sized(words)
    assert (known and known[0]) == name


@pytest.mark.parametrize(
    ("name", "experts"),
    [("GPT-MoE 1.3B", ()), ("DBRX", (16, 4))],
)
@pytest.mark.parametrize("stated", [{}, sizes(32, 4096, 32)])
def test_a_mixture_of_experts_is_not_predicted_without_its_sizes(
    name: str, experts: tuple[int, ...], stated: dict[str, Any]
) -> None:
    with refused("model", problem=(name, "experts", *experts), fix=("experts", "topk")):
        laid(**({"model": name, "gpus": 512, "seq": 512} | stated))


def test_every_size_is_that_of_its_name() -> None:
    for name in sized_names():
        if stated := re.search(r"-([\d.]+)([bm])(-|$)", name):
            count = float(stated[1]) * {"b": 1e9, "m": 1e6}[stated[2]]
            assert load_model(name).total_parameters == pytest.approx(count, rel=0.7), name  # Falcon3-1B has 1.67e9
        assert sized(name) is not None
    assert sized("nobody-7b") is None


@pytest.mark.parametrize(
    ("name", "billions", "fields", "architecture"),
    [
        ("llama-13b", 13.0, sizes(40, 5120, 40, None, 13824, 32000), "llama"),
        ("qwen2.5-1.5b-x", 1.54, sizes(28, 1536, 12, 2, 8960, 151936), "qwen2"),
        ("phi-2", 2.78, sizes(32, 2560, 32, 32, 10240, 51200), "phi"),
        ("nemotron-nano-8b", 8.03, sizes(32, 4096, 32, 8, 14336, 128256), "llama"),
        ("glm-10b", 9.88, sizes(48, 4096, 64, 64, 16384, 50304), "gpt2"),
        ("gemma-7b", 8.54, sizes(28, 3072, 16, 16, 24576, 256000), "gemma"),
        ("bloom-7b1", 7.07, sizes(30, 4096, 32, 32, 16384, 250880), "bloom"),
        ("baichuan2-13b", 13.9, sizes(40, 5120, 40, 40, 13696, 125696), "baichuan"),
        ("olmo2-7b", 7.3, sizes(32, 4096, 32, 32, 11008, 100352), "olmo2"),
        ("starcoder", 15.5, sizes(40, 6144, 48, 1, 24576, 49152), "gpt_bigcode"),
        ("roberta-large", 0.355, sizes(24, 1024, 16, 16, 4096, 50265), "bert"),
        ("t5-220m", 0.223, sizes(12, 768, 12, 12, 3072, 32128), "t5"),
        ("flan-t5-xxl", 11.1, sizes(24, 4096, 64, 64, 10240, 32128), "t5"),
        ("somebody-13b", 12.85, sizes(40, 5120, 40, 40, 20480, 50257), "gpt2"),
        ("somebody-13b", 13.0, sizes(40, 5120, 40, 40, 13824, 32000), "llama"),
        ("bert-4b", 3.9, sizes(48, 2560, 40), "bert"),
        ("llama-70b", 69.0, sizes(80, 8192, 64), "llama"),
    ],
)
def test_parameters_decide_what_a_row_leaves_open(name: str, billions: float, fields: Any, architecture: str) -> None:
    made = laid(model=name, params=billions * 1e9, seq=512, **fields)
    assert made.model.total_parameters == pytest.approx(billions * 1e9, rel=0.03)
    assert made.model.family == architecture and "params" not in made.assumed


def test_what_does_not_come_out_is_reported() -> None:
    made = laid(model="somebody-13b", params=99e9, seq=512, **sizes(40, 5120, 40, 40, 20480, 50257))
    assert "99 stated" in made.assumed["params"]
    with refused("model", problem="somebody-13b", fix="layers, hidden and heads"):
        laid(model="somebody-13b")


def test_llama_3_is_not_how_llama_33b_begins() -> None:
    fields = sizes(60, 6656, 52)
    assert laid(model="llama-33b-v2", **fields).assumed["model"] == "of the architecture of llama2-7b"
    assert laid(model="llama3-33b", **fields).assumed["model"] == "of the architecture of llama3-8b"


def test_without_parameters_sizes_grow_as_in_the_family() -> None:
    assert laid(model="llama-x", **sizes(80, 8192, 64)).model.total_parameters == 65_285_660_672  # as LLaMA-65B


def test_a_feed_forward_width_that_no_mpt_has_is_reported() -> None:
    fields = {**sizes(32, 4096, 32, 32, vocab=50432), "model": "mpt-7b"}
    assert "8192 stated" in laid(**fields | {"ffn": 8192}).assumed["ffn"]
    assert "ffn" not in laid(**fields | {"ffn": 16384}).assumed


@pytest.mark.parametrize(
    ("name", "vocabulary"),
    [
        *(("llama3-8b", 128256), ("nemotron4-15b", 256000), ("gemma2-9b", 256000), ("qwen3-8b", 152064), ("gpt3-175b", 50432)),
        *(("somebody-x", 50432), ("llama-x", 50432)),
    ],
)
def test_a_known_model_has_its_own_vocabulary(name: str, vocabulary: int) -> None:
    """In Megatron-Core, padded to 128 on each of two tensor-parallel ranks."""
    fields = sizes(32, 4096, 32) if name.endswith("-x") else {"gpus": 512}
    made = laid(model=name, framework="Megatron-Core", tp=2, **fields)
    assert made.model.vocabulary == vocabulary and made.assumed["vocab"] == f"{vocabulary}, padded"


def test_parameters_decide_between_vocabularies() -> None:
    of_data = laid(model="llama3-8b", params=7.39e9, framework="NeMo", gpus=512)
    assert of_data.model.vocabulary == 50304 and "vocab_size" in of_data.assumed["architecture"]
    own = laid(model="llama3-8b", params=8.03e9, framework="NeMo", gpus=512)
    assert own.model.vocabulary == 128256 and not {"architecture", "params"} & set(own.assumed)
    family = laid(model="llama3-x", params=8.03e9, framework="NeMo", **sizes(32, 4096, 32, 8, 14336))
    assert family.model.vocabulary == 128256 and "params" not in family.assumed
