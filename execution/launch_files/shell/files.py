"""Commands that change files which a script reads later: copies, edits by `sed -i`, and deletions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainplan.execution.launch_files.shell import filters, sed
from trainplan.execution.launch_files.shell.marks import MARK

if TYPE_CHECKING:
    from trainplan.execution.launch_files.shell.evaluate import Evaluator
    from trainplan.execution.launch_files.shell.state import State

COPIES = ("cp", "mv", "install", "ln", "rsync")
EDITORS = {"sed": re.compile(r"-\w*i|--in-place"), "perl": re.compile(r"-\w*i"), "yq": re.compile(r"-\w*i|--inplace"),
           "gawk": re.compile(r"-i"), "crudini": re.compile(r"--set")}  # fmt: skip


def changed(shell: Evaluator, name: str, rest: Sequence[str], state: State, where: str) -> bool:
    """Carry out a command that only changes files (cp, mv, ln, rm, or an editor such as `sed -i`) on the simulated shell.
    name: the command. state: the simulated shell, in which the new contents are recorded. Returns whether the command is one
    of these; if not, nothing is done. shell: the script's evaluator. rest: the words after the command's name. where: file
    and line."""
    words = [word for word in rest if not re.match(r"-.", word)]
    if name == "rm" or name in EDITORS or name in COPIES:
        read = words[:-1] if name in COPIES else filters.split_off_files(name, list(rest))[1] if name == "sed" else words
        here = [shell.kind_of(state, word) for word in read]
        if None in here and not (name == "rm" and any(re.fullmatch(r"-\w*f\w*", word) for word in rest)):
            shell.uncertain(state, where, [name, *rest])
    if name in COPIES and len(words) > 1:
        for source in words[:-1]:
            _copied(shell, source, words[-1], state, where)
        if name == "mv":
            _deleted(shell, words[:-1], state)
        return True
    if name == "rm":
        _deleted(shell, words, state)
        return True
    if name in EDITORS and any(EDITORS[name].match(word) for word in rest):
        _edited(shell, name, rest, state, where)
        return True
    return False


def _copied(shell: Evaluator, source: str, target: str, state: State, where: str) -> None:
    """Record that the script copies a file. source, target: the paths; the target may be a folder. state: the simulated
    shell, in which the target gets the source's content. shell: the script's evaluator. where: file and line."""
    if shell.kind_of(state, source) == "folder" or not shell.marks.names_one_file(source):
        return
    if target.endswith("/") or target in (".", "..") or shell.kind_of(state, target) == "folder":
        target = f"{target.rstrip('/')}/{source.rsplit('/', 1)[-1]}"
    if shell.named(state, source) != shell.named(state, target):
        shell.written(state, target, shell.content(state, source, where))


def _deleted(shell: Evaluator, paths: Sequence[str], state: State) -> None:
    """Record deleted files: files that the script wrote are forgotten, files that exist become empty. paths: the files.
    state: the simulated shell, whose files are changed. shell: the script's evaluator."""
    for path in paths:
        if shell.marks.names_one_file(path):
            state.files.pop(shell.named(state, path), None)
            if shell.text_of(state, path) is not None:
                shell.written(state, path, "")


def _edited(shell: Evaluator, name: str, rest: Sequence[str], state: State, where: str) -> None:
    """Record the result of an editor that changes files in place, such as `sed -i`; the new content is unknown unless the
    editor is sed with a supported program. name: the editor. state: the simulated shell, whose files are changed. shell: the
    script's evaluator. rest: the words after the command's name. where: file and line."""
    words = [word for word in rest if not re.fullmatch(r"-i\S*|--in-place\S*", word)]
    words = [re.sub(r"^-(\w*?)i(\w*)$", r"-\1\2", word) if not word.startswith("--") else word for word in words]
    words, paths = filters.split_off_files(name, words)
    if name != "sed":
        paths = [word for word in rest if not word.startswith("-")]
    for path in paths:
        known = shell.text_of(state, path) is not None or shell.named(state, path) in state.files
        if not known:
            continue
        text = sed.edited(words, shell.content(state, path, where)) if name == "sed" else None
        if text is None:
            cause = shell.marks.cause("".join(words))
            why = f"is what {name} makes of {shell.marks.shown(path)}"
            text = shell.marks.unknown(cause.name if cause else "", where, why) + "\n"
        shell.written(state, path, text)


def substituted(shell: Evaluator, rest: Sequence[str], given: str, state: State, where: str) -> str:
    """The output of `envsubst`: a text in which exported variables, or only those that the arguments name, are replaced by
    their values. rest: the arguments. given: the text. state: the simulated shell, which has the values. shell: the script's
    evaluator. where: file and line."""
    only = set(re.findall(r"\$\{?([A-Za-z_]\w*)", " ".join(rest)))

    def one(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if only and name not in only:
            return match[0]
        if name in state.exported or (name not in state.variables and name not in shell.own):
            return shell.words(state, where).scalar(name, None)
        return ""

    return re.sub(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})", one, given)


def undecided(text: str) -> bool:
    """Whether nothing of a text is known, as for the content of a copy of a file that does not exist."""
    return MARK.fullmatch(text.strip()) is not None
