"""Modules that predict further tokens, added to the end of a model's chain (multi-token prediction)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from trainplan.profiling.base.errors import shown
from trainplan.profiling.models.families.fields import Fields, Unit
from trainplan.profiling.models.sublayers import LAYER_KINDS, LanguageHead, Norm, Sublayer, TokenJoin

FIELD = "mtp_num_layers"  # as Megatron-LM calls it; no class of transformers trains such modules
PATTERN = "mtp_hybrid_override_pattern"  # of Nemotron 3, the kinds of the units of a module
LETTERS = {"M": "state_space", "*": "attention", "-": "ffn", "E": "experts"}
MOST = 16


def with_predictions(fields: Fields, units: Sequence[Unit]) -> list[Unit]:
    """The chain of a model with as many modules that predict one token further as the field `mtp_num_layers` says (0 if it is
    absent). Each is a join, the units of a layer, and a norm; the head computes a set of logits more for each.

    units: the chain without them. A module's layer is like the model's last one, or has the units of
    `mtp_hybrid_override_pattern`. fields: the configuration; fields that are read are recorded in it. Raises InputError for
    invalid fields, and for models without a language head.
    """
    count = fields.count(FIELD, least=0, most=MOST) if fields.config.get(FIELD) is not None else 0
    if not count:
        return list(units)
    *before, last = units
    head = last.sublayer
    if not isinstance(head, LanguageHead) or head.transform:
        raise fields.fail(FIELD, f"is {count}", "give 0: only decoders predict further tokens")
    common: dict[str, Any] = {"tokens": head.tokens, "hidden": head.hidden, "dtype": head.dtype, "norm": head.norm}
    common |= {"epsilon": head.epsilon, "norm_bias": head.norm_bias, "unfused": head.unfused}
    block = _block(fields, before)
    chain, layer = list(before), last.layer
    for index in range(count):
        parts = {"join": TokenJoin(**common), **block, "norm": Norm(**common)}
        carried = (index + 1) * head.tokens
        chain += [
            Unit(f"mtp{index}.{name}", layer + index, replace(part, carried_tokens=carried)) for name, part in parts.items()
        ]
    return [*chain, Unit(last.name, layer + count, replace(head, predictions=count))]


def _block(fields: Fields, units: Sequence[Unit]) -> dict[str, Sublayer]:
    """The sub-layers of a module's layer by name: those of the last layer, or, where the configuration has a pattern of a
    module's units, the model's last sub-layers of these kinds. units: the chain without its head. Raises InputError for a
    pattern of other letters, or of a kind that no layer has."""
    pattern = fields.config.get(PATTERN)
    if pattern is None:
        last = [unit for unit in units if unit.kind in LAYER_KINDS and unit.layer == units[-1].layer]
        return {unit.kind: unit.sublayer for unit in last}
    kinds = {unit.kind: unit.sublayer for unit in units}
    wanted = [LETTERS.get(letter) for letter in str(pattern)]
    if len(set(wanted)) < len(wanted) or any(kind not in kinds for kind in wanted):
        has = "".join(letter for letter, kind in LETTERS.items() if kind in kinds)
        raise fields.fail(PATTERN, f"is {shown(pattern)}", f"give some of {has}, each once, as the model's layers have")
    fields.read[PATTERN] = pattern
    return {kind: kinds[kind] for kind in wanted if kind is not None}
