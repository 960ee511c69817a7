"""Whether a GPU computes what one process does, whatever its lanes' pace, and what makes the issuing thread wait for it.

    python -m tests.gpu.correctness

- one-process: losses, gradients and parameters in float64 of plain plans, plans with other residences and plans with memory
  switches, on one rank, serially and on streams, against one process on the CPU.
- delays: 200 steps of such plans on streams, with `torch.cuda._sleep` at random on every lane before instructions, against the
  same steps serially. An order that events do not force is seen broken.
- synchronisations: what torch's sync debug mode says of a step on streams. The loss at its end is the one that has to be.
"""

from __future__ import annotations

import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator

import torch
from trainplan.execution.analysis.memory.peak import Backend
from trainplan.execution.launch.processes import run_plans
from trainplan.execution.run.executor import Executor
from trainplan.formulations.plan.plan import Plan

from tests.gpu.parts import Part, Result, Settings, alone, command, finish
from tests.helpers.plans import GPT2, LLAMA, plan_of, random_plan
from tests.helpers.residence_plans import random_residence_plan
from tests.helpers.switch_plans import random_switch_plan

KINDS: dict[str, Callable[[random.Random, int], Plan]] = {
    "plain": random_plan,
    "residences": random_residence_plan,
    "switches": random_switch_plan,
}
LARGEST_DIFFERENCE = 1e-12
LARGEST_DRIFT = 1e-9  # of losses and parameters after 200 steps of AdamW, which divides by roots of small numbers
STEPS, DELAYED, LONGEST_SLEEP = 200, 0.3, 200_000  # the share of instructions that sleep first, and the clock's cycles
DELAYS_S = 200.0


def one_process(settings: Settings) -> Iterator[Result]:
    """The difference of a run from one process, for each plan and back-end."""
    rng, count = random.Random(1), 2 if settings.quick else 10
    drawn = [(kind, make(rng, 1)) for kind, make in KINDS.items() for _ in range(count)]
    backends: tuple[Backend, ...] = ("serial", settings.lanes)
    for backend in backends:
        reports = run_plans([plan for _, plan in drawn], device=settings.device, backend=backend)
        for (kind, plan), report in zip(drawn, reports, strict=True):
            differences = {
                "gradient": report.gradient_difference,
                "parameter": report.parameter_difference,
                "loss": report.loss_difference,
            }
            right = all(value is not None and value <= LARGEST_DIFFERENCE for value in differences.values())
            yield {"kind": kind, "backend": backend, "model": plan.planned_model().name, **differences, "right": right}


def delays(settings: Settings) -> Iterator[Result]:
    """Plans with delays, until the time is up: each has 200 steps."""
    rng, end = random.Random(2), time.monotonic() + DELAYS_S
    steps = 3 if settings.quick else STEPS
    for number in range(2 if settings.quick else 20):
        if time.monotonic() > end:
            break
        kind = ("switches", "residences", "switches", "plain")[number % 4]
        plan = KINDS[kind](rng, 1)
        calm, delayed = alone(plan, "serial", settings), alone(plan, settings.lanes, settings)
        delayed.begins = _sleeping(delayed, random.Random(number), settings)
        apart = max(abs(calm.step("serial") - delayed.step(settings.lanes)) for _ in range(steps))
        finish(settings)
        drift = max(
            float((one.kept.detach() - delayed.units[unit].kept.detach()).abs().max()) for unit, one in calm.units.items()
        )
        right = max(apart, drift) <= LARGEST_DRIFT
        yield {"kind": kind, "steps": steps, "loss_difference": apart, "parameter_difference": drift, "right": right}


def _sleeping(executor: Executor, rng: random.Random, settings: Settings) -> Callable[[int], None]:
    """Before an instruction, on its stream, a while at random; on the host's lane its thread sleeps."""

    def begins(index: int) -> None:
        if rng.random() < DELAYED:
            if settings.device == "cuda" and executor.program.instructions[index].stream != "host":
                torch.cuda._sleep(rng.randrange(LONGEST_SLEEP))
            else:
                time.sleep(rng.random() * 1e-4)

    return begins


def synchronisations(settings: Settings) -> Iterator[Result]:
    """Where a step on streams waits for the device."""
    rng = random.Random(4)
    plans = {
        "plain": plan_of(GPT2, ["single"] * len(GPT2.units), 1, 8, 4),
        "grouped keys, recomputed": plan_of(LLAMA, ["single-ckpt"] * len(LLAMA.units), 1, 8, 2),
        **{kind: KINDS[kind](rng, 1) for kind in ("residences", "switches")},
    }
    for name, plan in plans.items():
        executor = alone(plan, "streams", settings)
        for _ in range(2):  # what is made once is made now
            executor.step("streams")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                executor.step("streams")
        finally:
            torch.cuda.set_sync_debug_mode("default")
        indices = Counter(
            f"{entry.filename.rpartition('/')[2]}:{entry.lineno}" for entry in caught if "synchroniz" in str(entry.message)
        )
        yield {
            "plan": name,
            "instructions": len(executor.program.instructions),
            "places": dict(indices),
            "right": sum(indices.values()) <= 1,
        }


PARTS = (
    Part("one-process", one_process, least_s=60.0),
    Part("delays", delays, least_s=60.0),
    Part("synchronisations", synchronisations, on_cpu=False),
)

if __name__ == "__main__":
    sys.exit(command("correctness", PARTS))
