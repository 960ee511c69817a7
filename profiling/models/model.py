"""Models as chains of sub-layers, built from Hugging Face configurations, without their weights and without `transformers`."""

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
from trainplan.profiling.models.sublayers import Sublayer, TokenMixer, cut
from trainplan.profiling.shipped import PUBLISHERS, Shipped, locate, sized

# Fields of a configuration that are about a run, not about the architecture.
EAGER = "eager, as attn_implementation of its configuration says: scores are kept; without that field they are not"
RUN_FIELDS = ("attn_implementation", "decoder_positions", "pad_token_id")


@in_one_line
@dataclass(frozen=True)
class Model:
    """A model as the chain of its sub-layers (`units`, in order), for one sequence length and dtype.

    A sub-layer is an embedding, an attention, a feed-forward network, a head or the like; a unit is a sub-layer at its index
    in the chain. config: the fields of the Hugging Face configuration that the chain was built from, with defaults filled in.
    tied: whether head and embedding share one matrix. sequence: the requested tokens per sample (None: the most that the
    configuration allows). pieces: number of pieces that context parallelism cuts each sample into; units then work on one
    piece per sample.
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
        """Number of transformer layers between embedding and head."""
        return self.units[-1].layer - 1

    @property
    def element_bytes(self) -> int:
        """Bytes of one number in the model's dtype."""
        return DTYPE_BYTES[self.dtype]

    @property
    def tokens(self) -> int:
        """Tokens per sample that the last layer works on; the decoder's if the model has an encoder and a decoder."""
        return self.units[-1].sublayer.tokens

    @property
    def sequence_tokens(self) -> int:
        """Tokens per sample that the first layer works on: the encoder's if the model has an encoder and a decoder; patches of
        an image."""
        return self.units[1].sublayer.tokens

    @property
    def vocabulary(self) -> int:
        """Size of the language head's vocabulary; 0 for models without such a head."""
        return int(getattr(self.units[-1].sublayer, "vocabulary", 0))

    @property
    def tied_elements(self) -> int:
        """Number of parameters in the matrix that embedding and head share; 0 if they share none."""
        return self.vocabulary * self.units[-1].sublayer.hidden if self.tied else 0

    @cached_property
    def _keys(self) -> dict[Sublayer, str]:
        """The names of the model's distinct sub-layers, by sub-layer: the kind, such as "attention"; the second and later
        sub-layers of the same kind have a number in addition ("attention.1")."""
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
        """The distinct sub-layers of the model by name: `attention`, or `attention.1` for a second kind of attention."""
        return {key: part for part, key in self._keys.items()}

    def key_of(self, unit: Unit) -> str:
        """Name of a unit's sub-layer, a key of `sublayers`; equal sub-layers of different layers have one name."""
        return self._keys[unit.sublayer]

    @cached_property
    def digest(self) -> str:
        """Hash of the architecture, 16 hexadecimal digits; it does not depend on the model's name, sequence length, dtype or
        dropout."""
        fields = {name: value for name, value in self.config.items() if name not in RUN_FIELDS and "drop" not in name}
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def total_parameters(self) -> int:
        """Number of parameters of the whole model; a matrix shared by embedding and head is counted once."""
        return sum(unit.sublayer.parameter_count() for unit in self.units) - self.tied_elements

    @property
    def active_parameters(self) -> int:
        """Number of parameters that one token uses: all but those of routed experts that are not chosen for it. A matrix shared
        by embedding and head is counted once."""
        return sum(unit.sublayer.active_count() for unit in self.units) - self.tied_elements

    @property
    def unplanned_feature(self) -> str:
        """Names, for users, of what the model has that trainplan does not plan yet, such as mixtures of experts; empty if it
        can
        be planned."""
        return " and ".join(dict.fromkeys(feature for part in self.sublayers.values() if (feature := part.unplanned_feature)))

    @property
    def scans(self) -> bool:
        """Whether any layer mixes tokens by a state that it carries from token to token, as state spaces and delta nets do."""
        return any(isinstance(part, TokenMixer) for part in self.sublayers.values())

    def tp_degrees(self, group: int) -> tuple[int, ...]:
        """Possible degrees of tensor parallelism, ascending: powers of two up to `group` on which every sub-layer can run.

        group: the largest number of ranks that a tensor-parallel group may have.
        """
        degrees = [1 << i for i in range(group.bit_length())]
        return tuple(t for t in degrees if all(part.runs_on(t) for part in self.sublayers.values()))

    def activation_bytes(self, rows: int = 1) -> int:
        """Bytes of the activations that `rows` samples keep for the backward pass on one device, without recomputation."""
        return sum(unit.sublayer.input_bytes(rows) + unit.sublayer.kept_bytes(rows, 1) for unit in self.units)

    def scaled(self, factor: int) -> Model:
        """A model of the same layers whose hidden, inner, vocabulary and sequence sizes are about `factor` times smaller.

        Raises InputError for a factor below 1 and for families whose size fields are not known.
        """
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
        tokens = max(8, self.tokens // factor)
        return model_from_config(sizes, self.name, tokens, self.dtype, f"{self.name}/{factor}", planned=False)

    def with_fields(self, *, sequence: int | None = None, **fields: Any) -> Model:
        """A copy of the model, built again with another sequence length, or with fields of its configuration changed, such as
        `n_layer=96`. Raises InputError for values that the model's family does not allow.
        """
        changed = {**self.config, **fields}
        return model_from_config(changed, self.name, sequence or self.sequence, self.dtype, self.name, planned=False)

    def in_dtype(self, dtype: str) -> Model:
        """A copy of the model in another dtype, a name in `DTYPE_BYTES`."""
        units = tuple(replace(unit, sublayer=replace(unit.sublayer, dtype=dtype)) for unit in self.units)
        return replace(self, units=units, dtype=dtype)

    def in_pieces(self, pieces: int, by_heads: bool = False) -> Model:
        """A copy of the model whose units work on one of `pieces` equal pieces of each sample, as under context parallelism.

        by_heads: whether context-parallel ranks exchange heads of attention (as in Ulysses) instead of keys and values.
        """
        if pieces == self.pieces:
            return self
        units = tuple(replace(unit, sublayer=cut(unit.sublayer, pieces, by_heads)) for unit in self.units)
        return replace(self, units=units, pieces=pieces)

    @property
    def attention(self) -> str:
        """A text for users if the configuration requests attention by separate ("eager") kernels; otherwise empty."""
        return EAGER if self.config.get("attn_implementation") == "eager" else ""

    def fused(self) -> Model:
        """A copy of the model as trainplan executes it: with fused attention kernels, whatever the configuration requests."""
        config = {name: value for name, value in self.config.items() if name != "attn_implementation"}
        return model_from_config(config, self.name, self.sequence, self.dtype, self.name, planned=False)

    def shape(self) -> dict[str, Any]:
        """The model as a JSON object with name, config, sequence and dtype, as in `plan.json`; `model_from_shape` reads it
        back."""
        return {"name": self.name, "config": dict(self.config), "sequence": self.sequence, "dtype": self.dtype}


def _size_fields(name: str) -> Mapping[Role, str]:
    """The configuration fields of a model family that hold its sizes, by role, such as "hidden": "n_embd"; empty for unknown
    families.

    name: the family's name, `model_type` in the configuration.
    """
    described = family(name)
    return described.sizes if described else {}


def model_from_shape(shape: Any, where: str) -> Model:
    """The model that a JSON object in a plan or profile describes, as `Model.shape` writes it: name, config, sequence and
    dtype.

    where: name of the file, for errors. Raises InputError for missing, unknown or invalid fields.
    """
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
    source: str | os.PathLike[str],
    sequence: int | None = None,
    dtype: str | None = None,
    half: str = "bfloat16",
    planned: bool = True,
) -> Model:
    """Load a model by the name of a shipped one or of a well-known size of one, or from a Hugging Face `config.json`.

    source: a name such as `qwen2.5-72b` or `Qwen/Qwen2.5-72B-Instruct`, or the path of a configuration, or of a folder that has
    one; its family must be one in `models.families`, and no weights are read. sequence: tokens per sample (default: the most
    that the configuration allows). dtype: name of the dtype in which the model is trained. Its default is the configuration's
    dtype; it is `half` if the configuration states none, or states float32, in which weights are often only stored. half: the
    narrowest dtype in which the devices compute fast. planned: whether a model of which plans are not made yet, such as a
    mixture of experts, is refused. Warns of fields that no family knows. Raises InputError that names file, field and a value
    that would work.
    """
    name = os.fspath(source)
    if os.path.isfile(os.path.join(name, "config.json")):
        name = os.path.join(name, "config.json")  # of a checkpoint's folder
    kinds: tuple[Shipped, ...] = ("models",) if planned else ("models", "mixtures")
    own_file = os.path.exists(name) or name.startswith((".", "/", "~"))
    kind = next((one for one in kinds if not own_file and sized(name, one) is not None), None)
    known = None if kind is None else sized(name, kind)
    owner, _, own_name = name.rpartition("/")
    if known is not None and owner and owner.lower() not in PUBLISHERS:
        fix = f"it is planned as {known[0]}, as which it is called; give its config.json where its sizes are others"
        caution(COMMAND_LINE, "--model", f"is {own_name!r} of {owner!r}", fix)
    if kind is not None and known is not None and (known[2] or kind == "mixtures"):
        known_as, base, fields = known
        config = sized_config(read_data(locate(kind, base, "--model", "a config.json")), fields)
        return model_from_config(config, known_as, sequence, dtype or shipped_dtype(config, known_as, half), planned=planned)
    name = known[1] if known else name
    file = locate("models", name, "--model", "a config.json")
    config, own = read_data(file), file == name
    where = name if own else PurePath(file.name).stem  # of a shipped model its name, however it was spelt
    usual = trained_dtype if own else shipped_dtype
    model = model_from_config(config, where, sequence, dtype or half, planned=planned)  # refused before its dtype is warned of
    return model if dtype else model.in_dtype(usual(config, where, half))


def model_from_config(
    config: Any,
    where: str,
    sequence: int | None = None,
    dtype: str | None = None,
    name: str | None = None,
    planned: bool = True,
) -> Model:
    """Build a model from the fields of a Hugging Face configuration.

    config: the fields, an object of JSON. where: name of the file, for errors, and the source of the model's name if `name` is
    None. sequence: tokens per sample (default: the most that the configuration allows). dtype: name of the model's dtype; its
    default is the configuration's, else float32. planned: whether a model of which plans are not made yet is refused. Raises
    InputError for fields that are missing or that the family refuses.
    """
    if not isinstance(config, Mapping):
        raise InputError(where, "", "is not an object", "give a Hugging Face config.json")
    part, prefix = language_part(config, where)
    dtype = stated_dtype(part, config, where=where) or "float32" if dtype is None else parse_dtype(dtype)
    fields = Fields(part, where, sequence, dtype, prefix, planned)
    units, tied = build_chain(fields)
    refuse_other_heads(config, part, where)
    if name is None:
        stem = os.path.basename(where).removesuffix(".json")
        name = str(fields.read["model_type"]) if stem == "config" else stem
    return Model(name, fields.read, tuple(units), tied, sequence, dtype)
