"""Models from their configs, and byte formulas against what torch allocates."""

from dataclasses import replace
from typing import Any

import pytest
from trainplan.profiling.errors import InputError
from trainplan.profiling.models import Model, load_model, model_from_config

SIZES: list[dict[str, Any]] = [
    {"hidden": 768, "heads": 12, "inner": 3072, "vocabulary": 5000, "sequence": 128, "positions": 512},
    {"hidden": 256, "heads": 8, "inner": 1024, "vocabulary": 1000, "sequence": 512, "positions": 512},
]


@pytest.mark.parametrize(("name", "millions"), [("gpt2", 124.44), ("bert-huge-32", 672), ("bert-huge-48", 987)])
def test_parameter_counts(name: str, millions: float) -> None:
    """GPT-2 small, and Table I of Galvatron-BMW."""
    assert load_model(name).total_parameters == pytest.approx(millions * 1e6, rel=0.01)


@pytest.mark.parametrize("family", ["gpt2", "bert-huge-32"])
@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("size", SIZES, ids=["wide", "long"])
@pytest.mark.parametrize("tp", [1, 4])
def test_bytes_are_those_that_torch_holds(family: str, eager: bool, size: dict[str, Any], tp: int) -> None:
    import torch
    from trainplan.profiling import torch_units
    from trainplan.profiling.allocations import PeakMemory

    torch.set_num_threads(1)
    model = replace(load_model(family), eager_attention=eager, **size)
    rows, shard = 3, torch_units.Shard(tp, 0)
    for kind in ("attention",) if eager else ("embedding", "attention", "ffn", "head"):
        values = torch_units.whole_parameters(model, kind, 0)  # type: ignore[arg-type]
        parameters = {
            p.name: torch_units.sharded(p, values[p.name], shard).clone().requires_grad_()
            for p in model.parameters(kind)  # type: ignore[arg-type]
        }
        for value in parameters.values():
            value.grad = torch.zeros_like(value)
        if kind == "embedding":
            x = torch.randint(model.vocabulary, (rows, model.sequence))
        else:
            x = torch.randn(rows, model.sequence, model.hidden).requires_grad_()
        gradient = torch.ones_like(torch_units.forward(model, kind, parameters, x, shard).detach())  # type: ignore[arg-type]
        with PeakMemory() as memory:
            with memory.phase("forward"):
                y = torch_units.forward(model, kind, parameters, x, shard)  # type: ignore[arg-type]
            edge, output = torch.autograd.graph.get_gradient_edge(y), y.nbytes
            del y
            with memory.phase("backward"):
                torch.autograd.backward([edge], [gradient])
        del edge  # what it still holds must not go while the next unit is watched
        kept = model.kept_bytes(kind, rows, tp)  # type: ignore[arg-type]
        made = 0 if kind == "embedding" else model.boundary_bytes(rows)
        forward = kept + output + model.forward_workspace_bytes(kind, rows, tp)  # type: ignore[arg-type]
        backward = kept + made + model.backward_workspace_bytes(kind, rows, tp)  # type: ignore[arg-type]
        assert forward == pytest.approx(memory.phase_peak_bytes["forward"], rel=0.01), (kind, "forward")
        assert backward == pytest.approx(memory.phase_peak_bytes["backward"], rel=0.03), (kind, "backward")


def test_shards_cover_the_parameters() -> None:
    model = replace(load_model("gpt2"), vocabulary=50257)
    for kind in ("embedding", "attention", "ffn", "head"):
        for tp in (2, 4, 8):
            split = sum(model.parameter_count(kind, tp, i) - model.replicated_count(kind) for i in range(tp))  # type: ignore[arg-type]
            assert split + model.replicated_count(kind) == model.parameter_count(kind)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"model_type": "mamba"}, "model_type is 'mamba'"),
        ({"n_embd": None}, "n_embd is missing"),
        ({"n_embd": -4}, "n_embd is -4"),
        ({"n_embd": 767}, "n_head is 12"),
        ({"n_layer": 2.5}, "n_layer is 2.5"),
        ({"n_head": True}, "n_head is true"),
        ({"n_layer": "12"}, "n_layer is '12'"),
        ({"activation_function": "relu"}, "activation_function is 'relu'"),
        ({"layer_norm_epsilon": float("nan")}, "layer_norm_epsilon is NaN"),
        ({"vocab_size": 10**12}, "vocab_size is 1000000000000"),
    ],
)
def test_bad_configs_get_one_line(change: dict[str, Any], told: str) -> None:
    config = {
        "model_type": "gpt2",
        "n_embd": 768,
        "n_head": 12,
        "n_layer": 12,
        "n_positions": 1024,
        "vocab_size": 50257,
    }
    with pytest.raises(InputError, match=f"c.json: {told}") as caught:
        model_from_config({**config, **change}, "c.json")
    assert "\n" not in str(caught.value)


def test_scaled_models_keep_their_chain() -> None:
    model = load_model("gpt2")
    for factor in (2, 8, 64):
        small = model.scaled(factor)
        assert [unit.name for unit in small.units] == [unit.name for unit in model.units]
        assert small.heads == model.heads
        assert small.total_parameters < model.total_parameters
    assert isinstance(model.scaled(1), Model)
