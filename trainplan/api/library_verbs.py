"""The library of instances with best known solutions, bounds and evidence."""

from __future__ import annotations

from trainplan.libraries.catalogue import Library
from trainplan.libraries.catalogue import library as library_in
from trainplan.profiling.base.files import FilePath

__all__ = ["library"]


def library(folder: FilePath | None = None) -> Library:
    """The library of instances: `for entry in tp.library()`, `tp.library()["chain/gpt2"].instance()`, `tp.library().frame()`.

    An entry has `instance()`, `solution`, `best` and `bound` (both in ns), `gap`, `status`, `about`, and who found what when.

    Args:
        folder: a folder of entries (default: those that come with the package).

    Returns:
        The library, with `matching("joint/*", status="hard")` for a part of it.

    Raises:
        InputError: for a folder that does not exist, or a file in it that is no entry.
    """
    return library_in(folder)
