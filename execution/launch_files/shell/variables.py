"""Variables, positional parameters and files of a script during evaluation."""

from __future__ import annotations

import os.path
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainplan.execution.launch_files.shell.marks import MARK, Marks, Unknown
from trainplan.execution.launch_files.shell.scan import end_of
from trainplan.execution.launch_files.shell.state import ABSENT, Array, State, Value

ARGUMENT = re.compile(r"--[A-Za-z][\w-]*")
MOST_BYTES = 2**20
# What the first process of a run has, where a script asks for it without a default.
FIRST = dict.fromkeys(["RANK", "NODE_RANK", "LOCAL_RANK", "GROUP_RANK", "SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID"], "0")
SHELL = {
    "OPTIND": "1",
    "OSTYPE": "linux-gnu",
    "BASH_VERSION": "5.2",
    "MACHTYPE": "x86_64-pc-linux-gnu",
    "SHLVL": "1",
    "IFS": " \t\n",
}


class Variables:
    """Base class of the evaluator of scripts: the variables and files of a simulated shell (State). A value that nobody has
    given is unknown: a text with a mark, a character that stands for the value. given: variables and, by number, positional
    parameters that the user gives. folder: the script's folder. In all methods, state is the simulated shell and where the
    file and line of the statement, for messages."""

    def __init__(self, given: Mapping[str, str], folder: Path) -> None:
        self.given = {name: value for name, value in given.items() if not name.isdecimal()}
        self.placed = {int(name): value for name, value in given.items() if name.isdecimal()}
        self.folder = folder
        self.marks = Marks()
        self.own = self.marks.own
        self.blank: dict[str, str] = {}  # variables that the script sets elsewhere, and not where it reads them: file and line
        self.missing_positions: set[int] = set()  # positional parameters of the script itself that nobody has said

    def start(self, name: str) -> State:
        """The state of the simulated shell in which a script begins, with the values that the user gives. name: the script's
        path, which becomes `$0`."""
        path = os.path.abspath(name) if os.path.isfile(name) else name  # since it is taken to start in its own folder
        state = State(name=path, directory=os.path.abspath(self.folder))
        state.variables.update(self.given)
        state.exported |= set(self.given)
        if self.placed:
            count = max(self.placed)
            indices = range(1, count + 1)
            state.arguments = [self.placed.get(n, self.marks.unknown(str(n), name)) for n in indices]
        return state

    def value(self, state: State, name: str, where: str) -> Value:
        """The value of a variable: a text, an array, or None if the script has unset it; an unknown value if nobody has
        given it."""
        name = self.target(state, name)
        if name in state.variables:
            value, known = state.variables[name], state.known()
            if isinstance(value, str):
                return self.marks.picked(value, known)
            if isinstance(value, Array) and known and any(MARK.search(element) for element in value.values()):
                if value.named:
                    result = value.copy()
                    result.update({key: self.marks.picked(element, known) for key, element in dict.items(value)})
                else:
                    result = Array()
                    result.update(enumerate(self.marks.picked_words(value.values(), known)))
                return result
            return value
        if name.isdecimal():
            return self._placed(state, int(name), where)
        if name == "BASH_SOURCE":
            path = where.rpartition(":")[0]
            return os.path.abspath(path) if os.path.isfile(path) else state.name
        if name in ("PWD", "SLURM_SUBMIT_DIR", "PBS_O_WORKDIR", "LS_SUBCWD"):
            return state.directory
        if name == "FUNCNAME":
            return ""
        if name == "#":
            if state.arguments is None:
                return self.marks.unknown("1", where, "is a positional parameter that nobody has given")
            undecided = next((argument for argument in state.arguments if self.marks.several(argument)), None)
            if undecided is None:
                return str(len(state.arguments))
            cause = self.marks.cause(undecided)
            return self.marks.unknown(cause.name if cause else "", where, "is how many there are")
        if name in ("@", "*"):
            return " ".join(self.arguments(state))
        if name == "?":
            return self._status(state, where)
        fallback = SHELL.get(name, state.batch.get(name, FIRST.get(name)))
        if fallback is not None:
            return fallback
        if name in self.own:
            self.blank.setdefault(name, where)
            return ""
        return self.marks.unknown(name if name.isidentifier() else "", where)

    def owns(self, assigned: Sequence[tuple[str, int]], text: str) -> None:
        """Record the variables that a text of the script assigns itself (in `own`), because such a variable is empty where
        it has not been assigned yet. Assignments made from the variable's previous value do not count. assigned: names and
        the positions in the text where their values begin."""
        for name, begin in assigned:
            end = begin
            while end < len(text) and text[end] not in " \t\n;&|)":
                end = end_of(text, end)
            if not re.search(rf"\b{name}\b", text[begin:end]):
                self.own.add(name)

    def _placed(self, state: State, number: int, where: str) -> str:
        """The value of a positional parameter, such as $1; unknown if nobody has given it, which is noted in
        `missing_positions`. number: the parameter's number; 0 is `$0`."""
        if number == 0:
            return state.name
        if state.arguments is not None and number <= len(state.arguments):
            if not state.closed and MARK.match(state.arguments[number - 1]):
                self.missing_positions.add(number + state.shifted)
            return self.marks.picked(state.arguments[number - 1], state.known())
        if state.closed:
            return ""
        self.missing_positions.add(number + state.shifted)
        return self.marks.unknown(str(number + state.shifted), where, "is a positional parameter that nobody has given")

    def _status(self, state: State, where: str) -> str:
        """The value of `$?`, the status of the last command, as a text."""
        if isinstance(state.status, bool):
            return "0" if state.status else state.code
        decision, sense = state.status
        return self.marks.choice(decision, "0" if sense else state.code, state.code if sense else "0")

    def script_name(self, state: State) -> str:
        """The value of `$0`, the script's name."""
        return state.name

    def origin(self, state: State, name: str, path: str) -> str:
        """A note for messages on the variable from which an argument takes its value: ", SEQ=4096 of line 12". Empty if
        there is nothing to say. name: the variable. path: the file of the argument, which is not repeated."""
        value = state.variables.get(name) if not name.isdecimal() else self.placed.get(int(name))
        if not isinstance(value, str) or MARK.search(value) or len(value) > 40 or not value.strip():
            return ""
        shown = f"{name}={value}" if value.split() == [value] else name
        where = state.origins.get(name)
        if where is None or self.given.get(name) == value:
            return f", --set {shown}" if name in self.given or (name.isdecimal() and not state.closed) else ""
        file, _, line = where.rpartition(":")
        return f", {shown} of " + (f"line {line}" if file == path else where)

    def arguments(self, state: State) -> list[str]:
        """All positional parameters ("$@") of the script or function; empty if nobody has given any."""
        return self.marks.picked_words(state.arguments or [], state.known())

    def is_set(self, state: State, name: str, index: str | None = None) -> bool:
        """Whether a variable is set, as far as the script and the user say. index: the element of an array; None for the
        variable as a whole."""
        name = self.target(state, name)
        if name.isdecimal():
            return int(name) == 0 or (state.arguments is not None and int(name) <= len(state.arguments))
        if name in state.variables:
            value = state.variables[name]
            if isinstance(value, Array):
                if index in (None, "@", "*"):
                    return len(value) > 0
                return (index if value.named else int(index) if str(index).isdecimal() else index) in value
            return value is not None
        return name in ("BASH_SOURCE", "PWD", "?", "#", "0", *SHELL) or name in state.batch

    def open(self, state: State, name: str) -> bool:
        """Whether a variable that the script has not assigned may come from the environment in which it is started. name:
        the variable, or the number of a positional parameter."""
        if name.isdecimal():
            return not state.closed
        return name.isidentifier() and name not in state.variables and name not in self.own

    def assign(self, state: State, name: str, value: Value, where: str, index: str | None = None, derived: bool = True) -> None:
        """Assign a value to a variable in the state, or to an element of it. index: the element; None for the variable as a
        whole. derived: whether the value is made from the previous one, as in `A="$A x"`. A value that the user gives by
        name takes precedence over the first assignment that is not derived, and over values that are not known."""
        name = self.target(state, name)
        if "r" in state.kinds.get(name, ""):
            return
        if "a" in state.options:
            state.exported.add(name)
        if name in self.given and index is None and isinstance(value, str):
            first = name not in state.touched
            state.touched |= {name}
            if (first and not derived) or MARK.search(value):
                return
        if isinstance(value, str) and MARK.search(value):
            value = self._named(value, name, where)
        state.origins[name] = where
        if index is not None:
            array = state.variables.get(name)
            held = array if isinstance(array, Array) else Array()
            if isinstance(array, str):
                held[0] = array
            if held.named or re.fullmatch(r"-?\d{1,9}", index):
                held[index if held.named else int(index)] = value if isinstance(value, str) else ""
            state.variables[name] = held
            return
        old = state.variables.get(name)
        if isinstance(old, Array) and isinstance(value, str):
            old["0" if old.named else 0] = value
            return
        state.variables[name] = value

    def _named(self, value: str, name: str, where: str) -> str:
        """A copy of a text in which unknown parts without a name get the name of the variable that holds them, so that the
        user can give it. value: the text. name: the variable."""

        def one(found: re.Match[str]) -> str:
            entry = self.marks.entry(found[0])
            if isinstance(entry, Unknown) and not entry.name:
                return self.marks.unknown(name, entry.where, entry.why)
            return found[0]

        return MARK.sub(one, value)

    def target(self, state: State, name: str) -> str:
        """The variable that a name refers to: another variable if the name was declared as a reference by `declare -n`,
        otherwise the name itself."""
        other = state.variables.get(name) if "n" in state.kinds.get(name, "") else None
        return other if isinstance(other, str) and other.isidentifier() else name

    def assign_list(self, state: State, name: str, values: Sequence[str]) -> None:
        """Assign a list to a variable of the state, as an array with indices from 0."""
        array = Array()
        array.update(enumerate(values))
        state.variables[name] = array

    def restore(self, state: State, name: str, old: Any) -> None:
        """Give a variable of the state the value back that it had before a function call. old: that value; ABSENT if it was
        not assigned."""
        state.origins.pop(name, None)
        if old is ABSENT:
            state.variables.pop(name, None)
        else:
            state.variables[name] = old

    def named(self, state: State, path: str) -> str:
        """A path in the form under which written files are kept: joined to the working directory and normalised, with
        undecided parts shown by name, so that `ds.$SLURM_JOB_ID.json` is the same file everywhere."""
        return self.marks.shown(os.path.normpath(os.path.join(state.directory, path)))

    def on_disk(self, state: State, path: str) -> Path | None:
        """Find an existing file or folder by a path of the script, from the working directory or from the script's folder;
        absolute paths count only within the script's folder. None if there is none or the path is not known."""
        if MARK.search(path) or "\0" in path or len(path) > 1000:
            return None
        folder = self.folder.resolve()
        tried = [Path(path)] if path.startswith("/") else [folder / path, folder / Path(path).name]
        if not path.startswith("/") and not MARK.search(state.directory):
            tried.insert(0, Path(state.directory) / path)
        for candidate in tried:
            try:
                if candidate.exists() and (not path.startswith("/") or folder in candidate.resolve().parents):
                    return candidate
            except (OSError, ValueError, RuntimeError):
                continue
        return None

    def kind_of(self, state: State, path: str) -> str | None:
        """Whether a path of the script is a file or a folder: the text "file" if it was written or exists as one, "folder"
        if it exists as one; None if neither."""
        if self.named(state, path) in state.files:
            return "file"
        found = self.on_disk(state, path)
        return None if found is None else "file" if found.is_file() else "folder"

    def written(self, state: State, path: str, text: str, adds: bool = False) -> None:
        """Record in the state the new content of a file that the script writes. text: the content. adds: whether the text is
        appended. Nothing is recorded if the path is not known."""
        if self.marks.names_one_file(path):
            name = self.named(state, path)
            held = state.files.get(name, self.text_of(state, path) or "") if adds else ""
            state.files[name] = held + text

    def content(self, state: State, path: str, where: str) -> str:
        """The content of a file that the script wrote, that the batch system provides or that exists next to the script; an
        unknown text for other files. path: the file as the script names it."""
        if (held := state.batch.get(f"file {path}")) is not None:
            return held
        if self.marks.names_one_file(path) and self.named(state, path) in state.files:
            return state.files[self.named(state, path)]
        text = self.text_of(state, path)
        return self.marks.unknown("", where, f"is in {self.marks.shown(path)}, which is not here") if text is None else text

    def text_of(self, state: State, path: str) -> str | None:
        """The text of an existing file, by a path of the script; None if there is none, it is too large or not text."""
        found = self.on_disk(state, path)
        try:
            if found is None or not found.is_file() or found.stat().st_size > MOST_BYTES:
                return None
            text = found.read_text()
        except (OSError, UnicodeDecodeError):
            return None
        return None if MARK.search(text) else text.replace("\r\n", "\n")
