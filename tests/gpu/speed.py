"""Results of ranks that share a GPU, NCCL in a group of one, and the speed of steps.

    python -m tests.gpu.speed

- ranks: plans of 2 and 4 ranks that share the GPUs there are, their tensors staged through host memory, serially and on
  streams: losses, gradients and parameters in float64 against one process.
- nccl: on one rank, what a group of its own costs in time and memory, and that each operation of the executor gives what it
  must. (Two ranks on NCCL need two GPUs.)
- step: GPT-2 in bfloat16 with fused AdamW, on both back-ends, against the same from `transformers`: rounds of one step of each
  in an order that changes; the median of their ratios and its 95 % bootstrap interval.
- host: what the issuing thread takes for an instruction, on a model whose computations are next to nothing.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from trainplan.execution.analysis.memory.peak import Backend
from trainplan.execution.launch.processes import run_plans
from trainplan.execution.run.transport import Direct
from trainplan.execution.training.single_process import LEARNING_RATE, Reference, batch_tokens
from trainplan.formulations.plan.plan import Plan
from trainplan.profiling.base.processes import run_workers
from trainplan.profiling.models.model import Model, load_model

from benchmarks.against_torch import interval
from tests.gpu.correctness import LARGEST_DIFFERENCE
from tests.gpu.parts import SEED, Part, Result, Settings, alone, command, finish
from tests.helpers.huggingface import matched, same_architecture
from tests.helpers.plans import GPT2, plan_of, random_interleaved_plan, random_plan, random_unlike_plan
from tests.helpers.residence_plans import random_residence_plan

ROUNDS, WARM_UP = 20, 3
STILL = {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}


def ranks(settings: Settings) -> Iterator[Result]:
    """The difference of a plan's ranks together from one process, for each plan."""
    rng, backends = random.Random(6), ("serial", settings.lanes)
    makes = [random_plan, random_unlike_plan, random_residence_plan]
    for world in (2, 4):
        drawn = [make(rng, world) for make in (makes if settings.quick else makes * 2)]
        drawn += [random_interleaved_plan(rng, world), plan_of(GPT2, [f"tp{world}-sp"] * len(GPT2.units), world, 4)]
        for backend in backends:
            reports = run_plans(drawn, device=settings.device, backend=backend, transport="staged")
            for plan, report in zip(drawn, reports, strict=True):
                differences = (report.gradient_difference, report.parameter_difference, report.loss_difference)
                right = all(value is not None and value <= LARGEST_DIFFERENCE for value in differences)
                yield {
                    "world": world,
                    "backend": backend,
                    "stages": len(plan.stages),
                    "differences": differences,
                    "right": right,
                }


def nccl(settings: Settings) -> Iterator[Result]:
    """The results of `nccl_rank`."""
    yield from run_workers("tests.gpu.speed:nccl_rank", 1, {}, backend="cpu:gloo,cuda:nccl", timeout=120.0)[0]


def nccl_rank(rank: int, world: int, job: dict[str, Any], report: Any) -> list[Result]:
    """Body of the one rank: groups as the executor makes them, and its operations in them."""
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    results = []
    for number in range(3):
        torch.cuda.synchronize()
        free, began = torch.cuda.mem_get_info()[0], time.perf_counter()
        group = dist.new_group([0])
        dist.all_reduce(torch.zeros(1, device=device), group=group)
        torch.cuda.synchronize()
        seconds, memory = time.perf_counter() - began, free - torch.cuda.mem_get_info()[0]
        results.append({"group": number, "seconds": round(seconds, 3), "memory_bytes": memory})
    transport = Direct()
    for name in ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor"):
        source = torch.arange(1024, dtype=torch.float32, device=device)
        result = source.clone() if name == "all_reduce" else torch.empty_like(source)
        tensors = [result] if name == "all_reduce" else [result, source]
        for work in transport.collective(getattr(dist, name), group, tensors):
            work.wait()
        torch.cuda.synchronize()
        results.append({"operation": name, "right": bool(torch.equal(result, source))})
    return results


def step(settings: Settings) -> Iterator[Result]:
    """Seconds of a step on each side, by back-end."""
    model, samples = _timed_model(settings)
    other, backends = _transformers_step(model, samples, settings), ("serial", settings.lanes)
    for backend in backends:
        executor = alone(plan_of(model, ["single"] * len(model.units), 1, samples), backend, settings)
        sides = {"own": partial(executor.step, backend), "transformers": other}
        rounds, order = list[dict[str, float]](), random.Random(1)
        for _ in range(WARM_UP + (3 if settings.quick else ROUNDS)):
            seconds = {}
            for name in order.sample([*sides], len(sides)):
                finish(settings)
                began = time.perf_counter()
                sides[name]()
                finish(settings)
                seconds[name] = time.perf_counter() - began
            rounds.append(seconds)
        kept = rounds[WARM_UP:]
        ratios = [entry["own"] / entry["transformers"] for entry in kept]
        low, high = interval(ratios, random.Random(0))
        result: Result = {f"{name}_s": round(median(entry[name] for entry in kept), 5) for name in sides}
        result |= {"ratio": round(median(ratios), 3), "interval": [round(low, 3), round(high, 3)]}
        yield {"backend": backend, "model": model.name, "samples": samples, "tokens": model.tokens, **result}


def _timed_model(settings: Settings) -> tuple[Model, int]:
    if settings.quick:
        return load_model("gpt2", 32, "bfloat16").with_fields(n_layer=1, n_embd=64, n_head=2, n_inner=128, **STILL), 2
    return load_model("gpt2", 1024, "bfloat16").with_fields(**STILL), 8


def _transformers_step(model: Model, samples: int, settings: Settings) -> Callable[[], float]:
    """A step of the same training by transformers' model."""
    import transformers
    from torch.nn import functional as F

    device = settings.torch_device
    other = same_architecture(transformers, model)
    other.config._attn_implementation = "sdpa"
    other = other.to(device, torch.bfloat16).train()
    with torch.no_grad():
        for parameter, value in matched(other, model, Reference(model, SEED).parameters):
            parameter.copy_(value)
    tokens = batch_tokens(model, samples, SEED).to(device)
    optimizer = torch.optim.AdamW(other.parameters(), lr=LEARNING_RATE, fused=True)

    def run() -> float:
        optimizer.zero_grad(set_to_none=True)
        logits = other(tokens[:, :-1], use_cache=False).logits.flatten(0, 1)
        loss = F.cross_entropy(logits.float(), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return run


def host(settings: Settings) -> Iterator[Result]:
    """Host time for an instruction, by back-end and micro-batches."""
    sizes = {"n_embd": 16, "n_head": 2, "n_inner": 16, "n_positions": 16, "vocab_size": 32}
    model = load_model("gpt2", 8, "float32").with_fields(n_layer=2 if settings.quick else 12, **sizes, **STILL)
    backends: tuple[Backend, ...] = ("serial", settings.lanes)
    for micro_batches in (1, 4):
        plan: Plan = plan_of(model, ["single"] * len(model.units), 1, 2 * micro_batches, micro_batches)
        for backend in backends:
            executor, seconds = alone(plan, backend, settings), list[float]()
            for _ in range(WARM_UP + (3 if settings.quick else 50)):
                finish(settings)
                began = time.perf_counter()
                executor.step(backend)
                seconds.append(time.perf_counter() - began)
            count, took = len(executor.program.instructions), median(seconds[WARM_UP:])
            yield {
                "backend": backend,
                "micro_batches": micro_batches,
                "instructions": count,
                "ns_each": round(took / count * 1e9),
            }


PARTS = (
    Part("ranks", ranks, least_s=120.0),
    Part("nccl", nccl, least_s=60.0, on_cpu=False),
    Part("step", step, least_s=60.0),
    Part("host", host),
)

if __name__ == "__main__":
    sys.exit(command("speed", PARTS))
