"""Evidence of lower bounds for the problems that cut a chain of layers into pipeline stages: stage-assignment,
pipeline-partition and cluster-strategy.

Kinds of evidence and their proofs are in the library's checker, `check_library.py`. Those of these problems are arguments that
begin with the claimed bound and either hold or do not, so evidence is found by letting the checker follow them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainplan.libraries.checking import checker, proven

STEPS = 8  # halvings of the gap in search of the largest bound that can be followed
# By problem: kinds of evidence whose bound is the claim if it can be followed, with the evidence, quick ones first; and the
# kind whose bound follows from the instance alone.
CLAIMED: dict[str, dict[str, dict[str, int]]] = {
    "stage-assignment": {"sweep": {}},
    "pipeline-partition": {"search": {"most": 100_000}},
    "cluster-strategy": {"pipelines": {"most": 500_000}, "placements": {"most": 1_000_000}},
}
ALWAYS = {"stage-assignment": "even", "pipeline-partition": "stages", "cluster-strategy": "even"}


def evidence(instance: Any, value: int) -> dict[str, Any]:
    """A lower bound on an instance of stage-assignment, pipeline-partition or cluster-strategy that the library's checker
    follows in seconds, with its evidence: the best known objective if that can be proven, else the largest bound found below
    it.

    instance: the instance. value: the best known objective in ns. Returns a dict with `value` (the bound in ns), `kind` (of
    evidence) and `evidence` (what the checker needs for it), as `checked_lower_bound` of an entry."""
    stated, bounds, always = instance.to_dict(), checker().PROBLEMS[instance.problem].bounds, ALWAYS[instance.problem]
    bound = bounds[always](stated, {}, value)
    if bound >= value:
        return {"value": value, "kind": always, "evidence": {}}
    claimed = CLAIMED[instance.problem]
    for kind, given in claimed.items():
        if proven(bounds[kind], stated, given, value) >= value:
            return {"value": value, "kind": kind, "evidence": given}
    quick, given = next(iter(claimed.items()))
    largest = largest_claim(lambda claim: proven(bounds[quick], stated, given, claim) >= claim, bound, value)
    found = quick if largest > bound else always
    return {"value": largest, "kind": found, "evidence": claimed.get(found, {})}


def largest_claim(follows: Callable[[int], bool], low: int, high: int) -> int:
    """The largest bound found that can be followed, between one that can and one that cannot, by halving the gap. follows:
    whether a bound in ns can be followed. low, high: the two bounds in ns."""
    for _ in range(STEPS):
        middle = (low + high) // 2
        low, high = (middle, high) if follows(middle) else (low, middle)
    return low
