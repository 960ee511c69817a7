"""The joint problem's answers to the planner's questions about configurations, see `formulations.refinement`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from trainplan.formulations.joint.evaluation import evaluate
from trainplan.formulations.joint.plan_to_solution import solution_of_plan
from trainplan.formulations.joint.problem import Instance, Solution
from trainplan.formulations.joint.reduce_recomputation import without_needless_recomputation
from trainplan.formulations.joint.unit_alternatives import UnitAlternatives, unit_alternatives
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.refinement import Refinement


class JointRefinement(Refinement):
    """Functions of the joint problem with which the planner improves on a solver's answer. An instance consists of
    configurations: a schedule, a number of micro-batches and device groups each. A unit is a sub-layer or layer; an option
    is one way to run it. Tables of costs hold the time and memory of each option.
    """

    def layouts(self, instance: Instance) -> list[str]:
        """For each configuration of an instance of the cost model `streams` (with overlap), the name of the layout (strategy
        without recomputation) that all of its units have.
        """
        return [str(configuration.tables[0].states[0]) for configuration in instance.configurations]

    def shapes(self, instance: Instance) -> list[str]:
        """For each configuration of an instance, a text that names its schedule and its numbers of stages and micro-batches,
        such as `4 stages, 8 micro-batches, 1f1b`."""
        return list(map(str, instance.configurations))

    def pass_orders(self, instance: Instance) -> list[str]:
        """For each configuration of an instance, a text that names its class of pass orders: `several` if device groups run
        several stages each (interleaved), else `one`. Within a class, the solver's objective differs from the simulated
        step by about the same amount in all configurations.
        """
        return ["several" if configuration.schedule.chunks > 1 else "one" for configuration in instance.configurations]

    def memory_groups(self, instance: Instance) -> list[tuple[str, str]]:
        """For each configuration of an instance of the cost model `streams` (with overlap), two texts: its layout (strategy
        without recomputation), with the option of the last kind of unit if that has only one; and its schedule with its
        numbers of stages and micro-batches. For configurations with equal pairs of texts, compiled programs need about the
        same number of bytes more than the tables of costs say.
        """
        names = [
            [option.name for option in configuration.tables[0].units[-1].options] for configuration in instance.configurations
        ]
        only = [options[0] if len(options) == 1 else "" for options in names]
        layouts = [f"{layout} {name}" for layout, name in zip(self.layouts(instance), only, strict=True)]
        return list(zip(layouts, self.shapes(instance), strict=True))

    def with_configurations(self, instance: Instance, indices: Sequence[int]) -> Instance:
        """The instance with only the configurations of the given indices, in the given order."""
        return instance.only(indices)

    def with_even_stages(self, instance: Instance, indices: Sequence[int]) -> Instance | None:
        """The instance with only the configurations of the given indices, each with fixed stages that have equally many units
        as far as possible, embedding and head not counted; None if the stages of one of them are fixed already, where it has
        one stage, or where such stages are not allowed."""
        configurations = [instance.configurations[index] for index in indices]
        cuts = [instance.even_cuts(configuration.stages) for configuration in configurations]
        if any(configuration.cuts is not None or configuration.stages == 1 for configuration in configurations) or None in cuts:
            return None
        even = [replace(configuration, cuts=chosen) for configuration, chosen in zip(configurations, cuts, strict=True)]
        return replace(instance, configurations=tuple(even))

    def with_extra_bytes(self, instance: Instance, extra: Sequence[tuple[int, int]]) -> Instance:
        """The instance with tables of costs in which passes need more memory. extra: for each configuration, two numbers of
        bytes that a device holds more: while the passes of any unit run, and in addition to that while the passes of the last
        unit run."""
        return instance.with_more(extra)

    def group_bytes(self, instance: Instance, solution: Solution) -> list[tuple[int, bool]]:
        """For each device group, in pipeline order: the peak bytes of one device by the tables of costs, and whether the
        passes of the model's last unit cause that peak. solution: the chosen configuration, the cuts between stages, and an
        option for every unit.
        """
        groups = len(instance.configurations[solution.configuration].device_groups)
        stages = evaluate(instance, solution).stages
        by_stage = [(stage.peak_bytes, stage.peak_unit == instance.length - 1) for stage in stages]
        return [max(by_stage[index::groups]) for index in range(groups)]

    def without_needless_recomputation(self, instance: Instance, solution: Solution) -> Solution:
        """A solution with no longer step in which units that recompute, or copy their input to the host, without need no
        longer do so; the solution itself if there is no such unit. solution: the chosen configuration, the cuts between
        stages, and an option for every unit.
        """
        return without_needless_recomputation(instance, solution)

    def solution_of_plan(self, instance: Instance, plan: Plan) -> Solution | None:
        """The solution of an instance that has the same stages, strategies and schedule as a plan, whichever planner made the
        plan; None if there is none."""
        return solution_of_plan(instance, plan)

    def unit_alternatives(self, instance: Instance, solution: Solution, stop: Callable[[], bool]) -> list[UnitAlternatives]:
        """For each run of consecutive units of a stage with equal options, the options that these units could have instead,
        with the step and the memory that the plan would then need. stop: called now and then; when it returns True, the
        alternatives found until then are returned. solution: the chosen configuration, the cuts between stages, and an
        option for every unit.
        """
        return unit_alternatives(instance, solution, stop)
