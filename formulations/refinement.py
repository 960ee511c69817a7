"""How the planner goes on from a solver's answer to better plans, by predicting the programs of plans.

A solver minimises an objective over tables. The step and the memory of a plan's programs may differ from both, so the planner
tries more of an instance's configurations than the best one, lowers the memory limit of those whose programs held more than the
tables predict, and drops recomputation that saves nothing. For that it has to know which configurations are alike.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from trainplan.formulations.plan.plan import Plan


class Refinement(ABC):
    """Functions of a planning problem with which the planner improves on a solver's answer.

    An instance (the costs and limits of one question) consists of configurations. A configuration fixes the pipeline
    schedule, the numbers of stages and micro-batches, and how the devices are divided into groups; a solution names its
    configuration by its index, in the attribute `configuration`. A layout is the parallel strategy that all sub-layers
    (units) of a configuration share. An option is one way to run a unit. Tables hold the time and memory of each unit under
    each of its options.
    """

    # Which configurations are alike

    @abstractmethod
    def layouts(self, instance: Any) -> Sequence[str]:
        """For each configuration of an instance whose costs count overlap, a text that names the strategy that all of its units
        share."""

    @abstractmethod
    def shapes(self, instance: Any) -> Sequence[str]:
        """For each configuration of an instance, a text that names its schedule and its numbers of stages and micro-batches,
        such as `4 stages, 8 micro-batches, 1f1b`.
        """

    @abstractmethod
    def pass_orders(self, instance: Any) -> Sequence[str]:
        """For each configuration of an instance, a text that names a class of pass orders. Within a class, the solver's
        objective differs from the predicted step by about the same amount in all configurations.
        """

    @abstractmethod
    def memory_groups(self, instance: Any) -> Sequence[tuple[str, str]]:
        """For each configuration of an instance whose costs count overlap, a pair of texts for its layout and its shape
        (schedule, stages, micro-batches). For configurations with equal pairs, compiled programs need about the same number
        of bytes more than the tables say.
        """

    # Narrower instances

    @abstractmethod
    def with_configurations(self, instance: Any, indices: Sequence[int]) -> Any:
        """The instance with only the configurations of the given indices, in the given order."""

    @abstractmethod
    def with_even_stages(self, instance: Any, indices: Sequence[int]) -> Any | None:
        """The instance with only the configurations of the given indices, each restricted to stages with numbers of units as
        equal as possible; None if one of them already has fixed cuts between stages."""

    @abstractmethod
    def with_extra_bytes(self, instance: Any, extra: Sequence[tuple[int, int]]) -> Any:
        """A copy of the instance whose tables say that passes need more memory.

        extra: for each configuration, two numbers of bytes that a device holds in addition: while passes of any unit but
        the last run, and while passes of the last unit run.
        """

    @abstractmethod
    def group_bytes(self, instance: Any, solution: Any) -> Sequence[tuple[int, bool]]:
        """The memory of a solution by the instance's tables: for each group of devices that run the same stages, in pipeline
        order, the peak bytes of one device, and whether that peak is in a pass of the last unit."""

    # Other solutions

    @abstractmethod
    def without_needless_recomputation(self, instance: Any, solution: Any) -> Any:
        """A solution with no larger objective in which units that save no needed memory by recomputation or copies to the host
        do without them; the solution itself if there is nothing to drop."""

    @abstractmethod
    def solution_of_plan(self, instance: Any, plan: Plan) -> Any | None:
        """The solution of an instance that corresponds to a plan, which may come from any planner; None if the instance has no
        such solution."""

    @abstractmethod
    def unit_alternatives(self, instance: Any, solution: Any, stop: Callable[[], bool]) -> Sequence[Any]:
        """For each run of consecutive units with equal options in a solution, the other options that one unit of the run could
        have instead, each with the step and memory that the plan would then have.

        stop: called from time to time; once it returns True, the alternatives found until then are returned.
        """
