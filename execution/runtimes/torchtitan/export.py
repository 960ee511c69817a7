"""Export of plans to torchtitan, for both generations of its configuration.

torchtitan.toml has the sections and keys of `torchtitan/config/job_config.py` (0.2). torchtitan_config.py sets the same fields
of `torchtitan/config/configs.py` (0.3, where configurations are Python); the head is called `lm_head` there, not `output`, and
the recomputation policy is a class of `torchtitan/distributed/activation_checkpoint.py`. The model is a flavour of Llama 3 or
Qwen3, named if one has its sizes; otherwise the user chooses it.

Context-parallel ranks send keys and values around, and share states with data-parallel ranks (its mesh dp_shard_cp), as in
plans; torchtitan does not exchange heads.

torchtitan keeps whole layers in a stage (`layers.N`), so that cuts within layers are refused, as are tied heads, units with
different strategies, and uneven shares. Left out: sliced forward passes, recomputation of single units, the order of levels,
placement. Parameters of replicated units (dp alone) are sharded between steps and gathered once a step, since torchtitan's DDP
does not work with pipelines in all versions; the results are the same. For sharded units (sdp), torch's stages reduce gradients
and free gathered parameters only at the step's last backward pass (torch 2.13, torch/distributed/pipelining/stage.py), which
the README says.

Low-precision matrix multiplications are torchao's, in all layers but the head: MXFP8, and current scaling per tensor, which 0.3
has by rows only, so that there is no torchtitan_config.py then. Casts are fused by torch.compile, except for MXFP8 with tensor
parallelism, which 0.2 does not compile.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from trainplan.execution.launch_files.fields import sections_of, values_of
from trainplan.execution.runtimes.export_common import (
    UNSAID,
    Export,
    Training,
    as_exported,
    check_pipeline,
    common_recipe,
    common_strategy,
    layers_of,
    left_out_of_all,
    left_out_order,
    micro_batch_samples,
    modules_kept,
    pass_names,
    predict_exported,
    recomputation,
    refuse_half_cut,
)
from trainplan.execution.runtimes.launch_scripts import here, page, slurm, torchrun
from trainplan.execution.runtimes.torchtitan.capabilities import CAPABILITIES
from trainplan.execution.runtimes.torchtitan.fields import KEYS, ExportedValues
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.strategy import Paradigm, Strategy
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.models.model import Model

RUNTIME = "torchtitan"
CSV = "schedule.csv"
VERSION = "torchtitan 0.2 (torchtitan.toml) and 0.3 (torchtitan_config.py, 2026)"
SHARDS: dict[Paradigm, Paradigm] = {"dp": "sdp"}  # what replicated ranks become
FLAVOURS = {  # of its models, by shipped name
    **{f"llama{version}-{size}".lower(): ("llama3", size) for version in ("3", "3.1") for size in ("8B", "70B", "405B")},
    **{f"qwen3-{size}".lower(): ("qwen3", size) for size in ("8B", "14B", "32B")},
}
DECIDES = (
    "the model is the flavour that [model] names; the tokenizer is yours, as model.hf_assets_path",
    "parameters are gathered ahead and gradients reduced during the backward pass: hidden in plans with overlap",
    "the vocabulary is split over tensor-parallel ranks in the loss, too (loss parallel)",
)
MXFP8 = """    converter = MXFP8LinearConverter.Config(fqns=["layers"], model_compile_enabled=%s).build()
    config.model_spec = replace(config.model_spec, model=converter.convert(config.model_spec.model))"""
# What no plan says: the names of lines in torchtitan_config.py, with what is to be known, and their keys in torchtitan.toml.
YOURS = {
    "TOKENIZER": "a folder with tokenizer.json, as of Hugging Face",
    "DATASET": "c4, which is streamed from Hugging Face, or c4_test, which reads any data set of theirs with a field text",
    "DATASET_PATH": "a folder of that data set",
    "STEPS": "of training",
    "LEARNING_RATE": "the largest of AdamW",
    "WARMUP_STEPS": "over which the learning rate rises to it",
}
THEIR_KEYS = (
    "model.hf_assets_path", "training.dataset", "training.dataset_path", "training.steps", "optimizer.lr",
    "lr_scheduler.warmup_steps",
)  # fmt: skip
PYTHON = (
    '    export PYTHONPATH="$HERE${PYTHONPATH:+:$PYTHONPATH}"',
    "    CONFIG=(--module torchtitan_config --config planned)",
    "fi",
)
OF_DATA = ("dataset", "dataset_path", "steps")
NO_TOKENIZER, LOCAL = "FILL-IN-a-folder-with-tokenizer.json", "c4_test"  # the loader of that name reads any
STEPS, RATE = 100, 3e-4
REGISTERED = ("llama3_8b", "llama3_70b", "llama3_405b", "qwen3_14b", "qwen3_32b")  # configurations of 0.3


def warmup_of(steps: int) -> int:
    """Number of steps of learning-rate warm-up: a tenth of all steps, since a short run would never finish torchtitan's
    default of 200."""
    return max(1, steps // 10)


def modules(plan: Plan, head: str) -> list[list[str]]:
    """The names of the model's modules in each stage, such as [["tok_embeddings", "layers.0"], ["layers.1", "norm",
    "output"]]. head: torchtitan's name of the output matrix."""
    stages, layer = [], 0
    for stage in layers_of(plan):
        names = ["tok_embeddings"] if "E" in stage else []
        names += [f"layers.{layer + i}" for i in range(stage.count("t"))]
        layer += stage.count("t")
        stages.append(names + (["norm", head] if "L" in stage else []))
    return stages


def export(plan: Plan, where: str, training: Training = UNSAID) -> Export:
    """Exports a plan as the files torchtitan.toml and torchtitan_config.py, and schedule.csv if torchtitan does not have the
    plan's order of passes.

    training: values that a plan does not have. For those not given torchtitan has defaults of its own (a tokenizer and a data
    set of its tests, 10,000 steps, a learning rate of 8e-4), so that the files have a line to fill in for each value. where:
    the plan's file, for errors. Raises InputError if torchtitan cannot run the plan.
    """
    check_pipeline(plan, CAPABILITIES, RUNTIME, where)
    refuse_half_cut(plan, RUNTIME, "export it --to torch or megatron", where)
    model, strategy = plan.planned_model(), common_strategy(plan, RUNTIME, where)
    _refuse_model(model, where)
    stages, parts, samples = len(plan.stages), plan.batch.micro_batches, micro_batch_samples(plan, strategy.data_degree)
    tp = strategy.degree("tp")
    left_out, recipe = [*left_out_of_all(plan, RUNTIME), *left_out_order(strategy)], common_recipe(plan, RUNTIME, where)
    strategy = _as_sharded(strategy, stages, left_out)
    if tp > 1 and not strategy.sequence_parallel:
        left_out.append("tokens: tensor-parallel ranks share them here; less memory")
    recomputes, partly = recomputation(plan)
    left_out += partly
    left_out += modules_kept((module for unit_strategy in plan.strategies() for module in unit_strategy.modules), RUNTIME)
    precision = plan.precision
    if precision.master is not None and precision.gradients == "model":
        left_out.append("gradients are reduced in float32 here, and so kept; more time and memory")
        precision = precision.changed(gradients="float32")
    shared = replace(strategy, sequence_parallel=tp > 1)
    exported = as_exported(plan, shared, precision=precision)
    prediction = predict_exported(plan, exported, where, RUNTIME)
    # torch's 1F1B wants as many micro-batches as stages; an order of passes that is written out does not.
    by_csv = plan.schedule == "1f1b" and parts < stages and stages > 1
    flavour = FLAVOURS.get(model.name)
    if flavour is None:
        left_out.append(f"the model {model.name}: name a flavour of its sizes in [model]")
    compiled = recipe is not None and not (recipe.name == "mxfp8" and tp > 1)
    if recipe is not None:
        if not compiled:
            left_out.append("casts fused by torch.compile: with MXFP8 torchtitan 0.2 compiles no tensor parallelism; more time")
        if recipe.name == "fp8-current":
            left_out.append("torchtitan_config.py: torchtitan 0.3 scales rows, not tensors; torchtitan.toml is for 0.2")
    steps = training.steps or STEPS
    exported_values = ExportedValues(
        plan=plan,
        strategy=strategy,
        flavour=flavour,
        samples=samples,
        modules=modules(plan, "output"),
        recomputes=recomputes,
        csv=CSV if by_csv else None,
        recipe=None if recipe is None else recipe.name,
        compiled=compiled,
        tokenizer=training.tokenizer or NO_TOKENIZER,
        dataset="c4" if training.data is None else LOCAL,
        folder=training.data,
        steps=steps,
        rate=training.learning_rate or RATE,
        warmup=warmup_of(steps),
    )
    toml = sections_of(values_of(KEYS, exported_values))
    python = _python_tables(toml, plan)
    script = None
    if recipe is None or recipe.name == "mxfp8":
        script = _script(python, recomputes, flavour, None if recipe is None else compiled, _yours(exported_values))
    files = {
        "torchtitan.toml": _toml(toml),
        **({} if script is None else {"torchtitan_config.py": script}),
        **({CSV: "".join(",".join(row) + "\n" for row in pass_names(plan))} if by_csv else {}),
        "launch.sh": _launch(plan.world, by_csv, script),
        "slurm.sh": slurm(plan.world),
        "README.md": page(plan, RUNTIME, VERSION, prediction, left_out, (*_to_fill_in(training), *DECIDES)),
    }
    settings = {"toml": toml, "python": python, "peak_bytes": prediction.peak_bytes}
    return Export("torchtitan", settings, files, tuple(left_out), exported)


def _launch(world: int, by_csv: bool, script: str | None) -> str:
    """The text of launch.sh. world: number of ranks. by_csv: whether the order of passes is in a CSV file. script: the text of
    torchtitan_config.py; None if it is not exported. If it has a configuration of the whole job, launch.sh can start it."""
    arguments = [f"--job.config_file {here('torchtitan.toml')}"]
    if by_csv:
        arguments.append(f"--parallelism.pipeline_parallel_schedule_csv {here(CSV)}")
    before = [f"CONFIG=({' '.join(arguments)})"]
    if script is not None and "def planned" in script:
        before += ['if [ "${TORCHTITAN:-0.2}" = 0.3 ]; then  # TORCHTITAN=0.3 bash launch.sh for that version', *PYTHON]
    return torchrun(world, '-m torchtitan.train "${CONFIG[@]}" "$@"', before)


def _refuse_model(model: Model, where: str) -> None:
    """Check that torchtitan trains a model's dtype, and that the model has no tied embeddings. where: the plan's file.
    Raises InputError if it cannot run the model."""
    if model.dtype not in ("bfloat16", "float32"):
        fix = "plan in bfloat16 or float32: torchtitan trains in no other"
        raise InputError(where, "model.dtype", f"is {model.dtype!r}", fix)
    if model.tied:
        fix = "plan a model with an output matrix of its own: torchtitan ties none across stages"
        raise InputError(where, "model.config.tie_word_embeddings", "is true", fix)


def _as_sharded(strategy: Strategy, stages: int, left_out: list[str]) -> Strategy:
    """A copy of the strategy (levels of parallelism) as torchtitan runs it: copies of states become shards that are gathered
    once a step. stages: number of pipeline stages. left_out: README lines on how the run differs from the plan are appended."""
    dp, sdp, cp = (strategy.degree(paradigm) for paradigm in ("dp", "sdp", "cp"))
    if dp > 1 and sdp == 1:
        left_out.append(f"{strategy}: parameters are sharded between steps and gathered once a step; less memory, more time")
        return replace(strategy, levels=tuple((SHARDS.get(name, name), degree) for name, degree in strategy.levels), zero=2)
    if cp > 1 and sdp == 1:
        left_out.append(f"{strategy}: parameters are sharded between steps among the ranks of cp; less memory, more time")
    elif sdp > 1 and stages > 1:
        left_out.append(f"{strategy}: gradients, and parameters once they are gathered for backward, stay whole; more memory")
    return strategy


def _python_tables(toml: dict[str, dict[str, Any]], plan: Plan) -> dict[str, dict[str, Any]]:
    """The fields of torchtitan 0.3's training and parallelism configurations. toml: the tables of version 0.2, from which
    they are computed."""
    training = {name: value for name, value in toml["training"].items() if name not in OF_DATA}
    if len(plan.stages) == 1:
        return {"training": training, "parallelism": toml["parallelism"]}
    training["disable_cuda_graphs"] = True  # `Trainer.Config` of 0.3 refuses these with a pipeline
    renamed = {"module_fqns_per_model_part": modules(plan, "lm_head")}
    return {"training": training, "parallelism": {**toml["parallelism"], **renamed}}


def _yours(values: ExportedValues) -> dict[str, Any]:
    """The values of the names at the top of torchtitan_config.py, which the user is to change, such as TOKENIZER and STEPS."""
    given = (values.tokenizer, values.dataset, values.folder, values.steps, values.rate, values.warmup)
    return dict(zip(YOURS, given, strict=True))


def _toml(sections: dict[str, dict[str, Any]]) -> str:
    """The text of a TOML file with these sections (values by key, by section). Lines for the user to fill in are marked by a
    comment. Values are written as JSON, which spells them as TOML does."""
    about = dict(zip(THEIR_KEYS, YOURS.values(), strict=True))

    def line(section: str, key: str, value: Any) -> str:
        text = about.get(f"{section}.{key}")
        return f"{key} = {json.dumps(value)}" + (f"  # yours: {text}" if text else "") + "\n"

    return "\n".join(
        f"[{name}]\n" + "".join(line(name, key, value) for key, value in fields.items()) for name, fields in sections.items()
    )


def _to_fill_in(training: Training) -> list[str]:
    """Lines for the README on the values that the user has not given and has to fill in; empty if there are none."""
    given = (training.tokenizer, training.data, training.steps, training.learning_rate)
    names = [name for name, value in zip(("tokenizer", "data", "steps", "learning rate"), given, strict=True) if value is None]
    return [f"to be filled in, in the lines that say so: {', '.join(names)}"] if names else []


def _script(
    python: dict[str, dict[str, Any]],
    recomputes: bool,
    flavour: tuple[str, str] | None,
    mxfp8: bool | None,
    yours: dict[str, Any],
) -> str:
    """The text of torchtitan_config.py for torchtitan 0.3, with a function `apply` that sets the plan's fields, and a
    function `planned` if torchtitan has a configuration of the model. python: values by field, by section. recomputes:
    whether layers are recomputed. flavour: the model's name and size in torchtitan; None if it has none. mxfp8: whether
    matrix multiplications in MXFP8 are compiled; None if there are none. yours: the values that stand at the top, for the
    user to change."""
    registered = "_".join(flavour).lower() if flavour else ""
    name = registered if registered in REGISTERED else ""
    starts = "python -m torchtitan.train --module torchtitan_config --config planned"
    lines = [
        f'"""A plan in the fields of torchtitan 0.3: {f"`{starts}`." if name else "`apply(config)` on a Trainer.Config."}"""',
        "",
        "",
        "def apply(config):",
        '    """Set the fields that the plan decides, and return the configuration."""',
    ]
    if name:
        lines[1:1] = [
            "",
            *(
                f"{key} = {'None' if value is None else json.dumps(value)}  # yours: {YOURS[key]}"
                for key, value in yours.items()
            ),
        ]
    imports = ["    from torchtitan.distributed.activation_checkpoint import FullAC"] if recomputes else []
    if mxfp8 is not None:
        imports = [
            "    from dataclasses import replace",
            "",
            "    from torchtitan.components.quantization import MXFP8LinearConverter",
            *imports,
        ]
    lines += [*imports, ""] if imports else []
    for section, fields in python.items():
        for key, value in fields.items():
            if key == "pipeline_parallel_schedule_csv":
                lines += ["    from pathlib import Path", "", f"    next_to = Path(__file__).with_name({json.dumps(value)})"]
                lines += [f"    config.{section}.{key} = str(next_to)"]
            elif key == "module_fqns_per_model_part":
                lines += [f"    config.{section}.{key} = ["]
                lines += [*(f"        {json.dumps(part)}," for part in value), "    ]"]
            else:
                lines.append(
                    f"    config.{section}.{key} = {value!r}"
                    if value is True
                    else f"    config.{section}.{key} = {json.dumps(value)}"
                )
    lines += [f"    config.activation_checkpoint = {'FullAC.Config()' if recomputes else 'None'}"]
    if mxfp8 is not None:
        lines += ["    config.compile.enable = True"] * mxfp8 + [MXFP8 % mxfp8]
    lines += ["    return config"]
    if name and flavour:
        lines += ["", "", "def planned():", f'    """The configuration of {flavour[0]} {flavour[1]}, as planned."""']
        lines += ["    from torchtitan.components.optimizer import default_adamw"]
        lines += [f"    from torchtitan.models.{flavour[0]}.config_registry import {name}", "", f"    config = apply({name}())"]
        lines += ["    config.hf_assets_path, config.training.steps = TOKENIZER, STEPS"]
        lines += ["    config.dataloader.dataset, config.dataloader.dataset_path = DATASET, DATASET_PATH"]
        lines += ["    config.optimizer = default_adamw(lr=LEARNING_RATE)"]
        lines += ["    config.lr_scheduler.warmup_steps = WARMUP_STEPS", "    return config"]
    return "\n".join(lines) + "\n"
