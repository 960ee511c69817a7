"""`trainplan library`: instances of every problem with their best known solutions, proven bounds, and evidence."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import typer

from trainplan import api
from trainplan.command import bars, library_screens, options, render
from trainplan.command.ending import stop
from trainplan.command.helping import HelpedCommand
from trainplan.command.options import Command, Outcome, command_with, flag, flags_of, output, word
from trainplan.formulations.problem import problem, problem_names
from trainplan.libraries.adding import add, entry_of, solved, with_evidence
from trainplan.libraries.catalogue import STATUSES, Library, library
from trainplan.libraries.checking import CheckedEntry, check_entry
from trainplan.libraries.provenance import WHO
from trainplan.libraries.scoring import scores, study_of
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import check_readable, json_text
from trainplan.solvers.core.limits import TIME_LIMIT_S
from trainplan.studies.storage import StudyStopped

FOLDER = flag("library", Path | None, "A folder of entries. [default: those that come with trainplan]")
PATTERN = word("pattern", str, "Names, with * and ?, such as 'joint/*'.", "*", "[PATTERN]")
NAME = word("name", str, "The entry's name.")
PROBLEM = flag("problem", str | None, "Only entries of this problem.", values=problem_names)
STATUS = flag("status", str | None, f"Only entries with this status: {', '.join(STATUSES)}.", values=lambda: STATUSES)
TIME_LIMIT = flag("time_limit", float, "Seconds for each exact method.", TIME_LIMIT_S)
ABOUT = "The library: instances of every problem, best known solutions, bounds, evidence."


def application(words: Sequence[str]) -> typer.Typer:
    """The typer application of the command's group `library`. words: the command line, without the program's name; `add` has
    the options of the problem that it names."""
    app = typer.Typer(name="library", help=ABOUT, no_args_is_help=True)
    for name, function in (
        ("list", listed),
        ("show", show),
        ("get", get),
        ("run", run),
        ("check", check),
        ("add", adding(words)),
    ):
        app.command(name, cls=HelpedCommand)(function)
    return app


@command_with([PATTERN, PROBLEM, STATUS, FOLDER])
def listed(pattern: str, problem: str | None, status: str | None, library: Path | None) -> Outcome:
    """List the entries: size, status, best known time, lower bound, and the gap that evidence leaves."""
    found = _library(library).matching(pattern, problem, status)
    return Outcome(found.rows(), partial(library_screens.listed, found))


@command_with([NAME, FOLDER])
def show(name: str, library: Path | None) -> Outcome:
    """Show an entry: what it is, its best solution and bounds, who found them, and the evidence."""
    entry = _library(library)[name]
    content = entry.model_dump(mode="json")
    return Outcome(content, partial(render.pairs, library_screens.entry_rows(entry)))


@command_with([NAME, FOLDER, output("Write the instance here. [default: standard output]")])
def get(name: str, library: Path | None, output: Path | None) -> Outcome:
    """Write an entry's instance as plain JSON. A large one is built from its request, and its hash is compared."""
    entry = _library(library)[name]
    instance = entry.instance()
    if output is None:
        return Outcome(instance.to_dict(), lambda: print(json.dumps(instance.to_dict())))
    text = json_text(instance.to_dict()) + "\n"
    check_readable(output, text)
    about = {"name": entry.name, "problem": entry.problem, **entry.size, "instance_hash": entry.instance_hash}
    rows = [(label, str(value)) for label, value in about.items()]
    return Outcome(about, partial(render.pairs, rows), {"output": lambda: text})


@command_with([PATTERN, PROBLEM, FOLDER])
def check(pattern: str, problem: str | None, library: Path | None) -> Outcome:
    """Check entries: instance, solution and the evidence of the bound, by a checker that shares no code with trainplan, and by
    trainplan itself; no solver is used.
    """
    found = _library(library).matching(pattern, problem)
    checked: list[CheckedEntry] = []
    with bars.working("checking") as progress:
        for index, entry in enumerate(found):
            progress({"shape": entry.name, "done": index, "of": len(found)})
            checked.append(check_entry(entry))
    code = options.INFEASIBLE if any(one.faults for one in checked) else options.FINE
    return Outcome([one.to_dict() for one in checked], partial(library_screens.checked, checked), {}, code)


@command_with(
    [
        PATTERN,
        PROBLEM,
        flag("methods", str, "Methods, such as exact,milp; papers: all that prove nothing.", "exact,milp,cpsat,papers"),
        flag("time_limit", float, "Seconds of each.", TIME_LIMIT_S),
        flag("memory", str | None, "Memory of each solving process, such as 8GiB."),
        flag("folder", Path, "Keep the results here.", options.Argument.empty, names=("--output", "-o")),
        flag("jobs", int, "Solves at a time.", 1, names=("--jobs", "-j")),
    ]
)
def run(pattern: str, problem: str | None, methods: str, time_limit: float, memory: str | None, **kept: Any) -> Outcome:
    """Score methods on the library: a study over its instances, whose results are compared with the best known ones.

    The same line again goes on with what is not finished, and prints the table; `trainplan results FOLDER` and `trainplan
    report FOLDER` read the folder as that of any study.
    """
    found = library().matching(pattern, problem)
    stated = study_of(found, [method for method in methods.split(",") if method], time_limit, memory)
    with bars.studying("library") as progress:
        try:
            done = api.study(stated, progress=progress, **kept)
        except StudyStopped as error:
            stop(str(error), options.STOPPED)
    scored = scores(done.rows(), found)
    content = {"methods": scored.rows(), "instances": list(scored.losses)}
    return Outcome(content, partial(library_screens.scored, scored))


def adding(words: Sequence[str]) -> Command:
    """The function of `trainplan library add`, with the options of the problem that the command line (`words`) names."""
    named = next((text for text in words if text in problem_names()), None)
    parameters = problem(named).parameters if named else ()
    about = f"An instance's file, or a problem to build one of: {', '.join(problem_names())}."

    @command_with(
        [
            word("source", str, about),
            flag("name", str, "The entry's name, such as joint/gpt2-cpu-4.", options.Argument.empty),
            flag("about", str, "Why it is worth having, in a sentence.", options.Argument.empty),
            flag("who", str, "Who adds it.", WHO),
            TIME_LIMIT,
            FOLDER,
        ],
        options.REQUEST,
        flags_of(parameters),
    )
    def add_entry(
        source: str, name: str, about: str, who: str, time_limit: float, library: Path | None, **values: Any
    ) -> Outcome:
        """Add an instance to a library: solve it with every exact method, find evidence of the bound, check all of it, and
        write the entry. What a check refuses is not written.
        """
        given = {key: value for key, value in values.items() if value is not None and (key, value) != ("measure", False)}
        instance, request = _instance(source, given)
        subject: dict[str, str] = {key: Path(str(given[key])).name for key in ("model", "cluster", "profile") if key in given}
        entry = entry_of(instance, name, about, subject or {"file": Path(source).name}, request)
        with bars.searching(f"solving {name}"):
            entry, instance = solved(entry, time_limit, who)
            entry = with_evidence(entry, instance)
        target = add(entry, library)
        rows = [*library_screens.entry_rows(entry), ("written", str(target))]
        return Outcome(entry.model_dump(mode="json"), partial(render.pairs, rows))

    return add_entry


def _instance(source: str, request: dict[str, Any]) -> tuple[Any, dict[str, Any] | None]:
    """The instance in a file, or of a problem and a request; and the request if it makes the instance anywhere: None of a file,
    and of a request that names files or measures.

    Raises InputError if options of a request are given with a file.
    """
    if source in problem_names():
        own = {"profile", "measure", "engine_files"} & set(request)
        own |= {name for name in ("model", "cluster") if Path(str(request.get(name, ""))).is_file()}
        return api.build(source, **request), None if own else request
    if request:
        flag_name = options.flag_of(next(iter(request)))
        raise InputError("command line", flag_name, f"is given with the file {source}", "name a problem, or leave it out")
    return api.load(source), None


def _library(folder: Path | None) -> Library:
    """The library in a folder, or that of the package."""
    return library(folder)
