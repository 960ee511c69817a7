"""Features of plans, by name: whatever a plan has beyond stages, dp, sdp of ZeRO stage 3, tp and recomputation of whole units.

A runtime that supports a feature names it in `features` of its capabilities (`formulations.runtimes`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple, cast

from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.strategy import COPIES, LEVELS
from trainplan.formulations.runtimes import Runtime
from trainplan.formulations.schedule.orders import SIMULATED
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.models.optimizers import OPTIMIZERS, OptimizerName

DEALT = frozenset(f"{spec.title} in ZeRO stage 1" for spec in OPTIMIZERS.values() if spec.whole_matrices)  # whole matrices
OF_OPTIMIZERS = DEALT | {spec.title for name, spec in OPTIMIZERS.items() if name != "adamw"}
OF_COPIES = frozenset(LEVELS[level].feature for level in COPIES) - {""}  # of levels that hold copies as dp does
COMPILED = frozenset(  # features of plans that programs are compiled of
    {
        *OF_OPTIMIZERS,
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
    """A feature that a plan requires of the runtime that runs it. name: the feature. field: the field of the plan that requires
    it. value: the field's value, as text. instead: what to give in its place, as a text for the error's advice."""

    name: str
    field: str
    value: str
    instead: str


def features(plan: Plan) -> Iterator[Feature]:
    """All features that a plan requires of a runtime beyond the basic ones, which every runtime has (stages, data parallelism,
    ZeRO stage 3, tensor parallelism, recomputation of whole units). First those of the plan as a whole, then those of its
    units (sub-layers), in order; a feature comes once per unit that requires it."""
    if plan.schedule not in SIMULATED:
        yield Feature(f"{plan.schedule} schedules", "schedule", repr(plan.schedule), "1f1b")
    if plan.precision.master is not None:
        yield Feature("master weights", "precision.master", repr(plan.precision.master), "null")
    stepped = OPTIMIZERS[plan.optimizer]
    if plan.optimizer != "adamw":
        yield Feature(stepped.title, "optimizer", repr(plan.optimizer), "'adamw'")
    for position, unit in enumerate(plan.units):
        where, strategy = f"units[{position}]", unit.strategy
        layout, text = f"{where}.{unit.field}", repr(str(strategy))
        for level, spec in LEVELS.items():
            if spec.feature and strategy.degree(level) > 1:
                yield Feature(spec.feature, layout, text, "levels of dp, sdp and tp")
        if strategy.exchanges_heads:
            yield Feature("exchange of heads", f"{where}.layout.exchange", "'heads'", "'keys'")
        if strategy.zero_stage in (1, 2):
            yield Feature(f"ZeRO stage {strategy.zero_stage}", f"{where}.states.zero", str(strategy.zero_stage), "3")
        if strategy.zero_stage and stepped.whole_matrices:
            instead = "0 with copies (dp), as `plan --for trainplan` does, or 'adamw' as optimizer"
            yield Feature(f"{stepped.title} in ZeRO stage 1", f"{where}.states.zero", str(strategy.zero_stage), instead)
        if strategy.sequence_parallel:
            yield Feature("sequence parallelism", f"{where}.layout.sequence_parallel", "true", "false")
        if strategy.modules:
            modules = ", ".join(strategy.modules)
            yield Feature("recomputation of modules", f"{where}.activations.recompute", modules, "'none' or 'full'")
        if unit.precision != "model":
            yield Feature(products_by(unit.precision), f"{where}.precision", repr(unit.precision), "'model'")
        if unit.order is not None:
            yield Feature("states on the host", f"{where}.order", "there", "residences on the device")


def supported(capabilities: Runtime) -> set[str]:
    """The names of all features that a runtime's capabilities have: those that they list, and those of their optimizers."""
    optimizers = set[str]()
    for name, stages in capabilities.optimizers.items():
        title = OPTIMIZERS[cast(OptimizerName, name)].title
        optimizers |= {title, *[f"{title} in ZeRO stage 1"] * (1 in stages)}
    return {*capabilities.features, *optimizers}


def products_by(recipe: str) -> str:
    """The name of the feature "matrix multiplications in RECIPE", for a low-precision recipe such as 'fp8'."""
    return f"matrix multiplications in {recipe}"


def refuse_others(plan: Plan, able: Collection[str], who: str, where: str = "plan") -> None:
    """Raises InputError about the first feature that a plan requires and that is not in `able`, the names of supported
    features. who: the runtime or command that lacks the feature, for the message. where: the plan's file or name, for the
    message."""
    for feature in features(plan):
        if feature.name not in able:
            fix = f"give {feature.instead}: {who} cannot do {feature.name} yet"
            raise InputError(where, feature.field, f"is {feature.value}", fix)
