"""Reads the settings of a mixture of experts from torchtitan's files.

Keys as of `torchtitan/config/job_config.py` (0.2, 2025; without expert_tensor_parallel_degree since 2026), sizes as of
`torchtitan/models/*/__init__.py` (February and August 2026). Expert parallelism is inside of data-parallel shards, context and
tensor parallelism; with it, experts have tensor parallelism of their own (1, or that of other units), without it that of other
units (`torchtitan/distributed/parallel_dims.py`). States of experts are sharded among what is left (efsdp), whatever their
stage of ZeRO.
"""

from __future__ import annotations

import re
from typing import Any

from trainplan.execution.launch_files.experts import ExpertReader, ExpertSettings, RunOfExperts, refusal, refuse_illegal
from trainplan.execution.launch_files.run_configuration import KeyReader
from trainplan.execution.runtimes.torchtitan.versions import ATTENTIONS, MIXTURES

NAMES = {
    "experts": "model.flavor",
    "tp": "parallelism.tensor_parallel_degree",
    "cp": "parallelism.context_parallel_degree",
    "pp": "parallelism.pipeline_parallel_degree",
    "ep": "parallelism.expert_parallel_degree",
    "etp": "parallelism.expert_tensor_parallel_degree",
    "dispatcher": "parallelism.expert_parallel_comm_backend",
    "forced_balance": "training.debug_moe_force_load_balance",
}
DISPATCHERS = ("standard", "deepep", "hybridep", "minimal_async_ep")
# Flavours by model: layers, hidden size, inner size of dense layers, of an expert and of shared experts, experts, and how many
# a token is sent to; groups of experts, and how many a token may be sent to; None where a flavour computes it.
SIZES: dict[str, tuple[int, int, int | None, int | None, int | None, int, int]] = {
    "deepseek_v3-16B": (27, 2048, 10944, 1408, 2816, 64, 6),
    "deepseek_v3-236B": (60, 5120, 12288, 1536, 3072, 160, 6),
    "deepseek_v3-671B": (61, 7168, 18432, 2048, 2048, 256, 8),
    "qwen3-30B-A3B": (48, 2048, None, 768, None, 128, 8),
    "qwen3-235B-A22B": (94, 4096, None, 1536, None, 128, 8),
    "gpt_oss-20b": (24, 2880, None, 2880, None, 32, 4),
    "gpt_oss-120b": (36, 2880, None, 2880, None, 128, 4),
    "llama4-17bx16e": (48, 5120, None, None, None, 16, 1),
    "llama4-17bx128e": (48, 5120, None, None, None, 128, 1),
}
DENSE_FIRST = {"deepseek_v3-16B": 1, "deepseek_v3-236B": 1, "deepseek_v3-671B": 3}
ALTERNATING = ("llama4-17bx128e",)  # every second layer, from the second on
GROUPS = {"deepseek_v3-236B": (8, 3), "deepseek_v3-671B": (8, 4)}
# Ranks of queries, keys and values; sizes of the parts of a head and of its values.
LATENT = {
    "deepseek_v3-16B": (None, 512, 128, 64, 128),
    "deepseek_v3-236B": (1536, 512, 128, 64, 128),
    "deepseek_v3-671B": (1536, 512, 128, 64, 128),
}


def mixture_of_experts(name: str, flavour: str) -> bool:
    """Whether torchtitan's model of this name and flavour is a mixture of experts: by its name, or by its flavour's."""
    return name in MIXTURES or "moe" in flavour.lower() or re.search(r"-A\d+(\.\d+)?B", flavour) is not None


def refuse_experts(keys: KeyReader, name: str, flavour: str) -> None:
    """Raise `RunOfExperts`, with all that was read of it, if the run's model is a mixture of experts; do nothing for other
    models. name, flavour: of the model, in torchtitan's words. keys: gives the values of the file's keys, and records which
    keys have been read. Raises InputError for degrees that torchtitan refuses."""
    if not mixture_of_experts(name, flavour):
        return
    ends = (flavour.removesuffix(end) for end in (*ATTENTIONS, "_irope") if flavour.endswith(end))
    known = f"{name}-{next(ends, flavour)}"
    problem, fix = f"is {name}, {flavour}: a mixture of experts", "give a dense model: plans do not lay out experts yet"
    if known not in SIZES:
        raise RunOfExperts(keys.where, "model.flavor", problem, fix)
    settings = settings_of(ExpertReader(keys, NAMES, {"tp": 1, "cp": 1, "pp": 1, "ep": 1}), known)
    what = f"{problem} ({settings.experts}, {settings.chosen} a token), read as {settings.layout}"
    raise RunOfExperts(keys.where, refusal(settings, "model.flavor").command_field, what, fix, settings)


def settings_of(reader: ExpertReader, known: str) -> ExpertSettings:
    """The settings of a run of one of torchtitan's mixtures of experts. reader: reads them by torchtitan's keys. known: the
    model's name and flavour, a key of SIZES. Raises InputError for degrees that torchtitan refuses."""
    layers, hidden, dense_inner, expert_inner, shared_inner, experts, chosen = SIZES[known]
    tp, cp, pp, ep = (reader.whole(name) or 1 for name in ("tp", "cp", "pp", "ep"))
    etp = reader.whole("etp")
    if ep > 1 and etp not in (None, 1, tp):
        raise reader.error("etp", f"is {etp}, with tensor_parallel_degree {tp}", f"give 1 or {tp}: torchtitan has no other")
    groups, chosen_groups = GROUPS.get(known, (None, None))
    dispatcher = reader.text("dispatcher") or "standard"
    if dispatcher not in DISPATCHERS:
        raise reader.error("dispatcher", f"is {dispatcher!r}", f"give one of {', '.join(DISPATCHERS)}")
    dense = DENSE_FIRST.get(known, 0)
    of_experts = (layer % 2 == 1 if known in ALTERNATING else layer >= dense for layer in range(layers))
    latent: dict[str, Any] = {}
    if known in LATENT:
        ranks = dict(zip(("query_rank", "key_value_rank", "head", "rotary_head", "value_head"), LATENT[known], strict=True))
        latent = {"latent": True, **ranks}
    settings = ExpertSettings(
        where=reader.keys.where, tool="torchtitan", experts=experts, chosen=chosen, groups=groups, chosen_groups=chosen_groups,
        layers=layers, layers_of_experts=tuple(of_experts), hidden=hidden, dense_inner=dense_inner, expert_inner=expert_inner,
        shared_inner=shared_inner, tp=tp, cp=cp, pp=pp, ep=ep, etp=(etp or 1) if ep > 1 else tp, dispatcher=dispatcher,
        forced_balance=reader.flag("forced_balance"), grouped=True, taken=reader.taken(), **latent,
    )  # fmt: skip
    refuse_illegal(settings, reader)
    return settings
