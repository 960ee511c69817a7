"""Models: a chain of sub-layers, built from a Hugging Face configuration without weights and without `transformers`."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePath
from typing import Any

from trainplan.profiling.base.display import in_one_line
from trainplan.profiling.base.dtypes import DTYPE_BYTES, parse_dtype
from trainplan.profiling.base.errors import COMMAND_LINE, InputError, caution
from trainplan.profiling.base.files import read_data
from trainplan.profiling.models.config_files import (
    language_part,
    refuse_other_heads,
    shipped_dtype,
    stated_dtype,
    trained_dtype,
)
from trainplan.profiling.models.families import Fields, Role, Unit, build_chain, family, family_names, sized_config
from trainplan.profiling.models.sublayers import Sublayer, cut
from trainplan.profiling.shipped import PUBLISHERS, locate, sized

# What a configuration says of one run, not of the architecture.
EAGER = "eager, as attn_implementation of its configuration says: scores are kept; without that field they are not"
RUN_FIELDS = ("attn_implementation", "decoder_positions", "pad_token_id")


@in_one_line
@dataclass(frozen=True)
class Model:
    """A chain of sub-layers at one sequence length and dtype. tied: the head's matrix is the embedding's.

    config: the configuration's fields that the chain was built from, defaults filled in. sequence: as asked for (None: the
    configuration's longest). pieces: into how many each sample is cut, of which the units work on one (1: on all of it).
    """

    name: str
    config: Mapping[str, Any]
    units: tuple[Unit, ...]
    tied: bool
    sequence: int | None = None
    dtype: str = "float32"
    pieces: int = 1

    @property
    def family(self) -> str:
        """The name of the model's family: `model_type` of its configuration."""
        return str(self.config["model_type"])

    @property
    def layers(self) -> int:
        """Transformer layers between embedding and head."""
        return self.units[-1].layer - 1

    @property
    def element_bytes(self) -> int:
        """Bytes of one number in the model's dtype."""
        return DTYPE_BYTES[self.dtype]

    @property
    def tokens(self) -> int:
        """Tokens of one sample that the last layer works on: a decoder's, where there are two stacks."""
        return self.units[-1].sublayer.tokens

    @property
    def sequence_tokens(self) -> int:
        """Tokens of one sample as `sequence` counts them: an encoder's, where there are two stacks; an image's patches."""
        return self.units[1].sublayer.tokens

    @property
    def vocabulary(self) -> int:
        """Of the language head; 0 for models without one."""
        return int(getattr(self.units[-1].sublayer, "vocabulary", 0))

    @property
    def tied_elements(self) -> int:
        """Elements of the matrix that embedding and head share; 0 where they do not."""
        return self.vocabulary * self.units[-1].sublayer.hidden if self.tied else 0

    @cached_property
    def _keys(self) -> dict[Sublayer, str]:
        """Names of the distinct sub-layers: their kind, with a number from the second of a kind on."""
        names: dict[Sublayer, str] = {}
        counts: Counter[str] = Counter()
        for unit in self.units:
            if unit.sublayer not in names:
                number = counts[unit.kind]
                names[unit.sublayer] = f"{unit.kind}.{number}" if number else unit.kind
                counts[unit.kind] += 1
        return names

    @cached_property
    def sublayers(self) -> dict[str, Sublayer]:
        """The distinct sub-layers by name, such as `attention`, or `attention.1` for a second one."""
        return {key: part for part, key in self._keys.items()}

    def key_of(self, unit: Unit) -> str:
        """Name of a unit's sub-layer among the model's distinct ones."""
        return self._keys[unit.sublayer]

    @cached_property
    def digest(self) -> str:
        """Identity of the architecture: what a plan is made for, whatever its name, sequence length or dtype."""
        fields = {name: value for name, value in self.config.items() if name not in RUN_FIELDS and "drop" not in name}
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def total_parameters(self) -> int:
        """Distinct parameters of the whole model: a tied head's matrix counts once."""
        return sum(unit.sublayer.parameter_count() for unit in self.units) - self.tied_elements

    def tp_degrees(self, group: int) -> tuple[int, ...]:
        """Powers of two up to `group` on which every sub-layer can run, split or, as a small head, whole on every rank."""
        degrees = [1 << i for i in range(group.bit_length())]
        return tuple(t for t in degrees if all(part.runs_on(t) for part in self.sublayers.values()))

    def activation_bytes(self, rows: int = 1) -> int:
        """What forward leaves on one device for backward, without recomputation: every unit's input and kept bytes."""
        return sum(unit.sublayer.input_bytes(rows) + unit.sublayer.kept_bytes(rows, 1) for unit in self.units)

    def scaled(self, factor: int) -> Model:
        """The same chain with hidden, inner, vocabulary and sequence about `factor` times smaller. Raises InputError."""
        if factor < 1:
            raise InputError("command line", "--scale-down", f"is {factor}", "give 1 or more")
        if factor == 1:
            return self
        roles, sizes = _size_fields(self.family), dict(self.config)
        if not roles:
            fix = f"give one of {', '.join(filter(_size_fields, family_names()))}"
            raise InputError("command line", "--scale-down", f"is {factor} for a {self.family}", fix)
        hidden, heads, inner = (sizes[roles[role]] for role in ("hidden", "heads", "inner"))
        width = max(2, hidden // heads // factor // 2 * 2)
        sizes[roles["hidden"]] = width * heads
        sizes[roles["inner"]] = max(8, inner * width * heads // hidden // 8 * 8)
        sizes[roles["vocabulary"]] = max(16, sizes[roles["vocabulary"]] // factor)
        sizes[roles["positions"]] = max(8, sizes[roles["positions"]] // factor)
        if "width" in roles:
            sizes[roles["width"]] = width
        if sizes.get("pad_token_id"):
            sizes["pad_token_id"] %= sizes[roles["vocabulary"]]
        return model_from_config(sizes, self.name, max(8, self.tokens // factor), self.dtype, f"{self.name}/{factor}")

    def with_fields(self, *, sequence: int | None = None, **fields: Any) -> Model:
        """The model with some fields of its configuration changed, such as ``n_layer=96``. Raises InputError."""
        changed = {**self.config, **fields}
        return model_from_config(changed, self.name, sequence or self.sequence, self.dtype, self.name)

    def in_dtype(self, dtype: str) -> Model:
        """The same model in another dtype, one of `DTYPE_BYTES`."""
        units = tuple(replace(unit, sublayer=replace(unit.sublayer, dtype=dtype)) for unit in self.units)
        return replace(self, units=units, dtype=dtype)

    def in_pieces(self, pieces: int, by_heads: bool = False) -> Model:
        """The same model, whose units work on one of so many pieces of each whole sample (see `sublayers.pieces`). by_heads: as
        of `cut`."""
        if pieces == self.pieces:
            return self
        units = tuple(replace(unit, sublayer=cut(unit.sublayer, pieces, by_heads)) for unit in self.units)
        return replace(self, units=units, pieces=pieces)

    @property
    def attention(self) -> str:
        """How attention is computed, in words, where the configuration asks for separate kernels; empty where it does not."""
        return EAGER if self.config.get("attn_implementation") == "eager" else ""

    def fused(self) -> Model:
        """The model as trainplan runs it: fused attention."""
        config = {name: value for name, value in self.config.items() if name != "attn_implementation"}
        return model_from_config(config, self.name, self.sequence, self.dtype, self.name)

    def shape(self) -> dict[str, Any]:
        """All that `plan.json` and profiles carry of a model; `model_from_shape` gives the model back."""
        return {"name": self.name, "config": dict(self.config), "sequence": self.sequence, "dtype": self.dtype}


def _size_fields(name: str) -> Mapping[Role, str]:
    """The fields of a family's configurations that say how large a model is; empty where the family names none."""
    described = family(name)
    return described.sizes if described else {}


def model_from_shape(shape: Any, where: str) -> Model:
    """The model that `Model.shape` described. Raises InputError."""
    if not isinstance(shape, Mapping):
        raise InputError(where, "model", "is not an object", "give name, config, sequence and dtype")
    if unknown := sorted(set(shape) - {"name", "config", "sequence", "dtype"}):
        raise InputError(where, f"model.{unknown[0]}", "is not a field of this format", "remove it")
    name, sequence = shape.get("name"), shape.get("sequence")
    if not isinstance(name, str):
        raise InputError(where, "model.name", "is missing", "give the model's name")
    if sequence is not None and (isinstance(sequence, bool) or not isinstance(sequence, int)):
        raise InputError(where, "model.sequence", f"is {sequence!r}", "give a whole number, or null")
    try:
        return model_from_config(shape.get("config"), where, sequence, shape.get("dtype", "float32"), name)
    except InputError as error:
        field = ".".join(part for part in ("model.config", error.field) if part)
        raise InputError(where, field, error.problem, error.fix) from None


def load_model(
    source: str | os.PathLike[str], sequence: int | None = None, dtype: str | None = None, half: str = "bfloat16"
) -> Model:
    """A shipped model by name, a well-known size of one (`qwen2.5-72b`, `Qwen/Qwen2.5-72B-Instruct`), or any Hugging Face
    `config.json` of a known family (`models.families`); no weights are read.

    sequence: tokens of a sample (default: the most that the configuration allows). dtype: default that in which such models
    are trained, which is the configuration's, or `half` where it says none or that its weights are stored in float32. (Shipped
    models of papers say theirs.) Warns of fields that nobody knows. Raises InputError naming file, field and a value that would
    work.
    """
    name = os.fspath(source)
    if os.path.isfile(os.path.join(name, "config.json")):
        name = os.path.join(name, "config.json")  # of a checkpoint's folder
    known = None if os.path.exists(name) or name.startswith((".", "/", "~")) else sized(name)
    owner, _, own_name = name.rpartition("/")
    if known is not None and owner and owner.lower() not in PUBLISHERS:
        fix = f"it is planned as {known[0]}, as which it is called; give its config.json where its sizes are others"
        caution(COMMAND_LINE, "--model", f"is {own_name!r} of {owner!r}", fix)
    if known is not None and known[2]:
        known_as, base, fields = known
        config = sized_config(read_data(locate("models", base, "--model", "a config.json")), fields)
        return model_from_config(config, known_as, sequence, dtype or shipped_dtype(config, known_as, half))
    name = known[1] if known else name
    file = locate("models", name, "--model", "a config.json")
    config, own = read_data(file), file == name
    where = name if own else PurePath(file.name).stem  # of a shipped model its name, however it was spelt
    usual = trained_dtype if own else shipped_dtype
    made = model_from_config(config, where, sequence, dtype or half)  # refused before its dtype is warned of
    return made if dtype else made.in_dtype(usual(config, where, half))


def model_from_config(
    config: Any, where: str, sequence: int | None = None, dtype: str | None = None, name: str | None = None
) -> Model:
    """A Hugging Face configuration, already read, as a Model; sequence as of `load_model`. dtype: default the configuration's,
    else float32. Raises InputError."""
    if not isinstance(config, Mapping):
        raise InputError(where, "", "is not an object", "give a Hugging Face config.json")
    part, place = language_part(config, where)
    dtype = stated_dtype(part, config, where=where) or "float32" if dtype is None else parse_dtype(dtype)
    fields = Fields(part, where, sequence, dtype, place)
    units, tied = build_chain(fields)
    refuse_other_heads(config, part, where)
    if name is None:
        stem = os.path.basename(where).removesuffix(".json")
        name = str(fields.read["model_type"]) if stem == "config" else stem
    return Model(name, fields.read, tuple(units), tied, sequence, dtype)
