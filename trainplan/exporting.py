"""A plan for another runtime: torch.distributed.pipelining, torchtitan or Megatron-LM."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from trainplan.execution.exports import megatron, torch_pipelining, torchtitan
from trainplan.execution.exports.common import Export
from trainplan.formulations.plan import Plan, load_plan
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import Source, check_writable, unwritable, write_whole

TARGETS: dict[str, Callable[[Plan, str], Export]] = {
    "torch": torch_pipelining.export,
    "torchtitan": torchtitan.export,
    "megatron": megatron.export,
}


def export(source: Plan | Source, to: str) -> Export:
    """A plan in the words of `to`, one of TARGETS. Raises InputError.

    What the runtime cannot say is refused where it would change what is computed, or where work lies; where it costs time or
    memory alone it is named in `left_out`. The modules of `execution.exports` tell which is which for each runtime.
    """
    if to not in TARGETS:
        raise InputError("command line", "--to", f"is {to!r}", f"give one of: {', '.join(TARGETS)}")
    plan = source if isinstance(source, Plan) else load_plan(source)
    return TARGETS[to](plan, os.fspath(source) if isinstance(source, str | os.PathLike) else "plan")


def targets_of(found: Export, output: Path) -> dict[Path, str]:
    """Where each file goes: into `output`, a folder that is made, or to `output` itself if there is one file and no folder."""
    if len(found.files) == 1 and not output.is_dir():
        return dict(zip([output], found.files.values(), strict=True))
    return {output / name: text for name, text in found.files.items()}


def write(found: Export, output: Path) -> list[Path]:
    """Write the files, each whole or not at all. Raises InputError."""
    targets = targets_of(found, output)
    if output not in targets:
        try:
            output.mkdir(exist_ok=True)
        except OSError as error:
            raise unwritable(output, error.errno) from None
    for path in targets:
        check_writable(path)
    for path, text in targets.items():
        write_whole(path, text)
    return list(targets)
