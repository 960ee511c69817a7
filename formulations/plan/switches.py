"""H3T's seven memory switches of a layer (Sections 3.2.1 to 3.2.3 of the paper).

| switch | on |
|---|---|
| `ckpt` | rematerialise: evict what the forward pass keeps for the backward pass, and recompute it there |
| `offload_hidden` | move the layer's input to the host until its backward pass |
| `partition` | release the gathered parameters after the forward pass, and gather them again for the backward pass |
| `lazy_prefetch` | keep no shard of the parameters on the device; copy it from the host before each all-gather |
| `eco_forward` | economical forward: copy out what is done with before fetching what the next layer needs |
| `eco_backward` | economical backward: fetch what the next layer needs only once the backward computation runs |
| `segment_sync` | a segment begins when all lanes are done with the one before |

In the authors' published code offloading an input requires recomputation; the paper counts all 2^7 combinations, and has its
dynamic program leave `segment_sync` on in every layer, which halves them. So do all methods here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from itertools import product
from typing import Literal, get_args

SwitchName = Literal["ckpt", "offload_hidden", "partition", "lazy_prefetch", "eco_forward", "eco_backward", "segment_sync"]
SWITCHES: tuple[SwitchName, ...] = get_args(SwitchName)


@dataclass(frozen=True, order=True)
class Switches:
    """The memory switches of one layer; fields as in the table at the head of this file."""

    ckpt: bool = False
    offload_hidden: bool = False
    partition: bool = False
    lazy_prefetch: bool = False
    eco_forward: bool = False
    eco_backward: bool = False
    segment_sync: bool = False

    @classmethod
    def of(cls, names: Iterable[str]) -> Switches:
        """The switches of which the named ones are on. Raises TypeError for an unknown name."""
        return cls(**dict.fromkeys(names, True))

    @property
    def names(self) -> tuple[SwitchName, ...]:
        """The names of the switches that are on."""
        return tuple(name for name, on in zip(SWITCHES, astuple(self), strict=True) if on)

    def __str__(self) -> str:
        return "+".join(self.names) or "none"


assert tuple(field.name for field in fields(Switches)) == SWITCHES
ALL_ON = Switches(*[True] * len(SWITCHES))


def combinations(offload_needs_ckpt: bool = True) -> tuple[Switches, ...]:
    """All legal combinations of one layer, each with `segment_sync` on: 48, or 64 where offloading does not need recomputation,
    as in the paper."""
    every = (Switches(*[*values, True]) for values in product((False, True), repeat=len(SWITCHES) - 1))
    return tuple(switches for switches in every if switches.ckpt or not (switches.offload_hidden and offload_needs_ckpt))
