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
    """A path through the passes of a schedule, with its weight in a proof. The step takes at least the sum of the times on any
    path, so also at least a weighted mean of such sums.

    weight: a whole number; a proof divides the weighted sum over its paths by the sum of their weights. end: the index of
    the device group with whose optimizer the path ends. last_pass_group: the index of the device group with whose last pass
    it ends (`site` in files); it differs from `end` only if the first and the last stage wait for each other's gradients of a
    shared weight table. turns: the choices on the path, followed backwards from its end, as binary digits after a leading 1,
    the last digit first: for each pass that waits for two others, 0 if the path goes on with the pass of its own device
    group, 1 if with that of another stage.
    """

    weight: int
    end: int
    last_pass_group: int
    turns: int

    def to_dict(self) -> dict[str, Any]:
        """The path in its JSON file format, with its turns as hexadecimal digits."""
        return {"weight": self.weight, "end": self.end, "site": self.last_pass_group, "turns": f"{self.turns:x}"}

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> WeightedPath:
        """Read a path from a file's dict. Raises ValueError, KeyError or TypeError if the dict is not a path."""
        weight, end, last_pass_group = (_whole(record[name]) for name in ("weight", "end", "site"))
        return cls(weight, end, last_pass_group, int(record["turns"], 16))


@dataclass(frozen=True)
class ConfigurationEvidence:
    """Evidence that one configuration (schedule, number of micro-batches, device groups) has no plan with a short step.

    impossible_ns: no plan of the configuration has a step of up to this time; -1 if no more is claimed than the closed-form
    bound. The evidence is either prices and depths, or paths with memory and host.

    prices: prices of a byte of memory, in parts of a nanosecond (SCALE of them make one). depths: numbers of micro-batches
    in flight, ascending. paths: weighted paths through the passes. memory, host: for each stage the price of a byte on its
    device and on its host, in the unit of the paths' weights (0 for a host without a price).
    """

    impossible_ns: int
    prices: tuple[int, ...] = ()
    depths: tuple[int, ...] = ()
    paths: tuple[WeightedPath, ...] = ()
    memory: tuple[int, ...] = ()
    host: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The evidence in its JSON file format, in which empty lists are left out."""
        numbers = {"prices": self.prices, "depths": self.depths, "memory": self.memory, "host": self.host}
        lists: dict[str, Any] = {name: list(values) for name, values in numbers.items() if values}
        if self.paths:
            lists["paths"] = [path.to_dict() for path in self.paths]
        return {"impossible_ns": self.impossible_ns, **lists}

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> ConfigurationEvidence:
        """Read evidence from a file's dict. Raises ValueError, KeyError or TypeError if the dict is not evidence."""
        prices, depths, memory, host = (
            tuple(map(_whole, record.get(name, ()))) for name in ("prices", "depths", "memory", "host")
        )
        paths = tuple(WeightedPath.from_dict(path) for path in record.get("paths", ()))
        return cls(_whole(record["impossible_ns"]), prices, depths, paths, memory, host)


@dataclass(frozen=True)
class Evidence:
    """The evidence of a lower bound on the step of every plan of an instance. instance: the digest of the instance.
    configurations: the evidence for each configuration, in the instance's order."""

    instance: str
    configurations: tuple[ConfigurationEvidence, ...]

    def to_dict(self) -> dict[str, Any]:
        """The evidence in its JSON file format, version 2."""
        rows = [configuration.to_dict() for configuration in self.configurations]
        return {"format": "joint-evidence", "version": 2, "scale": SCALE, "instance": self.instance, "configurations": rows}

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Evidence:
        """Read evidence from a file's dict, of version 2 or of version 1, which has no paths. Raises ValueError if the dict
        is not evidence, and KeyError or TypeError if a field is missing or wrong."""
        if record.get("format") != "joint-evidence" or record.get("version") not in (1, 2) or record.get("scale") != SCALE:
            raise ValueError("no evidence of the joint problem in version 1 or 2")
        return cls(str(record["instance"]), tuple(map(ConfigurationEvidence.from_dict, record["configurations"])))


def _whole(value: Any) -> int:
    """The value itself, if it is an integer (and not a bool). Raises ValueError if it is not."""
    if type(value) is not int:
        raise ValueError(f"{value!r} stands where a whole number belongs")
    return value
