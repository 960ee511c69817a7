"""Requests as types: the same answer as keywords, every choice a field, and mistakes are named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from inspect import signature
from typing import Any, get_type_hints

import pytest
from trainplan.solvers.core.method_registry import methods

import trainplan as tp
from tests.helpers.refusals import refused
from trainplan.api import run_verbs
from trainplan.api.keywords import texts_of
from trainplan.api.plan_verbs import FitKeywords
from trainplan.api.requests import CHOICES, MethodOptions, PlanKeywords, keywords_of
from trainplan.api.run_verbs import RunKeywords
from trainplan.planning.presets import PRESETS

REQUEST = tp.PlanRequest(model="gpt2", cluster="cpu-4", batch=8, sequence=64, memory="2GiB")
QUICK = tp.SearchOptions(comparisons=False)
KEYWORDS: dict[str, Any] = {"model": "gpt2", "cluster": "cpu-4", "batch": 8, "sequence": 64, "memory": "2GiB"}


def test_a_request_is_its_keywords() -> None:
    requested, named = tp.plan(REQUEST, search=QUICK), tp.plan(**KEYWORDS, comparisons=False)
    assert requested.plan is not None and named.plan is not None
    assert requested.plan.content == named.plan.content and requested.uniform is None


def test_what_is_fixed_is_fixed_and_keywords_take_its_place() -> None:
    piped = replace(REQUEST, pipeline=2, micro_batches=4)
    assert tp.plan(piped, search=QUICK).frame()["stages"][0] == 2
    assert tp.plan(piped, search=QUICK, pipeline=1, micro_batches=None).frame()["stages"][0] == 1


def test_options_of_methods_come_in_with_the_search() -> None:
    requested = tp.plan(
        REQUEST, search=tp.SearchOptions(method="cpsat", comparisons=False, time_limit=5, options={"workers": 1})
    )
    assert requested.result.method == "cpsat"
    with refused("worker", "joint", "--option workers="):
        tp.plan(REQUEST, search=tp.SearchOptions(method="cpsat", options={"worker": 1}))


def test_other_verbs_take_requests() -> None:
    assert tp.partition(replace(REQUEST, pipeline=2, micro_batches=4), search=QUICK).preset.name == "autopipe"
    assert [plan.preset.name for plan in tp.plans(["joint"], REQUEST, search=QUICK)] == ["joint"]  # type: ignore[union-attr]


def test_what_is_no_request_is_named() -> None:
    with refused("request", problem="gpt2", fix="PlanRequest"):
        tp.plan("gpt2")  # type: ignore[arg-type]
    with refused("search", problem=5, fix="SearchOptions"):
        tp.plan(REQUEST, search=5)  # type: ignore[arg-type]
    with refused("batch", problem="'8'", fix=8):
        tp.plan(replace(REQUEST, batch="8"))  # type: ignore[arg-type]


def test_every_choice_of_every_preset_is_a_field_and_a_keyword() -> None:
    names = {parameter.name for preset in PRESETS.values() for parameter in preset.parameters}
    assert names == set(CHOICES)
    options = {option.name for preset in PRESETS.values() for entry in methods(preset.problem_name) for option in entry.options}
    assert options - {"jobs"} - names == {field.name for field in fields(MethodOptions)}


@pytest.mark.parametrize(
    ("verb", "classes", "own"),
    [
        (tp.plan, (tp.PlanRequest, tp.SearchOptions), {"request", "search"}),
        (tp.fit, (tp.PlanRequest,), {"request", "progress"}),
        (tp.run, (tp.RunSettings, tp.TrainingSettings), {"source", "settings", "training", "progress"}),
    ],
)
def test_a_verb_has_the_fields_of_its_settings_as_keywords(verb: Any, classes: tuple[Any, ...], own: set[str]) -> None:
    """With their types, defaults and texts, as notebooks complete and `help` shows them."""
    parameters, reference = signature(verb).parameters, " ".join(verb.__doc__.split())
    for kind in classes:
        hints, texts = get_type_hints(kind), texts_of(kind)
        for field in fields(kind):
            own = own | {field.name}
            assert parameters[field.name].annotation == hints[field.name] and parameters[field.name].default == field.default
            assert " ".join(texts[field.name].split()) in reference
    assert {name for name, parameter in parameters.items() if parameter.kind is not parameter.VAR_KEYWORD} == own


def test_type_checkers_see_the_signature_of_plan_and_run() -> None:
    """The signature is that of the classes that stand for the verbs, whose constructors name what the verbs take, no more and
    no less."""
    for verb, call in ((tp.plan, PlanKeywords), (tp.run, RunKeywords), (tp.fit, FitKeywords)):
        seen, there = signature(call).parameters, signature(verb).parameters
        named = {name for name, value in there.items() if value.kind is not value.VAR_KEYWORD}
        assert named == set(seen) - {field.name for field in fields(MethodOptions)}
        assert all(seen[name].default == there[name].default for name in named)


def test_a_run_takes_its_settings_as_objects_or_keywords(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = tp.plan(REQUEST, search=QUICK).plan
    assert plan is not None
    ran: list[dict[str, Any]] = []

    def stop(plans: Any, **named: Any) -> Any:
        ran.append(named)
        raise tp.InputError("plan", "", "is not run", "stop here")

    monkeypatch.setattr(run_verbs, "run_plans", stop)
    settings = tp.RunSettings(steps=5, checkpoint_every=None, seed=3)
    training = tp.TrainingSettings(learning_rate=0.01, clip=1.0)
    calls: list[Callable[[], Any]] = [
        lambda: tp.run(plan, settings, training),
        lambda: tp.run(plan, steps=5, seed=3, learning_rate=0.01, clip=1.0),
        lambda: tp.run(plan, replace(settings, steps=1), replace(training, clip=2.0), steps=5, clip=1.0),
    ]
    for call in calls:
        with refused("", where="plan", problem="run"):
            call()
    assert ran[0] == ran[1] == ran[2] and ran[0]["steps"] == 5 and ran[0]["training"].optimizer.clip == 1.0
    with refused("steps", problem="'5'", fix=1):
        tp.run(plan, tp.RunSettings(steps="5"))  # type: ignore[arg-type]
    with refused("settings", problem=5, fix="RunSettings"):
        tp.run(plan, 5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="did you mean 'steps'"):
        tp.run(plan, stepz=5)  # type: ignore[call-arg]


def test_no_time_limit_is_none() -> None:
    """A search without a limit may be requested by an object, too: its default is that of the keyword, not None."""
    assert tp.SearchOptions().time_limit == signature(tp.plan).parameters["time_limit"].default
    assert keywords_of(None, tp.SearchOptions(time_limit=None)) == {"time_limit": None}
