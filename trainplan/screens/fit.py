"""The answer to whether something fits, on one screen: yes or no, the least memory and its plan, and what to do next."""

from __future__ import annotations

from trainplan.formulations.joint.within_runtime import FOR
from trainplan.plan_words import run_words
from trainplan.planning.fit import Fit
from trainplan.profiling.base.quantities import plural
from trainplan.screens.plan import NAMES, Row, assumed, free_words, gib, most_held, nothing, other_runtime, parts_of


def fit_screen(fit: Fit, batch_said: bool, command: str) -> list[Row]:
    """The rows of the screen, in order. batch_said: whether the batch was given; command: `plan` and what was asked for, for
    the command that comes next."""
    answer, peak, limit = fit.answer, fit.peak_bytes, fit.limit_bytes
    first: list[Row] = []
    if answer.plan is not None and peak is not None:
        first = [("FITS", [[f"yes: {gib(peak)} of {gib(limit)} GiB a GPU at the least ({free_words(limit - peak)})"]])]
    elif answer.plan is None:
        first = nothing(answer)
    taken = assumed(answer)
    if not batch_said:
        taken += [[f"a batch of {plural(answer.request.samples, 'sample')}, one for each GPU (--batch)"]]
        command += f" --batch {answer.request.samples}"
    more = answer.needed_devices is not None or (answer.needed_devices_unknown or "").endswith("the time was up")
    goes_on = answer.plan is not None or more
    command += "" if answer.plan is not None else " --devices any"
    rows = [
        *first[:1],
        ("LEAST", _least(fit)),
        *first[1:],
        ("ASSUMED", taken),
        ("NEXT", [[command]] * goes_on),
    ]
    return [(label, kept) for label, lines in rows if (kept := [line for line in lines if line])]


def _least(fit: Fit) -> list[list[str]]:
    """The plan of the least memory that is known, its peak, and what is proven of all plans."""
    made = fit.leanest
    if made is None or made.plan is None or fit.peak_bytes is None:
        return [["no plan of little memory is known"]]
    runtime = made.request.options.get(FOR.name)
    lines = [run_words(made.plan), [f"{gib(fit.peak_bytes)} GiB{most_held(made.plan, parts_of(made.run, made.performance))}"]]
    if fit.bound_bytes is None:
        return [*lines, ["not proven to be the least of all plans"]]
    of = "no plan" + (f" for {NAMES.get(runtime, runtime)}" if runtime else "")
    if other_runtime(made.request) is None:
        return [*lines, [f"{of} needs less than {gib(fit.bound_bytes)} GiB (proven)"]]
    # What the runtime holds is bounded by nothing: the proof is of trainplan's own programs.
    text = f"{of} is known to need less; by trainplan's own programs none needs less than {gib(fit.bound_bytes)} GiB"
    return [*lines, [text]]
