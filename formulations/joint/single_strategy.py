"""The joint problem with one option for all units, see `SingleStrategy` of `formulations.problem`."""

from __future__ import annotations

from dataclasses import replace

from trainplan.formulations.joint.problem import Configuration, Instance, Solution
from trainplan.formulations.joint.recompute_first import RECOMPUTE_FIRST
from trainplan.formulations.joint.tables import OptionTable


def single_strategy_instances(instance: Instance) -> list[Instance]:
    """A list with one instance, in which all units (sub-layers, or layers) of a plan have the same option: for each
    configuration (schedule, number of micro-batches and device groups), and each option that all units have there, it has a
    configuration with that option alone. An empty list for plans that recompute the first layers of stages, whose units
    differ by definition. instance: the configurations to choose from, with costs and memory limits.
    """
    if RECOMPUTE_FIRST.name in instance.provenance:
        return []
    configurations = [single for configuration in instance.configurations for single in with_one_option(configuration)]
    return [replace(instance, configurations=tuple(configurations))]


def widened(instance: Instance, solution: Solution) -> Solution:
    """Translate a solution of the instance that `single_strategy_instances` makes, in which all units have one option, into a
    solution of the original instance: the same cuts, and for every unit (sub-layer or layer) the option of the same name.
    instance: the original instance. solution: the solution to translate.
    """
    names = [(index, name) for index, configuration in enumerate(instance.configurations) for name in _common(configuration)]
    index, name = names[solution.configuration]
    configuration = instance.configurations[index]
    choice = []
    for x, (first, last) in enumerate(solution.spans()):
        for l in range(first, last + 1):
            options = instance.table(configuration, x, l).options
            choice.append(next(s for s, option in enumerate(options) if option.name == name))
    return Solution(index, solution.cuts, tuple(choice))


def with_one_option(configuration: Configuration) -> list[Configuration]:
    """For each option that all units (sub-layers or layers) of a configuration (schedule, number of micro-batches and device
    groups) have, the configuration reduced to that option for all units."""
    return [_with_option(configuration, name) for name in _common(configuration)]


def _common(configuration: Configuration) -> list[str]:
    """The names of the options that all units (sub-layers or layers) of a configuration (schedule, number of micro-batches and
    device groups) have, on all kinds of device groups."""
    tables = [table for group_tables in configuration.tables for table in group_tables.units]
    names = [option.name for option in tables[0].options]
    return [name for name in names if all(any(option.name == name for option in table.options) for table in tables)]


def _with_option(configuration: Configuration, name: str) -> Configuration:
    """The configuration (schedule, number of micro-batches and device groups) reduced to one option for all units (sub-layers
    or layers). name: the option's name, which all units have."""

    def kept(table: OptionTable) -> OptionTable:
        return table.keep([next(s for s, option in enumerate(table.options) if option.name == name)])

    tables = tuple(replace(group_tables, units=tuple(map(kept, group_tables.units))) for group_tables in configuration.tables)
    tied = configuration.tied
    if tied is not None and tied.equal is not None and tied.once is not None:
        first, last = (
            [option.name for option in table.options].index(name) for table in (configuration.tables[0].units[0], tied.once)
        )
        tied = replace(tied, equal=tied.equal[[first]][:, [last]], once=kept(tied.once))
    return replace(configuration, make_tables=lambda: tables, make_tied=lambda: tied)
