"""The degrees of pipelines: numbers of stages, of pipelines in parallel, of tensor-parallel devices and of micro-batches."""

from __future__ import annotations

from dataclasses import dataclass

from trainplan.formulations.pipeline_partition.problem import LARGEST_STEP
from trainplan.formulations.plan.strategy import Strategy
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.quantities import divisors, plural


@dataclass(frozen=True)
class PipelineDegrees:
    """dp pipelines in parallel, each of pp stages of tp devices, with `micro_batches` micro-batches per step."""

    pp: int
    dp: int = 1
    tp: int = 1
    micro_batches: int = 1

    @property
    def devices(self) -> int:
        """The number of devices of all pipelines together."""
        return self.pp * self.dp * self.tp

    @property
    def stage_size(self) -> int:
        """The number of devices of one stage, in all pipelines together."""
        return self.dp * self.tp

    def strategy(self, recompute: bool) -> Strategy:
        """The strategy of every sub-layer over the devices of its stage: data-parallel pipelines of tensor-parallel ranks.
        recompute: whether every sub-layer is recomputed."""
        return Strategy.of(("dp", self.dp), ("tp", self.tp), ckpt=recompute)

    def rows(self, batch: int) -> int:
        """Samples per micro-batch in one pipeline. batch: samples per step, of all pipelines. Raises InputError if the batch
        cannot be divided equally."""
        parts = self.dp * self.micro_batches
        rows, rest = divmod(batch, parts)
        if rest or rows < 1:
            fix = f"give a multiple of {parts}: {self.dp} pipelines of {self.micro_batches} micro-batches"
            raise InputError("command line", "--batch", f"is {batch}", fix)
        return rows


def degrees_of(
    devices: int, pipeline: int | None = None, micro_batches: int | None = None, dp: int | None = None, tp: int | None = None
) -> PipelineDegrees:
    """The degrees of parallelism that a user's options give; each option is None if the user did not give it.

    devices: the number of devices. pipeline: the number of stages, by default 1. micro_batches: the number of
    micro-batches, by default 1. dp: the number of pipelines, by default such that all devices are used. tp: tensor-parallel
    devices of a stage, by default 1.

    Raises InputError if there are too few devices, or if some would be left over by default.
    """
    pp, tp = 1 if pipeline is None else pipeline, 1 if tp is None else tp
    for option, value in (("--pipeline", pp), ("--micro-batches", micro_batches), ("--dp", dp), ("--tp", tp)):
        if value is not None and value < 1:
            raise InputError("command line", option, f"is {value}", "give at least 1")
    whole = pp * tp * (dp or 1)
    if pp * tp > devices:
        fix = f"give at most {devices // tp}: a stage has {plural(tp, 'device')} of {devices}"
        raise InputError("command line", "--pipeline", f"is {pp}", fix)
    if whole > devices:
        fix = f"give at most {devices // (pp * tp)}: {pp} stages of {plural(tp, 'device')} each, of {devices}"
        raise InputError("command line", "--dp", f"is {dp}", fix)
    if dp is None and devices % tp:
        raise InputError("command line", "--tp", f"is {tp}", f"give a divisor of the {devices} devices")
    if dp is None and devices % whole:
        counts = ", ".join(map(str, divisors(devices // tp)))
        raise InputError("command line", "--pipeline", f"is {pp}", f"give one of: {counts}; or --dp, the number of pipelines")
    return PipelineDegrees(pp, dp or devices // whole, tp, micro_batches or 1)


def possible_degrees(
    devices: int, units: int, batch: int, pipeline: int | None, micro_batches: int | None, dp: int | None, tp: int | None
) -> list[PipelineDegrees]:
    """All degrees of parallelism that planning tries, or those of them that the user's options allow.

    Args:
        devices: the number of devices.
        units: the number of sub-layers of the model.
        batch: samples per step.
        pipeline, micro_batches, dp, tp: the user's numbers of stages, micro-batches, pipelines and tensor-parallel devices;
            None if all are tried (for tp: 1).

    Numbers of stages divide the devices and are at most `units`; dp is a power of two, as plans have it; numbers of
    micro-batches divide the samples of a pipeline. Raises InputError if none remain.
    """
    tp = 1 if tp is None else tp
    if pipeline is not None:
        depths = [degrees_of(devices, pipeline, None, dp, tp)]
    else:
        degrees_of(devices, 1, None, dp, tp)
        counts = divisors(devices // tp) if dp is None else range(1, devices // (tp * dp) + 1)
        depths = [PipelineDegrees(pp, dp or devices // (tp * pp), tp) for pp in counts if pp <= units]
    powers = [depth for depth in depths if depth.dp & (depth.dp - 1) == 0]
    if not powers:
        fix = f"give a power of two, such as {1 << depths[0].dp.bit_length() - 1}: plans have no others"
        raise InputError("command line", "--dp", f"is {depths[0].dp}", fix)
    fitting = [depth for depth in powers if batch % depth.dp == 0]
    if not fitting:
        fix = f"give a multiple of {min(depth.dp for depth in powers)}, the pipelines side by side"
        raise InputError("command line", "--batch", f"is {batch}", fix)
    possible = []
    for depth in fitting:
        samples = batch // depth.dp
        numbers = divisors(samples) if micro_batches is None else [micro_batches]
        possible += [
            PipelineDegrees(depth.pp, depth.dp, tp, m)
            for m in numbers
            if m >= 1 and samples % m == 0 and m * depth.pp <= LARGEST_STEP
        ]
    if not possible:
        samples_of_pipelines = sorted({batch // depth.dp for depth in fitting})
        fix = f"give a divisor of the samples of a pipeline: {' or '.join(map(str, samples_of_pipelines))}"
        raise InputError("command line", "--micro-batches", f"is {micro_batches}", fix)
    return possible
