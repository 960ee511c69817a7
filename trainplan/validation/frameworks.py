"""What frameworks do where a row does not say: overlap, padding, fused kernels.

- Megatron-LM of 2022, by Korthikanti et al. (2022): unfused attention with dropout; backward all-reduces run beside the
  gradients of weights.
- Megatron-Core, by the defaults of its arguments: vocabularies padded to 128 for each tensor-parallel rank, gradients in fp32,
  messages of interleaved stages beside passes; reductions and gathering overlap by flags, with Muon (core 0.16) neither.
- NeMo, by its recipes: distributed optimizer with both overlaps; tensor-parallel overlap with sequence parallelism; gradients
  in bf16.
- PyTorch FSDP (torchtitan, Composer): gathers one block ahead, and reduces gradients behind the backward pass, in fp32 or in
  the parameters' dtype.
"""

from __future__ import annotations

import re
from dataclasses import replace

from trainplan.formulations.costs.overlapped.frameworks import MEGATRON, OVERLAPPED
from trainplan.formulations.costs.overlapped.layout import Framework
from trainplan.validation.rows import Run
from trainplan.validation.words import FUNCTIONAL_TEST, flag, optimizer_of, stage_said

MEGATRON_2022 = replace(MEGATRON, name="Megatron-LM of 2022", overlaps_messages=False, fused_attention=False, drops=True)
LOCAL_BYTES = 64 * 2**20  # more that Megatron-Core's own layers take without Transformer Engine's
# Of Megatron-LM's functional tests, whose layers are so small that a step takes what the host does: 10 % off in the mean of the
# 20 that are shared, by these two numbers.
ISSUE_NS, TESTS_ENDS_NS = 2_600_000, 20_000_000
NEMO = replace(MEGATRON, name="NeMo", overlaps_gradients=True, overlaps_parameters=True, tensor_overlap=0.7, gradient_bytes=2)
# Of a logit in torch's loss: log-softmax and its two gradients in fp32 (tests/validation/test_trainers_memory.py).
FSDP = Framework("PyTorch FSDP", overlaps_gradients=True, overlaps_parameters=True, memory_passes=2.0, logit_bytes=12)
COMPOSER = replace(FSDP, name="Composer", loss_passes=1.5, logit_bytes=4)  # with its fused cross-entropy
COMPILED = replace(FSDP, name="PyTorch FSDP, compiled", memory_passes=1.0, loss_passes=1.5, logit_bytes=8)
# Updated shards are broadcast by each rank in turn.
INTERNEVO = replace(
    FSDP,
    name="InternEvo",
    memory_passes=1.5,
    gradient_bytes=2,
    overlaps_parameters=False,
    broadcast_ns=3_000_000,
    logit_bytes=8,
)
# Gradients are summed and sent in the model's dtype (`get_data_types` of `runtime/engine.py`).
DEEPSPEED = replace(FSDP, name="DeepSpeed", memory_passes=1.5, gradient_bytes=2, shards_halves=True, composed=True)

FUSED_SINCE = 2023  # FlashAttention is of May 2022 (Dao et al.); frameworks have it a year later
UNFUSED = (
    r"(?:unfused|naive attention|eager[ _-]att\w*|attention[ _-]unfused"
    r"|(?:attn|attention)(?:[ _-](?:implementation|backend|impl))?[\s=:]+[\"\']?(?:eager|unfused|local))"
)
EIGHT_BIT = r"(?:8[ _-]?bit|int8|fp8)"
# Whose models are transformers' modules.
MODULES = re.compile(r"accelerate|transformers|hugging ?face|\btrl\b|axolotl|llama[ _-]?factory|peft|deepspeed")
KERNELS = r"liger\w*"  # which are of one kernel
TORCH = re.compile(
    r"fsdp|torch|accelerate|transformers|hugging ?face|trl|axolotl|litgpt|lightning|llm-foundry|automodel|fairscale"
)


def framework_of(run: Run) -> Framework:
    """The framework of a row, with the flags of its note. Unknown ones overlap as PyTorch FSDP does, or, with tensor- or
    pipeline-parallel ranks or ZeRO-1, which FSDP does not have, as Megatron-Core with both flags; where none is named, the
    stages 2 and 3, which Megatron-Core does not have by itself, are FSDP's. Before FUSED_SINCE none had fused attention."""
    name, note = (run.framework or "").lower(), (run.note or "").lower()
    year, compiled = year_of(run), flag(note, r"compiled?")
    stage = stage_said(run)
    if ("nemo" in name and "automodel" not in name) or re.search(r"megatron[ _-]?bridge", name):
        chosen = NEMO
    elif "megatron-core" in name or "mcore" in name:
        chosen = MEGATRON
    elif "megatron" in name:
        chosen = MEGATRON_2022 if year and year <= 2022 else MEGATRON
    elif "internevo" in name or "internlm" in name:
        chosen = INTERNEVO
    elif "neox" in name:
        chosen = replace(MEGATRON, overlaps_messages=False)
    elif "deepspeed" in name:
        chosen = DEEPSPEED
    elif "torchtitan" in name:
        chosen = COMPILED if compiled and "eager" not in note else FSDP
    elif re.search(r"jax|xla|maxtext|axlearn|paxml", name):
        chosen = COMPILED
    elif "composer" in name:
        chosen = COMPOSER
    elif TORCH.search(name) or (stage > 1 and not name) or ((run.tp or 1) * (run.pp or 1) == 1 and stage != 1):
        chosen = COMPILED if compiled and "eager" not in note else FSDP
    else:
        chosen = OVERLAPPED
    if MODULES.search(name) and chosen.pads == 1:
        compiles = chosen.name == COMPILED.name
        chosen = replace(chosen, composed=not compiles and not flag(f"{name} {note}", KERNELS))
    fused = attention_said(note)
    if (year and year < FUSED_SINCE and not fused) or fused is False:
        chosen = replace(chosen, fused_attention=False)
    elif fused:
        chosen = replace(chosen, fused_attention=True)
    if chosen.pads > 1 and optimizer_of(run) == "muon":
        chosen = replace(chosen, overlaps_gradients=False, overlaps_parameters=False)
    if (behind := flag(note, "overlap[_ -]grad[_ -]reduce")) is not None:
        chosen = replace(chosen, overlaps_gradients=behind)
    if (ahead := flag(note, "overlap[_ -]param[_ -]gather")) is not None:
        chosen = replace(chosen, overlaps_parameters=ahead)
    if (beside := flag(note, r"(?:tp[_ -]comm[_ -]overlap|async[_ -]?tp|asynchronous[_ -]tp)")) is not None:
        chosen = replace(chosen, tensor_overlap=NEMO.tensor_overlap if beside else 0.0)
    if gradient_bytes := _gradient_bytes(note):
        chosen = replace(chosen, gradient_bytes=gradient_bytes)
    if (
        chosen.pads > 1
        and re.search(r"fp16|(?<!b)float16|half", (run.precision or "").lower())
        and "bf16" not in (run.precision or "")
    ):
        chosen = replace(chosen, gradient_bytes=2, copied_bytes=4)  # gradients as the model's, copied for the optimizer
    chosen = _with_states(chosen, f"{note} {(run.precision or '').lower()}")
    if "cross-entropy" in note and "fusion" in note:  # a copy in fp32, exponentials and their gradient in one compiled kernel
        chosen = replace(chosen, logit_bytes=14, loss_passes=1.5)
    if FUNCTIONAL_TEST in note:
        # Functional tests train GPT with its dropout. Which attention they ask for their boolean flags do not list: fused where
        # they resume, but in one older container.
        resumes = ("ckpt-resume" in note or "resume" in run.model) and "dracooci" not in note
        unfused = ("attention-softmax-in-fp32" in note and not resumes) or "transformer-impl local" in note
        fixed = chosen.fixed_bytes + LOCAL_BYTES * ("transformer-impl local" in note)
        chosen = replace(chosen, drops=True, fused_attention=not unfused, fixed_bytes=fixed, ends_ns=TESTS_ENDS_NS)
    if "launch-bound" in note:
        chosen = replace(chosen, issue_ns=ISSUE_NS)
    if re.search(r"\bmp pure\b", note):  # Composer's mixed precision with gradients reduced in the parameters' dtype
        chosen = replace(chosen, gradient_bytes=2)
    return chosen


def year_of(run: Run) -> int | None:
    """The year of a row: of a date, or of a container such as 24.07."""
    date = run.date or ""
    if year := re.search(r"20\d\d", date):
        return int(year[0])
    container = re.match(r"(\d\d)\.\d\d\b", date)
    return 2000 + int(container[1]) if container else None


def attention_said(note: str) -> bool | None:
    """Whether attention's kernels are fused, where a note says so."""
    if flag(note, UNFUSED):
        return False
    return flag(note, r"(?:sdpa|flash(?:[ _-]?att\w*)?(?:[ _-]?v?[1-4])?|fa[2-4]|xformers|memory[ _-]efficient attention)")


def _with_states(framework: Framework, text: str) -> Framework:
    """The framework with the optimizer's states that words name: moments in 8 bits or in bfloat16, those of SGD (with momentum,
    or none), Lion, RMSprop, Adagrad or Adafactor (rows and columns alone); all in bfloat16, without a copy in fp32."""
    if flag(
        text, r"(?:pure[_ -]bf16|bf16[_ -]true|bf16[_ -]only|full[_ -]bf16|(?:no|without|w/o)[ _-](?:fp32[ _-])?master\w*)"
    ):
        framework = replace(framework, master_bytes=0, moments_bytes=4, gradient_bytes=2)
    if flag(
        text,
        rf"(?:{EIGHT_BIT}[ _-]?(?:paged[ _-])?(?:adam|optim)\w*|(?:paged_)?(?:adam|optim)\w*[ _-]*\(?{EIGHT_BIT}|adamw?8bit)",
    ):
        return replace(framework, moments_bytes=2)
    if flag(text, r"(?:(?:bf16|bfloat16)[ _-](?:optim\w*(?:[ _-]states?)?|adam\w*|moments)|optim\w*(?:[ _-]states?)? in bf16)"):
        return replace(framework, moments_bytes=4)
    if flag(text, rf"(?:{EIGHT_BIT}[ _-]?(?:paged[ _-])?lion|(?:paged[_ -])?lion[ _-]*\(?{EIGHT_BIT})"):
        return replace(framework, moments_bytes=1)
    if flag(text, r"sgd,? (?:without|no|w/o) momentum"):
        return replace(framework, moments_bytes=0)
    if flag(text, r"(?:sgd|(?:paged[_ -])?lion(?:[_ -]32bit)?|rms[_ -]?prop|adagrad)"):
        return replace(framework, moments_bytes=4)
    return replace(framework, moments_bytes=0) if flag(text, "adafactor") else framework


def _gradient_bytes(note: str) -> int | None:
    """Bytes of an element of the gradients that are kept and reduced, where a note says them: `grad-reduce-in-bf16`,
    `grad_reduce_in_fp32: false`, `gradient dtype bf16`, `fp32 gradients`."""
    if said := re.search(
        r"grad(?:ient)?s?[_ -](?:reduce[_ -]|accumulation[_ -])?(?:in[_ -]|d?type[\s=:]+)(fp32|float32|bf16|bfloat16)", note
    ):
        on = flag(note, re.escape(said[0]))
        return 4 if ("32" in said[1]) == (on is not False) else 2
    said = re.search(r"\b(fp32|float32|bf16|bfloat16)[_ -]grad(?:ient)?s\b", note)
    return None if said is None else 4 if "32" in said[1] else 2
