"""The state of a shell during evaluation, and how two states are merged after a condition that is undecided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trainplan.execution.launch_files.shell.marks import Decision, Marks, Unknown

Truth = bool | tuple[Decision, bool]  # undecided: a condition, and whether it is true where the condition is


class Array(dict[Any, str]):
    """An array of bash: a dict of elements by index or, if `named`, by name. Iteration is in the order of the indices, or of
    insertion if they are named."""

    def __init__(self, named: bool = False) -> None:
        super().__init__()
        self.named = named

    def values(self) -> Any:
        """The elements in the order of their indices, or of their insertion if they are named."""
        return [self[key] for key in (self if self.named else sorted(self))]

    def __iter__(self) -> Any:
        return iter(list(super().__iter__()) if self.named else sorted(super().__iter__()))

    def copy(self) -> Array:
        """A copy of the array."""
        result = Array(self.named)
        result.update(self)
        return result

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Array) and self.named == other.named and dict.__eq__(self, other)

    __hash__ = None


Value = str | Array | None  # None: unset by the script


@dataclass(frozen=True)
class ReachedCommand:
    """A command that a script reaches, whether or not it trains.

    words: its words, which may have undecided parts (marks that stand for values that nobody has given). where: file and line.
    guards: the undecided conditions under which it is reached, as pairs of the condition's number and the side on which the
    command is. lines: file and line by argument. environment: variables that are exported or set in front of the command.
    files: files that the script has written, content by path. batch: what the batch system knows about the job: counts under
    Slurm's names, such as {"nodes": "2"}, and variables, as texts. directory: where the command runs. serial: its number in the
    order of evaluation.
    """

    words: tuple[str, ...]
    where: str
    guards: tuple[tuple[int, bool], ...]
    lines: dict[str, str]
    environment: dict[str, str]
    files: dict[str, str]
    batch: dict[str, str]
    directory: str
    serial: int


@dataclass
class State:
    """The state of a simulated shell while a script is evaluated.

    variables: values by name. exported: names of exported variables. functions: syntax tree and text by name. arguments:
    positional parameters; None if nobody has given any. shifted: how many were dropped by `shift`. closed: whether the
    parameters are all known (in a function or a child script). name: `$0`. directory: the working directory. files: content of
    written files, by path. commands: commands that were reached. guards: undecided conditions on the path to here, as pairs of
    number and assumed side. status: whether the last command succeeded: True, False or a pair (decision, side), which means
    success exactly where the undecided condition `decision` comes out as `side`. code: the last command's status if it failed.
    kinds: letters of `declare` by variable. aliases: by name. options: options of `set` and `shopt` that are on. tested: number
    of conditions around the current statement. missing: scripts that were to be sourced and do not exist. locals: outer values
    of local variables, per function call. captures, printed: whether output is captured, and the output so far. given: standard
    input. lines: where arguments are written. origins: where variables got their values. batch: what the batch system knows
    about the job: counts under Slurm's names, such as {"nodes": "2"}, and variables, as texts. touched: user-given variables
    that the script has assigned.
    """

    variables: dict[str, Value] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    functions: dict[str, Any] = field(default_factory=dict)
    arguments: list[str] | None = None
    shifted: int = 0
    closed: bool = False
    name: str = "bash"
    directory: str = "."
    files: dict[str, str] = field(default_factory=dict)
    commands: list[ReachedCommand] = field(default_factory=list)
    guards: tuple[tuple[int, bool], ...] = ()
    status: Truth = True
    code: str = "1"
    kinds: dict[str, str] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    options: frozenset[str] = frozenset()
    tested: int = 0
    missing: tuple[str, ...] = ()
    locals: list[dict[str, Any]] = field(default_factory=list)
    printed: str = ""
    captures: bool = False
    given: str | None = None
    lines: dict[str, str] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    batch: dict[str, str] = field(default_factory=dict)
    touched: frozenset[str] = frozenset()

    def copy(self) -> State:
        """A copy of the simulated shell that can be changed independently."""
        return replace(
            self,
            variables={name: value.copy() if isinstance(value, Array) else value for name, value in self.variables.items()},
            exported=set(self.exported),
            functions=dict(self.functions),
            arguments=None if self.arguments is None else list(self.arguments),
            files=dict(self.files),
            commands=list(self.commands),
            locals=[dict(local) for local in self.locals],
            kinds=dict(self.kinds),
            aliases=dict(self.aliases),
            lines=dict(self.lines),
            origins=dict(self.origins),
            batch=dict(self.batch),
        )

    def known(self) -> dict[int, bool]:
        """The undecided conditions about which an assumption was made on the way to this state: by the condition's number,
        whether it is assumed to hold."""
        return dict(self.guards)


ABSENT = object()


def merged(states: Sequence[State], marks: Marks, fixed: frozenset[str], where: str) -> State:
    """Merge states that differ by undecided conditions into one state, whose values depend on these conditions. states: at
    least one. marks: the table of undecided parts of texts, to which choices are added. fixed: variables whose values the
    user has given. where: file and line, for values that become unknown."""
    result = states[0]
    for other in states[1:]:
        result = _merged(result, other, marks, fixed, where)
    return result


def _merged(a: State, b: State, marks: Marks, fixed: frozenset[str], where: str) -> State:
    """Merge two states that differ by an undecided condition into one state: values that differ become choices that depend
    on the condition. a, b: the states. marks: the table of undecided parts of texts, to which choices are added. fixed:
    unused. where: file and line, for values that become unknown."""
    common = 0
    while common < min(len(a.guards), len(b.guards)) and a.guards[common] == b.guards[common]:
        common += 1
    parts = (a.guards[common : common + 1], b.guards[common : common + 1])
    if parts[0] and parts[1] and parts[0][0][0] == parts[1][0][0]:
        decision, first = marks.decisions[parts[0][0][0]], parts[0][0][1]
    else:
        found = next((marks.decisions[part[0][0]].cause for part in parts if part), Unknown("", where))
        decision, first = marks.decision(found), True
    yes, no = (a, b) if first else (b, a)
    result = a.copy()
    result.guards = a.guards[:common]
    for name in {*yes.variables, *no.variables}:
        value, other = yes.variables.get(name, ABSENT), no.variables.get(name, ABSENT)
        if value is ABSENT and other is ABSENT:
            continue
        if value is not ABSENT and other is not ABSENT and type(value) is type(other) and value == other:
            continue
        result.variables[name] = _either(name, value, other, decision, marks, where)
    result.printed = marks.choice(decision, yes.printed, no.printed)
    result.directory = marks.choice(decision, yes.directory, no.directory)
    for path in {*yes.files, *no.files}:
        result.files[path] = marks.choice(decision, yes.files.get(path, ""), no.files.get(path, ""))
    begin = 0
    while begin < min(len(a.commands), len(b.commands)) and a.commands[begin] is b.commands[begin]:
        begin += 1
    result.commands = a.commands + b.commands[begin:]
    if len(result.commands) > begin:
        marks.record_live(decision)
    result.exported, result.functions = a.exported | b.exported, {**b.functions, **a.functions}
    result.kinds, result.aliases = b.kinds | a.kinds, b.aliases | a.aliases
    result.missing = (*a.missing, *(script for script in b.missing if script not in a.missing))
    result.lines, result.batch, result.touched = {**b.lines, **a.lines}, {**b.batch, **a.batch}, a.touched | b.touched
    result.origins = {name: where for name, where in a.origins.items() if b.origins.get(name) == where}
    if a.arguments != b.arguments or a.shifted != b.shifted:
        result.arguments = [marks.unknown("@", where, "is shifted by a condition")]
    result.status = _status(yes.status, no.status, decision, marks)
    result.code = (
        no.code if yes.status is True else yes.code if no.status is True else marks.choice(decision, yes.code, no.code)
    )
    return result


def _status(yes: Truth, no: Truth, decision: Decision, marks: Marks) -> Truth:
    """The merged success of a command on the two sides of an undecided condition: the common value, or a pair (decision,
    side), which means success exactly where the condition `decision` comes out as `side`. yes, no: the success where the
    condition holds, and where it does not. marks: the table in which a new condition is created if one side is itself
    undecided."""
    if yes == no:
        return yes
    if isinstance(yes, bool) and isinstance(no, bool):
        return decision, yes
    return marks.decision(decision.cause), True


def _either(name: str, yes: Any, no: Any, decision: Decision, marks: Marks, where: str) -> Value:
    """The value of a variable that has different values on the two sides of an undecided condition: a text or an array with
    parts that depend on the condition. name: the variable. decision: the condition. yes, no: the values where the condition
    holds, and where it does not; ABSENT if the variable is not assigned there, None if it is unset. marks: the table of
    undecided parts of texts, to which choices are added. where: file and line, for unknown values."""
    if isinstance(yes, Array) and isinstance(no, Array) and not yes.named and not no.named:
        a, b = yes.values(), no.values()
        begin = 0
        while begin < min(len(a), len(b)) and a[begin] == b[begin]:
            begin += 1
        result = Array()
        for index, element in enumerate(a[:begin]):
            result[index] = element
        result[begin] = marks.choice(decision, tuple(a[begin:]), tuple(b[begin:]), name)
        return result
    if isinstance(yes, Array) and isinstance(no, Array):
        result = Array(True)
        for key in [*yes, *(key for key in no if key not in yes)]:
            result[key] = marks.choice(decision, yes.get(key, ""), no.get(key, ""), name)
        return result
    if isinstance(yes, Array) or isinstance(no, Array):
        sides = [
            tuple(side.values()) if isinstance(side, Array) else () if side in (ABSENT, None) else (side,) for side in (yes, no)
        ]
        result = Array()
        result[0] = marks.choice(decision, sides[0], sides[1], name)
        return result
    unknown = "" if name in marks.own else marks.unknown(name, where)
    texts = [unknown if side is ABSENT else "" if side is None else side for side in (yes, no)]
    return marks.choice(decision, texts[0], texts[1], name)
