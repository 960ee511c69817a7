"""Environment variables by which Transformer Engine chooses the attention kernel in runs of Megatron-LM.

Up to core 0.10 these variables alone choose. From core 0.11 on (2025) `--attention-backend` does, and Megatron does not start
if a variable contradicts it (`_set_attention_backend` of `megatron/core/models/common/language_module`).
"""

from __future__ import annotations

from trainplan.execution.launch_files.run_configuration import KeyReader

ATTENTION = ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN")
# What each backend wants of these three.
WANTED = {"auto": "111", "flash": "100", "fused": "010", "unfused": "001", "local": "000"}


def refuse_environment(keys: KeyReader, argument: str, backend: str) -> None:
    """Check that Transformer Engine's environment variables do not contradict the attention backend, since Megatron-LM would
    not start. keys: the run's arguments, among which are the variables. argument: the argument or field that sets the
    backend, for the message. backend: its value: auto, flash, fused, unfused or local. Raises InputError if they contradict
    it."""
    given = {name: str(keys.get(name)) for name in ATTENTION if name in keys.values and name not in keys.ignored}
    name = next((name for name in given if given[name] != _wanted(backend)[name]), None)
    if name is None:
        return
    works = next((candidate for candidate in WANTED if given.items() <= _wanted(candidate).items()), "auto")
    fix = f"give {argument} {works} in its place" if works != "auto" else "unset it"
    kernels = "eager" if works in ("unfused", "local") else "flash"
    ignored = " ".join(f"--ignore {variable}" for variable in given)
    raise keys.error(
        name,
        f"is {given[name]!r}, and {argument} {backend} goes with {_wanted(backend)[name]}: core 0.11 and later do not start "
        "so, and earlier ones choose the attention by it",
        f"{fix}; or, of an earlier core, {ignored} --attention {kernels}",
    )


def _wanted(backend: str) -> dict[str, str]:
    """The values that an attention backend requires of Transformer Engine's environment variables: for flash,
    {"NVTE_FLASH_ATTN": "1", "NVTE_FUSED_ATTN": "0", "NVTE_UNFUSED_ATTN": "0"}."""
    return dict(zip(ATTENTION, WANTED[backend], strict=True))
