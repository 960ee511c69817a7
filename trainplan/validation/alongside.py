"""Memory that trainers hold in addition to model states and activations, by their sources, and the words of runs that change
it.

- DeepSpeed (0.19: `runtime/zero/stage_1_and_2.py`, `stage3.py`): gradients are reduced from buckets of `reduce_bucket_size`
  elements; stages 1 and 2 have two where `overlap_comm` is set, as is assumed of runs that do not say, whose reductions are
  predicted to overlap; that of stage 3 is never freed, and is copied to be reduced. Stage 2 sums the gradients of
  micro-batches in place, next to the shard of the last micro-batch's gradients. The optimizer's step lays gradients out as
  one tensor (`flatten`) and copies it to fp32 (`.to`): in stages 1 and 2 those of the whole shard, in stage 3 those of
  `sub_group_size` elements. Stage 3 keeps parameters that are used again within `max_reuse_distance` (at the end of the
  forward pass half of them, since every layer is passed twice within it), and gathers `prefetch_bucket_size` elements in
  advance.
- Accelerate and transformers' Trainer: where no states are shared and training is in mixed precision, parameters stay in fp32,
  and `torch.autocast` makes a copy of an operand for each of its uses in a product.
- Trainers on Accelerate, with FSDP: all micro-batches of a step but the last run in `Accelerator.no_sync`, unless
  `sync_each_batch` is set (`transformers/trainer.py`, `Accelerator.accumulate`). Gradients then stay whole on each rank, in the
  dtype of the products, since `reduce_dtype` is the same (`FullyShardedDataParallelPlugin.set_mixed_precision`,
  `FSDPParam.to_accumulated_grad_if_needed` of FSDP2, `_post_backward_hook` of FSDP1).
- torch's AdamW (`torch/optim/adam.py`): its kernels for lists of tensors (since 2.0) hold the root of the second moments; those
  for single tensors hold that and its quotient by the bias correction; fused kernels hold nothing. transformers' Trainer uses
  fused kernels from version 5 on with torch 2.8 (`default_optim`), those for lists before; DeepSpeed's own FusedAdam holds
  nothing either.
- Losses: that of transformers copies logits to fp32 and keeps their log-softmax, and its gradients are in fp32. TRL's
  `chunked_nll` holds the logits of 256 tokens at a time; a chunk of torchtitan and torchtune is an eighth of the tokens. Liger
  Kernel holds as many logits as hidden states have elements, rounded to a power of two, and computes in place; cut
  cross-entropy holds no logits.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Literal

from trainplan.execution.launch_files.trainer_buffers import Buffers
from trainplan.formulations.costs.overlapped.frameworks import FLASH_2_RATES
from trainplan.formulations.costs.overlapped.layout import Framework, Held, RunLayout
from trainplan.profiling.base.dtypes import DTYPE_BYTES
from trainplan.profiling.clusters.sheets import DeviceSheet
from trainplan.profiling.models.model import Model
from trainplan.validation.frameworks import KERNELS as KERNELS_OF_LIGER
from trainplan.validation.frameworks import OVERLAP_COMM, year_of
from trainplan.validation.rows import Run
from trainplan.validation.words import Assumed, flag

DEEPSPEED = "DeepSpeed"
KERNELS, BUCKETS, SCORES, LAST = "optimizer's kernels", "reduce_bucket_size", "attention", "gradient accumulation"
OVERLAP = "overlap_comm"
HELD = (KERNELS, BUCKETS, SCORES, LAST, OVERLAP)  # the names of assumptions made here
# DeepSpeed's defaults, in elements.
BUCKET, PREFETCHED, LIVE, SUB_GROUP = 500_000_000, 50_000_000, 1_000_000_000, 1_000_000_000
SINGLE_TENSORS, LISTS = 2, 1  # temporary fp32 numbers of AdamW's kernels for each parameter, by kind of kernel
LISTS_SINCE, FUSED_SINCE = 2023, 2026  # years since which transformers' default kernels are for lists, and fused (version 5)
CHUNKS, TRL_TOKENS = 8, 256
WITHOUT_FLASH = ("pascal", "volta", "turing")  # FlashAttention 2 and cuDNN's fused attention need compute capability 8.0

NUMBER = r"[\s=:]*(\d+(?:\.\d+)?(?:e\d+)?)"
SIZES = (
    ("reduce_elements", r"reduce[_ -]bucket(?:[_ -]size)?"),
    ("prefetch_elements", r"prefetch[_ -]bucket(?:[_ -]size)?"),
    ("live_elements", r"max[_ -]reuse(?:[_ -]distance)?"),
    ("step_elements", r"sub[_ -]group(?:[_ -]size)?"),
)
Loss = Literal["full", "chunked", "fused"]
LOSSES: tuple[tuple[str, Loss], ...] = (
    (r"(?:chunked|chunk(?:s|ing)?)[ _-]*(?:of )?(?:nll|loss|ce|cross[ _-]?entropy|logits?|lm[ _-]?head)\w*", "chunked"),
    (r"(?:loss|logits?|cross[ _-]?entropy|ce) (?:is |are )?(?:in|by) chunks", "chunked"),
    (
        r"(?:liger\w*|cut[ _-]?cross[ _-]?entropy|cce|flce|fused[ _-]linear[ _-](?:ce|cross[ _-]?entropy|loss)|fused[ _-]loss)",
        "fused",
    ),
    (r"(?:full|whole|all) logits", "full"),
)
TRL = re.compile(r"chunked[ _-]nll|\btrl\b")
CUT = re.compile(r"cut[ _-]?cross[ _-]?entropy|\bcce\b")
FUSED_STEP = (
    r"(?:fused[ _-]?adam\w*|adamw?[ _-](?:(?:torch|torch_npu|apex)[ _-])?fused|paged[ _-]adamw\w*|fused optimizer"
    r"|apex adam\w*)"
)
OF_ACCELERATE = re.compile(r"accelerate|transformers|hugging ?face|\btrl\b|axolotl|llama[_ -]?factory")
LISTED_STEP = r"(?:(?:for[ _-]?each|multi[ _-]?tensor)(?: (?:adamw?|optimizer))?|adamw_torch)"


def stated_buffers(run: Run) -> Buffers:
    """Read from the note (free text) of a measured training run the sizes of its trainer's communication buffers, in elements,
    and how its trainer computes the loss (`Loss`). A field of the result is None if the note does not state it.
    """
    note = (run.note or "").lower()
    sizes = {name: int(float(match[1])) for name, word in SIZES if (match := re.search(word + NUMBER, note))}
    return Buffers(**sizes, loss=_loss_of(note))  # type: ignore[arg-type]


def _loss_of(note: str) -> Loss | None:
    """How a trainer holds the logits of the loss, as a note (free text in lower case) states it: "full" (all logits at once),
    "chunked" or "fused". The first kind counts that is named without a negation such as "no". "full" if every kind that is
    named is negated; None if no kind is named.
    """
    flags = [(flag(note, pattern), meant) for pattern, meant in LOSSES]
    return next((meant for on, meant in flags if on), "full" if any(on is False for on, _ in flags) else None)


def held_by(run: Run, model: Model, layout: RunLayout, buffers: Buffers, assumed: Assumed) -> Held:
    """Determine the memory that a trainer holds in addition to model states (parameters, gradients, optimizer states) and
    activations: communication buffers, temporaries of the optimizer, and logits.

    Args:
        run: a measured training run, a row of a table of runs.
        model: the model that the run trains.
        layout: the run's degrees of parallelism, batch and sharding, with its framework's settings.
        buffers: buffer sizes that are stated; the framework's default is used for a size that is None.
        assumed: assumptions as texts by name, written to: gets an entry, name and text, for each default that is used.
    """
    held = _through_logits(run, model, layout, buffers)
    name, note = layout.framework.name, (run.note or "").lower()
    if layout.zero == 0 and layout.framework.pads == 1 and layout.dp > 1 and not layout.frozen:
        held = replace(held, bucket_elements=_copied_elements(model, layout), standing_elements=_copied_elements(model, layout))
    half = DTYPE_BYTES[layout.base] < 4 and layout.framework.master_bytes > 0
    kernels = layout.framework.composed or flag(note, KERNELS_OF_LIGER) is True  # under autocast, whose kernels they are
    if layout.zero == 0 and kernels and name != DEEPSPEED:
        held = replace(held, autocast=half)
    if name != DEEPSPEED and "deepspeed" not in (run.framework or "").lower():
        held = replace(held, reduces_last=_reduces_last(run))
        if replace(layout, held=held).reduces_last:
            assumed[LAST] = "gradients stay whole on each device until the last micro-batch reduces them (no_sync)"
        return replace(held, temporaries=LISTS) if flag(note, LISTED_STEP) else held
    if layout.zero == 0:
        return replace(held, standing_elements=0, temporaries=_temporaries(run, layout, assumed))
    overlaps = flag(note, OVERLAP_COMM)
    if overlaps is None and layout.zero < 3:
        assumed[OVERLAP] = "on: two buckets, one of which is reduced in parallel with backward passes"
    twice = layout.zero < 3 and overlaps is not False and flag(note, r"contiguous[_ -]gradients") is not False
    bucket = (BUCKET if buffers.reduce_elements is None else buffers.reduce_elements) * (1 + twice)
    if buffers.reduce_elements is None:
        assumed[BUCKETS] = f"{bucket:.3g} numbers, DeepSpeed's default"
    copies = not layout.framework.copied_bytes  # else counted with the states, as Megatron-LM's own optimizer has them
    held = replace(
        held, bucket_elements=bucket, flattens=copies, accumulates_apart=True, temporaries=_temporaries(run, layout, assumed)
    )
    if layout.zero < 3:
        return held
    live, ahead, stepped = (
        default if size is None else size
        for size, default in (
            (buffers.live_elements, LIVE), (buffers.prefetch_elements, PREFETCHED), (buffers.step_elements, SUB_GROUP)
        )
    )  # fmt: skip
    return replace(
        held, bucket_elements=2 * bucket, standing_elements=bucket, live_elements=live // 2, ahead_elements=ahead,
        stepped_elements=stepped,
    )  # fmt: skip


def _reduces_last(run: Run) -> bool:
    """Whether a trainer reduces gradients across data-parallel ranks only in the last micro-batch of a step. True for trainers
    on Accelerate if the measured run states its number of samples per micro-batch and its note (free text) does not set
    `sync_each_batch`.
    """
    whose = OF_ACCELERATE.search((run.framework or "").lower()) is not None
    return whose and None not in (run.gbs, run.mbs) and not flag((run.note or "").lower(), r"sync[_ -]each[_ -]batch")


def _copied_elements(model: Model, layout: RunLayout) -> int:
    """The number of gradient elements, in the model's dtype, that a framework copies into buffers in order to reduce them, if
    every rank holds all model states (no sharding): all elements in torch's DistributedDataParallel, whose buckets are copies
    (`gradient_as_bucket_view` is off), and one bucket in DeepSpeed. layout: the run's degrees of parallelism, batch, sharding
    and framework.
    """
    if layout.framework.name == DEEPSPEED:
        return min(BUCKET, model.total_parameters)
    if layout.framework.memory.half_gradients:  # sums are apart from the buckets
        return model.total_parameters // layout.tp // layout.pp
    return model.total_parameters * layout.framework.gradient_bytes // DTYPE_BYTES[layout.base] // layout.tp


def _temporaries(run: Run, layout: RunLayout, assumed: Assumed) -> int:
    """The number of temporary fp32 values per parameter that AdamW's kernels hold during the optimizer's step. If the measured
    run does not name its kernels, they are the default of transformers' Trainer in the run's year, or, if it has no date, the
    default before version 5, which holds more. layout: the run's degrees of parallelism, batch, sharding and framework.
    assumed: assumptions as texts by name, written to: gets an entry if the kernels are assumed.
    """
    note, year = (run.note or "").lower(), year_of(run)
    if flag(note, FUSED_STEP) or layout.frozen or layout.on_host & {"optimizer", "parameters"}:
        return 0
    if flag(note, LISTED_STEP):
        return LISTS
    if year is not None and year >= FUSED_SINCE:
        assumed[KERNELS] = "torch's fused ones, which hold nothing, as transformers 5 has them"
        return 0
    single = year is not None and year < LISTS_SINCE
    count, kernels = (SINGLE_TENSORS, "single tensors") if single else (LISTS, "lists of tensors")
    assumed[KERNELS] = f"torch's for {kernels}, which hold {4 * count} bytes of each parameter that is stepped"
    return count


def _through_logits(run: Run, model: Model, layout: RunLayout, buffers: Buffers) -> Held:
    """How many logits the loss holds at the same time, and whether it computes in place. Returns a `Held` (memory in addition
    to model states and activations) in which only the fields about the loss are set. layout: the run's degrees of parallelism,
    batch, sharding and framework. run: a measured training run, whose note may name the kind of loss. buffers: has the kind of
    loss if the run states it.
    """
    text = f"{run.framework or ''} {run.note or ''}".lower()
    if buffers.loss == "chunked":
        return Held(chunk_tokens=TRL_TOKENS) if TRL.search(text) else Held(chunks=CHUNKS)
    if buffers.loss != "fused" or layout.framework.pads > 1 or not model.vocabulary:
        return Held()
    if CUT.search(text):
        return Held(chunk_tokens=0, in_place=True)
    tokens = layout.micro * model.tokens // layout.cp
    parts = -(-model.vocabulary // model.units[-1].sublayer.hidden)
    return Held(chunk_tokens=1 << (-(-tokens // parts) - 1).bit_length(), in_place=True)


def with_attention(framework: Framework, described: DeviceSheet, stated: bool | None, assumed: Assumed) -> Framework:
    """Set whether a framework's attention kernels are fused, from a run's own statement or else from its device, and what they
    reach on the device.

    If the run states nothing, Megatron-LM's kernels are not fused on devices that lack fused attention; torch's own attention,
    which other frameworks call, has a fused kernel on these devices, too.

    Args:
        framework: the cost model's settings for the run's framework.
        described: the device's data sheet.
        stated: whether the kernels are fused, if the run states it; None otherwise.
        assumed: assumptions as texts by name, written to: gets an entry if unfused kernels are assumed.

    Returns:
        A copy of the framework's settings with `fused_attention` as stated, or False if unfused kernels are assumed, and with
        the rate of its kernels on the device.
    """
    framework = replace(framework, attention_rate=attention_rate(framework, described))
    if stated is not None:
        return replace(framework, fused_attention=stated)
    if framework.fused_attention and framework.pads > 1 and described.architecture in WITHOUT_FLASH:
        assumed[SCORES] = f"scores and what dropout leaves of them are kept: {described.name} has no fused attention"
        return replace(framework, fused_attention=False, drops=True)
    return framework


def attention_rate(framework: Framework, described: DeviceSheet) -> float:
    """The rate of a framework's fused attention kernels on a device, over that of the kernels that the device's efficiency for
    attention is of. described: the device's data sheet.
    """
    return FLASH_2_RATES.get(described.architecture or "", 1.0) if framework.attention == "flash-2" else 1.0
