"""Layout strings of Megatron-Core's pipelines, such as `Et*4|(t*4|)*14tmL`: read, checked and written.

The letters of a string are the model's parts in order: E the embedding, t a transformer layer, m a layer of multi-token
prediction, L final norm, head and loss. `|` ends a stage; `t*4` is `tttt`, `(tt|)*3` is `tt|tt|tt|`; groups hold no groups, and
commas are for the eye. Stage i is on pipeline rank i modulo the number of ranks: more stages than ranks are interleaved.

Syntax and rules are those of `PipelineParallelLayerLayout` (megatron/core/transformer/pipeline_parallel_layer_layout.py, core
0.13 to 0.20; a stage of m without layers since 0.16, 2026), and of `TransformerConfig` for what else divides a pipeline. Here,
stages are lists of texts, one letter for each part, such as `["Etttt", "tmL"]`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from trainplan.profiling.base.errors import shown
from trainplan.profiling.base.quantities import plural

NAMES = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}  # of the form with lists
PARTS = "EtmL"
REPEATED = (re.compile(r"\(([^)]+)\)\*(\d+)"), re.compile(r"(.)\*(\d+)"))  # groups first, then single letters
MOST_LETTERS = 100_000  # of a string whose groups are written out; longer ones are no pipelines


def parsed(text: str) -> list[str]:
    """The stages of a layout string: "Et*3|(tt|)*2,mL" -> ["Ettt", "tt", "tt", "mL"]. Letters are not checked (`fault`); one
    that would be longer than MOST_LETTERS is left with what it repeats not written out, and has a fault for that."""
    text = text.replace(",", "")
    for pattern in REPEATED:
        written_out = sum(len(match[1]) * min(int(match[2][:9]), MOST_LETTERS + 1) for match in pattern.finditer(text))
        if written_out > MOST_LETTERS:
            break
        text = pattern.sub(lambda match: match[1] * int(match[2]), text)
    return text.split("|")


def of_lists(stages: Sequence[Any]) -> str:
    """The layout string of the form with lists, which configurations in Python and YAML have: [["embedding", "decoder"],
    ["decoder", "loss"]] -> "Et|tL". Names may be written in capitals and with blanks around them; what is no name of a part, or
    no list, is kept as a text between blanks, so that `fault` shows it."""
    texts = []
    for stage in stages:
        parts = stage if isinstance(stage, list | tuple) else (shown(stage),)
        texts.append("".join(NAMES.get(str(part).strip().lower(), f" {part} ") for part in parts))
    return "|".join(texts)


def written(stages: Sequence[str]) -> str:
    """The shortest layout string that this function finds for stages: runs of a letter are written as `t*4` from three letters
    on, and what stages repeat, in any period, as a group where that is shorter: ["Ett", "t", "tt", "t", "tt", "t", "tt", "L"]
    -> "Ett|(t|tt|)*3L"."""
    texts = [f"{_letters(stage)}|" for stage in stages]
    texts[-1] = texts[-1][:-1]
    result, index = "", 0
    while index < len(texts):
        period, count = _repeats(texts, index)
        group = "".join(texts[index : index + period])
        result += group if count == 1 else f"({group})*{count}"
        index += period * count
    return result


def _letters(stage: str) -> str:
    """One stage, with runs of three or more equal letters as a product: "Ettt" -> "Et*3"."""
    runs = ((letter, len(list(run))) for letter, run in groupby(stage))
    return "".join(f"{letter}*{count}" if count > 2 else letter * count for letter, count in runs)


def _repeats(texts: Sequence[str], index: int) -> tuple[int, int]:
    """How many stages from an index on are repeated together, and how often, such that a group saves the most letters; (1, 1)
    if none saves any. texts: the stages, each with the `|` that ends it."""
    best, saved = (1, 1), 0
    for period in range(1, (len(texts) - index) // 2 + 1):
        group, count = texts[index : index + period], 1
        while texts[index + period * count : index + period * (count + 1)] == group:
            count += 1
        size = sum(map(len, group))
        if count > 1 and (less := size * count - len(f"()*{count}") - size) > saved:
            best, saved = (period, count), less
    return best


def fault(stages: Sequence[str], pp: int, layers: int, predicted: int = 0) -> str:
    """Find what is wrong with a layout, in words that follow its name, such as "has 9 stages, no multiple of 4 ranks"; empty if
    Megatron-Core takes it and plans have it. stages: its parts by stage. pp: pipeline-parallel ranks. layers: the model's
    layers. predicted: its layers of multi-token prediction."""
    flat = "".join(stages)
    odd = next((letter for letter in flat if letter not in PARTS), None)
    if odd is not None:
        return f"has {shown(odd.strip() or ''.join(flat.split())[:20])}, and its letters are E, t, m and L"
    counts = {letter: flat.count(letter) for letter in PARTS}
    if len(stages) % pp:
        return f"has {plural(len(stages), 'stage')}, no multiple of {plural(pp, 'pipeline-parallel rank')}"
    if len(stages) > pp == 1:
        return f"has {len(stages)} stages, and one pipeline-parallel rank interleaves none"
    for letter, at, end in (("E", 0, "first"), ("L", -1, "last")):
        if not flat or flat[at] != letter or counts[letter] != 1:
            others = f", {counts[letter]} times" if counts[letter] > 1 else ""
            return f"has {shown(flat[at]) if flat else 'nothing'} {end}{others}, not one {letter}"
    if counts["t"] != layers:
        return f"has {plural(counts['t'], 'layer')} t, and the model has {layers}"
    if counts["m"] != predicted:
        return f"has {plural(counts['m'], 'layer')} m of multi-token prediction, and the model has {predicted}"
    if "t" in flat[flat.find("m") :] and counts["m"]:
        return "has layers t after those of multi-token prediction m"
    of_prediction = [number for number, stage in enumerate(stages) if "m" in stage]
    if len(of_prediction) > 1 or (of_prediction and of_prediction[0] < len(stages) - pp):
        return "has layers m in several stages, or in another than the last ones of the ranks"
    empty = next((number for number, stage in enumerate(stages) if not stage), None)
    return "" if empty is None else f"has nothing in stage {empty} (of 0 to {len(stages) - 1}), and plans have no empty stages"


def example(stages: int, pp: int, layers: int, predicted: int = 0) -> str:
    """A layout string without fault for a model, with about as many stages as given; empty if there is none, since ranks are
    more than what they could hold. pp: pipeline-parallel ranks. layers: the model's layers. predicted: its layers of
    multi-token prediction, which are put before the loss."""
    chunks = max(1, stages // pp) if pp > 1 else 1
    while chunks > 1 and layers < pp * chunks:
        chunks -= 1
    count = pp * chunks
    if count > layers + 2:
        return ""
    least, longer = divmod(layers, count)
    sizes = [least + (0 < number <= longer) for number in range(count)]
    if count == 1 or longer == count - 1:  # the ends have work of their own: they take what is left over last
        sizes = [least + (number < longer) for number in range(count)]
    if not least and count > 1:
        sizes = [1 if 0 < number < count - 1 else 0 for number in range(count)]
        for number in (0, -1)[: layers - sum(sizes)]:
            sizes[number] += 1
    parts = ["t" * size for size in sizes]
    return written(["E" * (not number) + part for number, part in enumerate(parts[:-1])] + [_last(parts, predicted)])


def _last(parts: Sequence[str], predicted: int) -> str:
    """The last stage of a layout, of layers `parts[-1]`, with the layers of multi-token prediction and the loss; with the
    embedding, too, if it is the only stage."""
    return "E" * (len(parts) == 1) + parts[-1] + "m" * predicted + "L"
