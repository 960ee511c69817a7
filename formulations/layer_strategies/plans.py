"""Plans of solutions that give every layer a strategy and every stage consecutive layers on consecutive ranks."""

from __future__ import annotations

from collections.abc import Sequence

from trainplan.formulations.plan import Batch, Plan, PlannedUnit, Stage
from trainplan.formulations.request import Request
from trainplan.formulations.step.schedules import Schedule
from trainplan.profiling.base.errors import InputError


def staged_plan(
    request: Request,
    *,
    memory_bytes: int,
    micro_batches: int,
    spans: Sequence[tuple[int, int]],
    strategies: Sequence[str],
    schedule: Schedule = "1f1b",
) -> Plan:
    """The plan of the request's model on all devices, stages of equal size in order of ranks.

    memory_bytes: what the solver had, without the request's reserve. spans: first and last layer of every stage, both included.
    strategies: of every layer, which is a sub-layer or all sub-layers of one model layer; a layer's strategy is that of all its
    sub-layers. Raises InputError where no model is described.
    """
    model = request.described_model
    if not model:
        raise InputError("command line", "--model", "is missing", "give it: the profile describes no model that can be planned")
    by_layer = len(strategies) == model.units[-1].layer + 1
    layer_of = [unit.layer if by_layer else place for place, unit in enumerate(model.units)]
    devices, stages = request.origin.devices, []
    size = devices // len(spans)
    for number, (first, last) in enumerate(spans):
        units = [place for place, layer in enumerate(layer_of) if first <= layer <= last]
        ranks = list(range(number * size, (number + 1) * size))
        stages.append(Stage(ranks=ranks, first_unit=units[0], last_unit=units[-1]))
    return Plan(
        model=model.shape(),
        model_digest=model.digest,
        world=devices,
        memory_bytes=memory_bytes + request.reserve_bytes,
        batch=Batch(global_samples=request.samples, micro_batches=micro_batches),
        schedule=schedule,
        stages=stages,
        units=[
            PlannedUnit(name=unit.name, strategy=strategies[layer]) for unit, layer in zip(model.units, layer_of, strict=True)
        ],
    )
