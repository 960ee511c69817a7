"""Random plans that other runtimes can run."""

from __future__ import annotations

import random

from trainplan.formulations.plan.plan import Plan
from trainplan.profiling.models.model import load_model

from tests.helpers.plans import plan_of


def random_exported(rng: random.Random) -> Plan:
    """A random plan with one strategy for all units, of a model that Megatron-LM's GPTModel has."""
    model = load_model(rng.choice(["llama3-8b", "gpt2-345m", "qwen3-8b", "mistral-7b", "nemotron4-15b", "llama3.1-8b"]), 1024)
    units, tp_degree = len(model.units), rng.choice([1, 2, 4])
    dp, sdp, stages = rng.choice([1, 2]), rng.choice([1, 2, 4]), rng.choice([1, 2, 4])
    levels = [f"{name}{degree}" for name, degree in (("dp", dp), ("sdp", sdp), ("tp", tp_degree)) if degree > 1]
    text = "-".join(levels) or "single"
    text += rng.choice(["-zero1", "-zero2", ""]) * (sdp > 1) + rng.choice(["", "-sp"]) * (tp_degree > 1)
    text += rng.choice(["", "-ckpt", "-ckpt:attention+norms"])
    layers, micro_batches = (units - 2) // 2, rng.choice([1, 4, 8])
    cuts = [1 + 2 * cut for cut in sorted(rng.sample(range(1, layers), stages - 1))]
    samples = dp * sdp * micro_batches * rng.choice([1, 2])
    plan = plan_of(model, [text] * units, dp * sdp * tp_degree * stages, samples, micro_batches, cuts)
    return plan.changed(memory_bytes=2**50)
