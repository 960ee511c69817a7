"""Reads the settings of a mixture of experts from DeepSpeed's file: its section `expert_parallel` (AutoEP), which divides the
experts of a Hugging Face model among ranks.

Keys and defaults as of `deepspeed/module_inject/auto_ep_config.py` (0.19, 2026). The file does not say how many experts there
are: the model does. On the devices of a pipeline stage, of which AutoEP knows one, experts are divided by autoep_size and
expert_tensor_parallel_size; what is left has copies or shards of them (`auto_ep_folding.py`).
"""

from __future__ import annotations

from trainplan.execution.launch_files.experts import FIX, ExpertReader, ExpertSettings, RunOfExperts, refuse_illegal
from trainplan.execution.launch_files.run_configuration import KeyReader

ENABLED = "expert_parallel.enabled"
NAMES = {
    "ep": "expert_parallel.autoep_size",
    "etp": "expert_parallel.expert_tensor_parallel_size",
    "tp": "tensor_parallel.autotp_size",
    "cp": "sequence_parallel_size",
    "grouped": "expert_parallel.use_grouped_mm",
    "chosen": "expert_parallel.top_k",
    "groups": "expert_parallel.num_expert_groups",
    "chosen_groups": "expert_parallel.num_limited_groups",
    "score": "expert_parallel.score_func",
    "zero": "zero_optimization.stage",
}
DEFAULTS = {"ep": 1, "etp": 1, "tp": 1, "cp": 1, "grouped": True}
EXCHANGE = "all-to-all"  # DeepSpeed's own, between expert-parallel ranks


def refuse_experts(keys: KeyReader) -> None:
    """Raise `RunOfExperts`, with all that was read of it, if a DeepSpeed file turns its expert parallelism on; do nothing
    otherwise. keys: gives the values of the file's keys, and records which keys have been read. Raises InputError for values
    that DeepSpeed refuses."""
    if not keys.flag(ENABLED, False):
        return
    reader = ExpertReader(keys, NAMES, DEFAULTS)
    zero = keys.values.get(NAMES["zero"])
    score = reader.text("score")
    settings = ExpertSettings(
        where=keys.where, tool="DeepSpeed", chosen=reader.whole("chosen"), groups=reader.whole("groups"),
        chosen_groups=reader.whole("chosen_groups"), score=None if score == "auto" else score,
        tp=reader.whole("tp", 0) or 1, cp=reader.whole("cp") or 1, ep=reader.whole("ep") or 1, etp=reader.whole("etp") or 1,
        grouped=reader.flag("grouped"), dispatcher=EXCHANGE, zero=zero if isinstance(zero, int) else None, taken=reader.taken(),
    )  # fmt: skip
    refuse_illegal(settings, reader)
    problem = f"is true: a mixture of experts, read as {settings.layout}"
    raise RunOfExperts(keys.where, keys.called.get(ENABLED, ENABLED), problem, FIX, settings)
