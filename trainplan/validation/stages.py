"""How a measured run cuts its layers into pipeline stages: as it states, or as its framework does by itself."""

from __future__ import annotations

import re

from trainplan.formulations.costs.overlapped.analytic_pipeline import costed_stages
from trainplan.formulations.costs.overlapped.layout import Framework
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.models.model import Model
from trainplan.validation.rows import Run

# Since when torchtitan's stages count embedding and head (`build_pipeline_schedule`).
WEIGHED_SINCE = "2025-04-15"


def default_stages(run: Run, model: Model, count: int, framework: Framework) -> tuple[int, ...] | None:
    """The number of layers in each of `count` pipeline stages as nanotron, which counts the operations of layers and head, or
    torchtitan cut them; None where they cannot. Until April 2025, torchtitan gave layers that were left over to the stages
    between the first and the last (`generate_split_points`).

    run: a measured run, whose date decides. framework: the cost model's settings for one of the two.
    """
    if not framework.costs_stages and (run.date or "9") < WEIGHED_SINCE:
        least, longer = divmod(model.layers, count)
        middle = [least + (stage < longer) for stage in range(count - 2)]
        return (least, *middle, model.layers - least - sum(middle)) if least and count > 1 else None
    if not framework.costs_stages:
        return _stages_of_torchtitan(model, count)
    costs = [0] * (model.layers + 1)
    for unit in model.units:
        if unit.kind != "embedding":
            matrices = (operator for operator in unit.sublayer.operators(1, 1) if operator.m and not operator.core)
            costs[min(unit.layer - 1, model.layers)] += sum(matrix.n * matrix.k * matrix.count for matrix in matrices)
    return costed_stages(costs[:-1], costs[-1], count)


def _stages_of_torchtitan(model: Model, count: int) -> tuple[int, ...] | None:
    """The number of layers in each of `count` pipeline stages as torchtitan cuts them: the first and the last stage have one
    layer less than others, because of embedding and head. None if there are too few layers for that.
    """
    least, longer = divmod(model.layers + 2, count)
    layers = [least + (stage < longer) - (stage in (0, count - 1)) for stage in range(count)]
    return tuple(layers) if min(layers) > 0 else None


def stated_stages(run: Run, model: Model, pp: int, chunks: int) -> tuple[int, ...] | None:
    """The number of layers in each pipeline stage, in order, if the note (free text) of a measured run states the number for
    the first or the last stage as Megatron-Core's arguments do (`decoder-first-pipeline-num-layers 7`); None if it does not.
    Raises InputError if the remaining layers do not divide evenly among the remaining stages.

    pp: number of pipeline-parallel ranks. chunks: number of stages of each rank.
    """
    note = (run.note or "").lower().replace("_", "-")
    matches = [re.search(rf"decoder-{end}-pipeline-num-layers[ =:]+(\d+)", note) for end in ("first", "last")]
    if pp == 1 or not any(matches):
        return None
    first, last = (int(match[1]) if match else None for match in matches)
    others, rest = pp - sum(match is not None for match in matches), model.layers - (first or 0) - (last or 0)
    if chunks > 1 or not others or rest < others or rest % others:
        problem = f"has {rest} layers left for {others} stages, of which each device has {chunks}"
        raise InputError(run.id, "note", problem, "give layers that leave as many for each other stage, not interleaved")
    middle = [rest // others] * others
    return (*([first] if first is not None else []), *middle, *([last] if last is not None else []))


def with_ends(run: Run, model: Model, count: int, stages: tuple[int, ...] | None) -> tuple[bool, tuple[int, ...] | None]:
    """Whether embedding and head count as a layer each when the layers of a measured run are cut into pipeline stages, and the
    number of layers in each stage, if it is not the usual one. Where the run does not state it, they count if layers divide
    among stages with them, but not without. Raises InputError if the run states that one counts, and layers do not divide then.

    count: the number of stages. stages: the number of layers in each that is known otherwise; None for the usual number.
    """
    if stages is not None or count == 1 or (run.asym_embed is None and run.asym_loss is None):
        return model.layers % count > 0 and (model.layers + 2) % count == 0, stages
    first, last = bool(run.asym_embed), bool(run.asym_loss)
    layers, rest = divmod(model.layers + first + last, count)
    if rest and (first or last):
        problem = f"is true, and {model.layers + first + last} layers with it do not divide among {count} stages"
        raise InputError(run.id, "asym_embed" if first else "asym_loss", problem, "give false, or another pp or vpp")
    if first == last:
        return first, None
    return False, (layers - first, *[layers] * (count - 2), layers - last)
