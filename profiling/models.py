"""A Transformer as a chain of sub-layers: parameters, flops and bytes of each, from its shapes alone.

Symbols: h hidden size, a heads, f inner size of the FFN, V vocabulary, s sequence length, r rows (samples on one
device), n = r s tokens, t tensor-parallel degree, e bytes of an element.

Every sub-layer is a *sum of t partial functions*: each tensor-parallel rank computes a partial output (rank 0 adds the
residual and the bias), and one all-reduce gives the whole; in the backward pass the partial input gradients are summed the
same way. So a sub-layer costs one all-reduce of its boundary forward and one backward, and tensor parallelism is exact. The
head instead leaves its logits split over the vocabulary, and the loss is computed on the shards.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, Literal

from trainplan.profiling.errors import InputError, shown
from trainplan.profiling.files import read_json
from trainplan.profiling.shipped import locate

Kind = Literal["embedding", "attention", "ffn", "head"]
DTYPE_BYTES = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Parameter:
    """One parameter tensor: full shape, and the dimension that tensor parallelism splits (None: replicated)."""

    name: str
    shape: tuple[int, ...]
    split: int | None = None

    def shard_shape(self, tp: int, index: int) -> tuple[int, ...]:
        if self.split is None:
            return self.shape
        low, high = shard_bounds(self.shape[self.split], tp, index)
        return (*self.shape[: self.split], high - low, *self.shape[self.split + 1 :])


def shard_bounds(size: int, parts: int, index: int) -> tuple[int, int]:
    """Half-open bounds of one of `parts` nearly equal slices."""
    return index * size // parts, (index + 1) * size // parts


@dataclass(frozen=True)
class Unit:
    """One sub-layer of the chain. `layer` numbers the layers that a planner decides on: embedding 0, blocks 1.., head last."""

    name: str
    kind: Kind
    layer: int


@dataclass(frozen=True)
class Model:
    """A decoder (GPT-2) or encoder (BERT) at one sequence length and dtype.

    `post_norm`: a block adds its result to the normalised input (BERT) instead of the raw one (GPT-2). In both, a unit begins
    with its layer norm, so BERT's norms belong to the unit after the one that the original code writes them in.
    """

    family: Literal["gpt2", "bert"]
    name: str
    hidden: int
    heads: int
    layers: int
    inner: int
    vocabulary: int
    positions: int
    sequence: int
    token_types: int = 0
    tied: bool = True
    eager_attention: bool = False
    norm_epsilon: float = 1e-5
    dtype: str = "float32"

    def __post_init__(self) -> None:
        """Raises ValueError for sizes that no model has."""
        for name in ("hidden", "heads", "layers", "inner", "vocabulary", "positions", "sequence"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value!r}, not a whole number of at least 1")
        if self.hidden % self.heads or self.sequence > self.positions:
            raise ValueError("heads must divide hidden, and sequence must not exceed positions")
        if self.family not in ("gpt2", "bert") or self.dtype not in DTYPE_BYTES:
            raise ValueError(f"family {self.family!r} or dtype {self.dtype!r} is unknown")
        if isinstance(self.token_types, bool) or not isinstance(self.token_types, int) or self.token_types < 0:
            raise ValueError(f"token_types is {self.token_types!r}, not a whole number")
        if not isinstance(self.norm_epsilon, float) or not 0 < self.norm_epsilon < 1:
            raise ValueError(f"norm_epsilon is {self.norm_epsilon!r}, not a number between 0 and 1")

    @property
    def element_bytes(self) -> int:
        return DTYPE_BYTES[self.dtype]

    @property
    def post_norm(self) -> bool:
        return self.family == "bert"

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        blocks = [Unit(f"block{i}.{kind}", kind, i + 1) for i in range(self.layers) for kind in ("attention", "ffn")]
        return (Unit("embedding", "embedding", 0), *blocks, Unit("head", "head", self.layers + 1))

    @cached_property
    def digest(self) -> str:
        """Identity of the architecture: what a plan is made for, whatever its name, sequence length or dtype."""
        shape = {k: v for k, v in asdict(self).items() if k not in ("name", "sequence", "dtype", "eager_attention")}
        return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:16]

    def parameters(self, kind: Kind) -> tuple[Parameter, ...]:
        h, f, v = self.hidden, self.inner, self.vocabulary
        norm = (Parameter("norm.weight", (h,)), Parameter("norm.bias", (h,)))
        if kind == "embedding":
            types = (Parameter("types.weight", (self.token_types, h)),) if self.token_types else ()
            return (Parameter("tokens.weight", (v, h), 0), Parameter("positions.weight", (self.positions, h)), *types)
        if kind == "attention":
            return (
                Parameter("qkv.weight", (3, h, h), 1),
                Parameter("qkv.bias", (3, h), 1),
                Parameter("out.weight", (h, h), 1),
                Parameter("out.bias", (h,)),
                *norm,
            )
        if kind == "ffn":
            return (
                Parameter("up.weight", (f, h), 0),
                Parameter("up.bias", (f,), 0),
                Parameter("down.weight", (h, f), 1),
                Parameter("down.bias", (h,)),
                *norm,
            )
        logits = (Parameter("logits.weight", (v, h), 0),)
        if self.family == "gpt2":
            return (*logits, *norm)
        return (
            *logits,
            Parameter("logits.bias", (v,), 0),
            *norm,
            Parameter("dense.weight", (h, h)),
            Parameter("dense.bias", (h,)),
            Parameter("dense_norm.weight", (h,)),
            Parameter("dense_norm.bias", (h,)),
        )

    def parameter_count(self, kind: Kind, tp: int = 1, index: int = 0) -> int:
        return sum(prod(p.shard_shape(tp, index)) for p in self.parameters(kind))

    def replicated_count(self, kind: Kind) -> int:
        """Parameters that every tensor-parallel rank holds, and whose gradients are summed over the ranks."""
        return sum(prod(p.shape) for p in self.parameters(kind) if p.split is None)

    @property
    def total_parameters(self) -> int:
        """Distinct parameters of the whole model: a tied head's matrix counts once."""
        total = sum(self.parameter_count(unit.kind) for unit in self.units)
        return total - (self.vocabulary * self.hidden if self.tied else 0)

    def tp_degrees(self, group: int) -> tuple[int, ...]:
        """Powers of two up to `group` that divide the heads."""
        return tuple(
            t for t in (1 << i for i in range(group.bit_length())) if t <= min(group, self.vocabulary) and self.heads % t == 0
        )

    def forward_flops(self, kind: Kind, rows: int, tp: int) -> int:
        """Multiply-adds count 2. Attention scores and their use are 4 n s h (not halved where causal)."""
        n, h, f, s = rows * self.sequence, self.hidden, self.inner, self.sequence
        per_token = {
            "embedding": h,
            "attention": 8 * h * h + 4 * s * h,
            "ffn": 4 * h * f,
            "head": 2 * h * self.vocabulary,
        }[kind]
        whole = 2 * h * h if kind == "head" and self.family == "bert" else 0  # the dense transform is replicated
        return n * (per_token // tp + whole)

    def boundary_bytes(self, rows: int) -> int:
        """The hidden states that pass from one unit to the next: n h e."""
        return rows * self.sequence * self.hidden * self.element_bytes

    def input_bytes(self, kind: Kind, rows: int) -> int:
        return rows * self.sequence * 8 if kind == "embedding" else self.boundary_bytes(rows)

    def output_bytes(self, kind: Kind, rows: int, tp: int) -> int:
        if kind == "head":
            return rows * self.sequence * -(-self.vocabulary // tp) * self.element_bytes
        return self.boundary_bytes(rows)

    def kept_bytes(self, kind: Kind, rows: int, tp: int) -> int:
        """What the graph holds from forward to backward, besides the unit's input."""
        n, h, f, e = rows * self.sequence, self.hidden, self.inner, self.element_bytes
        norm = 2 * n + n * h  # mean, inverse deviation, result
        if kind == "embedding":
            types = 8 * n if self.token_types else 0
            return 8 * self.sequence + types + (9 * n if tp > 1 else 0)  # positions, types; local indices and mask
        if kind == "attention":
            per_head = self.sequence if self.eager_attention else 1  # probabilities, or the log-sum-exp
            mask = self.sequence**2 if self.eager_attention and not self.post_norm else 0
            return (norm + 4 * n * h // tp + n * self.heads // tp * per_head) * e + mask
        if kind == "ffn":
            return (norm + 2 * n * f // tp) * e
        return norm * e if self.family == "gpt2" else (2 * norm + 2 * n * h) * e

    def forward_workspace_bytes(self, kind: Kind, rows: int, tp: int) -> int:
        """Most bytes alive during the forward pass beyond input, kept and output."""
        n, h, e = rows * self.sequence, self.hidden, self.element_bytes
        if kind == "attention" and self.eager_attention:
            return (n * self.sequence * self.heads // tp + 3 * n * h // tp) * e
        if kind == "embedding":
            return (n if self.token_types else self.sequence) * h * e
        return 0

    def backward_workspace_bytes(self, kind: Kind, rows: int, tp: int) -> int:
        """Most bytes alive during the backward pass beyond input, kept, output gradient, input and parameter gradients.

        Each term is one operation's moment: the gradients that it makes (a weight's is a temporary before it is added to the
        buffer that it belongs to), less what earlier ones have freed. Checked against torch's allocations in the tests.
        """
        n, h, f, e = rows * self.sequence, self.hidden, self.inner, self.element_bytes
        s, v = self.sequence, -(-self.vocabulary // tp)
        if kind == "embedding":
            return max(s * h + self.positions * h, (n * h if tp > 1 else 0) + v * h) * e
        if kind == "attention":
            scores = n * s * self.heads // tp if self.eager_attention else 0
            moments = [n * h // tp + h * h // tp, n * h - n * h // tp + 3 * h * h // tp - scores]
            moments.append(2 * scores - n * h // tp if scores else 4 * n * h // tp + 2 * min(s, 64) * min(s, 512))
            return max(0, *(moment - n * h for moment in moments)) * e
        if kind == "ffn":
            return max(0, n * f // tp + h * f // tp - n * h, h * f // tp - n * f // tp) * e
        return v * h * e

    def scaled(self, factor: int) -> Model:
        """The same chain with hidden, inner, vocabulary and sequence about `factor` times smaller."""
        if factor < 1:
            raise InputError("command line", "--scale-down", f"is {factor}", "give 1 or more")
        if factor == 1:
            return self
        head = max(2, self.hidden // self.heads // factor)
        hidden = head * self.heads
        return replace(
            self,
            name=f"{self.name}/{factor}",
            hidden=hidden,
            inner=max(8, self.inner * hidden // self.hidden // 8 * 8),
            vocabulary=max(16, self.vocabulary // factor),
            positions=max(8, self.positions // factor),
            sequence=max(8, self.sequence // factor),
        )

    def shape(self) -> dict[str, Any]:
        """All fields, as `plan.json` and profiles carry them; `Model(**shape)` gives the model back."""
        return asdict(self)


def load_model(source: str | os.PathLike[str], sequence: int | None = None, dtype: str = "float32") -> Model:
    """A shipped model by name, or any Hugging Face `config.json` of the families gpt2 and bert; no weights are read.

    Raises InputError naming file, field and a value that would work.
    """
    name = os.fspath(source)
    config = read_json(locate("models", name, "--model", "a config.json"))
    return model_from_config(config, name, sequence, dtype)


def model_from_config(config: Any, where: str, sequence: int | None = None, dtype: str = "float32") -> Model:
    """A Hugging Face configuration, already read, as a Model. Raises InputError."""
    if not isinstance(config, dict):
        raise InputError(where, "", "is not an object", "give a Hugging Face config.json")
    family = config.get("model_type")
    if family not in ("gpt2", "bert"):
        raise InputError(where, "model_type", f"is {shown(family)}", "give a config of type 'gpt2' or 'bert'")
    if dtype not in DTYPE_BYTES:
        raise InputError("command line", "--dtype", f"is {dtype!r}", f"give one of {', '.join(DTYPE_BYTES)}")

    def number(field: str, default: int | None = None) -> int:
        value = config.get(field)
        value = default if value is None else value
        if value is None:
            raise InputError(where, field, "is missing", "give a Hugging Face config.json with it")
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 10**7:
            raise InputError(where, field, f"is {shown(value)}", "give a whole number from 1 to 10000000")
        return value

    gpt2 = family == "gpt2"
    names = ("n_embd", "n_head", "n_layer", "n_positions") if gpt2 else (
        "hidden_size", "num_attention_heads", "num_hidden_layers", "max_position_embeddings")  # fmt: skip
    hidden, heads, layers, positions = (number(field) for field in names)
    activation = config.get("activation_function" if gpt2 else "hidden_act", "gelu_new" if gpt2 else "gelu")
    if activation != ("gelu_new" if gpt2 else "gelu"):
        field = "activation_function" if gpt2 else "hidden_act"
        raise InputError(where, field, f"is {shown(activation)}", f"give {'gelu_new' if gpt2 else 'gelu'!r}")
    if hidden % heads:
        raise InputError(where, names[1], f"is {heads}", f"give a divisor of {names[0]} = {hidden}")
    tied = config.get("tie_word_embeddings", True)
    if not isinstance(tied, bool):
        raise InputError(where, "tie_word_embeddings", f"is {shown(tied)}", "give true or false")
    for field in ("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "add_cross_attention", "is_decoder"):
        if config.get(field):
            raise InputError(where, field, f"is {shown(config[field])}", "give false: trainplan's models do not have it")
    length = positions if sequence is None else sequence
    if not 1 <= length <= positions:
        raise InputError("command line", "--sequence", f"is {length}", f"give 1 to {positions} ({names[3]} of {where})")
    epsilon = config.get("layer_norm_epsilon" if gpt2 else "layer_norm_eps", 1e-5 if gpt2 else 1e-12)
    if isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not 0 < epsilon < 1:
        raise InputError(where, "layer_norm_epsilon" if gpt2 else "layer_norm_eps", f"is {shown(epsilon)}", "give 1e-05")
    return Model(
        family=family,
        name=os.path.basename(where).removesuffix(".json") if os.path.basename(where) != "config.json" else family,
        hidden=hidden,
        heads=heads,
        layers=layers,
        inner=number("n_inner" if gpt2 else "intermediate_size", 4 * hidden),
        vocabulary=number("vocab_size"),
        positions=positions,
        sequence=length,
        token_types=0 if gpt2 else number("type_vocab_size", 2),
        tied=tied,
        eager_attention=config.get("attn_implementation") == "eager",
        norm_epsilon=float(epsilon),
        dtype=dtype,
    )
