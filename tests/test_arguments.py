"""Arguments of a wrong type in Python: an InputError names the argument, its value, and a value that would work."""

from __future__ import annotations

from collections.abc import Callable
from inspect import isclass
from typing import Any

import numpy as np
import pytest
from trainplan.profiling.base.arguments import check_arguments
from trainplan.profiling.base.errors import InputError

import trainplan as tp
from tests.helpers.instances import random_instance
from trainplan.api import NAMES

REQUEST = {"model": "gpt2", "cluster": "cpu-4", "batch": 8, "sequence": 32}
INSTANCE = random_instance(0)
WRONG: list[tuple[str, Callable[[], Any], str, str]] = [
    ("batch", lambda: tp.build(**REQUEST | {"batch": "8"}), "'8'", "a whole number, such as 8"),
    ("batch", lambda: tp.build(**REQUEST | {"batch": 8.0}), "8.0", "a whole number, such as 8"),
    ("batch", lambda: tp.build(**REQUEST | {"batch": True}), "True", "a whole number, such as 8"),
    ("batch", lambda: tp.place(**REQUEST | {"batch": "8"}), "'8'", "a whole number, such as 8"),
    ("batch", lambda: tp.plans(**REQUEST | {"batch": "8"}), "'8'", "a whole number, such as 8"),
    ("model", lambda: tp.build(**REQUEST | {"model": 3}), "3", "such as 'gpt2'"),
    ("model", lambda: tp.build(**REQUEST | {"model": {"n_embd": 8}}), "{'n_embd': 8}", "such as 'gpt2'"),
    ("memory", lambda: tp.plan(**REQUEST, memory=8.5), "8.5", "such as '8GiB'"),
    ("by_unit", lambda: tp.plan(**REQUEST, by_unit=1), "1", "True or False"),
    ("pipeline", lambda: tp.plan(**REQUEST, pipeline="2"), "'2'", "a whole number, such as 1"),
    ("time_limit", lambda: tp.solve(INSTANCE, time_limit="5"), "'5'", "a number, such as 10"),
    ("time_limit", lambda: tp.solve(INSTANCE, time_limit=True), "True", "a number, such as 10"),
    ("seed", lambda: tp.solve(INSTANCE, seed="a"), "'a'", "a whole number, such as 0"),
    ("seed", lambda: tp.compare(INSTANCE, seed="a"), "'a'", "a whole number, such as 0"),
    ("progress", lambda: tp.solve(INSTANCE, progress=3), "3", "a function, such as print"),
    ("instance", lambda: tp.solve(3), "3", "an Instance"),
    ("source", lambda: tp.simulate(None), "None", "a Plan"),
    ("source", lambda: tp.load(5), "5", "a path"),
    ("methods", lambda: tp.compare(INSTANCE, "exact"), "'exact'", "such as ['exact']"),
    ("methods", lambda: tp.compare(INSTANCE, []), "[]", "at least one: a list"),
    ("rows", lambda: tp.profile(model="gpt2", cluster="cpu-4", rows=[1, "a"]), "[1, 'a']", "such as [1]"),
    ("plans", lambda: tp.trial("plan.json"), "'plan.json'", "a list"),
    ("plan", lambda: tp.draw_plan(3), "3", "a Plan"),
]


@pytest.mark.parametrize(("name", "call", "value", "fix"), WRONG, ids=[f"{each[0]}={each[2]}" for each in WRONG])
def test_a_wrong_type_is_refused(name: str, call: Callable[[], Any], value: str, fix: str) -> None:
    with pytest.raises(InputError) as caught:
        call()
    assert str(caught.value).startswith(f"{name} is {value}; give ") and fix in str(caught.value)
    assert caught.value.field == caught.value.argument == name


def test_the_annotations_of_every_verb_can_be_read() -> None:
    for name in NAMES:
        verb = getattr(tp, name)
        if not isclass(verb) and not name.startswith("draw_"):
            check_arguments(verb.__wrapped__.__wrapped__, {})


def test_numbers_of_numpy_are_numbers() -> None:
    assert tp.build(**REQUEST | {"batch": np.int64(8)}).digest == tp.build(**REQUEST).digest
    assert tp.solve(INSTANCE, time_limit=np.float64(10), seed=np.int32(1)).seed == 1


def test_fields_of_errors_name_the_argument() -> None:
    with pytest.raises(InputError) as caught:
        tp.plan(**REQUEST, time_limit=-1)
    assert (caught.value.field, caught.value.command_field) == ("time_limit", "--time-limit")
