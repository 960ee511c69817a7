"""Small models and random single-stage plans of them."""

from __future__ import annotations

import random
from typing import Any

from trainplan.formulations.plan import Plan, load_plan
from trainplan.formulations.strategies import decision_tree
from trainplan.profiling.models import Model, load_model

# Vocabularies that no tensor-parallel degree divides; chains that are tied, not tied, with post-norm, with grouped queries.
_GPT2 = {"n_embd": 32, "n_head": 4, "n_inner": 64, "n_positions": 16}
_OTHER = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 16}
GPT2 = load_model("gpt2", 12, "float64").with_fields(n_layer=3, vocab_size=67, **_GPT2)
UNTIED = GPT2.with_fields(n_layer=2, vocab_size=65, tie_word_embeddings=False)
BERT = load_model("bert-large", 12, "float64").with_fields(num_hidden_layers=2, vocab_size=61, **_OTHER)
LLAMA = load_model("llama2-7b", 12, "float64").with_fields(
    num_hidden_layers=2, vocab_size=63, num_key_value_heads=4, head_dim=8, **_OTHER
)


def plan_of(model: Model, strategies: list[str], world: int, samples: int = 8, micro_batches: int = 1) -> Plan:
    units: list[dict[str, Any]] = [{"name": u.name, "strategy": s} for u, s in zip(model.units, strategies, strict=True)]
    return load_plan(
        {
            "model": model.shape(),
            "model_digest": model.digest,
            "world": world,
            "memory_bytes": 2**40,
            "batch": {"global_samples": samples, "micro_batches": micro_batches},
            "stages": [{"ranks": list(range(world)), "first_unit": 0, "last_unit": len(model.units) - 1}],
            "units": units,
        }
    )


def random_plan(rng: random.Random, world: int = 4, model: Model | None = None) -> Plan:
    """Every unit takes any strategy of the whole tree, those that mix dp with sdp included."""
    model = model or rng.choice([GPT2, UNTIED, BERT, LLAMA])
    tree = [s for s in decision_tree(world, takeaway3=False) if s.degree("tp") in model.tp_degrees(world)]
    micro_batches = rng.choice([1, 1, 2])
    return plan_of(model, [str(rng.choice(tree)) for _ in model.units], world, world * 2, micro_batches)
