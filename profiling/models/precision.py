"""What a plan says of the dtypes of model states, beside the model's own."""

from __future__ import annotations

from typing import Literal

from trainplan.profiling.base.dtypes import DTYPE_BYTES
from trainplan.profiling.base.files import Record
from trainplan.profiling.models.model import Model


class Precision(Record):
    """Dtypes of what the optimizer works on. All computations, and all parameters that they read, are in the model's dtype.

    master: of a copy of the parameters that the optimizer steps, and of its moments; it is of the rank's shard where these are
    shared, and new parameters are rounded from it to the model's dtype, before they are gathered. Without one the optimizer
    steps the parameters themselves. gradients: in which micro-batches add them up and ranks sum them: the model's, or the
    master copy's.
    """

    master: Literal["float32"] | None = None
    gradients: Literal["model", "float32"] = "model"

    def of(self, model: Model) -> Precision:
        """What there is of it where a plan runs in the dtype of this model: nothing, where that is as wide as the copy."""
        wide = self.master is not None and model.element_bytes >= DTYPE_BYTES[self.master]
        return PLAIN if wide else self

    def gradient_bytes(self, element_bytes: int) -> int:
        """Bytes of one number of a gradient, of a model whose numbers have so many."""
        return element_bytes if self.gradients == "model" else DTYPE_BYTES[self.gradients]

    def stepped_bytes(self, element_bytes: int) -> int:
        """Bytes of one number of what the optimizer steps, and of each of its moments."""
        return element_bytes if self.master is None else DTYPE_BYTES[self.master]

    def widened_bytes(self, element_bytes: int) -> int:
        """Bytes, while the optimizer steps it, of one number of a gradient that is to be as wide as the master copy; 0 where it
        is."""
        stepped = self.stepped_bytes(element_bytes)
        return stepped if self.gradient_bytes(element_bytes) < stepped else 0


PLAIN = Precision()  # everything in the model's dtype
MASTERS = Precision(master="float32")  # as models in half precision are trained


def usual_precision(element_bytes: int, state_bytes: int | None = None) -> Precision:
    """What models are trained with whose numbers have so many bytes: those in half precision keep fp32 masters, unless
    state_bytes, of all states of a parameter, leave no room for them and their moments."""
    masters = element_bytes < 4 and (state_bytes is None or state_bytes >= 2 * element_bytes + 3 * 4)
    return MASTERS if masters else PLAIN
