"""Exports to Megatron-LM, read back by a table of its documented arguments, and held against the plan number by number."""

from __future__ import annotations

import argparse
import random
import shlex
import subprocess
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from trainplan.execution.runtimes.export_common import write_export
from trainplan.formulations.plan.plan import Plan, Stage
from trainplan.profiling.models.model import load_model
from trainplan.profiling.models.sublayers import Attention, FeedForward

import trainplan as tp
from tests.helpers.exported_plans import random_exported
from tests.helpers.plans import plan_of
from tests.helpers.refusals import Facts, refused
from tests.runtimes.test_exporting import checked_layout, not_exported
from tests.runtimes.test_importing import LLAMA

# megatron/training/arguments.py of core 0.15: what we may write, and of which type.
FLAGS = """
group-query-attention rotary-interleaved use-rope-scaling swiglu squared-relu disable-bias-linear add-qkv-bias qk-layernorm
untie-embeddings-and-output-weights overlap-grad-reduce overlap-param-gather use-distributed-optimizer sequence-parallel bf16
fp16 grad-reduce-in-bf16 accumulate-allreduce-grads-in-fp32 fp8-param-gather reuse-grad-buf-for-mxfp8-param-ag log-throughput
mock-data muon-use-nesterov
"""
WHOLE = """
num-layers hidden-size ffn-hidden-size num-attention-heads kv-channels seq-length max-position-embeddings num-query-groups
rotary-base pipeline-model-parallel-size tensor-model-parallel-size micro-batch-size global-batch-size
make-vocab-size-divisible-by num-distributed-optimizer-instances recompute-num-layers train-iters lr-warmup-iters log-interval
eval-iters save-interval vocab-size decoder-first-pipeline-num-layers decoder-last-pipeline-num-layers muon-num-ns-steps
"""
REAL = """
norm-epsilon attention-dropout hidden-dropout rotary-percent rope-scaling-factor lr min-lr weight-decay adam-beta1 adam-beta2
clip-grad muon-momentum muon-extra-scale-factor
"""
CHOICES = {
    "normalization": ["LayerNorm", "RMSNorm"],
    "position-embedding-type": ["learned_absolute", "rope", "mrope", "relative", "none"],
    "recompute-granularity": ["full", "selective"],
    "recompute-method": ["uniform", "block"],
    "fp8-format": ["e4m3", "hybrid"],
    "fp8-recipe": ["tensorwise", "delayed", "mxfp8", "blockwise"],
    "fp4-format": ["e2m1"],
    "fp4-recipe": ["nvfp4"],
    "lr-decay-style": ["constant", "linear", "cosine", "inverse-square-root", "WSD"],
    "tokenizer-type": ["HuggingFaceTokenizer", "NullTokenizer"],
    "optimizer": ["adam", "sgd", "muon", "dist_muon"],
    "muon-scale-mode": ["spectral", "unit_rms_norm", "shape_scaling"],
    "muon-tp-mode": ["blockwise", "duplicated", "distributed"],
}
TEXT = "pipeline-model-parallel-layout window-size save load tokenizer-model data-path hybrid-layer-pattern"


def parser() -> argparse.ArgumentParser:
    """The parser takes these arguments alone, each whole: a misspelt one is an error."""
    made = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    for name in FLAGS.split():
        made.add_argument(f"--{name}", action="store_true")
    for names, kind in ((WHOLE, int), (REAL, float), (TEXT, str)):
        for name in names.split():
            made.add_argument(f"--{name}", type=kind)
    for name, choices in CHOICES.items():
        made.add_argument(f"--{name}", choices=choices)
    made.add_argument("--recompute-modules", nargs="*", choices=["core_attn", "layernorm", "mlp", "moe", "moe_act"])
    made.add_argument("--spec", nargs="*")
    return made


def started(folder: Path, index: Path | None = None, **given: str) -> tuple[list[str], dict[str, str]]:
    """The words and the environment that launch.sh starts torchrun with. place: the folder that it is started from; given:
    further variables."""
    stub = '#!/usr/bin/env bash\nprintf "%s\\0" "$@" > "$(dirname "$0")/arguments"\nenv -0 > "$(dirname "$0")/environment"\n'
    (folder / "torchrun").write_text(stub)
    (folder / "torchrun").chmod(0o755)
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "MEGATRON": "/megatron", **given}
    command = ["bash", folder / "launch.sh"]
    done = subprocess.run(command, env=environment, cwd=index, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    words, variables = ((folder / name).read_text().split("\0")[:-1] for name in ("arguments", "environment"))
    return words, dict(variable.partition("=")[::2] for variable in variables)


def read_back(folder: Path, index: Path | None = None, **given: str) -> argparse.Namespace:
    """The arguments that the training script is started with."""
    words, _ = started(folder, index, **given)
    script = next(index for index, word in enumerate(words) if word.startswith("/megatron/"))
    return parser().parse_args(words[script + 1 :])


def layers_of(plan: Plan, stage: Stage) -> int:
    return sum(unit.name.endswith("ffn") for unit in plan.units[stage.first_unit : stage.last_unit + 1])


@pytest.mark.parametrize("seed", range(20))
def test_every_argument_reads_back_as_the_plan_says(tmp_path: Path, seed: int) -> None:
    plan = random_exported(random.Random(seed))
    write_export(tp.export(plan, "megatron"), tmp_path)
    got, model = read_back(tmp_path), plan.planned_model()
    strategy = plan.strategies()[0]
    attention = next(part for part in model.sublayers.values() if isinstance(part, Attention))
    ffn = next(part for part in model.sublayers.values() if isinstance(part, FeedForward))
    layers = (len(plan.units) - 2) // 2
    assert (got.num_layers, got.hidden_size, got.ffn_hidden_size) == (layers, attention.hidden, ffn.inner)
    assert (got.num_attention_heads, got.num_query_groups or got.num_attention_heads) == (attention.heads, attention.kv_heads)
    assert (got.kv_channels, got.seq_length, got.vocab_size + 1) == (attention.width, model.tokens, model.vocabulary)
    assert got.untie_embeddings_and_output_weights == (not model.tied) and got.disable_bias_linear == (not ffn.bias)
    assert (got.swiglu, got.squared_relu) == (
        ffn.gated,
        ffn.activation == "relu2",
    ) and got.qk_layernorm == attention.normed_heads
    assert (got.position_embedding_type == "rope") == (attention.rotary > 0)
    assert not attention.rotary or got.rotary_base == attention.rotary
    assert (got.use_rope_scaling, got.window_size is not None) == (attention.scaling is not None, attention.sliding > 0)
    assert got.pipeline_model_parallel_size == plan.depth and got.tensor_model_parallel_size == strategy.degree("tp")
    data_parallel = plan.world // plan.depth // got.tensor_model_parallel_size
    assert (data_parallel, got.global_batch_size) == (strategy.data_degree, plan.batch.global_samples)
    assert got.global_batch_size == data_parallel * got.micro_batch_size * plan.batch.micro_batches
    assert got.use_distributed_optimizer == (strategy.zero_stage > 0)
    assert (got.num_distributed_optimizer_instances or 1) == (strategy.degree("dp") if strategy.zero_stage else 1)
    assert (got.sequence_parallel, got.bf16) == (strategy.sequence_parallel, model.dtype == "bfloat16")
    wanted = "full" if strategy.ckpt else "selective" if strategy.modules else None
    assert got.recompute_granularity == wanted
    assert got.recompute_modules == (["core_attn", "layernorm"] if strategy.modules else None)
    if plan.depth > 1:
        counts = checked_layout(got.pipeline_model_parallel_layout, plan.depth, layers)
        assert counts == [layers_of(plan, stage) for stage in plan.stages]


def test_a_misspelt_argument_is_an_error() -> None:
    with pytest.raises((argparse.ArgumentError, SystemExit)):
        parser().parse_args(["--num-layer", "3"])


def test_interleaved_stages_are_laid_out_in_order_of_the_model() -> None:
    plan = tp.plan(
        model="gpt2-345m", cluster="h100-8", batch=64, pipeline=2, micro_batches=8, schedule="interleaved", one_strategy=True
    ).plan
    assert plan is not None and plan.chunks > 1
    found = tp.export(plan, "megatron")
    layout = found.settings["arguments"][found.settings["arguments"].index("--pipeline-model-parallel-layout") + 1]
    assert layout.count("|") == len(plan.stages) - 1
    assert checked_layout(layout, len(plan.stages), 24) == [layers_of(plan, stage) for stage in plan.stages]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("gemma2-9b", "embedding, attention, ffn, attention.1, head"),
        ("glm-4-9b-0414", ("norms", "sides")),
        ("mpt-7b", ("norms", "bias")),
        ("opt-6.7b", ("probabilities", "dropout")),
    ],
)
def test_models_that_gptmodel_lacks_say_what_it_lacks(name: str, problem: Facts) -> None:
    from trainplan.execution.runtimes.megatron.export_model import model_arguments

    with refused("model.config", where="plan", problem=problem, fix=("Megatron-LM", "GPTModel")):
        model_arguments(load_model(name, 2048), "Megatron-LM", "plan")


def test_numbers_are_the_users_by_the_environment(tmp_path: Path) -> None:
    """The batch file and the page are there; made-up data stand in until DATA_PATH is set."""
    plan: Any = random_exported(random.Random(3))
    files = tp.export(plan, "megatron").files
    assert set(files) == {"megatron_args.sh", "launch.sh", "slurm.sh", "README.md"}
    for name in ("megatron_args.sh", "launch.sh", "slurm.sh"):
        (tmp_path / name).write_text(files[name])
        assert subprocess.run(["bash", "-n", tmp_path / name], check=False).returncode == 0
    assert f"--nodes={-(-plan.world // min(8, plan.world))}" in files["slurm.sh"]
    command = f"cd {shlex.quote(str(tmp_path))}; DATA_PATH=/d TOKENIZER=/t; source megatron_args.sh; echo ${{DATA_ARGS[@]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["--data-path", "/d", "--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", "/t"]
    assert "## Left out" in files["README.md"] and "predicted memory, as exported" in files["README.md"]


def laid_out(text: str, dtype: str = "bfloat16") -> Plan:
    """A plan of Llama-3 8B on eight devices."""
    model = load_model("llama3-8b", 1024, dtype)
    plan = plan_of(model, [text] * len(model.units), 8, 16, 2)
    return plan.changed(memory_bytes=2**47, precision={"master": "float32"})


@pytest.mark.parametrize("target", ["megatron", "megatron-bridge"])
@pytest.mark.parametrize(
    ("text", "connections"), [("sdp4-tp2-zero1-sp", "1"), ("sdp4-cp2-zero1", "1"), ("sdp8-zero1", None), ("dp8", None)]
)
def test_a_start_has_one_connection_where_ranks_share_layers(
    tmp_path: Path, target: str, text: str, connections: str | None
) -> None:
    """Megatron-LM's `validate_args` asserts it before Blackwell, whatever the shell had."""
    write_export(tp.export(laid_out(text), target), tmp_path)
    for given in ({}, {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}):
        _, environment = started(tmp_path, **given)
        wanted = connections or given.get("CUDA_DEVICE_MAX_CONNECTIONS")
        assert environment.get("CUDA_DEVICE_MAX_CONNECTIONS") == wanted
        assert environment["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    _, environment = started(tmp_path, PYTORCH_CUDA_ALLOC_CONF="backend:native")
    assert environment["PYTORCH_CUDA_ALLOC_CONF"] == "backend:native"


@pytest.mark.parametrize(("cluster", "connections"), [("b200:8", None), ("h100:8", "1")])
def test_blackwell_needs_no_single_connection(tmp_path: Path, cluster: str, connections: str | None) -> None:
    requested: dict[str, Any] = {"model": "llama3-8b", "batch": 16, "sequence": 2048, "for_": "megatron", "dtype": "bfloat16"}
    plan = tp.certify(tp.plan(**requested, cluster=cluster, tp=2, zero="1", pipeline=1, gap=0.5, comparisons=False)).plan
    assert plan is not None and plan.strategies()[0].degree("tp") == 2
    write_export(tp.export(plan, "megatron"), tmp_path)
    assert started(tmp_path)[1].get("CUDA_DEVICE_MAX_CONNECTIONS") == connections


def test_a_restart_goes_on_from_the_checkpoints_that_are_saved(tmp_path: Path) -> None:
    """By default next to the script, wherever it is started from; a path of the user's is one of the folder of the start."""
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    elsewhere.mkdir()
    write_export(tp.export(laid_out("sdp8-zero1"), "megatron"), folder)
    got = read_back(folder, elsewhere)
    assert got.save == got.load == f"{folder}/checkpoints"
    got = read_back(folder, elsewhere, SAVE="kept", DATA_PATH="data/text_document", TOKENIZER="meta-llama/Llama-3.1-8B")
    assert got.save == got.load == f"{elsewhere}/kept" and got.data_path == f"{elsewhere}/data/text_document"
    got = read_back(folder, elsewhere, SAVE="/kept", DATA_PATH="/data/text", TOKENIZER="name")
    assert got.save == got.load == "/kept" and got.data_path == "/data/text"


def test_gpipe_and_host_copies_are_refused() -> None:
    plan = random_exported(random.Random(3))
    not_exported(plan.changed(schedule="gpipe"), "megatron", "schedule", "gpipe", "--schedule 1f1b")


def partly_recomputed(counts: list[list[bool]]) -> Plan:
    """A plan of Llama-3 8B in bfloat16. counts: of each stage, whether each layer is recomputed."""
    model, sizes = load_model("llama3-8b", 1024, "bfloat16"), [2 * len(stage) for stage in counts]
    again = [entry for stage in counts for entry in stage for _ in ("attention", "ffn")]
    words = ["sdp2-zero1", *("sdp2-zero1-ckpt" if entry else "sdp2-zero1" for entry in again), "sdp2-zero1"]
    plan = plan_of(model, words, 2 * len(counts), 16, 8, [1 + size for size in accumulate(sizes[:-1])])
    return plan.changed(memory_bytes=2**47, precision={"master": "float32"})


@pytest.mark.parametrize("target", ["megatron", "megatron-bridge"])
@pytest.mark.parametrize("layers", [[16, 16], [12, 12, 5, 3], [32]])
def test_the_first_layers_of_stages_come_back_as_blocks(tmp_path: Path, target: str, layers: list[int]) -> None:
    """Stages of fewer layers recompute all of theirs."""
    plan = partly_recomputed([[index < 5 for index in range(count)] for count in layers])
    made = tp.export(plan, target)
    write_export(made, tmp_path)
    if target == "megatron":
        got = read_back(tmp_path)
        assert (got.recompute_granularity, got.recompute_method, got.recompute_num_layers) == ("full", "block", 5)
    name = {"megatron": "launch.sh", "megatron-bridge": "bridge.yaml"}[target]
    run = tp.import_run(tmp_path / name, cluster=f"h100:{plan.world}", search=False, memory=2**47)
    assert [unit.strategy for unit in run.plan.units] == [unit.strategy for unit in plan.units]
    assert run.plan.stages == plan.stages and not made.left_out
    assert made.plan is not None and made.plan.strategies() == plan.strategies()


def muon_plan(strategy: str, dtype: str = "bfloat16") -> Plan:
    model = load_model("llama3-8b", 1024, dtype)
    plan = plan_of(model, [strategy] * len(model.units), 8, 16, 4, [33])
    masters = None if dtype == "float32" else "float32"
    return plan.changed(memory_bytes=2**47, precision={"master": masters}, optimizer="muon")


@pytest.mark.parametrize(("strategy", "name"), [("dp2-tp2-sp", "muon"), ("sdp4-zero1", "dist_muon")])
def test_muon_comes_back(tmp_path: Path, strategy: str, name: str) -> None:
    """With the numbers of torch's own that is scaled to AdamW's, and nothing that overlaps passes or of the distributed
    optimizer."""
    plan = muon_plan(strategy)
    for target, file in (("megatron", "launch.sh"), ("megatron-bridge", "bridge.yaml")):
        made = tp.export(plan, target)
        assert made.left_out == ("Muon: Megatron-Core reduces no gradients during the backward pass with it; more time",)
        assert "megatron-core 0.16 or later" in made.files["README.md"] and "--overlap" not in made.files["README.md"]
        write_export(made, tmp_path / target)
        run = tp.import_run(tmp_path / target / file, cluster="h100:8", search=False, memory=2**47)
        assert run.plan.optimizer == "muon" and run.plan.strategies() == plan.strategies()
        assert run.configuration.unknown == () and run.configuration.notes == ()
    got = read_back(tmp_path / "megatron")
    assert (got.optimizer, got.muon_momentum, got.muon_use_nesterov, got.muon_num_ns_steps) == (name, 0.95, True, 5)
    assert (got.muon_scale_mode, got.muon_extra_scale_factor, got.muon_tp_mode) == ("spectral", 0.2, "blockwise")
    assert not (got.use_distributed_optimizer or got.overlap_grad_reduce or got.overlap_param_gather)
    config = tp.export(plan, "megatron-bridge").settings["config"]
    assert config["optimizer"]["optimizer"] == name and not config["ddp"]["use_distributed_optimizer"]


def test_muon_that_a_runtime_lacks_is_refused() -> None:
    for target, runtime in (("torchtitan", "torchtitan"), ("deepspeed", "DeepSpeed"), ("accelerate", "Accelerate")):
        not_exported(muon_plan("dp4"), target, "optimizer", "muon", ("adamw", runtime))
    not_exported(muon_plan("dp4"), "torch", "optimizer", "muon", ("adamw", "torch"))
    not_exported(muon_plan("dp4", "float16"), "megatron", "model.dtype", ("float16", "Muon"), "bfloat16")


@pytest.mark.parametrize(
    ("arguments", "zero", "notes"),
    [
        ("--optimizer muon", 0, ()),
        ("--optimizer dist_muon", 1, ()),
        ("--optimizer muon --use-distributed-optimizer", 1, ()),
        ("--optimizer muon --muon-tp-mode duplicated", 0, ("Muon's duplicated matrices",)),
        ("--optimizer dist_muon --muon-num-ns-steps 8", 1, ("8 iterations of Newton and Schulz: the plan has 5",)),
    ],
)
def test_arguments_of_muon_are_read(tmp_path: Path, arguments: str, zero: int, notes: tuple[str, ...]) -> None:
    (tmp_path / "run.txt").write_text(f"{LLAMA} --micro-batch-size 1 --global-batch-size 64 {arguments}")
    run = tp.import_run(tmp_path / "run.txt", cluster="h100:8", search=False)
    assert run.plan.optimizer == "muon"
    assert {unit.strategy.zero_stage for unit in run.plan.units} == {zero}
    assert len(run.configuration.notes) == len(notes)
    assert all(stated in note for stated, note in zip(notes, run.configuration.notes, strict=True))


@pytest.mark.parametrize(
    ("arguments", "field", "problem", "fix"),
    [
        ("--optimizer sgd", "--optimizer", "sgd", ("adam", "muon", "dist_muon")),
        ("--optimizer muon --use-torch-fsdp2", "--optimizer", ("muon", "sharded"), ("FSDP", "adam")),
        (
            "--optimizer dist_muon --num-distributed-optimizer-instances 2",
            "--num-distributed-optimizer-instances",
            (2, "Muon"),
            "Muon",
        ),
    ],
)
def test_runs_that_muon_cannot_have_are_refused(tmp_path: Path, arguments: str, field: str, problem: Facts, fix: Facts) -> None:
    (tmp_path / "run.txt").write_text(f"{LLAMA} --micro-batch-size 1 --global-batch-size 64 {arguments}")
    with refused(field, problem=problem, fix=fix):
        tp.import_run(tmp_path / "run.txt", cluster="h100:8", search=False)


@pytest.mark.parametrize(
    "counts",
    [
        [[True, False, True] + [False] * 13, [True] + [False] * 15],
        [[True] * 2 + [False] * 14, [True] + [False] * 15],
        [[False] * 16, [True] * 16],
    ],
)
def test_other_layers_that_are_recomputed_become_all_of_them(counts: list[list[bool]]) -> None:
    made, again = tp.export(partly_recomputed(counts), "megatron"), 2 * sum(map(sum, counts))
    words = made.settings["arguments"]
    assert words[words.index("--recompute-method") + 1] == "uniform"
    assert f"the plan has {again} of 64, here all layers are; more time" in made.left_out[0]
