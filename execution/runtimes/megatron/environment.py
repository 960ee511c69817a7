"""Variables of the environment by which Transformer Engine chooses how Megatron-LM's attention runs.

Up to core 0.10 these variables alone choose. From core 0.11 on (2025) `--attention-backend` does, and Megatron does not start
where a variable says otherwise (`_set_attention_backend` of `megatron/core/models/common/language_module`).
"""

from __future__ import annotations

from trainplan.execution.launch_files.run_configuration import Keys
from trainplan.profiling.models.families.fields import names

ATTENTION = ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN")
# What each backend wants of these three.
WANTED = {"auto": "111", "flash": "100", "fused": "010", "unfused": "001", "local": "000"}
# Variables that bear on time alone, on what plans have not (8-bit attention, states on the host), or on the build.
HARMLESS = names(
    """
    NVTE_FLASH_ATTN_V2 NVTE_FLASH_ATTN_V3 NVTE_FLASH_ATTN_V4 NVTE_ALLOW_NONDETERMINISTIC_ALGO NVTE_FWD_LAYERNORM_SM_MARGIN
    NVTE_BWD_LAYERNORM_SM_MARGIN NVTE_INF_LAYERNORM_SM_MARGIN NVTE_NORM_FWD_USE_CUDNN NVTE_NORM_BWD_USE_CUDNN
    NVTE_BATCH_MHA_P2P_COMM NVTE_APPLY_QK_LAYER_SCALING NVTE_FP8_DPA_BWD NVTE_CPU_OFFLOAD_V1 NVTE_DEBUG NVTE_DEBUG_LEVEL
    NVTE_FUSED_ATTN_CK NVTE_FUSED_ATTN_AOTRITON NVTE_CK_USES_BWD_V3 NVTE_CK_IS_V3_ATOMIC_FP32 NVTE_TORCH_COMPILE
    NVTE_FRAMEWORK NVTE_WITH_USERBUFFERS NVTE_UB_SPLIT_AG NVTE_UB_SPLIT_RS NVTE_CUDA_ARCHS NVTE_CUDA_INCLUDE_PATH
    """
)


def refuse_environment(keys: Keys, argument: str, backend: str) -> None:
    """Raises InputError where the variables are not those of the backend. argument: what says the backend."""
    given = {name: str(keys.get(name)) for name in ATTENTION if name in keys.values and name not in keys.ignored}
    name = next((name for name in given if given[name] != _wanted(backend)[name]), None)
    if name is None:
        return
    works = next((each for each in WANTED if given.items() <= _wanted(each).items()), "auto")
    fix = f"give {argument} {works} in its place" if works != "auto" else "unset it"
    kernels = "eager" if works in ("unfused", "local") else "flash"
    ignored = " ".join(f"--ignore {each}" for each in given)
    raise keys.error(
        name,
        f"is {given[name]!r}, and {argument} {backend} goes with {_wanted(backend)[name]}: core 0.11 and later do not start "
        "so, and earlier ones choose the attention by it",
        f"{fix}; or, of an earlier core, {ignored} --attention {kernels}",
    )


def _wanted(backend: str) -> dict[str, str]:
    """What a backend wants of the variables."""
    return dict(zip(ATTENTION, WANTED[backend], strict=True))
