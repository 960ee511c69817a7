"""Calls the `trainplan` command as users do: each call is a process of its own, forked from one with the imports done."""

from __future__ import annotations

import os
import sys
from multiprocessing import get_context
from pathlib import Path
from subprocess import CompletedProcess
from tempfile import TemporaryDirectory

from tests.helpers import warm

PROCESSES = get_context("forkserver")
PRELOADED = [  # of what commands import when they run, what most of them do
    "trainplan.api.configuration_verbs",
    "trainplan.api.plan_verbs",
    "trainplan.api.problem_verbs",
    "trainplan.command.app",
    "trainplan.command.catalogue",
    "trainplan.command.importing",
    "trainplan.command.plan_files",
    "trainplan.command.planning",
    "trainplan.command.problems",
    "trainplan.command.running",
    "trainplan.command.sweeping",
    "trainplan.execution.runtimes.megatron.export",
    "trainplan.formulations.layer_strategies.definition",
    "trainplan.formulations.pipeline.definition",
    "trainplan.imported_runs.to_plan",
    "trainplan.profiling.models.families.bert",
    "trainplan.profiling.models.families.gpt2",
    "trainplan.profiling.models.families.llama",
    "trainplan.screens.run",
    "trainplan.solvers.joint.branch_and_bound",
    "trainplan.solvers.joint.interleaved",
    "trainplan.solvers.joint.methods",
]
PROCESSES.set_forkserver_preload(PRELOADED)


def call(*arguments: str | Path, folder: Path | None = None, columns: str | None = None) -> CompletedProcess[str]:
    """Run `trainplan` with these arguments in a folder; its exit code and both of its outputs. columns: the width of lines."""
    words = ["trainplan", *(str(argument) for argument in arguments)]
    with TemporaryDirectory() as scratch:
        streams = [Path(scratch) / name for name in ("output", "error")]
        os.unsetenv("COLUMNS")  # readline sets it for new processes when it is imported, and os.environ does not show it
        process = PROCESSES.Process(target=_run, args=(words, folder or Path.cwd(), warm.folder, columns, *streams))
        process.start()
        process.join()
        return CompletedProcess(words, process.exitcode or 0, *(stream.read_text() for stream in streams))


def _run(words: list[str], folder: Path, sockets: str | None, columns: str | None, output: Path, error: Path) -> None:
    for descriptor, stream in ((1, output), (2, error)):
        os.dup2(os.open(stream, os.O_CREAT | os.O_WRONLY | os.O_APPEND), descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(folder)
    if columns is not None:
        from trainplan.command import printing

        os.environ["COLUMNS"] = columns
        printing.out.width = int(columns)  # which was read when it was imported
    sys.argv = words
    if sockets is not None:
        warm.install(sockets)
    from trainplan.command import main

    main()
