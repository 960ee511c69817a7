"""What a script takes by place: which values nobody has said, the variables that they are copied to, and values that the script
itself compares them with."""

from __future__ import annotations

import re
from collections.abc import Collection

from trainplan.execution.launch_files.run_configuration import example_of

COPIED = re.compile(
    r"^[ \t]*(?:(?:export|declare|readonly)[ \t]+)?([A-Za-z_]\w*)=[\"']?\$(?:\{(\d+)\b[^}]*\}|(\d))[\"']?[ \t]*(?:[#;].*)?$",
    re.M,
)
WORD = r"[\"']?([A-Za-z0-9][\w.+-]*)"


def asked(text: str, places: Collection[int]) -> tuple[str, str]:
    """What is missing, and how to say it. text: of the script; places: the numbers that nobody has said."""
    names: dict[int, str] = {}
    for match in COPIED.finditer(text):
        names.setdefault(int(match[2] or match[3]), match[1])
    parts = []
    for index in sorted(places):
        name = names.get(index, "")
        parts.append(f"--set {index}={_value(text, index, name)}" + f" ({name})" * bool(name))
    return f"takes {len(parts)} values by place that nobody has said", " ".join(parts)


def _value(text: str, place: int, name: str) -> str:
    """A value that a text compares a place or its variable with; else one that is usual for such a name."""
    spelt = "|".join([rf"\$\{{?{place}\b", *([rf"\$\{{?{name}\b"] if name else [])])
    compared = re.search(rf"(?:{spelt})\}}?[\"']?[ \t]*(?:==?|!=|-eq|-ne)[ \t]*{WORD}", text)
    chosen = re.search(rf"\bcase[ \t]+[\"']?(?:{spelt})\}}?[\"']?[ \t]+in\s+\(?{WORD}", text)
    found = compared or chosen
    if found:
        return found[1]
    return example_of(name.lower().replace("_", "-"), name) if name else "..."
