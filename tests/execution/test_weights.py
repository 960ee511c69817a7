"""Weights from and to files of Hugging Face: logits of `transformers`, files that it reads, and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trainplan.profiling.models.model import Model, model_from_config

import trainplan as tp
from tests.helpers.plans import GPT2, LLAMA, plan_of
from tests.helpers.texts import token_bytes

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from trainplan.execution.training.single_process import Reference  # noqa: E402
from trainplan.execution.training.weight_files import WeightFiles, WeightWriter  # noqa: E402

from tests.helpers.huggingface import float64_throughout, same_architecture  # noqa: E402
from tests.helpers.refusals import refused  # noqa: E402
from tests.profiling.test_huggingface import BERT, DECODERS  # noqa: E402

ALL = {"gpt2": dict(GPT2.config), "bert": BERT, **DECODERS}
SMALL = ("gpt2", "bert", "qwen3", "phi3", "gemma2", "gpt_neox")


def random_weights(model: Model, folder: Path) -> Any:
    """A model of `transformers` with random values, none of them what it begins with, saved as it saves them."""
    torch.manual_seed(7)
    other = same_architecture(transformers, model).double()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.normal_(0, 0.3)
    other.save_pretrained(folder)
    return other


def logits(other: Any, tokens: Any) -> Any:
    with torch.no_grad():
        return other(tokens).logits


@pytest.mark.parametrize(
    "name", [name if name in SMALL else pytest.param(name, marks=pytest.mark.long) for name in sorted(ALL)]
)
def test_logits_are_those_of_transformers_and_files_come_back(name: str, tmp_path: Path) -> None:
    model = model_from_config(ALL[name], "small", dtype="float64")
    tokens = torch.randint(1, model.vocabulary - 4, (2, model.tokens), generator=torch.Generator().manual_seed(1))
    with float64_throughout():
        other = random_weights(model, tmp_path / "theirs")
        one = Reference(model, 0, weights=str(tmp_path / "theirs"))
        expected = logits(other, tokens)
        with torch.no_grad():
            assert float((one.logits(tokens) - expected).abs().max()) < 1e-9 * float(expected.abs().max())
        writer = WeightWriter(str(tmp_path / "ours"), model, torch.float64)
        writer.begin()
        indices: dict[str, str] = {}
        for position, values in enumerate(one.parameters):
            indices |= writer.write(position, values)
        writer.finish(indices)
    again, reported = type(other).from_pretrained(tmp_path / "ours", output_loading_info=True, dtype=torch.float64)
    assert not reported["missing_keys"] and not reported["unexpected_keys"] and not reported["mismatched_keys"]
    named = dict(again.named_parameters())
    apart = [key for key, value in other.named_parameters() if not named[key].allclose(value, rtol=1e-15, atol=1e-15)]
    assert apart == []


def test_a_plan_begins_with_weights_and_leaves_them(tmp_path: Path) -> None:
    """Under a mixed plan with a table that is there twice: the loss of `transformers`, and the same files after steps that
    change nothing."""
    other = random_weights(GPT2, tmp_path / "theirs")
    file = token_bytes(tmp_path / "t.bin", GPT2)
    strategies = ["tp2", "tp2", "tp2-sp", "dp2", "sdp2", "dp2", "tp2-sp", "sdp2"]
    fields = {"evaluate": file.path, "evaluate_batches": 1, "learning_rate": 0.0, "weight_decay": 0.0, "compare": True}
    paths = {"weights": tmp_path / "theirs", "save_weights": tmp_path / "ours"}
    report = tp.run(plan_of(GPT2, strategies, 4, 8, 2, [3]), steps=1, data=file.path, **fields, **paths)
    assert report.gradient_difference is not None and report.gradient_difference < 1e-12
    tokens = torch.from_numpy(file.read(np.arange(8)))
    flat = logits(other, tokens[:, :-1]).flatten(0, 1)
    expected = float(torch.nn.functional.cross_entropy(flat, tokens[:, 1:].flatten()))
    assert report.evaluations[1] == pytest.approx(expected, rel=1e-7)  # transformers computes parts of it in float32
    again = dict(type(other).from_pretrained(tmp_path / "ours", dtype=torch.float64).named_parameters())
    assert [key for key, value in other.named_parameters() if not again[key].equal(value)] == []


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    plan = plan_of(LLAMA, ["single"] * len(LLAMA.units), 1)
    with refused("weights", problem=str(tmp_path), fix="model.safetensors"):
        tp.run(plan, weights=tmp_path)
    random_weights(GPT2, tmp_path / "gpt2")
    with refused("", where=tmp_path / "gpt2" / "config.json"):
        tp.run(plan, weights=tmp_path / "gpt2")
    with refused("save_weights", problem=tmp_path / "gpt2"):
        tp.run(plan, save_weights=tmp_path / "gpt2")
    files = WeightFiles.of(str(tmp_path / "gpt2"))
    with refused("model.norm.weight"):
        dict(files.unit(LLAMA, len(LLAMA.units) - 1))
    wider = GPT2.with_fields(n_embd=int(GPT2.config["n_embd"]) * 2)
    with refused("embedding", where=tmp_path / "gpt2", problem="tokens.weight"):
        dict(files.unit(wider, 0))
    assert json.loads((tmp_path / "gpt2" / "config.json").read_text())["model_type"] == "gpt2"
