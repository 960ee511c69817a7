"""Plans with memory switches: random ones, and ones with given switches."""

from __future__ import annotations

import random
from collections.abc import Sequence

from trainplan.formulations.plan.plan import Plan, load_plan
from trainplan.formulations.plan.strategy import parse_strategy
from trainplan.formulations.plan.switches import Switches
from trainplan.formulations.plan.unit import planned_unit
from trainplan.profiling.models.model import Model

from tests.helpers.plans import BERT, GPT2, LLAMA, UNTIED, plan_of
from tests.helpers.switch_instances import any_combinations

FREE = any_combinations()
# Chains of 4 units and of 6; tied and not.
MODELS = (
    GPT2.with_fields(n_layer=1),
    UNTIED,
    BERT.with_fields(num_hidden_layers=1),
    LLAMA.with_fields(num_hidden_layers=1),
)

# Sizes at which tensors outweigh bookkeeping; a small vocabulary, so that the head alone does not make the peak.
_SIZES = {"vocab_size": 301, "sequence": 64}
_GPT2 = {"n_embd": 128, "n_inner": 512, "n_positions": 64, **_SIZES}
_OTHER = {"hidden_size": 128, "intermediate_size": 512, "max_position_embeddings": 64, **_SIZES}
LARGER = [
    model.in_dtype("float32")
    for model in (
        GPT2.with_fields(n_layer=2, **_GPT2),
        UNTIED.with_fields(**_GPT2),
        BERT.with_fields(**_OTHER),
        LLAMA.with_fields(head_dim=32, **_OTHER),
    )
]


def switch_plan(
    model: Model, world: int, switches: Sequence[Switches], nvlink: bool = True, samples: int | None = None
) -> Plan:
    """A plan of one stage on `world` ranks with given memory switches for each unit. samples: of a step (default: 2 a rank)."""
    strategy = f"sdp{world}" if world > 1 else "single"
    strategies = [strategy + ("-ckpt" if switch.ckpt else "") for switch in switches]
    content = plan_of(model, strategies, world, samples or 2 * world).model_dump()
    pairs = zip(content["units"], strategies, switches, strict=True)
    content["units"] = [planned_unit(unit["name"], parse_strategy(text), switch) for unit, text, switch in pairs]
    return load_plan({**content, "nvlink": nvlink})


def random_switch_plan(rng: random.Random, world: int, model: Model | None = None, samples: int | None = None) -> Plan:
    """A random plan with memory switches on `world` ranks: any legal switches for each unit, with NVLink or without."""
    model = model or rng.choice(MODELS)
    switches = [rng.choice(FREE) for _ in model.units]
    return switch_plan(model, world, switches, rng.choice([True, False]), samples or world * rng.choice([1, 2]))
