"""What a cell of a study costs in addition to solving: processes, limits, and storing its row.

A study of tiny instances (one to five layers) by the exact method, with a process for each cell as in any study. Printed are
its wall time, and for each cell: the wall time times the jobs, the seconds that the method took, the difference, which is the
overhead (the aim is less than 30 ms), and the processor time of all processes. On a machine that does other work the wall times
contain that work; the processor times do not.

    python -m benchmarks.studies_overhead --cells 10000 -j 2
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.helpers.instances import random_instance
from trainplan.studies.run import run_study
from trainplan.studies.specification import specification
from trainplan.studies.storage import read_rows

FILES = 20  # instances


def processor_seconds() -> float:
    """The processor seconds of this process and of all that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def main() -> None:
    """Run the study and print its costs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("-j", "--jobs", type=int, default=2)
    parser.add_argument("--method", default="exact")
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        for number in range(FILES):
            instance = random_instance(number, layers=5)
            Path(folder, f"{number:02}.json").write_text(json.dumps(instance.to_dict()))
        study = {"name": "overhead", "instances": f"{folder}/*.json", "methods": arguments.method, "limits": {"time_limit": 10}}
        study |= {"repeats": max(1, arguments.cells // FILES)}
        cells = specification(study)
        began, before = time.perf_counter(), processor_seconds()
        run_study(cells, Path(folder, "results"), jobs=arguments.jobs)
        wall, processor = time.perf_counter() - began, processor_seconds() - before
        rows = read_rows(Path(folder, "results"))
    count = len(rows)
    assert count == len(cells.cells), "a cell has no row"
    solving = sum(row["seconds"] for row in rows) / count
    share = wall * arguments.jobs / count
    print(f"{count} cells with -j {arguments.jobs}: {wall:.1f} s")
    times = f"{1e3 * share:.1f} ms of a worker, {1e3 * solving:.1f} ms of it solving"
    print(f"of a cell: {times}: overhead {1e3 * (share - solving):.1f} ms")
    print(f"of a cell: {1e3 * processor / count:.1f} ms of a processor, solving included")
    own = sum(row["processor_seconds"] for row in rows) / count
    print(f"of a cell: {1e3 * own:.1f} ms of a processor in its own process")


if __name__ == "__main__":
    main()
