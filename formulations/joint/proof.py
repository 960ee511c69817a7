"""Lower bounds on joint plans that can be checked without a solver, see `formulations.certificate`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainplan.formulations.certificate import Certificate
from trainplan.formulations.joint.certificates.check import checked_bound_ns
from trainplan.formulations.joint.certificates.file import Evidence
from trainplan.formulations.joint.evaluation import evaluate
from trainplan.formulations.joint.lower_bounds import any_schedule_ns, closed_form_ns
from trainplan.formulations.joint.options import CP, CP_EXCHANGE, MEMORY_TABLES
from trainplan.formulations.joint.problem import Instance, Solution
from trainplan.formulations.plan.request import Request


class JointCertificate(Certificate):
    """Lower bounds on the step of joint plans that can be checked without a solver."""

    def checked_bound_ns(self, instance: Instance, proof: Mapping[str, Any] | None) -> int:
        """See `Certificate`: the bound that a proof shows; without a proof, the least of the configurations' bounds in closed
        form."""
        if proof is None:
            return min(closed_form_ns(instance, configuration) for configuration in instance.configurations)
        return checked_bound_ns(instance, Evidence.from_dict(dict(proof)))

    def any_schedule_bound_ns(self, instance: Instance, solution: Solution) -> int | None:
        """See `Certificate`: None where the instance's step is not the simulated one."""
        if instance.step != "simulated":
            return None
        return any_schedule_ns(instance.configurations[solution.configuration], evaluate(instance, solution))

    def settled_options(self, instance: Instance, request: Request) -> dict[str, Any]:
        """See `Certificate`: the context-parallel degree of this instance, the exchange of its ranks, and whether its tables
        bound memory from above or below."""
        settled = (CP.name, CP_EXCHANGE.name, MEMORY_TABLES.name)
        return {**request.options, **{name: instance.provenance[name] for name in settled if name in instance.provenance}}
