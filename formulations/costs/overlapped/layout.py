"""The layout of a run apart from its model and devices: degrees, recomputation, precision, and what its framework overlaps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from typing import Literal

from trainplan.formulations.costs.overlapped.folding import NO_EXPERTS, ExpertsLayout, expert_data_degree, folded_words
from trainplan.formulations.costs.overlapped.framework_memory import MEGATRON_MEMORY, FrameworkMemory
from trainplan.formulations.plan.strategy import Exchange
from trainplan.profiling.base.dtypes import DTYPE_BYTES
from trainplan.profiling.clusters.efficiencies import Precision
from trainplan.profiling.clusters.recipes import Recipe
from trainplan.profiling.models.optimizers import OPTIMIZERS, OptimizerName

RunSchedule = Literal["1f1b", "gpipe", "zb-h1", "zero-bubble"]  # the order of a pipeline's passes
Hosted = Literal["optimizer", "parameters", "activations"]  # what may be on the host
AttentionKernels = Literal["cudnn", "flash-2"]


@dataclass(frozen=True)
class RunScheduleSpec:
    """A pipeline schedule as the predictions of other runtimes know it.

    bubble: the time that a device waits in the passes of a step, over that under 1F1B. all_in_flight: whether all micro-batches
    are in flight on every stage at the end of the forward passes, as in GPipe; otherwise there are as many as under 1F1B.
    """

    bubble: float = 1.0
    all_in_flight: bool = False


RUN_SCHEDULES: dict[RunSchedule, RunScheduleSpec] = {
    "1f1b": RunScheduleSpec(),
    "gpipe": RunScheduleSpec(all_in_flight=True),
    "zb-h1": RunScheduleSpec(bubble=1 / 3),
    "zero-bubble": RunScheduleSpec(bubble=0.1),  # 0 by the paper's unit times, which no model has
}


@dataclass(frozen=True)
class RecomputePolicy:
    """The parts of a model that the backward pass computes again.

    Attributes:
        layers: the share of transformer layers that is recomputed as a whole.
        first: instead of `layers`, the number of first layers that each stage (with interleaving, each chunk) recomputes.
        group: the number of consecutive layers of a stage that are recomputed together, so that only the first one's input
            is kept.
        attention: whether attention cores are, from queries, keys and values.
        operations: whether everything but the attention core and every second matrix product is.
        norms: whether norms before matrix products are.
        activation: whether the activation function of the feed-forward network is, with its gate.
        network: instead of `activation`, whether the whole feed-forward network is, from the result of its norm.
        loss: whether logits and the loss are.
        experts: whether whole units of experts are, with their exchange, from their input.
        experts_activation: whether the activation function of routed experts is, with its gate.
        shared_experts: whether shared experts are.
        latent: whether the up-projections of latent attention are, with the rotation of queries and keys.
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
    experts: bool = False
    experts_activation: bool = False
    shared_experts: bool = False
    latent: bool = False

    def share(self, index: int) -> float:
        """The share, 0 to 1, of one transformer layer that is recomputed as a whole (a fraction if only some layers are and it
        does not matter which). index: the layer's number in its stage, from 0.
        """
        return self.layers if self.first is None else float(index < self.first)


def recompute_of(modules: Iterable[str]) -> RecomputePolicy:
    """The recomputation policy in which every layer recomputes the given modules. modules: names of modules; only `attention`,
    `norms` and `activation` have an effect.
    """
    names = set(modules)
    return RecomputePolicy(attention="attention" in names, norms="norms" in names, activation="activation" in names)


@dataclass(frozen=True)
class Framework:
    """The behaviour of a training framework that decides time and memory of a step, whatever the plan.

    Attributes:
        name: the framework's name, for people.
        overlaps_gradients: whether gradients are reduced in parallel with backward passes.
        overlaps_parameters: whether updated parameters are gathered in parallel with forward passes.
        overlaps_messages: whether messages between interleaved stages travel in parallel with passes.
        tensor_overlap: the share of tensor-parallel collectives that runs piece by piece in parallel with the matrix
            products that need them.
        overlaps_tensor_backward: whether tensor-parallel collectives of backward passes run in parallel with the gradients
            of weights, as in Megatron-LM.
        broadcast_ns: per rank, the time beyond that of the bytes if ranks broadcast their updated shards of the parameters
            one after the other; 0 if shards are all-gathered.
        memory_passes: how often unfused kernels touch memory, relative to fused ones.
        loss_passes: how often the loss's kernels do, relative to fused ones.
        fused_attention: whether attention scores are never written to memory.
        attention: the kernels of fused attention: cuDNN's, or those of FlashAttention-2, which are for Ampere and run on newer
            devices at their own rate.
        attention_rate: what these kernels reach on the run's device, over what its fused attention does (the efficiency of
            its kind); `validation.alongside.with_attention` sets it.
        merges_rings: whether, in context parallelism, the results of a ring's steps are merged by kernels of their own, and
            gradients of keys and values go around in fp32 (torch's context parallelism).
        copies_gathered: whether gathered parameters are copied out of the buffer of their collective, and gradients into
            theirs, by kernels on the stream of the passes (FSDP2).
        stays_whole: whether, in pipelines, parameters that are sharded (stages 2 and 3 of ZeRO) are gathered in the first
            micro-batch, on the way, and gradients reduced after a device's last backward pass, in parallel with nothing.
        keeps_gathered: whether tensor-parallel ranks keep the tokens that they gather before a product, for its gradient;
            otherwise they gather them again (sequence parallelism).
        gathers_in_bits: whether sequence-parallel ranks gather tokens, and gradients of products, in the few bits of the
            products' recipe.
        gathers_blocks: whether they do so with numbers that are scaled in blocks, too.
        shards_in_bits: whether data-parallel ranks gather parameters in these few bits, if their scale factors are of whole
            tensors.
        accumulated_bytes: bytes that are read and written for each parameter in each micro-batch to add its gradient to the
            sum in kernels of their own; 0 if the product of the gradient adds.
        bucket_bytes: bytes of parameters whose gradients are reduced together; 0 for Megatron-Core's number of parameters.
        costs_stages: whether pipeline stages are cut by the products' operations, those of the head included.
        slice_ns: the host's time, after the optimizer's step, for each slice of a tensor that it gathers: one for each tensor
            and rank that shares states; 0 if states are in flat buffers.
        gathered_bytes: bytes that are read and written for each parameter to lay these slices out and back.
        drops: whether the dropout of the model's configuration is on.
        pads: the number of which the vocabulary entries on each tensor-parallel rank are a multiple, by padding.
        gradient_bytes: bytes of a summed gradient element.
        copied_bytes: bytes of the optimizer's own copy of a gradient element.
        master_bytes: bytes per parameter of the optimizer's master copy, 0 if it works on the model's own parameters.
        moments_bytes: bytes per parameter of all moments together.
        logit_bytes: bytes per logit at the peak of the loss.
        shards_halves: whether, in ZeRO stage 3, a rank keeps its shard in the model's dtype in addition to the optimizer's
            copy.
        composed: whether norms, gates and attention are made of several kernels that each keep what they work on: a norm
            keeps a copy in fp32 and the result before its weights, a gate the activation's result, an attention that keeps
            its scores also these in fp32.
        fixed_bytes: bytes of libraries' workspaces and of buffers for reductions.
        ends_ns: time per step outside of passes: data, logs, the norm of gradients on the host.
        issue_ns: time that the host needs to issue a transformer layer's forward pass; half as long again for its backward
            pass. A pass whose kernels are shorter takes that long.
        copies_alongside: whether activations are copied to the host and back on a stream of their own, in parallel with
            kernels.
        joins_products: whether queries, keys and values come from one matrix product, and both up-projections of a gated
            network from one.
        fuses_passes: whether an RMS norm is one kernel, and a gated activation one with its gate.
        memory: what it keeps in memory in its own way.
        contention: the part of their time that data-parallel collectives add to the kernels that run at the same time.
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
    attention: AttentionKernels = "cudnn"
    attention_rate: float = 1.0
    merges_rings: bool = False
    copies_gathered: bool = False
    stays_whole: bool = False
    keeps_gathered: bool = False
    gathers_in_bits: bool = False
    gathers_blocks: bool = True
    shards_in_bits: bool = False
    accumulated_bytes: int = 0
    bucket_bytes: int = 0
    costs_stages: bool = False
    slice_ns: int = 0
    gathered_bytes: int = 0
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
    copies_alongside: bool = False
    joins_products: bool = False
    fuses_passes: bool = False
    memory: FrameworkMemory = MEGATRON_MEMORY
    contention: float = 0.0


@dataclass(frozen=True)
class Held:
    """Memory that a trainer holds in addition to model states and activations, and how it computes the loss.

    Attributes:
        bucket_elements: the number of elements, of the model's dtype, of the buffers in which gradients are reduced during
            the passes.
        standing_elements: of these, the number that is never freed.
        live_elements: the number of parameters that ZeRO stage 3 keeps gathered, if larger than the largest block's.
        ahead_elements: the number of parameters that it gathers in advance (None: one more block of the largest size).
        accumulates_apart: whether, under stage 2, a micro-batch's own gradients are held apart from their sum.
        reduces_last: whether gradients are summed whole on each rank, in the model's dtype, and reduced after the last
            micro-batch alone.
        stepped_elements: the number of elements of a shard that the optimizer steps at a time (None: all).
        flattens: whether their gradients are laid out as one tensor, then copied to fp32 if they are in another dtype.
        temporaries: the number of temporary elements, as wide as what is stepped, that the optimizer's kernels hold per
            parameter.
        autocast: whether parameters, hidden states and results of norms are in fp32, and each matrix product has copies of
            its operands in the model's dtype.
        chunk_tokens: the number of tokens whose logits are held at a time (None: all), with unchanged kernels.
        chunks: the least number of chunks that the tokens are cut into for this.
        in_place: whether no kernel of the loss makes more than the logits themselves, and the gradients of hidden states
            and weight table are computed with them.
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
        chunks: the number of stages on each device.
        zero: the ZeRO stage.
        shard: the number of data-parallel ranks that shard one copy of the model states; further ranks hold further copies.
        sequence_parallel: whether tensor-parallel ranks split the tokens between matrix products.
        recompute: what the backward pass computes again.
        base: the dtype of everything but the matrix products of transformer layers.
        precision: the precision of these matrix products, if no low-precision recipe applies to them.
        micro: samples per micro-batch on one rank.
        batch: samples per step.
        framework: the behaviour of the training framework.
        reserved: whether embedding and head count as a layer each when the pipeline is divided.
        stage_layers: the number of transformer layers of each stage, in pipeline order; None if all stages have the same
            number.
        frozen: whether adapters alone are trained: weights have no gradients and no optimizer states.
        exchange: what context-parallel ranks exchange for attention: `keys` (and values), around a ring, or `heads`, by
            all-to-alls.
        optimizer: the optimizer of the parameters.
        recipe: the low-precision recipe of the transformer layers' matrix products; None if they are in `precision`.
        on_host: what devices copy to their host and back.
        offloaded_layers: the number of a stage's transformer layers whose activations are on the host, if activations are;
            None for all of them.
        held: the memory that the trainer holds in addition.
        schedule: the pipeline schedule; `zb-h1` and `zero-bubble` (Qi et al., 2023) have a third of 1F1B's bubble, and
            almost none.
        experts: the layout of units of experts, on the same devices.
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
    offloaded_layers: int | None = None
    held: Held = NOTHING_HELD
    schedule: RunSchedule = "1f1b"
    experts: ExpertsLayout = NO_EXPERTS

    def hosted_layers(self, layers: int) -> int:
        """The number of a stage's transformer layers whose activations are on the host: the stated number, or else all of them;
        one less where copies run alongside, since Transformer Engine refuses to offload all. layers: the number of the stage's
        transformer layers.
        """
        if "activations" not in self.on_host:
            return 0
        most = max(0, layers - self.framework.copies_alongside)
        return most if self.offloaded_layers is None else min(most, self.offloaded_layers)

    @property
    def rate(self) -> Precision:
        """The precision in which the device computes the matrix multiplications of transformer layers, which decides their
        rate: the recipe's, or else `precision`.
        """
        return self.precision if self.recipe is None else self.recipe.precision

    @property
    def devices(self) -> int:
        """The number of devices of the run, all pipeline stages together."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def micro_batches(self) -> int:
        """The number of micro-batches of each data-parallel rank in a step, at least 1."""
        return max(1, ceil(self.batch / (self.dp * self.micro)))

    @property
    def gathered_share(self) -> float:
        """The bytes of a number that sequence-parallel ranks gather for a layer's product, over those of the base dtype."""
        recipe, framework = self.recipe, self.framework
        if recipe is None or not framework.gathers_in_bits or (recipe.block and not framework.gathers_blocks):
            return 1.0
        return recipe.operand_bytes / DTYPE_BYTES[self.base]

    @property
    def exchanges_heads(self) -> bool:
        """Whether context-parallel ranks exchange attention heads: each gets all tokens of a part of the heads for attention's
        core."""
        return self.exchange == "heads" and self.cp > 1

    @property
    def sharing(self) -> int:
        """The number of ranks that share model states under ZeRO, context-parallel ones included; 1 without ZeRO."""
        return self.shard * self.cp if self.zero else 1

    @property
    def edp(self) -> int:
        """The number of ranks that hold the same part of the same experts. Raises InputError where ep and etp do not divide the
        devices of a stage."""
        return expert_data_degree(self.dp * self.cp * self.tp, self.experts.ep, self.experts.etp)

    @property
    def expert_sharing(self) -> int:
        """The number of ranks that share the states of experts under ZeRO; 1 without ZeRO."""
        return max(1, self.edp // max(1, self.dp // self.shard)) if self.zero else 1

    @property
    def expert_words(self) -> str:
        """The strategy of units of experts as text, such as edp4-ep8."""
        return folded_words(self.edp, self.experts.ep, self.experts.etp)

    @property
    def border_ranks(self) -> int:
        """The number of tensor-parallel ranks that share a sample's tokens where they enter a unit of experts: each routes its
        own tokens (sequence parallelism, which Megatron-Core requires of experts with tensor parallelism)."""
        return self.tp if self.sequence_parallel else 1

    @property
    def sums_gradients(self) -> bool:
        """Whether all ranks sum whole gradients (all-reduce): where states are copies, or whole matrices are distributed over
        the ranks that share states (see `profiling.models.optimizers`). Otherwise each rank gets its shard of the sum
        (reduce-scatter)."""
        return not self.zero or OPTIMIZERS[self.optimizer].whole_matrices

    @property
    def reduces_last(self) -> bool:
        """Whether each rank keeps whole gradients, not its shard of them, until the last of several micro-batches."""
        several = self.micro_batches > 1 and self.pp == 1 and self.sharing > 1
        return self.held.reduces_last and several and self.zero >= 2 and not self.frozen

    @property
    def copies(self) -> int:
        """The number of copies of the model states in the run, that is, of groups of ranks that each shard one copy."""
        return self.dp * self.cp // self.sharing
