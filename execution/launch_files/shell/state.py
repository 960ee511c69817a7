"""What a shell holds while a script is evaluated, and how two such states become one behind a condition that is not decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trainplan.execution.launch_files.shell.marks import Decision, Marks, Unknown

Truth = bool | tuple[Decision, bool]  # undecided: a condition, and whether it is true where the condition is


class Array(dict[Any, str]):
    """Elements by index, or by name."""

    def __init__(self, named: bool = False) -> None:
        super().__init__()
        self.named = named

    def values(self) -> Any:
        """Elements in the order of their indices."""
        return [self[key] for key in (self if self.named else sorted(self))]

    def __iter__(self) -> Any:
        return iter(list(super().__iter__()) if self.named else sorted(super().__iter__()))

    def copy(self) -> Array:
        """Another one with the same elements."""
        made = Array(self.named)
        made.update(self)
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Array) and self.named == other.named and dict.__eq__(self, other)

    __hash__ = None


Value = str | Array | None  # None: unset by the script


@dataclass(frozen=True)
class Found:
    """A command that was reached. words: with undecided parts; guards: the conditions under which it is; environment: what is
    exported or stands in front of it; texts: lines of arguments, by their names; batch: nodes and tasks that Slurm gives."""

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
    """Variables, functions, positional parameters (None: nobody has said any), directory, files that were written, commands
    that were reached, what was decided, whether the last command succeeded (code: its status where it failed), and scripts
    that were asked for and are not there. kinds: letters of `declare` by variable; options: of `set` and `shopt` that are on;
    tested: how many conditions are around what runs; lines: where arguments are written; origins: where variables got their
    values."""

    variables: dict[str, Value] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    functions: dict[str, Any] = field(default_factory=dict)
    arguments: list[str] | None = None
    shifted: int = 0
    closed: bool = False
    name: str = "bash"
    directory: str = "."
    files: dict[str, str] = field(default_factory=dict)
    commands: list[Found] = field(default_factory=list)
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
        """Another one that changes apart from this one."""
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
        """What is decided here."""
        return dict(self.guards)


ABSENT = object()


def merged(states: Sequence[State], marks: Marks, fixed: frozenset[str], where: str) -> State:
    """One state of several that differ by conditions. fixed: variables whose value was given."""
    made = states[0]
    for other in states[1:]:
        made = _merged(made, other, marks, fixed, where)
    return made


def _merged(a: State, b: State, marks: Marks, fixed: frozenset[str], where: str) -> State:
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
    made = a.copy()
    made.guards = a.guards[:common]
    for name in {*yes.variables, *no.variables}:
        value, other = yes.variables.get(name, ABSENT), no.variables.get(name, ABSENT)
        if value is ABSENT and other is ABSENT:
            continue
        if value is not ABSENT and other is not ABSENT and type(value) is type(other) and value == other:
            continue
        made.variables[name] = _either(name, value, other, decision, marks, where)
    made.printed = marks.choice(decision, yes.printed, no.printed)
    made.directory = marks.choice(decision, yes.directory, no.directory)
    for path in {*yes.files, *no.files}:
        made.files[path] = marks.choice(decision, yes.files.get(path, ""), no.files.get(path, ""))
    begin = 0
    while begin < min(len(a.commands), len(b.commands)) and a.commands[begin] is b.commands[begin]:
        begin += 1
    made.commands = a.commands + b.commands[begin:]
    if len(made.commands) > begin:
        marks.lives(decision)
    made.exported, made.functions = a.exported | b.exported, {**b.functions, **a.functions}
    made.kinds, made.aliases = b.kinds | a.kinds, b.aliases | a.aliases
    made.missing = (*a.missing, *(each for each in b.missing if each not in a.missing))
    made.lines, made.batch, made.touched = {**b.lines, **a.lines}, {**b.batch, **a.batch}, a.touched | b.touched
    made.origins = {name: where for name, where in a.origins.items() if b.origins.get(name) == where}
    if a.arguments != b.arguments or a.shifted != b.shifted:
        made.arguments = [marks.unknown("@", where, "is shifted by a condition")]
    made.status = _status(yes.status, no.status, decision, marks)
    made.code = no.code if yes.status is True else yes.code if no.status is True else marks.choice(decision, yes.code, no.code)
    return made


def _status(yes: Truth, no: Truth, decision: Decision, marks: Marks) -> Truth:
    if yes == no:
        return yes
    if isinstance(yes, bool) and isinstance(no, bool):
        return decision, yes
    return marks.decision(decision.cause), True


def _either(name: str, yes: Any, no: Any, decision: Decision, marks: Marks, where: str) -> Value:
    """The value of a variable that a condition chooses."""
    if isinstance(yes, Array) and isinstance(no, Array) and not yes.named and not no.named:
        a, b = yes.values(), no.values()
        begin = 0
        while begin < min(len(a), len(b)) and a[begin] == b[begin]:
            begin += 1
        made = Array()
        for index, each in enumerate(a[:begin]):
            made[index] = each
        made[begin] = marks.choice(decision, tuple(a[begin:]), tuple(b[begin:]), name)
        return made
    if isinstance(yes, Array) and isinstance(no, Array):
        made = Array(True)
        for key in [*yes, *(key for key in no if key not in yes)]:
            made[key] = marks.choice(decision, yes.get(key, ""), no.get(key, ""), name)
        return made
    if isinstance(yes, Array) or isinstance(no, Array):
        sides = [
            tuple(each.values()) if isinstance(each, Array) else () if each in (ABSENT, None) else (each,) for each in (yes, no)
        ]
        made = Array()
        made[0] = marks.choice(decision, sides[0], sides[1], name)
        return made
    unknown = "" if name in marks.own else marks.unknown(name, where)
    texts = [unknown if each is ABSENT else "" if each is None else each for each in (yes, no)]
    return marks.choice(decision, texts[0], texts[1], name)
