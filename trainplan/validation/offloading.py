"""What the words of a row keep on the host: states of the optimizer, parameters, activations."""

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


def hosted(run: Run, megatron: bool, assumed: Assumed) -> frozenset[Hosted]:
    """What is on the host. Where no word says what is: beside recomputation and in Megatron-LM activations, in DeepSpeed the
    optimizer's states, elsewhere parameters with them, as with FSDP's CPUOffload. Parameters are there with the optimizer's
    states."""
    recompute = (run.recompute or "").lower()
    others = "; ".join(text.lower() for text in (run.framework, run.fsdp, run.note) if text)
    named: set[Hosted] = {"parameters", "activations"} if re.search(INFINITY, others) else set()
    kinds: tuple[tuple[tuple[str, ...], Hosted], ...] = (
        (ACTIVATIONS, "activations"),
        (PARAMETERS, "parameters"),
        (OPTIMIZER, "optimizer"),
    )
    for patterns, kind in kinds:
        (said, recompute), (also, others) = _taken(patterns, recompute), _taken(patterns, others)
        if said or also:
            named.add(kind)
    if _taken(ANY, recompute)[0]:
        named.add("activations")
    if _taken(ANY, others)[0] and not named:
        deepspeed = re.search(r"deepspeed|zero", others) is not None
        named.add("activations" if megatron else "optimizer" if deepspeed else "parameters")
    if "parameters" in named:
        named.add("optimizer")
    if named:
        assumed["offload"] = f"{', '.join(sorted(named))} on the host, by copies that nothing hides"
    return frozenset(named)


def _taken(patterns: tuple[str, ...], text: str) -> tuple[bool, str]:
    """Whether a text says one of these, and the text without them; `act_cpu_offload False` and `no offload` do not."""
    said = False
    for pattern in patterns:
        whole = re.compile(
            rf"(\b(?:no|not|non|without|w/o)[ _-]+)?(?:{pattern})(\s*[=:]?\s*(?:false|off|disabled|none|no|0)\b)?",
            re.IGNORECASE,
        )
        said = said or any(not (match[1] or match[2]) for match in whole.finditer(text))
        text = whole.sub(" ", text)
    return said, text
