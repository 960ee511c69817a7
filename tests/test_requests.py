"""Requests as types: the same answer as keywords, every choice a field, and mistakes are named."""

from __future__ import annotations

from dataclasses import fields, replace
from inspect import signature
from typing import Any, get_type_hints

import pytest
from trainplan.solvers.core.registry import methods

import trainplan as tp
from trainplan.api.requests import Choices, MethodOptions
from trainplan.planning.presets import PRESETS

REQUEST = tp.PlanRequest(model="gpt2", cluster="cpu-4", batch=8, sequence=64, memory="2GiB")
QUICK = tp.SearchOptions(beside=False)
KEYWORDS: dict[str, Any] = {"model": "gpt2", "cluster": "cpu-4", "batch": 8, "sequence": 64, "memory": "2GiB"}


def test_a_request_is_its_keywords() -> None:
    asked, named = tp.plan(REQUEST, search=QUICK), tp.plan(**KEYWORDS, beside=False)
    assert asked.plan is not None and named.plan is not None
    assert asked.plan.content == named.plan.content and asked.uniform is None


def test_what_is_fixed_is_fixed_and_keywords_take_its_place() -> None:
    piped = replace(REQUEST, pipeline=2, micro_batches=4)
    assert tp.plan(piped, search=QUICK).frame()["stages"][0] == 2
    assert tp.plan(piped, search=QUICK, pipeline=1, micro_batches=None).frame()["stages"][0] == 1


def test_options_of_methods_come_in_with_the_search() -> None:
    asked = tp.plan(REQUEST, search=tp.SearchOptions(method="cpsat", beside=False, time_limit=5, options={"workers": 1}))
    assert asked.result.method == "cpsat"
    with pytest.raises(tp.InputError, match="did you mean"):
        tp.plan(REQUEST, search=tp.SearchOptions(method="cpsat", options={"worker": 1}))


def test_other_verbs_take_requests() -> None:
    assert tp.partition(replace(REQUEST, pipeline=2, micro_batches=4), search=QUICK).preset.name == "autopipe"
    assert [plan.preset.name for plan in tp.plans(["joint"], REQUEST, search=QUICK)] == ["joint"]  # type: ignore[union-attr]


def test_what_is_no_request_is_named() -> None:
    with pytest.raises(tp.InputError, match="request is 'gpt2'; give a PlanRequest"):
        tp.plan("gpt2")  # type: ignore[arg-type]
    with pytest.raises(tp.InputError, match="search is 5; give a SearchOptions"):
        tp.plan(REQUEST, search=5)  # type: ignore[arg-type]
    with pytest.raises(tp.InputError, match="batch is '8'"):
        tp.plan(replace(REQUEST, batch="8"))  # type: ignore[arg-type]


def test_every_choice_of_every_preset_is_a_field_and_a_keyword() -> None:
    names = {parameter.name for preset in PRESETS.values() for parameter in preset.parameters}
    assert names == Choices.__annotations__.keys()
    assert names < {field.name for field in fields(tp.PlanRequest)}
    options = {option.name for preset in PRESETS.values() for entry in methods(preset.problem_name) for option in entry.options}
    assert options - {"jobs"} - names == MethodOptions.__annotations__.keys()


def test_a_notebook_completes_every_choice() -> None:
    assert {*Choices.__annotations__, "model", "request", "search"} <= signature(tp.plan).parameters.keys()


def test_fields_and_keywords_have_the_same_types() -> None:
    hints, choices, plan = get_type_hints(tp.PlanRequest), get_type_hints(Choices), get_type_hints(tp.plan)
    search = get_type_hints(tp.SearchOptions)
    assert all(hints[name] == wanted for name, wanted in choices.items())
    assert {**plan, **hints, **search} | {"options": None} == {**hints, **search, **plan} | {"options": None}
    assert set(hints) - set(choices) | set(search) - {"options"} == set(plan) - {"request", "search", "choices", "return"}
