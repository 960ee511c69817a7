"""The names and units in which files of runs state measurements, among them names of other tools.

A name or a text that leaves open its unit, or the number of devices that it is for, is not compared with anything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.quantities import parse_bytes

GIB = 2**30
# Units in texts, each with its size in the field's own unit.
TIMES = {"s": 1.0, "sec": 1.0, "secs": 1.0, "second": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0, "h": 3600.0}
THOUSANDS = {"": 1.0, "k": 1e3, "m": 1e6}
FLOPS = {"": 1.0, "t": 1.0, "p": 1e3, "g": 1e-3}
OF_ONE = r"(?:/|\s*per\s*)(?:gpu|device|gcd|accelerator)"
NUMBER = r"(\d+(?:\.\d*)?(?:e[+-]?\d+)?)\s*"
TEXTS = {
    "tokens_s_gpu": (
        re.compile(rf"{NUMBER}([km]?)\s*(?:tok(?:en)?s?(?:/|\s*per\s*)s(?:ec(?:ond)?)?(?:{OF_ONE})?)?"),
        THOUSANDS,
    ),
    "tokens_s": (re.compile(rf"{NUMBER}([km]?)\s*(?:tok(?:en)?s?(?:/|\s*per\s*)s(?:ec(?:ond)?)?)?"), THOUSANDS),
    "samples_s": (re.compile(rf"{NUMBER}([km]?)\s*(?:samples?(?:/|\s*per\s*)s(?:ec(?:ond)?)?)?"), THOUSANDS),
    "tflops_gpu": (re.compile(rf"{NUMBER}(?:([tpg])flops?(?:/s)?(?:{OF_ONE})?)?"), FLOPS),
    "step_s": (re.compile(rf"{NUMBER}({'|'.join(sorted(TIMES, key=len, reverse=True))})?(?:/(?:it|iter|step))?"), TIMES),
}
SHARES = ("mfu", "hfu")
# Other tools' names, each with the field that it means and the size of its unit in the field's.
STEPS = (
    *("step", "step_time", "iteration", "iteration_time", "iter_time", "time_per_step", "time_per_iteration"),
    *("elapsed_time_per_iteration", "train_step_time"),
)
PEAKS = ("peak", "peak_memory", "peak_mem", "mem", "memory", "max_memory", "max_mem", "gpu_memory", "mem_peak", "memory_peak")
NAMED: dict[str, tuple[str, float]] = {
    **{f"{name}_ms": ("step_s", 1e-3) for name in STEPS},
    **{f"{name}_{unit}": ("step_s", 1.0) for name in STEPS for unit in ("s", "sec", "seconds")},
    **dict.fromkeys(("seconds_per_step", "sec_per_step", "s_per_step", "seconds_per_iteration", "s_it"), ("step_s", 1.0)),
    **dict.fromkeys(("ms_per_step", "ms_per_iteration"), ("step_s", 1e-3)),
    **{f"{name}_gib": ("mem_gib", 1.0) for name in PEAKS},
    **{f"{name}_mib": ("mem_gib", 2.0**-10) for name in PEAKS},
    **{f"{name}_gb": ("mem_gib", 1e9 / GIB) for name in PEAKS},
    **{f"{name}_mb": ("mem_gib", 1e6 / GIB) for name in PEAKS},
    **{f"{name}_bytes": ("mem_gib", 1 / GIB) for name in PEAKS},
    **{f"{name}_{unit}": (name, 0.01) for name in SHARES for unit in ("percent", "pct")},
    **dict.fromkeys(
        ("tokens_per_s_gpu", "tokens_per_s_per_gpu", "tokens_per_second_per_gpu", "tokens_per_sec_per_gpu", "tokens_s_device"),
        ("tokens_s_gpu", 1.0),
    ),
    **dict.fromkeys(("tokens_per_gpu_per_second", "tokens_per_gpu_per_s", "tgs"), ("tokens_s_gpu", 1.0)),
    **dict.fromkeys(("total_tokens_s", "tokens_s_total", "total_tokens_per_second", "global_tokens_s"), ("tokens_s", 1.0)),
    **dict.fromkeys(("samples_per_s", "samples_per_sec", "samples_per_second", "train_samples_per_second"), ("samples_s", 1.0)),
    **dict.fromkeys(("tflops_per_gpu", "tflops_per_s_per_gpu", "tflops_s_gpu", "tflops_device"), ("tflops_gpu", 1.0)),
}
# Names that leave open their unit, or the number of devices that they are for, and the names to write instead.
OPEN = {
    **dict.fromkeys((*STEPS, "time"), "step_s in seconds"),
    **dict.fromkeys(PEAKS, "mem_gib, of one device"),
    **dict.fromkeys(
        ("tokens_per_second", "tokens_per_sec", "tokens_per_s", "tps", "throughput", "tokens_s_node"),
        "tokens_s_gpu of one device, or tokens_s of all",
    ),
    **dict.fromkeys(("tflops", "tflops_s", "flops", "tflops_total", "pflops", "tflops_node"), "tflops_gpu, of one device"),
    **dict.fromkeys(("utilization", "flops_utilization"), "mfu of model FLOPs, or hfu of all that are computed"),
}
MEASURES = ("step_s", *(field for field in TEXTS if field != "step_s"), *SHARES, "mem_gib")


def folded(name: str) -> str:
    """Normalise a field's name to lower case with underscores between words: "Tokens/s" -> "tokens_per_s"."""
    return re.sub(r"[^a-z0-9]+", "_", re.sub(r"%", " percent", name.lower().replace("/", " per "))).strip("_")


def measure_named(name: str, row: Mapping[str, Any]) -> tuple[str, float] | None:
    """Translate another tool's name for a measurement into the field of measured runs that has it, and the factor from the
    name's unit to the field's unit: "step_time_ms" -> ("step_s", 0.001). None if there is no such field, or if the row has the
    field itself.

    name: the other tool's name. row: the measured run, as read from its file.
    """
    found = NAMED.get(folded(name))
    if found is None and folded(name) in MEASURES:
        found = folded(name), 1.0
    return None if found is None or found[0] in row else found


def measured_number(field: str, value: Any) -> Any:
    """Convert a measured value to its field's unit, from a text with a unit such as `8623 ms`, `45%`, `1.9k tokens/s` or `40
    GB`. Returned unchanged if the value has no such form, or if the field is not a measurement. field: name of the field of
    measured runs.
    """
    if not isinstance(value, str) or field not in MEASURES:
        return value
    text = value.strip().lower().replace(",", "")
    if field in SHARES:
        share = re.fullmatch(rf"{NUMBER}(?:%|percent|pct)", text)
        return float(share[1]) / 100 if share else value
    if field == "mem_gib":
        try:
            return parse_bytes(value.replace(",", "")) / GIB
        except InputError:
            return value
    pattern, units = TEXTS[field]
    match = pattern.fullmatch(text)
    return float(match[1]) * units[match[2] or ("s" if field == "step_s" else "")] if match else value
