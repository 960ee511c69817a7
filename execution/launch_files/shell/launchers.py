"""Commands that start other commands: shells, Slurm, MPI, containers, and launchers of training; and the variables that they
pass on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trainplan.execution.launch_files.shell import files, reading
from trainplan.execution.launch_files.shell.batch import HEADER, batch_of, changed, counts, pbs
from trainplan.execution.launch_files.shell.marks import MARK
from trainplan.execution.launch_files.shell.state import State
from trainplan.profiling.models.families.fields import names

if TYPE_CHECKING:
    from trainplan.execution.launch_files.shell.evaluate import Evaluator

SHELLS = ("bash", "sh", "zsh", "dash", "ksh")
WRAPPERS = names(
    """
    srun mpirun mpiexec mpiexec.hydra orterun horovodrun prun aprun jsrun ibrun env nohup time timeout numactl
    taskset nsys ncu nvprof rocprof rocprofv3 sudo stdbuf nice ionice docker podman singularity apptainer enroot
    shifter conda mamba micromamba poetry pipenv uv pixi setsid unbuffer tini kubectl flock perf strace py-spy
    runai dlprof eval
    """
)
REMOTE = ("ssh", "pdsh", "clush", "parallel-ssh", "rsh")
TOOLS = (
    "axolotl",
    "llamafactory-cli",
    "nemo",
    "tune",
    "composer",
    "colossalai",
    "swift",
    "xtuner",
    "lightning",
    "fabric",
    "litgpt",
    "oumi",
)
STARTERS = ("torchrun", "deepspeed", "accelerate", "accelerate-launch", *TOOLS)
# What trains, and is taken to succeed; other programs check or prepare, and may fail.
RUNS = re.compile(rf"(?:^|[/ ])(?:{'|'.join(STARTERS)})\b|train|finetune|fine_tune|sft|run_[cm]lm|--num-layers", re.IGNORECASE)
PYTHON = re.compile(r"(?:.*/)?(?:python|pypy)[\d.]*$")
# Keys of Megatron-LM that no other tool has: what starts with them trains, whatever starts it.
MEGATRON = names(
    """
    --num-layers --micro-batch-size --global-batch-size --seq-length --tensor-model-parallel-size --hidden-size
    """
)
ENGINES = ("docker", "podman", "nerdctl", "nvidia-docker", "kubectl")
IMAGES = ("singularity", "apptainer")
APART = (*ENGINES, "ssh", "pdsh", "clush", "parallel-ssh", "rsh")  # what starts without the variables of here
OPTIONS = {
    **dict.fromkeys(ENGINES, ("-e", "--env")),
    **dict.fromkeys(IMAGES, ("--env",)),
    **dict.fromkeys(("srun", "sbatch", "salloc"), ("--export",)),
    **dict.fromkeys(("mpirun", "mpiexec", "orterun", "horovodrun"), ("-x", "--env", "-env", "-genv", "--genv")),
    **dict.fromkeys(("mpiexec.hydra",), ("-env", "-genv")),
    "qsub": ("-v",),
    "env": ("",),
}


def looks_like_program(word: str) -> bool:
    """Whether a word of a command names something that a launcher starts, such as python, a shell, another launcher or a .py
    or .sh file, and is not one of the launcher's options."""
    name = word.rsplit("/", 1)[-1]
    if word.startswith("-") or "=" in word or ":" in word or not name:
        return False
    return (
        bool(PYTHON.match(word))
        or name in (*SHELLS, *STARTERS, *WRAPPERS, *REMOTE, "xargs")
        or name.endswith((".py", ".sh", ".sbatch"))
    )


def start(shell: Evaluator, argv: Sequence[str], environment: Mapping[str, str], state: State, where: str) -> bool:
    """Evaluate the script, or record the training command, that the words of a command start, possibly through launchers
    such as srun. argv: the words. environment: variables set in front of them. state: the simulated shell, in which commands
    are recorded. Returns False if the words start neither a script nor training. shell: the script's evaluator. where: file
    and line."""
    name, rest = argv[0].rsplit("/", 1)[-1], list(argv[1:])
    if name in SHELLS:
        return _shell(shell, rest, environment, state, where)
    if name in ("sbatch", "salloc", "qsub"):
        return _batch(shell, name, rest, environment, state, where)
    if name == "xargs":
        lines = reading.started(shell, rest, state, where)
        return [start(shell, line, environment, state, where) for line in lines] != [False]
    if name in REMOTE:
        position = next((n for n, word in enumerate(rest) if looks_like_program(word) or re.search(r"[ ;&]", word)), None)
        if position is not None:
            with _handing(name, rest[:position], environment, state) as passed_on:
                shell.child(" ".join(rest[position:]), state, "bash", [], where, passed_on, worded=True)
        return position is not None
    if name in WRAPPERS:
        position = next((n for n, word in enumerate(rest) if looks_like_program(word)), None)
        if position is None:
            return False
        with _handing(name, rest[:position], environment, state) as passed_on:
            return start(shell, rest[position:], passed_on, state, where)
    if name.endswith((".sh", ".sbatch", ".slurm", ".bash")) and not MARK.search(argv[0]):
        return _script(shell, argv[0], rest, environment, state, where)
    if PYTHON.match(argv[0]) and "-c" in rest[:2]:
        return False
    trains = PYTHON.match(argv[0]) or name in STARTERS or name.endswith(".py")
    if not trains:
        trains = any(word.endswith(".py") for word in rest) or len(MEGATRON & {w.partition("=")[0] for w in rest}) > 1
        if not trains and MARK.search(argv[0]):
            trains = any(word.startswith("--") for word in rest)
    if trains:
        shell.found(argv, dict(environment), state, where)
        if not RUNS.search(" ".join(argv)):
            shell.uncertain(state, where, argv)
    return bool(trains)


@contextmanager
def _handing(name: str, words: Sequence[str], environment: Mapping[str, str], state: State) -> Iterator[dict[str, str]]:
    """Context in which the command after a launcher is evaluated: the job's values and exported variables in `state` are
    those that the launcher passes on, and are restored afterwards. name: the launcher. words: its options. environment:
    variables set in front of the launcher. The context's value is the variables that are set in front of the command."""
    handed, every = passed(name, words, state)
    more = counts(words, name)
    held, state.batch = state.batch, changed(state.batch, more) if more or name in ("sbatch", "salloc") else state.batch
    exported, state.exported = state.exported, set(state.exported) if every else set(handed)
    yield {**(environment if every else {}), **handed}
    state.batch, state.exported = held, exported


def _script(
    shell: Evaluator, path: str, words: Sequence[str], environment: Mapping[str, str], state: State, where: str
) -> bool:
    """Evaluate a script that the current script starts, if its text is known; if not, record the training command among its
    words (as for wrappers) or that the script is absent. path: the script. words: its arguments. environment: variables set
    in front of it. state: the simulated shell, which is changed. Always returns True: a script was started. shell: the
    script's evaluator. where: file and line."""
    written = state.files.get(shell.named(state, path)) if shell.marks.names_one_file(path) else None
    text = shell.text_of(state, path) if written is None else written
    if text is None or files.undecided(text):
        if _wraps(words):  # what is not here starts the command after it, as wrappers for affinity do
            with _handing("", (), environment, state) as passed_on:
                if state.batch.get("ntasks-per-node", "1") == "1":
                    state.batch = {**state.batch, "ntasks": "?"}  # it may start several
                shell.found(words, passed_on, state, where)
            return True
        shell.absent.append((shell.marks.shown(path), where))
        shell.uncertain(state, where, [path, *words])
        return True
    held = dict(state.batch)
    state.batch = changed(batch_of(text), state.batch) if written is None or HEADER.search(text) else state.batch
    found = shell.on_disk(state, path)
    shell.child(text, state, path, words, f"{found or path}:1", dict(environment))
    state.batch = held
    return True


def _wraps(words: Sequence[str]) -> bool:
    """Whether words are a complete command that trains with Megatron-LM: a Python program with several of its arguments."""
    program = bool(words) and (words[0].endswith(".py") or PYTHON.match(words[0]) or words[0] in STARTERS)
    return bool(program) and len(MEGATRON & {word.partition("=")[0].replace("_", "-") for word in words}) > 1


def _shell(shell: Evaluator, rest: list[str], environment: Mapping[str, str], state: State, where: str) -> bool:
    """Evaluate what `bash`, `sh` and similar shells run: a text after -c, a script, or standard input. rest: the words after
    the shell's name. environment: variables set in front of it. state: the simulated shell, which is changed. Always returns
    True. shell: the script's evaluator. where: file and line."""
    position, text = 0, False
    while position < len(rest) and rest[position][:1] in "-+" and rest[position] not in ("-", "--"):
        text = text or (rest[position][1:2] != "-" and "c" in rest[position][1:])
        position += 2 if rest[position] in ("-o", "-O", "+o", "--rcfile", "--init-file") else 1
    words = rest[position + (rest[position : position + 1] == ["--"]) :]
    if text:
        if words:
            name = words[1] if len(words) > 1 else "bash"
            shell.child(words[0], state, name, words[2:], where, dict(environment), worded=True)
        return True
    if words and words[0] != "-":
        return _script(shell, words[0], words[1:], environment, state, where)
    if state.given is not None:
        given, state.given = state.given, None
        shell.child(given, state, "bash", words[1:], where, dict(environment))
    return True


def _batch(shell: Evaluator, name: str, rest: list[str], environment: Mapping[str, str], state: State, where: str) -> bool:
    """Evaluate what `sbatch`, `salloc` or `qsub` submit: a script, the text of --wrap, or standard input. name: which
    command. rest: its words. environment: variables set in front of it. state: the simulated shell, which is changed. Always
    returns True. shell: the script's evaluator. where: file and line."""
    index = 0
    valued = ("-N", "-n", "-p", "-A", "-J", "-t", "-o", "-e", "-w", "-x", "-q", "-c", "-G", "-d", "-C", "-a", "-D", "-l", "-v")
    while index < len(rest) and rest[index].startswith("-"):
        long_value = rest[index].startswith("--") and "=" not in rest[index] and index + 1 < len(rest)
        separate = long_value and not looks_like_program(rest[index + 1]) and not rest[index + 1].startswith("-")
        index += 2 if rest[index] in valued or separate else 1
    with _handing(name, rest[:index], environment, state) as passed_on:
        state.batch |= pbs(rest[:index]) if name == "qsub" else {}
        wrapped = next((n for n, word in enumerate(rest[:index]) if word.startswith("--wrap")), None)
        if wrapped is not None:
            text = rest[wrapped].partition("=")[2] if "=" in rest[wrapped] else rest[wrapped + 1]
            shell.child(text, state, "bash", [], where, passed_on)
        elif index < len(rest):
            _script(shell, rest[index], rest[index + 1 :], passed_on, state, where)
        elif state.given is not None:
            given, state.given = state.given, None
            state.batch = changed(batch_of(given), state.batch)
            shell.child(given, state, "bash", [], where, passed_on)
    return True


def passed(name: str, words: Sequence[str], state: State) -> tuple[dict[str, str], bool]:
    """The variables that a launcher passes on to the command that it starts: those that its options set, by name, and
    whether all exported variables are passed on, too. name: the launcher. words: its options. state: the simulated shell,
    which has the exported variables."""
    result: dict[str, str] = {}
    every = name not in APART
    if name in IMAGES:
        for variable in state.exported:
            match = re.fullmatch(r"(?:SINGULARITY|APPTAINER)ENV_(\w+)", variable)
            value = state.variables.get(variable)
            if match and isinstance(value, str):
                result[match[1]] = value
        every = not {"--cleanenv", "-e", "--containall", "-C"} & set(words)
    for text in _texts(name, words):
        if name in ("srun", "sbatch", "salloc"):
            names = text.split(",")
            every = "ALL" in names
        for setting in [text] if name in (*ENGINES, "mpirun", "mpiexec", "env") else text.split(","):
            variable, sign, value = setting.partition("=")
            held = state.variables.get(variable)
            if sign and variable.isidentifier():
                result[variable] = value
            elif variable in state.exported and isinstance(held, str):
                result[variable] = held
    return result, every


def _texts(name: str, words: Sequence[str]) -> Iterator[str]:
    """The values of a launcher's options that set variables, each as NAME=VALUE or NAME: for mpirun, ["-x", "A=1", "-np",
    "8"] -> "A=1". name: the launcher. words: its options."""
    options = OPTIONS.get(name, ())
    for index, word in enumerate(words):
        if name == "env":
            yield from [word] if "=" in word and word[0] != "-" else []
        elif word in options:
            text = "".join(words[index + 1 : index + 2])
            two = word.lstrip("-") in ("env", "genv") and name.startswith("mpiexec") and "=" not in text
            yield f"{text}={''.join(words[index + 2 : index + 3])}" if two else text
        else:
            option = next((matching for matching in options if word.startswith(f"{matching}=")), None)
            if option is not None:
                yield word[len(option) + 1 :]
            elif name in ENGINES and re.match(r"-e\w+=", word):
                yield word[2:]
