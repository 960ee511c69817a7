"""More than 300 hostile files of more than 30 kinds, at most 10 of a kind, over all file formats of trainplan.

Each ends the command with exit code 2 and one line that names the file, and the field where there is one: no traceback, nothing
on standard output, nothing written. The commands run in this process, by the entry point that users call.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trainplan.profiling.base.files import LARGEST_FILE_BYTES
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.models.model import load_model

import trainplan as tp
from tests.helpers.assignments import random_assignment_dict
from tests.helpers.cluster_instances import random_cluster_dict
from tests.helpers.instances import random_pipeline_dict
from tests.helpers.partition_instances import random_partition_dict
from tests.helpers.plans import GPT2, plan_of
from tests.helpers.small_models import estimate
from tests.helpers.switch_instances import random_instance as random_switches
from trainplan.command import main

MOST_OF_A_KIND = 10

# Where formats have a field of each type: a whole number above 0, a text, a list whose length matters, an object.
FIELDS: dict[str, dict[str, str]] = {
    "layer-strategies": {
        "number": "memory_bytes",
        "text": "layers[0].options[0].strategy",
        "list": "transitions_ns",
        "object": "layers[0]",
        "index": "layers[1].like",
    },
    "pipeline": {
        "number": "batch",
        "text": "layer_names[0]",
        "list": "layer_kinds",
        "object": "configurations[0]",
        "index": "configurations[0].transitions_ns[0]",
    },
    "stage-assignment": {"number": "micro_batches", "text": "name", "list": "parameters", "object": "memory"},
    "cluster-strategy": {
        "number": "batch",
        "text": "kinds[0].name",
        "list": "reductions",
        "object": "network",
        "index": "devices[0].kind",
    },
    "pipeline-partition": {"number": "stages", "text": "names[0]", "list": "backward_ns", "object": "memory"},
    "memory-switches": {"number": "memory_bytes", "text": "layers[0].name", "object": "layers[0]"},
    "galvatron-engine": {
        "number": "configurations[0].stages",
        "text": "configurations[0].options[0][0].strategy",
        "list": "boundary_kinds",
        "object": "configurations[0].options[0][0]",
    },
    "plan": {"number": "world", "text": "model_digest", "list": "units", "object": "batch", "index": "stages[0].first_unit"},
    "profile": {"number": "devices", "text": "cluster", "list": "sublayers", "object": "network", "index": "units[1].layer"},
    "cluster": {"number": "kinds[0].memory_bytes", "text": "kinds[0].name", "list": "kinds", "object": "nodes[0]"},
    "model": {"number": "embed_dim", "text": "hidden_act", "list": "depths"},
    "layer-strategies-solution": {"number": "choice[0]", "list": "choice"},
    "pipeline-solution": {"number": "configuration", "list": "stages"},
    "cluster-strategy-solution": {"number": "pp", "list": "placement"},
    "pipeline-partition-solution": {"number": "cuts[0]", "list": "cuts"},
    "memory-switches-solution": {"text": "switches[0][0]", "list": "switches"},
}
SOLUTION = "-solution"
VERSIONED = ("layer-strategies", "pipeline", "stage-assignment", "cluster-strategy", "pipeline-partition", "memory-switches")
VERSIONED = (*VERSIONED, "galvatron-engine", "plan", "profile")


@cache
def base(name: str) -> Any:
    """A small file of the format, as a value, that trainplan reads."""
    rng = random.Random(5)
    if name.endswith(SOLUTION):
        solved = tp.solve(base(name.removesuffix(SOLUTION)), "exact")
        assert solved.solution is not None
        return solved.solution
    if name == "layer-strategies":
        option = {"strategy": "dp2", "time_ns": 5, "forward_bytes": 1, "backward_bytes": 1, "state_bytes": 1}
        options = [option, {**option, "strategy": "tp2"}]
        layers = [{"name": "first", "options": options}, {"name": "second", "like": 0}]
        return {**head(name), "memory_bytes": 1000, "layers": layers, "transitions_ns": [[[0, 1], [1, 0]]]}
    if name in ("pipeline", "galvatron-engine"):
        record = random_pipeline_dict(rng) | {"memory_bytes": 2**47, "problem": name}
        for configuration in record["configurations"]:
            configuration["schedule"] = "1f1b"
        return record
    if name == "stage-assignment":
        record = random_assignment_dict(rng, 6, 3, memory=True)
        return record | {"name": "chain"}
    if name == "cluster-strategy":
        return random_cluster_dict(rng, 4, 4) | {"within_memory": False}
    if name == "pipeline-partition":
        record = random_partition_dict(rng, 6, 3, memory=True)
        length = len(record["forward_ns"])
        record["memory"]["limit_bytes"] = 2**40
        return record | {"names": [f"unit {index}" for index in range(length)], "stages": min(2, length)}
    if name == "memory-switches":
        record = random_switches(np.random.default_rng(1), 2).to_dict() | {"memory_bytes": 2**40}
        record["layers"] = [{"name": "layer", **layer} for layer in record["layers"]]
        return record
    if name == "plan":
        plan = plan_of(GPT2, ["dp2"] * len(GPT2.units), 4, 8, 2, cuts=(3,))
        return plan.model_dump(mode="json", exclude_none=True)
    if name == "profile":
        return estimate(GPT2, load_cluster("cpu-4"), 4, 8).model_dump(mode="json")
    if name == "cluster":
        return load_cluster("cpu-4").model_dump(mode="json", exclude_none=True)
    assert name == "model"
    return dict(load_model("swin-tiny", dtype="float32").config)


def head(name: str) -> dict[str, Any]:
    return {"problem": name, "version": 1}


def words(name: str, path: Path, folder: Path) -> list[str]:
    """A command that reads the file, and would write another one."""
    target = str(folder / "written.json")
    if name.endswith(SOLUTION):
        instance = folder / "instance.json"
        instance.write_text(json.dumps(base(name.removesuffix(SOLUTION))))
        return ["check", str(instance), str(path)]
    if name == "plan":
        return ["simulate", str(path), "--cluster", "cpu-4", "--trace", target]
    if name in ("profile", "cluster", "model"):
        other = {"profile": [], "cluster": ["--model", "gpt2", "--sequence", "16"], "model": ["--cluster", "cpu-4"]}[name]
        return ["build", "layer-strategies", f"--{name}", str(path), *other, "--batch", "8", "-o", target]
    return ["solve", str(path), "--method", "exact", "--time-limit", "60", "-o", target]


def steps(path: str) -> list[str | int]:
    """``layers[0].name`` as the keys on the way."""
    return [int(part) if part.isdecimal() else part for part in re.findall(r"[^.\[\]]+", path)]


def changed(name: str, path: str, change: Callable[[Any, Any], None]) -> Any:
    """The format's base file after `change` of what holds a field, given that and the field's key."""
    record = deepcopy(base(name))
    holder = record
    *way, last = steps(path)
    for key in way:
        holder = holder[key]
    change(holder, last)
    return record


def put(value: Any) -> Callable[[Any, Any], None]:
    """Puts a value in the field's place."""
    return lambda holder, key: holder.__setitem__(key, value)


def apply(function: Callable[[Any], Any]) -> Callable[[Any, Any], None]:
    """Puts what the function makes of the field in its place."""
    return lambda holder, key: holder.__setitem__(key, function(holder[key]))


@dataclass(frozen=True)
class Hostile:
    """A file of a format: what it holds, or what makes something else than a file at its path. field: what the line must
    name next to the file."""

    name: str
    content: bytes | Callable[[Path], Any]
    field: str = ""


def text_of(name: str) -> str:
    return json.dumps(base(name), indent=1)


# Faults of a field: its type, what happens to it, and what JSON cannot say otherwise, put in place of "@".
FIELD_FAULTS: dict[str, tuple[str, Callable[[Any, Any], None], str | None]] = {
    "a text in place of a number": ("number", put("many"), None),
    "a number in quotes": ("number", put("12"), None),
    "a fraction of a whole number": ("number", put(1.5), None),
    "a boolean in place of a number": ("number", put(True), None),
    "null in place of a number": ("number", put("@"), "null"),
    "a list in place of a number": ("number", put([1]), None),
    "a negative size": ("number", put(-1), None),
    "a number of 31 digits": ("number", put(10**30), None),
    "a number of 5,000 digits": ("number", put("@"), "9" * 5000),
    "NaN": ("number", put("@"), "NaN"),
    "Infinity": ("number", put("@"), "Infinity"),
    "a number in place of a text": ("text", put(7), None),
    "a list in place of a text": ("text", put(["text"]), None),
    "half a character (a lone surrogate)": ("text", put("block\ud800"), None),
    "an object in place of a list": ("list", put({"first": 1}), None),
    "a text in place of a list": ("list", put("0, 1"), None),
    "a list in a list": ("list", apply(lambda items: [items]), None),
    "an empty list": ("list", put([]), None),
    "a list with one item too few": ("list", apply(lambda items: items[:-1]), None),
    "a list in place of an object": ("object", put([1, 2]), None),
    "a number in place of an object": ("object", put(3), None),
    "an empty object": ("object", put({}), None),
    "an unknown field": ("object", apply(lambda fields: {**fields, "colour": "red"}), None),
    "a place that there is not": ("index", put(10**6), None),
}
# What these leave is a file that is read: other solutions violate an instance.
READ_ALL_THE_SAME = {
    ("null in place of a number", "model"),  # as configurations leave a field out
    ("a number of 31 digits", "layer-strategies-solution"),
    ("a number of 31 digits", "pipeline-solution"),
    ("a number of 31 digits", "pipeline-partition-solution"),
    ("a list with one item too few", "layer-strategies-solution"),
    ("a list with one item too few", "pipeline-solution"),
    ("a list with one item too few", "cluster-strategy-solution"),
    ("a list with one item too few", "pipeline-partition-solution"),
    ("a list with one item too few", "memory-switches-solution"),
    ("an empty list", "layer-strategies-solution"),
    ("an empty list", "pipeline-partition-solution"),
}
# Where a line names something else than the field: its place in the text, or the other of two fields that do not agree.
ELSEWHERE = {
    ("a number of 5,000 digits", ""): "line",
    ("half a character (a lone surrogate)", "cluster"): "line",
    ("a list with one item too few", "profile"): "sublayer",
    ("a list with one item too few", "model"): "num_heads",
}
VERSIONS: dict[str, Any] = {"true": True, "a later one": 9, "a text": "1", "1.0": 1.0}


def field_faults(kind: str) -> Iterator[Hostile]:
    wanted, change, raw = FIELD_FAULTS[kind]
    for name, fields in FIELDS.items():
        if wanted in fields and (kind, name) not in READ_ALL_THE_SAME:
            text = json.dumps(changed(name, fields[wanted], change))
            field = ELSEWHERE.get((kind, name)) or ELSEWHERE.get((kind, "")) or leaf(fields[wanted])
            yield Hostile(name, text.replace('"@"', raw).encode() if raw else text.encode(), field)


def leaf(path: str) -> str:
    """The last name of a path, which a line must have where the fault lies within the field, or next to it."""
    return [str(step) for step in steps(path) if isinstance(step, str)][-1]


def without_field(kind: str) -> Iterator[Hostile]:
    for name, fields in FIELDS.items():
        for wanted in ("number", "list"):
            if wanted in fields and "[" not in fields[wanted] and not (name == "model" or fields[wanted] == "parameters"):
                record = changed(name, fields[wanted], lambda holder, key: holder.pop(key))
                yield Hostile(name, json.dumps(record).encode(), fields[wanted])
                break


def other_versions(kind: str) -> Iterator[Hostile]:
    value = VERSIONS[kind.removeprefix("version ")]
    for name in VERSIONED:
        yield Hostile(name, json.dumps({**base(name), "version": value}).encode(), "version")


def twice(kind: str) -> Iterator[Hostile]:
    for name in FIELDS:
        first = next(iter(base(name)))
        text = json.dumps(base(name))
        yield Hostile(name, (text[:-1] + f", {json.dumps(first)}: 1" + "}").encode(), first)


def names_of_nothing(kind: str) -> Iterator[Hostile]:
    for name in VERSIONED[:7]:
        yield Hostile(name, json.dumps({**base(name), "problem": "perpetual-motion"}).encode(), "problem")
    yield Hostile("plan", json.dumps({**base("plan"), "format": "trainplan-dream"}).encode(), "format")
    yield Hostile("profile", json.dumps({**base("profile"), "format": "trainplan-dream"}).encode(), "format")
    yield Hostile("model", json.dumps({**base("model"), "model_type": "oracle"}).encode(), "model_type")


# Stages, spans and islands that overlap, go back or leave gaps; sums that no number holds.
PLACES: dict[str, list[tuple[str, str, Any]]] = {
    "stages, layers or islands that overlap or go back": [
        ("plan", "stages[1].first_unit", 0),
        ("plan", "stages[0].last_unit", 7),
        ("plan", "stages[1].ranks", [0, 1]),
        ("plan", "stages[0].ranks", [1, 0]),
        ("plan", "stages[1].last_unit", 1),
        ("profile", "units[2].layer", 0),
        ("pipeline-partition", "layers", [5, 4, 3, 2, 1, 0]),
        ("cluster", "nodes[0].islands[0].devices", 3),
        ("cluster", "nodes[0].islands[0].first", 2),
        ("layer-strategies", "layers[0].like", 0),
    ],
    "numbers whose sums are too large": [
        ("pipeline", "configurations[0].options[0][0].forward_bytes", 2**48 + 1),
        ("stage-assignment", "micro_batches", 10**6),
        ("pipeline-partition", "micro_batches", 10**5),
        ("memory-switches", "layers[0].backward_ns", 10**14 + 1),
        ("cluster-strategy", "tables[0].layer_ns[0][0]", 2**53),
        ("cluster-strategy", "boundary_bytes[0]", 2**53),
        ("galvatron-engine", "configurations[0].options[0][0].state_bytes", 2**48 + 1),
        ("layer-strategies", "memory_bytes", 2**48 + 1),
        ("profile", "memory_bytes", 2**51),
        ("cluster", "nodes[0].count", 2**20 + 1),
    ],
    "degrees that do not divide": [
        ("plan", "world", 6),
        ("plan", "batch.micro_batches", 3),
        ("plan", "units[0].strategy", "dp3"),
        ("plan", "units[0].strategy", "dp4"),
        ("pipeline", "configurations[0].stages", 3),
        ("pipeline", "configurations[0].micro_batches", 3),
        ("pipeline", "devices", 6),
        ("galvatron-engine", "configurations[0].micro_batches", 5),
        ("model", "num_heads", [3, 5, 12, 24]),
        ("cluster", "nodes[0].devices", 3),
    ],
}


def misplaced(kind: str) -> Iterator[Hostile]:
    for name, path, value in PLACES[kind]:
        record = deepcopy(base(name))
        if kind == "numbers whose sums are too large" and name == "stage-assignment":
            record["layer_ns"] = [10**14] * len(record["parameters"])
        if kind == "numbers whose sums are too large" and name == "pipeline-partition":
            record["forward_ns"] = [10**14] * len(record["forward_ns"])
        holder = record
        *way, last = steps(path)
        for key in way:
            holder = holder[key]
        holder[last] = value
        if path == "layers":
            record["layers"] = record["layers"][-len(record["forward_ns"]) :]
        yield Hostile(name, json.dumps(record).encode(), "")


# Faults of the whole file: what becomes of its text, and what the line must say. Of JSON alone, or of both languages.
TEXT_FAULTS: dict[str, tuple[Callable[[str], bytes], str, bool]] = {
    "an empty file": (lambda text: b"", "empty", False),
    "a blank file": (lambda text: b" \n\t\n ", "empty", False),
    "cut off in the middle": (lambda text: text[: len(text) // 2].encode(), "", False),
    "cut off within the first name": (lambda text: text[:6].encode(), "", False),
    "without its last bracket": (lambda text: text.rstrip().removesuffix("}").encode(), "ends too early", False),
    "two documents in one file": (lambda text: (text + "\n" + text).encode(), "line", True),
    "a comma too many": (lambda text: (text.rstrip().removesuffix("}") + ", }").encode(), " JSON ", True),
    "a comment in JSON": (lambda text: ("// numbers\n" + text).encode(), " JSON ", True),
    "Python in place of JSON": (lambda text: repr(json.loads(text)).encode(), " JSON ", True),
    "random bytes": (lambda text: random.Random(1).randbytes(1000), "UTF-8", False),
    "a picture": (lambda text: b"\x89PNG\r\n\x1a\n" + bytes(100), "UTF-8", False),
    "UTF-16": (lambda text: text.encode("utf-16"), "UTF-8", False),
    "Latin-1": (lambda text: ('{"caf\u00e9": 1, ' + text[1:]).encode("latin-1"), "UTF-8", False),
    "a byte order mark": (lambda text: b"\xef\xbb\xbf" + text.encode(), "", True),
    "a NUL byte": (lambda text: text.replace(":", ":\0", 1).encode(), "", False),
    "lists 100,000 deep": (lambda text: b"[" * 100_000, "", False),
    "objects 100,000 deep": (lambda text: b'{"a":' * 100_000, "", False),
    "a list in place of the whole": (lambda text: f"[{text}]".encode(), "", False),
    "a number in place of the whole": (lambda text: b"3", "", False),
    "a text in place of the whole": (lambda text: b'"plan"', "", False),
    "null in place of the whole": (lambda text: b"null", "", False),
    "half a character in a name": (lambda text: text.replace("{", '{"\\udc00": 1, ', 1).encode(), " character ", False),
}


def text_faults(kind: str) -> Iterator[Hostile]:
    make, field, json_alone = TEXT_FAULTS[kind]
    for name in FIELDS:
        if not json_alone or name != "cluster":
            yield Hostile(name, make(text_of(name)), field)


def too_large(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(LARGEST_FILE_BYTES + 1)  # takes no room on the disk


# Something else than a file at the path.
NO_FILES: dict[str, Callable[[Path], Any]] = {
    "a folder": Path.mkdir,
    "nothing at all": lambda path: None,
    "a pipe": os.mkfifo,
    "a link to itself": lambda path: path.symlink_to(path),
    "more bytes than are read": too_large,
}


def no_files(kind: str) -> Iterator[Hostile]:
    for name in FIELDS:
        yield Hostile(name, NO_FILES[kind])


KINDS: dict[str, Callable[[str], Iterator[Hostile]]] = {
    **dict.fromkeys(FIELD_FAULTS, field_faults),
    "a missing field": without_field,
    **{f"version {name}": other_versions for name in VERSIONS},
    "a field given twice": twice,
    "a format or problem that does not exist": names_of_nothing,
    **dict.fromkeys(PLACES, misplaced),
    **dict.fromkeys(TEXT_FAULTS, text_faults),
    **dict.fromkeys(NO_FILES, no_files),
}


@cache
def hostile(kind: str) -> list[Hostile]:
    """The files of a kind, at most 10; other formats come first with every kind, so that all have their turn."""
    made = list(KINDS[kind](kind))
    start = 5 * list(KINDS).index(kind) % len(made)
    return (made[start:] + made[:start])[:MOST_OF_A_KIND]


@dataclass(frozen=True)
class Done:
    code: Any
    stdout: str
    stderr: str


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[[list[str]], Done]:
    """Calls the command in this process, by its entry point."""
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)

    def called(arguments: list[str]) -> Done:
        monkeypatch.setattr(sys, "argv", ["trainplan", *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
        return Done(stopped.value.code, *capfd.readouterr())

    return called


def test_there_are_300_files_of_30_kinds() -> None:
    files = {kind: hostile(kind) for kind in KINDS}
    assert len(files) >= 30 and sum(map(len, files.values())) >= 300
    assert all(1 <= len(listed) <= MOST_OF_A_KIND for listed in files.values())
    assert {entry.name for listed in files.values() for entry in listed} == set(FIELDS)


@pytest.mark.parametrize("name", FIELDS)
def test_without_a_fault_the_file_is_read(name: str, tmp_path: Path, call: Callable[[list[str]], Done]) -> None:
    path = tmp_path / f"{name}.json"
    path.write_text(text_of(name))
    done = call(words(name, path, tmp_path))
    assert done.code in (0, 1), done


@pytest.mark.parametrize("kind", KINDS)
def test_each_ends_in_one_line(kind: str, tmp_path: Path, call: Callable[[list[str]], Done]) -> None:
    faults = []
    for number, entry in enumerate(hostile(kind)):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = folder / f"{entry.name}{'.yaml' if entry.name == 'cluster' else '.json'}"
        if isinstance(entry.content, bytes):
            path.write_bytes(entry.content)
        else:
            entry.content(path)
        requested = words(entry.name, path, folder)
        before = sorted(os.listdir(folder))
        done = call(requested)
        wrong = [
            text
            for text, found in (
                ("exit code", done.code != 2),
                ("lines", done.stderr.count("\n") != 1),
                ("not ours", not done.stderr.startswith("trainplan: ")),
                ("file", path.name not in done.stderr),
                ("field", entry.field not in done.stderr),
                ("output", done.stdout != ""),
                ("written", sorted(os.listdir(folder)) != before),
                ("length", len(done.stderr) > 1000),
            )
            if found
        ]
        if wrong:
            faults.append((entry.name, entry.field, wrong, done.code, done.stdout[:100], done.stderr[-500:]))
    assert not faults, "\n".join(map(str, faults))
