"""The versions and the machine that a cell's result depends on: both are part of its key, and of its row."""

from __future__ import annotations

import hashlib
import os
import platform
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from trainplan.profiling.base.plugins import plugins
from trainplan.solvers.core.solve import versions as solver_versions
from trainplan.studies.cells import canonical

DIGITS = 16
PACKAGES = ("trainplan", "trainplan.profiling", "trainplan.formulations", "trainplan.solvers", "trainplan.execution")
# Folders of the package whose files decide no result: how results are shown, kept and collected. In `studies`, DECIDING do.
APART = {"__pycache__", "command", "libraries", "library", "pictures", "reports", "screens", "studies"}
DECIDING = ("answers.py", "changes.py")
SUFFIXES = (".py", ".json", ".yaml", ".keys", ".jinja", ".gz")
PLUGINS = ("trainplan.problems", "trainplan.methods", "trainplan.families", "trainplan.exports")  # groups of entry points


@cache
def versions() -> dict[str, str]:
    """Versions of Python, trainplan, the solvers' packages and installed plug-ins: {name: version}. Where trainplan is not an
    installed release, its version ends with a digest of its source files, as in "0.1.0+3f2a..."."""
    numbers = dict(solver_versions())
    for group in PLUGINS:
        for entry in plugins(group).values():
            if (distribution := entry.dist) is not None:
                numbers[distribution.name] = distribution.version
    if (digest := _source_digest()) is not None:
        numbers["trainplan"] = f"{numbers.get('trainplan', '0')}+{digest}"
    return numbers


@cache
def machine() -> dict[str, Any]:
    """The machine of this process: processor (the model's name), cores, memory_bytes and system."""
    try:
        memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        memory_bytes = 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    system = f"{platform.system()} {platform.machine()}"
    return {"processor": _processor(), "cores": cores, "memory_bytes": memory_bytes, "system": system}


@cache
def machine_id() -> str:
    """The first digits of the SHA-256 of `machine`."""
    return hashlib.sha256(canonical(machine()).encode()).hexdigest()[:DIGITS]


def _processor() -> str:
    """The name of this machine's processor, from /proc/cpuinfo on Linux."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return platform.processor() or platform.machine()


def _source_digest() -> str | None:
    """The first digits of the SHA-256 of trainplan's own files that decide results; None for an installed release, whose
    version says what they are."""
    folders = [Path(import_module(name).__path__[0]).resolve() for name in PACKAGES]
    if folders[0].is_relative_to(Path(sysconfig.get_path("purelib")).resolve()):
        return None
    digest = hashlib.sha256()
    for folder in folders:
        for file in _files(folder):
            digest.update(f"{file.name} {file.stat().st_size} ".encode() + file.read_bytes())
    return digest.hexdigest()[:DIGITS]


def _files(folder: Path) -> Iterator[Path]:
    """The files below a folder that decide results, in a fixed order."""
    for path, folders, names in os.walk(folder):
        if "studies" in folders:
            yield from (Path(path, "studies", name) for name in DECIDING)
        folders[:] = sorted(set(folders) - APART)
        yield from (Path(path, name) for name in sorted(names) if name.endswith(SUFFIXES))
