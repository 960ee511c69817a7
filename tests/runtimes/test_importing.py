"""Configurations of other runtimes as plans: exports read back, recipes by the documented keys, and what is refused by name."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from trainplan.execution.launch_files.run_configuration import UserSettings, affects_plan
from trainplan.execution.prediction.overlap import predict_overlapped
from trainplan.execution.runtimes.export_common import write_export
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.request import Request
from trainplan.formulations.plan.strategy import parse_strategy
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.models.model import load_model

import trainplan as tp
from tests.helpers.calls import call
from tests.helpers.exported_plans import random_exported
from tests.helpers.plans import plan_of
from tests.helpers.refusals import Facts, refused
from tests.helpers.sizes import first_and_others
from trainplan.imported_runs.assess import changes, neighbour_runs
from trainplan.imported_runs.neighbours import neighbours
from trainplan.imported_runs.to_plan import read
from trainplan.prediction.predict import predicted_plan
from trainplan.validation.predict import Prediction

LLAMA = """--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention
--num-query-groups 8 --seq-length 4096 --max-position-embeddings 8192 --swiglu --normalization RMSNorm --disable-bias-linear
--position-embedding-type rope --rotary-base 500000 --untie-embeddings-and-output-weights --attention-dropout 0
--hidden-dropout 0 --vocab-size 128256 --bf16 --lr 3e-4 --train-iters 1000"""
FSDP = "fsdp_config.fsdp_"
GPT3 = """--num-layers 96 --hidden-size 12288 --num-attention-heads 96 --seq-length 2048 --max-position-embeddings 2048
--attention-dropout 0 --hidden-dropout 0 --tokenizer-type GPT2BPETokenizer --bf16"""
FILES: dict[str, str] = {
    # Megatron-LM: sequence parallelism; interleaved stages; uneven ends; a layout; the oldest flag of recomputation.
    "llama.sh": f"""#!/bin/bash
# two nodes
GPUS=8; TP=2
PIPELINE_ARGS=(
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size ${{PP:-2}}  # of 8
    --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce
)
torchrun --nproc_per_node=$GPUS --nnodes 2 pretrain_gpt.py \\
    ${{PIPELINE_ARGS[@]}} {LLAMA.replace(chr(10), " ")} --micro-batch-size 1 --global-batch-size 64 "$@"
""",
    "gpt3.txt": f"{GPT3} --tensor-model-parallel-size 8 --pipeline-model-parallel-size 8 --micro-batch-size 1 "
    "--global-batch-size 128 --num-layers-per-virtual-pipeline-stage 6 --recompute-activations --sequence-parallel",
    "ends.txt": f"{LLAMA} --pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 7 "
    "--decoder-last-pipeline-num-layers 7 --micro-batch-size 2 --global-batch-size 64 --recompute-granularity full "
    "--recompute-method block --recompute-num-layers 4",
    "layout.txt": f"{LLAMA} --pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et*17|t*15L "
    "--micro-batch-size 1 --global-batch-size 32 --use-distributed-optimizer --num-distributed-optimizer-instances 2",
    # torchtitan
    "titan8.toml": """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
steps = 1000
[parallelism]
data_parallel_shard_degree = -1
[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
""",
    "titan70.toml": """[model]
name = "llama3"
flavor = "70B"
[optimizer]
lr = 1.5e-4
[training]
local_batch_size = 8
seq_len = 8192
[parallelism]
tensor_parallel_degree = 8
[activation_checkpoint]
mode = "full"
""",
    "titanpp.toml": """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 8
global_batch_size = 32
seq_len = 4096
[parallelism]
pipeline_parallel_degree = 2
pipeline_parallel_schedule = "Interleaved1F1B"
pipeline_parallel_microbatch_size = 1
tensor_parallel_degree = 2
[activation_checkpoint]
mode = "none"
""",
    # DeepSpeed
    "zero2.json": json.dumps(
        {
            "train_batch_size": 128,
            "gradient_accumulation_steps": 4,
            "bf16": {"enabled": True},
            "zero_optimization": {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 5e8},
            "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}},
            "gradient_clipping": 1.0,
        }
    ),
    "zero3.json": json.dumps(
        {
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": "auto",
            "bf16": {"enabled": True},
            "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": True}},
        }
    ),
    # Accelerate
    "fsdp2.yaml": """compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_machines: 2
num_processes: 16
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_activation_checkpointing: true
""",
    "hybrid.yaml": """distributed_type: FSDP
mixed_precision: bf16
num_processes: 16
fsdp_config:
  fsdp_sharding_strategy: HYBRID_SHARD
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
""",
    "ds.yaml": """distributed_type: DEEPSPEED
mixed_precision: bf16
num_processes: 16
deepspeed_config:
  zero_stage: 1
  gradient_accumulation_steps: 2
""",
}
OPTIONS: dict[str, dict[str, Any]] = {
    "gpt3.txt": {"cluster": "h100:8x16"},
    "titan70.toml": {"cluster": "h100:8x16"},
    "zero2.json": {"model": "llama3-8b", "sequence": 4096},
    "zero3.json": {"model": "llama3-8b", "sequence": 4096, "recompute": "full", "cluster": "h100:8x2"},
    "fsdp2.yaml": {"model": "llama3-8b", "sequence": 4096, "micro_batch": 1},
    "hybrid.yaml": {"model": "llama3-8b", "sequence": 4096, "batch": 32},
    "ds.yaml": {"model": "gpt2-xl", "micro_batch": 4, "sequence": 1024},
}
# Strategy of a feed-forward network in the middle, stages, schedule, samples of a step, micro-batches.
WANTED = {
    "llama.sh": ("sdp4-tp2-zero1-sp", 2, "1f1b", 64, 16),
    "gpt3.txt": ("dp2-tp8-sp", 16, "interleaved-1f1b", 128, 64),
    "ends.txt": ("dp4-ckpt", 4, "1f1b", 64, 8),
    "layout.txt": ("dp2-sdp4-zero1", 2, "1f1b", 32, 4),
    "titan8.toml": ("sdp16-ckpt:activation+norms", 1, "1f1b", 16, 1),
    "titan70.toml": ("sdp16-tp8-sp-ckpt", 1, "1f1b", 128, 1),
    "titanpp.toml": ("sdp4-tp2-zero2-sp", 4, "interleaved-1f1b", 32, 8),
    "zero2.json": ("sdp16-zero2", 1, "1f1b", 128, 4),
    "zero3.json": ("sdp16-ckpt", 1, "1f1b", 32, 1),
    "fsdp2.yaml": ("sdp16-ckpt", 1, "1f1b", 16, 1),
    "hybrid.yaml": ("dp2-sdp8", 1, "1f1b", 32, 1),
    "ds.yaml": ("sdp16-zero1", 1, "1f1b", 128, 2),
}


def written(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_text(FILES[name])
    return path


def judged(folder: Path, name: str, **more: Any) -> Any:
    return tp.import_run(written(folder, name), **{"cluster": "h100:8x2", **OPTIONS.get(name, {}), **more})


@pytest.mark.parametrize("name", first_and_others(list(FILES)))
def test_recipes_become_the_plans_that_they_run(tmp_path: Path, name: str) -> None:
    """Twelve recipes: layout, stages, batch; the prediction is that of the same plan, and no key is unknown."""
    run = judged(tmp_path, name, search=False)
    plan: Plan = run.plan
    middle = plan.units[len(plan.units) // 2]
    assert WANTED[name] == (
        str(next(unit for unit in (middle, plan.units[len(plan.units) // 2 + 1]) if unit.name.endswith("ffn")).strategy),
        len(plan.stages),
        plan.schedule,
        plan.batch.global_samples,
        plan.batch.micro_batches,
    )
    assert run.configuration.unknown == ()
    assert plan.predicted is not None and plan.predicted.step_ns == run.step_ns > 0
    assert len(run.peak_bytes) == plan.world and run.fits == (max(run.peak_bytes) <= plan.memory_bytes)
    assert isinstance(run.framework, Prediction) and run.judged.step_ns > 0
    if name == "ends.txt":
        layers = [sum(u.name.endswith("ffn") for u in plan.units[s.first_unit : s.last_unit + 1]) for s in plan.stages]
        again = [sum(u.strategy.ckpt for u in plan.units[s.first_unit : s.last_unit + 1]) // 2 for s in plan.stages]
        assert layers == [7, 9, 9, 7] and again == [4, 4, 4, 4]
        assert isinstance(run.framework, Prediction) and run.framework.step_s is not None
        assert run.framework.step_s == pytest.approx(run.judged.step_ns / 1e9, rel=0.1), "of these stages, not of even ones"
    if name == "zero3.json":
        assert {unit.states.optimizer for unit in plan.units} == {"host"}


def test_the_prediction_with_overlap_is_of_the_nodes_of_the_cluster(tmp_path: Path) -> None:
    """Tensor parallelism over two nodes of four, where links between nodes are slow: not that of a node of eight."""
    requested: dict[str, Any] = {"model": "qwen3-8b", "cluster": "rtx3090:4x2", "batch": 8, "sequence": 8192}
    chosen: dict[str, Any] = {"tp": 8, "pipeline": 1, "one_strategy": True, "for_": "megatron"}
    answer = tp.plan(**requested, **chosen, comparisons=False)
    assert answer.plan is not None and answer.answer.bound_ns is not None and answer.step_ns is not None
    for name, text in tp.export(answer.plan, "megatron").files.items():
        (tmp_path / name).write_text(text)
    run = tp.import_run(tmp_path / "launch.sh", **requested, search=False)
    assert isinstance(run.framework, Prediction) and run.framework.step_s is not None
    assert answer.judged is not None and answer.answer.bound_ns <= answer.judged.step_ns
    assert answer.step_ns == run.step_ns == pytest.approx(answer.judged.step_ns, rel=0.03)


@pytest.mark.long
@pytest.mark.parametrize("name", list(FILES))
def test_recipes_are_judged(tmp_path: Path, name: str) -> None:
    """The bound holds for the prediction of the run; what is to be changed first fits, and takes less time."""
    run = judged(tmp_path, name, time_limit=5, gap=0.05)
    assert run.best is not None and run.best.answer.bound_ns is not None
    assert run.bound_ns is None or run.bound_ns <= run.measured_ns
    assert run.gap is None or 0 <= run.gap < 1
    for change in run.changes[:3]:
        assert change.plan.predicted is not None and change.plan.predicted.most_bytes <= run.plan.memory_bytes
    if run.fits and run.changes:
        assert run.changes[0].plan.predicted.step_ns < run.step_ns


def read_back(plan: Plan, folder: Path, to: str, name: str) -> tuple[Any, Plan]:
    """The export, and the plan that its file stands for."""
    exported = tp.export(plan.changed(memory_bytes=2**47), to)
    write_export(exported, folder)
    size = min(8, plan.world)
    run = tp.import_run(folder / name, cluster=f"h100:{size}x{plan.world // size}", search=False, memory=2**47)
    return exported, run.plan


@pytest.mark.parametrize("seed", first_and_others(range(12), stride=2))
def test_megatron_exports_come_back_with_layout_and_step(tmp_path: Path, seed: int) -> None:
    """The layout and the step are those of the plan as exported; what it leaves out is named."""
    plan = random_exported(random.Random(seed)).changed(predicted=None)
    dtype = plan.planned_model().in_dtype("bfloat16")
    plan = plan.changed(model=dtype.shape(), precision={"master": "float32"})
    exported, back = read_back(plan, tmp_path, "megatron", "launch.sh")
    same_as(exported.plan, back)
    assert exported.left_out or [u.strategy.levels for u in plan.units] == [u.strategy.levels for u in back.units]


@pytest.mark.parametrize("seed", first_and_others(range(12), stride=2))
def test_torchtitan_exports_come_back_with_layout_and_step(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    model = load_model("llama3-70b" if seed > 6 else "llama3-8b", 1024, "bfloat16")
    levels = rng.choice([[("sdp", 4)], [("dp", 2), ("sdp", 2)], [("dp", 4)], [("sdp", 2), ("tp", 2)]])
    text = "-".join(f"{name}{degree}" for name, degree in levels)
    text += rng.choice(["-zero2", ""]) * (dict(levels).get("sdp", 1) > 1) + "-sp" * ("tp" in dict(levels))
    text += rng.choice(["", "-ckpt"])
    stages, micro = rng.choice([1, 2, 4]), rng.choice([4, 8])
    cuts = [1 + 2 * cut for cut in sorted(rng.sample(range(1, model.layers), stages - 1))]
    plan = plan_of(model, [text] * len(model.units), 4 * stages, 4 * micro, micro, cuts, rng.choice(["1f1b", "gpipe"]))
    exported, back = read_back(plan.changed(precision={"master": "float32"}), tmp_path, "torchtitan", "torchtitan.toml")
    same_as(exported.plan, back)


@pytest.mark.parametrize("text", ["sdp2-cp2-tp2-zero1-sp", "sdp2-cp4h-tp2-zero1-sp-ckpt", "dp2-cp4h", "cp2h-tp4-sp", "dp2-cp2"])
@pytest.mark.parametrize("target", ["megatron", "megatron-bridge"])
def test_what_context_parallel_ranks_exchange_comes_back_from_megatron(tmp_path: Path, target: str, text: str) -> None:
    model = load_model("llama3-8b", 1024, "bfloat16").with_fields(num_hidden_layers=4)
    strategy = parse_strategy(text)
    plan = plan_of(model, [text] * len(model.units), strategy.group, 16, 4).changed(precision={"master": "float32"})
    exported, back = read_back(plan, tmp_path, target, {"megatron": "launch.sh", "megatron-bridge": "bridge.yaml"}[target])
    cut_alike(exported.plan, back)
    assert len(exported.left_out) == strategy.ckpt, "but for embedding and head, which are not recomputed"
    assert {unit.layout.exchange for unit in back.units} == {strategy.exchange}
    if target == "megatron":
        words = exported.settings["arguments"]
        stated = [words[words.index(name) + 1] for name in ("--context-parallel-size", "--cp-comm-type")]
        assert stated == [str(strategy.degree("cp")), "a2a" if strategy.exchanges_heads else "p2p"]
    else:
        model_section = exported.settings["config"]["model"]
        assert model_section["context_parallel_size"] == strategy.degree("cp")
        assert model_section["cp_comm_type"] == ("a2a" if strategy.exchanges_heads else "p2p")


@pytest.mark.parametrize("name", ["llama3-8b", "qwen3-8b"])
def test_torchtitan_has_rings_of_keys_alone(tmp_path: Path, name: str) -> None:
    whole = load_model(name, 1024, "bfloat16")  # as torchtitan has it: its file does not state the number of layers
    short = whole.with_fields(num_hidden_layers=4)
    ring, heads, copies = (
        plan_of(model, [text] * len(model.units), 8, 16, 4).changed(precision={"master": "float32"})
        for model, text in ((whole, "sdp2-cp2-tp2-sp"), (short, "sdp2-cp2h-tp2-sp"), (short, "cp4-tp2-sp"))
    )
    exported, back = read_back(ring, tmp_path, "torchtitan", "torchtitan.toml")
    cut_alike(exported.plan, back)
    assert exported.settings["toml"]["parallelism"]["context_parallel_degree"] == 2
    assert "shared between" not in str(exported.left_out)
    with refused("units[0].layout.exchange", problem="heads", fix=("keys", "torchtitan")):
        tp.export(heads, "torchtitan")
    assert "among the ranks of cp; less memory" in str(tp.export(copies, "torchtitan").left_out)


def test_what_no_runtime_has_of_context_parallelism_is_refused() -> None:
    """Copies of keys, BERT, and what is not exported at all; a sliding window is gathered for."""
    model = load_model("llama3-8b", 1024, "bfloat16").with_fields(num_hidden_layers=4)
    copied = plan_of(model, ["cp16h"] * len(model.units), 16, 16, 4)
    with refused("units[0].strategy", problem="cp16h", fix=("cp16", "Megatron-LM")):
        tp.export(copied, "megatron")
    bert = load_model("bert-large", 512, "bfloat16")
    with refused("units[0].strategy", problem="cp2", fix=("dp", "sdp", "tp", "BertModel")):
        tp.export(plan_of(bert, ["cp2"] * len(bert.units), 2, 16, 4), "megatron")
    for target, field, problem in (
        ("deepspeed", "units[0].strategy", "cp2"),
        ("accelerate", "units[0].strategy", "cp2"),
        ("torch", "units[0].layout.levels", ("cp", "torch")),
    ):
        with refused(field, problem=problem, fix=("dp", "sdp", "tp")):
            tp.export(plan_of(model, ["cp2"] * len(model.units), 2, 16, 4), target)
    slides = load_model("mistral-7b", 1024, "bfloat16").with_fields(num_hidden_layers=4, sliding_window=256)
    exported = tp.export(plan_of(slides, ["cp2"] * len(slides.units), 2, 16, 4), "megatron")
    words = exported.settings["arguments"]
    assert words[words.index("--cp-comm-type") + 1] == "all_gather" and "more time" in str(exported.left_out)


def cut_alike(wanted: Plan, back: Plan) -> None:
    """As `same_as`, of plans that cut samples, on the lanes of frameworks."""
    assert (back.batch, back.stages, back.precision) == (wanted.batch, wanted.stages, wanted.precision)
    assert [unit.strategy for unit in back.units] == [unit.strategy for unit in wanted.units]
    size = min(8, wanted.world)
    judged = predict_overlapped(wanted, load_cluster(f"h100:{size}x{wanted.world // size}"))
    assert back.predicted is not None and back.predicted.cost_model == "streams"
    assert back.predicted.durations == dict(judged.carried()), "so that the walks say the same"


def same_as(wanted: Plan, back: Plan) -> None:
    """Equal stages, batch, layouts and model; programs of equal rounds, so that they take the same."""
    assert back.batch == wanted.batch and back.stages == wanted.stages and back.world == wanted.world
    assert len(wanted.stages) == 1 or back.schedule == wanted.schedule
    assert [unit.sublayer for unit in back.planned_model().units] == [unit.sublayer for unit in wanted.planned_model().units]
    assert [unit.strategy for unit in back.units] == [unit.strategy for unit in wanted.units]
    assert (back.precision, back.optimizer) == (wanted.precision, wanted.optimizer)
    size = min(8, wanted.world)
    cluster = load_cluster(f"h100:{size}x{wanted.world // size}")
    request = Request(wanted.planned_model(), cluster, wanted.batch.global_samples)
    simulated = predicted_plan(wanted, request)[0].predicted
    assert back.predicted is not None and simulated is not None
    assert (back.predicted.durations, back.predicted.stages) == (simulated.durations, simulated.stages), (
        "so that walks say the same"
    )


@pytest.mark.parametrize(
    ("name", "old", "new", "field", "problem", "fix"),
    [
        ("llama.sh", "--micro-batch-size 1", "--micro-batch-size 3", "--global-batch-size", (64, 3, 4), 60),
        ("llama.sh", "--num-layers 32", "--num-layers many", "--num-layers", "many", 1),
        ("llama.sh", "TP=2", "TP=$WIDTH", "--tensor-model-parallel-size", ("$WIDTH", "llama.sh:3"), "--set WIDTH=8"),
        ("llama.sh", "--swiglu", "--num-experts 8", "--num-experts", (8, "experts", 2), "dense"),
        ("llama.sh", "--bf16", "--context-parallel-size 3", "--pipeline-model-parallel-size", (2, "tp 2", "cp 3"), 16),
        ("llama.sh", "--bf16", "--context-parallel-size 4", "--context-parallel-size", (4, "ZeRO stage 1"), "more devices"),
        (
            "ends.txt", "--bf16", "--context-parallel-size 2 --cp-comm-type a2a+p2p", "--cp-comm-type", "a2a+p2p",
            ("p2p", "allgather", "a2a"),
        ),
        (
            "layout.txt", "Et*17", "t*17", "--pipeline-model-parallel-layout", ("t*17|t*15L", "E"), "Et*16|t*16L",
        ),
        ("layout.txt", "Et*17", "Et*16", "--pipeline-model-parallel-layout", (31, 32), "Et*16|t*16L"),
        (
            "titanpp.toml", "Interleaved1F1B", "ZBVZeroBubble", "parallelism.pipeline_parallel_schedule", "ZBVZeroBubble",
            ("1F1B", "GPipe", "Interleaved1F1B"),
        ),
        ("titan8.toml", '"selective"', '"some"', "activation_checkpoint.mode", "some", ("none", "full", "selective")),
        ("zero2.json", '"stage": 2', '"stage": 4', "zero_optimization.stage", 4, (0, 1, 2, 3)),
        ("zero2.json", "_steps\": 4", "_steps\": 5", "train_batch_size", (128, 1, 16, 5), 80),
        (
            "fsdp2.yaml", "distributed_type: FSDP", "distributed_type: TPU", "distributed_type", "TPU",
            ("MULTI_GPU", "FSDP", "DEEPSPEED"),
        ),
        ("fsdp2.yaml", "num_processes: 16", "num_processes: 8", "cluster", (16, 8), 8),
    ],
)  # fmt: skip
def test_errors_name_file_and_key(
    tmp_path: Path, name: str, old: str, new: str, field: str, problem: Facts, fix: Facts
) -> None:
    path = written(tmp_path, name)
    assert old in FILES[name]
    path.write_text(FILES[name].replace(old, new))
    with refused(field, where="command line" if field == "cluster" else path, problem=problem, fix=fix):
        tp.import_run(path, search=False, **{"cluster": "h100:8x2", **OPTIONS.get(name, {})})


@pytest.mark.parametrize(
    ("name", "added", "key", "value", "meant"),
    [
        ("ends.txt", " --recompute-gran full", "--recompute-gran", "full", ("--recompute-granularity",)),
        ("titan8.toml", "[metrics]\nlog_freq = 1\n[parallelisms]\nx = 1\n", "parallelisms.x", 1, ()),
        ("fsdp2.yaml", "  fsdp_ofload_params: true\n", f"{FSDP}ofload_params", "true", (f"{FSDP}offload_params",)),
    ],
)
def test_keys_that_nobody_knows_and_that_bear_on_the_run_are_refused(
    tmp_path: Path, name: str, added: str, key: str, value: str | int, meant: tuple[str, ...]
) -> None:
    """Until the user says that they change nothing; then they are listed as such."""
    path = written(tmp_path, name)
    path.write_text(FILES[name] + added)
    with refused(key, where=path, problem=value, fix=(f"--ignore {key}", *meant)):
        read(path)
    assert key in read(path, user=UserSettings(ignored=frozenset({key}))).unread


def test_keys_that_nobody_knows_and_that_bear_on_nothing_are_named(tmp_path: Path) -> None:
    path = written(tmp_path, "ends.txt")
    path.write_text(FILES["ends.txt"] + " --our-log-directory logs --log-intervall 3")
    assert read(path).unknown == ("--our-log-directory", "--log-intervall (did you mean --log-interval?)")


def test_every_value_that_was_taken_has_a_source(tmp_path: Path) -> None:
    path = written(tmp_path, "ends.txt")
    taken = {setting.key: setting for setting in read(path).taken}
    assert taken["--num-layers"].source == f"{path}:1"
    assert taken["--context-parallel-size"].value == 1
    assert taken["--context-parallel-size"].source == "default of Megatron-LM core 0.15"
    stated = tp.import_run(path, search=False, cluster="h100:8x2", **OPTIONS.get("ends.txt", {})).to_dict()["values"]
    assert {entry["key"] for entry in stated} == set(taken)


@pytest.mark.parametrize(
    "key",
    ["--num-layer", "--zero-stage", "training.tensor_parallel_degree", "model.hiddenSize", "fsdp_config.x", "lora_r", "adapter",
     "--checkpoint-activations", "--moe-grouped-gemm", "bf16_full_eval", "dp_shard_size", "load_in_8bit", "sequence_len"],
)  # fmt: skip
def test_names_that_bear_on_the_run(key: str) -> None:
    assert affects_plan(key)


@pytest.mark.parametrize(
    "key", ["--wandb-project", "--save-interval", "output_dir", "seed", "--tokenizer-model", "--lr", "--split"]
)
def test_names_that_bear_on_nothing(key: str) -> None:
    assert not affects_plan(key)


def test_variables_of_a_script_are_given(tmp_path: Path) -> None:
    path = written(tmp_path, "llama.sh")
    assert (
        read(path).pp == 2
        and read(path, user=UserSettings({"PP": "4"})).pp == 4
        and read(path, user=UserSettings({"TP": "4"})).tp == 4
    )


def test_neighbours_differ_in_one_decision_and_cost_what_the_runtime_takes(tmp_path: Path) -> None:
    """Every change is a plan that Megatron-LM's rules carry; the first ones are predicted, and take the stated time and
    memory."""
    path = written(tmp_path, "ends.txt")
    run = tp.import_run(path, cluster="h100:8x2", search=False)
    others = list(neighbours("megatron", run.plan))
    assert len({other.model_dump_json() for _, other in others}) == len(others) > 10
    for _, other in others:
        assert all(unit.strategy.zero_stage in (0, 1) for unit in other.units)
        assert other.batch.global_samples == run.plan.batch.global_samples
    request = Request(run.plan.planned_model(), load_cluster("h100:8x2"), 64)
    first = changes(run.configuration, run.plan, request, run.judged.step_ns, neighbour_runs("megatron", run.plan, request))
    assert first and first[0].plan.predicted is not None and first[0].plan.predicted.software == "megatron-core"
    assert first[0].share == pytest.approx(1 - first[0].plan.predicted.step_ns / run.step_ns)
    assert [change.share for change in first[:3]] == sorted((change.share for change in first[:3]), reverse=True)


def test_single_changes_of_runs_that_cut_samples(tmp_path: Path) -> None:
    """Degrees, exchange and recomputation, priced as the runtime is predicted."""
    flags = (
        "--context-parallel-size 2 --cp-comm-type a2a --micro-batch-size 1 --global-batch-size 16 --use-distributed-optimizer"
    )
    path = tmp_path / "cp.txt"
    path.write_text(f"{LLAMA} {flags} --recompute-granularity full --recompute-method uniform --recompute-num-layers 1")
    run = tp.import_run(path, cluster="h100:8", search=False)
    others = dict(neighbours("megatron", run.plan))
    degrees = {other.units[0].strategy.degree("cp") for other in others.values()}
    assert degrees == {1, 2, 4, 8} and not others["keys and values exchanged, around a ring"].units[0].strategy.exchanges_heads
    assert all(other.units[0].strategy.group * other.depth == 8 for other in others.values())
    request = Request(run.plan.planned_model(), load_cluster("h100:8"), 16)
    first, *_ = changes(run.configuration, run.plan, request, run.judged.step_ns, neighbour_runs("megatron", run.plan, request))
    assert first.what == "no recomputation" and first.plan.predicted is not None
    assert first.plan.predicted.step_ns == round((1 - first.share) * run.step_ns) < run.step_ns


def test_changes_stay_within_the_runtime(tmp_path: Path) -> None:
    """DeepSpeed and Accelerate get neither stages nor tensor parallelism; Accelerate no ZeRO stage 1."""
    for name, stages in (("zero2.json", {0, 1, 2, 3}), ("fsdp2.yaml", {0, 2, 3})):
        run = judged(tmp_path, name, search=False)
        others = [other for _, other in neighbours(run.configuration.runtime, run.plan)]
        assert others and {len(other.stages) for other in others} == {1}
        assert {unit.strategy.degree("tp") for other in others for unit in other.units} == {1}
        assert {other.units[0].strategy.zero_stage for other in others} == stages


def test_the_command_says_what_runs_and_what_would_be_better(tmp_path: Path) -> None:
    path = written(tmp_path, "ds.yaml")
    requested = ("--cluster", "h100:8x2", "--model", "gpt2-xl", "--micro-batch", "4", "--sequence", "1024", "--gap", "0.05")
    done = call("import-run", path, *requested, "--details", "-o", tmp_path / "plan.json")
    assert done.returncode == 0, done.stderr
    for label in ("predicted time", "predicted memory", "best in deepspeed", "proven lower bound", "proof", "taken otherwise"):
        assert f"\n{label} " in done.stdout
    assert "of deepspeed" in done.stdout and " a step (" in done.stdout
    assert "1 stage" in done.stdout and json.loads((tmp_path / "plan.json").read_text())["format"] == "trainplan-plan"
