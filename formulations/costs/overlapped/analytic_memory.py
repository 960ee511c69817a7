"""Memory of a run on each device, from its layout: model states as frameworks hold them, activations of the micro-batches in
flight (`unit_memory`), the logits with their loss, and what trainers hold in addition: buckets in the passes, copies in the
optimizer's step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trainplan.formulations.costs.overlapped.analytic_step import (
    Chunk,
    chunks_of,
    muon_parameters,
    parameters_of,
    stepped_parameters,
)
from trainplan.formulations.costs.overlapped.layout import RUN_SCHEDULES, RunLayout
from trainplan.formulations.costs.overlapped.state_exchange import routed_parameters
from trainplan.formulations.costs.overlapped.unit_memory import (
    COPY_BYTES,
    exchanged_bytes,
    kept_bytes,
    network_again_bytes,
    score_gradient_bytes,
)
from trainplan.profiling.base.dtypes import DTYPE_BYTES
from trainplan.profiling.clusters.recipes import Recipe
from trainplan.profiling.models.model import Model, Unit
from trainplan.profiling.models.optimizers import moments_saved
from trainplan.profiling.models.sublayers import LAYER_KINDS

# Share of what a layer keeps, where every second product's result, the attention's and the layer's input are kept: of a layer
# of Llama-3 8B 59 of 131 KB for each token.
OPERATIONS_KEPT = 0.45
MOMENT_BYTES = 4
# Of a micro-batch's activations, what two micro-batches hold in addition whose passes run in parallel to hide the exchange of
# tokens: one's grow while the other's shrink. Of three peaks of Megatron-LM's functional tests, which say 0.16, 0.31 and 0.44.
ALONGSIDE_FLIGHT = 0.35


@dataclass(frozen=True)
class RunMemory:
    """Bytes of one device of a run, at two moments: at the peak of the forward and backward passes, and in the optimizer's
    step, when no activations are held.

    Attributes:
        states_bytes: in the passes, model states with gathered blocks.
        activation_bytes: in the passes, activations of the micro-batches in flight (forward pass done, backward pass not
            yet).
        workspace_bytes: in the passes, temporaries: the loss, or one layer that is recomputed.
        buffers_bytes: in the passes, buffers of the trainer.
        standing_bytes: in the optimizer's step, model states without gathered blocks.
        copies_bytes: in the optimizer's step, temporaries of the step in addition to the states.
        unreduced_bytes: in the passes, whole gradients in addition to shards of them, if they are reduced after the last
            micro-batch.
        messages_bytes: in the passes, what a pipeline holds of all micro-batches of a step between its stages.
        fragmented: what the allocator reserves beyond what is allocated, as a share of that.
    """

    states_bytes: float
    activation_bytes: float
    workspace_bytes: float
    buffers_bytes: float = 0.0
    standing_bytes: float = 0.0
    copies_bytes: float = 0.0
    unreduced_bytes: float = 0.0
    messages_bytes: float = 0.0
    fragmented: float = 0.0

    @property
    def passes_bytes(self) -> float:
        """Bytes held on one device at the peak of the forward and backward passes."""
        held = self.states_bytes + self.activation_bytes + self.buffers_bytes + self.unreduced_bytes + self.messages_bytes
        return held + self.workspace_bytes

    @property
    def stepping_bytes(self) -> float:
        """Bytes held on one device in the optimizer's step, when no activations are held."""
        return self.standing_bytes + self.copies_bytes

    @property
    def peak_bytes(self) -> float:
        """The most bytes held on one device at any moment of the step, with what the allocator reserves in addition."""
        return max(self.passes_bytes, self.stepping_bytes) * (1 + self.fragmented)

    @property
    def moment(self) -> str:
        """When the peak of memory is, as a text: `the passes` or `the optimizer's step`."""
        return "the passes" if self.passes_bytes >= self.stepping_bytes else "the optimizer's step"

    @property
    def parts(self) -> dict[str, float]:
        """The parts that add up to the peak of memory, in bytes, by their names for people, such as `activations`."""
        reserved = {"fragmentation": self.peak_bytes * self.fragmented / (1 + self.fragmented)} if self.fragmented else {}
        if self.passes_bytes < self.stepping_bytes:
            stepping = {"model states": self.standing_bytes, "copies of gradients and buckets": self.copies_bytes}
            return stepping | reserved
        states = {"model states": self.states_bytes, "activations": self.activation_bytes}
        states |= {"whole gradients": self.unreduced_bytes}
        if self.messages_bytes:
            states["messages of the pipeline"] = self.messages_bytes
        passes = {"loss or one layer": self.workspace_bytes, "gradient buckets": self.buffers_bytes}
        return states | passes | reserved


def run_memory(model: Model, layout: RunLayout) -> list[RunMemory]:
    """The memory of one device of each pipeline rank, in rank order. layout: how the run is laid out on its devices: degrees,
    batch, precision and framework.
    """
    chunks = chunks_of(model, layout)
    return [memory_of_rank(model, layout, chunks[rank :: layout.pp], rank) for rank in range(layout.pp)]


def states_bytes(
    parameters: float, layout: RunLayout, largest: float = 0.0, stepped_parameters: float | None = None, saved: float = 0.0
) -> float:
    """Bytes of model states (parameters, gradients, optimizer states) on one device.

    Args:
        layout: how the run is laid out on its devices: degrees, batch, precision and framework.
        parameters: the number of parameters of the device's pipeline rank, on one tensor-parallel rank.
        largest: the number of parameters of the rank's largest block, of which ZeRO-3 gathers the next one in advance; 0 if
            none is gathered.
        stepped_parameters: under ZeRO stage 1, the number of parameters whose master copy and moments the device has; None
            for an equal share.
        saved: the number of optimizer moments that the device does not keep, compared with AdamW's two per parameter.
    """
    element, gradient, sharing = DTYPE_BYTES[layout.base], layout.framework.gradient_bytes, layout.sharing
    framework = layout.framework
    stepped = framework.master_bytes + framework.moments_bytes + framework.copied_bytes
    if "optimizer" in layout.on_host or "parameters" in layout.on_host:
        return _device_bytes_with_host_states(parameters, layout, largest)
    if layout.frozen:
        gathered = _gathered(parameters, largest, layout) * (layout.zero == 3)
        return (parameters / (sharing if layout.zero == 3 else 1) + gathered) * element
    if layout.zero == 3 and sharing > 1 and layout.pp > 1 and framework.memory.whole_in_pipelines and largest:
        own = element * (framework.shards_halves or not framework.master_bytes)
        return parameters * (element + gradient) + parameters * (stepped + own) / sharing
    if layout.zero == 3 and sharing > 1:
        gathered = _gathered(parameters, largest, layout) * element + largest * gradient
        own = element * (framework.shards_halves or not framework.master_bytes)  # else the optimizer's copy is the only one
        return parameters * (stepped + own + gradient) / sharing + gathered
    if layout.zero == 2 and sharing > 1:
        return parameters * element + parameters * (stepped + gradient) / sharing + largest * gradient
    kept = parameters / sharing if stepped_parameters is None else stepped_parameters
    return parameters * (element + gradient) + kept * stepped - saved * MOMENT_BYTES


def _gathered(parameters: float, largest: float, layout: RunLayout) -> float:
    """The number of parameters that are gathered at a time: those of the largest block and of the next one, or as many as the
    trainer's settings (`layout.held`) keep.

    parameters: the number of the rank's parameters. largest: the number of its largest block's parameters, 0 if none is
    gathered. layout: how the run is laid out on its devices: degrees, batch, precision and framework.
    """
    held = layout.held
    if not largest or held.ahead_elements is None:
        return 2 * largest
    return min(parameters, max(largest, held.live_elements) + held.ahead_elements)


def _device_bytes_with_host_states(parameters: float, layout: RunLayout, largest: float) -> float:
    """Bytes of model states on the device if other model states are on the host: either all parameters, or two gathered
    blocks; and either all gradients, or those of one block if gradients leave as soon as they are computed.

    parameters: the number of the rank's parameters. largest: the number of its largest block's parameters, 0 outside of the
    passes. Parameters on the host that ZeRO stage 2 does not free after their forward pass are all on the device when the
    backward pass begins. layout: how the run is laid out on its devices: degrees, batch, precision and framework.
    """
    element = DTYPE_BYTES[layout.base]
    hosted = "parameters" in layout.on_host
    if hosted and layout.zero == 2 and layout.sharing > 1:
        held = parameters * element * (largest > 0)
    else:
        held = 0.0 if hosted else parameters * element / (layout.sharing if layout.zero == 3 else 1)
        held += _gathered(parameters, largest, layout) * element * (layout.zero == 3 or hosted)
    leave = layout.zero >= 2 or "parameters" in layout.on_host
    gradients = largest * element if leave else parameters * layout.framework.gradient_bytes
    return held + gradients * (not layout.frozen)


def copied_bytes(weights: Sequence[float], recipe: Recipe | None, element_bytes: int, zero: int) -> float:
    """Bytes of the low-precision copies of weights that a recipe (such as FP8) needs in addition to the weights in the model's
    dtype; 0 without a recipe.

    weights: the number of weights of each layer or sub-layer on a rank; under ZeRO-3, which gathers the next one in
    advance, only the two largest have copies at a time. recipe: the low-precision recipe. element_bytes: bytes of a weight
    in the model's dtype. zero: the ZeRO stage.
    """
    if recipe is None or not weights:
        return 0.0
    held = sum(weights) if zero < 3 else sum(sorted(weights)[-2:])
    return held * recipe.copied_bytes(element_bytes, in_place=zero > 0)


def _layer_bytes(chunk: Chunk, layout: RunLayout) -> tuple[float, float]:
    """Two numbers of bytes on one rank for one micro-batch: those that a chunk (pipeline stage) keeps from its forward to its
    backward pass; and the largest number that a layer, or a group of layers recomputed together, holds in addition while it
    is recomputed. chunk: the sub-layers of the stage. layout: how the run is laid out on its devices: degrees, batch,
    precision and framework.
    """
    layers: dict[int, list[Unit]] = {}
    for unit in chunk.units:
        layers.setdefault(unit.layer, []).append(unit)
    total = again = 0.0
    groups: dict[int, float] = {}
    for units in layers.values():
        kept = sum(kept_bytes(unit, layout) for unit in units)
        if units[0].kind in ("embedding", "head"):
            total += kept
            continue
        part = units[0].sublayer
        tokens = layout.micro * part.tokens / layout.cp / (layout.tp if layout.sequence_parallel else 1)
        entry = tokens * part.hidden * (COPY_BYTES if layout.held.autocast else DTYPE_BYTES[layout.base])
        index = units[0].layer - chunk.first_layer
        share, group = layout.recompute.share(index), layout.recompute.group
        if layout.recompute.operations:
            kept *= OPERATIONS_KEPT
        total += (1 - share) * kept + share * entry * (index % group == 0)
        groups[index // group] = groups.get(index // group, 0.0) + kept * (share > 0)
        again = max(again, groups[index // group], *(network_again_bytes(unit, layout) for unit in units))
    return total, again


def kept_on_host_bytes(chunk: Chunk, layout: RunLayout) -> float:
    """Bytes of one rank's activations of a micro-batch that a chunk (pipeline stage) keeps on the host between its forward and
    its backward pass. layout: how the run is laid out on its devices: degrees, batch, precision and framework.
    """
    return _layer_bytes(chunk, layout)[0] * layout.hosted_layers(chunk.layers) / max(1, chunk.layers)


def memory_of_rank(model: Model, layout: RunLayout, chunks: list[Chunk], rank: int) -> RunMemory:
    """The memory of one device of a pipeline rank. chunks: the stages of that rank. rank: the index of the pipeline rank.
    layout: how the run is laid out on its devices: degrees, batch, precision and framework.
    """
    parameters = sum(parameters_of(model, chunk, layout) for chunk in chunks)
    flights = _in_flight(layout, rank)
    if layout.experts.exchange_alongside and any(chunk.expert_units for chunk in chunks):
        flights = [flight + ALONGSIDE_FLIGHT / len(flights) for flight in flights]
    kept = [_layer_bytes(chunk, layout) for chunk in chunks]
    activations = sum(flight * size for flight, (size, _) in zip(flights, kept, strict=True))
    if "activations" in layout.on_host:  # at least those of two layers stay, one that is computed and one that is copied
        two = max(2 * size / max(1, chunk.layers) for chunk, (size, _) in zip(chunks, kept, strict=True))
        away = sum(flight * kept_on_host_bytes(chunk, layout) for chunk, flight in zip(chunks, flights, strict=True))
        activations = max(two, activations - away)
    again = max(most for _, most in kept)
    layers: dict[int, list[Unit]] = {}
    for chunk in chunks:
        for unit in chunk.units:
            layers.setdefault(unit.layer, []).append(unit)
    blocks = {layer: parameters_of(model, Chunk(tuple(units)), layout) for layer, units in layers.items()}
    largest = max(blocks.values())
    inner = [blocks[layer] for layer, units in layers.items() if units[0].kind in LAYER_KINDS]
    units = [unit for chunk in chunks for unit in chunk.units]
    if layout.framework.memory.keeps_gathered and layout.sequence_parallel and layout.tp > 1:
        again += 2 * _gathered_tokens_bytes(model, layout)  # gradients of a gathered input from two products
    workspace = again + max(max(exchanged_bytes(unit, layout), score_gradient_bytes(unit, layout)) for unit in units)
    head = chunks[-1].units[-1]
    if head.kind == "head":
        workspace = max(workspace, loss_bytes(model, head, layout))
    by_muon = sum(muon_parameters(unit.sublayer, layout) for chunk in chunks for unit in chunk.units)
    stepped = stepped_parameters(model, chunks, layout)
    saved = moments_saved(layout.optimizer, stepped, by_muon)
    copies = copied_bytes(inner, layout.recipe, DTYPE_BYTES[layout.base], layout.zero)
    fixed = layout.framework.fixed_bytes
    messages = messages_bytes(model, layout, rank) if layout.framework.memory.holds_messages else 0.0
    if layout.framework.memory.defers_head and head.kind == "head":
        messages += deferred_bytes(model, layout)
    unreduced = _unreduced_bytes(parameters, layout)
    half = _half_gradients_bytes(parameters, layout)
    last = sum(size for size, _ in kept) if "activations" not in layout.on_host else 0.0
    if half > last + workspace:  # at the end of a backward pass, when its own activations are gone
        activations, workspace, unreduced = max(0.0, activations - last), 0.0, unreduced + half
    routed = routed_parameters(units, layout)
    if routed and layout.zero >= 2:
        most = max(routed_parameters(of, layout) for of in layers.values())
        dense = max(blocks[layer] - routed_parameters(of, layout) for layer, of in layers.items())
        apart = replace(layout, dp=layout.edp, cp=1, shard=layout.expert_sharing)
        states = states_bytes(parameters - routed, layout, dense, stepped, saved) + states_bytes(routed, apart, most)
        standing = states_bytes(parameters - routed, layout, 0.0, stepped, saved) + states_bytes(routed, apart)
    else:
        states = states_bytes(parameters, layout, largest, stepped, saved)
        standing = states_bytes(parameters, layout, 0.0, stepped, saved)
    states, standing = states + copies + fixed, standing + fixed
    reserved = layout.framework.memory.fragmented
    buffers, copied = _buffers_bytes(parameters, layout), _step_bytes(stepped, layout)
    return RunMemory(states, activations, workspace, buffers, standing, copied, unreduced, messages, reserved)


def _gathered_tokens_bytes(model: Model, layout: RunLayout) -> float:
    """Bytes of the hidden states of a micro-batch that are gathered over tensor-parallel ranks. layout: how the run is laid
    out on its devices: degrees, batch, precision and framework.
    """
    return layout.micro * model.tokens / layout.cp * model.units[-1].sublayer.hidden * DTYPE_BYTES[layout.base]


def loss_bytes(model: Model, head: Unit, layout: RunLayout) -> float:
    """Bytes on one rank for the loss of a micro-batch: the logits, of all tokens or of a chunk of tokens at a time, with the
    loss's copies and gradients of them. If the loss is computed in place (Liger Kernel), these are the logits, and the
    gradients of the hidden states and of the weight table that are computed with them. head: the model's head. layout: how
    the run is laid out on its devices: degrees, batch, precision and framework.
    """
    held, element, vocabulary = layout.held, DTYPE_BYTES[layout.base], (model.vocabulary or 1) / layout.tp
    tokens = layout.micro * model.tokens / layout.cp
    at_once = min(tokens if held.chunk_tokens is None else held.chunk_tokens, tokens / held.chunks)
    if not held.in_place:
        capped = element * (getattr(head.sublayer, "softcap", 0.0) > 0)  # the result of its tanh
        sets = at_once + tokens * getattr(head.sublayer, "predictions", 0)  # those of further tokens wait for the backward pass
        return sets * vocabulary * (layout.framework.logit_bytes + capped)
    hidden = head.sublayer.hidden
    return (at_once * vocabulary + tokens * hidden + vocabulary * hidden * (not layout.frozen)) * element


def messages_bytes(model: Model, layout: RunLayout, rank: int) -> float:
    """Bytes on one rank of a pipeline that allocates its messages for all micro-batches of a step (torch's `PipelineStage`):
    what it receives, forward and backward, and the gradients of what it received, of micro-batches that are done; on the last
    rank the logits that it returns. rank: the index of the pipeline rank. layout: how the run is laid out on its devices:
    degrees, batch, precision and framework.
    """
    if layout.pp == 1:
        return 0.0
    micro, element = layout.micro_batches, DTYPE_BYTES[layout.base]
    tokens = layout.micro * model.tokens / layout.cp
    hidden = tokens * model.units[-1].sublayer.hidden * element / (layout.tp if layout.sequence_parallel else 1)
    flying = min(micro, sum(_in_flight(layout, rank)))
    count = float((rank < layout.pp - 1 or layout.chunks > 1) * micro)  # gradients of what it sent
    if rank > 0 or layout.chunks > 1:  # what came, without that which counts as activations, and its gradients
        count += 2 * (micro - flying)
    logits = tokens * (model.vocabulary or 1) / layout.tp * element * micro * (rank == layout.pp - 1)
    return count * layout.chunks * hidden + logits


def deferred_bytes(model: Model, layout: RunLayout) -> float:
    """Bytes on the last rank of a pipeline for the inputs of the head's product and the gradients of its logits, in the model's
    dtype, of all micro-batches before the last one, from which the gradients of its weights are computed at the end; 0 without
    a pipeline. layout: how the run is laid out on its devices: degrees, batch, precision and framework.
    """
    tokens, hidden = layout.micro * model.tokens / layout.cp, model.units[-1].sublayer.hidden
    numbers = tokens * ((model.vocabulary or 1) / layout.tp + hidden / (layout.tp if layout.sequence_parallel else 1))
    return (layout.micro_batches - 1) * numbers * DTYPE_BYTES[layout.base] * (layout.pp > 1 and not layout.frozen)


def _buffers_bytes(parameters: float, layout: RunLayout) -> float:
    """Bytes of the trainer's buffers on one rank during the passes: its buckets for reducing gradients, and one micro-batch's
    gradients if they are held apart from their sum. parameters: the number of the rank's parameters. layout: how the run is
    laid out on its devices: degrees, batch, precision and framework.
    """
    held = layout.held
    buckets = held.bucket_elements * DTYPE_BYTES[layout.base]
    apart = held.accumulates_apart and layout.zero == 2 and layout.micro_batches > 1 and not layout.frozen
    on_device = not layout.on_host & {"optimizer", "parameters"}
    return buckets + parameters / layout.sharing * layout.framework.gradient_bytes * (apart and on_device)


def _unreduced_bytes(parameters: float, layout: RunLayout) -> float:
    """Bytes of whole gradients on one rank, in the model's dtype, if gradients are reduced after the last micro-batch alone;
    less the shards that are counted with the model states. 0 for other layouts. During that reduction memory only falls.
    parameters: the number of the rank's parameters. layout: how the run is laid out on its devices: degrees, batch,
    precision and framework.
    """
    if not layout.reduces_last:
        return 0.0
    on_device = not layout.on_host & {"optimizer", "parameters"}
    shards = parameters / layout.sharing * layout.framework.gradient_bytes * on_device
    return max(0.0, parameters * DTYPE_BYTES[layout.base] - shards)


def _half_gradients_bytes(parameters: float, layout: RunLayout) -> float:
    """Bytes on one rank of the gradients that one backward pass has made in the model's dtype before they are added to their
    sums; 0 for frameworks that add each as it comes. parameters: the number of the rank's parameters. layout: how the run is
    laid out on its devices: degrees, batch, precision and framework.
    """
    return parameters * DTYPE_BYTES[layout.base] * (layout.framework.memory.half_gradients and not layout.frozen)


def _step_bytes(stepped: float, layout: RunLayout) -> float:
    """Bytes that the optimizer's step needs on one rank in addition to the model states, for the parameters that it steps at a
    time: first their gradients as one tensor and its copy in fp32; then that copy and what the kernels hold in addition,
    when, under ZeRO stages 1 and 2, the summed gradients have been freed. The larger of both counts. stepped: the number of
    parameters that the rank steps. layout: how the run is laid out on its devices: degrees, batch, precision and framework.
    """
    held, gradient = layout.held, layout.framework.gradient_bytes
    standing = held.standing_elements * DTYPE_BYTES[layout.base]
    if layout.frozen or layout.on_host & {"optimizer", "parameters"}:
        return standing
    at_once = stepped if held.stepped_elements is None else min(stepped, held.stepped_elements)
    kernels = held.temporaries * (COPY_BYTES if layout.framework.master_bytes else DTYPE_BYTES[layout.base])
    if not held.flattens:
        return standing + at_once * kernels
    copy = COPY_BYTES if gradient < COPY_BYTES else 0
    freed = gradient * (layout.zero < 3)
    return standing + at_once * max(gradient + copy, (copy or gradient) + kernels - freed)


def _in_flight(layout: RunLayout, rank: int) -> list[float]:
    """For each of a device's chunks (pipeline stages), the largest number of micro-batches in flight: their forward pass is
    done and their backward pass is not. By Megatron-LM's schedules; in GPipe all micro-batches; schedules without bubbles
    have as many as 1F1B. rank: the index of the pipeline rank. layout: how the run is laid out on its devices: degrees,
    batch, precision and framework.
    """
    micro = layout.micro_batches
    if RUN_SCHEDULES[layout.schedule].all_in_flight:
        return [float(micro)] * layout.chunks
    if layout.chunks == 1:
        return [min(micro, layout.pp - rank)]
    passes = min(micro * layout.chunks, 2 * (layout.pp - rank - 1) + (layout.chunks - 1) * layout.pp + 1)
    flights = [0] * layout.chunks
    for number in range(passes):
        flights[number // layout.pp % layout.chunks] += 1
    return [float(flight) for flight in flights]
