"""One run has one step and one memory, whichever command is used: `import-run` of its configuration, `simulate` of the plan,
`validate` of a row that describes it, and `plan --for` of the same layout."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from trainplan.execution.launch_files.run_configuration import UserSettings
from trainplan.formulations.plan.plan import load_plan
from trainplan.formulations.plan.request import Request
from trainplan.profiling.base.quantities import format_bytes, format_time
from trainplan.profiling.clusters.cluster import load_cluster

import trainplan as tp
from tests.helpers.calls import call
from tests.helpers.refusals import refused
from tests.helpers.sizes import first_and_others
from trainplan.imported_runs.run_model import model_of
from trainplan.imported_runs.to_plan import plan_of, read, with_options
from trainplan.validation.plans import predict

TITAN = '[model]\nname = "llama3"\nflavor = "{flavour}"\n[training]\nlocal_batch_size = {mbs}\nseq_len = {seq}\n'
AC = {
    "none": 'mode = "none"',
    "full": 'mode = "full"',
    "selective-op": 'mode = "selective"\nselective_ac_option = "op"',
    "every 2nd": 'mode = "selective"\nselective_ac_option = "2"',
    None: "",
}


@dataclass(frozen=True)
class Case:
    """A run: the text of its configuration with a name, the cluster, what the file cannot say, and a row that describes it."""

    name: str
    text: str
    cluster: str
    stated: dict[str, Any]
    row: dict[str, Any]


def titan(kind: str, gpus: int, model: str, recompute: str | None = None, compiled: bool = False, **run: Any) -> Case:
    """torchtitan's TOML next to a row."""
    tp_, cp, pp = (run.get(name, 1) for name in ("tp", "cp", "pp"))
    mbs, seq, dp = run.get("mbs", 1), run.get("seq", 4096), gpus // (tp_ * cp * pp)
    local, count = (mbs, 1) if pp == 1 else (run["gbs"] // dp, run["gbs"] // dp)
    text = TITAN.format(flavour=model.rsplit("-", 1)[1].upper(), mbs=local, seq=seq)
    if pp == 1 and run.get("gbs"):
        text += f"global_batch_size = {run['gbs']}\n"
    text += f"[compile]\nenable = {str(compiled).lower()}\n[parallelism]\ntensor_parallel_degree = {tp_}\n"
    text += f"context_parallel_degree = {cp}\npipeline_parallel_degree = {pp}\n"
    if pp > 1:
        text += f'pipeline_parallel_schedule = "{"Interleaved1F1B" if run.get("vpp", 1) > 1 else "1F1B"}"\n'
    if recompute is not None:
        text += f"[activation_checkpoint]\n{AC[recompute]}\n"
    assert count
    row = {"framework": "torchtitan", "fsdp": "FSDP2", "recompute": recompute, "note": "torch.compile" if compiled else None}
    row |= {"model": model, "gpus": gpus, "mbs": mbs, "seq": seq, "gbs": run.get("gbs", mbs * dp), "precision": "bf16"}
    row |= {"tp": tp_, "cp": cp, "pp": pp, "vpp": run.get("vpp"), "zero": 2 if pp > 1 else 3}
    return Case("run.toml", text, nodes(kind, gpus), {}, row | {"gpu": kind})


def megatron(kind: str, gpus: int, model: str, recompute: str = "none", flags: str = "", **run: Any) -> Case:
    """Megatron-LM's arguments next to a row."""
    tp_, cp, pp, zero = (run.get(name, default) for name, default in (("tp", 1), ("cp", 1), ("pp", 1), ("zero", 1)))
    words = {
        "--tensor-model-parallel-size": tp_,
        "--pipeline-model-parallel-size": pp,
        "--context-parallel-size": cp,
        "--micro-batch-size": run.get("mbs", 1),
        "--global-batch-size": run["gbs"],
        "--seq-length": run.get("seq", 4096),
        "--max-position-embeddings": 131072,
    }
    text = f"torchrun --nproc_per_node {min(8, gpus)} --nnodes {max(1, gpus // 8)} pretrain_gpt.py --bf16 --use-mcore-models "
    text += " ".join(f"{key} {value}" for key, value in words.items())
    text += f" {MODELS[model]} {flags}" + " --use-distributed-optimizer" * (zero == 1) + " --sequence-parallel" * (tp_ > 1)
    text += " --cp-comm-type a2a" * (run.get("exchange") == "heads")
    if vpp := run.get("vpp"):
        text += f" --num-layers-per-virtual-pipeline-stage {LAYERS[model] // pp // vpp}"
    text += {
        "none": "",
        "full": " --recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
        "selective": " --recompute-granularity selective",
        "block 2": " --recompute-granularity full --recompute-method block --recompute-num-layers 2",
        "uniform 4": " --recompute-granularity full --recompute-method uniform --recompute-num-layers 4",
    }[recompute]
    row = {"framework": "Megatron-Core", "recompute": recompute, "model": model, "gpus": gpus, "gpu": kind, "precision": "bf16"}
    row |= {"tp": tp_, "cp": cp, "pp": pp, "vpp": run.get("vpp"), "zero": zero, "gbs": run["gbs"], "mbs": run.get("mbs", 1)}
    note = f"{flags.replace('--', '')} sequence parallel {'on' if tp_ > 1 else 'off'}"
    row |= {"seq": run.get("seq", 4096), "note": note + " cp-comm-type a2a" * (run.get("exchange") == "heads")}
    return Case("run.sh", text + "\n", nodes(kind, gpus), {}, row)


def deepspeed(kind: str, gpus: int, model: str, zero: int, recompute: str = "none", offload: str = "", **run: Any) -> Case:
    """DeepSpeed's JSON next to a row."""
    sharing: dict[str, Any] = {"stage": zero}
    if offload:
        sharing["offload_optimizer"] = {"device": "cpu"}
    if offload == "parameters":
        sharing["offload_param"] = {"device": "cpu"}
    gbs, mbs = run["gbs"], run.get("mbs", 1)
    content = {"bf16": {"enabled": True}, "zero_optimization": sharing, "train_micro_batch_size_per_gpu": mbs}
    content |= {"train_batch_size": gbs} | ({} if offload else {"data_types": {"grad_accum_dtype": "fp32"}})
    note = {"": "", "optimizer": "optimizer offload", "parameters": "optimizer offload, parameter offload"}[offload]
    note = note or "fp32 gradients, adamw_torch_fused"  # as transformers 5 steps where a file has no optimizer
    if zero in (1, 2):  # which the file does not turn on
        note += ", no overlap_comm"
    row = {"framework": "DeepSpeed", "model": model, "gpus": gpus, "gpu": kind, "precision": "bf16", "zero": zero}
    row |= {"gbs": gbs, "mbs": mbs, "seq": run.get("seq", 4096), "recompute": recompute, "tp": 1, "pp": 1, "cp": 1}
    stated = {"model": model, "sequence": run.get("seq", 4096), "recompute": recompute}
    return Case("ds.json", json.dumps(content), nodes(kind, gpus), stated, row | {"note": note})


def accelerate(kind: str, gpus: int, model: str, recompute: str = "none", **run: Any) -> Case:
    """Accelerate's YAML next to a row."""
    gbs, mbs = run["gbs"], run.get("mbs", 1)
    text = f"""compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_activation_checkpointing: {str(recompute == "full").lower()}
mixed_precision: bf16
num_processes: {gpus}
num_machines: {max(1, gpus // 8)}
"""
    stated = {"model": model, "sequence": run.get("seq", 4096), "batch": gbs, "micro_batch": mbs}
    row = {"framework": "Accelerate", "fsdp": "FSDP2", "model": model, "gpus": gpus, "gpu": kind, "precision": "bf16"}
    row |= {"gbs": gbs, "mbs": mbs, "seq": run.get("seq", 4096), "recompute": recompute, "tp": 1, "pp": 1, "cp": 1, "zero": 3}
    return Case("accelerate.yaml", text, nodes(kind, gpus), stated, row)


def of(case: Case, change: Callable[[str], str] = str, **row: Any) -> Case:
    """A run with another text, of which its row says so."""
    return replace(case, text=change(case.text), row={**case.row, **row})


def nodes(kind: str, gpus: int) -> str:
    """The usual nodes of a kind."""
    return f"{kind}:8x{gpus // 8}" if gpus > 8 else f"{kind}:{gpus}"


LLAMA = (
    "--swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear --num-layers {} --hidden-size {} "
    "--untie-embeddings-and-output-weights --ffn-hidden-size {} --num-attention-heads {} --vocab-size {}"
)
GROUPED = "--group-query-attention --num-query-groups 8"
MODELS = {
    "llama3-8b": f"{LLAMA.format(32, 4096, 14336, 32, 128256)} {GROUPED}",
    "llama2-13b": LLAMA.format(40, 5120, 13824, 40, 32000),
    "llama3-70b": f"{LLAMA.format(80, 8192, 28672, 64, 128256)} {GROUPED}",
}
MODELS["llama3.2-1b"] = f"{LLAMA.format(16, 2048, 8192, 32, 128256)} {GROUPED}".replace(
    "--untie-embeddings-and-output-weights", ""
)
LAYERS = {"llama3-8b": 32, "llama2-13b": 40, "llama3-70b": 80, "llama3.2-1b": 16}
COPIES = "data_parallel_replicate_degree = 4\ndata_parallel_shard_degree = 8"
FP8 = "--fp8-format hybrid --fp8-recipe"
ENDS = "--decoder-first-pipeline-num-layers 7 --decoder-last-pipeline-num-layers 7"
BOTH = "--overlap-grad-reduce --overlap-param-gather"
CASES = [
    titan("h100-96gb", 8, "llama3-8b", "selective-op", compiled=True, seq=8192),
    titan("h100", 8, "llama3-8b", "full"),
    titan("h100", 16, "llama3-8b", "every 2nd", mbs=2),
    titan("h100", 8, "llama3-8b", None),
    titan("a100", 64, "llama3-8b", "none", compiled=True),
    titan("h200", 8, "llama3-8b", "full", tp=2, gbs=16),
    titan("h100", 64, "llama3-70b", "full", tp=8),
    titan("h100", 16, "llama3-8b", "full", cp=2, seq=8192),
    titan("h100", 16, "llama3-8b", "full", pp=2, gbs=64),
    titan("h100", 32, "llama3-8b", "none", pp=4, vpp=2, gbs=64),
    megatron("a100", 8, "llama2-13b", "selective", BOTH, tp=4, gbs=32),
    megatron("h100", 16, "llama3-8b", "none", BOTH, tp=2, gbs=128),
    megatron("h100", 16, "llama3-8b", "none", "", tp=2, pp=2, gbs=64, zero=0),
    megatron("h100", 64, "llama3-70b", "full", BOTH, tp=4, pp=4, vpp=5, gbs=128),
    megatron("h100", 64, "llama3-70b", "block 2", "--overlap-grad-reduce", tp=8, pp=2, gbs=64),
    megatron("h200", 32, "llama3-8b", "selective", BOTH, cp=4, seq=32768, gbs=32),
    megatron("h100", 16, "llama3-8b", "none", BOTH, cp=2, tp=2, exchange="heads", seq=8192, gbs=16),
    megatron("a800", 16, "llama2-13b", "full", BOTH, tp=2, gbs=64),
    megatron("b200", 8, "llama3-8b", "none", BOTH, gbs=64),
    megatron("h800", 16, "llama3-8b", "full", f"{BOTH} --tp-comm-overlap", tp=4, mbs=2, gbs=64),
    deepspeed("a100", 8, "llama2-13b", 3, "full", gbs=64),
    deepspeed("h100", 16, "llama3-8b", 2, "full", gbs=64, mbs=2),
    deepspeed("a100", 8, "llama2-7b", 1, "none", gbs=32),
    deepspeed("h100", 8, "mistral-7b", 0, "full", gbs=16),
    deepspeed("a100", 8, "llama2-13b", 3, "full", offload="optimizer", gbs=32),
    deepspeed("a100", 8, "llama2-13b", 3, "full", offload="parameters", gbs=32),
    accelerate("h100", 8, "llama3-8b", "full", gbs=32),
    accelerate("a100-40gb", 16, "llama2-7b", "full", gbs=32, mbs=2),
    accelerate("h100", 8, "qwen2.5-7b", "none", gbs=8),
    accelerate("rtx5090", 8, "llama3.2-1b", "full", gbs=16, seq=2048),
    megatron("h100", 16, "llama3-8b", "uniform 4", "--overlap-grad-reduce", tp=2, pp=2, vpp=2, gbs=32),
    megatron("h100", 16, "llama3-8b", "none", BOTH, tp=2, cp=2, seq=8192, gbs=16, zero=0),
    of(megatron("h100", 16, "llama3-8b", "none", f"{BOTH} {FP8} delayed", tp=2, gbs=64), precision="fp8 delayed"),
    of(megatron("h100", 16, "llama3-8b", "none", f"{BOTH} {FP8} tensorwise", tp=2, gbs=64), precision="fp8 current scaling"),
    of(megatron("b200", 16, "llama3-8b", "none", f"{BOTH} {FP8} mxfp8", tp=2, gbs=64), precision="mxfp8"),
    megatron("a100", 8, "llama3.2-1b", "none", BOTH, gbs=64),
    megatron("a100", 8, "llama3.2-1b", "none", BOTH, pp=2, gbs=64),
    of(
        megatron("h100", 16, "llama3-8b", "selective", f"{BOTH} --recompute-modules core_attn layernorm", tp=2, gbs=64),
        recompute="selective(core_attn layernorm)",
    ),
    of(megatron("h100", 16, "llama3-8b", "none", "--optimizer muon", zero=0, gbs=64), note="muon"),
    megatron("h100", 32, "llama3-8b", "block 2", BOTH, tp=2, pp=4, vpp=2, gbs=64),
    megatron("h200", 32, "llama3-8b", "full", BOTH, cp=8, exchange="heads", seq=65536, gbs=8),
    megatron("h100", 32, "llama3-8b", "full", BOTH, tp=2, cp=2, pp=2, vpp=2, seq=16384, gbs=32),
    of(
        megatron("h100", 32, "llama3-8b", "full", f"{BOTH} {ENDS}", tp=2, pp=4, gbs=32),
        note=f"{BOTH} {ENDS} sequence parallel on".replace("--", ""),
    ),
    of(
        megatron("h100", 16, "llama3-8b", "none", f"{BOTH} --attention-backend unfused", tp=2, gbs=16),
        note=f"{BOTH.replace('--', '')} attention-backend unfused attention-dropout 0.1 sequence parallel on",
    ),
    of(
        megatron("v100-32gb", 16, "llama3-8b", "full", "--attention-dropout 0.0", tp=8, gbs=64),
        lambda text: text.replace("--bf16", "--fp16"), precision="fp16", note="attention-dropout 0.0 sequence parallel on",
    ),
    of(
        titan("h100", 32, "llama3-8b", "full"),
        lambda text: text.replace("[parallelism]", f"[parallelism]\n{COPIES}"), fsdp="HSDP 4x8",
    ),
    titan("h100", 8, "llama3-8b", "full", gbs=64),
    titan("h200", 16, "llama3-8b", "full", cp=4, seq=32768),
    titan("h100", 32, "llama3-8b", "full", tp=4, cp=2, seq=16384, compiled=True),
    deepspeed("h100", 8, "llama3.2-1b", 0, "none", gbs=32, mbs=2),
    deepspeed("a100", 8, "llama2-7b", 2, "full", offload="optimizer", gbs=32),
    of(deepspeed("v100-32gb", 16, "llama2-7b", 3, "full", gbs=64), lambda text: text.replace("bf16", "fp16"), precision="fp16"),
    deepspeed("h200", 8, "qwen2.5-7b", 3, "none", gbs=64, mbs=2),
    of(
        accelerate("a100-40gb", 8, "llama2-7b", "full", gbs=32),
        lambda text: text.replace("fsdp_version: 2", "fsdp_version: 2\n  fsdp_offload_params: true"), note="parameter offload",
    ),
    of(accelerate("h100", 8, "llama2-7b", "full", gbs=32), lambda text: text.replace("bf16", "fp16"), precision="fp16"),
    accelerate("mi300x", 8, "llama3-8b", "full", gbs=64, mbs=2),
]  # fmt: skip


def reported_by_validate(case: Case) -> tuple[int, int]:
    """The step in ns and the peak in bytes of the row."""
    [row] = tp.validate([{"id": "row", **case.row}])
    assert not row.cannot, row.cannot
    assert row.step is not None and row.memory is not None  # what is allocated: a framework may print what is reserved
    return round(row.step.step_ns), round(row.memory.peak_bytes)


@pytest.mark.parametrize("index", range(len(CASES)))
def test_a_configuration_and_a_row_of_one_run_have_one_prediction(index: int, tmp_path: Path) -> None:
    """To the nanosecond and the byte."""
    case = CASES[index]
    path = tmp_path / case.name
    path.write_text(case.text)
    model = case.stated.get("model")
    read_as = read(path, None, UserSettings(recompute=case.stated.get("recompute"), model=model))
    configuration = with_options(read_as, case.stated.get("batch"), case.stated.get("micro_batch"))
    cluster = load_cluster(case.cluster)
    request = Request(model_of(configuration, model, case.stated.get("sequence"), None, cluster), cluster, None)
    assert request.model is not None and request.cluster is not None
    found = predict(plan_of(configuration, request.model, request), request.cluster)
    assert not isinstance(found, str)
    assert (found.step_ns, found.most_bytes) == reported_by_validate(case)


@pytest.mark.parametrize("index", first_and_others([0, 22, 28, *(x for x in range(len(CASES)) if x not in (0, 22, 28))], 3, 5))
def test_import_run_simulate_and_validate_say_one_step_and_one_memory(index: int, tmp_path: Path) -> None:
    case = CASES[index]
    path = tmp_path / case.name
    path.write_text(case.text)
    run = tp.import_run(path, cluster=case.cluster, search=False, **case.stated)
    assert not isinstance(run.framework, str), run.framework
    imported = run.step_ns, max(run.peak_bytes)
    plan = run.plan.predicted
    assert plan is not None and imported == (plan.step_ns, plan.most_bytes)
    assert run.to_dict()["step_ns"] == run.step_ns
    saved = tmp_path / "plan.json"
    saved.write_text(run.plan.model_dump_json())
    for devices in (None, case.cluster):
        simulated = tp.simulate(saved, cluster=devices)
        assert (simulated.step_ns, max(simulated.peak_bytes)) == imported
    assert reported_by_validate(case) == imported


@pytest.mark.parametrize(
    ("model", "cluster", "runtime"),
    first_and_others(
        [
            ("llama3-8b", "h100:8", "megatron"),
            ("llama3-8b", "h100:8", "torchtitan"),
            ("llama2-13b", "a100:8", "deepspeed"),
            ("llama3-8b", "h100-64", "accelerate"),
        ]
    ),
)
def test_plan_for_a_runtime_says_what_simulate_says(model: str, cluster: str, runtime: str, tmp_path: Path) -> None:
    """The prediction is that of the plan itself, of the same layout for that runtime, and of what is exported of it and read
    again."""
    devices = load_cluster(cluster)
    request: dict[str, Any] = {"model": model, "cluster": devices, "batch": 4 * devices.devices, "sequence": 4096}
    found = tp.plan(**request, dtype="bf16", for_=runtime, gap=0.1, comparisons=False)
    plan = found.plan
    assert plan is not None and plan.predicted is not None and found.judged is not None
    stated = plan.predicted.step_ns, plan.predicted.most_bytes
    assert plan.predicted.software and found.performance is not None and found.performance.step_ns == stated[0] == found.step_ns
    simulated = tp.simulate(plan, cluster=cluster)
    assert (simulated.step_ns, max(simulated.peak_bytes)) == stated
    again = tp.simulate(plan.changed(runs_by=None, predicted=None), cluster=cluster, for_=runtime)
    assert (again.step_ns, max(again.peak_bytes)) == stated
    if runtime == "megatron":
        for name, text in tp.export(plan, runtime).files.items():
            (tmp_path / name).write_text(text)
        read = tp.import_run(tmp_path / "launch.sh", cluster=cluster, search=False)
        assert (read.step_ns, max(read.peak_bytes)) == stated


def test_on_a_paper_s_cluster_the_simulations_are_the_prediction_and_that_is_stated(tmp_path: Path) -> None:
    """Nothing is known of its kernels by classes, by which runtimes are predicted."""
    case = CASES[27]
    path = tmp_path / case.name
    path.write_text(case.text)
    run = tp.import_run(path, cluster="a100-16", search=False, **case.stated)
    assert isinstance(run.framework, str) and "with the numbers of the paper Galvatron-BMW" in run.framework
    assert (run.step_ns, max(run.peak_bytes)) == (run.judged.step_ns, max(run.judged.peak_bytes))
    done = call("import-run", path, "--cluster", "a100-16", "--no-search", "--details", *flags(case.stated))
    assert done.returncode in (0, 1) and "not as PyTorch FSDP (Accelerate) overlaps" in done.stdout
    assert "with the numbers of the paper Galvatron-BMW, not of data sheets" in done.stdout


def flags(stated: dict[str, Any]) -> list[str]:
    """Arguments as the command's options."""
    return [text for name, value in stated.items() for text in (f"--{name.replace('_', '-')}", str(value))]


def test_simulate_of_a_plan_for_no_other_runtime_is_its_simulation(tmp_path: Path) -> None:
    plan = tp.plan(model="gpt2", cluster="h100:8", batch=64, dtype="bf16", gap=0.1, comparisons=False, for_="accelerate").plan
    assert plan is not None and plan.predicted is not None
    own = tp.simulate(plan, cluster="h100:8", for_="trainplan")
    assert own.judged is not None and own.software == "" and own.step_ns == own.judged.step_ns
    streams = tp.simulate(plan, cluster="h100:8", cost_model="streams")
    assert streams.judged is not None and streams.step_ns == streams.judged.step_ns
    with refused("cluster", fix="devices"):
        tp.simulate(plan, for_="megatron")
    with refused("for", problem="megatorn", fix="megatron"):
        tp.simulate(plan, cluster="h100:8", for_="megatorn")


def test_every_page_of_a_plan_says_its_runtime_s_step_and_memory(tmp_path: Path) -> None:
    """And no bound of simulations of its programs as if it were one of that step."""
    saved = tmp_path / "plan.json"
    requested = (
        "--model",
        "llama3-8b",
        "--cluster",
        "h100:8",
        "--batch",
        64,
        "--sequence",
        4096,
        "--for",
        "megatron",
        "--gap",
        0.1,
    )
    planned = call("plan", *requested, "--details", "-o", saved)
    assert planned.returncode == 0
    (price,) = (line for line in planned.stdout.splitlines() if line.startswith("price of --for megatron"))
    assert ("predicted" in price or "not known" in price) and "programs" not in price
    plan = load_plan(saved)
    assert plan.predicted is not None
    step, memory = format_time(plan.predicted.step_ns), format_bytes(plan.predicted.most_bytes)
    walk = tp.simulate(plan, cluster="h100:8").judged
    assert walk is not None and memory != format_bytes(max(walk.peak_bytes)), "the walks say another"
    page = tp.export(plan, "megatron").files["README.md"]
    assert f"{step} (with overlap, as megatron-core overlaps)" in page and f"memory, as exported | {memory}" in page
    explained = tp.explain(plan, time_limit=1.0)
    assert explained.step_ns == plan.predicted.step_ns and explained.software == "megatron-core"
    assert max(stage.peak_bytes for stage in explained.stages) == plan.predicted.most_bytes
    stated = call("explain", saved, "--time-limit", "1").stdout
    assert f"{step}, as Megatron-LM runs it" in stated and memory in stated


@pytest.mark.parametrize("alone", [True, False])
def test_a_gap_is_of_what_the_bound_is_of(alone: bool, tmp_path: Path) -> None:
    """Of the runtime's prediction where there is one, and else of the analyses of programs, and reported as theirs."""
    path = tmp_path / "accelerate.yaml"
    cluster = "a100-16" if alone else "a100-40gb:8x2"  # on a paper's cluster the simulations are the prediction
    path.write_text(accelerate("a100-40gb", 16, "gpt2", gbs=64).text)
    stated = {"model": "gpt2", "sequence": 1024, "batch": 64, "micro_batch": 4}
    requested = [*flags(stated), "--gap", "0.1", "--time-limit", "5"]
    content = json.loads(call("import-run", path, "--cluster", cluster, *requested, "--json").stdout)
    walk = content["walk"]
    assert content["gap"] is not None and 0 <= content["gap"] == pytest.approx(1 - content["bound_ns"] / content["step_ns"])
    assert walk["gap"] == (content["gap"] if alone else None) and "bound_ns" not in content["best"]
    assert walk["step_ns"] == content["step_ns"] or not alone
    text = call("import-run", path, "--cluster", cluster, *requested, "--details").stdout
    assert "\nproven lower bound " in text and ("any plan for Accelerate, by its prediction" in " ".join(text.split())) != alone


def test_a_bound_that_is_not_of_a_run_is_not_held_against_it(tmp_path: Path) -> None:
    """It is of plans that fit by their predicted memory, within the space that was searched, with settings of an export."""
    path = tmp_path / "accelerate.yaml"
    path.write_text(accelerate("h100", 8, "gpt2", gbs=64).text)
    run = tp.import_run(path, cluster="h100:8", model="gpt2", sequence=1024, batch=64, micro_batch=8, gap=0.1, time_limit=5)
    assert run.best is not None and run.gap is not None and not run.no_gap
    predicted = run.plan.predicted
    assert run.bound_ns is not None and run.by_prediction and predicted is not None
    faster = replace(run, plan=run.plan.changed(predicted=predicted.changed(step_ns=run.bound_ns - 1)))
    fuller = replace(run, plan=run.plan.changed(memory_bytes=max(run.peak_bytes) - 1))
    for other in (faster, fuller):
        assert other.bound_ns is None and other.gap is None and other.no_gap
        assert other.to_dict()["bound_ns"] is other.to_dict()["walk"]["bound_ns"] is None
