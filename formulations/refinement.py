"""What lets the planner go on from a solver's answer to better plans by the prediction of their programs.

A solver minimises an objective over tables. The step and the memory of a plan's programs may differ from both, so the planner
tries more of an instance's configurations than the best one, narrows the memory of those whose programs held more than the
tables say, and drops recomputation that saves nothing. For that it has to know which configurations are alike.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from trainplan.formulations.plan.plan import Plan


class Refinement(ABC):
    """The questions that the planner has about instances with configurations, each of which fixes a schedule, numbers of stages
    and micro-batches, and a layout of devices. An index is that of a configuration in its instance; a solution names its
    configuration by this index in the attribute `configuration`."""

    # Which configurations are alike

    @abstractmethod
    def layouts(self, instance: Any) -> Sequence[str]:
        """For each configuration of an instance with overlap, the layout that all of its units have, in words."""

    @abstractmethod
    def shapes(self, instance: Any) -> Sequence[str]:
        """For each configuration of an instance, its schedule and numbers of stages and micro-batches, in words."""

    @abstractmethod
    def pass_orders(self, instance: Any) -> Sequence[str]:
        """For each configuration of an instance, the kind of its order of passes: objectives are about as far from predictions
        in all configurations of a kind."""

    @abstractmethod
    def memory_groups(self, instance: Any) -> Sequence[tuple[str, str]]:
        """For each configuration of an instance with overlap, a layout and a shape: the programs of all configurations with the
        same two hold about as many bytes more than their tables say."""

    # Narrower instances

    @abstractmethod
    def with_configurations(self, instance: Any, indices: Sequence[int]) -> Any:
        """The instance with these of its configurations alone, in this order."""

    @abstractmethod
    def with_even_stages(self, instance: Any, indices: Sequence[int]) -> Any | None:
        """The instance with these of its configurations alone, each with the same number of units in all stages, as far as that
        goes; None where the cuts of one of them are not to be chosen."""

    @abstractmethod
    def with_extra_bytes(self, instance: Any, extra: Sequence[tuple[int, int]]) -> Any:
        """The instance with tables of more memory: for each configuration, bytes that a device holds more while any unit's
        passes run, and while those of the last unit run."""

    @abstractmethod
    def group_bytes(self, instance: Any, solution: Any) -> Sequence[tuple[int, bool]]:
        """For each group of devices that share stages, in order, the peak bytes of one device by the tables, and whether the
        last unit causes it."""

    # Other solutions

    @abstractmethod
    def without_needless_recomputation(self, instance: Any, solution: Any) -> Any:
        """A solution with no larger objective that does without recomputation and copies to the host that save nothing; the
        solution itself where there is nothing to drop."""

    @abstractmethod
    def solution_of_plan(self, instance: Any, plan: Plan) -> Any | None:
        """The solution of an instance that a plan stands for, whoever made the plan; None where there is none."""

    @abstractmethod
    def unit_alternatives(self, instance: Any, solution: Any, stop: Callable[[], bool]) -> Sequence[Any]:
        """The options that units of a solution could have in place of theirs, with their costs, for each run of equal units.

        stop: asked now and then whether to leave it at what has been tried.
        """
