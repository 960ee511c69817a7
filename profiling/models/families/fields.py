"""The reading of a configuration's fields one by one with their checks, and the records of a model family and of a chain's
units."""

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
    """One sub-layer of a model's chain, with its unique name. `layer` is the index of the layer that it belongs to, as
    planners count layers: 0 for the embedding, 1 and on for the blocks, and the last for the head.
    """

    name: str
    layer: int
    sublayer: Sublayer

    @property
    def kind(self) -> str:
        """The kind of the sub-layer, such as `attention`."""
        return self.sublayer.kind


@dataclass
class Fields:
    """The fields of a configuration (config.json) while a model family reads them; every error is an InputError that names the
    field.

    config: the fields. where: the file, for errors. sequence: the requested length in tokens (None: the configuration's
    largest). dtype: name of the parameters' dtype. part: the path of this configuration in its file, such as `text_config.`,
    for errors. planned: whether the model is read to be planned, so that one of which plans are not made yet is refused. read:
    the fields that were used, with their values or defaults; the methods that read a field write to it.
    """

    config: Mapping[str, Any]
    where: str
    sequence: int | None = None
    dtype: str = "float32"
    part: str = ""
    planned: bool = True
    read: dict[str, Any] = field(default_factory=dict)

    def fail(self, name: str, problem: str, fix: str) -> InputError:
        """Build the error about the field `name` of this configuration, for the caller to raise.

        problem: what is wrong, such as "is 0". fix: advice with a value that would work.
        """
        return InputError(self.where, self.part + name, problem, fix)

    def _value(self, name: str, default: Any, such_as: Any = None) -> Any:
        """The value of the configuration's field `name`, or `default` if it is absent; recorded in `read`. Raises InputError
        if both are None.

        such_as: an example of a value for that error; None for no example.
        """
        value = self.config.get(name)
        if value is None:
            value = default
        if value is None:
            example = "" if such_as is None else f", such as {such_as}"
            raise self.fail(name, "is missing", f"give it{example}: sizes are not assumed")
        self.read[name] = value
        return value

    def _check(self, name: str, value: Any, right: bool, fix: str) -> None:
        """Raise InputError about the value of a field unless `right` is true. fix: advice with a value that would work."""
        if not right:
            raise self.fail(name, f"is {shown(value)}", fix)

    def count(
        self, name: str, default: int | None = None, least: int = 1, most: int = LARGEST, such_as: int | None = None
    ) -> int:
        """Read the whole number in a field, from `least` to `most`; `default` if it is absent. Raises InputError for other
        values.

        such_as: an example for the error if the field is missing and has no default.
        """
        value = self._value(name, default, such_as)
        self._check(name, value, type(value) is int and least <= value <= most, f"give a whole number from {least} to {most}")
        return int(value)

    def size(self, name: str, such_as: int) -> int:
        """Read a size, an integer above 0, from a field that must be present, because the model cannot be known without it.
        Raises InputError if it is missing or invalid.

        such_as: an example for the error.
        """
        return self.count(name, such_as=such_as)

    def layers(self, name: str, default: int | None = None, such_as: int | None = None) -> int:
        """Read the number of layers in a field, from 1 to `MOST_LAYERS`. Raises InputError for other values.

        default: the number if the field is absent; None requires it. such_as: an example for the error if it is missing.
        """
        return self.count(name, default, most=MOST_LAYERS, such_as=such_as)

    def side(self, name: str, such_as: int) -> int:
        """Read the side of a square in a field that must be present: one number or a list of two equal ones. Raises InputError
        for invalid fields.

        such_as: an example for the error.
        """
        value = self.config.get(name)
        if isinstance(value, list) and len(value) == 2 and value[0] == value[1]:
            self.config = {**self.config, name: value[0]}
        return self.size(name, such_as)

    def counts(self, name: str, such_as: list[int], least: int = 1, length: int | None = None) -> list[int]:
        """Read a list of whole numbers, each at least `least`, from a field that must be present. Raises InputError for other
        values.

        length: the length that the list must have (None: 1 to 16). such_as: an example for the error.
        """
        value = self._value(name, None, such_as)
        right = isinstance(value, list) and 1 <= len(value) <= 16 and length in (None, len(value))
        self._check(name, value, right, f"give a list of {length or 'up to 16'} whole numbers")
        for i, item in enumerate(value):
            right = type(item) is int and least <= item <= LARGEST
            self._check(f"{name}[{i}]", item, right, f"give a whole number from {least} to {LARGEST}")
        return list(value)

    def share(self, name: str, default: float, most: float = 1.0) -> float:
        """Read a number above 0 and below `most` from a field; `default` if it is absent. Raises InputError for other
        values.
        """
        value = self._value(name, default)
        right = type(value) in (int, float) and 0 < value < most
        self._check(name, value, right, f"give a number between 0 and {most:g}, such as {default:g}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """Read the truth value in a field; `default` if it is absent. Raises InputError for other values."""
        value = self._value(name, default)
        self._check(name, value, isinstance(value, bool), "give true or false")
        return bool(value)

    def activation(self, name: str, default: str, spellings: Mapping[str, Activation] = ACTIVATIONS) -> Activation:
        """Read the activation function in a field, and return trainplan's name for it. Raises InputError for an unknown
        function.

        default: the function's name if the field is absent. spellings: trainplan's names, by names in configurations.
        """
        value = self._value(name, default)
        self._check(name, value, isinstance(value, str) and value in spellings, f"give {' or '.join(map(repr, spellings))}")
        return spellings[value]

    def dropout(self, name: str, default: float = 0.1) -> float:
        """Read the probability of dropout in a field, from 0 to below 1; `default` if it is absent. Raises InputError for
        other values."""
        value = self._value(name, default)
        right = type(value) in (int, float) and 0 <= value < 1
        self._check(name, value, right, "give a probability from 0 to below 1, such as 0.1")
        return float(value)

    def counted_dropout(self, name: str, default: float = 0.1) -> float:
        """Read the probability of dropout of a model that trainplan plans but does not run; 0 if its attention is fused,
        because then the dropout matters only for the memory of masks, which only separate kernels keep. Raises InputError for
        an invalid probability.
        """
        probability = self.dropout(name, default)
        return probability if self.unfused else 0.0

    def padding(self, vocabulary: int, default: int | None = None) -> int | None:
        """Read the index of the padding token, `pad_token_id`; None without one. Raises InputError for an index outside the
        vocabulary.

        It may be negative in the file, to count from the vocabulary's end. vocabulary: number of tokens. default: the value if
        the field is absent.
        """
        value = self.config.get("pad_token_id", default)
        right = value is None or (type(value) is int and -vocabulary <= value < vocabulary)
        self._check("pad_token_id", value, right, f"give null, or a token below vocab_size = {vocabulary}")
        if value or value != default:  # a default above 0 is noted, for models with a smaller vocabulary
            self.read["pad_token_id"] = value
        return None if value is None else int(value) % vocabulary

    def absent(self, *names: str) -> None:
        """Raise InputError for any of the given fields whose value is not false, 0 or null: they turn on features that
        trainplan's models do not have.
        """
        for name in names:
            value = self.config.get(name)
            self._check(name, value, not value, "give false: trainplan's models do not have it")

    def note(self, *names: str, usual: Any = False) -> None:
        """Record in `read` those of the given fields that change results but no shape, if their value differs from the usual
        one. A model with such a field can be planned, but a plan of it is refused when it is to run.

        usual: the value that changes nothing.
        """
        for name in names:
            if (value := self.config.get(name)) is not None and value != usual:
                self.read[name] = value

    def only(self, name: str, value: Any) -> None:
        """Raise InputError if a field has another value than the only one that trainplan's models support; a missing field is
        allowed.
        """
        configured = self.config.get(name, value)
        self._check(name, configured, configured in (None, value), f"give {shown(value)}: trainplan's models have no other")

    def divisor(self, name: str, value: int, of: str, size: int) -> None:
        """Raise InputError about the field `name` if its value does not divide `size`. of: the name of that size, for the
        error.
        """
        if size % value:
            raise self.fail(name, f"is {value}", f"give a divisor of {of} = {size}")

    def length(self, name: str, usual: int, most: int | None = None) -> int:
        """The sequence length in tokens: the requested one, else `usual`. Raises InputError if it is above the limit.

        name: the field of the configuration that states the limit, for the error. usual: the length if none was requested.
        most: the limit, the longest sequence that the model's positions allow (None: `usual`).
        """
        length, most = usual if self.sequence is None else self.sequence, usual if most is None else most
        if not 1 <= length <= most:
            fix = f"give 1 to {most} ({name} of {self.where}), or a config.json with more"
            raise InputError("command line", "--sequence", f"is {length}", fix)
        return length

    def no_length(self) -> None:
        """Raise InputError if a sequence length was requested: a model of images has as many tokens as its image gives."""
        if self.sequence is not None:
            raise InputError("command line", "--sequence", f"is {self.sequence}", "leave it out: the image gives the tokens")

    def labels(self) -> int:
        """Read the number of classes: `num_labels`, else the number of names in `id2label`, else 2."""
        labels = self.config.get("id2label")
        return self.count("num_labels", len(labels) if isinstance(labels, Mapping) and labels else 2)

    @property
    def unfused(self) -> bool:
        """Whether the configuration requests attention as separate kernels (`attn_implementation` is `eager`)."""
        return self.config.get("attn_implementation", self.config.get("_attn_implementation")) == "eager"

    def common(self, epsilon: float) -> dict[str, Any]:
        """The keyword arguments that all sub-layers of the chain share: dtype, epsilon of norms, and whether attention is
        unfused.

        epsilon: the number added to the variance in norms.
        """
        if self.unfused:
            self.read["attn_implementation"] = "eager"
        return {"dtype": self.dtype, "epsilon": epsilon, "unfused": self.unfused}


def chain(embedding: Sublayer, blocks: Sequence[Mapping[str, Sublayer]], head: Sublayer) -> list[Unit]:
    """Build the chain of sub-layers of a model: the units (sub-layers with unique names) in order: the embedding, the blocks'
    sub-layers ("block0.attention", ...), and the head.

    blocks: for each block, its sub-layers by name, in order.
    """
    middle = [Unit(f"block{i}.{name}", i + 1, part) for i, parts in enumerate(blocks) for name, part in parts.items()]
    return [Unit("embedding", 0, embedding), *middle, Unit("head", len(blocks) + 1, head)]


def uniform_chain(embedding: Sublayer, layers: int, parts: Mapping[str, Sublayer], head: Sublayer) -> list[Unit]:
    """Build the chain of sub-layers of a model with `layers` equal blocks: the units (sub-layers with unique names) in order:
    embedding, the blocks' sub-layers ("block0.attention", ...), head.

    parts: the sub-layers of a block by name, in order.
    """
    return chain(embedding, [parts] * layers, head)


@dataclass(frozen=True)
class Family:
    """A model family (such as llama), either built in or in a plug-in that refers to it by an entry point of the group
    `trainplan.families`.

    build: reads a configuration; returns the units (sub-layers with names), and whether head and embedding share one matrix;
    raises InputError. sizes: the names of the configuration's fields for the sizes that `Model.scaled` makes smaller, by
    role; empty if it cannot. fields: names that configurations of the family may have in addition to those of every family
    (`naming.COMMON`); others are refused or cause a warning. None: names are not checked. aliases: other names of fields,
    mapped to the family's own names.
    """

    build: Callable[[Fields], tuple[list[Unit], bool]]
    sizes: Mapping[Role, str] = field(default_factory=dict)
    fields: frozenset[str] | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)


def names(text: str) -> frozenset[str]:
    """Split a text of names that are separated by white space into a set."""
    return frozenset(text.split())
