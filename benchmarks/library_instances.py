"""Write the library's entries, without bounds, for the requests in library.yaml, and for profiles of Galvatron's engine.

An entry that is there already keeps its bounds, unless its instance has changed; an entry that is no longer stated is deleted.

    python benchmarks/library_instances.py [--folder FOLDER]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import yaml

import trainplan as tp
from trainplan.libraries.adding import entry_of
from trainplan.libraries.catalogue import library, shipped_folder, write_entry, write_index
from trainplan.libraries.records import Entry, file_name

HERE = Path(__file__).parent
# By name: memory in GiB, samples of a step, a divisor of the links' bandwidth, and what the instance shows.
ENGINE = {
    "engine/invented-6-layers-b16-12GiB": (12, 16, 1, "Memory for all strategies."),
    "engine/invented-6-layers-b32-8GiB": (8, 32, 1, "Memory is at the edge of what anything fits into."),
    "engine/invented-6-layers-b32-8GiB-slow": (8, 32, 4, "Links of a quarter of the bandwidth: pipelines pay."),
    "engine/invented-6-layers-b64-16GiB": (16, 64, 1, "Many samples: many numbers of micro-batches to choose from."),
    "engine/invented-6-layers-b8-24GiB": (24, 8, 1, "The engine keeps back a fifth of memory above 20 GiB."),
}


def stated() -> list[Entry]:
    """All entries that are stated here and in library.yaml, without bounds."""
    entries = []
    for problem, instances in yaml.safe_load((HERE / "library.yaml").read_text(encoding="utf-8")).items():
        for name, given in instances.items():
            request: dict[str, Any] = given["request"]
            source = {"paper": given["paper"]} if "paper" in given else {}
            source |= {"model": request["model"], "cluster": request["cluster"]}
            entries.append(entry_of(tp.build(problem, **request), name, given["about"], source, request))
    return [*entries, *engine_entries()]


def engine_entries() -> list[Entry]:
    """Entries of galvatron-engine: a profile invented for trainplan's tests, which Hetu-Galvatron's own code was run with."""
    sys.path.insert(0, str(HERE.parent))
    from tests.helpers.published import invented
    from trainplan.papers.galvatron_engine.instances import build

    about = "An invented profile of 6 layers on 8 devices, under the cost model of Galvatron's engine, {} samples a step. {}"
    source = {"profile": "invented", "paper": "Galvatron"}
    return [
        entry_of(build(invented(slow), memory * 2**30, batch), name, about.format(batch, text), source)
        for name, (memory, batch, slow, text) in ENGINE.items()
    ]


def main() -> None:
    """The command: write the entries, and print how many there are and their size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=shipped_folder())
    folder = parser.parse_args().folder
    known, entries = library(folder), stated()
    for entry in entries:
        if entry.name not in known or (old := known[entry.name]).instance_hash != entry.instance_hash:
            write_entry(folder, entry)
            print("wrote", entry.name)
        elif (old.about, old.source, old.request) != (entry.about, entry.source, entry.request):
            write_entry(folder, old.changed(about=entry.about, source=entry.source, request=entry.request))
    names = {entry.name for entry in entries}
    for name in known.names:
        if name not in names:
            print("deleted", name)
            (folder / file_name(name)).unlink()
    write_index(folder)
    size = sum(path.stat().st_size for path in folder.glob("*.json.gz"))
    print(f"{len(library(folder))} entries, {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
