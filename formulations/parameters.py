"""The parameters of a problem, with types and defaults.

A problem lists its parameters once; the command's flags, their help, the check of users' values, and the Python keyword
arguments all come from that list.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from trainplan.profiling.base.arguments import check_value
from trainplan.profiling.base.errors import COMMAND_LINE, InputError, named, one_of, shown


def flag_of(name: str) -> str:
    """The command's flag for a Python name: `micro_batches` -> `--micro-batches`, and `for_` (an underscore after a reserved
    word) -> `--for`."""
    return "--" + name.rstrip("_").replace("_", "-")


@dataclass(frozen=True)
class Parameter:
    """One parameter of a planning problem or method, which users set as a command flag or a Python keyword.

    Attributes:
        name: its Python name.
        type: int, float, str or bool.
        about: what it does, for the help.
        default: its value if the user gives none.
        choices: its only values; empty if every value of the type is possible.
        least: the smallest whole number that is possible.
        many: whether its value is a list of such values.
    """

    name: str
    type: type
    about: str
    default: Any = None
    choices: tuple[str, ...] = ()
    least: int | None = None
    many: bool = False

    @property
    def flag(self) -> str:
        """The command's flag, such as `--micro-batches`."""
        return flag_of(self.name)

    def value(self, given: Any) -> Any:
        """The parameter's value for what a user gave, checked: the default for None, and for a choice its listed spelling,
        however the user spelled it. Raises InputError if the parameter does not accept it."""
        if given is None:
            return self.default
        if self.type is str and isinstance(given, int) and not isinstance(given, bool):
            given = str(given)  # a list of numbers is text, such as 0,3, and may have one
        chosen = named(given, self.choices) or given if self.choices and not self.many else given
        self.check(chosen)
        return chosen

    def check(self, value: Any) -> None:
        """Raise InputError if the value has the wrong type, is none of the choices, or is too small. None is accepted."""
        if value is None:
            return
        if self.choices and not self.many and value not in self.choices:
            raise InputError(COMMAND_LINE, self.flag, f"is {shown(value)}", one_of(value, self.choices))
        wanted: Any = str | os.PathLike if self.type is str else self.type  # a text may be a file's path
        one_file = self.many and isinstance(value, os.PathLike)
        check_value(self.name, value, list[wanted] if self.many and not one_file else wanted)
        if self.many:
            return
        if self.least is not None and value < self.least:
            raise InputError("command line", self.flag, f"is {shown(value)}", f"give at least {self.least}")


def chosen(parameters: Iterable[Parameter], options: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """The value of every parameter, by name: its value in `options`, checked, otherwise its default.

    options: values that a user gave, by name; None stands for the default. owner: the name of the problem or method that
    has the parameters, for errors. Raises InputError for an option that is none of the parameters (unless its value is
    None), and for a value that a parameter does not accept.
    """
    by_name = {parameter.name: parameter for parameter in parameters}
    for name, value in options.items():
        if value is None:
            continue
        if name not in by_name:
            flags = [parameter.flag for parameter in by_name.values()]
            flag = flag_of(name)
            near = get_close_matches(flag, flags, n=1, cutoff=0.75)
            fix = f"did you mean {near[0]}?" if near else f"leave it out: {owner} has {', '.join(flags) or 'none'}"
            raise InputError(COMMAND_LINE, flag, f"is {shown(value)}", fix)
    return {name: parameter.value(options.get(name)) for name, parameter in by_name.items()}


PIPELINE = Parameter("pipeline", int, "number of pipeline stages", least=1)
MICRO_BATCHES = Parameter("micro_batches", int, "number of micro-batches a step", least=1)
TP = Parameter("tp", int, "tensor-parallel degree of every stage", least=1)
DP = Parameter("dp", int, "pipelines side by side", least=1)
RECOMPUTE = Parameter("recompute", bool, "recompute every layer in its backward pass", False)
IGNORE_MEMORY = Parameter("ignore_memory", bool, "leave the memory limit out", False)
BY_UNIT = Parameter("by_unit", bool, "decide for every sub-layer, not for every layer", False)
