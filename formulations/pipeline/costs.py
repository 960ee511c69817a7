"""From a profile to a pipeline instance: what every layer costs for each number of stages and micro-batches of one batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from trainplan.formulations.pipeline.instance import Configuration, Instance
from trainplan.formulations.schedule.orders import PassOrder
from trainplan.formulations.strategy_spaces import stage_depths
from trainplan.formulations.strategy_tables import StrategyCosts
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.quantities import divisors


class PipelineCosts(StrategyCosts):
    """The tables of costs of one profile in one search space, and the pipeline instances that are built from them."""

    @cached_property
    def stages(self) -> list[int]:
        """The numbers of stages that the search space, the devices and the number of layers allow."""
        possible = [count for count in stage_depths(self.profile.devices) if count <= len(self.layer_kinds)]
        return [count for count in self.space.stages(self.profile.devices) if count in possible]

    def instance(
        self,
        batch: int,
        memory_bytes: int,
        *,
        schedule: PassOrder = "1f1b",
        stages: Sequence[int] | None = None,
        micro_batches: Callable[[int], Sequence[int]] | Sequence[int] | None = None,
        name: str | None = None,
        provenance: dict[str, Any] | None = None,
    ) -> Instance:
        """The pipeline instance of one batch.

        Args:
            batch: samples per step.
            memory_bytes: the memory of one device.
            schedule: the order of passes of all configurations.
            stages: the numbers of stages to choose from; None for all possible.
            micro_batches: the numbers of micro-batches to choose from, or a function that gives them for a number of stages;
                None for all divisors of the batch.
            name: the instance's name; None for the profile's. provenance: entries in addition to the profile's.

        Raises InputError if no configuration remains.
        """
        profile, configurations = self.profile, []
        if not self.stages:
            problem = f"is {self.space.name!r}, which has no stages of a power of two of the {profile.devices} devices"
            raise InputError("command line", "--space", problem, "give full, a cluster of a power of two, or use `place`")
        counts = [count for count in self.stages if stages is None or count in stages]
        if not counts:
            possible = f"{', '.join(map(str, self.stages)) or 'none'} for {len(self.layer_kinds)} layers"
            fix = f"give another: {self.space.name} has {possible}"
            raise InputError("command line", "--pipeline", f"is {', '.join(map(str, stages or []))}", fix)
        for count in counts:
            group = profile.devices // count
            numbers = micro_batches(count) if callable(micro_batches) else micro_batches
            for m in divisors(batch) if numbers is None else numbers:
                tables = self.tables(group, batch // m) if batch % m == 0 else None
                if tables is not None:
                    configurations.append(Configuration(count, m, tables, schedule))
        if not configurations:
            fix = f"give a multiple of {profile.devices}"
            raise InputError("command line", "--batch", f"is {batch}, which no strategy of {self.space.name} divides", fix)
        return Instance(
            devices=profile.devices,
            memory_bytes=memory_bytes,
            batch=batch,
            layer_names=self.layer_names,
            layer_kinds=self.layer_kinds,
            boundary_kinds=self.boundary_kinds,
            configurations=tuple(configurations),
            name=name or self.name,
            provenance={**self.provenance, "space": self.space.name, **(provenance or {})},
        )
