"""The words of all that users read: those of the field, no private ones. The table says what is written in their place."""

from __future__ import annotations

import re

import pytest

from tests.helpers.user_texts import ROOT, exports, helps, literals, notebooks, pages, reference, report_page

BETTER = {  # what is not written, as a pattern: what is, in its place
    r"\bbesides?\b(?!: )": "alongside, next to, with, in addition to",
    r"\bbehind\b": "after; during",
    r"(?<!\.)\blanes?\b": "streams; overlap",
    r"\blots\b": "micro-batches, samples",
    r"\brooms?\b": "memory, package",
    r"(?<!\.)\bclaim(s|ed|ing)?\b": "the solver's objective; says",
    r"\bbound of (the )?(claim|walks?)\b": "proven lower bound",
    r"\bwalk(s|ed|ing)?\b": "prediction; simulate",
    r"\bcosts (streams|executed)\b": "with overlap, without overlap",
    r"\bbut for\b": "without, except for",
    r"\bimports apart\b": "plus 0.7 s imports",
    r"\bat most on any rank\b": "peak 2.47 of 24 GiB",
    r"\bone thing at a time\b|\bone lane\b": "without overlap",
    r"\bno order of whole passes\b": "reordering passes gains at most 0.8 %",
    r"\bwhat the first of th(em|ese)\b": "changing one layer only",
    r"\bproven under\b": "search space",
    r"\bmemory claimed\b": "memory (solver)",
    r"\b(could|can) have instead\b": "changing one sub-layer only",
    r"\b(no|all|every|which|several|of|the) units\b(?!\[)|\b(no|every|which|the) unit\b(?!\[)": "sub-layers",
    r"\bproducts (of|in|by|take|reach|\d)|\bmatrix products\b": "matrix multiplications",
    r"\bno part of a? ?plans?\b": "ignored (no effect on speed); not planned",
    r"\bWhole steps do not tell\b": "step times cannot calibrate kernels",
    r"\bA cluster, a model, a start\b": "Plan and launch",
    r"\bgive a valid integer\b": "accept 8k",
    r"\bis of a plan with\b": "no trace yet for plans like this",
    r"\bcopies of shards, too\b|\bhold copies of shards\b": "Allow HSDP",
    r"\bfor the least simulated step\b": "Find the fastest plan that fits",
    r"\b[Hh](eld|old) (side by side|against)\b": "compare",
    r"\bat least \d{6,}\b|\b\d{9,} bytes\b(?! \()|\d{6,}B\b": "needs 102.4 GiB a GPU, or 96 GPUs",
    r"\bby (its|their|the) walks?\b": "as predicted",
    r"\bwhat \w+ each\b": "say which",
}
ALLOWED = {  # texts that are not for users, or are names that files and other tools have
    r'"""Train .* as (\S+)(?: and (run\.json))? (?:beside|next to) this file says?\b': "how older exports begin",
    "memory walk": "how a run's file names what its memory was predicted by",
}
ANY = re.compile("|".join(f"(?:{word})" for word in BETTER), re.IGNORECASE)


def findings(texts: list[tuple[str, str]]) -> list[str]:
    """The place, the word and the better one, of each text that has one of the words."""
    found = []
    for where, text in texts:
        if not ANY.search(text) or text.strip() in ALLOWED:
            continue
        for word, better in BETTER.items():
            if match := re.search(word, text, re.IGNORECASE):
                around = " ".join(text[max(0, match.start() - 40) : match.end() + 40].split())
                found.append(f"{where}: {match[0]!r} -> {better}: {around}")
    return found


@pytest.mark.parametrize(
    "texts", [helps, pages, notebooks, report_page, literals, exports, reference], ids=lambda value: value.__name__
)
def test_words_are_those_of_the_field(texts: object) -> None:
    read = [text for text in texts() if text[1].strip()]  # type: ignore[operator]
    assert len(read) > 20
    found = findings(read)
    assert not found, f"{len(found)} places:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "text", ["Beside it stands the best plan", "4.1 s claimed", "by the walks", "needs at least 109915932920B"]
)
def test_such_words_are_found(text: str) -> None:
    assert findings([("here", text)])


def test_terms_of_the_screen_are_in_the_glossary() -> None:
    page = (ROOT / "docs/glossary.md").read_text()
    terms = {
        "DP",
        "TP",
        "PP",
        "CP",
        "SP",
        "VPP",
        "ZeRO",
        "HSDP",
        "MFU",
        "Micro-batch",
        "Bubble",
        "Recomputation",
        "Strategy",
        "Gap",
    }
    terms |= {"Exposed communication", "Search space", "Solver's objective", "Proven lower bound", "Prediction", "Sub-layer"}
    assert not [term for term in terms if f"**{term}**" not in page]
    for path in ("README.md", "docs/index.md", "mkdocs.yml"):
        assert "glossary.md" in (ROOT / path).read_text(), path
