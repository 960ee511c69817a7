"""Results of studies: what `study` has written into a folder, read again."""

from __future__ import annotations

from trainplan.profiling.base.files import FilePath
from trainplan.studies.results import Study, read

__all__ = ["read_study"]


def read_study(folder: FilePath) -> Study:
    """Read the results of a study, also while it runs.

    Args:
        folder: the folder that `trainplan study -o` writes.

    Returns:
        The study, with `rows()`, `frame()`, `sql(query)`, `summary()`, `failures()`, `contradictions()`, `picture(kind)` and
        `report()`.

    Raises:
        InputError: for a folder that holds no study, or a file of it that cannot be read.
    """
    return read(folder)
