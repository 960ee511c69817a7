"""A study that is killed again and again ends with the table of one that ran through.

A study of 300 cells (GPT-2 on four devices, batches, memory limits and methods) runs once through. Then it runs in another
folder and is killed nine times at random moments by SIGKILL, once one of its solving processes is killed, and once its files
may not grow any further, as on a full disk. At the end both folders must have the same rows (keys, statuses, values, bounds),
except that killed solving processes are crashed cells; no finished cell may have run again; and no process and no temporary
file may be left. Prints what it has found; exit code 1 if any of it is wrong.

    python -m benchmarks.studies_killed --seed 1
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from trainplan.profiling.base.yaml_files import yaml_text

from tests.helpers.faulty_methods import gone, marked
from trainplan.studies.storage import read_rows

KILLS = 9
STUDY: dict[str, Any] = {
    "name": "killed",
    "models": "gpt2",
    "clusters": "cpu-4",
    "batches": {"from": 4, "to": 60, "plus": 4},
    "with": {"memory": ["600MiB", "1GiB", "2GiB", "4GiB", "8GiB"]},
    "problems": "layer-strategies",
    "methods": ["exact", "galvatron-dp", "milp", "cpsat"],
    "limits": {"time_limit": 300},
}
RESULT = ("key", "status", "value_ns", "bound_ns", "instance_hash", "reason")
MARK = f"TRAINPLAN_STUDY_MARK={os.getpid()}"


def started(file: Path, folder: Path, largest_file: int | None = None) -> subprocess.Popen[str]:
    """The study's command in a process. largest_file: bytes that its files may have, None for any."""

    def limited() -> None:
        """Limit the size of files in the process before it begins."""
        if largest_file is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))

    line = [sys.executable, "-m", "trainplan", "study", str(file), "-j", "2", "-o", str(folder)]
    environment = {**os.environ, **dict([MARK.split("=")])}
    quiet = subprocess.DEVNULL
    return subprocess.Popen(line, env=environment, stdout=quiet, stderr=subprocess.PIPE, text=True, preexec_fn=limited)


def until_rows(process: subprocess.Popen[str], folder: Path, count: int) -> None:
    """Wait until the folder has a number of rows, or the process has ended."""
    while process.poll() is None and (not folder.is_dir() or len(read_rows(folder)) < count):
        time.sleep(0.05)


def kept(folder: Path) -> dict[str, str]:
    """When each finished cell of a folder has begun, by its key."""
    return {row["key"]: row["started"] for row in read_rows(folder)}


def table(folder: Path) -> dict[str, tuple[Any, ...]]:
    """The results in a folder, apart from times, by the cell's name."""
    return {row["name"]: tuple(row[name] for name in RESULT) for row in read_rows(folder)}


def main() -> None:
    """Run the study in both ways, compare, and print the findings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    rng, wrong = random.Random(parser.parse_args().seed), list[str]()

    def expect(truth: bool, what: str) -> None:
        """Print a finding, and note it if it is wrong."""
        print(f"{'ok   ' if truth else 'WRONG'} {what}", flush=True)
        if not truth:
            wrong.append(what)

    with TemporaryDirectory() as scratch:
        file, through, folder = Path(scratch, "study.yaml"), Path(scratch, "through"), Path(scratch, "killed")
        file.write_text(yaml_text(STUDY))
        process = started(file, through)
        process.communicate()
        wanted = table(through)
        expect(process.returncode == 0 and len(wanted) == 300, f"{len(wanted)} cells ran through")
        finished: dict[str, str] = {}
        for number in range(KILLS):
            process = started(file, folder)
            until_rows(process, folder, len(finished) + rng.randint(1, 20))
            time.sleep(rng.random())
            process.kill()
            process.communicate()
            now = kept(folder)
            expect(gone(MARK), f"kill {number + 1}: no process is left, {len(now)} cells are kept")
            expect(finished.items() <= now.items(), "no finished cell has run again")
            finished = now
        process = started(file, folder)
        until_rows(process, folder, len(finished) + 5)
        solving = [pid for pid in marked(MARK) if pid != process.pid]
        os.kill(rng.choice(solving), signal.SIGKILL)
        until_rows(process, folder, len(finished) + 15)
        expect(process.poll() is None, "it goes on where one of its processes is killed")
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate()
        expect(process.returncode == 3 and "kept" in errors, f"it ends when asked to: {errors.strip()}")
        size = max(path.stat().st_size for path in folder.glob("*-*"))
        process = started(file, folder, size + 40_000)
        _, errors = process.communicate()
        expect(process.returncode == 3 and "kept" in errors, f"a full disk: {errors.strip()}")
        now = kept(folder)
        expect(finished.items() <= now.items(), f"no finished cell has run again, {len(now)} cells are kept")
        process = started(file, folder)
        process.communicate()
        expect(process.returncode == 0 and gone(MARK), "it ends, and no process is left")
        found = table(folder)
        crashed = [name for name, row in found.items() if row[1] == "crashed"]
        expect(len(crashed) <= 2, f"{len(crashed)} cells crashed, whose process was killed")
        alike = {name: row for name, row in wanted.items() if name not in crashed}
        same = {name: row for name, row in found.items() if name not in crashed}
        expect(alike == same and len(found) == 300, f"the other {len(same)} rows are those of the study that ran through")
        expect(now.items() <= kept(folder).items(), "no finished cell has run again")
        expect(not [*folder.rglob("*.part"), *folder.glob("journal-*")], "no temporary file is left")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
