"""Strategies as texts for people: `dp16 ZeRO-3, tp4, sp` for what files and options call `sdp16-tp4-sp`."""

from __future__ import annotations

import re

from trainplan.formulations.plan.strategy import PARADIGMS, Strategy, parse_strategy
from trainplan.profiling.base.errors import InputError

LEVEL = rf"(?:{'|'.join(PARADIGMS)})\d+h?"
SHORT = re.compile(rf"(?:single|{LEVEL}(?:-{LEVEL})*)(?:-zero[12])?(?:-sp)?(?:-ckpt(?::[a-z]+(?:\+[a-z]+)*)?)?(?![\w-])")


def degree_words(strategy: Strategy) -> list[str]:
    """The degrees of a strategy as short texts for people, without recomputation: sdp4-tp2-sp -> ["TP2", "DP4", "ZeRO-3",
    "SP"]; a single device gives ["1 GPU a stage"]."""
    tp, cp, data, sdp = strategy.degree("tp"), strategy.degree("cp"), strategy.data_degree, strategy.degree("sdp")
    words = [f"TP{tp}"] * (tp > 1) + [f"CP{cp}"] * (cp > 1) + [f"DP{data}"] * (data > 1)
    if sdp > 1:
        words.append(f"ZeRO-{strategy.zero_stage}" + f" over {sdp}" * (sdp < data))
    words += ["SP"] * strategy.sequence_parallel + ["CP by heads"] * strategy.exchanges_heads
    return words or ["1 GPU a stage"]


def strategy_words(strategy: Strategy) -> str:
    """A strategy as a text in a table, its levels from the slowest links to the fastest: sdp16-tp4-sp -> "dp16 ZeRO-3, tp4,
    sp". Different strategies have different texts."""
    words, names, data = list[str](), [name for name, _ in strategy.levels], 1
    for index, (name, degree) in enumerate(strategy.levels):
        if name == "dp" and names[index + 1 : index + 2] == ["sdp"]:  # copies of shards, in neighbouring levels (HSDP)
            data = degree
        elif name == "sdp" and (data > 1 or "dp" not in names):
            words.append(f"dp{data * degree} ZeRO-{strategy.zero}" + f" over {degree}" * (data > 1))
        elif name == "sdp":
            words.append(f"ZeRO-{strategy.zero} over {degree}")
        else:
            words.append(f"{name}{degree}" + " by heads" * (name == "cp" and strategy.exchanges_heads))
    words = words or ["one device"]
    words += ["sp"] * strategy.sequence_parallel + ["recomputed"] * strategy.ckpt
    words += [f"{' and '.join(strategy.modules)} recomputed"] * bool(strategy.modules)
    return ", ".join(words)


def in_words(text: str) -> str:
    """Replace a strategy's short form at the beginning of a text by its form for people: "sdp8-ckpt, input on the host" -> "dp8
    ZeRO-3, recomputed, input on the host"; any other text stays as it is."""
    match = SHORT.match(text)
    if match is None:
        return text
    try:
        return strategy_words(parse_strategy(match[0])) + text[match.end() :]
    except InputError:  # a name that only looks like one
        return text
