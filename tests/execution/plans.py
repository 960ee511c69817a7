"""Small models and random single-stage plans of them."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from trainplan.formulations.plan import Plan, load_plan
from trainplan.formulations.strategies import decision_tree
from trainplan.profiling.models import Model, load_model

SMALL = {"hidden": 32, "heads": 4, "inner": 64, "positions": 16, "sequence": 12, "dtype": "float64"}
# Vocabularies that no tensor-parallel degree divides, and a chain that is tied, one that is not, and one with post-norm.
GPT2 = replace(load_model("gpt2"), layers=3, vocabulary=67, **SMALL)
UNTIED = replace(load_model("gpt2"), layers=2, vocabulary=65, tied=False, **SMALL)
BERT = replace(load_model("bert-huge-32"), layers=2, vocabulary=61, **SMALL)


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
    model = model or rng.choice([GPT2, UNTIED, BERT])
    tree = [s for s in decision_tree(world, takeaway3=False) if model.heads % s.degree("tp") == 0]
    micro_batches = rng.choice([1, 1, 2])
    return plan_of(model, [str(rng.choice(tree)) for _ in model.units], world, world * 2, micro_batches)
