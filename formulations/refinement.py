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
    """Questions that the planner asks a problem whose instances have configurations.

    A configuration fixes a schedule, numbers of stages and micro-batches, and a layout of devices. Indices below are those of
    configurations in an instance; a solution names its configuration by the attribute `configuration`.
    """

    # Which configurations are alike

    @abstractmethod
    def layouts(self, instance: Any) -> Sequence[str]:
        """For each configuration of an instance with overlap, a text that names the layout that all of its units have."""

    @abstractmethod
    def shapes(self, instance: Any) -> Sequence[str]:
        """For each configuration of an instance, a text that names its schedule and its numbers of stages and micro-batches."""

    @abstractmethod
    def pass_orders(self, instance: Any) -> Sequence[str]:
        """For each configuration of an instance, a text that names its kind of pass order: objectives differ from predictions
        by about the same in all configurations of a kind."""

    @abstractmethod
    def memory_groups(self, instance: Any) -> Sequence[tuple[str, str]]:
        """For each configuration of an instance with overlap, a layout and a shape: the programs of all configurations with the
        same two hold about the same number of bytes more than their tables predict."""

    # Narrower instances

    @abstractmethod
    def with_configurations(self, instance: Any, indices: Sequence[int]) -> Any:
        """The instance with only the configurations of the given indices, in the given order."""

    @abstractmethod
    def with_even_stages(self, instance: Any, indices: Sequence[int]) -> Any | None:
        """The instance with only the configurations of the given indices, each with the same number of units in all stages as
        far as possible; None where the cuts of one of them are fixed."""

    @abstractmethod
    def with_extra_bytes(self, instance: Any, extra: Sequence[tuple[int, int]]) -> Any:
        """The instance with tables that need more memory.

        extra: for each configuration, the bytes that a device holds more while any unit's passes run, and while those of the
        last unit run.
        """

    @abstractmethod
    def group_bytes(self, instance: Any, solution: Any) -> Sequence[tuple[int, bool]]:
        """For each group of devices that share stages, in order: the peak bytes of one device by the tables, and whether the
        last unit causes that peak."""

    # Other solutions

    @abstractmethod
    def without_needless_recomputation(self, instance: Any, solution: Any) -> Any:
        """A solution with no larger objective that drops recomputation and copies to the host that save nothing; the solution
        itself where there is nothing to drop."""

    @abstractmethod
    def solution_of_plan(self, instance: Any, plan: Plan) -> Any | None:
        """The solution of an instance that a plan corresponds to, whichever planner the plan is from; None where there is
        none."""

    @abstractmethod
    def unit_alternatives(self, instance: Any, solution: Any, stop: Callable[[], bool]) -> Sequence[Any]:
        """For each run of equal units of a solution, the options that these units could have instead of theirs, with their
        costs.

        stop: called now and then; where it returns True, the alternatives found so far are returned.
        """
