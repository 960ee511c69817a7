"""Runs scripts under real bash in which every program is a stub that records its command line."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

HARMLESS = [
    "basename", "dirname", "seq", "cat", "head", "tail", "tr", "cut", "wc", "expr", "mkdir", "sed", "awk", "grep", "sort",
    "uniq", "cp", "mv", "rm",
]  # fmt: skip
STUBS = ["torchrun", "python", "python3", "deepspeed", "accelerate"]
WRAPPERS = ["srun", "mpirun", "numactl", "nsys", "docker", "singularity"]
RECORD = """#!/bin/bash
printf '%s\\0' "{name}" "$@" $'\\1' >> "{log}"
"""
WRAP = """#!/bin/bash
while [ $# -gt 0 ]; do
  case "$1" in
    bash|sh|torchrun|python|python3|deepspeed|accelerate) exec "$@" ;;
  esac
  shift
done
"""
SBATCH = """#!/bin/bash
while [[ $1 == -* ]]; do shift; done
if [ $# -gt 0 ]; then exec bash "$@"; else exec bash; fi
"""


def bash() -> str | None:
    """The path of bash; None where it is not installed."""
    return shutil.which("bash")


def opened(folder: Path) -> None:
    """Gives everybody the rights to write into a folder and to reach it, since stubs run as nobody under a root user."""
    if os.geteuid() == 0:
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o777)
        for parent in list(folder.parents)[:-2]:
            parent.chmod(parent.stat().st_mode | 0o011)


def stubs(folder: Path) -> Path:
    """Fills a new folder with stubs of programs that start training, which record their command lines in the file `log`, with
    wrappers, and with the real programs that only work on texts. Returns the folder."""
    folder.mkdir()
    log = folder / "log"
    for name in STUBS:
        _program(folder / name, RECORD.format(name=name, log=log))
    for name in WRAPPERS:
        _program(folder / name, WRAP)
    _program(folder / "sbatch", SBATCH)
    for name in ("module", "nvidia-smi", "pip", "sleep", "tee", "ssh"):
        _program(folder / name, "#!/bin/bash\n:\n")
    for name in [*HARMLESS, "bash", "sh"]:
        found = shutil.which(name)
        assert found is not None, name
        (folder / name).symlink_to(found)
    log.touch()
    if os.geteuid() == 0:
        os.chown(folder, 65534, 65534)
        os.chown(log, 65534, 65534)
    return folder


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def runs(
    script: Path, programs: Path, variables: Mapping[str, str] | None = None, words: Sequence[str] = ()
) -> list[list[str]] | None:
    """The command lines of the stubs that a script starts under bash, in order; None where it does not end.

    script: the script. programs: the folder of `stubs`, its only PATH. variables: the rest of its environment. words: its
    arguments. Under a root user it runs as nobody; it has two seconds of processor time.
    """
    log = programs / "log"
    log.write_bytes(b"")
    root = os.geteuid() == 0
    try:
        subprocess.run(
            ["/bin/bash", "-c", 'ulimit -t 2 -f 2048 -u 512 2>/dev/null; exec bash "$@"', "bash", str(script), *words],
            cwd=script.parent, env={"PATH": str(programs), **(variables or {})}, timeout=5, check=False, capture_output=True,
            stdin=subprocess.DEVNULL, start_new_session=True, user=65534 if root else None, group=65534 if root else None,
            extra_groups=[] if root else None,
        )  # fmt: skip
    except (subprocess.TimeoutExpired, ValueError):
        return None
    started: list[list[str]] = [[]]
    for word in log.read_bytes().decode(errors="replace").split("\0"):
        if word == "\1":
            started.append([])
        else:
            started[-1].append(word)
    return started[:-1]
