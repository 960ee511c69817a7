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
    """Which configurations of joint instances are alike, instances with some of them, and better solutions near a given one."""

    def layouts(self, instance: Instance) -> list[str]:
        """See `Refinement`."""
        return [str(configuration.tables[0].states[0]) for configuration in instance.configurations]

    def shapes(self, instance: Instance) -> list[str]:
        """See `Refinement`."""
        return list(map(str, instance.configurations))

    def pass_orders(self, instance: Instance) -> list[str]:
        """See `Refinement`: `several` where device groups have several stages, else `one`."""
        return ["several" if configuration.schedule.chunks > 1 else "one" for configuration in instance.configurations]

    def memory_groups(self, instance: Instance) -> list[tuple[str, str]]:
        """See `Refinement`: the layout, with the option of the last kind of unit where it has a single one, and the shape."""
        names = [
            [option.name for option in configuration.tables[0].units[-1].options] for configuration in instance.configurations
        ]
        only = [options[0] if len(options) == 1 else "" for options in names]
        layouts = [f"{layout} {name}" for layout, name in zip(self.layouts(instance), only, strict=True)]
        return list(zip(layouts, self.shapes(instance), strict=True))

    def with_configurations(self, instance: Instance, indices: Sequence[int]) -> Instance:
        """See `Refinement`."""
        return instance.only(indices)

    def with_even_stages(self, instance: Instance, indices: Sequence[int]) -> Instance | None:
        """See `Refinement`: embedding and head are not counted. None also for pipelines of one stage, which have no cuts."""
        configurations = [instance.configurations[index] for index in indices]
        cuts = [instance.even_cuts(configuration.stages) for configuration in configurations]
        if any(configuration.cuts is not None or configuration.stages == 1 for configuration in configurations) or None in cuts:
            return None
        even = [replace(configuration, cuts=chosen) for configuration, chosen in zip(configurations, cuts, strict=True)]
        return replace(instance, configurations=tuple(even))

    def with_extra_bytes(self, instance: Instance, extra: Sequence[tuple[int, int]]) -> Instance:
        """See `Refinement`."""
        return instance.with_more(extra)

    def group_bytes(self, instance: Instance, solution: Solution) -> list[tuple[int, bool]]:
        """See `Refinement`."""
        groups = len(instance.configurations[solution.configuration].device_groups)
        stages = evaluate(instance, solution).stages
        by_stage = [(stage.peak_bytes, stage.peak_unit == instance.length - 1) for stage in stages]
        return [max(by_stage[index::groups]) for index in range(groups)]

    def without_needless_recomputation(self, instance: Instance, solution: Solution) -> Solution:
        """See `Refinement`."""
        return without_needless_recomputation(instance, solution)

    def solution_of_plan(self, instance: Instance, plan: Plan) -> Solution | None:
        """See `Refinement`."""
        return solution_of_plan(instance, plan)

    def unit_alternatives(self, instance: Instance, solution: Solution, stop: Callable[[], bool]) -> list[UnitAlternatives]:
        """See `Refinement`."""
        return unit_alternatives(instance, solution, stop)
