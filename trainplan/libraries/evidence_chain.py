"""Evidence of lower bounds for the problems that choose an option for every layer of a chain under a memory limit:
layer-strategies, memory-switches, pipeline and galvatron-engine.

The kinds of evidence and their proofs are in the library's checker, `check_library.py`. Those of these problems follow from the
instance and the claimed bound, so evidence is found by letting the checker prove claims: the best known objective first.
"""

from __future__ import annotations

from typing import Any

from trainplan.formulations.instance import ProblemInstance
from trainplan.libraries.checking import checker, proven

STRONG = {
    "layer-strategies": "exhaustion",
    "memory-switches": "exhaustion",
    "pipeline": "stages",
    "galvatron-engine": "stages",
}
WEAK = {"layer-strategies": "price", "memory-switches": "price", "pipeline": "fastest", "galvatron-engine": "fastest"}
STEPS = 6  # halvings of the gap between a proven bound and a claim that is too large
CLOSE = 100_000  # the part of the objective below which a gap is no longer halved: 1 / CLOSE


def evidence(instance: ProblemInstance, value: int) -> dict[str, Any] | None:
    """The largest lower bound on an instance that the library's checker proves, from strong claims to weak ones.

    instance: of layer-strategies, memory-switches, pipeline or galvatron-engine. value: the best known objective in ns, which
    no larger bound is sought than. Returns the field `checked_lower_bound` of an entry: a dict with `value` (ns), `kind` and
    `evidence`. None where the checker proves no bound above 0.
    """
    content, kinds = instance.to_dict(), checker().PROBLEMS[instance.problem].bounds
    weak, strong = WEAK[instance.problem], STRONG[instance.problem]
    low, high, kind = min(value, kinds[weak](content, {}, value)), value + 1, weak
    claim = value
    for _ in range(STEPS if low < value else 0):
        bound = proven(kinds[strong], content, {}, claim)
        if bound > low and (bound == claim or proven(kinds[strong], content, {}, bound) == bound):
            low, kind = bound, strong
        if bound < claim:
            high = claim
        if high - low <= max(1, value // CLOSE):
            break
        claim = (low + high) // 2
    return {"value": low, "kind": kind, "evidence": {}} if low > 0 else None
