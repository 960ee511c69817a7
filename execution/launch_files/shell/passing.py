"""Variables that launchers and containers hand to what they start, and those that stay behind."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from trainplan.execution.launch_files.shell.state import State

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


def passed(name: str, words: Sequence[str], state: State) -> tuple[dict[str, str], bool]:
    """The variables that options of a launcher set, and whether all that is exported goes along."""
    made: dict[str, str] = {}
    every = name not in APART
    if name in IMAGES:
        for variable in state.exported:
            match = re.fullmatch(r"(?:SINGULARITY|APPTAINER)ENV_(\w+)", variable)
            value = state.variables.get(variable)
            if match and isinstance(value, str):
                made[match[1]] = value
        every = not {"--cleanenv", "-e", "--containall", "-C"} & set(words)
    for text in _texts(name, words):
        if name in ("srun", "sbatch", "salloc"):
            names = text.split(",")
            every = "ALL" in names
        for each in [text] if name in (*ENGINES, "mpirun", "mpiexec", "env") else text.split(","):
            variable, sign, value = each.partition("=")
            held = state.variables.get(variable)
            if sign and variable.isidentifier():
                made[variable] = value
            elif variable in state.exported and isinstance(held, str):
                made[variable] = held
    return made, every


def _texts(name: str, words: Sequence[str]) -> Iterator[str]:
    """What is behind the options that set variables."""
    options = OPTIONS.get(name, ())
    for index, word in enumerate(words):
        if name == "env":
            yield from [word] if "=" in word and word[0] != "-" else []
        elif word in options:
            text = "".join(words[index + 1 : index + 2])
            two = word.lstrip("-") in ("env", "genv") and name.startswith("mpiexec") and "=" not in text
            yield f"{text}={''.join(words[index + 2 : index + 3])}" if two else text
        else:
            option = next((each for each in options if word.startswith(f"{each}=")), None)
            if option is not None:
                yield word[len(option) + 1 :]
            elif name in ENGINES and re.match(r"-e\w+=", word):
                yield word[2:]
