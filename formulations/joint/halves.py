"""What the passes of a unit take where a micro-batch goes in two halves, as trainplan's programs run them.

A half's forward pass gathers parameters anew, computes half as long (the odd nanosecond in the second half), and adds up the
partial outputs of half as many samples. The backward pass of both halves gathers and scatters once, and adds up the partial
gradients of each half by itself.
"""

from __future__ import annotations

from trainplan.formulations.strategies import Strategy
from trainplan.formulations.work.models import times_of
from trainplan.formulations.work.primitives import collective
from trainplan.formulations.work.units import reductions, unit_work
from trainplan.profiling.profiles import Profile


def halved_passes(profile: Profile, sublayer: str, strategy: Strategy, samples: int) -> tuple[int, int, int]:
    """The forward passes of the first and the second half, and the backward pass of both, in ns. samples: of both halves."""
    work, times = unit_work(profile, sublayer, strategy, samples), times_of(profile, sublayer, strategy, samples)
    forward_ns, backward_ns = _partial_ns(profile, sublayer, strategy, samples // 2)
    beside = times.forward_ns - work.forward_ns - work.partial_ns + forward_ns
    back = times.backward_ns - work.partial_back_ns + 2 * backward_ns
    return work.forward_ns // 2 + beside, work.forward_ns - work.forward_ns // 2 + beside, back


def _partial_ns(profile: Profile, sublayer: str, strategy: Strategy, samples: int) -> tuple[int, int]:
    """What tensor-parallel ranks add up of so many samples: outputs, or a head's statistics; and gradients of inputs."""
    shape, tp, rows = profile.shapes[sublayer], strategy.degree("tp"), samples // strategy.data_degree
    ranks, (forward, back) = strategy.peers(0, "tp"), reductions(shape, tp)
    if shape.kind == "head" and not shape.shard(tp).whole:
        size = 3 * tp * rows * shape.tokens * profile.parameter_bytes
        there = collective(profile, "all-gather", size, ranks)
    else:
        there = collective(profile, "all-reduce", rows * shape.output_bytes, ranks, forward)
    return there, collective(profile, "all-reduce", rows * shape.input_bytes, ranks, back)
