"""The requests whose answers are recorded: drawn by seeds, so that they are the same everywhere, and named by what they ask.

A request is a Task: `key` names it and is what two recordings are compared by; `kind` says which function of `outcomes` answers
it; `requested` are that function's arguments, as JSON has them. Files that a task names lie in a folder that `lay_out` fills.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.golden.inside import MEASURED, cluster_dict, layers_dict, partition_dict, pipeline_dict

CONFIGURATIONS = Path(__file__).parent.parent / "configurations"
PRESETS = ("joint", "galvatron-bmw", "amp", "autopipe", "h3t")
# Those that search for long, so that a time limit would decide their answers.
LEFT_OUT = {
    "small/2-llama-8-a100-16/joint",
    "small/8-llama-2-a100-16/joint",
    "real/9-qwen3-32b-h200:8x2-modules=True",
    "real/11-gpt3-175b-h100:8x8-cp=1,2",
    "real/28-mistral-7b-h100:8-pipeline=4+schedule=interleaved+chunks=7",
    "real/33-qwen3-32b-h100:8x4-host=hidden",
    "real/47-gpt3-175b-h100:8x16-schedule=all",
    "executed/2-gpt2-762m-rtx-titan-8-schedule=interleaved+pipeline=2+chunks=2",
    "executed/4-bert-large-cpu-4-host=optimizer",
    "mixed/amp-heterogeneous-16/amp-gpt2-345m-uneven_shares=True",
}
COSTLY = {  # more than six seconds of a processor
    "real/7-nemotron4-15b-h100:8x4-zero=3",
    "real/10-llama3-70b-b200:8x4-host=hidden",
    "real/23-gpt3-175b-h100:8x8-plain",
    "real/26-llama3-8b-a100:8x2-schedule=gpipe",
    "real/32-llama2-13b-h100:8-modules=True",
    "real/34-llama3-70b-h100:8x8-cp=1,2",
    "real/35-gpt3-175b-h100:8x16-cp=2,4+cp_exchange=any",
    "real/44-llama2-13b-h100:8-tp_in_node=True+micro_batches=8",
    "real/46-llama3-70b-b200:8x4-plain",
    "executed/10-bert-large-cpu-4-by_unit=False",
    "executed/12-gpt2-h100:4-plain",
    "for/megatron-bridge-llama3-8b-h100:8x2-pipeline=2",
    "for/megatron-bridge-qwen3-8b-h100:8-memory=30GiB",
    "for/torchtitan-llama3-8b-h100:8x2-memory=30GiB",
    "for/torch-llama3-8b-h100:8x2-memory=30GiB",
}
RUNTIMES = ("megatron", "megatron-bridge", "torchtitan", "deepspeed", "accelerate", "torch", "trainplan")
LLAMA = {"model_type": "llama", "hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
LLAMA |= {"intermediate_size": 352, "vocab_size": 1009, "max_position_embeddings": 64}
GPT2 = {"model_type": "gpt2", "n_embd": 128, "n_head": 4, "n_inner": 512, "n_positions": 64, "vocab_size": 1009}
SMALL = {
    **{f"gpt2-{layers}": GPT2 | {"n_layer": layers, "tie_word_embeddings": layers % 2 == 0} for layers in (2, 3, 4, 6)},
    **{f"llama-{layers}": LLAMA | {"num_hidden_layers": layers, "tie_word_embeddings": layers == 3} for layers in (2, 3, 5, 8)},
}
REAL = (  # model, sequence, clusters on which it is planned, from one on which it is tight
    ("llama3.2-1b", 2048, ("a100:8", "l4:8", "rtx4090:8", "v100:8x2")),
    ("gpt2-1.3b", 1024, ("a100:4", "v100:8x2", "h100:8")),
    ("llama3-8b", 4096, ("h100:8", "h100:8x4", "b200:8", "mi300x:8", "a100:8x2")),
    ("qwen3-8b", 4096, ("h100:8", "h200:8x2", "h100:8x2")),
    ("mistral-7b", 8192, ("h100:8", "a100:8x2")),
    ("qwen2.5-7b", 4096, ("h100:8", "h20:8x2")),
    ("phi3-mini", 4096, ("a100:8", "l40s:8")),
    ("nemotron4-15b", 4096, ("h100:8x2", "h100:8x4")),
    ("llama2-13b", 4096, ("a100:8x2", "h100:8")),
    ("qwen3-32b", 4096, ("h100:8x4", "h200:8x2")),
    ("llama3-70b", 8192, ("h100:8x8", "h200:8x4", "b200:8x4")),
    ("gpt3-175b", 2048, ("h100:8x16", "h100:8x8")),
)
LARGE = {"gpt3-175b": {"pipeline": 8, "micro_batches": 16}}  # without which the search takes minutes
JOINT: tuple[dict[str, Any], ...] = (  # requests to the joint problem under its cost model with overlap
    {},
    {"schedule": "all"},
    {"schedule": "interleaved", "chunks": 4, "pipeline": 2},
    {"schedule": "gpipe"},
    {"pipeline": 2},
    {"pipeline": 4, "schedule": "interleaved", "chunks": 7},
    {"tp": 2, "zero": "0,1"},
    {"zero": "3"},
    {"hybrid": True},
    {"modules": True},
    {"host": "hidden"},
    {"cp": "1,2"},
    {"cp": "2,4", "cp_exchange": "any"},
    {"cp": 2, "cp_exchange": "heads"},
    {"precision": "fp8"},
    {"precision": "fp8-blockwise", "gradients": "float32"},
    {"optimizer": "muon"},
    {"gradients": "float32"},
    {"sequence_parallel": False},
    {"memory_tables": "least"},
    {"recompute_first": "2"},
    {"tp_in_node": True, "micro_batches": 8},
    {"forbid": ["ckpt"]},
)
EXECUTED: tuple[dict[str, Any], ...] = (  # the same without overlap, as programs run
    {},
    {"schedule": "all", "pipeline": 2},
    {"schedule": "interleaved", "pipeline": 2, "chunks": 2},
    {"sliced": 2, "pipeline": 2},
    {"host": "optimizer"},
    {"host": "all"},
    {"host": "hidden", "pipeline": 2},
    {"one_strategy": True},
    {"modules": True, "pipeline": 2},
    {"hybrid": True, "zero": "1,3"},
    {"by_unit": False},
    {"cuts": ["block2.ffn"], "pipeline": 2},
)
WITH_HOST = ("h3t-2080ti-8", "h100:4", "cpu-4")  # whose nodes say what their hosts have
ONE_WORKER = {"workers": 1}  # of CP-SAT, whose optima tie: several find now one, now another
MIXED = ("amp-heterogeneous-16", "mixed.yaml")
MIXED_CLUSTER = """
name: mixed
kinds:
  - {name: fast, memory_bytes: 17179869184, flops_per_s: {float32: 15.0e12, float16: 120.0e12}, memory_bytes_per_s: 900.0e9,
     efficiency: 0.7, half_size: 64}
  - {name: slow, memory_bytes: 8589934592, flops_per_s: {float32: 8.0e12, float16: 60.0e12}, memory_bytes_per_s: 320.0e9,
     efficiency: 0.6, half_size: 64}
nodes:
  - {kind: fast, devices: 2, islands: [{devices: 2, bandwidth_bytes_per_s: 20.0e9, latency_ns: 5000}]}
  - {kind: slow, devices: 2, islands: [{devices: 2, bandwidth_bytes_per_s: 6.0e9, latency_ns: 20000}]}
islands:
  - {devices: 4, bandwidth_bytes_per_s: 1.25e9, latency_ns: 30000}
source: made up
"""
CUTTING = ("branch-and-bound", "milp", "cpsat", "autopipe", "algorithm-1", "megatron", "piper", "dapple")
SOLVED = (  # problem, what makes its instance, and its methods in the order of `methods`
    ("layer-strategies", layers_dict, ("label-setting", "milp", "cpsat", "galvatron-dp")),
    ("pipeline", pipeline_dict, ("branch-and-bound", "milp", "cpsat", "galvatron-bmw", "galvatron-base")),
    ("pipeline-partition", partition_dict, CUTTING),
    ("cluster-strategy", cluster_dict, ("branch-and-bound", "amp", "megatron", "simulated-annealing", "random")),
)
SWITCHES = ("label-setting", "h3t-dp", "h3t-greedy", "random", "manual", "zero-2", "zero-3")
ASSIGNED = ("sweep", "milp", "amp-dp", "uniform-layers", "uniform-parameters")


@dataclass(frozen=True)
class Task:
    """A request. key: its name; kind: the verb that answers it; requested: the arguments."""

    key: str
    kind: str
    requested: dict[str, Any]

    @property
    def costly(self) -> bool:
        """Whether it takes so long that tests leave it to the command."""
        return self.key in COSTLY


def tasks() -> list[Task]:
    """All requests, in their order; no two have one key."""
    plans = (_small(), _real(), _executed(), _interleaved(), _for_runtimes(), _mixed(), _papers(), _joint_methods())
    others = (_solved(), _built(), _simulated(), _measured(), _configurations(), _verbs())
    return [task for made in (*plans, *others) for task in made if task.key not in LEFT_OUT]


def lay_out(folder: Path) -> None:
    """Write the files that tasks name into a folder, which is then the current one of whoever answers them."""
    for name, config in SMALL.items():
        (folder / f"{name}.json").write_text(json.dumps(config))
    (folder / "configurations").symlink_to(CONFIGURATIONS)
    (folder / "mixed.yaml").write_text(MIXED_CLUSTER)


def _small() -> Iterator[Task]:
    """All presets on small models: memory from what nothing fits into to ample, each back-end or none."""
    rng = random.Random("small")
    for number in range(9):
        model, cluster = rng.choice(sorted(SMALL)), ("cpu-4", "rtx-titan-8", "a100-16")[number % 3]
        devices = {"cpu-4": 4, "rtx-titan-8": 8, "a100-16": 16}[cluster]
        memory = rng.choice([2, 4, 8, 24, 96]) * 2**20 + 977 * number
        requested = {"model": f"{model}.json", "cluster": cluster, "batch": devices * rng.choice([2, 4]), "memory": memory}
        backend = (None, None, "streams", None, "serial")[number % 5]
        for like in PRESETS:
            where = "h3t-2080ti-8" if like == "h3t" and cluster == "rtx-titan-8" and number > 1 else cluster
            wish = {
                "like": like,
                "cluster": where,
                "backend": backend,
                "comparisons": number % 3 == 0,
                "exports": like == "joint",
            }
            wish |= ONE_WORKER if like == "amp" else {}
            yield Task(f"small/{number}-{model}-{where}/{like}", "plan", requested | wish)


def _real() -> Iterator[Task]:
    """The joint problem with overlap: models and clusters of today, one wish each."""
    rng = random.Random("real")
    for number in range(52):
        model, sequence, clusters = REAL[number % len(REAL)]
        cluster, wish = rng.choice(clusters), JOINT[number % len(JOINT)]
        batch = rng.choice([1, 2, 4]) * _devices(cluster)
        requested = {"model": model, "cluster": cluster, "batch": batch, "sequence": sequence, **LARGE.get(model, {}), **wish}
        if rng.random() < 0.2:
            requested["memory"] = f"{rng.choice([10, 20, 40])}GiB"
        requested |= {"like": "joint", "comparisons": number % 3 == 0, "exports": number % 4 == 0}
        yield Task(f"real/{number}-{model}-{cluster}-{_words(wish)}", "plan", requested)


def _executed() -> Iterator[Task]:
    """The joint problem without overlap, at sizes whose programs are analysed."""
    rng = random.Random("executed")
    models = (("gpt2", 512), ("gpt2-345m", 512), ("gpt2-762m", 1024), ("llama3.2-1b", 1024), ("bert-large", 512))
    models += (("llama-8.json", 64),)
    clusters = ("h3t-2080ti-8", "rtx-titan-8", "a100-16", "autopipe-3090-16", "cpu-4", "h100:4")
    for number in range(24):
        (model, sequence), cluster = models[number % len(models)], rng.choice(clusters)
        wish = EXECUTED[number % len(EXECUTED)]
        if "host" in wish and cluster not in WITH_HOST:
            cluster = WITH_HOST[0]
        requested: dict[str, Any] = {"model": model, "cluster": cluster, "batch": rng.choice([16, 32]), "sequence": sequence}
        requested |= {
            "like": "joint",
            "cost_model": "executed",
            **wish,
            "comparisons": number % 4 == 0,
            "exports": number % 3 == 0,
        }
        if rng.random() < 0.4:
            requested["memory"] = f"{rng.choice([1, 2, 4])}GiB"
        key = f"executed/{number}-{model.removesuffix('.json')}-{cluster}-{_words(wish)}"
        yield Task(key, "plan", requested)


def _interleaved() -> Iterator[Task]:
    """Interleaved stages and all schedules without overlap, of models that are small enough for it."""
    for number, (model, cluster, wish) in enumerate(
        (
            ("llama-8.json", "cpu-4", {"schedule": "interleaved", "pipeline": 2}),
            ("gpt2-6.json", "cpu-4", {"schedule": "interleaved", "pipeline": 2, "chunks": 3, "by_unit": False}),
            ("llama-8.json", "rtx-titan-8", {"schedule": "interleaved", "pipeline": 2, "zero": "0", "one_strategy": True}),
            ("gpt2-4.json", "cpu-4", {"schedule": "all", "sliced": 1, "pipeline": 2}),
        )
    ):
        requested = {"model": model, "cluster": cluster, "batch": 16, "like": "joint", "cost_model": "executed", **wish}
        key = f"interleaved/{number}-{model.removesuffix('.json')}-{cluster}-{_words(wish)}"
        yield Task(key, "plan", {**requested, "comparisons": number == 0, "exports": True})


def _for_runtimes() -> Iterator[Task]:
    """Plans for each runtime that plans can be for, exported to it."""
    wishes: tuple[dict[str, Any], ...] = ({}, {"pipeline": 2}, {"memory": "30GiB"})
    for number, runtime in enumerate(RUNTIMES):
        for index, (model, cluster) in enumerate((("llama3-8b", "h100:8x2"), ("qwen3-8b", "h100:8"))):
            wish = wishes[(number + index) % 3]
            wish = {} if runtime in ("deepspeed", "accelerate") and "pipeline" in wish else wish
            requested = {"model": model, "cluster": cluster, "batch": 32, "sequence": 4096, "for_": runtime, **wish}
            requested |= {"like": "joint", "comparisons": index == 0, "exports": True}
            yield Task(f"for/{runtime}-{model}-{cluster}-{_words(wish)}", "plan", requested)


def _mixed() -> Iterator[Task]:
    """Clusters of several kinds of devices."""
    for cluster in MIXED:
        for like, model, options in (
            ("amp", "amp-gpt2", {}),
            ("amp", "gpt2-345m", {"uneven_shares": True}),
            ("joint", "gpt2", {}),
            ("joint", "llama-5.json", {"host": "none", "memory": "1GiB"}),
        ):
            requested = {"model": model, "cluster": cluster, "batch": 32, "like": like, **options}
            requested |= ONE_WORKER if like == "amp" else {}
            if not model.endswith(".json"):
                requested["sequence"] = 512
            yield Task(f"mixed/{cluster}/{like}-{model}-{_words(options)}", "plan", {**requested, "exports": True})
    requested = {"model": "gpt2", "cluster": MIXED[0], "batch": 32, "sequence": 512}
    yield Task("mixed/default", "plan", requested | ONE_WORKER)


def _papers() -> Iterator[Task]:
    """The presets of papers: their own models, methods and options."""
    galvatron = {"like": "galvatron-bmw", "cluster": "rtx-titan-8", "memory": "8GiB", "batch": 16}
    for model, options in (
        ("bert-huge-32", {}),
        ("bert-huge-32", {"method": "galvatron-bmw"}),
        ("bert-huge-32", {"method": "galvatron-base"}),
        ("t5-large-32", {"schedule": "gpipe"}),
        ("swin-huge-32", {"space": "no-ckpt"}),
        ("gpt2", {"space": "full-dp-sdp", "memory": "2GiB"}),
        ("llama3.2-1b", {"sequence": 1024, "by_unit": True}),
        ("gpt2-345m", {"pipeline": 4, "memory": "4GiB"}),
    ):
        yield Task(f"papers/galvatron-bmw-{model}-{_words(options)}", "plan", {**galvatron, "model": model, **options})
    amp = {"like": "amp", "batch": 32}
    for model, cluster, options in (
        ("amp-gpt2", "amp-homogeneous-16", {"method": "amp"}),
        ("amp-gpt2", "amp-p3-16", {"method": "megatron"}),
        ("amp-transgan", "amp-homogeneous-16", {"method": "amp"}),
        ("gpt2", "rtx-titan-16", {"recompute": True, "sequence": 512, "method": "amp"}),
        ("gpt2-345m", "amp-heterogeneous-16", {"method": "simulated-annealing", "sequence": 512}),
    ):
        requested = {**amp, "model": model, "cluster": cluster, **options}
        yield Task(f"papers/amp-{model}-{cluster}-{_words(options)}", "plan", requested)
    autopipe = {"like": "autopipe", "cluster": "autopipe-3090-16", "batch": 64}
    for model, options in (
        ("gpt2-345m", {"pipeline": 4}),
        ("gpt2-345m", {"pipeline": 4, "method": "autopipe", "sliced": 2}),
        ("gpt2-762m", {"pipeline": 8, "recompute": True}),
        ("gpt2-1.3b", {"recompute": True}),
        ("bert-large", {"pipeline": 4, "objective": "iteration"}),
    ):
        yield Task(f"papers/autopipe-{model}-{_words(options)}", "plan", {**autopipe, "model": model, **options})
    for model, cluster, options in (
        ("gpt2", "h3t-2080ti-8", {"memory": "1GiB"}),
        ("gpt2-345m", "h3t-2080ti-8", {"memory": "2GiB", "method": "h3t-dp"}),
        ("gpt2-345m", "h3t-a100-8", {"memory": "2GiB", "method": "h3t-greedy"}),
        ("gpt2-xl", "h3t-a100-8", {"memory": "6GiB"}),
        ("llama3.2-1b", "h3t-a100-8", {"memory": "4GiB", "sequence": 1024}),
    ):
        requested = {"like": "h3t", "model": model, "cluster": cluster, "batch": 16, **options}
        yield Task(f"papers/h3t-{model}-{cluster}-{_words(options)}", "plan", requested)


def _joint_methods() -> Iterator[Task]:
    """The joint problem by its models for other solvers, where these end soon."""
    for method in ("decomposition", "milp", "cpsat"):
        requested = {"model": "gpt2-2.json", "cluster": "cpu-4", "batch": 8, "pipeline": 2, "micro_batches": 2, "zero": "0"}
        requested |= {"like": "joint", "cost_model": "executed", "by_unit": False, "method": method, "comparisons": False}
        requested |= ONE_WORKER if method == "cpsat" else {}
        yield Task(f"joint/{method}", "plan", requested)


def _solved() -> Iterator[Task]:
    """Random instances of the papers' problems, by each of their methods."""
    for problem, draw, methods in SOLVED:
        for seed in range(4):
            instance = draw(random.Random(f"{problem}-{seed}"))
            yield Task(f"solve/{problem}-{seed}", "solve", {"instance": instance, "methods": methods})


def _built() -> Iterator[Task]:
    """Instances of models and clusters."""
    titan, amp, h3t = {"cluster": "rtx-titan-8", "batch": 8}, {"batch": 32, "micro_batches": 4}, {"batch": 16, "memory": "2GiB"}
    build: tuple[tuple[str, str, dict[str, Any], Sequence[str]], ...] = (
        ("layer-strategies", "bert-huge-32", titan | {"memory": "8GiB"}, ("label-setting", "galvatron-dp")),
        ("layer-strategies", "gpt2", titan | {"memory": "1GiB", "cost_model": "executed", "by_unit": True}, ("milp",)),
        ("stage-assignment", "gpt2", amp | {"cluster": "amp-homogeneous-16", "pipeline": 4}, ASSIGNED),
        ("stage-assignment", "gpt2-345m", amp | {"cluster": "amp-heterogeneous-16", "pipeline": 8, "tp": 2}, ASSIGNED),
        ("memory-switches", "gpt2", h3t | {"cluster": "h3t-2080ti-8"}, SWITCHES),
        ("memory-switches", "bert-large", h3t | {"cluster": "h3t-a100-8", "paper_combinations": True}, SWITCHES),
        ("memory-switches", "gpt2-345m", h3t | {"cluster": "h3t-a100-8", "by_unit": True}, SWITCHES),
        ("pipeline-partition", "gpt2-345m", {"cluster": "autopipe-3090-16", "batch": 64, "pipeline": 4}, CUTTING[3:]),
        ("cluster-strategy", "gpt2", {"cluster": "amp-p3-16", "batch": 32}, ("branch-and-bound", "amp", "megatron")),
        ("joint", "gpt2-3.json", {"cluster": "cpu-4", "batch": 8, "memory": "96MiB"}, ("decomposition",)),
    )
    for number, (problem, model, requested, methods) in enumerate(build):
        given = {"problem": problem, "requested": {"model": model, **requested}, "methods": methods}
        yield Task(f"build/{number}-{problem}", "build", given)


def _simulated() -> Iterator[Task]:
    """Partitions under each schedule."""
    shapes: tuple[dict[str, Any], ...] = (
        {"schedule": "1f1b"},
        {"schedule": "gpipe"},
        {"schedule": "1f1b", "sliced": 2},
        {"schedule": "1f1b", "sliced": "least"},
        {"schedule": "1f1b", "sliced": "algorithm-2"},
        {"schedule": "interleaved-1f1b", "chunks": 2},
    )
    requested = {"model": "gpt2-345m", "cluster": "autopipe-3090-16", "batch": 64, "pipeline": 4, "micro_batches": 16}
    for shape in shapes:
        yield Task(f"simulate/{_words(shape)}", "partition", {"requested": requested, "shape": shape})


def _measured() -> Iterator[Task]:
    """Each shipped row of measured runs."""
    for row in json.loads(MEASURED.read_text()):
        yield Task(f"measured/{row['id']}", "measured", {"row": row})


def _configurations() -> Iterator[Task]:
    """Files that people train by, as they are published or printed, and what trainplan says of each."""
    files = sorted(
        path.relative_to(CONFIGURATIONS.parent)
        for name in ("torchtitan/*.toml", "trainers/*.y*ml", "launch/*.sh", "logs/*.log")
        for path in CONFIGURATIONS.glob(name)
    )
    for path in files[::2]:
        given: dict[str, Any] = {"cluster": "h100:8"}
        if path.parent.name == "torchtitan":
            many = {"405b": "h100:8x64", "70b": "h100:8x32"}
            given["cluster"] = next((many[size] for size in many if size in path.name), "h100:8x2")
        elif path.parent.name == "trainers":
            given |= {"model": "llama3-8b", "sequence": 2048} if "accelerate" in path.name else {"cluster": "h100:8x2"}
        yield Task(f"import/{path.parent.name}/{path.name}", "configuration", {"file": str(path), **given})


def _verbs() -> Iterator[Task]:
    """The other verbs."""
    small = {"model": "gpt2-4.json", "cluster": "cpu-4", "batch": 8}
    real = {"model": "llama3-8b", "cluster": "h100:8", "batch": 64, "sequence": 4096}
    make = partial(Task, kind="verb")
    yield make("verb/fit-small", requested={"verb": "fit", "requested": small})
    yield make("verb/fit-real", requested={"verb": "fit", "requested": real})
    yield make("verb/fit-not", requested={"verb": "fit", "requested": real | {"model": "llama3-70b"}})
    yield make("verb/plan-sizes", requested={"verb": "plan_sizes", "requested": real | {"cluster": "h100", "devices": "8-32"}})
    several = {"memory": "2GiB", "largest_batch": 16, "planners": ["ddp", "megatron", "galvatron-bmw"]}
    yield make(
        "verb/throughput", requested={"verb": "throughput", "requested": {"model": "gpt2", "cluster": "cpu-4"} | several}
    )


def _words(wish: dict[str, Any]) -> str:
    """The arguments of a request, as a part of a key."""
    texts = {name.rstrip("_"): " ".join(value) if isinstance(value, list) else value for name, value in wish.items()}
    return "+".join(f"{name}={text}" for name, text in texts.items()) or "plain"


def _devices(cluster: str) -> int:
    """Devices of a cluster such as h100:8x4."""
    count, _, nodes = cluster.partition(":")[2].partition("x")
    return int(count) * int(nodes or 1)
