"""Time of a run's step under the cost model `streams`, from its layout: no program is compiled, so that every layout has a
step.

It goes pass by pass: chunks of layers through an interleaved or plain 1F1B pipeline, or blocks through both lanes of fully
sharded data parallelism. After the passes comes what no pass hides of the gradients' reduction, the optimizer and the gathering
of parameters. Where trainplan compiles such a plan, the simulation of its programs with the same times gives the same step
(tests/execution/test_streams.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from math import log2

from trainplan.formulations.costs.overlapped.analytic_fsdp import Block, sharded_ns
from trainplan.formulations.costs.overlapped.analytic_pipeline import pipeline_ns
from trainplan.formulations.costs.overlapped.analytic_shards import (
    accumulated_ns,
    copied_ns,
    sliced_ns,
    tensors_of,
    whole_stages_ns,
)
from trainplan.formulations.costs.overlapped.expert_time import alongside_ns
from trainplan.formulations.costs.overlapped.kernel_time import UnitTimes
from trainplan.formulations.costs.overlapped.layout import RUN_SCHEDULES, Framework, RunLayout
from trainplan.formulations.costs.overlapped.links import Links
from trainplan.formulations.costs.overlapped.state_exchange import (
    block_exchange_ns,
    rank_parameters,
    routed_parameters,
    states_exchange_ns,
)
from trainplan.formulations.costs.overlapped.sublayer_time import unit_times
from trainplan.profiling.base.dtypes import DTYPE_BYTES
from trainplan.profiling.clusters.cluster import DeviceKind
from trainplan.profiling.estimate import orthogonal_ns
from trainplan.profiling.models.model import Model, Unit
from trainplan.profiling.models.optimizers import OPTIMIZERS, moments_saved, muon_matrices, muon_parameter_count
from trainplan.profiling.models.sublayers import LAYER_KINDS, Sublayer

OPTIMIZER_BYTES = 36  # read and written for each parameter by AdamW with fp32 copies: gradients twice, for their norm, too
FULL = Framework("AdamW in fp32")  # whose step that is
MOMENT_TRAFFIC_BYTES = 8  # of these, a moment in and out
BACKWARD_ISSUE = 1.5  # what the host takes to issue a backward pass, over its forward pass
LEAST_BUCKETS = 8  # that gradients are reduced in, and parameters gathered
JITTER = 0.004  # of the step, for each doubling of the devices beyond one node, assumed


@dataclass(frozen=True)
class Chunk:
    """The sub-layers of one pipeline stage, in model order. With interleaving, a device has several such stages, which are
    called its chunks.
    """

    units: tuple[Unit, ...]

    @cached_property
    def layers(self) -> int:
        """The number of transformer layers of the chunk; embedding and head do not count."""
        return len({unit.layer for unit in self.units if unit.kind not in ("embedding", "head")})

    @cached_property
    def expert_units(self) -> int:
        """The number of units of experts of the chunk."""
        return sum(unit.kind == "experts" for unit in self.units)

    @cached_property
    def first_layer(self) -> int:
        """The number of the chunk's first transformer layer, counted through the model; 0 if the chunk has none."""
        return min((unit.layer for unit in self.units if unit.kind not in ("embedding", "head")), default=0)


def chunks_of(model: Model, layout: RunLayout) -> list[Chunk]:
    """Cut the model's sub-layers into pipeline stages, in model order: with the numbers of layers per stage that the layout
    names, or else with numbers as equal as possible.

    The first stage also has the embedding and the last one the head; with `layout.reserved` each of them counts as a layer.
    Numbers of layers that cannot be equal differ by one, the larger ones first. layout: how the run is laid out on its
    devices: degrees, batch, precision and framework.
    """
    count, indices = layout.pp * layout.chunks, model.layers + 2 * layout.reserved
    sizes = layout.stage_layers or [indices // count + (stage < indices % count) for stage in range(count)]
    ends = [0, *accumulate(sizes)]
    shift = 0 if layout.stage_layers else layout.reserved
    cuts = [max(0, min(model.layers, end - shift)) for end in ends]
    cuts[0], cuts[-1] = 0, model.layers
    by_layer: dict[int, list[Unit]] = {}
    for unit in model.units:
        by_layer.setdefault(unit.layer, []).append(unit)
    chunks = []
    for stage in range(count):
        low, high = cuts[stage] + (stage > 0), cuts[stage + 1] + (stage == count - 1)
        chunks.append(Chunk(tuple(unit for layer in range(low, high + 1) for unit in by_layer[layer])))
    return chunks


@dataclass(frozen=True)
class StreamsStep:
    """The time of a step with overlap, in parts.

    Attributes:
        passes_ns: until the last backward pass of any rank ends.
        computing_ns: the kernels of the busiest rank, which are a part of passes_ns.
        reduce_ns: the part of the gradients' reduction that no backward pass hides.
        optimizer_ns: the optimizer's step.
        gather_ns: the part of the gathering of updated parameters that no forward pass hides.
        ends_ns: what the framework does once per step outside of passes.
        jitter: the factor by which a step on several nodes takes longer than the sum of its parts.
        copies_ns: copies to the host and back that nothing hides.
        forward_ns: the part of computing_ns that is of forward passes.
        collectives_ns: the part of computing_ns that is of collectives inside of passes that no kernel hides, such as those of
            tensor parallelism.
    """

    passes_ns: float
    computing_ns: float
    reduce_ns: float
    optimizer_ns: float
    gather_ns: float
    ends_ns: float
    jitter: float
    copies_ns: float = 0.0
    forward_ns: float = 0.0
    collectives_ns: float = 0.0

    @property
    def step_ns(self) -> float:
        """The time in ns of the whole step: the sum of its parts times the jitter."""
        parts = self.passes_ns + self.reduce_ns + self.optimizer_ns + self.gather_ns + self.ends_ns + self.copies_ns
        return parts * self.jitter


def streams_step(model: Model, layout: RunLayout, kind: DeviceKind, links: Links) -> StreamsStep:
    """The step of a run, with overlap of computations and communication, and its parts. kind: the kind of all devices. links:
    their links. layout: how the run is laid out on its devices: degrees, batch, precision and framework. Raises KeyError
    for a precision for which the kind of device has no rate.
    """
    times = {name: unit_times(part, layout, kind, links) for name, part in model.sublayers.items()}
    chunks = chunks_of(model, layout)
    element = DTYPE_BYTES[layout.base]
    jitter = jitter_of(layout, links)
    passes = [chunk_ns(model, chunk, layout, times) for chunk in chunks]
    passes = [
        (forward, backward + accumulated_ns(parameters_of(model, chunk, layout), layout, kind))
        for chunk, (forward, backward) in zip(chunks, passes, strict=True)
    ]
    devices = [sum(parameters_of(model, chunk, layout) for chunk in chunks[rank :: layout.pp]) for rank in range(layout.pp)]
    by_muon = {name: muon_part(part, layout, kind) for name, part in model.sublayers.items()}
    optimizer = 0.0
    for rank in range(0 if layout.frozen else layout.pp):
        stepped, units = stepped_parameters(model, chunks[rank :: layout.pp], layout), _units(chunks[rank :: layout.pp])
        count, orthogonal = _sums(by_muon[model.key_of(unit)] for unit in units)
        mine = optimizer_ns(stepped, layout, kind, moments_saved(layout.optimizer, stepped, count), orthogonal)
        optimizer = max(optimizer, mine)
    micro, ends = layout.micro_batches, float(layout.framework.ends_ns)
    busiest = max(range(layout.pp), key=lambda rank: sum(map(sum, passes[rank :: layout.pp])))
    computing = sum(map(sum, passes[busiest :: layout.pp])) * micro
    forward_ns = sum(pass_[0] for pass_ in passes[busiest :: layout.pp]) * micro
    collectives = sum(chunk_collectives_ns(model, chunk, layout, times) for chunk in chunks[busiest :: layout.pp]) * micro
    if layout.zero >= 2 and layout.sharing > 1 and layout.pp == 1:
        blocks = blocks_of(model, model.units, layout, kind, links, times)
        end = sharded_ns(blocks, micro, layout.zero == 3, reduces_last=layout.reduces_last)
        return StreamsStep(end, computing, 0.0, optimizer, 0.0, ends, jitter, 0.0, forward_ns, collectives)
    hidden = layout.micro * model.tokens * model.units[-1].sublayer.hidden * element / layout.cp / layout.tp
    transfer = links.message_ns(hidden, layout.dp * layout.tp * layout.cp) if layout.pp > 1 else 0.0
    whole = -(-micro // layout.pp) * layout.pp if layout.chunks > 1 else micro
    forward, backward = [round(pass_[0]) for pass_ in passes], [round(pass_[1]) for pass_ in passes]
    parallel = layout.framework.overlaps_messages and layout.chunks > 1
    ended = pipeline_ns(forward, backward, round(transfer), whole, layout.chunks, parallel)
    passes_ns = max(ended) - (whole - micro) * computing / micro
    passes_ns = computing + RUN_SCHEDULES[layout.schedule].bubble * (passes_ns - computing)
    routed = [routed_parameters(_units(chunks[rank :: layout.pp]), layout) for rank in range(layout.pp)]
    exchanged = (data_ns(devices[rank], rank, passes, layout, links, routed[rank]) for rank in range(layout.pp))
    reduce, gather = zip(*exchanged, strict=True)
    gathered = max(gather) + max(
        sliced_ns(tensors_of(_units(chunks[rank :: layout.pp])), devices[rank], layout, kind) for rank in range(layout.pp)
    )
    if layout.framework.stays_whole and layout.zero >= 2 and layout.sharing > 1:
        stages = [blocks_of(model, chunk.units, layout, kind, links, times) for chunk in chunks]
        gathered, reduce = whole_stages_ns(stages, layout.pp)
    exposed = max(end + reduce_ns for end, reduce_ns in zip(ended, reduce, strict=True)) - max(ended)
    return StreamsStep(passes_ns, computing, exposed, optimizer, gathered, ends, jitter, 0.0, forward_ns, collectives)


def jitter_of(layout: RunLayout, links: Links) -> float:
    """The factor, at least 1, by which a step on several nodes takes longer than the sum of its parts; 1 on one node. layout:
    how the run is laid out on its devices: degrees, batch, precision and framework. links: bandwidths and latencies of a
    device's links.
    """
    return 1 + JITTER * max(0.0, log2(layout.devices / links.node)) if layout.devices > links.node else 1.0


def exposed_gather_ns(gather_ns: float, forward_ns: Sequence[float], layout: RunLayout) -> float:
    """The part, in ns, of gathering updated parameters that forward passes of the next step do not overlap; at least the first
    bucket's. gather_ns: the time of all gathers. forward_ns: for each of the device's stages, the forward pass of a
    micro-batch. layout: how the run is laid out on its devices: degrees, batch, precision and framework.
    """
    if not layout.framework.overlaps_parameters:
        return gather_ns
    hidden = sum(forward_ns[:-1]) * layout.pp if len(forward_ns) > 1 else forward_ns[0]
    return max(gather_ns / max(len(forward_ns), LEAST_BUCKETS), gather_ns - hidden)


def optimizer_ns(
    parameters: float, layout: RunLayout, kind: DeviceKind, saved: float = 0.0, orthogonal_ns: float = 0.0
) -> float:
    """The time in ns of the optimizer's step on a device's parameters, which is limited by memory bandwidth.

    parameters: the number of parameters that are stepped. saved: the number of moments that are not read and written,
    compared with AdamW's two for each parameter. orthogonal_ns: the time to make momentum orthogonal (Muon). kind: the kind
    of device. layout: how the run is laid out on its devices: degrees, batch, precision and framework.
    """
    reached = kind.reached("memory", layout.base)
    bytes_per_s = kind.memory_bytes_per_s * (reached.value if reached else 1.0)
    framework, master = layout.framework, layout.framework.master_bytes or DTYPE_BYTES[layout.base]
    fewer = 2 * (FULL.master_bytes - master) + 2 * (FULL.moments_bytes - framework.moments_bytes)
    touched = parameters * (OPTIMIZER_BYTES - fewer) - saved * MOMENT_TRAFFIC_BYTES
    return touched * framework.memory_passes / bytes_per_s * 1e9 + orthogonal_ns


def muon_parameters(part: Sublayer, layout: RunLayout) -> int:
    """The number of a sub-layer's parameters that one rank steps by Muon: an equal share of its matrices' parameters among all
    ranks that shard states, also if there are fewer matrices than ranks (matrices are not split). part: the sub-layer.
    layout: how the run is laid out on its devices: degrees, batch, precision and framework.
    """
    return muon_parameter_count(layout.optimizer, part, part.degree(layout.tp), sharing=layout.sharing)


def muon_part(part: Sublayer, layout: RunLayout, kind: DeviceKind) -> tuple[int, float]:
    """Two numbers for a sub-layer: the number of its parameters that one rank steps by Muon, and the time in ns to make their
    momentum orthogonal; (0, 0.0) without Muon. part: the sub-layer. layout: how the run is laid out on its devices:
    degrees, batch, precision and framework. kind: the kind of device.
    """
    if not (count := muon_parameters(part, layout)):
        return 0, 0.0
    return count, orthogonal_ns(muon_matrices(part, part.degree(layout.tp)), kind, layout.base) / layout.sharing


def parameters_of(model: Model, chunk: Chunk, layout: RunLayout) -> int:
    """The number of parameters of a chunk (pipeline stage) on one rank, its part of routed experts included. A weight table
    that embedding and head share counts once where both are in the chunk, and in each chunk where they are in different ones.
    layout: how the run is laid out on its devices: degrees, batch, precision and framework.
    """
    parts = {id(unit.sublayer): unit.sublayer for unit in chunk.units}  # few, of many layers that are alike
    sizes = {own: sum(rank_parameters(part, layout)) for own, part in parts.items()}
    count = sum(sizes[id(unit.sublayer)] for unit in chunk.units)
    kinds = {unit.kind for unit in chunk.units}
    if model.tied and {"embedding", "head"} <= kinds:
        count -= model.tied_elements // layout.tp
    return count


def _units(chunks: Sequence[Chunk]) -> list[Unit]:
    """The sub-layers of several pipeline stages as one list. chunks: the stages."""
    return [unit for chunk in chunks for unit in chunk.units]


def _sums(pairs: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Add up pairs entry by entry: [(1, 2), (3, 4)] -> (4, 6)."""
    listed = list(pairs)
    return sum(first for first, _ in listed), sum(second for _, second in listed)


def stepped_parameters(model: Model, chunks: Sequence[Chunk], layout: RunLayout) -> float:
    """The number of parameters that one rank's optimizer steps, that is, of which the rank has the master copy and the
    moments. Under Muon, embedding and head are stepped whole on every rank. chunks: the rank's pipeline stages. layout: how
    the run is laid out on its devices: degrees, batch, precision and framework.
    """
    whole, routed = sum(parameters_of(model, chunk, layout) for chunk in chunks), routed_parameters(_units(chunks), layout)
    if not OPTIMIZERS[layout.optimizer].whole_matrices:
        return (whole - routed) / layout.sharing + routed / layout.expert_sharing
    outside = [Chunk(tuple(unit for unit in chunk.units if unit.kind not in LAYER_KINDS)) for chunk in chunks]
    tables = sum(parameters_of(model, chunk, layout) for chunk in outside)
    return (whole - tables) / layout.sharing + tables


def chunk_ns(
    model: Model, chunk: Chunk, layout: RunLayout, times: dict[str, UnitTimes], first_layer: int | None = None
) -> tuple[float, float]:
    """The times in ns of the forward and of the backward pass of one micro-batch through the sub-layers of a chunk (a pipeline
    stage, or a part of one), recomputation included. times: the times of each sub-layer, by name. first_layer: the first
    layer of the stage of which the chunk is a part; None if the chunk is a whole stage. layout: how the run is laid out on
    its devices: degrees, batch, precision and framework.
    """
    forward = backward = exchange = kernels = 0.0
    first = chunk.first_layer if first_layer is None else first_layer
    for unit in chunk.units:
        unit_ns = times[model.key_of(unit)]
        share = layout.recompute.share(unit.layer - first) if unit.kind not in ("embedding", "head") else 0.0
        forward += unit_ns.forward_with_collectives_ns
        backward += (
            unit_ns.backward_ns
            + unit_ns.backward_collectives_ns
            + share * unit_ns.forward_with_collectives_ns
            + (1 - share) * unit_ns.recompute_ns
        )
        exchange += unit_ns.exchange_ns
        kernels += (unit_ns.forward_ns + unit_ns.backward_ns) * (unit.kind in LAYER_KINDS)
    if exchange:  # of one micro-batch, in parallel with another one's opposite pass
        shown = alongside_ns(2 * exchange, kernels) / 2
        forward, backward = forward + shown, backward + shown
    issued = chunk.layers * layout.framework.issue_ns + chunk.expert_units * layout.experts.issue_ns
    return max(forward, issued), max(backward, BACKWARD_ISSUE * issued)


def chunk_collectives_ns(model: Model, chunk: Chunk, layout: RunLayout, times: dict[str, UnitTimes]) -> float:
    """The part in ns of both passes of one micro-batch through a chunk that its collectives add to them, as `chunk_ns` counts
    them: less than the collectives take where kernels, or a CPU that issues them slowly, hide them. times: the times of each
    sub-layer, by name.
    """
    without = {
        name: replace(unit, collectives_ns=0.0, backward_collectives_ns=0.0, exchange_ns=0.0) for name, unit in times.items()
    }
    if without == times:
        return 0.0
    return sum(chunk_ns(model, chunk, layout, times)) - sum(chunk_ns(model, chunk, layout, without))


def data_ns(
    parameters: int, rank: int, passes: list[tuple[float, float]], layout: RunLayout, links: Links, routed: int = 0
) -> tuple[float, float]:
    """Two times in ns that a pipeline rank's data-parallel communication adds to its passes: the part of the reduction of
    gradients beyond the backward passes, and the part of the gathering of parameters beyond the forward passes, each with the
    time by which what they hide slows kernels alongside it.

    parameters: the number of parameters of pipeline rank `rank`. passes: the forward and the backward pass in ns of every
    stage. layout: how the run is laid out on its devices: degrees, batch, precision and framework. links: bandwidths and
    latencies of a device's links. routed: of these parameters, the number that is of routed experts.
    """
    if layout.frozen:
        return 0.0, 0.0
    reduce, gather = states_exchange_ns(parameters - routed, layout.dp * layout.cp, layout.tp, layout.sharing, layout, links)
    if routed:
        stride = layout.experts.ep * layout.experts.etp
        apart = states_exchange_ns(routed, layout.edp, stride, layout.expert_sharing, layout, links)
        reduce, gather = reduce + apart[0], gather + apart[1]
    mine = passes[rank :: layout.pp]
    buckets = max(len(mine), LEAST_BUCKETS)
    if layout.framework.overlaps_gradients:
        hidden = sum(backward for _, backward in mine[1:]) * layout.pp if len(mine) > 1 else mine[0][1]
        shown = max(reduce / buckets, reduce - hidden)
        reduce = shown + layout.framework.contention * (reduce - shown)
    shown = exposed_gather_ns(gather, [forward for forward, _ in mine], layout)
    return reduce, shown + layout.framework.contention * (gather - shown)


def blocks_of(
    model: Model, of: Sequence[Unit], layout: RunLayout, kind: DeviceKind, links: Links, times: dict[str, UnitTimes]
) -> list[Block]:
    """The blocks (each transformer layer, the embedding, the head) of some of a model's units, whose parameters are gathered
    and whose gradients are reduced together, with their times. Collectives in parallel with a pass add a part of their time to
    its kernels, which share multiprocessors and memory with them.

    of: the units, in model order: all, or those of a pipeline stage. times: the times of each sub-layer, by name. layout: how
    the run is laid out on its devices: degrees, batch, precision and framework. kind: the kind of device. links: bandwidths
    and latencies of a device's links.
    """
    blocks: list[Block] = []
    by_layer: dict[int, list[Unit]] = {}
    for unit in of:
        by_layer.setdefault(unit.layer, []).append(unit)
    first = Chunk(tuple(of)).first_layer
    for units in by_layer.values():
        chunk = Chunk(tuple(units))
        forward, backward = chunk_ns(model, chunk, layout, times, first)
        parameters = parameters_of(model, chunk, layout)
        copies_forward, copies_backward = copied_ns(parameters, layout, kind)
        gather, reduce, copies = block_exchange_ns(
            parameters, routed_parameters(units, layout), layout, links, chunk.layers > 0
        )
        forward, backward = forward + copies_forward, backward + copies_backward
        alongside = gather * (layout.zero == 3)
        forward += layout.framework.contention * min(forward, alongside)
        backward += layout.framework.contention * min(backward, alongside + reduce)
        blocks.append(Block(forward, backward, gather, reduce, copies))
    return blocks
