"""`trainplan fit`: whether a model fits on a cluster."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from trainplan import api
from trainplan.command import bars, options, render
from trainplan.command.options import Command, Outcome, flag, flags_of, panel, takes
from trainplan.command.planning import LIKE_HELP
from trainplan.planning.presets import default_parameters
from trainplan.screens.fit import fit_screen

LEFT_OUT = ("measure",)  # of the request: a model that may not fit is not measured


def command(name: str, words: Sequence[str]) -> Command:
    """The command."""
    like = panel(options.SUBJECT, [flag("like", str | None, LIKE_HELP)])
    request = [argument for argument in options.REQUEST if argument.name not in LEFT_OUT]

    @takes(options.WORDS, like, request, flags_of(default_parameters()))
    def fit(**values: Any) -> Outcome:
        """Say whether a model fits on a cluster, and the least memory of a GPU that a plan of it needs; nothing is searched for
        speed.

        The memory is that of `plan`: predicted by the programs of the plan, with --for as that runtime holds it. Exit code 0
        where something fits, 1 where it is proven that nothing does, 3 where neither is known."""
        values = options.from_words(values)
        with bars.planning() as progress:
            found = api.fit(progress=progress, **values)
        code = {True: options.FINE, False: options.INFEASIBLE, None: options.STOPPED}[found.fits]
        rows = fit_screen(found, values["batch"] is not None, _plan_command(words))
        return Outcome(found.to_dict(), lambda: render.rows_of_screen(rows), {}, code)

    return fit


def _plan_command(words: Sequence[str]) -> str:
    """`plan` of the same words."""
    kept = [word for word in words if word not in ("--json",)]
    place = kept.index("fit") if "fit" in kept else -1
    return "trainplan plan " + shlex.join(kept[place + 1 :])
