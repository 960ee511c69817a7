"""A plan in a few words of the field, such as `TP2`, `PP4`, `8 micro-batches`, `1F1B`, and its layouts where units differ."""

from __future__ import annotations

from dataclasses import replace

from trainplan.execution.prediction.surrogate import recipe_of
from trainplan.formulations.costs.overlapped.frameworks import planned_framework
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.run_length import runs
from trainplan.formulations.plan.strategy import Strategy
from trainplan.formulations.plan.strategy_words import degree_words, in_words
from trainplan.formulations.plan.unit import PlannedUnit
from trainplan.formulations.runtimes import title
from trainplan.formulations.schedule.orders import SCHEDULES
from trainplan.profiling.base.quantities import plural
from trainplan.profiling.models.optimizers import OPTIMIZERS

NOTHING_AGAIN = "nothing recomputed"
UNLIKE = "unlike layouts"
OF_OWN = "of trainplan's"
SHAPE = "trainplan's programs of this plan, for its shape; not the predicted step"  # of a plan for another runtime
OVERLAPPED = "overlapped"  # the lanes of the cost model `streams`
ENDS = ("embedding", "head")  # units that are not in layers
MOST_LAYOUTS = 4  # layouts that are listed of a plan whose sub-layers differ


def run_words(plan: Plan) -> list[str]:
    """How a plan runs, as a list of short texts such as ["TP2", "PP4", "DP8", "8 micro-batches", "1F1B", "nothing recomputed"].

    In order: parallel degrees and ZeRO stage, pipeline stages, micro-batches, schedule, precision, optimizer, and, last, what
    is recomputed. A plan whose units (sub-layers) have different layouts has UNLIKE in this list in place of degrees; `layouts`
    lists the layouts of such a plan.
    """
    first = plan.units[0].strategy
    alike = all(_bare(unit.strategy) == _bare(first) for unit in plan.units)
    degrees, leading = (degree_words(first), first.degree("tp") > 1) if alike else ([UNLIKE], False)
    pipeline = [f"PP{plan.depth}"] * (plan.depth > 1) + [f"VPP{plan.chunks}"] * (plan.chunks > 1)
    words = [*degrees[:leading], *pipeline, *degrees[leading:]]
    shares = plan.batch.shares
    counted = plural(plan.batch.micro_batches, "micro-batch")
    words.append(counted if shares is None else f"{'/'.join(map(str, shares))} micro-batches of the pipelines")
    word = SCHEDULES[plan.schedule].word
    words += [word] * (plan.depth > 1 and bool(word))
    words += [f"{plan.sliced} sliced"] * bool(plan.sliced)
    recipe = recipe_of(plan)
    words += [] if recipe is None else [recipe.name.upper()]
    words += [OPTIMIZERS[plan.optimizer].title] * (plan.optimizer != "adamw") + ["states on the host"] * plan.uses_host
    return [*words, _recomputed(plan)]


def whose_numbers(plan: Plan) -> str:
    """A phrase that says which runtime (training framework) the predicted step and memory of a plan are of, such as "as
    Megatron-LM runs it"; for a plan for no other runtime, how its own programs overlap. Empty if the plan has no prediction.
    """
    predicted = plan.predicted
    if predicted is None:
        return ""
    if predicted.software:
        return f"as {predicted.software if plan.runs_by is None else title(plan.runs_by.name)} runs it"
    return own_numbers(plan, predicted.backend)


def own_numbers(plan: Plan, backend: str) -> str:
    """A phrase that says that numbers of a plan are of trainplan's own programs, and how these overlap. backend: the name of
    the back-end whose overlap was simulated; `overlapped` is that of the framework that planning assumes by default."""
    if backend != OVERLAPPED:
        return f"{OF_OWN} programs, back-end {backend}"
    gradients = plan.precision.gradient_bytes(plan.planned_model().element_bytes)
    return f"{OF_OWN} programs, overlapped as in {planned_framework(plan.optimizer, gradients).name}"


def _bare(strategy: Strategy) -> tuple[object, ...]:
    """The layout of a strategy, without recomputation, so that two layouts can be compared: a tuple of its parallel levels (dp,
    tp and so on, with degrees), ZeRO stage, sequence parallelism, and what context-parallel ranks exchange (keys or heads)."""
    return strategy.levels, strategy.zero, strategy.sequence_parallel, strategy.exchange


def _recomputed(plan: Plan) -> str:
    """Put into words what a plan recomputes in its backward passes: "12 of 32 layers recomputed", or "attention and norms of
    all 32 layers recomputed"; NOTHING_AGAIN if nothing.

    Of a plan for another runtime (training framework), a layer counts if any of its sub-layers is to be recomputed, and
    embedding and head do not count: such a runtime recomputes whole layers, and never these two. Of other plans, layers count
    whose sub-layers are all recomputed; single sub-layers, embedding and head are named in addition.
    """
    pairs = list(zip(plan.planned_model().units, plan.units, strict=True))
    layers: dict[int, list[PlannedUnit]] = {}
    for unit, planned in pairs:
        if unit.kind not in ENDS:
            layers.setdefault(unit.layer, []).append(planned)
    own, counts = plan.runs_by is None, all if plan.runs_by is None else any
    whole = {layer for layer, units in layers.items() if counts(unit.strategy.ckpt for unit in units)}
    texts = [_of_layers(len(whole), len(layers))] if whole else []
    single = [unit.kind for unit, planned in pairs if planned.strategy.ckpt and unit.layer not in whole]
    if own:
        texts += [plural(single.count(kind), f"{kind} sub-layer") for kind in dict.fromkeys(single) if kind not in ENDS]
    parts = {name for units in layers.values() for unit in units for name in unit.strategy.modules}
    some = sum(any(unit.strategy.modules for unit in units) for units in layers.values())
    texts += [f"{' and '.join(sorted(parts))} of {_of_layers(some, len(layers))}"] if parts else []
    if own:
        texts += [" and ".join(kind for kind in single if kind in ENDS)] if {*single} & {*ENDS} else []
        texts += [f"{name} of the head" for name in pairs[-1][1].strategy.modules]
    if not texts:
        return NOTHING_AGAIN
    last = (", and " if " and " in texts[-1] else " and ") + texts[-1] if len(texts) > 1 else texts[0]
    return f"{', '.join(texts[:-1])}{last} recomputed"


def _of_layers(count: int, total: int) -> str:
    """A number of the model's layers as a text: "12 of 32 layers", or "all 32 layers"."""
    return f"all {total} layers" if count == total else f"{count} of {plural(total, 'layer')}"


def layouts(plan: Plan) -> list[list[str]]:
    """The layouts of a plan whose units (sub-layers) do not all have one layout: a line for each run of consecutive units with
    equal layouts, such as ["TP2, DP4: 12 sub-layers, ..."].

    Each line is a list of one text. At most MOST_LAYOUTS runs are listed, and a last line counts the others. Empty if all units
    have one layout.
    """
    layouts = [_bare(unit.strategy) for unit in plan.units]
    if len(set(layouts)) == 1:
        return []
    texts = [", ".join(degree_words(unit.strategy)) for unit in plan.units]
    rows = [(names, count, text) for _, names, count, text in runs([unit.name for unit in plan.units], texts)]
    lines = [[f"{text}: {plural(count, 'sub-layer')}, {names}"] for names, count, text in rows[:MOST_LAYOUTS]]
    return lines + [[f"and {len(rows) - MOST_LAYOUTS} more runs of layouts (--details)"]] * (len(rows) > MOST_LAYOUTS)


def strategy_as_run(plan: Plan, unit: PlannedUnit) -> str:
    """The strategy of one unit (sub-layer) of a plan as a text, as the plan's runtime runs it: with the runtime's ZeRO stage,
    if that differs from the ZeRO stage that the plan states."""
    zero = None if plan.runs_by is None else plan.runs_by.zero
    if zero is None:
        return in_words(str(unit))
    as_run = str(replace(unit.strategy, zero=zero))  # type: ignore[arg-type]
    return in_words(str(unit).replace(str(unit.strategy), as_run, 1))
