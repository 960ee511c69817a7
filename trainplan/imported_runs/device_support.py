"""Refuses runs that need something of devices that these do not have: a dtype of matrix multiplications, or attention
kernels."""

from __future__ import annotations

from trainplan.execution.launch_files.run_configuration import RunConfiguration
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.clusters.sheets import sheet, sheets
from trainplan.validation.alongside import WITHOUT_FLASH

FLASH = ("attn_implementation", "model_init_kwargs.attn_implementation", "use_flash_attention_2", "flash_attention")
FLOAT16 = {  # advice on how to write float16 in a file, by its key for bfloat16
    "--bf16": "--fp16 in its place",
    **dict.fromkeys(("bf16", "bfloat16", "pure_bf16"), "fp16: true in its place"),
    **dict.fromkeys(("bf16.enabled", "bfloat16.enabled"), "fp16.enabled: true in its place"),
    "mixed_precision": "fp16",
    "trainer.precision": "16-mixed",
}


def refuse_what_devices_lack(configuration: RunConfiguration, cluster: Cluster) -> None:
    """Raise InputError if a run's file requests a dtype of matrix multiplications, or attention kernels, that the cluster's
    devices do not support. configuration: the run's values, as read from its file.
    """
    _refuse_kernels(configuration, cluster)
    dtype = configuration.dtype
    lacking = next((kind for kind in cluster.used_kinds if dtype is not None and dtype not in kind.flops_per_s), None)
    given_by_option = any(value.value == dtype and "--dtype" in value.source for value in configuration.taken)
    if lacking is None or given_by_option:  # the pricing refuses what --dtype gives
        return
    usual = configuration.keys.get("dtype", "dtype")
    key = next((value.key for value in configuration.taken if value.key in FLOAT16 and value.value is True), usual)
    other = FLOAT16.get(key) if dtype == "bfloat16" and "float16" in lacking.flops_per_s else None
    if other is not None and configuration.runtime == "megatron-bridge":
        other += "_mixed"
    fix = f"write {other or 'float32'}, or give devices that have it"
    raise InputError(configuration.where, key, f"asks for {dtype}, and {lacking.name} has no matrix multiplications in it", fix)


def _refuse_kernels(configuration: RunConfiguration, cluster: Cluster) -> None:
    """Raise InputError if a run's file requests FlashAttention by name on devices below compute capability 8.0, which it does
    not support. configuration: the run's values, as read from its file.
    """
    requested = next((value for value in configuration.taken if value.key in FLASH and value.value is not False), None)
    if requested is None or "flash" not in f"{requested.key} {requested.value}".lower():
        return
    lacking = {device.name for device in map(sheet, sheets()) if device.architecture in WITHOUT_FLASH}
    for kind in cluster.used_kinds:
        if kind.name in lacking:
            problem = f"asks for FlashAttention, which has no kernels for {kind.name}"
            raise InputError(configuration.where, requested.key, problem, "write sdpa or eager in its place, as the run does")
