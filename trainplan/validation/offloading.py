"""The model states and activations that a run keeps on the host, by its words."""

from __future__ import annotations

import re

from trainplan.formulations.costs.overlapped.layout import Hosted
from trainplan.validation.rows import Run
from trainplan.validation.words import Assumed

OFFLOAD = r"off[_ -]?load\w*"
ACTIVATIONS = (
    rf"\bact(?:ivation)?s?[_ -]+(?:cpu[_ -]+)?{OFFLOAD}",
    rf"{OFFLOAD}[_ -]+(?:of[_ -]+)?(?:act(?:ivation)?s?\b|checkpoints)",
    r"cpu[_ -]+checkpointing",
    r"\bunsloth\b",
)
PARAMETERS = (rf"\bparam(?:eter)?s?[_ -]+(?:cpu[_ -]+)?{OFFLOAD}", rf"{OFFLOAD}[_ -]+param\w*")
OPTIMIZER = (
    rf"\boptim(?:izer)?s?[_ -]+(?:states?[_ -]+)?(?:cpu[_ -]+)?{OFFLOAD}",
    rf"{OFFLOAD}[_ -]+(?:the[_ -]+|of[_ -]+)?(?:adam|optim)\w*",
    rf"zero[_ -]?{OFFLOAD}",
    r"(?:deepspeed)?cpu[_ -]?adam",
)
INFINITY = r"zero[_ -]?infinity"  # Rajbhandari et al. (2021): all three
ANY = (rf"(?:\bcpu[_ -]*)?{OFFLOAD}", r"\bnvme\b")


HOSTED_LAYERS = re.compile(
    rf"\bact(?:ivation)?s?[_ -]+(?:cpu[_ -]+)?{OFFLOAD} of (\d+) layers|cpu[_ -]offloading[_ -]num[_ -]layers[ =:]+(\d+)"
)


def hosted_layers(run: Run) -> int | None:
    """The number of a stage's transformer layers whose activations a measured run keeps in the host's memory, if it states it:
    in its field `offload_layers`, or in its note as in `activation offload of 40 layers` or `cpu-offloading-num-layers 40`;
    None if it does not.
    """
    if run.offload_layers is not None:
        return run.offload_layers
    match = HOSTED_LAYERS.search((run.note or "").lower())
    return None if match is None else int(match[1] or match[2])


def hosted(run: Run, megatron: bool, assumed: Assumed) -> frozenset[Hosted]:
    """The kinds of data (activations, parameters, optimizer states) that a measured run keeps in the host's memory, according
    to its words on offloading; if parameters are on the host, the optimizer's states are, too.

    If no word states which kind, it is activations if the word is about recomputation or the framework is Megatron-LM, the
    optimizer's states in DeepSpeed, and parameters and optimizer's states elsewhere, as with FSDP's CPUOffload.

    Args:
        run: a measured run, as read from its file.
        megatron: whether its framework is a version of Megatron.
        assumed: assumptions as texts by name, written to: gets an entry if something is on the host.
    """
    recompute = (run.recompute or "").lower()
    others = "; ".join(text.lower() for text in (run.framework, run.fsdp, run.note) if text)
    named: set[Hosted] = {"parameters", "activations"} if re.search(INFINITY, others) else set()
    kinds: tuple[tuple[tuple[str, ...], Hosted], ...] = (
        (ACTIVATIONS, "activations"),
        (PARAMETERS, "parameters"),
        (OPTIMIZER, "optimizer"),
    )
    for patterns, kind in kinds:
        (in_recompute, recompute), (in_others, others) = _taken(patterns, recompute), _taken(patterns, others)
        if in_recompute or in_others:
            named.add(kind)
    if run.offload_layers or _taken(ANY, recompute)[0]:
        named.add("activations")
    if _taken(ANY, others)[0] and not named:
        deepspeed = re.search(r"deepspeed|zero", others) is not None
        named.add("activations" if megatron else "optimizer" if deepspeed else "parameters")
    if "parameters" in named:
        named.add("optimizer")
    if named:
        hidden = "by copies alongside kernels" if megatron and named == {"activations"} else "by copies that nothing hides"
        assumed["offload"] = f"{', '.join(sorted(named))} on the host, {hidden}"
    return frozenset(named)


def _taken(patterns: tuple[str, ...], text: str) -> tuple[bool, str]:
    """Search a text for patterns (regular expressions). Returns whether one of them matches without a negation such as `no
    offload` or `act_cpu_offload False`, and the text with all matches removed.
    """
    found = False
    for pattern in patterns:
        whole = re.compile(
            rf"(\b(?:no|not|non|without|w/o)[ _-]+)?(?:{pattern})(\s*[=:]?\s*(?:false|off|disabled|none|no|0)\b)?",
            re.IGNORECASE,
        )
        found = found or any(not (match[1] or match[2]) for match in whole.finditer(text))
        text = whole.sub(" ", text)
    return found, text
