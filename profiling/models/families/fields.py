"""Reading a configuration: every field checked, and noted, with its default filled in; and how blocks become a chain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainplan.profiling.base.errors import InputError, shown
from trainplan.profiling.models.sublayers import Activation, Sublayer

LARGEST = 10**7
MOST_LAYERS = 4096

ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


@dataclass(frozen=True)
class Unit:
    """One sub-layer of the chain. `layer` numbers the layers that a planner decides on: embedding 0, blocks 1.., head last."""

    name: str
    layer: int
    sublayer: Sublayer

    @property
    def kind(self) -> str:
        return self.sublayer.kind


@dataclass
class Fields:
    """A configuration under reading. `read` collects what was used. Every fault is an InputError naming the field."""

    config: Mapping[str, Any]
    where: str
    sequence: int | None = None
    dtype: str = "float32"
    read: dict[str, Any] = field(default_factory=dict)

    def fail(self, name: str, problem: str, fix: str) -> InputError:
        return InputError(self.where, name, problem, fix)

    def _value(self, name: str, default: Any) -> Any:
        value = self.config.get(name)
        if value is None:
            value = default
        if value is None:
            raise self.fail(name, "is missing", "give a Hugging Face config.json with it")
        self.read[name] = value
        return value

    def count(self, name: str, default: int | None = None, least: int = 1, most: int = LARGEST) -> int:
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.fail(name, f"is {shown(value)}", f"give a whole number from {least} to {most}")
        return value

    def layers(self, name: str, default: int | None = None) -> int:
        return self.count(name, default, most=MOST_LAYERS)

    def side(self, name: str, default: int) -> int:
        """A number, or a square's two equal sides."""
        value = self.config.get(name)
        if isinstance(value, list) and len(value) == 2 and value[0] == value[1]:
            self.config = {**self.config, name: value[0]}
        return self.count(name, default)

    def counts(self, name: str, default: list[int] | None = None, least: int = 1, length: int | None = None) -> list[int]:
        value = self._value(name, default)
        if not isinstance(value, list) or not 1 <= len(value) <= 16 or (length is not None and len(value) != length):
            wanted = f"a list of {length}" if length else "a list of up to 16"
            raise self.fail(name, f"is {shown(value)}", f"give {wanted} whole numbers")
        for i, item in enumerate(value):
            if isinstance(item, bool) or not isinstance(item, int) or not least <= item <= LARGEST:
                raise self.fail(f"{name}[{i}]", f"is {shown(item)}", f"give a whole number from {least} to {LARGEST}")
        return value

    def share(self, name: str, default: float, most: float = 1.0) -> float:
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < most:
            raise self.fail(name, f"is {shown(value)}", f"give a number between 0 and {most:g}, such as {default:g}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self.fail(name, f"is {shown(value)}", "give true or false")
        return value

    def activation(self, name: str, default: str, known: Mapping[str, Activation] = ACTIVATIONS) -> Activation:
        value = self._value(name, default)
        if not isinstance(value, str) or value not in known:
            raise self.fail(name, f"is {shown(value)}", f"give {' or '.join(map(repr, known))}")
        return known[value]

    def dropout(self, *names: str, default: float = 0.1) -> bool:
        """Whether any of these probabilities is above 0."""
        found = False
        for name in names:
            value = self._value(name, default)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
                raise self.fail(name, f"is {shown(value)}", "give a probability from 0 to below 1, such as 0.1")
            found |= value > 0
        return found

    def absent(self, *names: str) -> None:
        """Features that trainplan's chains do not have."""
        for name in names:
            if self.config.get(name):
                raise self.fail(name, f"is {shown(self.config[name])}", "give false: trainplan's models do not have it")

    def note(self, *names: str, usual: Any = False) -> None:
        """What changes results, not shapes: planned as it is, and refused where a plan runs (`execution.run`)."""
        for name in names:
            if (value := self.config.get(name)) is not None and value != usual:
                self.read[name] = value

    def divisor(self, name: str, value: int, of: str, size: int) -> None:
        if size % value:
            raise self.fail(name, f"is {value}", f"give a divisor of {of} = {size}")

    def length(self, name: str, most: int) -> int:
        """The sequence length asked for, at most what the model's positions allow."""
        length = most if self.sequence is None else self.sequence
        if not 1 <= length <= most:
            raise InputError("command line", "--sequence", f"is {length}", f"give 1 to {most} ({name} of {self.where})")
        return length

    def no_length(self) -> None:
        if self.sequence is not None:
            raise InputError("command line", "--sequence", f"is {self.sequence}", "leave it out: the image gives the tokens")

    def labels(self) -> int:
        given = self.config.get("id2label")
        names = len(given) if isinstance(given, Mapping) and given else 2
        return self.count("num_labels", names)

    def common(self, dropout: bool, epsilon: float) -> dict[str, Any]:
        """What every sub-layer of the chain shares."""
        implementation = self.config.get("attn_implementation", self.config.get("_attn_implementation"))
        unfused = implementation == "eager"
        if unfused:
            self.read["attn_implementation"] = "eager"
        return {"dtype": self.dtype, "epsilon": epsilon, "unfused": unfused, "dropout": unfused and dropout}


Chain = list[Unit]


def blocks(count: int, parts: Mapping[str, Sublayer], first_layer: int = 1, prefix: str = "block") -> Chain:
    return [
        Unit(f"{prefix}{i}.{name}", first_layer + i, part) for i in range(count) for name, part in parts.items()
    ]  # fmt: skip


def stack(embedding: Sublayer, middle: Chain, head: Sublayer) -> Chain:
    return [Unit("embedding", 0, embedding), *middle, Unit("head", middle[-1].layer + 1, head)]
