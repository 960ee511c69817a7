"""The part of a request that joint instances cover, see `formulations.request_scope`."""

from __future__ import annotations

from typing import Any

from trainplan.formulations.joint.cluster_symmetry import unlike_links, unsupported_reason
from trainplan.formulations.joint.options import unusual_costs_reason, within_optimizer
from trainplan.formulations.joint.overlap_cost_tables import COST_MODEL, ONE_LAYOUT, left_out
from trainplan.formulations.joint.problem import Configuration, Instance
from trainplan.formulations.joint.user_constraints import OF_CONFIGURATIONS, restrictions
from trainplan.formulations.joint.within_runtime import within_runtime
from trainplan.formulations.plan.request import Request
from trainplan.formulations.request_scope import RequestScope


class JointScope(RequestScope):
    """Which requests and plans the joint problem covers: devices of one kind with regular links, less the plans that
    optimizer, runtime and options exclude.
    """

    def unsupported_reason(self, request: Request) -> str | None:
        """The reason, in words, why a request is better planned by another problem than the joint one: its devices are of
        several kinds, or have unequal links; None if the joint problem applies. request: the user's model, cluster, batch
        and options.
        """
        return unsupported_reason(request)

    def clipped_request(self, request: Request) -> Request:
        """The request whose options are reduced to what its optimizer and its runtime support. request: the user's model,
        cluster, batch and options. Raises InputError if an option then has no value.
        """
        return within_runtime(within_optimizer(request))

    def restrictions(self, request: Request, cost_model: str) -> list[str]:
        """Texts that say which plans an instance of the request leaves out: by the user's options, such as `--zero 0,3`, by
        devices whose links are unequal, and by the cost model. cost_model: the name of the cost model. request: the user's
        model, cluster, batch and options.
        """
        links = unlike_links(request)
        of_links = [] if links is None else [f"no stages or groups with unlike links ({links})"]
        of_costs: tuple[str, ...] = ()
        if "predicted step" in cost_model:
            of_costs = (ONE_LAYOUT,)
        elif cost_model.startswith(COST_MODEL):
            of_costs = left_out(request.options)
        return [*restrictions(request.options), *of_links, *of_costs]

    def unusual_costs_reason(self, request: Request) -> str | None:
        """The reason, in words, why a request is planned without overlap though its devices could be priced with overlap, so
        that its predicted steps do not compare with usual ones; None if it has the usual costs, or if the user chose the
        cost model. request: the user's model, cluster, batch and options.
        """
        return unusual_costs_reason(self.clipped_request(request))

    def outside(self, instance: Instance, narrower: Instance, left_out: str) -> Instance | None:
        """The part of an instance that a narrower instance lacks, as an instance of its own; None if it lacks nothing. If the
        constraint concerns only the choice of a configuration (schedule, micro-batches, device groups), the result has the
        configurations that the narrower instance lacks; else it is the whole of `instance`.

        narrower: an instance of the same request with one more constraint. left_out: the parameter name of that constraint.
        """
        if left_out not in OF_CONFIGURATIONS:
            return instance
        both = set(map(_key, narrower.configurations))
        indices = [index for index, configuration in enumerate(instance.configurations) if _key(configuration) not in both]
        return instance.only(indices) if indices else None


def _key(configuration: Configuration) -> tuple[Any, ...]:
    """A key that is equal for equal configurations of two instances of one request: schedule, micro-batches, device groups,
    links and cuts. configuration: one schedule, number of micro-batches and division into device groups, with the costs of
    all options.
    """
    return (
        configuration.schedule,
        configuration.micro_batches,
        configuration.device_groups,
        configuration.links,
        configuration.cuts,
    )
