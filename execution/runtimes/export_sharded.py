"""What the exports to DeepSpeed and Accelerate share: one stage, states sharded among ranks, and the files of a run.

Both train a Hugging Face model with the script that is written beside their configuration. They have no pipeline and, here, no
tensor parallelism; recomputation is of all layers or of none.
"""

from __future__ import annotations

import json
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


def one_stage(plan: Plan, capabilities: Runtime, runtime: str, where: str) -> Strategy:
    """The strategy of all units. Raises InputError where the plan has several stages, tensor parallelism, or unlike units."""
    check_pipeline(plan, capabilities, runtime, where)
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
    """What neither of them says."""
    _, partly = recomputation(plan)
    modules = (module for strategy in plan.strategies() for module in strategy.modules)
    return [*left_out_of_all(plan, runtime), *partly, *modules_kept(modules, runtime)]


def run_file(plan: Plan, strategy: Strategy) -> str:
    """What the script reads: the model's configuration, tokens, samples, accumulation, and what is recomputed."""
    model = plan.planned_model()
    again, _ = recomputation(plan)
    run: dict[str, Any] = {
        "model": {name: value for name, value in model.config.items() if value is not None},
        "dtype": model.dtype,
        "sequence": model.tokens,
        "micro_batch_samples": micro_batch_samples(plan, strategy.data_degree),
        "micro_batches": plan.batch.micro_batches,
        "recompute": again,
    }
    return json.dumps(run, indent=1) + "\n"


def script(module: str) -> str:
    """The text of a training script, which is a module of trainplan, by its dotted name. The module is not imported, since the
    runtime that it trains with need not be installed here."""
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None, f"{module} is in no file"
    return Path(spec.origin).read_text()
