"""Refusals of bad input, checked by what they are about and not by how they are worded.

An `InputError` has parts: where the input came from, the field, the problem and the fix. A test states the field, and the facts
that the other parts must give: the value that was refused, the values that would work. Better wording then changes no test;
whole texts are recorded with the screens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from trainplan.profiling.base.errors import InputError, InputWarning

Fact = str | int | float | re.Pattern[str]  # a value, a name or a number, or a pattern of one
Facts = Fact | tuple[Fact, ...] | list[Fact]  # one fact, or several that are all stated
Field = str | re.Pattern[str] | None


@contextmanager
def refused(
    field: Field = None, problem: Facts = (), fix: Facts = (), *, where: object = None, kind: type[InputError] = InputError
) -> Iterator[pytest.ExceptionInfo[InputError]]:
    """Expect the block to raise an InputError about a field, and yield what it raised.

    A table of cases has the columns ``field``, ``problem`` and ``fix``, which a test hands on to here.

    Args:
        field: the field or argument, exactly (``"layers[0].time_ns"``) or as a pattern for all of it; None where it does not
            matter, "" where the input as a whole is refused.
        problem: facts that the problem states.
        fix: facts (values that would work, names, flags) that the fix offers.
        where: the file, or the name of the input; None where it does not matter.
        kind: the class, where it is not InputError itself.

    Raises:
        AssertionError: no such error was raised, or it lacks one of these.
    """
    with pytest.raises(kind) as caught:
        yield caught
    assert_refusal(caught.value, field, problem, fix, where=where)


@contextmanager
def cautioned(field: Field = None, problem: Facts = (), fix: Facts = (), *, where: object = None) -> Iterator[None]:
    """Expect the block to warn of a field with an InputWarning; the arguments are those of `refused`."""
    with pytest.warns(InputWarning) as caught:
        yield
    errors = [warning.message.error for warning in caught if isinstance(warning.message, InputWarning)]
    lacking = [lacks(error, field, problem, fix, where) for error in errors]
    assert None in lacking, lacking


def assert_refusal(
    error: BaseException, field: Field = None, problem: Facts = (), fix: Facts = (), *, where: object = None
) -> None:
    """Check an error that was caught elsewhere as `refused` does, and that its text is one line."""
    assert isinstance(error, InputError), error
    assert "\n" not in error.command_text, error.command_text
    lacking = lacks(error, field, problem, fix, where)
    assert lacking is None, lacking


def lacks(error: InputError, field: Field, problem: Facts, fix: Facts, where: object) -> str | None:
    """Say what an error lacks of the field, facts and origin that `refused` was given; None if it has all of them."""
    if isinstance(field, re.Pattern):
        if not (field.fullmatch(error.field) or field.fullmatch(error.command_field)):
            return f"{error.field!r} is not {field.pattern!r}: {error.command_text}"
    elif field is not None and field not in (error.field, error.command_field):
        return f"{error.field!r} is not {field!r}: {error.command_text}"
    if where is not None and error.where != str(where):
        return f"{error.where!r} is not {str(where)!r}: {error.command_text}"
    for facts, text in ((problem, error.problem), (fix, error.fix)):
        for fact in facts if isinstance(facts, tuple | list) else (facts,):
            if not stated(fact, text):
                return f"{fact} is not stated by: {text} ({error.command_text})"
    return None


def assert_refusal_text(text: str, field: str, *, problem: Facts = (), fix: Facts = ()) -> None:
    """Check an error that was kept as a text, ``FIELD PROBLEM; FIX``, such as why a row of a table cannot be predicted."""
    about, _, offered = text.partition("; ")
    assert about.startswith(f"{field} "), text
    assert_stated(about.removeprefix(f"{field} "), problem)
    assert_stated(offered, fix)


def assert_stated(text: str, facts: Facts) -> None:
    """Check that a text (a part of an error, a note, a warning) states each of the facts."""
    for fact in facts if isinstance(facts, tuple | list) else (facts,):
        assert stated(fact, text), f"{fact} is not stated by: {text}"


def stated(fact: Fact, text: str) -> bool:
    """Whether a text states a fact as words of its own: ``8`` is stated by neither ``128`` nor ``0.8``, ``--batch`` not by
    ``--batch-size``."""
    if isinstance(fact, re.Pattern):
        return fact.search(text) is not None
    word = str(fact)
    before = "" if not word[:1].isalnum() else r"(?<!\w)" + r"(?<!\d\.)" * word[0].isdigit()
    after = "" if not word[-1:].isalnum() else r"(?!\w)" + r"(?!\.\d)" * word[-1].isdigit() + r"(?!-\w)" * word.startswith("--")
    return re.search(before + re.escape(word) + after, text) is not None
