"""`trainplan build`, `solve`, `check`, `compare`, `methods` and `schema`: problems by themselves."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from trainplan import api
from trainplan.command import bars, options, render
from trainplan.command.options import Command, Outcome, exit_code, flag, flags_of, output, takes, word
from trainplan.formulations.parameters import flag_of
from trainplan.formulations.problem import problem, problem_names, problem_of
from trainplan.frontiers import LIMITS, memory_limits
from trainplan.pictures import drawn
from trainplan.presets import DEFAULT, PRESETS
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import check_readable, json_text, read_data, write_whole
from trainplan.profiling.base.quantities import parse_bytes
from trainplan.solvers.core.registry import methods as methods_of

LEAST_GAP = 1e-4  # of the joint optimum that planners are compared with, unless another is asked for
MOST_LIMITS = 1000  # of a frontier
METHODS = flag("method", list[str] | None, "Of an instance: a method; may be repeated. [default: all]")
INSTANCE = word("instance", Path, "An instance file.")
PROBLEM_HELP = "The problem; its own options are listed by `trainplan build PROBLEM --help`."


def command(name: str, words: Sequence[str]) -> Command:
    """The command of that name."""
    functions = {"solve": solve, "frontier": frontier, "check": check, "compare": compare, "methods": methods, "schema": schema}
    return _build(words) if name == "build" else functions[name]


def _build(words: Sequence[str]) -> Command:
    """The command `build` with the options of the problem that the words name."""
    named = next((text for text in words if text in problem_names()), None)
    parameters = problem(named).parameters if named else ()
    names = ", ".join(problem_names())
    about = output("Write the instance here. [default: standard output]")

    @takes([word("problem", str, f"{PROBLEM_HELP} {names}.")], options.REQUEST, flags_of(parameters), [about])
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


@takes([INSTANCE], options.SEARCH, [output("Write the solution here."), options.PICTURE])
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


@takes(
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
        flag("time_limit", float, "Seconds for each method and limit.", 30),
        options.GAP,
        options.SEED,
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
    return Outcome([point.to_dict() for point in solved], show, files, options.STOPPED if stopped else options.FINE)


CHECKED = word("source", Path, "A plan file, or an instance file.")


@takes(
    [
        CHECKED,
        word("solution", Path | None, "Of an instance: a solution file.", None),
        flag("profile", Path | None, "Of a plan: the profile that it was made from, if it was, to check its claim with."),
    ]
)
def check(**values: Any) -> Outcome:
    """Check the programs of a plan, the memory that they need, and what its claim's evidence proves; or a solution against an
    instance: its time, its peak memory, and what it violates.
    """
    checked = api.check(**values)
    code = options.INFEASIBLE if checked.violations else options.FINE
    return Outcome(checked.to_dict(), partial(render.checked, checked), code=code)


SOURCES = word(
    "sources",
    list[Path] | None,
    "An instance file; or plan files, which are held side by side as they are predicted. [default: the papers' planners on "
    "--model and --cluster]",
    None,
)
SECONDS = 30.0  # for each, unless others are given
EACH = flag("time_limit", float | None, f"Seconds for each method. [default: {SECONDS:.0f}]")
COLD = flag(
    "cold",
    bool | None,
    "Of an instance: whether MILP and CP-SAT begin without the plan of a fast method. [default: cold]",
    names=("--cold/--warm",),
)
GAP = flag("gap", float | None, f"Without files: relative gap of the joint optimum. [default: {LEAST_GAP}]")
SEED = flag("seed", int | None, "Seed of the methods. [default: 0]")
ASKED = [*options.REQUEST[:-1], *options.flags_of(PRESETS[DEFAULT].parameters)]


LOG = flag("log", Path | None, "Of a plan file: a log of its run, by Megatron-LM, torchtitan or DeepSpeed.")


@takes([SOURCES], ASKED, [LOG, METHODS, EACH, GAP, options.SOLVER_MEMORY, SEED, COLD])
def compare(**values: Any) -> Outcome:
    """Solve an instance with several methods and let each check the others; or hold plans side by side; or, of a model and a
    cluster, what each paper's planner loses against the joint optimum, all plans judged by the walks on the serial back-end.
    """
    sources, log = values.pop("sources"), values.pop("log")
    if log is not None:
        if not sources or len(sources) != 1:
            raise InputError("command line", "--log", f"is given with {len(sources or [])} files", "give one plan file")
        logged = api.compare_log(sources[0], log)
        return Outcome(logged.to_dict(), partial(render.logged, logged))
    request = {argument.name: values.pop(argument.name) for argument in ASKED}
    settings = {name: value for name, value in values.items() if value not in (None, [])}
    if not sources:
        _refuse(settings, ("method", "cold"), "is given without an instance", "leave it out: each planner has its own")
        limits = {"gap": LEAST_GAP, "time_limit": SECONDS, **settings}
        with bars.planning() as progress:
            rivals = api.compare_planners(**request, **limits, progress=progress)
        code = options.FINE if any(each.step_ns is not None for each in rivals) else options.INFEASIBLE
        return Outcome([each.to_dict() for each in rivals], partial(render.rivals, rivals), {}, code)
    asked = {name: value for name, value in request.items() if value not in (None, [])}
    _refuse(asked, asked, "is given beside a file", "give it without files, or leave it out")
    if len(sources) > 1 or "format" in _fields(sources[0]):
        _refuse(settings, settings, "is given beside plan files", "leave it out: nothing is searched")
        rows = api.compare_plans(sources)
        return Outcome(rows, partial(render.plan_rows, rows))
    _refuse(settings, ("gap",), "is given beside an instance", "leave it out: methods are compared at their ends")
    with bars.searching("comparing") as progress:
        limits = {"time_limit": SECONDS, **settings}
        compared = api.compare(sources[0], limits.pop("method", None), progress=progress, **limits)
    results, contradictions = compared
    interrupted = any(result.stopped == "interrupt" for result in results)
    code = options.FINE if any(result.objective is not None for result in results) and not interrupted else options.STOPPED
    if contradictions or any(result.status == "infeasible" for result in results):
        code = options.INFEASIBLE
    content = {"results": [result.to_dict() for result in results], "contradictions": contradictions}
    return Outcome(content, partial(render.comparison, compared), {}, code)


def _refuse(options_set: Mapping[str, Any], names: Iterable[str], problem: str, fix: str) -> None:
    """Raises InputError for the first of these options that is set."""
    for name in names:
        if name in options_set:
            flag = "--warm" if name == "cold" and not options_set[name] else flag_of(name)
            raise InputError("command line", flag, problem, fix)


def _fields(source: Path) -> Mapping[str, Any]:
    """What a file holds, where it is an object; what else it holds is refused where it is read as an instance."""
    content = read_data(source)
    return content if isinstance(content, Mapping) else {}


@takes([word("problem", str, "The problem.", "layer-strategies")])
def methods(problem: str) -> Outcome:
    """List the methods for a problem."""
    entries = methods_of(problem)
    rows = [{"name": e.name, "proves": e.proves, "about": e.about, "options": [str(o) for o in e.options]} for e in entries]
    content = {"problem": problem, "exact": entries[0].name, "methods": rows}
    return Outcome(content, partial(render.methods, problem, entries))


@takes([word("format", str, "A problem, also with -solution; plan, profile or cluster.", "layer-strategies")])
def schema(format: str) -> Outcome:
    """Print the JSON Schema of a file format (always JSON)."""
    content = api.schema(format)
    return Outcome(content, lambda: print(json.dumps(content, indent=2)))
