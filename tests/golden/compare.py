"""Compare two recordings: print each field that differs, and exit with 1 if there is one.

    python -m tests.golden.compare BEFORE AFTER [--ignore FIELD]...

Requests that only one of the files has, and those that were not answered in time, are counted and not compared.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from tests.golden.record import Records, read


def differences(before: Records, after: Records, ignored: Collection[str] = ()) -> Iterator[str]:
    """A line for each field that differs, of the requests that both have."""
    for key, was in before.items():
        now = after.get(key, was)
        if "unfinished" in was or "unfinished" in now:
            continue
        for name in sorted(was.keys() | now.keys()):
            if name not in ignored and was.get(name) != now.get(name):
                yield f"{key}: {name} was {was.get(name)}, is {now.get(name)}"


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.golden.compare", description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--ignore", action="append", default=[], help="a field that may differ, such as instance")
    given = parser.parse_args(words)
    before, after = read(given.before), read(given.after)
    found = list(differences(before, after, given.ignore))
    print(*found, sep="\n")
    both = before.keys() & after.keys()
    open_ones = sum("unfinished" in before[key] or "unfinished" in after[key] for key in both)
    print(f"{len(both) - open_ones} requests compared, {len(found)} fields differ; {open_ones} were not answered in time,")
    print(f"{len(before.keys() - both)} are only before, {len(after.keys() - both)} only after")
    return bool(found)


if __name__ == "__main__":
    raise SystemExit(main())
