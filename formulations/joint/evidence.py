"""Evidence of a bound on the joint problem, as files have it: of each configuration a step that is impossible, and the prices
and numbers of micro-batches in flight by which `certificate` sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

SCALE = 2**16  # parts of a nanosecond in which prices times bytes are counted
FAR = np.int64(2**60)  # more than anything that is compared; four of them can be added


@dataclass(frozen=True)
class ConfigurationEvidence:
    """impossible_ns: no plan of the configuration has a step up to it, -1 where nothing is claimed beyond the closed form.
    prices: of a byte, in SCALEths of a nanosecond; depths: numbers of micro-batches in flight, ascending, from the least."""

    impossible_ns: int
    prices: tuple[int, ...] = ()
    depths: tuple[int, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """What a bound rests on, of all configurations in their order. instance: the digest of the instance."""

    instance: str
    configurations: tuple[ConfigurationEvidence, ...]

    def to_dict(self) -> dict[str, Any]:
        """The evidence in its file format."""
        rows = [
            {"impossible_ns": each.impossible_ns, "prices": list(each.prices), "depths": list(each.depths)}
            for each in self.configurations
        ]
        return {"format": "joint-evidence", "version": 1, "scale": SCALE, "instance": self.instance, "configurations": rows}

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Evidence:
        """The evidence of a file. Raises ValueError where it is none."""
        if record.get("format") != "joint-evidence" or record.get("version") != 1 or record.get("scale") != SCALE:
            raise ValueError("no evidence of the joint problem in version 1")
        rows = [
            ConfigurationEvidence(int(row["impossible_ns"]), tuple(map(int, row["prices"])), tuple(map(int, row["depths"])))
            for row in record["configurations"]
        ]
        return cls(str(record["instance"]), tuple(rows))
