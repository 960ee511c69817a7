"""A package of methods that end badly, which other processes find by their path; and the processes that are left."""

from __future__ import annotations

import os
import time
from pathlib import Path

METHODS = '''
"""Methods of layer-strategies that end badly."""

import ctypes, os, signal, sys, time

from trainplan.profiling.base.errors import InputError
from trainplan.solvers.core.method_registry import Entry
from trainplan.solvers.core.search import Outcome


def entry(name, **more):
    return Entry(name, f"faulty_methods:{name}", False, "ends badly", problem="layer-strategies", **more)


def aborts(instance, search):
    print("something is wrong", file=sys.stderr, flush=True)
    os.abort()


def segfaults(instance, search):
    ctypes.string_at(0)


def leaves(instance, search):
    """Ends the process without an answer, as a library's exit does."""
    os._exit(7)


def raises(instance, search):
    raise ZeroDivisionError("no such thing")


def refuses(instance, search):
    raise InputError("instance", "layers", "is odd", "give an even one")


def grows(instance, search):
    """Allocates in Python until there is no memory."""
    kept = []
    while True:
        kept.append(bytearray(2**24))


def grows_below(instance, search):
    """Allocates as C++ does, whose program ends where there is no memory."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    while libc.malloc(ctypes.c_size_t(2**24)):
        pass
    os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\\n")
    os.abort()


def sleeps(instance, search):
    """Does not look at its limit, and cannot be interrupted."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    if os.fork() == 0:  # nor does a process that it has started
        time.sleep(600)
    time.sleep(600)


def waits(instance, search):
    """Sleeps for a second, and finds nothing."""
    time.sleep(1)
    return Outcome()


ABORTS, SEGFAULTS, LEAVES, RAISES, REFUSES = map(entry, ("aborts", "segfaults", "leaves", "raises", "refuses"))
GROWS, GROWS_BELOW, SLEEPS, WAITS = entry("grows", model=True), entry("grows_below"), entry("sleeps"), entry("waits")
'''
NAMES = ("aborts", "segfaults", "leaves", "raises", "refuses", "grows", "grows_below", "sleeps", "waits")


def installed(folder: Path) -> Path:
    """Install the package into a folder, which processes have on their path; return the folder."""
    (folder / "faulty_methods.py").write_text(METHODS)
    information = folder / "faulty_methods-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty-methods\nVersion: 1.0\n")
    points = "\n".join(f"{name} = faulty_methods:{name.upper()}" for name in NAMES)
    (information / "entry_points.txt").write_text(f"[trainplan.methods]\n{points}\n")
    return folder


def marked(mark: str) -> list[int]:
    """The processes whose environment has a text, such as one that a test has set for the processes that it starts."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z" and mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return [number for number in found if number != os.getpid()]


def gone(mark: str, seconds: float = 30.0) -> bool:
    """Whether no process whose environment has the mark is left, within a number of seconds."""
    until = time.monotonic() + seconds
    while marked(mark):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True
