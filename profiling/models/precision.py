"""Dtypes of gradients and optimizer states in mixed-precision training."""

from __future__ import annotations

from typing import Literal

from trainplan.profiling.base.dtypes import DTYPE_BYTES
from trainplan.profiling.base.files import Record
from trainplan.profiling.models.model import Model


class Precision(Record):
    """Dtypes of gradients and optimizer states of a plan; all computations and their parameters are in the model's dtype.

    master: dtype of a master copy of the parameters, which the optimizer updates, and of the optimizer's moments. A rank has
    the copy of its shard of the parameters; updated parameters are rounded to the model's dtype before they are gathered. With
    None the optimizer updates the parameters themselves. gradients: dtype in which micro-batches accumulate and ranks sum
    gradients: the model's, or float32.
    """

    master: Literal["float32"] | None = None
    gradients: Literal["model", "float32"] = "model"

    def for_model(self, model: Model) -> Precision:
        """The precision that applies to a model: without a master copy (`PLAIN`) if the model's own dtype is at least as wide
        as the dtype of the master copy, else unchanged.
        """
        wide = self.master is not None and model.element_bytes >= DTYPE_BYTES[self.master]
        return PLAIN if wide else self

    def gradient_bytes(self, element_bytes: int) -> int:
        """Bytes of one number of a gradient, for a model whose numbers have `element_bytes` bytes."""
        return element_bytes if self.gradients == "model" else DTYPE_BYTES[self.gradients]

    def stepped_bytes(self, element_bytes: int) -> int:
        """Bytes of one number of the parameters that the optimizer updates, and of its moments: the master copy's, or else the
        model's.

        element_bytes: bytes of one number of the model.
        """
        return element_bytes if self.master is None else DTYPE_BYTES[self.master]

    def widened_bytes(self, element_bytes: int) -> int:
        """Bytes per number of the temporary copy of a gradient, as wide as the master copy, that the optimizer makes for its
        step; 0 if gradients are that wide already.

        element_bytes: bytes of one number of the model.
        """
        stepped = self.stepped_bytes(element_bytes)
        return stepped if self.gradient_bytes(element_bytes) < stepped else 0


PLAIN = Precision()  # everything in the model's dtype
MASTERS = Precision(master="float32")  # as models in half precision are trained


def usual_precision(element_bytes: int, state_bytes: int | None = None) -> Precision:
    """The precision in which models with numbers of `element_bytes` bytes are usually trained: models in half precision have a
    float32 master copy, unless `state_bytes` is too small for it.

    state_bytes: bytes of all states per parameter (parameter, gradient, master copy, moments), None if unknown. A master copy
    needs parameter and gradient in the model's dtype, and copy and two moments in float32.
    """
    masters = element_bytes < 4 and (state_bytes is None or state_bytes >= 2 * element_bytes + 3 * 4)
    return MASTERS if masters else PLAIN
