"""The framework of a measured run: which one it names, and what its note, precision and year say of it."""

from __future__ import annotations

import re
from dataclasses import replace

from trainplan.formulations.costs.overlapped.frameworks import (
    BRIDGE,
    COMPILED,
    COMPOSER,
    DEEPSPEED,
    FSDP,
    FUSED_LOGIT_BYTES,
    FUSED_LOSS_PASSES,
    INTERNEVO,
    ISSUE_NS,
    LOCAL_BYTES,
    MEGATRON,
    MEGATRON_2022,
    NANOTRON,
    NEMO,
    OVERLAPPED,
    TE_LOSS_PASSES,
    TESTS_ENDS_NS,
    TORCHTITAN,
    TORCHTITAN_COMPILED,
    XLA,
)
from trainplan.formulations.costs.overlapped.layout import Framework
from trainplan.profiling.models.optimizers import OPTIMIZERS
from trainplan.validation.memory_words import LOSS_COMPILED_SINCE, with_memory
from trainplan.validation.rows import Run
from trainplan.validation.words import FUNCTIONAL_TEST, denied, flag, optimizer_of, stated_stage

FUSED_SINCE = 2023  # FlashAttention is of May 2022 (Dao et al.); frameworks have it a year later
UNFUSED = (
    r"(?:unfused|naive attention|eager[ _-]att\w*|attention[ _-]unfused"
    r"|(?:attn|attention)(?:[ _-](?:implementation|backend|impl))?[\s=:]+[\"\']?(?:eager|unfused|local))"
)
FLOAT8_SHARDS = r"(?:enable[_ -])?(?:fsdp[_ -])?(?:float8|fp8)[_ -](?:all[_ -]?gathers?|param[_ -]gather)"
OVERLAP_COMM = r"overlap[_ -]comm"  # DeepSpeed's reduction of gradients in parallel with backward passes
FUSED_LOSS = r"cross[_ -]entropy[_ -](?:loss[_ -])?fusion(?![_ -]impl)"
TE_LOSS = r"cross[_ -]entropy[_ -]fusion[_ -]impl[\s=:\"']+te\b"
OTHER_ATTENTION = r"(?:cudnn[_ -]?(?:att\w*|sdpa)?|fa[34]|flash[_ -]?att\w*[_ -]?v?[34]|te[_ -]att\w*)"  # as fast as cuDNN's
EIGHT_BIT = r"(?:8[ _-]?bit|int8|fp8)"
# Frameworks whose models are transformers' modules.
MODULES = re.compile(r"accelerate|transformers|hugging ?face|\btrl\b|axolotl|llama[ _-]?factory|peft|deepspeed")
KERNELS = r"liger\w*"  # whose operators are single kernels
TORCH = re.compile(
    r"fsdp|torch|accelerate|transformers|hugging ?face|trl|axolotl|litgpt|lightning|llm-foundry|automodel|fairscale"
)

JAX = re.compile(r"jax|xla|maxtext|axlearn|paxml")
# Names of frameworks whose settings are known, or are those of a library that they are made with.
NAMED = re.compile(rf"megatron|mcore|nemo|intern(?:evo|lm)|nanotron|neox|composer|{MODULES.pattern}|{TORCH.pattern}")
KNOWN = (
    "Megatron-LM, Megatron-Core, NeMo, Megatron-Bridge, torchtitan, PyTorch FSDP, DeepSpeed, Accelerate, Composer, GPT-NeoX, "
    "nanotron, InternEvo"
)


def framework_of(run: Run) -> Framework:
    """The cost model's settings for the framework of a measured run: those of the framework that it names, with fields replaced
    where the run's note (free text), precision or year states or implies another value, such as for fused attention, overlap of
    communication, or the dtype of gradients.

    Before 2023 (FUSED_SINCE) no framework had fused attention, unless the note states it.
    """
    name, note, precision = (run.framework or "").lower(), (run.note or "").lower(), (run.precision or "").lower()
    chosen = _named_framework(run, name, note)
    if MODULES.search(name) and chosen.pads == 1:
        compiles, liger = chosen.name == COMPILED.name, bool(flag(f"{name} {note}", KERNELS))
        passes = COMPILED.memory_passes if liger else chosen.memory_passes
        chosen = replace(chosen, composed=not compiles and not liger, memory_passes=passes)
    fused, year = stated_attention(note), year_of(run)
    if (year and year < FUSED_SINCE and not fused) or fused is False:
        chosen = replace(chosen, fused_attention=False)
    elif fused:
        chosen = replace(chosen, fused_attention=True)
    chosen = _with_overlap(chosen, run, note)
    if gradient_bytes := _gradient_bytes(note):
        chosen = replace(chosen, gradient_bytes=gradient_bytes)
    if chosen.pads > 1 and re.search(r"fp16|(?<!b)float16|half", precision) and "bf16" not in (run.precision or ""):
        chosen = replace(chosen, gradient_bytes=2, copied_bytes=4)  # gradients in the model's dtype, copied for the optimizer
    chosen = _with_states(chosen, f"{note} {precision}")
    chosen = _with_loss(chosen, note)
    chosen = _with_bits(chosen, f"{note} {precision}")
    if FUNCTIONAL_TEST in note:
        chosen = _of_functional_test(chosen, run, note)
    if "launch-bound" in note:
        chosen = replace(chosen, issue_ns=0 if captured(run) else ISSUE_NS)
    if re.search(r"\bmp pure\b", note):  # Composer's mixed precision with gradients reduced in the parameters' dtype
        chosen = replace(chosen, gradient_bytes=2)
    return with_memory(chosen, run, year)


def _named_framework(run: Run, name: str, note: str) -> Framework:
    """The cost model's settings for the framework that a measured run names, before changes by the flags in the run's note.

    An unknown framework gets the settings of PyTorch FSDP or, if the run has tensor- or pipeline-parallel ranks or ZeRO-1,
    which FSDP lacks, those of Megatron-Core with gradient reduction and parameter gathering overlapped. If the run names no
    framework, ZeRO stages 2 and 3, which Megatron-Core does not have by itself, mean FSDP. name, note: the run's framework
    and its note (free text), in lower case.
    """
    year, compiled = year_of(run), flag(note, r"compiled?")
    stage = stated_stage(run)
    if re.search(r"megatron[ _-]?bridge", name):
        return BRIDGE
    if "nemo" in name and "automodel" not in name:
        return NEMO
    if "megatron-core" in name or "mcore" in name:
        return MEGATRON
    if "megatron" in name:
        return MEGATRON_2022 if year and year <= 2022 else MEGATRON
    if "internevo" in name or "internlm" in name:
        return INTERNEVO
    if "nanotron" in name:
        return NANOTRON
    if "neox" in name:
        return replace(MEGATRON, overlaps_messages=False, copies_alongside=False)
    if "deepspeed" in name:
        return DEEPSPEED
    if "torchtitan" in name:
        if not compiled or "eager" in note:
            return TORCHTITAN
        early = year is not None and year < LOSS_COMPILED_SINCE
        return replace(TORCHTITAN_COMPILED, loss_passes=FSDP.loss_passes) if early else TORCHTITAN_COMPILED
    if JAX.search(name):
        return XLA
    if "composer" in name:
        return COMPOSER
    if TORCH.search(name) or (stage > 1 and not name) or ((run.tp or 1) * (run.pp or 1) == 1 and stage != 1):
        return COMPILED if compiled and "eager" not in note else FSDP
    return OVERLAPPED


def _with_overlap(framework: Framework, run: Run, note: str) -> Framework:
    """Copy the settings of a framework, with the kinds of overlap of communication with computation that flags in a run's note
    (free text) turn on or off. With the optimizer Muon, Megatron-Core by default overlaps neither the reduction of gradients
    nor the gathering of parameters. note: the run's note in lower case.
    """
    if framework.pads > 1 and OPTIMIZERS[optimizer_of(run)].whole_matrices:
        framework = replace(framework, overlaps_gradients=False, overlaps_parameters=False)
    reduces, gathers = stated_overlap(run, note)
    if reduces is not None:
        framework = replace(framework, overlaps_gradients=reduces)
    if gathers is not None:
        framework = replace(framework, overlaps_parameters=gathers)
    if framework.name == DEEPSPEED.name and flag(note, OVERLAP_COMM) is False:
        framework = replace(framework, overlaps_gradients=False)  # `average_tensor` then reduces on the stream of the passes
    if framework.tensor_overlap and re.search(r"fp4|float4", (run.precision or "").lower()):
        framework = replace(framework, tensor_overlap=0.0)  # off in all of Megatron-Bridge's recipes of NVFP4
    if (tensor := flag(note, r"(?:tp[_ -]comm[_ -]overlap|async[_ -]?tp|asynchronous[_ -]tp)")) is not None:
        framework = replace(framework, tensor_overlap=NEMO.tensor_overlap if tensor else 0.0)
    return framework


def stated_overlap(run: Run, note: str) -> tuple[bool | None, bool | None]:
    """Whether a measured run reduces gradients alongside its backward passes, and gathers updated parameters alongside its
    forward passes, as its fields or flags of its note say; None for what it does not state. note: its note in lower case.
    """
    reduces, gathers = run.overlap_grad_reduce, run.overlap_param_gather
    return (
        flag(note, "overlap[_ -]grad[_ -]reduce") if reduces is None else reduces,
        flag(note, "overlap[_ -]param[_ -]gather") if gathers is None else gathers,
    )


def overlap_left_open(run: Run, framework: Framework, zero: int) -> str:
    """A text for users on the overlap that is taken where a measured run of a framework that has flags for it does not state
    it, with the fields to give; empty if it states all that its ZeRO stage needs. framework: the settings for the run's
    framework, with the overlap that is taken. zero: the ZeRO stage.
    """
    deepspeed = framework.name == DEEPSPEED.name
    if framework.pads == 1 and not deepspeed:  # others have no such flags
        return ""
    texts, fields = [], []
    note = (run.note or "").lower()
    reduces, gathers = stated_overlap(run, note)
    if deepspeed and (zero == 3 or flag(note, "overlap[_ -]comm")):
        return ""
    if reduces is None:
        texts.append(f"gradients reduced {'alongside' if framework.overlaps_gradients else 'after'} backward passes")
        fields.append("overlap_grad_reduce")
    if gathers is None and zero and not deepspeed:
        texts.append(f"parameters gathered {'alongside' if framework.overlaps_parameters else 'before'} forward passes")
        fields.append("overlap_param_gather")
    return f"{' and '.join(texts)}; give {' and '.join(fields)}" if texts else ""


def taken_for(run: Run, framework: Framework) -> str:
    """A text for users on the framework that a measured run is predicted as, if it is not the one that the run names; empty if
    it is, or if the run names none. framework: the settings with which the run is predicted.
    """
    name = (run.framework or "").lower()
    if not name or NAMED.search(name):
        return ""
    if JAX.search(name):
        return f"{framework.name}: how XLA orders collectives alongside kernels is not known"
    return f"{framework.name}: it is none of {KNOWN}, JAX"


def captured(run: Run) -> bool:
    """Whether a measured run captures whole iterations in CUDA graphs, so that the host launches no kernel by itself."""
    words = (run.cuda_graph or "").lower()
    return not denied(words) and re.search(r"full|true|yes|on", words) is not None


def _with_bits(framework: Framework, text: str) -> Framework:
    """Copy the settings of a framework, with the kinds of communication in few bits that a text names. torchtitan gathers the
    tokens of tensor-parallel ranks in 8 bits where they are scaled per tensor (`enable_float8_tensorwise_tp` in
    `models/llama3/parallelize.py`), not per row. text: a measured run's note and precision in lower case.
    """
    if (gathers := flag(text, FLOAT8_SHARDS)) is not None:
        framework = replace(framework, shards_in_bits=gathers)
    if framework.gathers_in_bits and framework.pads == 1 and re.search(r"row[_ -]?wise", text):
        framework = replace(framework, gathers_in_bits=False)
    if framework.attention == "flash-2" and flag(text, OTHER_ATTENTION):
        framework = replace(framework, attention="cudnn")
    return framework


def _with_loss(framework: Framework, note: str) -> Framework:
    """Copy the settings of a framework, with the kernels of the loss that a run's note names: fused ones of Megatron-Core or of
    Transformer Engine, or none where it says that the loss is not fused. note: free text in lower case."""
    fused = flag(note, FUSED_LOSS)
    if fused and re.search(TE_LOSS, note):
        return replace(framework, loss_passes=TE_LOSS_PASSES)
    if fused:
        return replace(framework, logit_bytes=FUSED_LOGIT_BYTES, loss_passes=FUSED_LOSS_PASSES)
    return replace(framework, loss_passes=MEGATRON.loss_passes) if fused is False and framework.pads > 1 else framework


def _of_functional_test(framework: Framework, run: Run, note: str) -> Framework:
    """Copy the settings of a framework, with the values that Megatron-LM's functional tests run it with: GPT with its dropout,
    and fixed times of the host.

    The list of a test's flags does not state which attention it has: it is fused if the test resumes from a checkpoint,
    except in one older container. run: a measured run, maybe such a test. note: its note in lower case.
    """
    resumes = ("ckpt-resume" in note or "resume" in run.model) and "dracooci" not in note
    latent = "multi-latent-attention" in note  # whose queries are wider than its values: no deterministic fused kernel has them
    unfused = ("attention-softmax-in-fp32" in note and not resumes) or "transformer-impl local" in note or latent
    fixed_bytes = framework.fixed_bytes + LOCAL_BYTES * ("transformer-impl local" in note)
    return replace(framework, drops=True, fused_attention=not unfused, fixed_bytes=fixed_bytes, ends_ns=TESTS_ENDS_NS)


def year_of(run: Run) -> int | None:
    """The year of a measured run's date. A date that is the version of a container, such as 24.07, gives the container's year,
    2024. None if the run has no date.
    """
    date = run.date or ""
    if year := re.search(r"20\d\d", date):
        return int(year[0])
    container = re.match(r"(\d\d)\.\d\d\b", date)
    return 2000 + int(container[1]) if container else None


def stated_attention(note: str) -> bool | None:
    """Whether attention's kernels are fused according to a run's note (free text): True or False if the note states it, None
    if it does not.
    """
    if flag(note, UNFUSED):
        return False
    return flag(note, r"(?:sdpa|flash(?:[ _-]?att\w*)?(?:[ _-]?v?[1-4])?|fa[2-4]|xformers|memory[ _-]efficient attention)")


def _with_states(framework: Framework, text: str) -> Framework:
    """Copy the settings of a framework, with the optimizer states that a text names: moments in 8 bits or in bfloat16; the
    states of SGD (with or without momentum), Lion, RMSprop, Adagrad or Adafactor (rows and columns only); or all states in
    bfloat16 without a copy in fp32. text: a measured run's note and precision in lower case.
    """
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
    """Bytes per element of the gradients that are kept and reduced, if the note (free text) of a measured run states their
    dtype, such as `grad-reduce-in-bf16`, `grad_reduce_in_fp32: false`, `gradient dtype bf16` or `fp32 gradients`; None if it
    does not.
    """
    if match := re.search(
        r"grad(?:ient)?s?[_ -](?:reduce[_ -]|accumulation[_ -])?(?:in[_ -]|d?type[\s=:]+)(fp32|float32|bf16|bfloat16)", note
    ):
        on = flag(note, re.escape(match[0]))
        return 4 if ("32" in match[1]) == (on is not False) else 2
    match = re.search(r"\b(fp32|float32|bf16|bfloat16)[_ -]grad(?:ient)?s\b", note)
    return None if match is None else 4 if "32" in match[1] else 2
