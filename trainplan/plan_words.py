"""How a plan runs, in the words of the field."""

from __future__ import annotations

from trainplan.execution.prediction.surrogate import recipe_of
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.run_length import runs
from trainplan.formulations.plan.strategy import Strategy
from trainplan.formulations.plan.strategy_words import degree_words
from trainplan.profiling.base.quantities import plural

NOTHING_AGAIN = "nothing recomputed"
MOST_LAYOUTS = 4  # that are written out, of a plan whose sub-layers differ


def run_words(plan: Plan) -> list[str]:
    """How a plan runs, in the words of the field: degrees, ZeRO's stage, micro-batches, schedule, what is recomputed; of a plan
    whose units differ, what they share."""
    first = plan.units[0].strategy
    alike = all(_bare(unit.strategy) == _bare(first) for unit in plan.units)
    degrees, leading = (degree_words(first), first.degree("tp") > 1) if alike else ([], False)
    pipeline = [f"PP{plan.depth}"] * (plan.depth > 1) + [f"VPP{plan.chunks}"] * (plan.chunks > 1)
    words = [*degrees[:leading], *pipeline, *degrees[leading:]]
    shares = plan.batch.shares
    counted = plural(plan.batch.micro_batches, "micro-batch")
    words.append(counted if shares is None else f"{'/'.join(map(str, shares))} micro-batches of the pipelines")
    words += ["GPipe"] * (plan.depth > 1 and plan.schedule == "gpipe")
    words += [f"{plan.sliced} sliced"] * bool(plan.sliced)
    recipe = recipe_of(plan)
    words += [] if recipe is None else [recipe.name.upper()]
    words += ["Muon"] * (plan.optimizer == "muon") + ["states on the host"] * plan.uses_host
    return [*words, _recomputed(plan)]


def _bare(strategy: Strategy) -> tuple[object, ...]:
    return strategy.levels, strategy.zero, strategy.sequence_parallel, strategy.exchange


def _recomputed(plan: Plan) -> str:
    whole = sum(unit.strategy.ckpt for unit in plan.units)
    parts = {name for unit in plan.units for name in unit.strategy.modules}
    if not whole and not parts:
        return NOTHING_AGAIN
    texts = [f"{whole} of {len(plan.units)} sub-layers recomputed"] if whole else []
    some = sum(bool(unit.strategy.modules) for unit in plan.units)
    texts += [f"{' and '.join(sorted(parts))} recomputed in {some} of {len(plan.units)}"] if parts else []
    return ", ".join(texts)


def layouts(plan: Plan) -> list[list[str]]:
    """A line for each run of units of one layout, where units differ in it."""
    layouts = [_bare(unit.strategy) for unit in plan.units]
    if len(set(layouts)) == 1:
        return []
    texts = [", ".join(degree_words(unit.strategy)) for unit in plan.units]
    rows = [(names, count, text) for _, names, count, text in runs([unit.name for unit in plan.units], texts)]
    lines = [[f"{text}: {plural(count, 'sub-layer')}, {names}"] for names, count, text in rows[:MOST_LAYOUTS]]
    return lines + [[f"and {len(rows) - MOST_LAYOUTS} more runs of layouts (--details)"]] * (len(rows) > MOST_LAYOUTS)
