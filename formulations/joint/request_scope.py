"""The part of a request that joint instances cover, see `formulations.request_scope`."""

from __future__ import annotations

from typing import Any

from trainplan.formulations.joint.cluster_symmetry import unlike_links, unsupported_reason
from trainplan.formulations.joint.options import unusual_costs_reason, within_optimizer
from trainplan.formulations.joint.overlap_cost_tables import COST_MODEL, LEFT_OUT
from trainplan.formulations.joint.problem import Configuration, Instance
from trainplan.formulations.joint.user_constraints import OF_CONFIGURATIONS, restrictions
from trainplan.formulations.joint.within_runtime import within_runtime
from trainplan.formulations.plan.request import Request
from trainplan.formulations.request_scope import RequestScope


class JointScope(RequestScope):
    """The limits of the joint problem: devices of one kind with regular links, and what optimizer, runtime and
    options exclude."""

    def unsupported_reason(self, request: Request) -> str | None:
        """See `RequestScope`: devices of several kinds, or unequal links."""
        return unsupported_reason(request)

    def clipped_request(self, request: Request) -> Request:
        """See `RequestScope`."""
        return within_runtime(within_optimizer(request))

    def restrictions(self, request: Request, cost_model: str) -> list[str]:
        """See `RequestScope`: restrictions by the options, by devices whose links are unequal, and by the cost model."""
        links = unlike_links(request)
        of_links = [] if links is None else [f"no stages or groups with unlike links ({links})"]
        return [*restrictions(request.options), *of_links, *(LEFT_OUT if cost_model.startswith(COST_MODEL) else ())]

    def unusual_costs_reason(self, request: Request) -> str | None:
        """See `RequestScope`."""
        return unusual_costs_reason(self.clipped_request(request))

    def outside(self, instance: Instance, narrower: Instance, left_out: str) -> Instance | None:
        """See `RequestScope`: where the parameter chooses among configurations alone, so that those of both instances have the
        same options, the configurations that only the wider instance has."""
        if left_out not in OF_CONFIGURATIONS:
            return instance
        both = set(map(_key, narrower.configurations))
        indices = [index for index, configuration in enumerate(instance.configurations) if _key(configuration) not in both]
        return instance.only(indices) if indices else None


def _key(configuration: Configuration) -> tuple[Any, ...]:
    """The fields in which configurations of one request differ."""
    return (
        configuration.schedule,
        configuration.micro_batches,
        configuration.device_groups,
        configuration.links,
        configuration.cuts,
    )
