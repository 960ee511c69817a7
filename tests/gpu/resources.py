"""A GPU's memory, links and kernels, against the analyses of plans.

    python -m tests.gpu.resources

- peaks: the most that torch allocates and reserves in a step of plans with memory switches, serially and on streams, against
  the memory analysis (within 10 % of what is allocated); the step against what a profile measured here predicts (within 15 %).
- bandwidth: pinned copies of each way alone, and of both ways at once.
- overlap: from a profiler's trace of a plan that offloads, how much of the time of copies overlaps kernels.
- attention: which of torch's implementations runs, and its kernels, by dtype, and with each key's head of its own or grouped.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from trainplan.execution.analysis.memory.peak import Backend, memory_walk
from trainplan.formulations.plan.plan import Plan
from trainplan.profiling.models.model import load_model

from tests.gpu.parts import Part, Result, Settings, alone, command, finish
from tests.gpu.study import instance_of, model_of, plans_of, predicted
from tests.helpers.plans import plan_of

WARM_UP, STEPS = 2, 5
MOST_APART, MOST_SLOWER = 0.10, 0.15
COPIED_BYTES, COPIES = 2**28, 10
Span = tuple[int, int]


def peaks(settings: Settings) -> Iterator[Result]:
    """Bytes allocated, reserved and by the memory analysis, the step, and the prediction, for each plan and back-end."""
    model, samples = model_of(settings)
    instance = instance_of(model, samples, settings)
    backends: tuple[Backend, ...] = ("serial", "streams")
    for name, plan in plans_of(model, samples, settings.quick).items():
        for backend in backends:
            executor = alone(plan, backend, settings)
            for _ in range(WARM_UP):
                executor.step(backend)
            finish(settings)
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            before, seconds = torch.cuda.memory_allocated(), list[float]()
            for _ in range(STEPS):
                began = time.perf_counter()
                executor.step(backend)
                finish(settings)
                seconds.append(time.perf_counter() - began)
            states = executor.program.persistent_bytes
            allocated = states + torch.cuda.max_memory_allocated() - before
            walk = memory_walk(executor.program, backend).peak_bytes
            result: Result = {"plan": name, "backend": backend, "allocated_bytes": allocated, "walk_bytes": walk}
            result |= {"reserved_bytes": torch.cuda.max_memory_reserved(), "step_ns": round(median(seconds) * 1e9)}
            result["right"] = abs(walk / allocated - 1) <= MOST_APART
            if backend == "streams":
                switches = plan.switches()
                assert switches is not None
                result |= {f"predicted_{key}": value for key, value in predicted(instance, switches)._asdict().items()}
                result["right"] &= abs(result["step_ns"] / result["predicted_step_ns"] - 1) <= MOST_SLOWER
            del executor
            yield result


def bandwidth(settings: Settings) -> Iterator[Result]:
    """Bytes a second of pinned copies."""
    device = settings.torch_device
    host = [torch.empty(COPIED_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    there = [torch.empty(COPIED_BYTES, dtype=torch.uint8, device=device) for _ in range(2)]
    streams = [torch.cuda.Stream(device) for _ in range(2)]
    for ways in (("to_device",), ("to_host",), ("to_device", "to_host")):
        seconds = []
        for _ in range(COPIES + 1):
            torch.cuda.synchronize()
            began = time.perf_counter()
            for number, way in enumerate(ways):
                with torch.cuda.stream(streams[number]):
                    if way == "to_device":
                        there[number].copy_(host[number], non_blocking=True)
                    else:
                        host[number].copy_(there[number], non_blocking=True)
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
        yield {"ways": ways, "bytes_per_s": round(len(ways) * COPIED_BYTES / median(seconds[1:]))}


def overlap(settings: Settings) -> Iterator[Result]:
    """For plans that offload: time of copies of each way, of kernels, and of both at once, in one step."""
    model, samples = model_of(settings)
    plans = plans_of(model, samples, settings.quick)
    for name in ("offloaded", "offloaded, synchronised"):
        executor = alone(plans[name], "streams", settings)
        for _ in range(WARM_UP):
            executor.step("streams")
        finish(settings)
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
            executor.step("streams")
            finish(settings)
        spans = device_spans(trace)
        kernels, copies = spans["kernel"], [*spans["to_device"], *spans["to_host"]]
        result: Result = {"plan": name, **{f"{kind}_ns": covered_ns(span) for kind, span in spans.items()}}
        result |= {"copies_beside_kernels_ns": both_ns(copies, kernels)}
        result |= {"both_ways_at_once_ns": both_ns(spans["to_device"], spans["to_host"])}
        if name == "offloaded":
            result["right"] = result["copies_beside_kernels_ns"] >= min(covered_ns(kernels), covered_ns(copies)) / 2
        yield result


def device_spans(trace: Any) -> dict[str, list[Span]]:
    """When a device was busy with kernels, and with copies of each way."""
    spans: dict[str, list[Span]] = {"kernel": [], "to_device": [], "to_host": []}
    for event in trace.profiler.kineto_results.events():
        if event.device_type() != torch.profiler.DeviceType.CUDA or not event.duration_ns():
            continue
        name = event.name().lower()
        kind = "to_device" if "htod" in name else "to_host" if "dtoh" in name else "kernel"
        if kind != "kernel" or not name.startswith(("memcpy", "memset")):
            spans[kind].append((event.start_ns(), event.start_ns() + event.duration_ns()))
    return spans


def merged(spans: Sequence[Span]) -> list[Span]:
    """Spans that cover the time of these, disjoint and in order."""
    result: list[Span] = []
    for begin, end in sorted(spans):
        if result and begin <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((begin, end))
    return result


def covered_ns(spans: Sequence[Span]) -> int:
    """How much time lies in any of these spans."""
    return sum(end - begin for begin, end in merged(spans))


def both_ns(a: Sequence[Span], b: Sequence[Span]) -> int:
    """How much time lies in spans of both kinds."""
    return covered_ns(a) + covered_ns(b) - covered_ns([*a, *b])


def attention(settings: Settings) -> Iterator[Result]:
    """By dtype and grouping: torch's implementations that a step calls, and kernels named after attention."""
    fields = {"num_hidden_layers": 1, "hidden_size": 512, "num_attention_heads": 8, "head_dim": 64, "intermediate_size": 1024}
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if settings.device == "cuda" else [])
    for dtype in ("float64", "float32", "bfloat16"):
        for groups in (8, 2):
            sizes: dict[str, Any] = {"num_key_value_heads": groups, "vocab_size": 512, "max_position_embeddings": 256}
            model = load_model("llama2-7b", 64 if settings.quick else 256, dtype).with_fields(**fields, **sizes)
            plan: Plan = plan_of(model, ["single"] * len(model.units), 1, 2)
            executor = alone(plan, "serial", settings)
            executor.step("serial")
            finish(settings)
            with profile(activities=activities) as trace:
                executor.step("serial")
                finish(settings)
            names = {event.key for event in trace.key_averages()}
            called = sorted(name for name in names if re.match(r"aten::_scaled_dot_product_(?!.*backward)", name))
            kernels = sorted(name for name in names if re.search(r"flash|fmha|mem_eff|sdpa", name) and "aten::" not in name)
            yield {"dtype": dtype, "heads_of_keys": groups, "called": called, "kernels": [name[:120] for name in kernels]}


PARTS = (
    Part("peaks", peaks, least_s=120.0, on_cpu=False),
    Part("bandwidth", bandwidth, on_cpu=False),
    Part("overlap", overlap, on_cpu=False),
    Part("attention", attention),
)

if __name__ == "__main__":
    sys.exit(command("resources", PARTS))
