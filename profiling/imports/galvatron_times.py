"""Hetu-Galvatron's computation file: ms of a forward pass, of a layer of each type, and of embedding and head together.

A key names its batch and the tokens of a sample (`_bsz8_seq512`), with several types of layers those of each (`_seq[512,512]`).
Older files lack the tokens (`layernum[12]_bsz4`), and have in addition a `layertype_0` without a batch: it repeats one of the
profiled batches, of that file or of an earlier one, so it is read only where no key names a batch.
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
    """Milliseconds of a forward pass per sample: of one layer of each type (set of equal layers), and of embedding and head
    together.
    """

    layers_ms: tuple[float, ...]
    ends_ms: float


class TimeTable(NamedTuple):
    """The times of Galvatron's computation file.

    by_lengths: times by sequence lengths (one number per type of layers, which is a set of equal layers) and by batch in
    samples, which is 0 if keys state none. left_out: keys of layers whose time is not positive, as noise produces in one of
    several batches; they are not used.
    """

    by_lengths: dict[Lengths, dict[int, Times]]
    left_out: tuple[str, ...]

    @property
    def types(self) -> int:
        """The number of types of layers (sets of equal layers) in the file."""
        return max(len(times.layers_ms) for by_batch in self.by_lengths.values() for times in by_batch.values())


class Setting(NamedTuple):
    """The setting of a measurement, as its key in Galvatron's file names it: sequence lengths (tokens per sample, one per type
    of layers) and batch (samples). Lengths are empty, and batch is 0, if the key names none.
    """

    lengths: Lengths
    batch: int

    def key(self, layer: int | str) -> str:
        """The key of a time with this setting in Galvatron's file, such as `layertype_0_bsz8_seq512`.

        layer: the index of the layer's type, or "other" for embedding and head.
        """
        batch = f"_bsz{self.batch}" if self.batch else ""
        lengths = self.lengths[layer : layer + 1] if isinstance(layer, int) else self.lengths
        return f"layertype_{layer}{batch}" + (f"_seq{lengths_text(lengths)}" if lengths else "")


def lengths_text(lengths: Lengths) -> str:
    """Format sequence lengths as in keys of Galvatron's files: (512,) -> `512` for one type of layers, (512, 512) ->
    `[512,512]` for two.
    """
    return str(lengths[0]) if len(lengths) == 1 else f"[{','.join(map(str, lengths))}]"


def lengths_of(source: Source, field: str, text: str | None) -> Lengths:
    """Parse the part of a key that has the sequence lengths: "[512,512]" -> (512, 512); empty if `text` is None or empty.

    source, field: the file and the key, for errors. Raises InputError for a length out of range.
    """
    return tuple(counted(source, field, part) for part in text.strip("[]").split(",")) if text else ()


def read_times(source: Source) -> TimeTable:
    """Read the times in Galvatron's computation file. Raises InputError for invalid keys, or if a layer has no time."""
    entries = _Entries(source)
    table: dict[Lengths, dict[int, Times]] = {}
    noisy: dict[Lengths, list[str]] = {}
    for setting in sorted(entries.settings):
        if (times := entries.times(setting)) is None:
            continue
        if min(times.layers_ms) < SMALLEST:
            layer = times.layers_ms.index(min(times.layers_ms))
            noisy.setdefault(setting.lengths, []).append(setting.key(layer))
        else:
            table.setdefault(setting.lengths, {})[setting.batch] = times
    if alone := [keys[0] for lengths, keys in noisy.items() if lengths not in table]:
        raise source.fail(alone[0], "takes no time, as profiled", "profile it again, or with more layers or samples")
    if not table:
        problem = "has totals for one number of layers only" if entries.totals else "has no layer times"
        raise source.fail("", f"{problem}, and no layertype_0", "profile two numbers of layers")
    return TimeTable(table, tuple(key for keys in noisy.values() for key in keys))


class _Entries:
    """The numbers of Galvatron's computation file, sorted by the meaning of their keys.

    A setting is the sequence lengths and the batch of a measurement; a type of layers is a set of equal layers. layers_ms:
    time of a layer, by its type, its own sequence length, and batch. ends_ms: time of embedding and head together, by
    setting. totals: times of whole models, by setting and number of layers of each type. types: the number of types of
    layers.
    """

    def __init__(self, source: Source) -> None:
        """Read all numbers of the file. Raises InputError where they contradict each other."""
        self.source = source
        self.layers_ms: dict[tuple[int, Lengths, int], float] = {}  # by type, its own length, and batch
        self.ends_ms: dict[Setting, float] = {}
        self.totals: dict[Setting, dict[Counts, float]] = {}
        for key, value in source.data.items():
            self._add(key, number(source, key, value, MOST_MS, -MOST_MS if key.startswith("layertype_") else 0.0))
        kinds = [len(counts) for totals in self.totals.values() for counts in totals]
        self.types = max([1, *kinds, *(layer + 1 for layer, _, _ in self.layers_ms)])
        for setting in (*self.ends_ms, *self.totals):
            if setting.lengths and len(setting.lengths) != self.types:
                problem = f"names {len(setting.lengths)} sequence lengths for {self.types} types of layers"
                raise source.fail(setting.key("other"), problem, "give one for each type")
        if kinds and set(kinds) != {self.types}:
            problem = f"are of {min(kinds)} and of {self.types} types of layers"
            raise source.fail("layernum totals", problem, "give the numbers of one profile")

    def _add(self, key: str, ms: float) -> None:
        """Store one number of the file, in milliseconds, in the table that its key belongs to. Raises InputError for an
        unknown key.
        """
        if total := TOTAL.fullmatch(key):
            counts = tuple(counted(self.source, key, text) for text in total[1].split(","))
            setting = Setting(lengths_of(self.source, key, total[3]), counted(self.source, key, total[2]))
            self.totals.setdefault(setting, {})[counts] = ms
        elif time := TIME.fullmatch(key):
            lengths = lengths_of(self.source, key, time[3])
            batch = counted(self.source, key, time[2]) if time[2] else 0
            if time[1] == "other":
                self.ends_ms[Setting(lengths, batch)] = max(0.0, ms)
            elif len(lengths) < 2:
                self.layers_ms[int(time[1]), lengths, batch] = ms
            else:
                raise self.source.fail(key, "names several sequence lengths", "give that of its own type of layers")
        else:
            raise self.source.fail(key, "is not a key of this file", "give keys such as layertype_0_bsz8_seq512")

    @property
    def settings(self) -> set[Setting]:
        """The settings for which the file has times of layers or of whole models. Settings without a batch are omitted if any
        key states a batch.
        """
        alone = {Setting(lengths, batch) for _, lengths, batch in self.layers_ms} if self.types == 1 else set()
        indices = alone | set(self.ends_ms) | set(self.totals)
        return {setting for setting in indices if setting.batch} or indices

    def times(self, setting: Setting) -> Times | None:
        """The times of layers, embedding and head in one setting: as profiled, or else derived from times of whole models.
        None if some layer has neither. Raises InputError if both kinds of times contradict each other.
        """
        totals, layers_ms = self.totals.get(setting, {}), []
        for layer in range(self.types):
            differences = _differences(totals, layer, setting.batch)
            profiled = self.layers_ms.get((layer, setting.lengths[layer : layer + 1], setting.batch))
            if profiled is not None and differences:
                if not any(abs(profiled - ms) <= AGREEMENT * abs(ms) for ms in differences):
                    problem = f"is {profiled:.6g} ms, but the layernum totals give {differences[0]:.6g}"
                    raise self.source.fail(setting.key(layer), problem, "give the numbers of one profile")
            elif profiled is None and not differences:
                return None
            layers_ms.append(differences[0] if profiled is None else profiled)
        return Times(tuple(layers_ms), self._ends_ms(setting, totals, layers_ms))

    def _ends_ms(self, setting: Setting, totals: dict[Counts, float], layers_ms: list[float]) -> float:
        """Milliseconds per sample of embedding and head together: as profiled, or else the time of the smallest whole model
        minus the time of its layers.

        totals: times of whole models in this setting, by number of layers of each type. layers_ms: milliseconds per sample of
        one layer of each type. Raises InputError if neither is known.
        """
        if setting in self.ends_ms:
            return self.ends_ms[setting]
        if not totals:
            raise self.source.fail(setting.key("other"), "is missing", "give the time of embedding and head")
        fewest = min(totals, key=sum)
        return max(0.0, totals[fewest] / setting.batch - sum(n * ms for n, ms in zip(fewest, layers_ms, strict=True)))


def _differences(totals: dict[Counts, float], layer: int, batch: int) -> list[float]:
    """Milliseconds per sample of a layer of one type, derived from every pair of whole models whose numbers of layers differ
    only in this type.

    totals: times of whole models, by number of layers of each type. layer: index of the type. batch: samples that the totals
    are for. The first result is from the pair whose numbers of layers differ most; empty if there are no such pairs.
    """
    pairs = []
    for few, many in permutations(totals, 2):
        added = many[layer] - few[layer]
        if added > 0 and few[:layer] + few[layer + 1 :] == many[:layer] + many[layer + 1 :]:
            pairs.append((added, (totals[many] - totals[few]) / batch / added))
    return [ms for _, ms in sorted(pairs, reverse=True)]
