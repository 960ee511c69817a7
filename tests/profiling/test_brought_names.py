"""Names as people write them: the sizes of the model that is meant, or one line that says what it is and what to give."""

from __future__ import annotations

import warnings

import pytest
from trainplan.profiling.base.errors import InputError, InputWarning
from trainplan.profiling.models.model import load_model

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
    ("name", "told"),
    [
        ("mixtral", r"a mixture of experts \(8, 2 a token\)"),
        ("qwen3-235b", r"a mixture of experts \(128, 8 a token\)"),
        ("llama4 scout", r"a mixture of experts \(16, 1 a token\)"),
        ("arctic", "a mixture of experts is not planned"),
        ("ernie-4.5-300b-a47b", "a mixture of experts is not planned"),
        ("Qwen2.5-VL-72B", "a model of several kinds of input, .* config.json"),
        ("meta-llama/Llama-3.2-11B-Vision", "a model of several kinds of input, .* config.json"),
        ("nvidia/Nemotron-H-8B-Base-8K", "a model with state-space layers"),
        ("falcon-mamba-7b", "a model with state-space layers"),
        ("tulu-3-70b", "did you mean 'llama3-70b'"),
        ("saiga", "`trainplan model list` lists all names; or give a config.json"),
    ],
)
def test_a_name_that_is_not_planned_says_what_it_is(name: str, told: str) -> None:
    with pytest.raises(InputError, match=told) as refused:
        load_model(name)
    assert len(str(refused.value)) < 240


def test_a_known_name_of_another_publisher_is_warned_of() -> None:
    """T5 XL of another publisher is twice as wide."""
    with pytest.warns(InputWarning, match="is 't5-xl' of 'retrieva-jp'; it is planned as t5-xl, as which it is called"):
        load_model("retrieva-jp/t5-xl")
