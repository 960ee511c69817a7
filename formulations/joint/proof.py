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
from trainplan.formulations.joint.runtime_least import least_predicted_ns
from trainplan.formulations.plan.request import Request


class JointCertificate(Certificate):
    """Lower bounds on the step of plans of the joint problem (schedule, micro-batches, stages and strategies chosen together)
    that can be checked without a solver. An instance holds the configurations to choose from, with their costs.
    """

    def checked_bound_ns(self, instance: Instance, proof: Mapping[str, Any] | None) -> int:
        """A lower bound in ns on the step of every plan of an instance, checked here without a solver: the bound that the
        proof shows or, without a proof, the smallest of the closed-form bounds of all configurations. proof: the evidence
        of a solver in its JSON file format, None if there is none. For a runtime, all bounds of the runtime's prediction are
        computed again, and all plans that they leave are predicted. Raises ValueError if the proof belongs to another
        instance, or claims more than it shows.
        """
        if instance.runtime is not None:
            return least_predicted_ns(instance)
        if proof is None:
            return min(closed_form_ns(instance, configuration) for configuration in instance.configurations)
        return checked_bound_ns(instance, Evidence.from_dict(dict(proof)))

    def any_schedule_bound_ns(self, instance: Instance, solution: Solution) -> int | None:
        """A lower bound in ns on the step of a solution's stages and strategies under any order of passes, whatever memory the
        order needs; None if the instance's step is a paper's formula and not simulated. solution: the chosen configuration,
        the cuts between stages, and an option for every unit.
        """
        if instance.step != "simulated":
            return None
        return any_schedule_ns(instance.configurations[solution.configuration], evaluate(instance, solution))

    def settled_options(self, instance: Instance, request: Request) -> dict[str, Any]:
        """The request's options (values by parameter name) with those choices fixed that distinguish the given instance from
        other instances of the request: the context-parallel degree, what context-parallel ranks exchange, and whether the
        tables bound memory from above or from below.
        """
        settled = (CP.name, CP_EXCHANGE.name, MEMORY_TABLES.name)
        return {**request.options, **{name: instance.provenance[name] for name in settled if name in instance.provenance}}
