"""Record how trainplan answers many requests, so that two versions of it can be compared to the nanosecond and the byte.

    python -m tests.golden.record -o FILE [-j N] [--only GLOB] [--sample] [--fresh]

The file has one line for each request, under its key. What it has already is kept unless --fresh is given, so that a recording
that was interrupted goes on. No time passes for searches (`inside.stop_clocks`): what depends on time is not recorded. Each
request is answered by a process of its own, forked from one that has everything imported: what one leaves in memory changes
nothing for another.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import multiprocessing
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tests.golden.inside import stop_clocks
from tests.golden.outcomes import outcome
from tests.golden.requests import Task, lay_out, tasks

LONGEST_SECONDS = 900.0  # of one request, after which its process is ended: on a busy machine, too, far more than it takes
SAMPLE_EVERY = 7
Records = dict[str, dict[str, Any]]


def sampled(all_tasks: Sequence[Task]) -> list[Task]:
    """A fair sample: one in a number of the requests that are not costly."""
    return [task for task in all_tasks if not task.costly][::SAMPLE_EVERY]


def recorded(chosen: Sequence[Task], jobs: int = 1) -> Iterator[tuple[str, dict[str, Any], float]]:
    """Key, record and seconds of the processor of each request, as they are done."""
    fork, waiting = multiprocessing.get_context("fork"), list(chosen)[::-1]
    running: dict[Connection, tuple[Any, Task, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        lay_out(Path(folder))
        while waiting or running:
            while waiting and len(running) < jobs:
                receiver, sender = fork.Pipe(duplex=False)
                process = fork.Process(target=_answer, args=(task := waiting.pop(), folder, sender))
                process.start()
                sender.close()
                running[receiver] = (process, task, time.monotonic())
            done = wait(list(running), timeout=1)
            for receiver, (process, task, began) in list(running.items()):
                seconds = time.monotonic() - began
                if receiver not in done and seconds < LONGEST_SECONDS:
                    continue
                ended = {"unfinished": f"after {LONGEST_SECONDS:.0f} s"}, seconds
                made, seconds = receiver.recv() if receiver in done else ended
                process.kill()
                process.join()
                del running[receiver]
                yield task.key, made, seconds


def _answer(task: Task, folder: str, sender: Connection) -> None:
    os.chdir(folder)
    stop_clocks()
    warnings.simplefilter("ignore")
    try:
        made = json.loads(json.dumps(outcome(task.kind, task.requested)))
    except Exception as fault:
        made = {"fault": f"{type(fault).__name__}: {fault}"}
    sender.send((made, sum(os.times()[:4])))


def read(path: Path) -> Records:
    """The records of a file by their keys."""
    return dict(json.loads(line) for line in path.read_text().splitlines())


def write(path: Path, records: Records) -> None:
    """Write the records, one line each, in the order of their requests."""
    order = {task.key: index for index, task in enumerate(tasks())}
    keys = sorted(records, key=lambda key: order.get(key, len(order)))
    path.write_text("".join(json.dumps([key, records[key]], separators=(",", ":")) + "\n" for key in keys))


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.golden.record", description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, required=True, help="the file, which is gone on with where it exists")
    parser.add_argument("-j", "--jobs", type=int, default=1, help="requests at one time")
    parser.add_argument("--only", default="*", help="requests whose keys match, such as 'real/*'")
    parser.add_argument("--sample", action="store_true", help="a fair sample, of a minute")
    parser.add_argument("--fresh", action="store_true", help="begin anew where the file exists")
    given = parser.parse_args(words)
    kept = {} if given.fresh or not given.output.exists() else read(given.output)
    records = {key: made for key, made in kept.items() if not {"fault", "unfinished"} & made.keys()}
    chosen = sampled(tasks()) if given.sample else tasks()
    chosen = [task for task in chosen if fnmatch.fnmatch(task.key, given.only) and task.key not in records]
    for number, (key, made, seconds) in enumerate(recorded(chosen, given.jobs), 1):
        records[key] = made
        note = next((f"  {name}: {made[name]}" for name in ("fault", "unfinished", "refused") if name in made), "")
        print(f"{number}/{len(chosen)} {seconds:6.2f} s  {key}{note}", file=sys.stderr, flush=True)
        write(given.output, records)


if __name__ == "__main__":
    main()
