"""The end times of 1F1B as rows of the linear models of pipeline-partition."""

from __future__ import annotations

from trainplan.formulations.schedule.end_time_rows import EndTimeRows, end_time_rows
from trainplan.formulations.schedule.graph import Duration
from trainplan.formulations.schedule.recorded import Shape, recorded


def one_f_one_b_rows(stages: int, micro_batches: int) -> EndTimeRows[int]:
    """When passes end under 1F1B, as rows of a linear model: each end is at least some earlier end plus times of passes and
    transfers.

    The 3p - 1 times of p stages are numbered: the forward passes f_0 .. f_{p-1}, then the backward passes b_0 .. b_{p-1},
    then the transfers c_1 .. c_{p-1}, where c_x is between the stages x - 1 and x, equal in both directions. stages: p.
    micro_batches: the number of micro-batches per step.
    """

    def number(name: str, stage: int) -> int | None:
        """The number of a time; None for one that is 0: messages at the ends, and what the last micro-batch adds."""
        if name == "forward_ns":
            return stage
        if name == "backward_ns":
            return stages + stage
        cut = stage + (name == "message_backward_ns")
        return 2 * stages + cut - 1 if name != "last_ns" and 0 < cut < stages else None

    def times_of(duration: Duration) -> list[int]:
        """The numbers of the times that a duration is the sum of."""
        return [time for symbol in duration if (time := number(*symbol)) is not None]

    return end_time_rows(recorded(Shape("1f1b", stages, micro_batches)), times_of)
