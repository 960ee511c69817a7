"""Plans for other runtimes, judged by those runtimes' rules: torch's own code, and Megatron-LM's as written down here."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.pipelining import schedules as torchs
from trainplan.execution.runtimes.export_common import pass_names, write_export
from trainplan.formulations.plan.plan import Plan, load_plan
from trainplan.profiling.models.model import load_model, model_from_config

import trainplan as tp
from tests.helpers.refusals import Facts, refused

COMMON = {"num_hidden_layers": 3, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 40}
TINY: dict[str, dict[str, Any]] = {
    "gpt2": {"model_type": "gpt2", "n_layer": 3, "n_embd": 16, "n_head": 2, "vocab_size": 40, "n_positions": 8}
    | dict.fromkeys(("attn_pdrop", "resid_pdrop", "embd_pdrop"), 0.0),
    "bert": {"model_type": "bert", **COMMON, "max_position_embeddings": 8}
    | dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0),
    "llama": {"model_type": "llama", **COMMON, "max_position_embeddings": 8},
}
DECODER = {**COMMON, "max_position_embeddings": 8, "num_key_value_heads": 1, "pad_token_id": None}
TINY |= {
    "mistral": {"model_type": "mistral", **DECODER, "sliding_window": 3},
    "qwen2": {"model_type": "qwen2", **DECODER, "use_sliding_window": True, "sliding_window": 2, "max_window_layers": 1},
    "qwen3": {"model_type": "qwen3", **DECODER, "head_dim": 6},
    "phi3": {"model_type": "phi3", **DECODER, "resid_pdrop": 0.0},
    "glm": {"model_type": "glm", **DECODER, "head_dim": 8},
    "nemotron": {"model_type": "nemotron", **DECODER},
}

ENDS_KEPT = "recomputation of embedding and head"


def plan_of(config: dict[str, Any] | str, firsts: list[int], micro_batches: int = 4, **changes: Any) -> Plan:
    """A plan whose stages begin at these units (the first at 0). strategies: of all units, or of each."""
    model = load_model(config, dtype="float32") if isinstance(config, str) else model_from_config(config, "config", name="tiny")
    if "dtype" in changes:
        model = model.in_dtype(changes.pop("dtype"))
    strategies = changes.pop("strategies", "single")
    by_unit = [strategies] * len(model.units) if isinstance(strategies, str) else strategies
    size = changes.pop("size", 1)
    ends = [*firsts[1:], len(model.units)]
    stages = [
        {"ranks": list(range(i * size, (i + 1) * size)), "first_unit": first, "last_unit": end - 1}
        for i, (first, end) in enumerate(zip(firsts, ends, strict=True))
    ]
    fields: dict[str, Any] = {
        "model": model.shape(),
        "model_digest": model.digest,
        "world": size * len(firsts),
        "memory_bytes": 2**34,
        "batch": {"global_samples": changes.pop("samples", 4 * size * micro_batches), "micro_batches": micro_batches},
        "stages": stages,
        "units": [{"name": unit.name, "strategy": text} for unit, text in zip(model.units, by_unit, strict=True)],
    }
    return load_plan({**fields, **changes})


def not_exported(plan: Plan, to: str, field: str, problem: Facts, fix: Facts = ()) -> None:
    """The export of a plan to a runtime is refused by a field of the plan."""
    with refused(field, where="plan", problem=problem, fix=fix):
        tp.export(plan, to)


# --- torch


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 1), (2, 4), (3, 2), (4, 4), (5, 9), (8, 3), (8, 16)])
def test_torch_takes_the_order_of_passes(schedule: str, stages: int, micro_batches: int) -> None:
    plan = plan_of("gpt2", list(range(stages)), micro_batches, schedule=schedule)
    read = {rank: [torchs._Action.from_str(cell) for cell in row] for rank, row in enumerate(pass_names(plan))}
    mapping = torchs._validate_schedule(read, stages, stages, micro_batches)
    assert mapping == {rank: rank for rank in range(stages)}
    lowered = torchs._add_send_recv(read, lambda stage: stage, stages)
    torchs._simulate_comms_compute(lowered, lambda stage: stage, stages)  # raises where it is stuck
    for rank, actions in read.items():
        flying = most = 0
        for action in actions:
            flying += 1 if action.computation_type == torchs.FORWARD else -1
            most = max(most, flying)
        assert most == (micro_batches if schedule == "gpipe" else min(micro_batches, stages - rank))


def test_1f1b_is_torchs_own() -> None:
    """Schedule1F1B holds the warm-up at p - rank forward passes, then takes backward and forward in turn."""
    assert pass_names(plan_of("gpt2", [0, 5, 9])) == [
        ["0F0", "0F1", "0F2", "0B0", "0F3", "0B1", "0B2", "0B3"],
        ["1F0", "1F1", "1B0", "1F2", "1B1", "1F3", "1B2", "1B3"],
        ["2F0", "2B0", "2F1", "2B1", "2F2", "2B2", "2F3", "2B3"],
    ]


def test_what_the_script_for_torch_cannot_carry_is_refused() -> None:
    sliced = tp.export(plan_of("gpt2", [0, 10], sliced=1), "torch")
    assert [line.split(":")[0] for line in sliced.left_out] == ["sliced"]
    moved = tp.export(plan_of("gpt2", [0, 10], placement=[1, 0]), "torch")
    assert [line.split(":")[0] for line in moved.left_out] == ["placement"]
    assert tp.export(plan_of("gpt2", [0, 10], placement=[0, 1]), "torch").left_out == ()
    kept = tp.export(plan_of(TINY["llama"], [0], strategies="single-ckpt:attention+norms"), "torch")
    assert [line.split(":")[0] for line in kept.left_out] == ["recomputation of norms"]
    tensor = plan_of("gpt2", [0, 10], size=2, strategies="tp2")
    not_exported(tensor, "torch", "units[0].strategy", ("tp2", "c_attn"), "--for torch")
    padded = {**TINY["llama"], "pad_token_id": 0}
    tensor = plan_of(padded, [0], size=2, strategies="tp2")
    not_exported(tensor, "torch", "units[0].strategy", ("tp2", "padding", "0"), "--for torch")
    not_exported(plan_of("vit-base", [0, 3]), "torch", "model.config.model_type", ("vit", "torch"), ("gpt2", "llama"))
    not_exported(plan_of("bert-large", [0, 3]), "torch", "model.config.model_type", ("bert", "torch"), ("gpt2", "llama"))
    units = ["dp2"] * 3 + ["tp2"] * 5
    unlike = plan_of(TINY["llama"], [0], size=2, strategies=units)
    not_exported(unlike, "torch", "units[3].strategy", ("tp2", "units[0]", "dp2"), "--one-strategy")
    some = ["single", "single-ckpt:activation", *["single"] * 6]
    unlike = plan_of(TINY["llama"], [0], strategies=some)
    not_exported(unlike, "torch", "units[3].activations.recompute", ("[]", "['activation']", "units[1]"), "modules")
    small = plan_of("gpt2", [0], memory_bytes=2**20)
    not_exported(small, "torch", "memory_bytes", ("1 MiB", "5.051 GiB"), ("--for", "--reserve"))
    shares = {"global_samples": 12, "micro_batches": 2, "shares": [2, 1]}
    uneven = plan_of("gpt2", [0, 10], size=2, strategies="dp2", batch=shares)
    for to in ("torch", "megatron"):
        not_exported(uneven, to, "batch.shares", "[2, 1]", "uneven shares")
    with refused("to", problem="nccl", fix=("megatron", "megatron-bridge", "torchtitan", "deepspeed", "accelerate", "torch")):
        tp.export(plan_of("gpt2", [0, 3]), "nccl")


# --- torchtitan


def titan_apply(text: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The generated function, applied to a configuration; full recomputation is the word `full`."""
    names: dict[str, Any] = {}
    full = SimpleNamespace(FullAC=SimpleNamespace(Config=lambda: "full"))
    for name in ("torchtitan", "torchtitan.distributed", "torchtitan.distributed.activation_checkpoint"):
        monkeypatch.setitem(sys.modules, name, full)  # type: ignore[arg-type]
    exec(compile(ast.parse(text), "torchtitan_config.py", "exec"), names)
    return names["apply"](SimpleNamespace(parallelism=SimpleNamespace(), training=SimpleNamespace()))


def test_torchtitan(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of("llama2-7b", [0, 1, 21, 63, 65], 8, size=4, strategies="dp2-tp2-ckpt", samples=32, memory_bytes=2**36)
    found = tp.export(plan, "torchtitan")
    toml = tomllib.loads(found.files["torchtitan.toml"])
    assert toml == found.settings["toml"]
    parallel, parts = toml["parallelism"], toml["parallelism"]["module_fqns_per_model_part"]
    assert len(parts) == parallel["pipeline_parallel_degree"] == 5
    layers = [f"layers.{i}" for i in range(32)]
    assert [name for part in parts for name in part] == ["tok_embeddings", *layers, "norm", "output"]
    assert [len(part) for part in parts] == [1, 10, 21, 1, 2]
    training = toml["training"]
    assert training["local_batch_size"] // parallel["pipeline_parallel_microbatch_size"] == 8
    dp = parallel["data_parallel_replicate_degree"] * parallel["data_parallel_shard_degree"]
    assert training["local_batch_size"] * dp == training["global_batch_size"] == 32
    assert dp * parallel["tensor_parallel_degree"] * parallel["pipeline_parallel_degree"] == plan.world
    assert toml["activation_checkpoint"] == {"mode": "full"}
    assert parallel["pipeline_parallel_schedule"] == "1F1B" and "schedule.csv" not in found.files
    assert [line.split(":")[0] for line in found.left_out] == ["dp2-tp2", "tokens", ENDS_KEPT, "the model llama2-7b"]
    config = titan_apply(found.files["torchtitan_config.py"], monkeypatch)
    renamed = [[{"output": "lm_head"}.get(name, name) for name in part] for part in parts]
    assert vars(config.parallelism) == {**parallel, "module_fqns_per_model_part": renamed}
    yours = ("dataset", "steps")
    ours = {name: value for name, value in training.items() if name not in yours}
    assert vars(config.training) == {**ours, "disable_cuda_graphs": True} and config.activation_checkpoint == "full"


def test_torchtitan_says_what_no_plan_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own defaults are a tokenizer and texts of its tests, 10,000 steps, and a rate of 8e-4: none is left to them."""
    plan = plan_of("llama3-8b", [0, 31], size=2, strategies="sdp2", memory_bytes=2**40)
    left = tp.export(plan, "torchtitan")
    toml = tomllib.loads(left.files["torchtitan.toml"])
    assert toml["model"]["hf_assets_path"].startswith("FILL-IN") and "dataset_path" not in toml["training"]
    stated = (
        toml["training"]["dataset"],
        toml["training"]["steps"],
        toml["optimizer"]["lr"],
        toml["lr_scheduler"]["warmup_steps"],
    )
    assert stated == ("c4", 100, 3e-4, 10)
    for name in ("hf_assets_path", "dataset", "steps", "lr", "warmup_steps"):
        assert re.search(rf"^{name} = .*# yours: ", left.files["torchtitan.toml"], re.MULTILINE)
    assert "to be filled in, in the lines that say so: tokenizer, data, steps, learning rate" in left.files["README.md"]
    monkeypatch.chdir(tmp_path)
    saved = tmp_path / "plan.json"
    saved.write_text(plan.model_dump_json())
    requested = ("--tokenizer", "llama", "--data", "/texts", "--steps", "5000", "--learning-rate", "1e-4")
    assert call(saved, "--to", "torchtitan", *requested, "-o", tmp_path / "run").returncode == 0
    toml, page = tomllib.loads((tmp_path / "run/torchtitan.toml").read_text()), (tmp_path / "run/README.md").read_text()
    assert (toml["model"]["hf_assets_path"], toml["training"]["dataset_path"]) == (f"{Path.cwd()}/llama", "/texts")
    assert (toml["training"]["steps"], toml["optimizer"]["lr"], toml["lr_scheduler"]["warmup_steps"]) == (5000, 1e-4, 500)
    assert "to be filled in" not in page
    script = (tmp_path / "run/torchtitan_config.py").read_text()
    for line in (f'TOKENIZER = "{Path.cwd()}/llama"', 'DATASET_PATH = "/texts"', "STEPS = 5000", "LEARNING_RATE = 0.0001"):
        assert line in script
    for option, stated in (("--steps", "0"), ("--learning-rate", "0")):
        assert call(saved, "--to", "torchtitan", option, stated).returncode == 2
    refused = call(saved, "--to", "megatron", "--steps", "5")
    assert refused.returncode == 2 and "--steps is given with --to megatron; leave it out" in refused.stderr


@pytest.mark.parametrize(
    ("version", "words"), [(None, "--job.config_file {}/torchtitan.toml"), ("0.3", "--module torchtitan_config")]
)
def test_torchtitan_starts_from_anywhere_in_both_versions(tmp_path: Path, version: str | None, words: str) -> None:
    """With its order of passes by its whole path: stages of fewer micro-batches than there are."""
    folder = tmp_path / "run"
    write_export(
        tp.export(plan_of("llama3-8b", [0, 31, 63], 2, size=2, strategies="sdp2", memory_bytes=2**40), "torchtitan"), folder
    )
    (tmp_path / "torchrun").write_text('#!/usr/bin/env bash\necho "$@" PYTHONPATH="${PYTHONPATH:-}"\n')
    (tmp_path / "torchrun").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", **({"TORCHTITAN": version} if version else {})}
    done = subprocess.run(
        ["bash", folder / "launch.sh"], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert words.format(folder) in done.stdout
    assert (f"schedule_csv {folder}/schedule.csv" in done.stdout) == (version is None)
    assert (f"PYTHONPATH={folder}" in done.stdout) == (version is not None)
    script = (folder / "torchtitan_config.py").read_text()
    assert "disable_cuda_graphs = True" in script and 'with_name("schedule.csv")' in script


def test_torchtitan_schedules_and_sharding() -> None:
    few = tp.export(plan_of(TINY["llama"], [0, 1, 3, 7], 2), "torchtitan")  # torch's 1F1B refuses m < p
    assert few.settings["toml"]["parallelism"]["pipeline_parallel_schedule_csv"] == "schedule.csv"
    assert few.files["schedule.csv"].startswith("0F0,0F1,0B0,0B1\n")
    names = {"1f1b": torchs.Schedule1F1B, "gpipe": torchs.ScheduleGPipe}
    for schedule, kind in names.items():
        found = tp.export(plan_of(TINY["llama"], [0, 3], schedule=schedule), "torchtitan")
        name = found.settings["toml"]["parallelism"]["pipeline_parallel_schedule"]
        assert torchs.get_schedule_class(name) is kind and "schedule.csv" not in found.files
    sharded = tp.export(plan_of(TINY["llama"], [0, 3], size=4, strategies="dp2-sdp2"), "torchtitan")
    parallel = sharded.settings["toml"]["parallelism"]
    keys = ("data_parallel_replicate_degree", "data_parallel_shard_degree", "fsdp_reshard_after_forward")
    assert [parallel[key] for key in keys] == [2, 2, "always"] and "more memory" in sharded.left_out[0]
    mixed = plan_of(TINY["llama"], [0, 3], strategies=["single", "single-ckpt", *["single"] * 6])
    assert "1 of 6" in tp.export(mixed, "torchtitan").left_out[0]


def test_torchtitan_refuses() -> None:
    half = plan_of(TINY["llama"], [0, 3, 4])
    whole = ("`plan --like partition --no-by-unit`", "--to torch")
    not_exported(half, "torchtitan", "stages[2].first_unit", (4, "block1.ffn"), whole)
    family = ("gpt2", "torchtitan")
    not_exported(plan_of("gpt2", [0, 3]), "torchtitan", "model.config.model_type", family, ("llama", "qwen3"))
    tied = {**TINY["llama"], "tie_word_embeddings": True}
    not_exported(plan_of(tied, [0, 3]), "torchtitan", "model.config.tie_word_embeddings", "true", "output matrix")
    units = ["dp2"] * 3 + ["tp2"] * 5
    unlike = plan_of(TINY["llama"], [0, 3], size=2, strategies=units)
    not_exported(unlike, "torchtitan", "units[3].strategy", ("tp2", "units[0]", "dp2"), "--one-strategy")


# --- Megatron-LM


def parsed_layout(text: str) -> list[str]:
    """The stages of a layout, by the rules of its parser: commas go, groups and then letters are repeated."""
    text = text.replace(",", "")
    for pattern in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
        text = re.sub(pattern, lambda found: found[1] * int(found[2]), text)
    return text.split("|")


def checked_layout(text: str, stages: int, layers: int) -> list[int]:
    """Layers of each stage, where Megatron-LM's checks of a layout pass."""
    parts = parsed_layout(text)
    flat = "".join(parts)
    assert set(flat) <= set("EtL") and len(parts) == stages
    assert flat[0] == "E" and flat[-1] == "L" and flat.count("E") == flat.count("L") == 1
    assert flat.count("t") == layers
    return [part.count("t") for part in parts]


def end_counts(arguments: list[str], stages: int, layers: int) -> list[int]:
    """Layers of each stage as Megatron-LM divides them without a layout; fails where it would."""
    given = dict(pairwise(arguments))
    first = given.get("--decoder-first-pipeline-num-layers")
    last = given.get("--decoder-last-pipeline-num-layers")
    ends = [int(text) for text in (first, last) if text is not None]
    assert all(count > 0 for count in ends)
    middle, left = stages - len(ends), layers - sum(ends)
    assert left % middle == 0 and left > 0
    return [
        *([int(first)] if first is not None else []),
        *[left // middle] * middle,
        *([int(last)] if last is not None else []),
    ]


def in_bash(text: str, array: str) -> list[str]:
    """The words of an array after a shell has read the file."""
    command = f"{text}\nprintf '%s\\0' \"${{{array}[@]}}\""
    done = subprocess.run(["bash", "-euc", command], capture_output=True, text=True, check=True)
    return done.stdout.split("\0")[:-1]


@pytest.mark.parametrize(
    ("counts", "ends"),
    [
        ([3, 3, 3, 3], 0),
        ([2, 3, 3, 4], 2),
        ([4, 4, 4, 0], None),
        ([3, 3, 3, 2, 1], None),
        ([5, 7], 1),
        ([0, 6, 6], None),
        ([2, 5, 5], 1),
        ([4, 4, 3, 1], None),
        ([1, 2, 3, 2, 2, 2], None),
        ([5, 5, 2], 1),
    ],
)
def test_megatron_layout(counts: list[int], ends: int | None) -> None:
    """12 layers. ends: how many arguments say it without a layout."""
    firsts = [0, *(1 + 2 * sum(counts[:i]) for i in range(1, len(counts)))]
    plan = plan_of("gpt2", firsts, 6)
    found = tp.export(plan, "megatron")
    arguments = in_bash(found.files["megatron_args.sh"], "PIPELINE_ARGS")
    assert arguments == found.settings["arguments"] and found.left_out == ()
    given = dict(pairwise(arguments))
    assert checked_layout(given["--pipeline-model-parallel-layout"], len(counts), 12) == counts
    model = in_bash(found.files["megatron_args.sh"], "MODEL_ARGS")
    assert model == found.settings["model"] and dict(pairwise(model))["--num-layers"] == "12"
    assert given["--pipeline-model-parallel-size"] == str(len(counts))
    assert (given["--micro-batch-size"], given["--global-batch-size"]) == ("4", "24")
    assert found.settings["script"] == "pretrain_gpt.py" and "--untie-embeddings-and-output-weights" not in model
    other = found.settings["without_layout"]
    assert (other is None) == (ends is None)
    if other is not None:
        assert in_bash(found.files["megatron_args.sh"], "END_COUNT_ARGS") == other
        assert "--pipeline-model-parallel-layout" not in other
        assert sum(argument.startswith("--decoder") for argument in other) == ends
        assert end_counts(other, len(counts), 12) == counts


def test_megatron_half_layers() -> None:
    """Segments end anywhere between an attention layer (*) and a feed-forward layer (-)."""
    for firsts in ([0, 2, 7, 24], [0, 1, 4], [0, 12, 25]):
        plan = plan_of("gpt2", firsts)
        found = tp.export(plan, "megatron")
        arguments = in_bash(found.files["megatron_args.sh"], "PIPELINE_ARGS")
        pattern = dict(pairwise(arguments))["--hybrid-layer-pattern"]
        assert found.settings["script"] == "pretrain_hybrid.py" and found.settings["without_layout"] is None
        assert "--num-layers" not in [*arguments, *found.settings["model"]]
        assert not any("layout" in one or "decoder" in one for one in arguments)
        assert pattern.replace("|", "") == "*-" * 12
        inner = [max(first, 1) for first in firsts] + [25]
        assert [len(part) for part in pattern.split("|")] == [end - first for first, end in pairwise(inner)]


def test_megatron_degrees_and_left_out() -> None:
    plan = plan_of("llama2-7b", [0, 17], 8, size=8, strategies="tp2-sdp4-ckpt", samples=64)
    not_exported(plan, "megatron", "memory_bytes", ("16 GiB", "30.49 GiB"), ("--for", "--reserve"))
    plan = plan.changed(memory_bytes=2**36)
    found = tp.export(plan, "megatron")
    assert plan.memory_bytes > found.settings["peak_bytes"] > 2**34
    given = dict(pairwise(found.settings["arguments"]))
    assert given["--tensor-model-parallel-size"] == "2" and given["--micro-batch-size"] == "2"
    data_parallel = plan.world // 2 // 2
    assert int(given["--global-batch-size"]) == 8 * data_parallel * int(given["--micro-batch-size"])
    assert "--use-distributed-optimizer" in found.settings["arguments"]
    assert "--untie-embeddings-and-output-weights" in found.settings["model"]
    assert given["--recompute-granularity"] == "full"
    assert [line.split(":")[0] for line in found.left_out] == ["order of tp2-sdp4", "tp2-sdp4", ENDS_KEPT]
    some = plan_of(TINY["llama"], [0, 3], strategies=["single", "single-ckpt", *["single"] * 6], sliced=1)
    left = tp.export(some, "megatron").left_out
    assert [line.split(":")[0] for line in left] == ["sliced", "recomputation of single sub-layers"] and "1 of 6" in left[1]
    bert = tp.export(plan_of("bert-large", [0, 23]), "megatron")
    assert bert.settings["script"] == "pretrain_bert.py"
    assert checked_layout(dict(pairwise(bert.settings["arguments"]))["--pipeline-model-parallel-layout"], 2, 24) == [11, 13]


def test_megatron_refuses() -> None:
    not_exported(plan_of("gpt2", [0, 5], schedule="gpipe"), "megatron", "schedule", "gpipe", "--schedule 1f1b")
    whole = ("`plan --like partition --no-by-unit`", "trainplan")
    not_exported(plan_of("bert-large", [0, 4]), "megatron", "stages[1].first_unit", (4, "block1.ffn"), whole)
    units = ["dp2"] * 7 + ["sdp2"] * 19
    unlike = plan_of("gpt2", [0, 5], size=2, strategies=units)
    not_exported(unlike, "megatron", "units[7].strategy", ("sdp2", "units[0]", "dp2"), "--one-strategy")
    not_exported(plan_of("t5-512-4-32", [0, 5]), "megatron", "model.config.model_type", "t5", ("gpt2", "llama", "bert"))


# --- the command


def call(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = Path(sys.executable).parent / "trainplan"
    return subprocess.run([command, "export", *arguments], capture_output=True, text=True, check=False)


def test_command(tmp_path: Path) -> None:
    path, half = tmp_path / "plan.json", tmp_path / "half.json"
    path.write_text(plan_of("gpt2", [0, 5, 9], sliced=2).model_dump_json())
    half.write_text(plan_of(TINY["llama"], [0, 4]).model_dump_json())
    shown = call(path, "--to", "megatron")
    files = tp.export(path, "megatron").files
    assert shown.returncode == 0 and shown.stdout == "".join(f"==> {name} <==\n{text}" for name, text in files.items())
    assert "sliced" in shown.stderr
    done = call(path, "--to", "megatron", "-o", tmp_path / "made", "--json")
    reported = json.loads(done.stdout)
    assert reported["written"] == [str(tmp_path / "made" / name) for name in files] and reported["target"] == "megatron"
    assert reported["left_out"] == list(tp.export(path, "megatron").left_out)
    assert {name: (tmp_path / "made" / name).read_text() for name in files} == files
    folder = tmp_path / "torch"
    done = call(path, "--to", "torch", "-o", folder)
    assert done.returncode == 0 and {one.name for one in folder.iterdir()} == set(tp.export(path, "torch").files)
    assert "left out  sliced" in done.stdout
    wrong = call(half, "--to", "torchtitan", "-o", tmp_path / "no")
    assert wrong.returncode == 2 and wrong.stderr.count("\n") == 1 and str(half) in wrong.stderr
    assert not (tmp_path / "no").exists()
    gone = call(path, "--to", "torch", "-o", tmp_path / "a" / "b")
    assert gone.returncode == 2 and gone.stderr.count("\n") == 1 and "cannot be written" in gone.stderr


@pytest.mark.parametrize("family", ["mistral", "qwen3", "nemotron"])
def test_megatron_lays_out_decoders_alike(family: str) -> None:
    """Its arguments for a pipeline do not depend on what is in a layer, where GPTModel has that."""
    ours, llamas = (tp.export(plan_of(TINY[name], [0, 3, 5]), "megatron").settings for name in (family, "llama"))
    assert ours["arguments"] == llamas["arguments"] and ours["model"] != llamas["model"]
    parts = "embedding, attention, ffn, attention.1, head"
    not_exported(plan_of(TINY["qwen2"], [0, 3, 5]), "megatron", "model.config", parts, "GPTModel")


def test_exports_are_found_by_name_and_plugins_come_after_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import EntryPoint

    from trainplan.execution.runtimes import registry
    from trainplan.execution.runtimes.megatron import export as megatron_export

    entry = EntryPoint("other", "trainplan.execution.runtimes.torchtitan.export:export", registry.GROUP)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [entry])
    from trainplan.profiling.base.plugins import plugins

    plugins.cache_clear()
    try:
        built_in = ["megatron", "megatron-bridge", "torchtitan", "deepspeed", "accelerate", "torch"]
        assert registry.export_names() == [*built_in, "other"]
        assert registry.exporter("megatron") is megatron_export.export
        assert registry.exporter("other") is registry.exporter("torchtitan")
        with refused("to", problem="none", fix=(*built_in, "other")):
            registry.exporter("none")
    finally:
        plugins.cache_clear()
