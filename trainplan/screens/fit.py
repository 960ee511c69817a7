"""One screen that says whether training fits into memory: yes or no, the least memory and its plan, and what to do next."""

from __future__ import annotations

from trainplan.formulations.joint.within_runtime import FOR
from trainplan.formulations.runtimes import short_title
from trainplan.plan_words import run_words, whose_numbers
from trainplan.planning.fit import Fit
from trainplan.planning.result import predicted_by_runtime
from trainplan.profiling.base.quantities import plural
from trainplan.screens.plan import Row, assumption_lines, other_runtime, rows_without_plan
from trainplan.screens.predicted import free_words, gib, most_held, parts_of


def fit_screen(fit: Fit, batch_given: bool, command: str) -> list[Row]:
    """The rows of the terminal screen that states whether a request (model, cluster, batch) fits into memory, in order; a row
    is a label and its lines.

    fit: the answer. batch_given: whether the user gave a batch size. command: the text `trainplan plan` with the user's
    options, from which the suggested next command is made.
    """
    answer, peak, limit = fit.answer, fit.peak_bytes, fit.limit_bytes
    first: list[Row] = []
    if answer.plan is not None and peak is not None:
        first = [("FITS", [[f"yes: {gib(peak)} of {gib(limit)} GiB a GPU at the least ({free_words(limit - peak)})"]])]
    elif answer.plan is None:
        first = rows_without_plan(answer)
    taken = assumption_lines(answer)
    if not batch_given:
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
    """Lines for the screen on the least memory: the known plan that needs least, its peak, and what is proven about all plans.
    A line is a list of texts that are printed with dots between them.
    """
    leanest = fit.leanest
    if leanest is None or leanest.plan is None or fit.peak_bytes is None:
        return [["no plan of little memory is known"]]
    runtime = leanest.request.options.get(FOR.name)
    held = most_held(leanest.plan, parts_of(leanest.run, leanest.performance))
    lines = [run_words(leanest.plan), [f"{gib(fit.peak_bytes)} GiB{held}", whose_numbers(leanest.plan)]]
    if fit.bound_bytes is None:
        return [*lines, ["not proven to be the least of all plans"]]
    of = "no plan" + (f" for {short_title(runtime)}" if runtime else "")
    if other_runtime(leanest.request) is None or predicted_by_runtime(leanest.instance):
        return [*lines, [f"{of} needs less than {gib(fit.bound_bytes)} GiB (proven)"]]
    # The search was not by the runtime's memory: the proof is about trainplan's own programs.
    text = f"{of} is known to need less; by trainplan's own programs none needs less than {gib(fit.bound_bytes)} GiB"
    return [*lines, [text]]
