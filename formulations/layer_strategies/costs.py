"""What one layer costs under one strategy, and the re-layout between two: a profile and a model become an instance.

The costs are those that `pipeline` has for a stage of all the profile's devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainplan.formulations.costs.sequential.cost_models import COST_MODELS, CostModel
from trainplan.formulations.layer_strategies.problem import Instance, load
from trainplan.formulations.pipeline.costs import PipelineCosts
from trainplan.formulations.schedule.orders import most_in_flight
from trainplan.formulations.strategy_spaces import SPACES, micro_batch_counts
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.profiles import Profile


@dataclass(frozen=True)
class EvenStage:
    """Which part of the model an instance covers: stage `index` of `count`, split evenly by blocks, and its micro-batches."""

    count: int = 1
    index: int = 0
    micro_batches: int = 1

    @property
    def in_flight(self) -> int:
        """Micro-batches whose activations 1F1B-Flush holds at once."""
        return most_in_flight("1f1b", self.count, self.micro_batches, self.index)

    def samples(self, batch: int) -> int:
        """Samples of a micro-batch. Raises InputError."""
        [micro_batches] = micro_batch_counts(batch, self.micro_batches)
        return batch // micro_batches

    def span(self, profile: Profile, by_unit: bool) -> tuple[int, int]:
        """First and last layer of this stage, or sub-layer; the embedding goes with the first block, the head with the last."""
        last = profile.units[-1].layer
        blocks = max(1, last - 1)
        if not 1 <= self.count <= blocks:
            raise InputError("command line", "--pipeline", f"is {self.count}", f"give 1 to {blocks}")
        if not 0 <= self.index < self.count:
            raise InputError("command line", "--stage", f"is {self.index}", f"give a stage from 0 to {self.count - 1}")
        begin = 0 if self.index == 0 else self.index * blocks // self.count + 1
        end = last if self.index == self.count - 1 else (self.index + 1) * blocks // self.count
        if not by_unit:
            return begin, end
        units = [place for place, unit in enumerate(profile.units) if begin <= unit.layer <= end]
        return units[0], units[-1]


def build(
    profile: Profile,
    memory_bytes: int,
    batch: int,
    *,
    costs: CostModel = COST_MODELS["paper"],
    stage: EvenStage | None = None,
    by_unit: bool = False,
    takeaway3: bool = True,
    name: str | None = None,
    provenance: dict[str, Any] | None = None,
) -> Instance:
    """The instance of one pipeline stage on all devices of the profile.

    batch: samples of one step. by_unit: let every sub-layer choose, not every layer. In a pipeline of one stage the time is
    that of the whole step, m micro-batches with synchronisation in the last one only (Eq. 8); in a longer pipeline it is that
    of one micro-batch, and the activations of all micro-batches in flight count. Raises InputError.
    """
    stage = stage or EvenStage()
    samples, space = stage.samples(batch), SPACES["full" if takeaway3 else "full-dp-sdp"]
    choices = PipelineCosts(profile, costs=costs, space=space, by_unit=by_unit)
    if not choices.strategies(profile.devices, samples):
        fix = f"give a multiple of {profile.devices}"
        raise InputError("command line", "--batch", f"gives {samples} samples a micro-batch", fix)
    first, last = stage.span(profile, by_unit)
    whole = choices.instance(samples, memory_bytes, stages=[1], micro_batches=[1], name=name)
    weight = (stage.micro_batches if stage.count == 1 else 1, 1)
    part = whole.span(whole.configurations[0].tables, first, last, stage.in_flight, weight)
    provenance = {
        **{name: whole.provenance[name] for name in ("model", "cost_model", "profile")},
        "batch": batch,
        "stage": [stage.index, stage.count],
        "micro_batches": stage.micro_batches,
        **(provenance or {}),
    }
    return load({**part.to_dict(), "name": whole.name, "provenance": provenance, "devices": profile.devices})
