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
    """The seven memory switches of one layer in H3T, each on or off: recomputation (ckpt), offloading of its input, sharding of
    its parameters, and the order of its copies and synchronisation."""

    ckpt: bool = False
    offload_hidden: bool = False
    partition: bool = False
    lazy_prefetch: bool = False
    eco_forward: bool = False
    eco_backward: bool = False
    segment_sync: bool = False

    @classmethod
    def of(cls, names: Iterable[str]) -> Switches:
        """The memory switches in which the named ones are on and all others are off. names: such as "ckpt". Raises TypeError
        for an unknown name.
        """
        return cls(**dict.fromkeys(names, True))

    @property
    def names(self) -> tuple[SwitchName, ...]:
        """The names of the switches that are on, in the order of the fields."""
        return tuple(name for name, on in zip(SWITCHES, astuple(self), strict=True) if on)

    def __str__(self) -> str:
        return "+".join(self.names) or "none"


assert tuple(field.name for field in fields(Switches)) == SWITCHES
ALL_ON = Switches(*[True] * len(SWITCHES))


def combinations(offload_needs_ckpt: bool = True) -> tuple[Switches, ...]:
    """All legal combinations of H3T's memory switches for one layer, each with `segment_sync` on.

    offload_needs_ckpt: whether the layer's input can be offloaded only with recomputation: 48 combinations; otherwise 64, as in
    the paper.
    """
    every = (Switches(*[*values, True]) for values in product((False, True), repeat=len(SWITCHES) - 1))
    return tuple(switches for switches in every if switches.ckpt or not (switches.offload_hidden and offload_needs_ckpt))
