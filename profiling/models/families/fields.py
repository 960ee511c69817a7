"""What a family is, and what its builder works with: a configuration's fields, checked one by one, and the units of a chain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from trainplan.profiling.base.errors import InputError, shown
from trainplan.profiling.models.sublayers import Activation, Sublayer

LARGEST = 10**7
MOST_LAYERS = 4096

ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "gelu_fast": "gelu_tanh",
    "relu2": "relu2",
    "silu": "silu",
    "swish": "silu",
}


Role = Literal["hidden", "heads", "inner", "vocabulary", "positions", "width"]
USUAL_SIZES: dict[Role, str] = {
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "inner": "intermediate_size",
    "vocabulary": "vocab_size",
    "positions": "max_position_embeddings",
}


@dataclass(frozen=True)
class Unit:
    """One sub-layer of the chain. `layer` numbers the layers that a planner decides on: embedding 0, blocks 1.., head last."""

    name: str
    layer: int
    sublayer: Sublayer

    @property
    def kind(self) -> str:
        """The kind of the sub-layer, such as `attention`."""
        return self.sublayer.kind


@dataclass
class Fields:
    """A configuration under reading. Every fault is an InputError naming the field.

    sequence: the length asked for (None: the configuration's largest). part: where in its file the configuration lies, such as
    `text_config.`, for errors. read: collects what was used.
    """

    config: Mapping[str, Any]
    where: str
    sequence: int | None = None
    dtype: str = "float32"
    part: str = ""
    read: dict[str, Any] = field(default_factory=dict)

    def fail(self, name: str, problem: str, fix: str) -> InputError:
        """The error, to be raised, about one field of this configuration."""
        return InputError(self.where, self.part + name, problem, fix)

    def _value(self, name: str, default: Any, such_as: Any = None) -> Any:
        value = self.config.get(name)
        if value is None:
            value = default
        if value is None:
            example = "" if such_as is None else f", such as {such_as}"
            raise self.fail(name, "is missing", f"give it{example}: sizes are not assumed")
        self.read[name] = value
        return value

    def _check(self, name: str, value: Any, right: bool, fix: str) -> None:
        if not right:
            raise self.fail(name, f"is {shown(value)}", fix)

    def count(
        self, name: str, default: int | None = None, least: int = 1, most: int = LARGEST, such_as: int | None = None
    ) -> int:
        """A whole number from `least` to `most`. such_as: an example for the error where it is missing without a default."""
        value = self._value(name, default, such_as)
        self._check(name, value, type(value) is int and least <= value <= most, f"give a whole number from {least} to {most}")
        return int(value)

    def size(self, name: str, such_as: int) -> int:
        """A size of the architecture, which has no default: a file that lacks it would be another model in silence."""
        return self.count(name, such_as=such_as)

    def layers(self, name: str, default: int | None = None, such_as: int | None = None) -> int:
        """A number of layers: at least one, at most `MOST_LAYERS`."""
        return self.count(name, default, most=MOST_LAYERS, such_as=such_as)

    def side(self, name: str, such_as: int) -> int:
        """The side of a square, which has no default, given as one number or as a list of two equal ones."""
        value = self.config.get(name)
        if isinstance(value, list) and len(value) == 2 and value[0] == value[1]:
            self.config = {**self.config, name: value[0]}
        return self.size(name, such_as)

    def counts(self, name: str, such_as: list[int], least: int = 1, length: int | None = None) -> list[int]:
        """A list of whole numbers from `least` on, which has no default: of `length`, or of any length up to 16."""
        value = self._value(name, None, such_as)
        right = isinstance(value, list) and 1 <= len(value) <= 16 and length in (None, len(value))
        self._check(name, value, right, f"give a list of {length or 'up to 16'} whole numbers")
        for i, item in enumerate(value):
            right = type(item) is int and least <= item <= LARGEST
            self._check(f"{name}[{i}]", item, right, f"give a whole number from {least} to {LARGEST}")
        return list(value)

    def share(self, name: str, default: float, most: float = 1.0) -> float:
        """A number above 0 and below `most`."""
        value = self._value(name, default)
        right = type(value) in (int, float) and 0 < value < most
        self._check(name, value, right, f"give a number between 0 and {most:g}, such as {default:g}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """A value that is true or false."""
        value = self._value(name, default)
        self._check(name, value, isinstance(value, bool), "give true or false")
        return bool(value)

    def activation(self, name: str, default: str, spellings: Mapping[str, Activation] = ACTIVATIONS) -> Activation:
        """An activation function, by one of the spellings that configurations have for it."""
        value = self._value(name, default)
        self._check(name, value, isinstance(value, str) and value in spellings, f"give {' or '.join(map(repr, spellings))}")
        return spellings[value]

    def dropout(self, name: str, default: float = 0.1) -> float:
        """A probability of dropout."""
        value = self._value(name, default)
        right = type(value) in (int, float) and 0 <= value < 1
        self._check(name, value, right, "give a probability from 0 to below 1, such as 0.1")
        return float(value)

    def counted_dropout(self, name: str, default: float = 0.1) -> float:
        """A probability of dropout in a model that does not run: of unfused code its masks are counted, else it is 0."""
        probability = self.dropout(name, default)
        return probability if self.unfused else 0.0

    def padding(self, vocabulary: int, default: int | None = None) -> int | None:
        """The token that fills samples up, `pad_token_id`, which may be counted from the vocabulary's end; None without one."""
        value = self.config.get("pad_token_id", default)
        right = value is None or (type(value) is int and -vocabulary <= value < vocabulary)
        self._check("pad_token_id", value, right, f"give null, or a token below vocab_size = {vocabulary}")
        if value or value != default:  # a default beyond 0 is noted, for when the vocabulary is made smaller
            self.read["pad_token_id"] = value
        return None if value is None else int(value) % vocabulary

    def absent(self, *names: str) -> None:
        """Refuse features that no chain of trainplan's has."""
        for name in names:
            value = self.config.get(name)
            self._check(name, value, not value, "give false: trainplan's models do not have it")

    def note(self, *names: str, usual: Any = False) -> None:
        """Note fields that change results but no shape: planned as they are, refused where a plan runs (`execution.run`)."""
        for name in names:
            if (value := self.config.get(name)) is not None and value != usual:
                self.read[name] = value

    def only(self, name: str, value: Any) -> None:
        """Refuse any other value of a field that trainplan's models have no choice of."""
        configured = self.config.get(name, value)
        self._check(name, configured, configured in (None, value), f"give {shown(value)}: trainplan's models have no other")

    def divisor(self, name: str, value: int, of: str, size: int) -> None:
        """Refuse a value that does not divide `size`, which errors call `of`."""
        if size % value:
            raise self.fail(name, f"is {value}", f"give a divisor of {of} = {size}")

    def length(self, name: str, usual: int, most: int | None = None) -> int:
        """The sequence length asked for, else the usual one, at most what the model's positions allow (default: the usual)."""
        length, most = usual if self.sequence is None else self.sequence, usual if most is None else most
        if not 1 <= length <= most:
            fix = f"give 1 to {most} ({name} of {self.where}), or a config.json with more"
            raise InputError("command line", "--sequence", f"is {length}", fix)
        return length

    def no_length(self) -> None:
        """Refuse a sequence length that was asked for: the image gives the number of tokens."""
        if self.sequence is not None:
            raise InputError("command line", "--sequence", f"is {self.sequence}", "leave it out: the image gives the tokens")

    def labels(self) -> int:
        """The number of classes: `num_labels`, else as many as `id2label` names, else 2."""
        labels = self.config.get("id2label")
        return self.count("num_labels", len(labels) if isinstance(labels, Mapping) and labels else 2)

    @property
    def unfused(self) -> bool:
        """Whether the configuration asks for attention of separate kernels."""
        return self.config.get("attn_implementation", self.config.get("_attn_implementation")) == "eager"

    def common(self, epsilon: float) -> dict[str, Any]:
        """The keyword arguments that all sub-layers of the chain share: dtype, epsilon of norms, unfused attention."""
        if self.unfused:
            self.read["attn_implementation"] = "eager"
        return {"dtype": self.dtype, "epsilon": epsilon, "unfused": self.unfused}


def chain(embedding: Sublayer, blocks: Sequence[Mapping[str, Sublayer]], head: Sublayer) -> list[Unit]:
    """An embedding, blocks of these parts by name, and a head."""
    middle = [Unit(f"block{i}.{name}", i + 1, part) for i, parts in enumerate(blocks) for name, part in parts.items()]
    return [Unit("embedding", 0, embedding), *middle, Unit("head", len(blocks) + 1, head)]


def uniform_chain(embedding: Sublayer, layers: int, parts: Mapping[str, Sublayer], head: Sublayer) -> list[Unit]:
    """An embedding, `layers` equal blocks of these parts, and a head."""
    return chain(embedding, [parts] * layers, head)


@dataclass(frozen=True)
class Family:
    """What trainplan knows of one model family; the group `trainplan.families` of entry points refers to such objects.

    build: reads a configuration and returns its chain, and whether the head's matrix is the embedding's; raises InputError.
    sizes: the configuration's fields by what they stand for, which `Model.scaled` makes smaller; empty where it cannot.
    fields: all that configurations of the family may have, beside what those of every family may (`naming.COMMON`); a field
    that is none of them is refused or warned of; None where the family does not say, and its builder alone judges. aliases:
    other names of some of them, by which they may be given as well.
    """

    build: Callable[[Fields], tuple[list[Unit], bool]]
    sizes: Mapping[Role, str] = field(default_factory=dict)
    fields: frozenset[str] | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)


def names(text: str) -> frozenset[str]:
    """The names in a text, apart by blanks."""
    return frozenset(text.split())
