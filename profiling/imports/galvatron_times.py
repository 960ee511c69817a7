"""Hetu-Galvatron's computation file: milliseconds of a forward pass, of a layer and of embedding and head together."""

from __future__ import annotations

import re
from typing import NamedTuple

from trainplan.profiling.imports.source import AGREEMENT, MOST_MS, SMALLEST, Source, counted, number

TIME = re.compile(r"layertype_(other|\d+)(?:_\d+)?(?:_bsz(\d+)_seq(\d+))?")
TOTAL = re.compile(r"layernum\[(\d+)\]_bsz(\d+)_seq(\d+)")


class Times(NamedTuple):
    """Milliseconds of a forward pass for each sample: of one layer, and of embedding and head together."""

    layer_ms: float
    other_ms: float


class Place(NamedTuple):
    """What a key's times are of; both 0 where it does not name them."""

    sequence: int
    batch: int

    def key(self, layer: str) -> str:
        """The key of such a time in the file; layer: `0`, or `other` for embedding and head."""
        return f"layertype_{layer}_bsz{self.batch}_seq{self.sequence}" if self.sequence else f"layertype_{layer}"


def read_times(source: Source) -> dict[int, dict[int, Times]]:
    """The times of a file by sequence length and batch, which are both 0 where keys name none. Raises InputError."""
    layer_ms, other_ms, totals = _entries(source)
    for place, by_layers in totals.items():
        if derived := _difference(by_layers, place.batch):
            profiled = layer_ms.setdefault(place, derived.layer_ms)
            other_ms.setdefault(place, derived.other_ms)
            if abs(profiled - derived.layer_ms) > AGREEMENT * abs(derived.layer_ms) or not profiled > 0:
                problem = f"is {profiled:.6g} ms, but the layernum totals give {derived.layer_ms:.6g}"
                raise source.fail(place.key("0"), problem, "give the numbers of one profile")
    if not layer_ms:
        problem = "has totals for one number of layers only" if totals else "has no layer times"
        raise source.fail("", f"{problem}, and no layertype_0", "profile two numbers of layers")
    table: dict[int, dict[int, Times]] = {}
    for place in sorted(layer_ms):
        if place not in other_ms:
            raise source.fail(place.key("other"), "is missing", "give the time of embedding and head")
        table.setdefault(place.sequence, {})[place.batch] = Times(layer_ms[place], other_ms[place])
    return table


def _entries(source: Source) -> tuple[dict[Place, float], dict[Place, float], dict[Place, dict[int, float]]]:
    """ms of a layer and of the rest, and totals of a batch by number of layers. Raises InputError."""
    layer_ms: dict[Place, float] = {}
    other_ms: dict[Place, float] = {}
    totals: dict[Place, dict[int, float]] = {}
    for key, value in source.data.items():
        ms = number(source, key, value, MOST_MS)
        if total := TOTAL.fullmatch(key):
            layers, batch, sequence = (counted(source, key, text) for text in total.groups())
            totals.setdefault(Place(sequence, batch), {})[layers] = ms
        elif time := TIME.fullmatch(key):
            layer, *texts = time.groups()
            batch, sequence = (counted(source, key, text) if text else 0 for text in texts)
            if layer not in ("other", "0"):
                raise source.fail(key, "is of a second type of layers", "give a model of one type")
            if layer == "0":
                number(source, key, value, MOST_MS, SMALLEST)
            (other_ms if layer == "other" else layer_ms)[Place(sequence, batch)] = ms
        else:
            raise source.fail(key, "is not a key of this file", "give keys such as layertype_0_bsz8_seq512")
    return layer_ms, other_ms, totals


def _difference(totals: dict[int, float], batch: int) -> Times | None:
    """From totals by number of layers; None with less than two of them."""
    if len(totals) < 2:
        return None
    few, many = min(totals), max(totals)
    layer_ms = (totals[many] - totals[few]) / batch / (many - few)
    return Times(layer_ms, max(0.0, totals[few] / batch - few * layer_ms))
