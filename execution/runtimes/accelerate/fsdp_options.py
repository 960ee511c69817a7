"""How PyTorch's FSDP shares states, by the options that Accelerate, transformers and axolotl have for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trainplan.execution.launch_files.known_keys import known_keys
from trainplan.execution.launch_files.run_configuration import KeyReader, UserSettings
from trainplan.profiling.base.errors import COMMAND_LINE, InputError, shown

OPTIONS = known_keys(__file__).names  # of FSDP, that change no plan
WRITTEN = frozenset(f"{table}{name}" for table in ("fsdp_config.", "fsdp_config.fsdp_", "fsdp_") for name in OPTIONS)
STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")  # FSDP1's, by number from 1 on
WRAPS = ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")


@dataclass(frozen=True)
class Sharding:
    """How FSDP shards states (parameters, gradients, optimizer) between ranks.

    zero: the equivalent ZeRO stage. copies: number of ranks that hold copies of the same shard; None if it follows from the
    number of devices. shard: number of ranks that shard states; None if it follows from the number of devices. offloads:
    whether states are on the host. recomputes: whether layers are recomputed. within_nodes: whether only the ranks of one node
    shard states among them, when the number of devices of a node is not known.
    """

    zero: Literal[0, 1, 2, 3]
    copies: int | None
    shard: int | None
    offloads: bool = False
    recomputes: bool = False
    within_nodes: bool = False


def fsdp(
    keys: KeyReader,
    find: Callable[[str], str],
    sizes: Mapping[str, int],
    node: int | None,
    version: int,
    notes: list[str],
    wrapped: str,
) -> Sharding:
    """The sharding that the FSDP keys of a file describe.

    find: gives the file's key for an option, such as fsdp_config.fsdp_version for `version`. sizes: sizes of the mesh
    dimensions `dp_replicate` and `dp_shard`, if given. node: devices of a node; None if unknown. version: the version of FSDP
    (1 or 2), if the file gives none. notes: a list to which lines on how the plan differs from the run are appended. wrapped:
    how FSDP divides the model into modules that are gathered one by one, if the file does not say it: TRANSFORMER_BASED_WRAP,
    SIZE_BASED_WRAP or NO_WRAP. keys: gives the values of the file's keys, and records which keys have been read. Raises
    InputError for a key or value that is invalid or that no plan can have.
    """
    shared = _shared(keys, find, sizes, node, keys.whole(find("version"), version) or version, notes)
    key = find("auto_wrap_policy")
    wrap = keys.text(key, wrapped, (*WRAPS, *(name.lower() for name in WRAPS))).upper()
    if wrap == "NO_WRAP" and shared.zero:
        problem = "is 'NO_WRAP'" if keys.values.get(key) else f"is missing, which is NO_WRAP ({keys.defaults})"
        fix = "give TRANSFORMER_BASED_WRAP: plans gather layer by layer, and this gathers the whole model"
        raise keys.error(key, problem, fix)
    if wrap == "SIZE_BASED_WRAP":
        notes.append("modules are wrapped by size: the plan gathers layer by layer")
    return shared


def _shared(
    keys: KeyReader, find: Callable[[str], str], sizes: Mapping[str, int], node: int | None, version: int, notes: list[str]
) -> Sharding:
    """The sharding that the FSDP keys of a file describe, apart from how the model is divided into modules. keys: the file's
    keys. find: gives the file's key for an option. sizes: sizes of the mesh dimensions `dp_replicate` and `dp_shard`, if given.
    node: devices of a node; None if unknown. version: the version of FSDP, 1 or 2. notes: a list to which lines on how the plan
    differs from the run are appended. Raises InputError for a key or value that is invalid or that no plan can have."""
    strategy, reshard = keys.get(find("sharding_strategy")), keys.get(find("reshard_after_forward"))
    offloads = keys.flag(find("offload_params")) or keys.flag(find("cpu_offload"))
    recomputes = keys.flag(find("activation_checkpointing"))
    keys.refuse(find("ignored_modules"), [""], "plans share the states of all modules")
    if keys.flag(find("activation_checkpointing_offload")):
        notes.append("checkpoints on the host (their offload is requested): the plan keeps them on the device; more memory")
    copies: int | None = sizes.get("dp_replicate", 1)
    shard = sizes["dp_shard"] if sizes.get("dp_shard", 1) > 1 else None
    if version == 2:
        whole = keys.flag(find("reshard_after_forward"), True)
        return Sharding(3 if whole else 2, copies, shard, offloads, recomputes)
    key = find("sharding_strategy" if strategy is not None else "reshard_after_forward")
    name = _strategy(keys, key, strategy if strategy is not None else reshard)
    within = name.startswith("HYBRID") and shard is None
    if within:
        copies, shard = None, node
    elif copies == 1:
        copies = None
    zero: Any = 0 if name == "NO_SHARD" else 2 if name in ("SHARD_GRAD_OP", "HYBRID_SHARD_ZERO2") else 3
    return Sharding(zero, copies, shard, offloads, recomputes, within and node is None)


def refuse_denied(recomputes: bool, user: UserSettings, where: str) -> None:
    """Check that the user does not deny by --recompute none the recomputation that a file turns on. recomputes: whether FSDP
    recomputes layers by the file (`activation_checkpointing`). where: the file. user: the settings that the user gives in
    addition to the file. Raises InputError if it is denied."""
    if recomputes and user.recompute == "none":
        problem = f"is none, and {where} has activation_checkpointing: true"
        raise InputError(COMMAND_LINE, "--recompute", problem, "leave it out, or change the file")


def _strategy(keys: KeyReader, key: str, value: Any) -> str:
    """The name of FSDP1's sharding strategy, such as FULL_SHARD. value: its name, or its number from 1 on; None gives
    FULL_SHARD. key: the file's key that holds it, for errors. keys: gives the values of the file's keys, and records which keys
    have been read. Raises InputError for other values, such as a boolean, which belongs to FSDP2."""
    if value is None:
        keys.take(key, STRATEGIES[0])
        return STRATEGIES[0]
    name = STRATEGIES[int(value) - 1] if str(value) in set("12345") else str(value).upper()
    if isinstance(value, bool) or name not in STRATEGIES:
        fix = f"give one of {', '.join(STRATEGIES)}" + (", or fsdp_version: 2" if isinstance(value, bool) else "")
        raise keys.error(key, f"is {shown(value)}", fix)
    return name
