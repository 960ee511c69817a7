"""Find bounds of the library's entries, and write them into the entries.

    python benchmarks/library_bounds.py [PATTERN] [--methods exact,milp,cpsat] [--limit 10] [-j 1] [--tried tried.jsonl]

For every entry that is open it runs the methods in their order, each in a process of its own, until one closes it. --all runs
every method on every entry, closed ones as well; what the papers' planners lose is then in the file of what was tried. What was
tried with the same method and limit is not tried again. --evidence looks for evidence of bounds, in place of solving.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import write_whole
from trainplan.solvers.core.clock import grace_seconds
from trainplan.solvers.core.result import Infeasibility, Point, Result
from trainplan.solvers.core.solve import solve

from trainplan.libraries.adding import improved, with_evidence
from trainplan.libraries.catalogue import library, shipped_folder, write_index
from trainplan.libraries.records import Entry, compressed, file_name, read_entry

LOCK = Lock()


def solve_one(path: str, method: str, limit: float) -> None:
    """Solve the instance of an entry's file with a method, and print the result as one line of JSON; the process's whole
    work."""
    instance = read_entry(Path(path)).instance()
    try:
        print(json.dumps(solve(instance, method, time_limit=limit, gap=0.0).to_dict()))
    except InputError as error:
        print(json.dumps({"refused": str(error)}))


def evidence_of(path: str) -> None:
    """Print the entry in a file, with evidence of its bound, as one line of JSON; the process's whole work."""
    entry = read_entry(Path(path))
    print(json.dumps(with_evidence(entry, entry.instance()).model_dump(mode="json")))


def in_process(arguments: list[str], seconds: float) -> dict[str, Any]:
    """The JSON object that this script prints with some arguments, in a process of its own that is ended after some seconds."""
    try:
        done = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return {"failed": f"no answer in {seconds:.0f} s"}
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return {"failed": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]}
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer


def result_of(content: dict[str, Any]) -> Result:
    """The result whose `to_dict` is given."""
    reason = content["reason"] and Infeasibility(**{**content["reason"], "advice": tuple(content["reason"]["advice"])})
    history = tuple(Point(**point) for point in content["history"])
    return Result(**{**content, "reason": reason, "history": history, "violations": tuple(content["violations"])})


class Run:
    """One run of this script: its options, and what was tried before."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.folder = given, given.folder
        lines = given.tried.read_text().splitlines() if given.tried.exists() else []
        self.tried = {tuple(json.loads(line)["key"]) for line in lines}

    def entry(self, name: str) -> None:
        """Run the methods on an entry, until one closes it, and write what they find."""
        for method in self.given.methods.split(","):
            entry = read_entry(self.folder / file_name(name))
            key = (name, entry.instance_hash, method, self.given.limit)
            if (entry.status != "open" and not self.given.all) or key in self.tried:
                continue
            words = ["--solve", str(self.folder / file_name(name)), method, "--limit", str(self.given.limit)]
            answer = in_process(words, self.given.limit + grace_seconds(self.given.limit) + 60)
            if "failed" not in answer and "refused" not in answer:
                with LOCK:
                    entry = read_entry(self.folder / file_name(name))  # which another run may have changed
                    self.write(improved(entry, result_of(answer)), entry)
            self.note(key, answer)

    def evidence(self, name: str) -> None:
        """Look for evidence of an entry's bound, and write it."""
        path = self.folder / file_name(name)
        entry = read_entry(path)
        checked, bound = entry.checked_lower_bound, entry.bound
        if entry.best is None or (checked is not None and bound is not None and checked.value >= bound and not self.given.all):
            return
        answer = in_process(["--find-evidence", str(path)], self.given.limit)
        if "failed" in answer:
            print(f"{name:<60} {answer['failed']}", flush=True)
            return
        found = Entry.model_validate(answer).checked_lower_bound
        with LOCK:
            entry = read_entry(path)  # which another run may have changed
            self.write(entry.changed(checked_lower_bound=found), entry)
        value = found and found.value
        print(f"{name:<60} {entry.best} {bound} {value} {path.stat().st_size}", flush=True)

    def write(self, entry: Entry, old: Entry) -> None:
        """Write an entry, if it is not as it was."""
        if entry != old:
            write_whole(self.folder / file_name(entry.name), compressed(entry.model_dump(mode="json")))

    def note(self, key: tuple[Any, ...], answer: dict[str, Any]) -> None:
        """Append what was tried to the file of what was tried, and print a line about it."""
        kept = {
            name: value for name, value in answer.items() if name not in ("solution", "history", "evaluation", "statistics")
        }
        with LOCK, self.given.tried.open("a") as stream:
            print(json.dumps({"key": key, **kept}), file=stream, flush=True)
        text = answer.get("failed") or answer.get("refused") or f"{answer['status']} {answer['objective']} {answer['bound']}"
        print(f"{key[0]:<60} {key[2]:<14} {text}", flush=True)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pattern", nargs="?", default="*")
    parser.add_argument("--methods", default="exact")
    parser.add_argument("--limit", type=float, default=10.0, help="seconds of each")
    parser.add_argument("-j", type=int, default=1, help="processes at a time")
    parser.add_argument("--all", action="store_true", help="closed entries, too")
    parser.add_argument("--evidence", action="store_true", help="look for evidence of bounds")
    parser.add_argument("--tried", type=Path, default=Path("build/library-tried.jsonl"))
    parser.add_argument("--folder", type=Path, default=shipped_folder())
    parser.add_argument("--solve", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--find-evidence", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.solve:
        return solve_one(*given.solve, given.limit)
    if given.find_evidence:
        return evidence_of(given.find_evidence)
    run = Run(given)
    with ThreadPoolExecutor(given.j) as executor:
        list(executor.map(run.evidence if given.evidence else run.entry, library(given.folder).matching(given.pattern).names))
    write_index(given.folder)
    return None


if __name__ == "__main__":
    main()
