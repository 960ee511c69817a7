"""What a configuration of any runtime says, in one form; and the reader of its keys, which knows what was read."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal

from trainplan.formulations.step.schedules import PlanSchedule
from trainplan.formulations.strategies import Exchange, Module
from trainplan.profiling.base.errors import InputError, one_of, shown
from trainplan.profiling.clusters.recipes import RecipeName
from trainplan.profiling.models.optimizers import OptimizerName
from trainplan.profiling.models.precision import PLAIN, Precision

Host = Literal["optimizer", "parameters"]


@dataclass(frozen=True)
class Recomputed:
    """What layers compute again in their backward passes. of: every layer whole (full), none, or some modules of each (then in
    `modules`). every: each such layer alone, such as 2 for every second; first: the first ones of each stage alone."""

    of: Literal["none", "full", "modules"] = "none"
    modules: tuple[Module, ...] = ()
    every: int = 1
    first: int | None = None


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """What a file says of a run. Where a field is None, the file leaves it open.

    runtime: as exports are called; software: whose defaults hold, as rows of measured runs name it; flags: words of a row's
    note that say what it overlaps and steps by. model: a shipped name; config: fields of a Hugging Face configuration, where
    the file describes the model. vocabulary_multiple: what the vocabulary is padded to. devices: of the whole run.
    micro_samples: of one micro-batch on one rank; accumulation: micro-batches of a step; samples: of a step. copies, shard:
    data-parallel ranks with copies of states, and those that share them; zero: ZeRO's stage among these. exchange: what
    context-parallel ranks exchange. cuts: first unit of each stage after the first; layers_apart: layers that the first and the
    last stage have less where cuts are left open. recipe: of the products of layers in fewer bits than dtype. host: states kept
    there. optimizer: what steps the parameters. keys: the key of the file that says a field, for errors. notes: what is taken
    otherwise than the file says it. unread: keys that change no plan; unknown: keys that nobody knows.
    """

    where: str
    runtime: str
    software: str
    flags: str = ""
    model: str | None = None
    config: Mapping[str, Any] | None = None
    vocabulary_multiple: int = 1
    dtype: str | None = None
    precision: Precision = PLAIN
    recipe: RecipeName | None = None
    sequence: int | None = None
    devices: int | None = None
    samples: int | None = None
    micro_samples: int | None = None
    accumulation: int | None = None
    tp: int = 1
    cp: int = 1
    exchange: Exchange = "keys"
    pp: int = 1
    chunks: int = 1
    copies: int | None = None
    shard: int | None = None
    zero: Literal[0, 1, 2, 3] = 0
    sequence_parallel: bool = False
    schedule: PlanSchedule = "1f1b"
    cuts: tuple[int, ...] | None = None
    layers_apart: tuple[int, int] = (0, 0)
    recomputed: Recomputed = Recomputed()
    host: tuple[Host, ...] = ()
    optimizer: OptimizerName = "adamw"
    keys: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    def error(self, name: str, problem: str, fix: str) -> InputError:
        """An error of a field, by the key that says it."""
        return InputError(self.where, self.keys.get(name, name), problem, fix)


class Keys:
    """The keys of a file and their values, and which of them have been read. Numbers may be written as texts, as arguments
    of commands are. automatic: values that leave a key open."""

    def __init__(self, where: str, values: Mapping[str, Any], automatic: Collection[Any] = (None,)) -> None:
        self.where, self.values, self.automatic = where, values, tuple(automatic)
        self.read: set[str] = set()

    def error(self, key: str, problem: str, fix: str) -> InputError:
        """An error of a key."""
        return InputError(self.where, key, problem, fix)

    def get(self, key: str) -> Any:
        """The value, or None where the key is not there or left open."""
        self.read.add(key)
        value = self.values.get(key)
        return None if any(value is each or value == each for each in self.automatic if type(value) is type(each)) else value

    def whole(self, key: str, default: int | None = None, least: int = 1) -> int | None:
        """A whole number. Raises InputError."""
        value = self.get(key)
        if value is None:
            return default
        if isinstance(value, str) and re.fullmatch(r"[+-]?\d{1,18}", value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.error(key, f"is {shown(value)}", f"give a whole number of at least {least}{_unset(value)}")
        return value

    def number(self, key: str, default: float) -> float:
        """A number. Raises InputError."""
        value = self.get(key)
        try:
            return default if value is None else float(value)
        except (TypeError, ValueError):
            raise self.error(key, f"is {shown(value)}", f"give a number, such as {default:g}{_unset(value)}") from None

    def flag(self, key: str, default: bool = False) -> bool:
        """Whether it is set; arguments that stand alone are. Raises InputError."""
        value = self.get(key)
        if value is None:
            return default
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in ("true", "yes", "1", "", "false", "no", "0"):
            return value.lower() in ("true", "yes", "1", "")
        raise self.error(key, f"is {shown(value)}", "give true or false")

    def text(self, key: str, default: str, choices: Collection[str] = ()) -> str:
        """A text, one of the choices where there are some. Raises InputError."""
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, str) or (choices and value not in choices):
            fix = one_of(value, choices) if choices else f"give a text, such as {default!r}"
            raise self.error(key, f"is {shown(value)}", fix)
        return value

    def refuse(self, key: str, neutral: Collection[Any], why: str) -> None:
        """Raises InputError where a key asks for what no plan has."""
        value = self.get(key)
        if value is None or str(value).lower() in {str(each).lower() for each in neutral}:
            return
        raise self.error(key, f"is {shown(value)}", f"leave it out, or give {next(iter(neutral))}: {why}")

    def left(self, documented: Collection[str], known_starts: Collection[str] = ()) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Of the keys that were not read, those that are documented, and change no plan; and those that nobody knows, with
        what each may have meant."""
        rest = [key for key in self.values if key not in self.read]
        fine = [key for key in rest if key in documented or key.startswith(tuple(known_starts) or ("\0",))]
        every = {*documented, *self.read}
        unknown = []
        for key in rest:
            if key not in fine:
                near = get_close_matches(key, every, n=1, cutoff=0.8)
                unknown.append(key + (f" (did you mean {near[0]}?)" if near else ""))
        return tuple(fine), tuple(unknown)


def _unset(value: Any) -> str:
    """What to do about a variable that a script does not set."""
    name = re.search(r"\$\{?(\w+)", value) if isinstance(value, str) else None
    return f", or say what the variable is: --set {name[1]}=8" if name else ""


def flattened(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, keys joined by dots; empty tables are left out."""
    flat: dict[str, Any] = {}
    for key, each in value.items():
        if isinstance(each, Mapping):
            flat |= flattened(each, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = each
    return flat
