"""The code speaks the language of its field: words that only its authors would understand do not come back.

Docstrings, comments and names of the product are read, and docstrings and comments of its tests and benchmarks; texts that
users see are read by `test_words.py`.
"""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PRODUCT = ("formulations", "solvers", "profiling", "execution", "trainplan")
EVERYTHING = (*PRODUCT, "tests", "benchmarks")
INSTEAD = {  # a word, and what to say
    r"beside": "next to, in addition to, overlapping",
    r"behind": "after, at the end of",
    r"lots": "batches of choices",
    r"suits|suited|unsuited": "supports, applies",
    r"so many": "a number of",
    r"twice over": "doubled",
}
NAMES = ("each", "beside", "behind", "place", "places", "lots", "suits", "asked", "told", "said")
BEGINNINGS = ("What ", "The same", "Of ", "Those ", "That ")  # of docstrings, which are read alone


def files(folders: tuple[str, ...] = PRODUCT) -> list[Path]:
    """Python files in these folders of the checkout, sorted."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py") if "__pycache__" not in path.parts)


@functools.cache
def read_by_people(path: Path) -> tuple[tuple[int, str, bool], ...]:
    """The comments and docstrings of one file, as `comments_and_docstrings` gives them, parsed once for all words."""
    return tuple(comments_and_docstrings(path.read_text()))


def comments_and_docstrings(text: str) -> Iterator[tuple[int, str, bool]]:
    """Line, text and whether it is a docstring, of all that people read in a file."""
    for node in ast.walk(ast.parse(text)):
        described = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if described and (found := ast.get_docstring(node)) is not None:
            yield node.body[0].lineno, found, True
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string, False


def bound_names(text: str) -> Iterator[tuple[int, str]]:
    """Line and name of every variable, parameter, function and class that a file states."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.lineno, node.name


@pytest.mark.parametrize("word", INSTEAD)
def test_no_docstring_or_comment_has_a_private_word(word: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {match[0]!r}, say {INSTEAD[word]}"
        for path in files(EVERYTHING)
        for line, text, _ in read_by_people(path)
        for match in re.finditer(rf"\b(?:{word})\b", re.sub(r"`[^`]*`", "", text), re.IGNORECASE)
    ]
    assert not found, f"{len(found)}:\n" + "\n".join(found[:60])


def test_no_variable_has_a_name_that_says_nothing() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in files()
        for line, name in bound_names(path.read_text())
        if name.strip("_") in NAMES and (path.parent.name, name) != ("api", "place")  # a public verb, by AMP's word
    ]
    assert not found, f"{len(found)}:\n" + "\n".join(found[:60])


def test_docstrings_begin_as_sentences_that_stand_alone() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text[:60]!r}"
        for path in files()
        for line, text, docstring in read_by_people(path)
        if docstring and text.startswith(BEGINNINGS)
    ]
    assert not found, f"{len(found)}:\n" + "\n".join(found[:60])
