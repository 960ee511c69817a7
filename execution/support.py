"""Features of plans, by name: whatever a plan has beyond stages, dp, sdp of ZeRO stage 3, tp and recomputation of whole units.

A runtime that supports a feature names it in `features` of its capabilities (`formulations.runtimes`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from trainplan.formulations.plan.plan import Plan
from trainplan.profiling.base.errors import InputError

COMPILED = frozenset(  # features of plans that programs are compiled of
    {
        "Muon",
        "Muon in ZeRO stage 1",
        "context parallelism",
        "exchange of heads",
        "ZeRO stage 1",
        "ZeRO stage 2",
        "master weights",
        "recomputation of modules",
        "sequence parallelism",
        "states on the host",
    }
)


class Feature(NamedTuple):
    """Something that a plan requires: its name, the field that requires it, the field's value, and what to give instead."""

    name: str
    field: str
    value: str
    instead: str


def features(plan: Plan) -> Iterator[Feature]:
    """All features that a plan requires: first those of the plan as a whole, then those of its units, in order."""
    if plan.schedule == "zero-bubble":
        yield Feature("zero-bubble schedules", "schedule", "'zero-bubble'", "1f1b")
    if plan.precision.master is not None:
        yield Feature("master weights", "precision.master", repr(plan.precision.master), "null")
    if plan.optimizer == "muon":
        yield Feature("Muon", "optimizer", "'muon'", "'adamw'")
    for position, unit in enumerate(plan.units):
        where, strategy = f"units[{position}]", unit.strategy
        layout, text = f"{where}.{unit.field}", repr(str(strategy))
        if strategy.degree("cp") > 1:
            yield Feature("context parallelism", layout, text, "levels of dp, sdp and tp")
        if strategy.exchanges_heads:
            yield Feature("exchange of heads", f"{where}.layout.exchange", "'heads'", "'keys'")
        if strategy.degree("ep") > 1:
            yield Feature("expert parallelism", layout, text, "levels of dp, sdp and tp")
        if strategy.zero_stage in (1, 2):
            yield Feature(f"ZeRO stage {strategy.zero_stage}", f"{where}.states.zero", str(strategy.zero_stage), "3")
        if strategy.zero_stage and plan.optimizer == "muon":
            instead = "0 with copies (dp), as `plan --for trainplan` does, or 'adamw' as optimizer"
            yield Feature("Muon in ZeRO stage 1", f"{where}.states.zero", str(strategy.zero_stage), instead)
        if strategy.sequence_parallel:
            yield Feature("sequence parallelism", f"{where}.layout.sequence_parallel", "true", "false")
        if strategy.modules:
            modules = ", ".join(strategy.modules)
            yield Feature("recomputation of modules", f"{where}.activations.recompute", modules, "'none' or 'full'")
        if unit.precision != "model":
            yield Feature(products_by(unit.precision), f"{where}.precision", repr(unit.precision), "'model'")
        if unit.order is not None:
            yield Feature("states on the host", f"{where}.order", "there", "residences on the device")


def products_by(recipe: str) -> str:
    """The name of the feature that matrix multiplications follow a low-precision recipe."""
    return f"matrix multiplications in {recipe}"


def refuse_others(plan: Plan, able: Collection[str], who: str, where: str = "plan") -> None:
    """Raises InputError naming the first feature of a plan that is not in `able`. able: names of supported features. who: what
    lacks them, for the message. where: the plan's file or name, for the message."""
    for feature in features(plan):
        if feature.name not in able:
            fix = f"give {feature.instead}: {who} cannot do {feature.name} yet"
            raise InputError(where, feature.field, f"is {feature.value}", fix)
