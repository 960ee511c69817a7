"""Profiles from files of other projects (Hetu-Galvatron, Piper, H3T) and from plain tables of times; all their numbers have
the origin `imported`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib import import_module

from trainplan.profiling.base.errors import InputError, shown
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.imports.source import ByType, Options, Source, read_source
from trainplan.profiling.profiles import Profile

Reader = Callable[[Sequence[Source], Options], Profile]
FORMATS = {name: f"{__name__}.{name}" for name in ("galvatron", "piper", "h3t", "table")}


def import_profile(
    paths: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    *,
    format: str | None = None,
    cluster: Cluster | None = None,
    layers: ByType | None = None,
    sequence: ByType | None = None,
    hidden_size: ByType | None = None,
    rows: int | None = None,
    memory_bytes: int | None = None,
    tp: Sequence[int] | None = None,
    communication: str | None = None,
    name: str | None = None,
) -> Profile:
    """One profile from all the files of one model. Each file's format is recognised by its content.

    Args:
        paths: files of Galvatron, Piper or H3T, or tables (`.npy`, `.csv`).
        format: the format that the files must have: galvatron, piper, h3t or table (default: any, the same for all).
        cluster: links, memory and name of the device, which Galvatron's files and tables may leave open.
        layers: the number of layers, for Galvatron; a list if the files have several types of layers, such as the 24 of an
            encoder and the 24 of a decoder.
        sequence: tokens per sample, for Galvatron if several lengths were profiled, and for tables; a list likewise.
        hidden_size: numbers of a token's hidden state, for Galvatron and tables; a list likewise.
        rows: for H3T and tables, the samples of a device that the times are for; by default 1, and the one sample of an H3T
            file stands for its whole batch.
        memory_bytes: usable memory of a device.
        tp: for tables, the tensor-parallel degrees of the columns.
        communication: for tables, `included` or `excluded`: whether times contain the communication of tensor parallelism.
        name: the profile's name (default: one from the files).

    Returns:
        The profile.

    Raises:
        InputError: for files of no known format, or for values that they leave open.
    """
    paths = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not paths:
        raise InputError("command line", "files", "are none", "name the files of one profile")
    if format is not None and format not in FORMATS:
        raise InputError("command line", "--format", f"is {shown(format)}", f"give one of: {', '.join(FORMATS)}")
    sources = [read_source(path) for path in paths]
    formats = [_recognised(source) for source in sources]
    for source, recognised in zip(sources, formats, strict=True):
        if recognised != (format or formats[0]):
            wanted = format or f"{formats[0]}, as {paths[0]} is"
            raise source.fail("", f"is a file of {recognised}, not of {wanted}", "give files of one format")
    module = import_module(FORMATS[formats[0]])
    options = Options(cluster, layers, sequence, hidden_size, rows, memory_bytes, name, tp, communication)
    options.check(formats[0], module.OPTIONS)
    read: Reader = module.read
    return read(sources, options)


def _recognised(source: Source) -> str:
    """The name of a file's format, such as "galvatron", recognised by its content. Raises InputError if it has no known
    format."""
    for name, target in FORMATS.items():
        if import_module(target).recognises(source.data):
            return name
    if source.data.get("format") == "trainplan-profile":
        raise source.fail("", "is a profile of trainplan already", "load it as it is")
    keys = ", ".join(shown(key) for key in list(source.data)[:3]) or "none"
    raise source.fail("", f"is of no known format (its first keys: {keys})", f"give one of: {', '.join(FORMATS)}")
