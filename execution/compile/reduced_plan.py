"""The smallest plan whose programs mean the same as those of a plan: for checks of plans that are too large to run whole.

Ranks of a stage are numbered in the digits that all strategies of the plan have in common: whatever a rank does with another
that differs in one of them, it does with all that differ in it. A digit of a large degree is folded to a smaller one: 2
replicas stand for any number. Changes of layout tie digits of samples to digits of ranks by their position, and unequal degrees
may shift these: a folding is accepted only if it keeps for all strategies of neighbouring units which digits a change of layout
gathers over (`faithful`); the plan itself, with every rank, always satisfies that.

Micro-batches are folded to a few (see `steady_state`), and samples to one per micro-batch on each data-parallel rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from trainplan.execution.steady_state import few_micro_batches
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.rank_grid import Digits
from trainplan.formulations.plan.strategy import Strategy, gather_ranks
from trainplan.profiling.models.model import Model
from trainplan.profiling.models.sublayers import Sublayer, why_no_head_share


@dataclass(frozen=True)
class Folding:
    """A plan and a smaller plan whose programs compute the same.

    The digits of a rank are its index in its stage written in a mixed-radix system, fine enough that every level of parallelism
    of every unit (sub-layer) is one digit or several neighbouring ones. Folding makes the degrees of the digits smaller.

    plan, digits: the plan and the digits of its ranks. folded, folded_digits: the smaller plan, and the digits of its ranks, of
    the same number.
    """

    plan: Plan
    digits: Digits
    folded: Plan
    folded_digits: Digits


def fold(plan: Plan, model: Model) -> Folding:
    """The smallest folding of a plan: a smaller plan whose programs compute the same, for checks of plans too large to run as
    a whole. Degrees of parallelism are reduced (2 replicas stand for any number) as far as the model can be split by the new
    tensor-parallel degrees and changes of layout between sub-layers are kept. A program is one rank's instructions for a
    training step."""
    digits, strategies = plan.digits, plan.strategies()
    assert digits is not None, "ranks of the plan do not fall into kinds"
    pairs, few = set(pairwise(strategies)), few_micro_batches(plan)

    def stands(narrow: Digits) -> bool:
        """Whether the plan can be folded to these digits."""
        folded = {folded_strategy(strategy, digits, narrow) for strategy in set(strategies)}
        runs = all(_runs_on(part, strategy) for part in model.sublayers.values() for strategy in folded)
        return runs and all(faithful(a, b, digits, narrow) and faithful(b, a, digits, narrow) for a, b in pairs)

    bits = range(1, max(digits.degrees, default=1).bit_length() + 1)
    candidates = (Digits(tuple(min(degree, 1 << bit) for degree in digits.degrees)) for bit in bits)
    narrow = next((candidate for candidate in candidates if stands(candidate)), digits)
    shares = plan.batch.shares
    if shares is not None:  # of the replicas, which the outermost level numbers
        shares = _folded_shares([min(share, few) for share in shares])
        narrow = Digits((*narrow.degrees[:-1], len(shares)))
    return Folding(plan, digits, _folded(plan, digits, narrow, few, shares), narrow)


def _runs_on(part: Sublayer, strategy: Strategy) -> bool:
    """Whether a sub-layer can be split as a strategy requires: by its tensor-parallel degree and, if context-parallel ranks
    exchange heads, by heads."""
    tp, cp = strategy.degree("tp"), strategy.degree("cp")
    return part.runs_on(tp) and not (strategy.exchanges_heads and why_no_head_share(part, tp, cp))


def folded_strategy(strategy: Strategy, digits: Digits, narrow: Digits) -> Strategy:
    """A strategy (levels of parallelism with degrees) with the degrees of the digits `narrow` in place of those of `digits`.
    Digits: the mixed-radix numbering of the ranks of a stage; a level's degree is the product of one or several digits'
    degrees."""
    indices, levels, number = list(zip(digits.degrees, narrow.degrees, strict=True)), [], 0
    for paradigm, degree in reversed(strategy.levels):
        remaining, folded = degree, 1
        while remaining > 1:
            remaining //= indices[number][0]
            folded *= indices[number][1]
            number += 1
        levels.append((paradigm, folded))
    return replace(strategy, levels=tuple(reversed(levels)))


def faithful(before: Strategy, after: Strategy, digits: Digits, narrow: Digits) -> bool:
    """Whether folding (smaller degrees of parallelism) keeps the change of layout between the strategies of two neighbouring
    units: there is a change after folding exactly if there was one, and it gathers over the same digits. digits, narrow: the
    mixed-radix numbering of a stage's ranks before and after folding."""
    if digits == narrow:
        return True
    a, b = folded_strategy(before, digits, narrow), folded_strategy(after, digits, narrow)
    reached = digits.reach(gather_ranks(before, after, 0))
    same = (before.layout == after.layout) == (a.layout == b.layout)
    same = same and (before.token_digit == after.token_digit) == (a.token_digit == b.token_digit)
    return same and reached is not None and reached == narrow.reach(gather_ranks(a, b, 0))


def _folded_shares(shares: Sequence[int]) -> list[int]:
    """The numbers of micro-batches of the replicas of a folded (smaller) plan: one replica for each number that occurs in
    `shares`, ascending; if all are equal, two replicas: (3, 3, 3) -> [3, 3], (4, 3, 3) -> [3, 4]."""
    kinds = sorted(set(shares))
    return kinds if len(kinds) > 1 else kinds * 2


def _folded(plan: Plan, digits: Digits, narrow: Digits, few: int, shares: list[int] | None) -> Plan:
    """The plan with smaller degrees of parallelism (those of `narrow` in place of those of `digits`), the fewest samples that
    it allows, and at most `few` micro-batches. shares: micro-batches of each replica, if replicas have unequal shares of the
    batch; else None."""
    size = narrow.size
    strategies = [folded_strategy(strategy, digits, narrow) for strategy in plan.strategies()]
    samples = (2 if plan.sliced else 1) * (1 if shares else max(strategy.data_degree for strategy in strategies))
    micro_batches = max(shares) if shares else min(few, plan.batch.micro_batches)
    total = sum(shares) if shares else micro_batches
    batch = plan.batch.changed(global_samples=samples * total, micro_batches=micro_batches, shares=shares)
    return plan.changed(
        world=size * plan.depth,
        batch=batch,
        placement=None,
        predicted=None,
        stages=[
            s.changed(ranks=list(range(n % plan.depth * size, (n % plan.depth + 1) * size))) for n, s in enumerate(plan.stages)
        ],
        units=[unit.laid_out(s) for unit, s in zip(plan.units, strategies, strict=True)],
    )
