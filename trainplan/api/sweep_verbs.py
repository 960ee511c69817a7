"""Sweeps: what would change if numbers of a request were others, and what one more unit of each of them is worth."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, fields
from tempfile import TemporaryDirectory
from typing import Any

from trainplan.api.keywords import given, with_fields
from trainplan.api.requests import CHOICES, PlanRequest
from trainplan.prediction.training_costs import CostRates
from trainplan.profiling.base.errors import COMMAND_LINE, InputError, shown
from trainplan.profiling.base.files import FilePath
from trainplan.solvers.core.limits import GAP, TIME_LIMIT_S
from trainplan.studies.pace import Progress
from trainplan.studies.results import read
from trainplan.studies.run import run_study
from trainplan.studies.specification import specification
from trainplan.studies.sweep import axes_of, names_of, points, study_of
from trainplan.studies.sweep import margins as points_of_margins
from trainplan.studies.sweep_results import Sweep

__all__ = ["sweep"]
REQUEST, RATES = PlanRequest(), CostRates()  # defaults of parameters


@dataclass(frozen=True)
class SweepKeywords(PlanRequest, CostRates):
    """The parameters of `sweep`: a request and costs, or their fields as keywords. Never instantiated; it states its
    signature."""

    request: PlanRequest | None = None
    _: KW_ONLY
    rates: CostRates | None = None
    over: Mapping[str, Any] | Iterable[str] = ()
    folder: FilePath | None = None
    grid: bool = False
    margins: bool = True
    method: str = "exact"
    time_limit: float | None = TIME_LIMIT_S
    gap: float = GAP
    seed: int = 0
    jobs: int = 1
    executor: Any = None
    progress: Callable[[Progress], None] | None = None


@with_fields(SweepKeywords, CHOICES)
def sweep(
    request: PlanRequest = REQUEST,
    *,
    rates: CostRates = RATES,
    over: Mapping[str, Any] | Iterable[str] = (),
    folder: FilePath | None = None,
    grid: bool = False,
    margins: bool = True,
    method: str = "exact",
    time_limit: float | None = TIME_LIMIT_S,
    gap: float = GAP,
    seed: int = 0,
    jobs: int = 1,
    executor: Any = None,
    progress: Callable[[Progress], None] | None = None,
) -> Sweep:
    """Plan a request with other numbers, as a study of one request, and say what one more unit of each number is worth.

    Args:
        request: what to plan for, as one object; its fields are keywords, too. Names and files only.
        rates: prices and tokens, from which the costs of a training follow; its fields are keywords, too.
        over: the values of axes, such as {"memory": ["60GiB", "70GiB"], "devices": [32, 64], "network": [0.5, 2]}, or texts
            such as "devices=8..64*2". Axes are memory, devices, batch, sequence, the factors network, nvlink and flops, price,
            and any keyword of the request.
        folder: where the study's results are kept; the same call goes on there (default: they are not kept).
        grid: plan all combinations of the axes' values, in place of one axis at a time.
        margins: also plan with a little more of each number, for its marginal value.
        method: the solution method.
        time_limit: seconds of each search.
        gap: relative gap at which a search may stop.
        seed: of the method.
        jobs: requests that are planned at a time.
        executor: where they are planned: any `concurrent.futures.Executor` (default: on this machine).
        progress: called with a `Progress` as requests end.

    Returns:
        The sweep; `table()` and `frame()` have a row for each request, `margins` the marginal values.

    Raises:
        InputError: for axes and values that cannot be.
        StudyStopped: where the folder's disk is full, or the executor broke.
    """
    named = given(request) | given(rates)
    for name, value in named.items():
        if not isinstance(value, str | int | float | bool | list | tuple | os.PathLike):
            raise InputError(COMMAND_LINE, name, f"is {shown(value)}", "give a name or a file: cells run in other processes")
    kept = {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in named.items()}
    if named.get("measure"):
        raise InputError(COMMAND_LINE, "--measure", "is given", "measure a profile first, and give it as --profile")
    axes = axes_of(over, tuple(field.name for field in fields(PlanRequest) if field.name != "measure"))
    varied = points(kept, axes, grid=grid)
    made = [*varied, *(points_of_margins(kept) if margins else [])]
    limits = {"time_limit": time_limit, "gap": gap}
    study = specification(study_of(f"sweep of {kept.get('model', 'a profile')}", made, method, limits, seed))
    with ExitStack() as stack:
        kept_in = folder if folder is not None else stack.enter_context(TemporaryDirectory(prefix="trainplan-sweep-"))
        run_study(study, kept_in, jobs=jobs, executor=executor, progress=progress)
        rows = {row["name"]: row for row in read(kept_in).rows()}
    found = tuple(rows[name] for name in names_of(made, study.cells))
    return Sweep(tuple(made), found, tuple(axes.get("price", ())))
