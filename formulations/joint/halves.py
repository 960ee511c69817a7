"""What the passes of a unit take where a micro-batch goes in two halves, as trainplan's programs run them.

A half's forward pass gathers parameters anew, computes half as long (the odd nanosecond in the second half), and adds up the
partial outputs of half as many samples. The backward pass of both halves gathers and scatters once, and adds up the partial
gradients of each half by itself.
"""

from __future__ import annotations

from trainplan.formulations.costs.sequential.cost_models import times_of
from trainplan.formulations.costs.sequential.sublayer_time import partial_sums_ns, unit_work
from trainplan.formulations.plan.strategy import Strategy
from trainplan.profiling.models.precision import Precision
from trainplan.profiling.profiles import Profile


def halved_passes(
    profile: Profile, sublayer: str, strategy: Strategy, samples: int, precision: Precision | None = None
) -> tuple[int, int, int]:
    """The forward passes of the first and the second half, and the backward pass of both, in ns. samples: of both halves.
    precision: of gradients, where it is not the profile's."""
    work = unit_work(profile, sublayer, strategy, samples)
    times = times_of(profile, sublayer, strategy, samples, precision=precision)
    rows = samples // 2 // strategy.data_degree
    forward_ns, backward_ns = map(round, partial_sums_ns(profile, profile.shapes[sublayer], strategy, rows))
    beside = times.forward_ns - work.forward_ns - work.partial_ns + forward_ns
    back = times.backward_ns - work.partial_back_ns + 2 * backward_ns
    return work.forward_ns // 2 + beside, work.forward_ns - work.forward_ns // 2 + beside, back
