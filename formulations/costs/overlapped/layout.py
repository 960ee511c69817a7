"""The layout of a run apart from its model and devices: degrees, recomputation, precision, and what its framework overlaps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from typing import Literal

from trainplan.formulations.plan.strategy import Exchange
from trainplan.profiling.clusters.efficiencies import Precision
from trainplan.profiling.clusters.recipes import Recipe
from trainplan.profiling.models.optimizers import OptimizerName

RunSchedule = Literal["1f1b", "gpipe", "zb-h1", "zero-bubble"]  # the order of a pipeline's passes
Hosted = Literal["optimizer", "parameters", "activations"]  # what may be on the host


@dataclass(frozen=True)
class RecomputePolicy:
    """The parts of a model that the backward pass computes again.

    Attributes:
        layers: the share of transformer layers that is recomputed as a whole; first: instead, the number of first layers of
            each stage, or of each chunk where stages are interleaved.
        group: consecutive layers of a stage that are recomputed together, of which only the first one's input is kept.
        attention: attention cores, from queries, keys and values.
        operations: everything but the attention core and every second matrix product.
        norms: norms before matrices.
        activation: the activation of the feed-forward network, with its gate; network: instead the feed-forward network as a
            whole, from the result of its norm.
        loss: logits and the loss.
    """

    layers: float = 0.0
    first: int | None = None
    group: int = 1
    attention: bool = False
    operations: bool = False
    norms: bool = False
    activation: bool = False
    network: bool = False
    loss: bool = False

    def share(self, index: int) -> float:
        """The share of a transformer layer that is recomputed as a whole. index: that of the layer in its stage, from 0."""
        return self.layers if self.first is None else float(index < self.first)


def recompute_of(modules: Iterable[str]) -> RecomputePolicy:
    """The policy of a strategy that recomputes the given modules."""
    names = set(modules)
    return RecomputePolicy(attention="attention" in names, norms="norms" in names, activation="activation" in names)


@dataclass(frozen=True)
class Framework:
    """Behaviour of a training framework that decides time and memory of a step, whatever the plan.

    Attributes:
        name: the framework's name, for people.
        overlaps_gradients: whether gradients are reduced in parallel with backward passes.
        overlaps_parameters: whether updated parameters are gathered in parallel with forward passes.
        overlaps_messages: whether messages between interleaved stages travel in parallel with passes.
        tensor_overlap: the share of tensor-parallel collectives that runs piece by piece in parallel with the products that
            need them.
        overlaps_tensor_backward: whether tensor-parallel collectives of backward passes run in parallel with the gradients of
            weights, as in Megatron-LM.
        broadcast_ns: time beyond that of the bytes for each rank in turn to send its updated shard of the parameters to all;
            0 where they are all-gathered.
        memory_passes: how often unfused kernels touch memory, relative to fused ones; loss_passes: the same for the loss.
        fused_attention: whether attention scores are never written to memory.
        drops: whether the configuration's dropout is on.
        pads: vocabularies are padded to a multiple of this number of entries on each tensor-parallel rank.
        gradient_bytes: bytes of a gradient that is summed; copied_bytes: of the optimizer's own copy of it.
        master_bytes: bytes of the optimizer's copy of a parameter, 0 where it works on the model's own; moments_bytes: of all
            moments of a parameter.
        logit_bytes: bytes for one logit at the peak of the loss.
        shards_halves: whether a rank keeps its shard in the model's dtype, next to the optimizer's copy, in ZeRO's stage 3.
        composed: whether norms, gates and attention are made of several kernels that each keep what they work on: of a norm a
            copy in fp32 and the result before its weights, of a gate the activation's result, of an attention that keeps its
            scores these in fp32, too.
        fixed_bytes: bytes of libraries' workspaces and of buffers for reductions.
        ends_ns: time of a step that is no pass: data, logs, the norm of gradients on the host.
        issue_ns: time for the host to issue a transformer layer's forward pass, half as long again for its backward pass; a
            pass whose kernels are shorter takes that long.
    """

    name: str
    overlaps_gradients: bool = False
    overlaps_parameters: bool = False
    overlaps_messages: bool = False
    tensor_overlap: float = 0.0
    overlaps_tensor_backward: bool = False
    memory_passes: float = 1.0
    loss_passes: float = 2.5
    fused_attention: bool = True
    pads: int = 1
    broadcast_ns: int = 0
    gradient_bytes: int = 4
    copied_bytes: int = 0
    master_bytes: int = 4
    moments_bytes: int = 8
    logit_bytes: int = 8
    shards_halves: bool = False
    composed: bool = False
    drops: bool = False
    fixed_bytes: int = 80 * 2**20
    ends_ns: int = 5_000_000
    issue_ns: int = 0


@dataclass(frozen=True)
class Held:
    """Memory that a trainer holds in addition to states and activations, and how it computes the loss.

    Attributes:
        bucket_elements: numbers of the model's dtype in the buffers in which gradients are reduced, during the passes;
            standing_elements: of these, those that are never freed.
        live_elements: parameters that ZeRO's stage 3 keeps gathered, where these are more than the largest block's.
        ahead_elements: parameters that it gathers in advance (None: one more block of the largest size).
        accumulates_apart: under stage 2, whether a micro-batch's own gradients are held apart from their sum.
        reduces_last: whether gradients are summed whole on each rank, in the model's dtype, and reduced after the last
            micro-batch alone.
        stepped_elements: numbers of a shard that the optimizer steps at a time (None: all).
        flattens: whether their gradients are laid out as one tensor, then copied to fp32 where they are not.
        temporaries: numbers, as wide as what is stepped, that the optimizer's kernels hold for each parameter that they step.
        autocast: whether parameters are in fp32, as are hidden states and results of norms, and each product has copies of its
            own in the model's dtype.
        chunk_tokens: tokens whose logits are held at a time (None: all), by the same kernels; chunks: the least number of parts
            that the tokens are cut into.
        in_place: whether no kernel of the loss makes more than the logits themselves, and the gradients of hidden states and
            table are computed with them.
    """

    bucket_elements: int = 0
    standing_elements: int = 0
    live_elements: int = 0
    ahead_elements: int | None = None
    accumulates_apart: bool = False
    reduces_last: bool = False
    stepped_elements: int | None = None
    flattens: bool = False
    temporaries: int = 0
    autocast: bool = False
    chunk_tokens: int | None = None
    chunks: int = 1
    in_place: bool = False


NOTHING_HELD = Held()


@dataclass(frozen=True)
class RunLayout:
    """How a run is laid out on its devices. Ranks are numbered tensor-parallel first, then context-, data- and
    pipeline-parallel, as in Megatron-LM.

    Attributes:
        dp, tp, pp, cp: degrees of data, tensor, pipeline and context parallelism.
        chunks: stages on each device.
        zero: ZeRO's stage; shard: data-parallel ranks that share model states; further ones hold copies.
        sequence_parallel: whether tensor-parallel ranks share the tokens between matrices.
        recompute: what the backward pass computes again.
        base: the dtype of everything but the products of transformer layers; precision: that of these products, where no recipe
            has them in fewer bits.
        micro: samples of a micro-batch on one rank; batch: samples of a step.
        framework: what the framework does by itself.
        reserved: whether embedding and head count as a layer each when the pipeline is divided.
        stage_layers: transformer layers of each stage, in the order of the chain; None where all stages have the same number.
        frozen: whether adapters alone are trained: weights have no gradients and no states.
        exchange: what context-parallel ranks exchange for attention's core: keys, around a ring, or heads, by all-to-alls.
        optimizer: what steps the parameters.
        recipe: of the products of transformer layers; None where they are in `precision`.
        on_host: what devices copy to their host and back.
        held: what the trainer holds in addition.
        schedule: of the pipeline; `zb-h1` and `zero-bubble` (Qi et al., 2023) have a third of 1F1B's bubble, and almost none.
    """

    dp: int
    tp: int
    pp: int
    cp: int
    chunks: int
    zero: int
    shard: int
    sequence_parallel: bool
    recompute: RecomputePolicy
    base: Precision
    precision: Precision
    micro: int
    batch: int
    framework: Framework
    reserved: bool = False
    stage_layers: tuple[int, ...] | None = None
    frozen: bool = False
    exchange: Exchange = "keys"
    optimizer: OptimizerName = "adamw"
    recipe: Recipe | None = None
    on_host: frozenset[Hosted] = frozenset()
    held: Held = NOTHING_HELD
    schedule: RunSchedule = "1f1b"

    @property
    def rate(self) -> Precision:
        """The precision whose rate the products of transformer layers have."""
        return self.precision if self.recipe is None else self.recipe.precision

    @property
    def devices(self) -> int:
        """The number of all devices."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def micro_batches(self) -> int:
        """The number of micro-batches of each data-parallel rank in a step."""
        return max(1, ceil(self.batch / (self.dp * self.micro)))

    @property
    def exchanges_heads(self) -> bool:
        """Whether context-parallel ranks get all tokens of their part of the heads for attention's core."""
        return self.exchange == "heads" and self.cp > 1

    @property
    def sharing(self) -> int:
        """The number of ranks that share states under ZeRO, context-parallel ones included."""
        return self.shard * self.cp if self.zero else 1

    @property
    def sums_gradients(self) -> bool:
        """Whether all ranks sum whole gradients: where states are copies, or whole matrices are distributed over the ranks that
        share states (see `profiling.models.optimizers`); else each gets its shard of the sum."""
        return not self.zero or self.optimizer == "muon"

    @property
    def reduces_last(self) -> bool:
        """Whether each rank has whole gradients, not its shard of them, until the last of several micro-batches."""
        several = self.micro_batches > 1 and self.pp == 1 and self.sharing > 1
        return self.held.reduces_last and several and self.zero >= 2 and not self.frozen

    @property
    def copies(self) -> int:
        """The number of groups of ranks that share states, each with a copy of them."""
        return self.dp * self.cp // self.sharing
