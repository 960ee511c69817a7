"""The evidence of a lower bound, as certificate files have it: for each configuration a step that is impossible, and the prices
of memory or the weighted paths by which `certificates.check` sees that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

SCALE = 2**16  # parts of a nanosecond in which prices times bytes are counted
FAR = np.int64(2**60)  # more than any number that is compared; four of them can be added


@dataclass(frozen=True)
class WeightedPath:
    """A path through the passes of a schedule, followed backwards, with its weight.

    weight: a whole number; the weights of all paths add up to the whole. end: the index of the device group with whose
    optimizer the path ends. site: the index of the device group with whose passes it does, another one only where both ends of
    the pipeline wait for each other's gradients. turns: binary digits after a leading 1, the last digit first: for each pass on
    the path that waits for two others, whether the path goes on with the pass of its own device group (0) or that of another
    stage (1).
    """

    weight: int
    end: int
    site: int
    turns: int

    def to_dict(self) -> dict[str, Any]:
        """The path in its file format, with its turns as hexadecimal digits."""
        return {"weight": self.weight, "end": self.end, "site": self.site, "turns": f"{self.turns:x}"}

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> WeightedPath:
        """The path of a file. Raises ValueError, KeyError or TypeError where the record is not a path."""
        weight, end, site = (_whole(record[name]) for name in ("weight", "end", "site"))
        return cls(weight, end, site, int(record["turns"], 16))


@dataclass(frozen=True)
class ConfigurationEvidence:
    """Evidence on one configuration. impossible_ns: no plan of the configuration has a step up to this time; -1 where no more
    is claimed than the closed form.

    prices: of a byte of memory, in parts of a nanosecond (SCALE of them make one). depths: numbers of micro-batches in flight,
    ascending from the least. Or paths, with memory and host: for each stage the price of a byte of its device and of its host,
    in the same whole as the paths' weights (0 for a host without a price).
    """

    impossible_ns: int
    prices: tuple[int, ...] = ()
    depths: tuple[int, ...] = ()
    paths: tuple[WeightedPath, ...] = ()
    memory: tuple[int, ...] = ()
    host: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The evidence in its file format."""
        numbers = {"prices": self.prices, "depths": self.depths, "memory": self.memory, "host": self.host}
        lists: dict[str, Any] = {name: list(values) for name, values in numbers.items() if values}
        if self.paths:
            lists["paths"] = [path.to_dict() for path in self.paths]
        return {"impossible_ns": self.impossible_ns, **lists}

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> ConfigurationEvidence:
        """The evidence of a file. Raises ValueError, KeyError or TypeError where the record is not evidence."""
        prices, depths, memory, host = (
            tuple(map(_whole, record.get(name, ()))) for name in ("prices", "depths", "memory", "host")
        )
        paths = tuple(WeightedPath.from_dict(path) for path in record.get("paths", ()))
        return cls(_whole(record["impossible_ns"]), prices, depths, paths, memory, host)


@dataclass(frozen=True)
class Evidence:
    """The evidence of a lower bound, for all configurations in their order. instance: the digest of the instance."""

    instance: str
    configurations: tuple[ConfigurationEvidence, ...]

    def to_dict(self) -> dict[str, Any]:
        """The evidence in its file format."""
        rows = [configuration.to_dict() for configuration in self.configurations]
        return {"format": "joint-evidence", "version": 2, "scale": SCALE, "instance": self.instance, "configurations": rows}

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Evidence:
        """The evidence of a file, of version 2 or of version 1, which has no paths. Raises ValueError where the record is not
        evidence."""
        if record.get("format") != "joint-evidence" or record.get("version") not in (1, 2) or record.get("scale") != SCALE:
            raise ValueError("no evidence of the joint problem in version 1 or 2")
        return cls(str(record["instance"]), tuple(map(ConfigurationEvidence.from_dict, record["configurations"])))


def _whole(value: Any) -> int:
    """A whole number of a file. Raises ValueError where the value is not one."""
    if type(value) is not int:
        raise ValueError(f"{value!r} stands where a whole number belongs")
    return value
