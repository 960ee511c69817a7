"""Code that the exports to DeepSpeed and Accelerate share: one stage, states sharded among ranks, and the files of a run.

Both train a Hugging Face model with a script that is written next to their configuration. These exports have no pipeline and no
tensor parallelism; all layers are recomputed, or none.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trainplan.execution.runtimes.export_common import (
    check_pipeline,
    common_strategy,
    left_out_of_all,
    micro_batch_samples,
    modules_kept,
    recomputation,
)
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.strategy import Strategy
from trainplan.formulations.runtimes import Runtime
from trainplan.profiling.base.errors import InputError

DTYPES = ("bfloat16", "float16", "float32")


def one_stage(
    plan: Plan, capabilities: Runtime, runtime: str, where: str, optimizers: Collection[str] = ("adamw",)
) -> Strategy:
    """The strategy (levels of parallelism) that all units of a plan have, for exports to DeepSpeed and Accelerate, which run a
    single stage. Raises InputError if the plan has several stages, tensor parallelism, a dtype or an optimizer that the runtime
    lacks, or units with different strategies. optimizers: names of the plans' optimizers that the export can write."""
    check_pipeline(plan, capabilities, runtime, where, optimizers)
    if len(plan.stages) > 1:
        fix = f"plan with --for {runtime.lower()}, which says what one stage costs"
        raise InputError(where, "stages", f"has {len(plan.stages)} items", fix)
    strategy, model = common_strategy(plan, runtime, where), plan.planned_model()
    if strategy.degree("tp") > 1:
        fix = f"plan with --for {runtime.lower()}, which says what going without tensor parallelism costs"
        raise InputError(where, f"units[0].{plan.units[0].field}", f"is {str(plan.units[0].strategy)!r}", fix)
    if model.dtype not in DTYPES:
        raise InputError(where, "model.dtype", f"is {model.dtype!r}", f"plan in one of {', '.join(DTYPES)}")
    return strategy


def left_out(plan: Plan, runtime: str) -> list[str]:
    """Lines for the exported README on features of the plan that neither DeepSpeed's nor Accelerate's configuration can
    express. runtime: the runtime's name, for the lines."""
    _, partly = recomputation(plan)
    modules = (module for strategy in plan.strategies() for module in strategy.modules)
    return [*left_out_of_all(plan, runtime), *partly, *modules_kept(modules, runtime)]


def run_file(plan: Plan, strategy: Strategy) -> str:
    """The text of run.json, which the training script of an export reads: the model's configuration, tokens per sample,
    samples per micro-batch on one rank, micro-batches per step, and whether layers are recomputed. strategy: the levels of
    parallelism of all units."""
    model = plan.planned_model()
    recomputes, _ = recomputation(plan)
    run: dict[str, Any] = {
        "model": {name: value for name, value in model.config.items() if value is not None},
        "dtype": model.dtype,
        "sequence": model.tokens,
        "micro_batch_samples": micro_batch_samples(plan, strategy.data_degree),
        "micro_batches": plan.batch.micro_batches,
        "recompute": recomputes,
    }
    return json.dumps(run, indent=1) + "\n"


def script(module: str) -> str:
    """The text of a training script that an export copies. module: the dotted name of the module of trainplan that is the
    script. It is read and not imported, since the runtime that it trains with need not be installed here."""
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None, f"{module} is in no file"
    return Path(spec.origin).read_text()
