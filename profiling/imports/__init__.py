"""Profiles from other projects' files, of Hetu-Galvatron, Piper and H3T, and plain tables of times. All their numbers
have the origin `imported`."""

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
        paths: files of Galvatron, Piper or H3T, or tables (`.npy`, `.csv`; see `table`).
        format: what they must be of.
        cluster: links, memory and name of the device, which Galvatron's files and tables may leave open.
        layers: of Galvatron; a list where the files have several types of layers, such as the 24 of an encoder and the 24 of a
            decoder.
        sequence: tokens of a sample, of Galvatron where several were profiled, and of tables; a list likewise.
        hidden_size: of Galvatron and of tables; a list likewise.
        rows: of H3T and tables, the samples of a device that the times are for; left out, H3T's one sample is that whole
            batch.
        memory_bytes: of a device.
        tp: of tables, the degrees of the columns.
        communication: of tables, `included` or `excluded`.
        name: of the profile.

    Returns:
        The profile.

    Raises:
        InputError: for files of no known format, or what they leave open.
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
    for name, target in FORMATS.items():
        if import_module(target).recognises(source.data):
            return name
    if source.data.get("format") == "trainplan-profile":
        raise source.fail("", "is a profile of trainplan already", "load it as it is")
    keys = ", ".join(shown(key) for key in list(source.data)[:3]) or "none"
    raise source.fail("", f"is of no known format (its first keys: {keys})", f"give one of: {', '.join(FORMATS)}")
