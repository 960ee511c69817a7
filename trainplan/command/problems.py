"""`trainplan build`, `solve`, `compare-methods`, `frontier`, `check`, `methods` and `schema`: instances of single problems."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from trainplan import api
from trainplan.api.requests import SearchOptions
from trainplan.command import bars, options, render
from trainplan.command.options import Command, Outcome, command_with, exit_code, flag, flags_of, options_of, output, word
from trainplan.formulations.problem import problem, problem_names, problem_of
from trainplan.pictures import drawn
from trainplan.planning.memory_frontier import LIMITS, memory_limits
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import check_readable, json_text, write_whole
from trainplan.profiling.base.quantities import parse_bytes
from trainplan.solvers.core.method_registry import methods as methods_of

MOST_LIMITS = 1000  # memory limits of a frontier, at most
METHODS = flag("method", list[str] | None, "A method; may be repeated. [default: all]")
INSTANCE = word("instance", Path, "An instance file.")
PROBLEM_HELP = "The problem; its own options are listed by `trainplan build PROBLEM --help-all`."


def command(name: str, words: Sequence[str]) -> Command:
    """Return the function that typer runs for one of the commands `build`, `solve`, `compare-methods`, `frontier`, `check`,
    `methods` and `schema`.

    name: the command's name. words: the command line, without the program's name; `build` has the options of the problem that
    it names.
    """
    functions = {"solve": solve, "compare-methods": compare_methods, "frontier": frontier, "check": check}
    functions |= {"methods": methods, "schema": schema}
    return _build(words) if name == "build" else functions[name]


def _build(words: Sequence[str]) -> Command:
    """Return the function that typer runs for the command `build`, with the options of the optimization problem that its
    command line (`words`) names."""
    named = next((text for text in words if text in problem_names()), None)
    parameters = problem(named).parameters if named else ()
    names = ", ".join(problem_names())
    about = output("Write the instance here. [default: standard output]")

    @command_with([word("problem", str, f"{PROBLEM_HELP} {names}.")], options.REQUEST, flags_of(parameters), [about])
    def build(output: Path | None, **values: Any) -> Outcome:
        """Make an instance of a problem from a model and a cluster, or from a profile alone."""
        with bars.measuring(values["measure"]) as values["measuring"]:
            instance = api.build(values.pop("problem"), **values)
        if output is None:
            return Outcome(instance.to_dict(), lambda: print(json.dumps(instance.to_dict())))
        text = json_text(instance.to_dict()) + "\n"
        check_readable(output, text)
        write_whole(output, text)
        about: dict[str, Any] = {"output": str(output), **problem_of(instance).size(instance), "instance_hash": instance.digest}
        rows = [(name, str(value)) for name, value in about.items()]
        if layers := instance.provenance.get("lifted"):
            about["lifted"] = layers
            rows.append(("lifted", render.lifted(layers)))
        return Outcome(about, partial(render.pairs, rows))

    return build


@command_with([INSTANCE], options.SEARCH, [output("Write the solution here."), options.PICTURE])
def solve(instance: Path, picture: Path | None, **values: Any) -> Outcome:
    """Solve an instance with one method; the answer is checked and its bound named."""
    loaded = api.load(instance)
    drawing = problem_of(loaded).picture
    if picture and drawing is None:
        names = " or ".join(name for name in problem_names() if problem(name).picture)
        raise InputError("command line", "--picture", f"is of a {loaded.problem} instance", f"give an instance of {names}")
    with bars.searching(f"solving ({values['method']})") as progress:
        result = api.solve(loaded, progress=progress, **values)
    files: dict[str, Callable[[], Any]] = {}
    if (solution := result.solution) is not None:
        files["output"] = lambda: json.dumps(solution) + "\n"
        files["picture"] = lambda: drawn(str(drawing))(loaded, problem_of(loaded).load_solution(solution))
    return Outcome(result.to_dict(), partial(render.solved, loaded, result), files, exit_code(result))


@command_with(
    [
        INSTANCE,
        flag(
            "least",
            str | None,
            "The smallest limit, such as 4GiB. [default: the least that anything fits into]",
            names=("--from",),
        ),
        flag("most", str | None, "The largest limit. [default: what the shortest step needs]", names=("--to",)),
        flag("points", int, "Limits, evenly spaced.", LIMITS),
        METHODS,
        options.EACH_LIMIT,
        *options_of(SearchOptions, "gap", "seed"),
        options.PICTURE,
    ]
)
def frontier(instance: Path, least: str | None, most: str | None, points: int, **values: Any) -> Outcome:
    """Solve an instance under a row of memory limits, in place of its own: the time of a step against memory."""
    if (least is None) != (most is None):
        raise InputError("command line", "--from", "and --to are not both given", "give both, or neither")
    if not 2 <= points <= MOST_LIMITS:
        raise InputError("command line", "--points", f"is {points}", f"give 2 to {MOST_LIMITS}")
    loaded = api.load(instance)
    if least is None or most is None:
        limits = memory_limits(loaded, points)
    else:
        ends = parse_bytes(least, "--from"), parse_bytes(most, "--to")
        if ends[0] >= ends[1]:
            raise InputError("command line", "--from", f"is {least}, and --to {most}", "give the smaller one first")
        limits = [ends[0] + (ends[1] - ends[0]) * step // (points - 1) for step in range(points)]
    with bars.sweeping("solving") as progress:
        solved = api.frontier(loaded, limits, values.pop("method"), progress=progress, **values)
    stopped = any(point.result.stopped == "interrupt" for point in solved)
    files = {"picture": partial(api.draw_frontier, solved)}
    show = partial(render.frontier, solved)
    return Outcome(solved.to_list(), show, files, options.STOPPED if stopped else options.FINE)


CHECKED = word("source", Path, "A plan file, or an instance file.")


@command_with(
    [
        CHECKED,
        word("solution", Path | None, "Of an instance: a solution file.", None),
        flag("profile", Path | None, "Of a plan: the profile that it was made from, if it was, to check its lower bound with."),
    ]
)
def check(**values: Any) -> Outcome:
    """Check the programs of a plan, the memory that they need, and what proves its lower bound; or a solution against an
    instance: its time, its peak memory, and what it violates.
    """
    checked = api.check(**values)
    code = options.INFEASIBLE if checked.violations else options.FINE
    return Outcome(checked.to_dict(), partial(render.checked, checked), code=code)


COLD = flag("cold", bool, "Whether MILP and CP-SAT begin without the plan of a fast method.", True, names=("--cold/--warm",))


@command_with([INSTANCE], [METHODS, options.EACH_LIMIT, *options_of(SearchOptions, "solver_memory", "seed"), COLD])
def compare_methods(instance: Path, method: list[str] | None, **values: Any) -> Outcome:
    """Solve an instance with several methods, and let each check the others."""
    with bars.searching("comparing") as progress:
        compared = api.compare(instance, method or None, progress=progress, **values)
    results, contradictions = compared
    interrupted = any(result.stopped == "interrupt" for result in results)
    code = options.FINE if any(result.objective is not None for result in results) and not interrupted else options.STOPPED
    if contradictions or any(result.status == "infeasible" for result in results):
        code = options.INFEASIBLE
    content = {"results": [result.to_dict() for result in results], "contradictions": contradictions}
    content["unfinished"] = compared.unfinished
    return Outcome(content, partial(render.comparison, compared), {}, code)


@command_with([word("problem", str, "The problem.", "layer-strategies")])
def methods(problem: str) -> Outcome:
    """List the methods for a problem."""
    entries = methods_of(problem)
    rows = [
        {
            "name": entry.name,
            "proves": entry.proves,
            "about": entry.about,
            "options": [str(option) for option in entry.options],
        }
        for entry in entries
    ]
    content = {"problem": problem, "exact": entries[0].name, "methods": rows}
    return Outcome(content, partial(render.methods, problem, entries))


@command_with([word("format", str, "A problem, also with -solution; plan, profile, cluster or runs.", "layer-strategies")])
def schema(format: str) -> Outcome:
    """Print the JSON Schema of a file format (always JSON)."""
    content = api.schema(format)
    return Outcome(content, lambda: print(json.dumps(content, indent=2)))
