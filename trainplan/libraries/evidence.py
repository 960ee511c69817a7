"""Evidence of lower bounds, which the checker of the library follows without a solver."""

from __future__ import annotations

from typing import Any

from trainplan.formulations.joint.problem import NAME as JOINT
from trainplan.libraries.records import CheckedBound
from trainplan.profiling.base.plugins import attribute

# By problem, the function that looks for evidence. It takes an instance and the best known objective in ns, and returns a dict
# with value (the bound in ns), kind and evidence; None if it finds none.
FOUND_BY: dict[str, str] = {
    "layer-strategies": "trainplan.libraries.evidence_chain:evidence",
    "memory-switches": "trainplan.libraries.evidence_chain:evidence",
    "pipeline": "trainplan.libraries.evidence_chain:evidence",
    "galvatron-engine": "trainplan.libraries.evidence_chain:evidence",
    "stage-assignment": "trainplan.libraries.evidence_stages:evidence",
    "pipeline-partition": "trainplan.libraries.evidence_stages:evidence",
    "cluster-strategy": "trainplan.libraries.evidence_stages:evidence",
    JOINT: "trainplan.libraries.evidence_joint:evidence",
}


def evidence(instance: Any, value: int) -> CheckedBound | None:
    """The best lower bound of an instance for which evidence is found, with the evidence; None if none is found.

    value: the best known objective in ns, which the bound cannot exceed.
    """
    target = FOUND_BY.get(instance.problem)
    found = None if target is None else attribute(target)(instance, value)
    return None if found is None else CheckedBound(**found)
