"""Joint instances from a model and a cluster under the cost model `streams`: lower bounds of the time on overlapping lanes.

All units of a plan have one layout (degrees, ZeRO stage, sequence parallelism), as in today's frameworks; units may differ only
in what they recompute. So each configuration has one layout, and there are no re-layouts between units. In pipelines of several
stages, states are copies or sharded in ZeRO stage 1, as frameworks have it there.

The tables relax the overlap of lanes (see `overlap_lower_bounds`), so that the problem's step is never longer than the
simulated step of the plan's programs (`execution.prediction.overlap`). Times in which lanes wait for each other are in the
simulation alone, as is the sum of the gradients of a table that both ends of a pipeline share.

Memory is that of trainplan's own programs, as under `executed`: an upper bound, without room for re-layouts and with room for
prefetched buffers; or a lower bound (`MEMORY_TABLES`), without either. With context parallelism it is that of pieces of
samples, and of the keys and values of whole samples while attention needs them. Of plans that no program carries out, it is
that of the programs that stand for them (`execution.prediction.surrogate`), with copies of weights in few bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from trainplan.formulations.costs.overlapped.frameworks import planned_framework
from trainplan.formulations.costs.overlapped.instruction_costs import InstructionCosts, SublayerTimes
from trainplan.formulations.costs.overlapped.layout import RecomputePolicy, RunLayout
from trainplan.formulations.costs.overlapped.links import Links
from trainplan.formulations.costs.overlapped.sublayer_time import supports_recipe
from trainplan.formulations.costs.sequential.communication import moved_bytes
from trainplan.formulations.costs.sequential.sublayer_memory import unit_bytes
from trainplan.formulations.joint.boundaries import Boundaries, message_bytes
from trainplan.formulations.joint.cost_tables import NAMES, JointCosts, Setting, strategy_of
from trainplan.formulations.joint.host_offload import input_bytes, with_input_away
from trainplan.formulations.joint.options import CP, CP_EXCHANGE, LAYOUTS, PRECISION
from trainplan.formulations.joint.overlap_lower_bounds import LaneTimes, layout_of
from trainplan.formulations.joint.overlap_memory import OverlapMemory
from trainplan.formulations.joint.problem import Configuration, Schedule
from trainplan.formulations.joint.search_space import Space
from trainplan.formulations.joint.tables import Boundary, Option, Tied
from trainplan.formulations.plan.request import Request
from trainplan.formulations.plan.strategy import LEVELS, Exchange, Strategy, without_cp
from trainplan.profiling.base.dtypes import DTYPE_BYTES
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.clusters.recipes import RECIPES, Recipe
from trainplan.profiling.models.model import Model
from trainplan.profiling.models.precision import Precision
from trainplan.profiling.models.sublayers import (
    Attention,
    cut,
    why_no_head_share,
    why_not_cut,
)
from trainplan.profiling.profiles import Profile

COST_MODEL = "streams"
ONE_LAYOUT, IN_PIPELINES = "one strategy for all sub-layers", "in pipelines ZeRO 0 and 1"


class SingleLayoutBoundaries(Boundaries):
    """Boundaries between units (sub-layers, or layers) that all have one layout (a strategy without recomputation), so that no
    hidden states have to be re-laid. Message times are those of the cost model `streams`, which counts overlap.
    """

    state_of = staticmethod(layout_of)
    state_name = staticmethod(str)

    def __init__(self, costs: StreamedCosts) -> None:
        super().__init__(costs.profile)
        self.costs = costs

    def boundary(
        self, size: int, strategies: Sequence[Strategy], group: int, samples: int, sliced: bool, chunks: int = 1
    ) -> Boundary:
        """The costs of one kind of boundary between two units; since all units have one layout, there is a single interface
        state and nothing is re-laid. size: bytes of one sample's hidden states. strategies: the one strategy of all units.
        group: the number of devices of a stage. samples: samples per micro-batch. sliced: must be False, since halves of
        micro-batches are not simulated with overlap. chunks: the number of stages on each device group."""
        assert not sliced, "halves of micro-batches have no simulation with overlap"
        (layout,) = map(layout_of, strategies)
        sent, none = message_bytes(layout, samples, size), np.zeros((1, 1), np.int64)
        prices = self.costs.prices(layout, Setting(group, samples, chunks=chunks, layout=layout))
        message = np.full((len(self.pairs(group)), 1, 1), prices.message_ns(sent), np.int64)
        return Boundary(
            message_forward_bytes=none + sent,
            message_backward_bytes=none + sent,
            relayout_forward_ns=none,
            relayout_backward_ns=none.copy(),
            message_forward_ns=message,
            message_backward_ns=message.copy(),
        )


class StreamedCosts(JointCosts):
    """The tables of costs of one model on one cluster of equal devices under the cost model `streams`, in which collectives
    overlap computations.

    A unit is a sub-layer or layer; an option is one way to run it. A layout is a strategy without recomputation; all units
    of a configuration (schedule, number of micro-batches and device groups) have the same layout. A setting holds what the
    tables depend on: devices of a stage, samples per micro-batch and schedule.
    """

    cost_model = COST_MODEL
    relaid = False  # whether memory has room for re-layouts of hidden states between units

    def __init__(
        self,
        profile: Profile,
        space: Space,
        tp_degrees: Sequence[int],
        model: Model,
        cluster: Cluster,
        batch: int,
        recipe: Recipe | None = None,
        precision: Precision | None = None,
    ) -> None:
        """profile: the model's profile, used for memory; with the space's context parallelism of degree cp it is a profile of
        1/cp of the tokens. space: the options to choose from. tp_degrees: the tensor-parallel degrees that the profile has.
        batch: samples per step. recipe: the low-precision recipe of the matrix multiplications of transformer layers; None for
        the model's dtype. precision: the precision of model states; None for the profile's. Raises InputError."""
        super().__init__(profile, space, tp_degrees, precision)
        self.model, self.cluster, self.batch, self.recipe = model, cluster, batch, recipe
        cp, exchange = self.cp, self.exchange = space.cp, space.exchange
        self.element_bytes = DTYPE_BYTES[model.dtype]
        self.unsupported_layouts = 0  # layouts whose products a recipe does not take
        self.framework = planned_framework(space.optimizer, self.precision.gradient_bytes(self.element_bytes))
        self.boundary_costs = SingleLayoutBoundaries(self)
        self.by_layout = cache(self._by_layout)
        self.prices = cache(self._prices)
        self.sublayers = SublayerTimes(model, cluster.used_kinds[0], Links.of_cluster(cluster))
        names: dict[str, set[str]] = {}
        for unit, profiled in zip(model.units, profile.units, strict=True):
            names.setdefault(profiled.sublayer, set()).add(model.key_of(unit))
        if any(len(keys) > 1 for keys in names.values()):
            problem = f"is {cp}: layers that differ in what they attend to would be alike with a {cp}th of the tokens"
            raise InputError("command line", "--cp", problem, "give a smaller degree, or 1")
        key_of = {name: keys.pop() for name, keys in names.items()}
        parts = {name: model.sublayers[key] for name, key in key_of.items()}
        cuttable = cp > 1 and not any(why_not_cut(part, cp) for part in parts.values())
        pieces = {name: cut(part, cp, exchange == "heads") for name, part in parts.items() if cuttable}
        attentions = {name: part for name, part in pieces.items() if isinstance(part, Attention)}
        self.lanes = LaneTimes(profile, self.element_bytes, key_of, batch, self.prices)
        of_gradients, hidden = self.framework.gradient_bytes, "hidden" in space.host
        self.overlap_memory = OverlapMemory(self.lanes, attentions, self.element_bytes, of_gradients, recipe, hidden)

    # Possible options

    def _every_strategy(self, group: int) -> list[Strategy]:
        """The strategies of the search space for a stage of `group` devices, with the context-parallel degree of the space,
        whose parallelism levels are in the order in which frameworks number ranks. In pipelines of several stages, only those
        of ZeRO stages 0 and 1, unless a runtime is predicted."""
        possible = [strategy for strategy in super()._every_strategy(group) if strategy.in_rank_order]
        if group < self.profile.devices and not self.space.shards_in_pipelines:
            possible = [strategy for strategy in possible if strategy.zero_stage < 2]
        return [strategy for without_cp in possible if (strategy := _with_cp(without_cp, self.cp, self.exchange)) is not None]

    def _settings(self, schedule: Schedule, group: int, samples: int) -> Sequence[Setting]:
        """The settings on which tables of costs depend under a schedule, each of which becomes a configuration of its own: one
        for each layout (strategy without recomputation) that all kinds of units can have. group: the number of devices of a
        stage. samples: samples per micro-batch."""
        setting = Setting(group, samples, chunks=schedule.chunks)
        return [setting._replace(layout=layout) for layout in self.by_layout(group, samples)]

    def _options(self, setting: Setting) -> tuple[tuple[Option, ...], ...]:
        """For each kind of unit, its options: those with the layout that the setting fixes, or those of all layouts where it
        fixes none."""
        if setting.layout is None:
            return super()._options(setting)
        return self.by_layout(setting.group, setting.samples)[setting.layout]

    def _by_layout(self, group: int, samples: int) -> dict[Strategy, tuple[tuple[Option, ...], ...]]:
        """For each layout (strategy without recomputation) that all kinds of units can have, the options that have it, by kind
        of unit. group: the number of devices of a stage. samples: samples per micro-batch."""
        every = self.options(Setting(group, samples))
        of_kinds: list[dict[Strategy, list[Option]]] = [{} for _ in every]
        for options, of_layout in zip(every, of_kinds, strict=True):
            for option in options:
                of_layout.setdefault(layout_of(strategy_of(option)), []).append(option)
        layouts = [layout for layout in of_kinds[0] if all(layout in of_kind for of_kind in of_kinds)]
        layouts = [layout for layout in layouts if self._supports_recipe(layout, group, samples)]
        return {layout: tuple(tuple(of_kind[layout]) for of_kind in of_kinds) for layout in layouts}

    def _supports_recipe(self, layout: Strategy, group: int, samples: int) -> bool:
        """Whether the request's low-precision recipe (such as FP8) supports the sizes of all matrix multiplications under a
        layout; True without a recipe. If not, the number `unsupported_layouts`, which an error's text reports, is raised by
        one. layout: a strategy without recomputation. group: the number of devices of a stage. samples: samples per
        micro-batch.
        """
        run = self.prices(layout, Setting(group, samples, layout=layout)).layout
        supported = all(supports_recipe(part, run) for part in self.model.sublayers.values())
        self.unsupported_layouts += not supported
        return supported

    def _configurations(self, batch: int) -> list[Configuration]:
        """All configurations (schedule, number of micro-batches, device groups) for a batch of `batch` samples. Raises
        InputError if there are none; the error names the low-precision recipe where that is the reason."""
        try:
            return super()._configurations(batch)
        except InputError:
            if self.recipe is None or not self.unsupported_layouts:
                raise
        problem = f"is {self.recipe.name}, whose matrix multiplications have sizes of multiples of {self.recipe.multiple}"
        raise InputError("command line", "--precision", problem, "give model, or another --tp or --micro-batches")

    # Numbers

    def _prices(self, layout: Strategy, setting: Setting) -> InstructionCosts:
        """The costs in ns of single instructions (passes, collectives, messages, optimizer) under a layout. layout: a strategy
        without recomputation. setting: the devices of a stage, samples per micro-batch and number of chunks."""
        dtype: Any = self.model.dtype
        run = RunLayout(
            dp=layout.data_degree,
            tp=layout.degree("tp"),
            pp=self.profile.devices // setting.group,
            cp=self.cp,
            chunks=setting.chunks,
            zero=layout.zero_stage,
            shard=layout.degree("sdp"),
            sequence_parallel=layout.sequence_parallel,
            recompute=RecomputePolicy(),
            base=dtype,
            precision=dtype,
            micro=setting.samples // layout.data_degree,
            batch=self.batch,
            framework=self.framework,
            optimizer=self.space.optimizer,
            exchange=self.exchange,
            recipe=self.recipe,
        )
        return InstructionCosts(self.sublayers, run)

    def _part(self, sublayer: str, strategy: Strategy, setting: Setting, once: bool) -> dict[str, int]:
        """The costs of one sub-layer under a strategy, by column names of `OptionTable` (such as `forward_ns`). Its times are
        not the time that the sub-layer takes alone: their sums over all sub-layers are a lower bound of the step under
        overlap.

        sublayer: the sub-layer's name in the profile. setting: devices of a stage, samples per micro-batch and number of
        chunks. once: True for a head whose weight table is the embedding's, as one parameter.
        """
        profile, samples = self.profile, setting.samples
        forward, backward, end = self.lanes.relaxed_ns(sublayer, strategy, setting, once)
        alone, group = without_cp(strategy), strategy.group
        least = self.space.least_memory
        if (
            least
            and strategy.modules
            and isinstance(self.overlap_memory.pieces.get(sublayer), Attention)
            and self.exchange == "heads"
        ):
            alone = replace(alone, ckpt=True, modules=())  # ranks that share heads keep other results: only the input is sure
        kept, work, state = unit_bytes(
            profile,
            True,
            sublayer,
            alone,
            samples * self.cp,
            once,
            self.precision,
            relaid=self.relaid,
            optimizer=self.space.optimizer,
            least=least,
            pieces=self.cp > 1,
        )
        exchanged = 2 * samples * self.cp * moved_bytes(profile, sublayer)[1] if group == 1 else 0
        of_keys = self.overlap_memory.exchanged_bytes(sublayer, strategy, samples * self.cp // alone.data_degree)
        prefetched = self.overlap_memory.largest_bytes(strategy) * strategy.shares_parameters  # prefetched parameters
        prefetched += self.overlap_memory.delayed_free_bytes(sublayer, strategy, setting)
        if not least:
            work = max(exchanged, work) + prefetched + of_keys[1]
        if not least:  # exchanged buffers may be recomputed, or be freed
            kept += of_keys[0]
        copies = self.overlap_memory.copied_bytes(sublayer, layout_of(strategy))
        state, work = state + copies[0], work + copies[1]
        return dict(zip(NAMES, (forward, backward, 0, end, kept, work, state, 0), strict=True))

    def _with_host(
        self, sublayer: str, option: Option, samples: int, numbers: dict[str, int], in_flight: int
    ) -> dict[str, int]:
        """The costs of a sub-layer with its input on the host, by the names in NAMES. Copies to the host overlap computations,
        so times stay as they are. sublayer: the sub-layer's name in the profile. option: the option that keeps the input on the
        host. samples: samples per micro-batch. numbers: the costs with the input on the device. in_flight: the largest number
        of micro-batches whose inputs are on the host at the same time."""
        return with_input_away(numbers, input_bytes(self.profile, sublayer, strategy_of(option), samples), in_flight)

    def _tied(self, setting: Setting) -> Tied | None:
        """The costs of a weight table that embedding and head share; the time to sum its gradients is 0 here, since under
        overlap only the simulation of the plan counts it. None if embedding and head share no table. setting: devices of a
        stage, samples per micro-batch and number of chunks.
        """
        tied = super()._tied(setting)
        return None if tied is None else replace(tied, reduce_ns=0)


def left_out(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Texts that say which plans the cost model `streams` leaves out in addition to the options of a request. options: these,
    by parameter name."""
    return (IN_PIPELINES,) if options.get(LAYOUTS.name) == "unit" else (ONE_LAYOUT, IN_PIPELINES)


def recipe_of(request: Request) -> Recipe | None:
    """The low-precision recipe in which a request's layers multiply matrices; None if they do so in the model's dtype.
    request: the user's model, cluster, batch and options. Raises InputError if the devices or the model do not support
    the recipe.
    """
    model, cluster, recipe = request.model, request.cluster, RECIPES.get(request.options[PRECISION.name])
    assert model is not None and cluster is not None
    if recipe is not None and recipe.name not in (able := cluster.used_kinds[0].recipes):
        problem = f"is {recipe.name}, which {cluster.used_kinds[0].name} does not have"
        raise InputError("command line", PRECISION.flag, problem, f"give {', '.join(['model', *able])}")
    if recipe is not None and recipe.base not in (None, model.dtype):
        problem = f"is {recipe.name}, of models in {recipe.base}, and this one is in {model.dtype}"
        raise InputError("command line", PRECISION.flag, problem, f"give --dtype {recipe.base}, or another recipe")
    return recipe


def request_of_one_rank(request: Request, cp: int) -> Request:
    """The request whose model has only the tokens that one of `cp` context-parallel ranks has of each sample; a profile is
    then obtained for that model. request: the user's model, cluster, batch and options. Raises InputError if the
    sequence is not a multiple of twice the degree, or the devices are not a multiple of it.
    """
    model, devices = request.model, request.origin.devices
    assert model is not None
    if cp > 1 and (model.sequence_tokens % (2 * cp) or devices % cp):
        problem = f"is {cp}, for {model.sequence_tokens} tokens on {devices} devices"
        raise InputError("command line", "--cp", problem, "give a degree that divides the devices, and twice the tokens")
    if cp > 1 and model.scans:
        problem = f"is {cp}, for a {model.family}, whose layers carry a state from each token to the next"
        raise InputError("command line", "--cp", problem, "give 1: samples of such a model are not cut")
    part = model.with_fields(sequence=model.sequence_tokens // cp) if cp > 1 else model
    return replace(request, model=part, obtained=[] if cp > 1 else request.obtained)


def sharing_heads(model: Model, degrees: tuple[int, ...], cp: int, requested: int | None) -> tuple[int, ...]:
    """The tensor-parallel degrees, among the given ones, at which `cp` context-parallel ranks can divide each tensor-parallel
    rank's attention heads among them, as an exchange of heads requires. degrees: the degrees to choose from. requested: the
    one degree that the user fixed, None if all are tried. Raises InputError if no degree is possible.
    """
    tried = [tp for tp in degrees if requested in (None, tp)] or degrees
    why = {tp: [why_no_head_share(part, tp, cp) for part in model.sublayers.values()] for tp in tried}
    possible = tuple(tp for tp, reasons in why.items() if not any(reasons))
    if not possible:
        problem, reason = f"is heads, with {CP.flag} {cp}", next(filter(None, why[tried[0]]))
        raise InputError("command line", CP_EXCHANGE.flag, problem, f"give keys, or other degrees: {reason}")
    return possible


def _with_cp(strategy: Strategy, degree: int, exchange: Exchange) -> Strategy | None:
    """The strategy in which context-parallel ranks are taken out of the data-parallel ones: dp8 with degree 2 -> dp4-cp2. None
    if the data-parallel degree is not a multiple of the context-parallel one, or if no sharding would remain of a sharded
    strategy.

    degree: the context-parallel degree; 1 leaves the strategy unchanged. exchange: what context-parallel ranks send each
    other for attention, `keys` or `heads`.
    """
    if degree == 1:
        return strategy
    data = strategy.innermost_data
    degrees = dict(strategy.levels)
    if degrees.get(data, 1) % degree:
        return None
    degrees[data] //= degree
    if LEVELS[data].shares and degrees[data] == 1:
        return None  # ranks share states with others of their own samples alone: not written yet
    degrees["cp"] = degree
    levels = tuple((paradigm, degrees[paradigm]) for paradigm in LEVELS if degrees.get(paradigm, 1) > 1)
    return replace(strategy, levels=levels, exchange=exchange)
