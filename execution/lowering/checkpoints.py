"""Checkpoints of lowered plans: what a run has written, found and checked before a process starts.

A folder of checkpoints has one for each step that was kept, `step-00000100`, in the format of torch.distributed.checkpoint,
with `run.json` next to its files, which describes the run. While one is written its folder is named `writing-`, and it is
renamed when every rank is done and its files are on the disk. So what is named `step-` is whole, however the run ended.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainplan.execution.training.tokens import TokenFile
from trainplan.formulations.plan.plan import Plan
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import check_writable, read_data
from trainplan.profiling.models.model import Model

ABOUT = "run.json"
WHOLE = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True)
class Checkpoints:
    """Where a run writes checkpoints, and the checkpoint from which it resumes. folder: the folder to which checkpoints are
    written; None if the run writes none. every: number of steps between two checkpoints; one is also written after the last
    step. resume: the folder of the checkpoint from which the run resumes; None if it begins anew. done: number of steps done
    before that checkpoint, 0 without one. about: facts of the run that each checkpoint records (model, dtype, seed, data), so
    that another run does not resume from it. position: number of samples of the token file that those steps have taken; None if
    it is `done` times the samples per step."""

    folder: str | None = None
    every: int = 0
    resume: str | None = None
    done: int = 0
    about: dict[str, Any] | None = None
    position: int | None = None


def step_folder(folder: str, step: int) -> Path:
    """The path of the checkpoint of a step in a folder of checkpoints: step 100 -> 'step-00000100'."""
    return Path(folder, f"step-{step:08d}")


def checkpoints_of(
    plan: Plan,
    model: Model,
    seed: int,
    steps: int,
    folder: str | os.PathLike[str] | None,
    every: int | None,
    resume: Any,
    data: TokenFile | None = None,
) -> Checkpoints | None:
    """Where a run of a plan writes checkpoints and from which one it resumes; None if neither is requested.

    model: the model that runs. seed, steps: the run's seed, and its number of steps, including those before a checkpoint. data:
    the token file that it trains on, None for synthetic samples; a resumed run continues after the samples that were taken,
    also with another batch size. folder: the value of `--checkpoint`, a folder to write to; None: no checkpoints are written.
    every: of `--checkpoint-every`, steps between two of them; None: only after the last step. resume: of `--resume`, a
    checkpoint or a folder of checkpoints, whose last one counts; None: the run begins anew. Raises InputError if these values
    do not fit each other or the run.
    """
    about: dict[str, Any] = {"model_digest": model.digest, "dtype": model.dtype, "seed": seed}
    about |= {"samples": plan.batch.global_samples} if data is None else {"data": data.digest}
    about |= {
        "master": plan.precision.for_model(model).master,
        "sequence": model.tokens,
        "hidden": model.units[-1].sublayer.hidden,
    }
    if every is not None and folder is None:
        raise InputError("command line", "--checkpoint-every", f"is {every}", "give --checkpoint with a folder, too")
    if every is not None and every < 1:
        raise InputError("command line", "--checkpoint-every", f"is {every}", "give 1 or more")
    if folder is None and resume is None:
        return None
    kept = None if folder is None else _writable_folder(Path(folder))
    if resume is None:
        return Checkpoints(kept, every or steps, about=about)
    path, done, written = _last(Path(resume))
    for name, value in about.items():
        if written.get(name) != value:
            fix = f"run what it is of: {name} {written.get(name)!r}"
            raise InputError(str(path), name, f"is {written.get(name)!r}, and of this run {value!r}", fix)
    if steps <= done:
        fix = f"give more than {done}: steps are counted from the first run's first"
        raise InputError("command line", "--steps", f"is {steps}, and {path} is of {done}", fix)
    return Checkpoints(kept, every or steps, str(path), done, about, written.get("position"))


def _writable_folder(folder: Path) -> str:
    """The absolute path of a folder, created if needed. Raises InputError if it cannot be created or written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError("command line", "--checkpoint", f"is {str(folder)!r}: {error.strerror}", "give a folder") from None
    check_writable(folder / ABOUT)
    return str(folder.absolute())


def _last(folder: Path) -> tuple[Path, int, dict[str, Any]]:
    """The last whole checkpoint in a folder of checkpoints, or the folder itself if it is a checkpoint. Returns (the
    checkpoint's path; number of training steps done before it; the facts of the run that it records, such as model_digest,
    dtype and seed, as a dict). Raises InputError if there is no whole checkpoint."""
    candidates = [folder] if WHOLE.fullmatch(folder.name) else folder.glob("step-*")
    whole = {int(match[1]): path for path in candidates if (match := WHOLE.fullmatch(path.name)) and (path / ABOUT).exists()}
    if not whole:
        fix = "give a folder that `run --checkpoint` has written to, or one of the step-... in it"
        raise InputError("command line", "--resume", f"is {str(folder)!r}, which has no whole checkpoint", fix)
    done = max(whole)
    return whole[done].absolute(), done, read_data(whole[done] / ABOUT)
