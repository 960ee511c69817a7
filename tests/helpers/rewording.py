"""A plug-in of pytest that rewords every refusal of bad input: ``pytest -p tests.helpers.rewording`` shows which tests depend
on a wording (recorded screens do, on purpose) rather than on the refused field and its facts."""

from __future__ import annotations

import re

from trainplan.profiling.base.errors import InputError

INSTEAD = {
    "is": "reads",
    "are": "read",
    "has": "holds",
    "have": "hold",
    "give": "supply",
    "leave it out": "remove it",
    "leave out": "remove",
    "missing": "absent",
    "one of": "any among",
    "did you mean": "perhaps",
    "takes": "wants",
    "needs": "requires",
    "not": "hardly",
    "no": "zero",
    "only": "solely",
    "with": "along with",
    "or": "otherwise",
    "and": "plus",
    "the": "that",
    "a": "some",
    "an": "some",
    "of": "from",
    "for": "towards",
    "which": "that",
    "it": "this",
    "them": "these",
    "more than": "beyond",
    "at least": "no less than",
    "at most": "no more than",
}
# Words that are parts of names (``a.yaml``, ``tp=a``, ``and/or``) are left alone.
_WORDS = re.compile(r"(?<![\w`'.=/-])(" + "|".join(sorted(INSTEAD, key=len, reverse=True)) + r")(?![\w`'=/-]|\.\w)")


def reworded(text: str) -> str:
    """The text with its common words exchanged; text in backticks or quotation marks stays."""
    parts = re.split(r"(`[^`]*`|'[^']*'|\"[^\"]*\")", text)
    return "".join(part if index % 2 else _WORDS.sub(lambda found: INSTEAD[found[1]], part) for index, part in enumerate(parts))


def pytest_configure() -> None:
    """Makes InputError reword the problem and the fix of every error of this process."""
    original = InputError.__init__

    def anew(self: InputError, where: str, field: str, problem: str, fix: str) -> None:
        original(self, where, field, reworded(problem), reworded(fix))

    InputError.__init__ = anew  # type: ignore[method-assign]
