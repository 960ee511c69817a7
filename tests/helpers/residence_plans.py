"""Plans whose units keep states and inputs in host memory, unit by unit: random plans, and plans with given residences."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from trainplan.formulations.plan.plan import Plan, load_plan

from tests.helpers.plans import (
    random_interleaved_plan,
    random_plan,
    random_sliced_plan,
    random_uneven_plan,
    random_unlike_plan,
)

ON_HOST = {"gradients": "host", "optimizer": "host"}
Kind = Callable[[random.Random, int], Plan]
KINDS: tuple[Kind, ...] = (
    random_plan,
    random_plan,
    random_unlike_plan,
    random_interleaved_plan,
    random_sliced_plan,
    random_uneven_plan,
)


def resident(plan: Plan, units: dict[int, dict[str, Any]], own_lane: bool = True) -> Plan:
    """The plan with other residences for some units.

    units: by the unit's index, a dict of `states` (by kind, "host" or "device", as in ON_HOST), `hidden` (whether its inputs
    are kept on the host, which also recomputes the unit) and `kept_whole` (whether gathered parameters are kept). own_lane:
    whether copies have a lane of their own.
    """
    content = plan.model_dump()
    for number, residence in units.items():
        unit = content["units"][number]
        states = {**unit.get("states", {}), **residence.get("states", {})}
        states["kept_whole"] = residence.get("kept_whole", False)
        activations = unit.get("activations", {})
        if residence.get("hidden"):
            activations = {"recompute": "full", "hidden": "host"}
        on_host = residence.get("hidden") or "host" in states.values()
        unit |= {"states": states, "activations": activations, "order": {} if on_host else None}
    used = any(unit.get("order") is not None for unit in content["units"])
    return load_plan({**content, "nvlink": own_lane if used else None})


def random_residence(rng: random.Random) -> dict[str, Any]:
    """A random residence of one unit, as of `resident`."""
    on_host = rng.random() < 0.6
    states = {**ON_HOST, "parameters": rng.choice(["device", "host"])} if on_host else {}
    return {"states": states, "kept_whole": rng.random() < 0.4, "hidden": rng.random() < 0.4}


def random_residence_plan(rng: random.Random, world: int = 4, kind: Kind | None = None) -> Plan:
    """A random plan of a kind (a generator of plans; default: a random one) with random residences of some or all units."""
    if kind is None:
        possible = [generator for generator in KINDS if world > 2 or generator is not random_interleaved_plan]
        kind = rng.choice(possible if world > 1 else KINDS[:2])
    plan = kind(rng, world)
    share = rng.choice([0.3, 0.7, 1.0])
    return resident(
        plan,
        {number: random_residence(rng) for number in range(len(plan.units)) if rng.random() < share},
        rng.choice([True, False]),
    )
