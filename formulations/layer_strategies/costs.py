"""From a profile to a layer-strategies instance: the layers of one pipeline stage and their costs under every strategy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainplan.formulations.costs.sequential.cost_models import COST_MODELS, CostModel
from trainplan.formulations.layer_strategies.problem import Instance, load
from trainplan.formulations.layer_strategies.spans import span_instance
from trainplan.formulations.schedule.orders import most_in_flight
from trainplan.formulations.strategy_spaces import SPACES, micro_batch_counts
from trainplan.formulations.strategy_tables import StrategyCosts
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.profiles import Profile


@dataclass(frozen=True)
class EvenStage:
    """One stage of a pipeline whose stages have equal numbers of Transformer blocks. count: the number of stages of the
    pipeline. index: the index of the stage, from 0. micro_batches: the number of micro-batches per step.
    """

    count: int = 1
    index: int = 0
    micro_batches: int = 1

    @property
    def in_flight(self) -> int:
        """The largest number of micro-batches whose activations this stage holds at the same time under 1F1B-Flush."""
        return most_in_flight("1f1b", self.count, self.micro_batches, self.index)

    def samples(self, batch: int) -> int:
        """Samples per micro-batch. batch: samples per step. Raises InputError if micro-batches cannot be equal."""
        [micro_batches] = micro_batch_counts(batch, self.micro_batches)
        return batch // micro_batches

    def span(self, profile: Profile, by_unit: bool) -> tuple[int, int]:
        """The indices of the first and of the last layer of the stage, both included; the embedding belongs to the first
        stage, the head to the last. profile: has the model's layers. by_unit: return indices of sub-layers instead. Raises
        InputError if the model's blocks cannot be divided into equal stages.
        """
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
        units = [index for index, unit in enumerate(profile.units) if begin <= unit.layer <= end]
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
    """The layer-strategies instance of one pipeline stage on all devices of the profile.

    In a pipeline of one stage the objective is the time of the whole step, m micro-batches with synchronisation in the last one
    only (Eq. 8 of Galvatron-BMW); in a longer pipeline it is that of one micro-batch, and the activations of all micro-batches
    in flight count.

    Args:
        profile: measured or estimated costs of the model's sub-layers and of the devices' links.
        memory_bytes: the memory of one device.
        batch: samples per step.
        costs: the cost model of times and bytes.
        stage: which stage, of how many; None for the only one.
        by_unit: let every sub-layer choose a strategy, not every layer.
        takeaway3: leave out strategies that mix DP with SDP.
        name: the instance's name; None for the profile's. provenance: entries in addition to the profile's.

    Raises InputError if no strategy divides the samples of a micro-batch, or the model has no such stage.
    """
    stage = stage or EvenStage()
    samples = stage.samples(batch)
    choices = StrategyCosts(profile, costs=costs, space=SPACES["full" if takeaway3 else "full-dp-sdp"], by_unit=by_unit)
    if not choices.strategies(profile.devices, samples):
        fix = f"give a multiple of {profile.devices}"
        raise InputError("command line", "--batch", f"gives {samples} samples a micro-batch", fix)
    first, last = stage.span(profile, by_unit)
    tables = choices.tables(profile.devices, samples)
    assert tables is not None, "there are strategies"
    weights = (stage.micro_batches if stage.count == 1 else 1, 1)
    part = span_instance(choices, tables, first, last, memory_bytes=memory_bytes, in_flight=stage.in_flight, weights=weights)
    origin = {
        **choices.provenance,
        "batch": batch,
        "stage": [stage.index, stage.count],
        "micro_batches": stage.micro_batches,
        **(provenance or {}),
    }
    return load({**part.to_dict(), "name": name or choices.name, "provenance": origin, "devices": profile.devices})
