"""`trainplan plan`, and its aliases for single presets: place, partition, switch."""

from __future__ import annotations

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
    check_targets,
    exit_code,
    flag,
    flags_of,
    method_options,
    output,
    print_json,
    takes,
    value_of,
    write_picture,
)
from trainplan.planning import Planned
from trainplan.presets import DEFAULT, PRESETS, Preset, preset
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import write_whole
from trainplan.profiling.base.plugins import attribute

EXAMPLES = {
    "plan": "trainplan plan --model gpt2 --cluster cpu-4 --batch 8 --sequence 256 --memory 2GiB -o plan.json",
    "place": "trainplan place --model amp-gpt2 --cluster amp-heterogeneous-16 --batch 32 --dtype float16 --uneven-shares "
    "-o plan.json --picture placement.png",
    "partition": "trainplan partition --model gpt2-345m --cluster autopipe-3090-16 --batch 128 --pipeline 4 --micro-batches 8 "
    "-o plan.json --picture timeline.png",
    "switch": "trainplan switch --model gpt2 --cluster cpu-4 --batch 8 --sequence 64 --memory 700MB -o plan.json",
}
ALL = "all"
LIKE_HELP = f"A preset ({', '.join(PRESETS)}), a problem, or '{ALL}' to hold all presets side by side."
OUTPUTS = [
    output("Write the plan here."),
    flag("save_profile", Path | None, "Write the profile used here."),
    PICTURE,
    JSON,
]
BACKEND = flag("backend", str | None, "On which back-end of `run` the plan must fit, too. [default: the plan's own]")


def command(name: str, words: Sequence[str]) -> tuple[Callable[..., None], str]:
    """The command of that name with the options of its preset, and its example."""
    like = value_of("--like", words, DEFAULT) if name == "plan" else name
    return (_plans() if like == ALL else _plan(preset(like), name)), f"Example: {EXAMPLES[name]}"


def _plan(chosen: Preset, verb: str) -> Callable[..., None]:
    like = [flag("like", str, LIKE_HELP, DEFAULT)] if verb == "plan" else []

    @takes(like, REQUEST, flags_of(chosen.parameters), SEARCH, [BACKEND], OUTPUTS)
    def plan(**values: Any) -> None:
        answer = _answered(chosen.name, values)
        _write(answer, values)
        if values["as_json"]:
            print_json(answer.to_dict())
        else:
            render.planned(answer)
            _tell_written(answer, values)
        raise Exit(exit_code(answer.result.status) if answer.needed_bytes is None else INFEASIBLE)

    plan.__doc__ = f"{chosen.about}\n\nThe plan is compiled, checked and walked for time and memory before it is written."
    return plan


def _plans() -> Callable[..., None]:
    @takes([flag("like", str, LIKE_HELP, ALL)], REQUEST, SEARCH[2:], OUTPUTS)
    def plan(**values: Any) -> None:
        """The plans of all presets for one request, judged alike, the shortest predicted step first."""
        chosen = {name: value for name, value in values.items() if name not in NOT_ASKED}
        check_targets(values["output"], values["save_profile"], picture=values["picture"])
        answers = api.plans(**chosen)
        plans = [answer for answer in answers if not isinstance(answer, InputError)]
        best = next((answer for answer in plans if answer.plan is not None), None)
        if best is not None:
            _write(best, values)
        if values["as_json"]:
            print_json([str(each) if isinstance(each, InputError) else each.to_dict() for each in answers])
        else:
            render.plans(answers)
            if best is not None:
                _tell_written(best, values)
        raise Exit(FINE if best is not None else INFEASIBLE)

    return plan


NOT_ASKED = {"like", "option", "output", "save_profile", "picture", "as_json"}


def _answered(like: str, values: dict[str, Any]) -> Planned:
    check_targets(values["output"], values["save_profile"], picture=values["picture"])
    asked = {name: value for name, value in values.items() if name not in NOT_ASKED}
    with render.searching(values["method"]) as progress, render.working("measuring") as measuring:
        return api.plan(
            like=like,
            progress=progress,
            measuring=measuring if values["measure"] else None,
            **asked,
            **method_options(values["option"]),
        )


def _write(answer: Planned, values: dict[str, Any]) -> None:
    if values["output"] and answer.plan:
        write_whole(values["output"], answer.plan.model_dump_json(indent=2) + "\n")
    if values["save_profile"] and answer.request.obtained:
        write_whole(values["save_profile"], answer.request.obtained[0].model_dump_json(indent=1) + "\n")
    if values["picture"] and answer.answer.solution is not None:
        write_picture(_picture(answer), values["picture"])


def _picture(answer: Planned) -> Any:
    """The preset's own picture of its answer, else the plan's."""
    if answer.preset.picture is None:
        return api.draw_plan(answer.plan)
    return attribute(answer.preset.picture)(answer.instance, answer.answer.solution)


def _tell_written(answer: Planned, values: dict[str, Any]) -> None:
    made = {"output": answer.plan, "save_profile": answer.request.obtained, "picture": answer.answer.solution}
    render.pairs([("written", str(values[name])) for name, there in made.items() if values[name] and there])
