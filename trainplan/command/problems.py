"""`trainplan build`, `solve`, `check`, `compare`, `methods` and `schema`: problems by themselves."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from typer import Exit

from trainplan import api
from trainplan.command import render
from trainplan.command.options import (
    FINE,
    INFEASIBLE,
    JSON,
    PICTURE,
    REQUEST,
    SEARCH,
    SEED,
    STOPPED,
    check_targets,
    exit_code,
    flag,
    flags_of,
    method_options,
    output,
    print_json,
    takes,
    word,
    write_picture,
)
from trainplan.formulations.problem import problem, problem_names, problem_of
from trainplan.presets import PRESETS
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import read_data, write_whole
from trainplan.profiling.base.plugins import attribute
from trainplan.solvers.core.registry import methods as methods_of

EXAMPLES = {
    "build": "trainplan build layer-strategies --model gpt2 --cluster cpu-4 --batch 8 --memory 2GiB -o instance.json",
    "solve": "trainplan solve instance.json --method milp --time-limit 10 -o solution.json",
    "check": "trainplan check instance.json solution.json",
    "compare": "trainplan compare instance.json --method milp --method cpsat --time-limit 10",
    "methods": "trainplan methods layer-strategies",
    "schema": "trainplan schema layer-strategies > schema.json",
}
INSTANCE = word("instance", Path, "An instance file.")
PROBLEM_HELP = "The problem; its own options are listed by `trainplan build PROBLEM --help`."


def command(name: str, words: Sequence[str]) -> tuple[Callable[..., None], str]:
    """The command of that name, and its example."""
    functions = {"solve": solve, "check": check, "compare": compare, "methods": methods, "schema": schema}
    function = _build(words) if name == "build" else functions[name]
    return function, f"Example: {EXAMPLES[name]}"


def _build(words: Sequence[str]) -> Callable[..., None]:
    """The command `build` with the options of the problem that the words name."""
    named = next((text for text in words if text in problem_names()), None)
    parameters = problem(named).parameters if named else ()
    names = ", ".join(problem_names())
    about = output("Write the instance here. [default: standard output]")

    @takes([word("problem", str, f"{PROBLEM_HELP} {names}.")], REQUEST, flags_of(parameters), [about, JSON])
    def build(**values: Any) -> None:
        """Make an instance of a problem from a model and a cluster, or from a profile alone."""
        target, as_json = values.pop("output"), values.pop("as_json")
        check_targets(target)
        with render.working("measuring") as measuring:
            report = measuring if values["measure"] else None
            instance = api.build(values.pop("problem"), measuring=report, **values)
        text = json.dumps(instance.to_dict(), indent=None if target is None or as_json else 1)
        if target is None:
            print(text)
            return
        write_whole(target, text + "\n")
        about: dict[str, Any] = {"output": str(target), **problem_of(instance).size(instance), "instance_hash": instance.digest}
        changed = instance.provenance.get("lifted")
        if as_json:
            print_json({**about, "lifted": changed} if changed else about)
        else:
            told = [("lifted", render.lifted(changed))] if changed else []
            render.pairs([*((name, str(value)) for name, value in about.items()), *told])

    return build


@takes([INSTANCE], SEARCH, [output("Write the solution here."), PICTURE, JSON])
def solve(**values: Any) -> None:
    """Solve an instance with one method; the answer is checked and its bound named."""
    check_targets(values["output"], picture=values["picture"])
    instance = api.load(values["instance"])
    drawing = next((known.picture for known in PRESETS.values() if known.problem_name == instance.problem), None)
    if values["picture"] and drawing is None:
        names = " or ".join(known.problem_name for known in PRESETS.values() if known.picture)
        raise InputError("command line", "--picture", f"is of a {instance.problem} instance", f"give an instance of {names}")
    limits = {name: values[name] for name in ("time_limit", "gap", "seed")}
    with render.searching(values["method"]) as progress:
        result = api.solve(
            instance,
            values["method"],
            progress=progress,
            **limits,
            **method_options(values["option"]),
        )
    if values["output"] and result.solution is not None:
        write_whole(values["output"], json.dumps(result.solution) + "\n")
    if values["picture"] and drawing and result.solution is not None:
        write_picture(attribute(drawing)(instance, problem_of(instance).load_solution(result.solution)), values["picture"])
    if values["as_json"]:
        print_json(result.to_dict())
    else:
        render.solved(instance, result)
    raise Exit(exit_code(result.status))


@takes([INSTANCE, word("solution", Path, "A solution file.")], [JSON])
def check(**values: Any) -> None:
    """Check a solution against an instance: its time, its peak memory, and what it violates."""
    checked = api.check(values["instance"], values["solution"])
    if values["as_json"]:
        print_json(checked.to_dict())
    else:
        render.checked(checked)
    raise Exit(INFEASIBLE if checked.violations else FINE)


SOURCES = word("sources", list[Path], "An instance file; or plan files, which are held side by side as they are predicted.")
METHODS = flag("method", list[str] | None, "Of an instance: a method; may be repeated. [default: all]")


@takes([SOURCES], [METHODS, flag("time_limit", float, "Seconds for each method.", 30), SEED, JSON])
def compare(**values: Any) -> None:
    """Solve an instance with several methods and let each check the others; or hold plans side by side."""
    sources = values["sources"]
    if len(sources) > 1 or "format" in read_data(sources[0]):
        rows = api.compare_plans(sources)
        if values["as_json"]:
            print_json(rows)
        else:
            render.plan_rows(rows)
        return
    instance = api.load(sources[0])
    limits = {"time_limit": values["time_limit"], "seed": values["seed"]}
    with render.searching("comparing") as progress:
        results, contradictions = api.compare(instance, values["method"], progress=progress, **limits)
    if values["as_json"]:
        print_json({"results": [result.to_dict() for result in results], "contradictions": contradictions})
    else:
        render.comparison(results, contradictions)
    if contradictions or any(result.status == "infeasible" for result in results):
        raise Exit(INFEASIBLE)
    raise Exit(FINE if any(result.objective is not None for result in results) else STOPPED)


@takes([word("problem", str, "The problem.", "layer-strategies")], [JSON])
def methods(**values: Any) -> None:
    """List the methods for a problem."""
    entries = methods_of(values["problem"])
    if values["as_json"]:
        rows = [{"name": e.name, "proves": e.proves, "about": e.about, "options": [str(o) for o in e.options]} for e in entries]
        print_json({"problem": values["problem"], "exact": entries[0].name, "methods": rows})
    else:
        render.methods(values["problem"], entries)


@takes([word("format", str, "A problem, also with -solution; plan, profile or cluster.", "layer-strategies")], [JSON])
def schema(**values: Any) -> None:
    """Print the JSON Schema of a file format (always JSON)."""
    print_json(api.schema(values["format"]))
