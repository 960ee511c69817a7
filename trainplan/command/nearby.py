"""`plan --devices` and `plan --what-if`: what is near a request, beside the plan for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trainplan import api
from trainplan.command import options, render
from trainplan.command.options import Outcome, flag, panel
from trainplan.planning.fewest_devices import Sizes, numbers_of
from trainplan.planning.result import Planned
from trainplan.planning.what_if import CHANGES, BetterBatch, WhatIf, better_batch, factors_of
from trainplan.profiling.base.errors import InputError
from trainplan.screens.near import batch_rows, sizes_rows, what_if_rows, with_rows
from trainplan.screens.plan import Row

OPTIONS = panel(
    options.SUBJECT,
    [
        flag(
            "devices",
            str | None,
            "Plan on the fewest devices on which something fits: any, or a range such as 16-512; CLUSTER says the kind, such "
            "as h100.",
        ),
        flag(
            "what_if",
            str | None,
            f"Say what other numbers of the cluster would change, such as network=1.2 for 20 % more; of {', '.join(CHANGES)}.",
        ),
    ],
)


@dataclass(frozen=True)
class Near:
    """The plan for a request, and what is near it. answer: None where no number of devices is known that would do."""

    answer: Planned | None
    sizes: Sizes | None = None
    told: WhatIf | None = None
    batch: BetterBatch | None = None

    @classmethod
    def of(cls, devices: str | None, what_if: str | None, values: Mapping[str, Any], progress: Callable[[Any], None]) -> Near:
        """The answers to a request. Raises InputError: for what is near it before it is planned."""
        factors = None if what_if is None else factors_of(what_if)
        sizes = None
        if devices is None:
            answer = api.plan(progress=progress, measuring=progress, **values)
        else:
            numbers_of(devices)
            if values["cluster"] is None:
                raise InputError("command line", "--cluster", "is missing", "give the kind of device, such as h100")
            kept = {name: value for name, value in values.items() if name != "measure" or value}
            sizes = api.plan_sizes(devices=devices, progress=progress, **kept)
            if sizes.first is None:
                return cls(None, sizes)
            answer = sizes.first
        told = None
        if factors is not None and not answer.interrupted:
            told = api.what_if(answer, factors, time_limit=values["time_limit"], progress=progress)
        took = 0.0 if answer.spent is None else answer.spent.seconds
        left = took if values["time_limit"] is None else min(took, values["time_limit"] - took)
        batch = better_batch(answer, left, progress) if left > 0 else None
        return cls(answer, sizes, told, batch)

    def outcome(self) -> Outcome:
        """Where no number of devices is known that would do."""
        assert self.sizes is not None
        rows, proven = sizes_rows(self.sizes)[0], self.sizes.proven
        code = options.INFEASIBLE if proven else options.STOPPED
        return Outcome(self.to_dict(), lambda: render.rows_of_screen(rows), {}, code)

    def rows(self, screen: list[Row]) -> list[Row]:
        """The rows of the plan's screen with what is near it."""
        first, last = ([], []) if self.sizes is None else sizes_rows(self.sizes)
        last = [*last, *([] if self.told is None else what_if_rows(self.told))]
        return with_rows(screen, first, [*last, *([] if self.batch is None else batch_rows(self.batch))])

    def to_dict(self) -> dict[str, Any]:
        """What is near the request as plain values; nothing of what was not asked for or found."""
        near = {"devices": self.sizes, "what_if": self.told, "better_batch": self.batch}
        return {name: each.to_dict() for name, each in near.items() if each is not None}
