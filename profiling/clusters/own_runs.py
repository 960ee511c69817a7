"""A user's own measured runs on one cluster, as corrections of efficiencies keep them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from trainplan.profiling.base.files import Record

Seconds = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=-0.5, le=2, allow_inf_nan=False)]


class OwnRun(Record):
    """A measured run of a user, and what its predicted step consists of.

    id: the run's name. device: name of the data sheet; devices: their number. measured_s: the measured step in seconds.
    predicted_s: the step that uncorrected efficiencies predict. shares: for each factor that may correct efficiencies
    (`products`, or a level of links), the share of the predicted step that is inversely proportional to it.
    """

    id: str
    device: str
    devices: Annotated[int, Field(ge=1)]
    measured_s: Seconds
    predicted_s: Seconds
    shares: dict[str, Share]

    def with_factors_s(self, factors: dict[str, float]) -> float:
        """The predicted step in seconds with efficiencies times some factors. factors: by name; one that is missing is 1."""
        change = sum(share * (1 / factors.get(name, 1.0) - 1) for name, share in self.shares.items())
        return self.predicted_s * max(0.01, 1 + change)
