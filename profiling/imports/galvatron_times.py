"""Hetu-Galvatron's computation file: ms of a forward pass, of a layer of each type, and of embedding and head together.

A key names its batch and the tokens of a sample, `_bsz8_seq512`, with several types of layers those of each, `_seq[512,512]`.
Older files lack the tokens (`layernum[12]_bsz4`), and name a `layertype_0` without a batch beside: it repeats one of the
profiled batches, of that file or of an earlier one, so it is read only where no batch is named.
"""

from __future__ import annotations

import re
from itertools import permutations
from typing import NamedTuple

from trainplan.profiling.imports.source import AGREEMENT, MOST_MS, SMALLEST, Source, counted, number

LENGTHS = r"\d+|\[\d+(?:,\d+)*\]"
TIME = re.compile(rf"layertype_(other|\d\d?)(?:_\d+)?(?:_bsz(\d+))?(?:_seq({LENGTHS}))?")
TOTAL = re.compile(rf"layernum\[(\d+(?:,\d+)*)\]_bsz(\d+)(?:_seq({LENGTHS}))?")

Lengths = tuple[int, ...]  # tokens of a sample by type of layers; empty where a file does not name them
Counts = tuple[int, ...]  # layers by type


class Times(NamedTuple):
    """Milliseconds of a forward pass for each sample: of a layer by type, and of embedding and head together."""

    layers_ms: tuple[float, ...]
    ends_ms: float


class TimeTable(NamedTuple):
    """The times of a file by lengths and batch, which is 0 where keys name none. left_out: keys of layers that take no time, as
    noise makes them in one of several batches."""

    by_lengths: dict[Lengths, dict[int, Times]]
    left_out: tuple[str, ...]

    @property
    def types(self) -> int:
        """The number of types of layers."""
        return max(len(times.layers_ms) for by_batch in self.by_lengths.values() for times in by_batch.values())


class Place(NamedTuple):
    """What a key's times are of; batch is 0 where it does not name one."""

    lengths: Lengths
    batch: int

    def key(self, layer: int | str) -> str:
        """The key of a time in the file. layer: its type, or `other` for embedding and head."""
        batch = f"_bsz{self.batch}" if self.batch else ""
        lengths = self.lengths[layer : layer + 1] if isinstance(layer, int) else self.lengths
        return f"layertype_{layer}{batch}" + (f"_seq{lengths_text(lengths)}" if lengths else "")


def lengths_text(lengths: Lengths) -> str:
    """Lengths as the files' keys have them, such as `512` or `[512,512]`."""
    return str(lengths[0]) if len(lengths) == 1 else f"[{','.join(map(str, lengths))}]"


def lengths_of(source: Source, field: str, text: str | None) -> Lengths:
    """The lengths that stand in a key; none where `text` is None. Raises InputError."""
    return tuple(counted(source, field, part) for part in text.strip("[]").split(",")) if text else ()


def read_times(source: Source) -> TimeTable:
    """The times of a file. Raises InputError."""
    entries = _Entries(source)
    table: dict[Lengths, dict[int, Times]] = {}
    noisy: dict[Lengths, list[str]] = {}
    for place in sorted(entries.places):
        if (times := entries.times(place)) is None:
            continue
        if min(times.layers_ms) < SMALLEST:
            layer = times.layers_ms.index(min(times.layers_ms))
            noisy.setdefault(place.lengths, []).append(place.key(layer))
        else:
            table.setdefault(place.lengths, {})[place.batch] = times
    if alone := [keys[0] for lengths, keys in noisy.items() if lengths not in table]:
        raise source.fail(alone[0], "takes no time, as profiled", "profile it again, or with more layers or samples")
    if not table:
        problem = "has totals for one number of layers only" if entries.totals else "has no layer times"
        raise source.fail("", f"{problem}, and no layertype_0", "profile two numbers of layers")
    return TimeTable(table, tuple(key for keys in noisy.values() for key in keys))


class _Entries:
    """The numbers of a file as its keys name them. Raises InputError."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.layers_ms: dict[tuple[int, Lengths, int], float] = {}  # by type, its own length, and batch
        self.ends_ms: dict[Place, float] = {}
        self.totals: dict[Place, dict[Counts, float]] = {}
        for key, value in source.data.items():
            self._add(key, number(source, key, value, MOST_MS, -MOST_MS if key.startswith("layertype_") else 0.0))
        kinds = [len(counts) for totals in self.totals.values() for counts in totals]
        self.types = max([1, *kinds, *(layer + 1 for layer, _, _ in self.layers_ms)])
        for place in (*self.ends_ms, *self.totals):
            if place.lengths and len(place.lengths) != self.types:
                problem = f"names {len(place.lengths)} sequence lengths for {self.types} types of layers"
                raise source.fail(place.key("other"), problem, "give one for each type")
        if kinds and set(kinds) != {self.types}:
            problem = f"are of {min(kinds)} and of {self.types} types of layers"
            raise source.fail("layernum totals", problem, "give the numbers of one profile")

    def _add(self, key: str, ms: float) -> None:
        if total := TOTAL.fullmatch(key):
            counts = tuple(counted(self.source, key, text) for text in total[1].split(","))
            place = Place(lengths_of(self.source, key, total[3]), counted(self.source, key, total[2]))
            self.totals.setdefault(place, {})[counts] = ms
        elif time := TIME.fullmatch(key):
            lengths = lengths_of(self.source, key, time[3])
            batch = counted(self.source, key, time[2]) if time[2] else 0
            if time[1] == "other":
                self.ends_ms[Place(lengths, batch)] = max(0.0, ms)
            elif len(lengths) < 2:
                self.layers_ms[int(time[1]), lengths, batch] = ms
            else:
                raise self.source.fail(key, "names several sequence lengths", "give that of its own type of layers")
        else:
            raise self.source.fail(key, "is not a key of this file", "give keys such as layertype_0_bsz8_seq512")

    @property
    def places(self) -> set[Place]:
        """Those that have times, or totals; without a batch only where none is named."""
        alone = {Place(lengths, batch) for _, lengths, batch in self.layers_ms} if self.types == 1 else set()
        indices = alone | set(self.ends_ms) | set(self.totals)
        return {place for place in indices if place.batch} or indices

    def times(self, place: Place) -> Times | None:
        """Those of one place, as profiled or else from its totals; None without times of a layer. Raises InputError."""
        totals, layers_ms = self.totals.get(place, {}), []
        for layer in range(self.types):
            differences = _differences(totals, layer, place.batch)
            profiled = self.layers_ms.get((layer, place.lengths[layer : layer + 1], place.batch))
            if profiled is not None and differences:
                if not any(abs(profiled - ms) <= AGREEMENT * abs(ms) for ms in differences):
                    problem = f"is {profiled:.6g} ms, but the layernum totals give {differences[0]:.6g}"
                    raise self.source.fail(place.key(layer), problem, "give the numbers of one profile")
            elif profiled is None and not differences:
                return None
            layers_ms.append(differences[0] if profiled is None else profiled)
        return Times(tuple(layers_ms), self._ends_ms(place, totals, layers_ms))

    def _ends_ms(self, place: Place, totals: dict[Counts, float], layers_ms: list[float]) -> float:
        if place in self.ends_ms:
            return self.ends_ms[place]
        if not totals:
            raise self.source.fail(place.key("other"), "is missing", "give the time of embedding and head")
        fewest = min(totals, key=sum)
        return max(0.0, totals[fewest] / place.batch - sum(n * ms for n, ms in zip(fewest, layers_ms, strict=True)))


def _differences(totals: dict[Counts, float], layer: int, batch: int) -> list[float]:
    """ms of a layer of one type by each two totals that differ in its number only; first of the two furthest apart."""
    pairs = []
    for few, many in permutations(totals, 2):
        added = many[layer] - few[layer]
        if added > 0 and few[:layer] + few[layer + 1 :] == many[:layer] + many[layer + 1 :]:
            pairs.append((added, (totals[many] - totals[few]) / batch / added))
    return [ms for _, ms in sorted(pairs, reverse=True)]
