"""Which runtime runs a plan: torch's own pieces where they can carry it and the options of the run, else the plan's program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

from trainplan.execution.runtimes.torch.refusals import refusals
from trainplan.formulations.plan.plan import Plan
from trainplan.profiling.base.errors import InputError, one_of
from trainplan.profiling.models.model import Model

Runtime = Literal["torch", "program"]
RUNTIMES: tuple[Runtime, ...] = get_args(Runtime)
BACKEND, TRANSPORT = "serial", "direct"  # defaults of programs


class Choice(NamedTuple):
    """The runtime that runs a plan. why: the reason, as text, why it is not torch; None if it is torch, or if the user
    requested the program."""

    runtime: Runtime
    why: str | None = None


def runtime_of(
    by: str | None,
    plan: Plan,
    model: Model,
    *,
    backend: str = BACKEND,
    transport: str = TRANSPORT,
    measure: bool = False,
    measure_memory: bool = False,
    training: Sequence[str] = (),
    where: str = "plan",
) -> Choice:
    """Choose the runtime that runs a plan as this model: torch's own parallel modules, or trainplan's executor of the plan's
    program. by: 'torch' or 'program' if the user requested one; None: torch if it can carry plan and options.

    backend, transport, measure, measure_memory: the options of the run. Any of the first three, if not the default, requires
    the program; measure_memory does so unless torch is requested, since memory is predicted for the program and not for torch's
    modules. training: the given options that only torch has, such as '--data' and '--checkpoint'. where: the plan's name in
    messages. Raises InputError if options contradict each other or torch is requested and cannot carry the plan.
    """
    if by == "program":
        if training:
            fix = "leave it out, or give --by torch: programs train on made-up samples and keep no checkpoints"
            raise InputError("command line", training[0], "is given with --by program", fix)
        return Choice("program")
    if by not in (None, "torch"):
        raise InputError("command line", "--by", f"is {by!r}", one_of(str(by), RUNTIMES))
    by = "torch" if training else by
    options = {"--backend": backend != BACKEND and backend, "--transport": transport != TRANSPORT and transport}
    options["--measure"] = measure and "on"
    for name, value in options.items():
        if value and by is None:
            return Choice("program", f"{name} {value} is of programs" if name != "--measure" else f"{name} times instructions")
        if value:
            raise InputError("command line", name, f"is {value!r} with --by torch", "leave one of both out: it is of programs")
    if measure_memory and by is None:
        return Choice("program", "--measure-memory is of what is predicted; give --by torch for that of torch")
    for refusal in refusals(plan, model):
        if by is None:
            return Choice("program", f"{refusal.field} {refusal.problem}, which torch cannot carry")
        raise InputError(where, refusal.field, f"{refusal.problem}, which torch cannot carry", refusal.fix)
    return Choice("torch")
