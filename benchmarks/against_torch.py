"""Steps of trainplan's executor against the same training written by hand with torch: DDP, FSDP2, pipelining.

Two ranks, a thread each, GPT-2's layers from `transformers`, fused AdamW on all sides. A round is one step of each side, in an
order that changes, on the same batch; what counts is the ratio of a round, the slower rank's step on both sides. Printed are
the median of the ratios and its 95 % bootstrap interval; the aim is at most 1.05. All sides begin with equal parameters, and
their losses have to agree.

The executor's sides are its back-ends, and `fused, late`: the same without what lanes do ahead (parameters gathered one unit
ahead, receives posted one pass ahead), where there is anything of that.

    python -m benchmarks.against_torch --rounds 20 --layers 4 --sequence 64
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table
from trainplan.execution.analysis.memory.peak import Backend
from trainplan.execution.compile.compiler import compile_plan
from trainplan.execution.prediction.compiled_plan import may_go_ahead, programs_of
from trainplan.execution.program import Program
from trainplan.execution.run import ranks
from trainplan.formulations.plan.plan import Plan
from trainplan.profiling.base.processes import Report, run_workers
from trainplan.profiling.models.model import Model, load_model

from tests.helpers.plans import plan_of

ROOT = Path(__file__).parent.parent
WARM_UP, RESAMPLES, AIM, LARGEST_DIFFERENCE = 3, 10_000, 1.05, 1e-4
MICRO_BATCHES = 4
BACKENDS: tuple[Backend, ...] = ("serial", "fused")
CASES = {"DDP": "dp2", "FSDP2": "sdp2", "pipelining": "single"}
Step = Callable[[], float]


def run_rank(rank: int, world: int, job: dict[str, Any], report: Report) -> dict[str, Any]:
    """Body of one rank: both sides' seconds and losses of every round."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    device, groups, everyone = ranks.start_rank(rank, world, job)
    sides = dict[str, Step]()
    for name, programs in zip(job["sides"], job["jobs"], strict=True):
        executor = ranks.make_executor(programs["programs"][rank], groups, 0, device)
        sides[name] = partial(executor.step, name.partition(",")[0])
    sides["torch"] = _by_hand(job["case"], executor.program.model, executor.tokens, rank)
    rounds: list[dict[str, tuple[float, float]]] = []
    order, late = random.Random(1), torch.zeros(1)
    for number in range(WARM_UP + job["rounds"]):
        late.fill_(rank == 0 and number > WARM_UP and time.time() > job["ends"])
        dist.all_reduce(late, group=everyone)
        if late:
            break
        seconds = {}
        for name in order.sample([*sides], len(sides)):
            dist.barrier(everyone)
            started = time.perf_counter()
            loss = sides[name]()
            seconds[name] = time.perf_counter() - started, loss
        rounds.append(seconds)
        report({"round": number, "seconds": {name: took for name, (took, _) in seconds.items()}})
    return {"rounds": rounds}


def _by_hand(case: str, model: Model, tokens: Any, rank: int) -> Step:
    """One step of the same training with torch alone, on this rank: it gives the batch's loss, or 0 where another has it."""
    import torch
    import torch.distributed as dist
    import transformers
    from torch.nn import functional as F
    from trainplan.execution.training.single_process import LEARNING_RATE, Reference

    from tests.helpers.huggingface import matched, same_architecture

    other = same_architecture(transformers, model)
    other.config._attn_implementation = "sdpa"  # what trainplan's units call, too
    with torch.no_grad():
        for parameter, value in matched(other, model, Reference(model, 0).parameters):
            parameter.copy_(value)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    if case == "pipelining":
        return _pipeline(other, inputs, targets, rank)
    mine = slice(rank * len(tokens) // 2, (rank + 1) * len(tokens) // 2)
    inputs, targets = inputs[mine], targets[mine]
    if case == "DDP":
        trained = torch.nn.parallel.DistributedDataParallel(other, gradient_as_bucket_view=True)
    else:
        from torch.distributed.fsdp import fully_shard

        for block in other.transformer.h:
            fully_shard(block)
        trained = fully_shard(other)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=LEARNING_RATE, fused=True)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(trained(inputs, use_cache=False).logits.flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        whole = loss.detach().clone()
        dist.all_reduce(whole)
        return float(whole) / 2

    return step


def _pipeline(other: Any, inputs: Any, targets: Any, rank: int) -> Step:
    """1F1B of two stages, half of the blocks each."""
    import torch
    from torch import Tensor, nn
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B
    from torch.nn import functional as F
    from trainplan.execution.training.single_process import LEARNING_RATE

    body = other.transformer
    half = len(body.h) // 2

    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.positions, self.blocks = body.wte, body.wpe, body.h[:half]

        def forward(self, ids: Tensor) -> Tensor:
            x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
            for block in self.blocks:
                x = _hidden(block(x))
            return x

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks, self.norm, self.head = body.h[half:], body.ln_f, other.lm_head

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = _hidden(block(x))
            logits: Tensor = self.head(self.norm(x))
            return logits

    part = First() if rank == 0 else Last()
    stage = PipelineStage(part, rank, 2, torch.device("cpu"))

    def loss_of(logits: Tensor, wanted: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), wanted.flatten())

    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(part.parameters(), lr=LEARNING_RATE, fused=True)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        losses: list[Tensor] = []
        if rank == 0:
            schedule.step(inputs)
        else:
            schedule.step(target=targets, losses=losses)
        optimizer.step()
        return float(sum(losses)) / MICRO_BATCHES if losses else 0.0

    return step


def _hidden(result: Any) -> Any:
    return result[0] if isinstance(result, tuple) else result


def case_plan(case: str, model: Model, samples: int) -> Plan:
    """The plan and program of trainplan that a case is compared with."""
    units = len(model.units)
    if case != "pipelining":
        return plan_of(model, [CASES[case]] * units, 2, samples)
    return plan_of(model, ["single"] * units, 2, samples, MICRO_BATCHES, [units // 2])


def interval(ratios: list[float], rng: random.Random) -> tuple[float, float]:
    """The 95 % bootstrap interval of the median."""
    medians = sorted(median(rng.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    return medians[RESAMPLES * 25 // 1000], medians[RESAMPLES * 975 // 1000]


def programs_by_side(plan: Plan) -> dict[str, list[Program]]:
    """The programs of the executor's sides."""
    sides = {backend: programs_of(plan, backend) for backend in BACKENDS}
    return sides | ({"fused, late": compile_plan(plan)} if may_go_ahead(plan, "fused") else {})


def measured(
    case: str, model: Model, samples: int, rounds: int, ends: float, progress: Report
) -> list[dict[str, tuple[float, float]]]:
    """Seconds and loss of each round and side. ends: when, by the clock, no more round begins."""
    programs = programs_by_side(case_plan(case, model, samples))
    jobs = [{"programs": program} for program in programs.values()]
    job: dict[str, Any] = {"jobs": jobs, "sides": [*programs], "gpus": None, "case": case, "rounds": rounds}
    job |= {"ends": ends}
    ranks = run_workers("benchmarks.against_torch:run_rank", 2, job, timeout=1800.0, progress=progress)
    return [
        {name: (max(rank[name][0] for rank in both), max(rank[name][1] for rank in both)) for name in both[0]}
        for both in zip(*(rank["rounds"] for rank in ranks), strict=True)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=64)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=10.0, help="end with fewer rounds after about so long (default 10)")
    parser.add_argument("--case", choices=[*CASES], action="append", help="may be repeated (default: all)")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    still = {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
    model = load_model("gpt2", options.sequence, "float32").with_fields(n_layer=options.layers, **still)
    rng, console, right, started = random.Random(0), Console(width=120), True, time.perf_counter()
    cases = options.case or [*CASES]
    begins, share_s = time.time(), options.minutes * 60 / len(cases)
    for index, case in enumerate(cases, 1):
        chain = model.with_fields(tie_word_embeddings=False) if case == "pipelining" else model

        def progress(event: dict[str, Any], case: str = case) -> None:
            times = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in event["seconds"].items())
            number = event["round"] - WARM_UP + 1
            which = f"round {number}" if number > 0 else "warm-up"
            console.print(f"{time.perf_counter() - started:4.0f} s  {case}, {which}: {times}")

        rounds = measured(case, chain, options.samples, options.rounds, begins + index * share_s, progress)[WARM_UP:]
        table = Table("against", "plan", "back-end", "own", "torch", "ratio", "95 %", "losses apart")
        for side in (name for name in rounds[0] if name != "torch"):
            ratios = [round_[side][0] / round_["torch"][0] for round_ in rounds]
            low, high = interval(ratios, rng)
            apart = max(abs(round_[side][1] - round_["torch"][1]) / round_["torch"][1] for round_ in rounds)
            right &= apart <= LARGEST_DIFFERENCE
            times = [f"{median(round_[name][0] for round_ in rounds):.3f} s" for name in (side, "torch")]
            shown = f"{median(ratios):.3f}", f"{low:.3f} .. {high:.3f}", f"{apart:.1e}"
            table.add_row(case, CASES[case], side, *times, *shown)
        table.caption = f"{len(rounds)} rounds"
        console.print(table)
    took = time.perf_counter() - started
    console.print(f"the aim is a ratio of at most {AIM}; {took:.0f} s")
    return int(not right)


if __name__ == "__main__":
    sys.exit(main())
