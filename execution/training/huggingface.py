"""Parameters of our units by the names, and in the shapes, that they have in files of Hugging Face.

A unit's parameter and theirs differ in three ways. Ours may be a stack of several matrices (queries, keys and values, (3, out,
in)), theirs one tensor each; several of ours may be one of theirs, one after the other or, in GPT-NeoX and Falcon, group by
group of heads; and GPT-2's matrices are turned, (in, out). Some families keep the weights of norms less 1."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor
from trainplan.execution.training.huggingface_names import NAMES
from trainplan.profiling.models.model import Model

INTERLEAVED = ("gpt_neox", "falcon")  # whose queries, keys and values are in one matrix, group by group
FROM_ZERO = ("gemma", "gemma2", "gemma3_text", "nemotron")  # whose norms' weights are kept less 1
NORM = re.compile(r"(norm\d*|layernorm)\.weight$")
TURNED = ("c_attn", "c_proj", "c_fc")  # GPT-2's matrices, (inputs, outputs)


class Match(NamedTuple):
    """Parameters of a unit (sub-layer) and the tensors that hold them in Hugging Face's weight files. ours: names of one
    parameter, or of several that are joined in one tensor. theirs: one tensor, or one for each part of a stack (such as
    queries, keys, values); for each the names that it may have, the usual one first. turned: whether theirs is stored
    transposed, as (inputs, outputs)."""

    ours: tuple[str, ...]
    theirs: tuple[tuple[str, ...], ...]
    turned: bool


def matches(model: Model, position: int) -> Iterator[Match]:
    """All parameters of the unit (sub-layer) with index `position`, with the tensors that hold them in Hugging Face's weight
    files."""
    unit = model.units[position]
    shapes = {parameter.name: parameter.shape for parameter in unit.sublayer.parameters()}
    number = re.search(r"\d+", unit.name)
    i = int(number[0]) if number else unit.layer - 1
    prefix, names = NAMES[model.family][re.sub(r"\d+", "#", unit.name)]
    fields = {"i": i, "before": i - 1, **_stage(model, i), "wi": "wi_1" if "gate.weight" in shapes else "wi"}
    for (ours, templates), suffix in product(names.items(), ("weight", "bias")):
        several = tuple(f"{name}.{suffix}" for name in ours.split("+") if f"{name}.{suffix}" in shapes)
        if not several:
            continue
        theirs = []
        for alternatives in templates.split():
            paths = [(prefix + template).format(**fields) for template in _usual(model, alternatives.split("|"))]
            paths = [path.replace("encoder.layer.-1.output", "embeddings") for path in paths]
            theirs.append(tuple(name for path in paths for name in (f"{path}.{suffix}", path)))
        yield Match(several, tuple(theirs), suffix == "weight" and model.family == "gpt2" and templates.endswith(TURNED))


def _usual(model: Model, names: list[str]) -> list[str]:
    """The names that a module (a norm) may have in Hugging Face's weight files, in the order in which they are tried: the name
    of the model's own code first. names: the names, first the one that Falcon uses in blocks with two norms; the order is
    reversed for Falcon models whose blocks have only one."""
    new = model.family == "falcon" and model.config["new_decoder_architecture"]
    two = new and model.config.get("num_ln_in_parallel_attn") != 1
    return names if two or model.family != "falcon" else names[::-1]


def to_theirs(
    model: Model, position: int, values: Mapping[str, Tensor], as_kept: bool = True
) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """The parameters of the unit (sub-layer) with index `position` as Hugging Face's weight files have them: (names that the
    tensor may have, value). values: by trainplan's names of parameters. as_kept: whether to subtract 1 from weights of norms,
    in families whose files store them so."""
    for match in matches(model, position):
        pieces = [values[name] for name in match.ours if name in values]
        if not pieces:
            continue
        value = pieces[0] if len(pieces) == 1 else _joined(model, pieces)
        for names, piece in zip(match.theirs, value if len(match.theirs) > 1 else [value], strict=True):
            flat = _flat(piece, match.ours[0])
            turned = flat.T if match.turned else flat
            yield names, _less(model, names[0], turned, 1) if as_kept else turned


def to_ours(model: Model, position: int, read: Callable[[tuple[str, ...]], Tensor]) -> Iterator[tuple[str, Tensor]]:
    """(trainplan's name, value) of each parameter of the unit (sub-layer) with index `position`, from a weight file of Hugging
    Face. read: returns the tensor that has one of the given names."""
    shapes = {parameter.name: parameter.shape for parameter in model.units[position].sublayer.parameters()}
    for match in matches(model, position):
        tensors = [_less(model, names[0], read(names), -1) for names in match.theirs]
        value = tensors[0] if len(tensors) == 1 else torch.stack(tensors)
        value = value.T if match.turned else value
        parts = [shapes[name] for name in match.ours]
        pieces = [value] if len(parts) == 1 else _parted(model, value, parts)
        for name, piece, shape in zip(match.ours, pieces, parts, strict=True):
            yield name, piece.reshape(shape)


def _flat(piece: Tensor, name: str) -> Tensor:
    """A stack of matrices, (n, out, in), as one matrix (n x out, in); a stack of biases as one bias. name: the parameter's
    name."""
    return piece.flatten() if name.endswith("bias") or piece.dim() == 1 else piece.flatten(0, -2)


def _less(model: Model, name: str, value: Tensor, one: int) -> Tensor:
    """The value less `one` if it is a norm's weight of a family whose files store norms' weights less 1; any other value
    unchanged. name: the parameter's name."""
    return value - one if model.family in FROM_ZERO and NORM.search(name) else value


def _groups(model: Model) -> int:
    """Number of groups of attention heads in a family that stores queries, keys and values group by group in one matrix."""
    one = model.config.get("multi_query") and not model.config["new_decoder_architecture"]
    return 1 if one else int(model.config.get("num_kv_heads", model.config["num_attention_heads"]))


def _joined(model: Model, pieces: list[Tensor]) -> Tensor:
    """Several of the unit's parameters (queries with stacked keys and values, or gate and up-projection) as the one matrix that
    the family's files have: one after the other or, for queries, keys and values of some families, group by group."""
    if model.family in INTERLEAVED:
        q, (k, v) = pieces
        return torch.cat([part.unflatten(0, (_groups(model), -1)) for part in (q, k, v)], 1).flatten(0, 1)
    split = [list(piece) if piece.dim() > pieces[0].dim() else [piece] for piece in pieces]
    return torch.cat([part for several in split for part in several])


def _parted(model: Model, value: Tensor, shapes: list[tuple[int, ...]]) -> list[Tensor]:
    """One matrix of a Hugging Face file as the unit's parameters of these shapes (queries with stacked keys and values, or gate
    and up-projection): the inverse of joining the unit's parameters into the file's matrix."""
    if model.family in INTERLEAVED:
        groups, (q, kv) = _groups(model), shapes
        by_group = value.unflatten(0, (groups, -1))
        parts = by_group.split([q[0] // groups, kv[1] // groups, kv[1] // groups], 1)
        heads, keys, content = (part.flatten(0, 1) for part in parts)
        return [heads, torch.stack([keys, content])]
    plain = len(shapes[0])
    return list(value.split([shape[0] * shape[1] if len(shape) > plain else shape[0] for shape in shapes]))


def _stage(model: Model, i: int) -> dict[str, int]:
    """For models whose blocks come in stages: {'stage': index of the stage of the i-th block, 'stage_before': one less,
    'block': index of the block in it}. Empty for other models."""
    for stage, depth in enumerate(model.config.get("depths", ())):
        if i < depth:
            return {"stage": stage, "stage_before": stage - 1, "block": i}
        i -= depth
    return {}
