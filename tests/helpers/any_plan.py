"""Random plans over all features that plans can have and that can be compiled to programs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from trainplan.execution.compile.compiler import compile_plan
from trainplan.execution.support import COMPILED
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.strategy import MODULES, Strategy
from trainplan.formulations.plan.unit import PlannedUnit
from trainplan.profiling.base.errors import InputError

from tests.helpers.plans import (
    random_interleaved_plan,
    random_plan,
    random_regular_interleaved_plan,
    random_sliced_plan,
    random_uneven_plan,
    random_unlike_plan,
)
from tests.helpers.residence_plans import random_residence_plan
from tests.helpers.switch_plans import random_switch_plan

Generator = Callable[[random.Random, int], Plan]


def generators(world: int) -> dict[str, Generator]:
    """The generators of random plans that support `world` ranks, by the feature that their plans are about."""
    power = world & (world - 1) == 0
    possible: dict[str, tuple[bool, Generator]] = {
        "regular": (power, random_plan),
        "sliced": (power and world > 1, random_sliced_plan),
        "shares": (power and world > 1, random_uneven_plan),
        "unlike": (True, random_unlike_plan),
        "unlike, sliced": (world > 1, lambda rng, ranks: random_unlike_plan(rng, ranks, sliced=True)),
        "interleaved": (world > 1, random_interleaved_plan),
        "interleaved, regular": (power and world > 1, random_regular_interleaved_plan),
        "switches": (True, random_switch_plan),
        "residences": (power, random_residence_plan),
        "residences, unlike": (True, lambda rng, ranks: random_residence_plan(rng, ranks, random_unlike_plan)),
        "residences, interleaved": (world > 1, lambda rng, ranks: random_residence_plan(rng, ranks, random_interleaved_plan)),
    }
    return {name: generator for name, (admitted, generator) in possible.items() if admitted}


def any_plan(rng: random.Random, world: int) -> tuple[str, Plan]:
    """A random plan of `world` ranks, and the name of its generator; its units randomly get other features that they allow."""
    name = rng.choice([*generators(world)])
    while True:
        with suppress(InputError):  # for example where the strategies that were drawn do not divide the micro-batches
            plan = generators(world)[name](rng, world)
            break
    features = [feature for feature in (_zero, _sequence_parallel, _modules) if rng.random() < 0.6]
    if plan.switches() is None and features:
        plan = _changed(rng, plan, features)
    return name, plan


def _changed(rng: random.Random, plan: Plan, features: list[Callable[[random.Random, Strategy], Strategy]]) -> Plan:
    """The plan with features randomly added to its units' strategies, where plan and compiler allow that."""
    for index, unit in enumerate(plan.units):
        strategy = unit.strategy
        for feature in features:
            strategy = feature(rng, strategy)
        if strategy != unit.strategy:
            with suppress(InputError):
                changed = plan.changed(units=_with(plan, index, unit.laid_out(strategy)))
                compile_plan(changed, ranks=changed.stages[0].ranks[:1])
                plan = changed
    return plan


def _with(plan: Plan, index: int, unit: PlannedUnit) -> list[Any]:
    """The units of a plan with another one at an index."""
    return [unit if number == index else other for number, other in enumerate(plan.units)]


def _zero(rng: random.Random, strategy: Strategy) -> Strategy:
    return replace(strategy, zero=rng.choice([1, 2, 3])) if strategy.degree("sdp") > 1 else strategy


def _sequence_parallel(rng: random.Random, strategy: Strategy) -> Strategy:
    return replace(strategy, sequence_parallel=rng.choice([True, False])) if strategy.degree("tp") > 1 else strategy


def _modules(rng: random.Random, strategy: Strategy) -> Strategy:
    if strategy.ckpt:
        return strategy
    return replace(strategy, modules=tuple(sorted(rng.sample(MODULES, rng.randint(0, 2)))))


def features_of(plan: Plan) -> Iterator[str]:
    """The names of the features that a plan has, of those that the compiler supports (COMPILED)."""
    from trainplan.execution.support import features

    yield from sorted({feature.name for feature in features(plan)} & set(COMPILED))
