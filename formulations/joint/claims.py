"""What stands behind the claim of a joint plan: bounds without solvers, and which part of a request they speak of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainplan.formulations.claims import Certificate, RequestScope
from trainplan.formulations.joint.any_schedule import any_schedule_ns
from trainplan.formulations.joint.certificates.check import checked_bound_ns
from trainplan.formulations.joint.certificates.file import Evidence
from trainplan.formulations.joint.evaluation import evaluate
from trainplan.formulations.joint.lower_bounds import closed_form_ns
from trainplan.formulations.joint.options import CP, CP_EXCHANGE, MEMORY_TABLES, unusual_costs_reason, within_optimizer
from trainplan.formulations.joint.overlap_cost_tables import COST_MODEL, LEFT_OUT
from trainplan.formulations.joint.problem import Configuration, Instance, Solution
from trainplan.formulations.joint.runtime_capabilities import within_runtime
from trainplan.formulations.joint.suits import unlike_links, unsupported_reason
from trainplan.formulations.joint.user_constraints import OF_CONFIGURATIONS, restrictions
from trainplan.formulations.plan.request import Request


class JointCertificate(Certificate):
    """Bounds on the step of joint plans that are followed without any solver."""

    def checked_bound_ns(self, instance: Instance, proof: Mapping[str, Any] | None) -> int:
        """See `Certificate`: without a proof, the least of the configurations' bounds in closed form."""
        if proof is None:
            return min(closed_form_ns(instance, configuration) for configuration in instance.configurations)
        return checked_bound_ns(instance, Evidence.from_dict(dict(proof)))

    def any_schedule_bound_ns(self, instance: Instance, solution: Solution) -> int | None:
        """See `Certificate`: None where the step is another one than the simulated step."""
        if instance.step != "simulated":
            return None
        return any_schedule_ns(instance.configurations[solution.configuration], evaluate(instance, solution))

    def settled_options(self, instance: Instance, request: Request) -> dict[str, Any]:
        """See `Certificate`: the context-parallel degree of this instance, what its ranks exchange, and how its tables count
        memory."""
        settled = (CP.name, CP_EXCHANGE.name, MEMORY_TABLES.name)
        return {**request.options, **{name: instance.provenance[name] for name in settled if name in instance.provenance}}


class JointScope(RequestScope):
    """Devices of one kind that lie alike, and what an optimizer, a runtime and the options leave of all joint plans."""

    def unsupported_reason(self, request: Request) -> str | None:
        """See `RequestScope`: what the devices of a request have that is not alike."""
        return unsupported_reason(request)

    def clipped_request(self, request: Request) -> Request:
        """See `RequestScope`."""
        return within_runtime(within_optimizer(request))

    def restrictions(self, request: Request, cost_model: str) -> list[str]:
        """See `RequestScope`: by the options, by devices whose links are unlike, and by the cost model."""
        links = unlike_links(request)
        of_links = [] if links is None else [f"no stages or groups with unlike links ({links})"]
        return [*restrictions(request.options), *of_links, *(LEFT_OUT if cost_model.startswith(COST_MODEL) else ())]

    def unusual_costs_reason(self, request: Request) -> str | None:
        """See `RequestScope`."""
        return unusual_costs_reason(self.clipped_request(request))

    def outside(self, instance: Instance, narrower: Instance, left_out: str) -> Instance | None:
        """See `RequestScope`: the configurations that only the wider instance has, where the parameter chooses among
        configurations alone, so that those of both have the same options."""
        if left_out not in OF_CONFIGURATIONS:
            return instance
        both = set(map(_key, narrower.configurations))
        indices = [index for index, configuration in enumerate(instance.configurations) if _key(configuration) not in both]
        return instance.only(indices) if indices else None


def _key(configuration: Configuration) -> tuple[Any, ...]:
    """The fields by which configurations of one request differ."""
    return (
        configuration.schedule,
        configuration.micro_batches,
        configuration.sites,
        configuration.links,
        configuration.cuts,
    )
