"""Ranks that run torch's own AdamW in parallel with a program's master copies, and report whether both are equal."""

from __future__ import annotations

from typing import Any

import torch
from trainplan.execution.program import Program
from trainplan.execution.run import ranks
from trainplan.execution.training.single_process import LEARNING_RATE
from trainplan.profiling.base.processes import Reporter

LOSS_BYTES = 8


def steps_equal_torch(rank: int, world: int, job: dict[str, Any], report: Reporter) -> list[dict[str, Any]]:
    """The body of a rank, which runs three steps of each plan and returns a dict for each.

    equal: whether master copies and parameters are, bit for bit, those that torch's AdamW computes from the rank's gradients;
    held: the bytes of the rank's model states; analysed: the same by the program's memory analysis.
    """
    device, groups, _ = ranks.start_rank(rank, world, job)
    results = []
    for plan in job["jobs"]:
        program: Program = plan["programs"][rank]
        executor = ranks.make_executor(program, groups, job["seed"], device)
        oracles = {unit: state.flat_shard.detach().float() for unit, state in executor.units.items()}
        optimizers = {
            unit: torch.optim.AdamW([master.requires_grad_()], lr=LEARNING_RATE, fused=True) for unit, master in oracles.items()
        }
        equal = True
        for _ in range(3):
            executor.step(job["backend"])
            for unit, state in executor.units.items():
                oracles[unit].grad = state.gradient.float()
                optimizers[unit].step()
                rounded = oracles[unit].detach().bfloat16()
                equal &= torch.equal(state.master.detach(), oracles[unit].detach())
                equal &= torch.equal(state.flat_shard, rounded)
                degree, index = (
                    program.strategies[unit].degree("sdp"),
                    program.strategies[unit].index(program.index_in_stage, "sdp"),
                )
                if degree == 1 or not state.partitioned:  # the rank holds the whole parameter, not only its part
                    equal &= torch.equal(state.whole.view(degree, -1)[index], rounded)
        held = 0
        for state in executor.units.values():
            moments = [state.optimizer.state[state.master][name] for name in ("exp_avg", "exp_avg_sq")]
            whole = [] if state.partitioned else [state.whole]
            tensors = [*whole, state.flat_shard, state.master, state.summed, state.gradient, *moments]
            held += sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())
        results.append({"equal": equal, "held": held, "analysed": program.persistent_bytes - LOSS_BYTES})
    return results
