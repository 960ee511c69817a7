"""Mistakes that users plausibly make: words on the command line, values of a wrong type in Python, and numbers too large.

Each ends the command with exit code 2 and one line that helps, or raises an InputError that names the argument, its value and a
value that would work. A number that is large but possible is answered at once.
"""

from __future__ import annotations

import json
import re
import shlex
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from inspect import isclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.request import MOST_SAMPLES
from trainplan.profiling.base.arguments import check_arguments
from trainplan.profiling.base.errors import InputError

import trainplan as tp
from tests.helpers.instances import random_instance
from tests.helpers.plans import GPT2 as TINY_GPT2
from tests.helpers.refusals import refused, stated
from tests.helpers.small_models import SMALL
from trainplan.api import NAMES
from trainplan.command import main

GPT2 = "--model gpt2 --cluster cpu-4 --batch 8 --sequence 64"
# A command line, the field (with its file) that the one line which answers it names first, and facts that the line states: the
# value that was wrong, and what would work.
MISTAKES: list[tuple[str, ...]] = [
    # names
    ("plan --model gtp2 --cluster cpu-4 --batch 8", "--model", "gtp2", "gpt2", "`trainplan model list`"),
    ("plan --model facebook/xglm-7.5B --cluster cpu-4 --batch 8", "--model", "facebook/xglm-7.5B", "xglm-7.5B/config.json"),
    ("plan --model nofile.json --cluster cpu-4 --batch 8", "--model", "nofile.json", "config.json"),
    ("plan --model gpt2 --cluster cpu4 --batch 8", "--cluster", "cpu4", "cpu-4", "`trainplan cluster list`"),
    ("plan --model gpt2 --cluster h100-46 --batch 8", "--cluster", "h100-46", "h100-64", "`trainplan cluster list`"),
    (f"plan {GPT2} --like megatron", "--like", "megatron", "galvatron-bmw"),
    (f"plan {GPT2} --method magic", "--method", "magic", "exact"),
    (f"plan {GPT2} --space everything", "--space", "everything", "full"),
    (f"plan {GPT2} --schedule zero-bubble", "--schedule", "zero-bubble", "1f1b"),
    (f"plan {GPT2} --backend gpu", "--backend", "gpu", "serial"),
    (f"plan {GPT2} --dtype int8", "--dtype", "int8", "bfloat16"),
    # what is missing
    ("plan --cluster cpu-4 --batch 8", "--model", "--profile"),
    ("plan --model gpt2 --batch 8", "--cluster", "--profile"),
    ("plan --model gpt2 --cluster cpu-4", "--batch", "samples"),
    ("place --profile profile.json --batch 8", "--cluster", "nodes"),
    ("export plan.json", "Missing option", "'--to'"),
    # numbers
    (f"plan {GPT2} --batch 0", "--batch", "0", "1 to 1048576"),
    (f"plan {GPT2} --batch -8", "--batch", "-8", "1 to 1048576"),
    (f"plan {GPT2} --batch eight", "--batch", "eight", "number"),
    (f"plan {GPT2} --sequence 4096", "--sequence", "4096", "1", "1024"),
    (f"plan {GPT2} --sequence 0", "--sequence", "0", "1", "1024"),
    ("plan --model vit-base --cluster cpu-4 --batch 8 --sequence 128", "--sequence", "128", "image"),
    (f"plan {GPT2} --memory lots", "--memory", "lots", "8GiB"),
    (f"plan {GPT2} --memory 0", "--memory", "0", "8GiB"),
    (f"plan {GPT2} --memory=-1GiB", "--memory", "-1GiB", "8GiB"),
    (f"plan {GPT2} --reserve 4GiB", "--reserve", "4294967296", "256MiB"),
    (f"plan {GPT2} --reserve some", "--reserve", "some", "8GiB"),
    (f"plan {GPT2} --memory 1GiB --reserve 1GiB", "--reserve", "1073741824", "64MiB"),
    (f"plan {GPT2} --pipeline 3", "--pipeline", "3", "1", "2", "4"),
    (f"plan {GPT2} --micro-batches 3", "--batch", "8", "3", "--micro-batches"),
    (f"plan {GPT2} --time-limit 0", "--time-limit", "0", "10"),
    (f"plan {GPT2} --gap 2", "--gap", "2.0", "1e-4"),
    (f"plan {GPT2} --seed -1", "--seed", "-1", "0", "2147483647"),
    (f"switch {GPT2} --batch 6", "--batch", "6", "4"),
    (f"partition {GPT2} --pipeline 5", "--pipeline", "5", "4", "1"),
    # options
    (f"plan {GPT2} --sequenc 64", "No such option:", "--sequenc", "--sequence"),
    (f"plna {GPT2}", "No such command", "plna", "plan"),
    (f"plan {GPT2} --option workers", "--option", "workers", "NAME=VALUE", "granularity_bytes=1048576"),
    (f"plan {GPT2} --option worker=2 --method cpsat", "--option worker", "joint", "--option workers="),
    ("solve instance.json --method cpsat --option worker=2", "--option worker", "cpsat", "--option workers="),
    ("solve instance.json --option time_limt=2", "--option time_limt", "label-setting", "--time-limit"),
    (f"plan {GPT2} --option gap=0.1", "--option", "gap=0.1", "--gap"),
    (f"plan {GPT2} --uneven-shares", "No such option:", "--uneven-shares", "--help-all"),
    (f"partition {GPT2} --sliced all", "--sliced", "all", "number"),
    (f"partition {GPT2} --objective fastest", "--objective", "fastest", "step", "iteration"),
    ("switch --model vit-base --cluster cpu-4 --batch 8", "--model", "vit-base", "vit", "gpt2", "bert", "llama"),
    ("switch --model gpt2 --cluster amp-heterogeneous-16 --batch 16", "--cluster", "amp-heterogeneous-16", "`place`"),
    (
        "plan --model gpt2 --cluster rtx-titan-8 --batch 8 --dtype bfloat16",
        "cluster: TITAN RTX 24 GB.flops_per_s",
        "bfloat16",
        "--dtype",
        "float32",
    ),
    # configurations
    ("plan --model typo.json --cluster cpu-4 --batch 8", "typo.json: hiden_size", "256", "hidden_size"),
    ("plan --model small.json --cluster cpu-4 --batch 8", "small.json: num_hidden_layers", "32"),
    ("plan --model float8.json --cluster cpu-4 --batch 8", "float8.json: torch_dtype", "float8_e4m3fn", "--dtype", "float32"),
    ("plan --model mamba.json --cluster cpu-4 --batch 8", "mamba.json: model_type", "mamba", "state-space"),
    ("plan --model plan.json --cluster cpu-4 --batch 8", "plan.json: model_type", "gpt2", "bert", "llama"),
    ("model show gpt2 --tp 0", "--tp", "0", "1"),
    # files
    (f"plan {GPT2} -o /nowhere/plan.json", "/nowhere/plan.json:", "No such file"),
    (f"plan {GPT2} --picture plan.gif", "--picture", "plan.gif", ".png", ".svg", ".pdf"),
    ("plan --profile nofile.json --batch 8", "nofile.json:"),
    ("plan --model gpt2 --cluster plan.json --batch 8", "plan.json:", "trainplan-plan", "cluster"),
    ("simulate nofile.json", "nofile.json:"),
    ("simulate instance.json", "instance: problem", "layer-strategies", "pipeline-partition"),
    ("simulate plan.json --schedule interleaved-1f1b", "--schedule", "interleaved-1f1b", "1f1b", "gpipe"),
    ("run instance.json", "instance.json:", "layer-strategies", "plan"),
    ("run small.json", "small.json:", "config.json", "llama", "plan"),
    ("profile show instance.json", "instance.json:", "layer-strategies", "profile"),
    ("run version1.json", "version1.json: predicted.step_ns"),
    ("solve plan.json", "plan.json: problem", "layer-strategies"),
    ("check instance.json plan.json", "plan.json: choice"),
    # running and handing on
    ("run half.json", "half.json: model.dtype", "float16", "--dtype", "float32", "float64", "bfloat16"),
    ("run plan.json --dtype float16", "--dtype", "float16", "float32", "float64", "bfloat16"),
    ("run plan.json --steps 0", "--steps", "0", "1"),
    ("run plan.json --device gpu", "--device", "gpu", "cpu", "cuda"),
    ("run plan.json --model bert-large", "plan.json: model_digest", "gpt2", "bert-large"),
    ("export plan.json --to nemo", "--to", "nemo", "megatron"),
    ("trial plan.json --steps 0", "--steps", "0", "1"),
    (f"trial {GPT2} --top 0", "--top", "0", "1", "100"),
    ("throughput --model gpt2 --cluster cpu-4 --planner zero", "--planner", "zero", "fsdp"),
    ("throughput --model gpt2 --cluster cpu-4 --step 0", "--step", "0", "1", "1048576"),
    # problems by themselves
    (f"build knapsack {GPT2}", "problem", "knapsack", "layer-strategies", "stage-assignment", "pipeline-partition"),
    (f"build layer-strategies {GPT2} --pipeline 2 --stage 2", "--stage", "2", "0", "1"),
    ("solve instance.json --method brute-force", "--method", "brute-force", "exact", "2e6"),
    ("solve instance.json --option levels=8", "--option levels", "label-setting"),
    ("methods pipelines", "problem", "pipelines", "pipeline", "layer-strategies", "stage-assignment"),
    ("schema plans", "format", "plans", "plan", "layer-strategies", "layer-strategies-solution"),
    ("profile estimate --model gpt2 --cluster cpu-4 --rows 0", "--rows", "0", "1", "2", "4"),
    ("profile estimate --model gpt2 --cluster cpu-4 --tp 3", "--tp", "3", "1", "2", "4"),
    ("profile import plan.json", "plan.json:", "galvatron", "piper", "h3t", "table"),
    ("cluster detect --network fast", "--network", "fast", "8GiB"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a plan, an instance, a profile, and configurations that something is wrong with."""
    path = tmp_path_factory.mktemp("mistakes")
    llama = {"model_type": "llama", **SMALL["llama"]}
    configs = {
        "typo": {**llama, "hiden_size": 256},
        "small": {name: value for name, value in llama.items() if name != "num_hidden_layers"},
        "float8": {**llama, "torch_dtype": "float8_e4m3fn"},
        "mamba": {**llama, "model_type": "mamba"},
        "half": llama,
    }
    for name, config in configs.items():
        (path / f"{name}.json").write_text(json.dumps(config))
    requested = {"cluster": "cpu-4", "batch": 8}
    for name, planned in (
        ("plan", tp.plan(model="gpt2", sequence=64, pipeline=2, micro_batches=2, space="dp+pp", **requested)),
        ("half", tp.plan(model=path / "half.json", dtype="float16", **requested)),
    ):
        assert planned.plan is not None
        (path / f"{name}.json").write_text(planned.plan.model_dump_json())
    first = json.loads((path / "plan.json").read_text()) | {"version": 1, "claim": None, "predicted": {"gap": None}}
    (path / "version1.json").write_text(json.dumps(first))
    (path / "instance.json").write_text(json.dumps(tp.build(model="gpt2", sequence=64, **requested).to_dict()))
    (path / "profile.json").write_text(tp.profile(model="gpt2", cluster="cpu-4", sequence=64).model_dump_json())
    return path


@pytest.fixture(autouse=True)
def _process_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The command sets how warnings are shown, and what ends it."""
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("words", "parts"), [(words, parts) for words, *parts in MISTAKES], ids=[mistake[0] for mistake in MISTAKES]
)
def test_a_mistake_gets_one_line_that_helps(
    words: str, parts: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["trainplan", *shlex.split(words)])
    before = {path.name for path in folder.iterdir()}
    with pytest.raises(SystemExit) as caught:
        main()
    printed = capsys.readouterr()
    assert (caught.value.code, printed.out) == (2, ""), printed
    assert printed.err.count("\n") == 1 and printed.err.startswith("trainplan: ")
    about, *facts = parts
    line = printed.err.removeprefix("trainplan: ").removeprefix("command line: ")
    assert line.startswith(f"{about} ") and all(stated(fact, line) for fact in facts), line
    assert {path.name for path in folder.iterdir()} == before, "nothing is written"


REQUEST = {"model": "gpt2", "cluster": "cpu-4", "batch": 8, "sequence": 32}
INSTANCE = random_instance(0)
WRONG: list[tuple[str, Callable[[], Any], str, object]] = [
    ("batch", lambda: tp.build(**REQUEST | {"batch": "8"}), "'8'", 8),
    ("batch", lambda: tp.build(**REQUEST | {"batch": 8.0}), "8.0", 8),
    ("batch", lambda: tp.build(**REQUEST | {"batch": True}), "True", 8),
    ("batch", lambda: tp.place(**REQUEST | {"batch": "8"}), "'8'", 8),
    ("batch", lambda: tp.plans(**REQUEST | {"batch": "8"}), "'8'", 8),
    ("model", lambda: tp.build(**REQUEST | {"model": 3}), "3", "gpt2"),
    ("model", lambda: tp.build(**REQUEST | {"model": {"n_embd": 8}}), "{'n_embd': 8}", "gpt2"),
    ("memory", lambda: tp.plan(**REQUEST, memory=8.5), "8.5", "8GiB"),
    ("by_unit", lambda: tp.plan(**REQUEST, by_unit=1), "1", ("True", "False")),
    ("pipeline", lambda: tp.plan(**REQUEST, pipeline="2"), "'2'", 1),
    ("time_limit", lambda: tp.solve(INSTANCE, time_limit="5"), "'5'", 10),
    ("time_limit", lambda: tp.solve(INSTANCE, time_limit=True), "True", 10),
    ("seed", lambda: tp.solve(INSTANCE, seed="a"), "'a'", 0),
    ("seed", lambda: tp.compare(INSTANCE, seed="a"), "'a'", 0),
    ("progress", lambda: tp.solve(INSTANCE, progress=3), "3", "print"),
    ("instance", lambda: tp.solve(3), "3", "Instance"),
    ("source", lambda: tp.simulate(None), "None", "Plan"),
    ("source", lambda: tp.load(5), "5", "path"),
    ("methods", lambda: tp.compare(INSTANCE, "exact"), "'exact'", "['exact']"),
    ("methods", lambda: tp.compare(INSTANCE, []), "[]", "list"),
    ("rows", lambda: tp.profile(model="gpt2", cluster="cpu-4", rows=[1, "a"]), "[1, 'a']", "[1]"),
    ("plans", lambda: tp.trial("plan.json"), "'plan.json'", "list"),
    ("plan", lambda: tp.draw_plan(3), "3", "Plan"),
]


@pytest.mark.parametrize(("name", "call", "value", "fix"), WRONG, ids=[f"{entry[0]}={entry[2]}" for entry in WRONG])
def test_a_wrong_type_is_refused(name: str, call: Callable[[], Any], value: str, fix: object) -> None:
    with refused(name, value, fix) as caught:
        call()
    assert caught.value.field == caught.value.argument == name


def test_the_annotations_of_every_verb_can_be_read() -> None:
    for name in NAMES:
        verb = getattr(tp, name)
        if not isclass(verb) and not name.startswith("draw_"):
            check_arguments(verb.__wrapped__.__wrapped__, {})


def test_numbers_of_numpy_are_numbers() -> None:
    assert tp.build(**REQUEST | {"batch": np.int64(8)}).digest == tp.build(**REQUEST).digest
    assert tp.solve(INSTANCE, time_limit=np.float64(10), seed=np.int32(1)).seed == 1


def test_fields_of_errors_name_the_argument() -> None:
    with pytest.raises(InputError) as caught:
        tp.plan(**REQUEST, time_limit=-1)
    assert (caught.value.field, caught.value.command_field) == ("time_limit", "--time-limit")


BILLION = 10**9
ROW: dict[str, Any] = {
    "id": "a", "model": "llama3-8b", "gpu": "H100", "gpus": 64, "framework": "megatron", "seq": 8192, "gbs": 64, "mbs": 1,
    "tp": 8, "pp": 8, "vpp": 2, "precision": "bf16", "step_s": 2.9, "date": "2024-10", "source": "x",
}  # fmt: skip
SCRIPT = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 256 --num-attention-heads 4 --bf16 "
    "--seq-length 512 --max-position-embeddings 512 --vocab-size 1000 --micro-batch-size 4 --global-batch-size {} "
    "--pipeline-model-parallel-size 2 --use-distributed-optimizer"
)


def validated(folder: Path, **changes: Any) -> Any:
    file = folder / "runs.json"
    file.write_text(json.dumps([ROW | changes]))
    return tp.validate(file)[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"gbs": BILLION},
        {"gbs": BILLION, "vpp": None},
        {"gbs": BILLION, "pp": 1, "tp": 1, "vpp": None, "framework": "torchtitan", "fsdp": "FSDP2"},
        {"gbs": 10**6, "mbs": 10**6},
        {"seq": 8_192_000},
    ],
)
def test_runs_of_any_size_are_predicted_at_once(tmp_path: Path, changes: dict[str, Any]) -> None:
    usual, large = validated(tmp_path, **changes | {"gbs": 512, "mbs": 1, "seq": 8192}), validated(tmp_path, **changes)
    assert usual.step_s is not None and large.step_s is not None and not large.cannot
    more = changes.get("gbs", 512) / 512
    if changes.get("mbs") is None and "seq" not in changes:  # after the pipeline's filling, all micro-batches take as long
        assert 0.3 * more * usual.step_s < large.step_s < 1.05 * more * usual.step_s


@pytest.mark.parametrize(("field", "value"), [("gbs", 10**30), ("seq", 10**12), ("pp", 10**6), ("vpp", 10**6)])
def test_runs_that_cannot_be_say_which_number_is_wrong(tmp_path: Path, field: str, value: int) -> None:
    assert str(value) in validated(tmp_path, **{field: value}).cannot


@pytest.mark.parametrize(
    ("requested", "refusal"),
    [
        ({"batch": BILLION}, ("batch", BILLION, (1, MOST_SAMPLES))),
        ({"batch": 16, "micro_batches": 10**6}, ("batch", (16, 10**6), "--micro-batches")),
        ({"batch": 16, "sequence": 8_192_000}, ("sequence", 8_192_000, (1, 1024))),
        ({"batch": 16, "cluster": f"h100:{BILLION}"}, ("cluster", f"h100:{BILLION}", "KIND:DEVICES")),
        ({"batch": 16, "cluster": "h100:8x1000000"}, ("cluster", "1000000 nodes", (1, 131072))),
    ],
)
def test_plans_of_impossible_numbers_are_refused_in_one_line(requested: dict[str, Any], refusal: tuple[Any, ...]) -> None:
    with refused(*refusal) as caught:
        tp.plan(**{"model": "gpt2-345m", "cluster": "h100:8", "time_limit": 5.0, **requested})
    assert "\n" not in str(caught.value)


def test_launch_files_of_very_large_batches_are_judged_or_refused(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    steps = []
    for batch in (2**15, 2**20):
        script.write_text(SCRIPT.format(batch))
        steps.append(tp.import_run(script, cluster="h100:8", search=False).judged.step_ns)
    assert 31.9 < steps[1] / steps[0] < 32.1
    script.write_text(SCRIPT.format(BILLION))
    with refused("--global-batch-size", problem=BILLION, fix=MOST_SAMPLES):
        tp.import_run(script, cluster="h100:8", search=False)
    script.write_text(SCRIPT.format(2**20).replace("--micro-batch-size 4", "--micro-batch-size 131072"))
    with refused("batch.micro_batches", problem=(2, 131072), fix=re.compile(r"\d+")):
        tp.import_run(script, cluster="h100:8", search=False)


def planned(schedule: str, micro_batches: int) -> Plan:
    made = tp.plan(model=TINY_GPT2, cluster="h100:2", batch=8, pipeline=2, micro_batches=4, schedule="1f1b", gap=0.5).plan
    assert made is not None
    batch = made.batch.changed(global_samples=2 * micro_batches, micro_batches=micro_batches)
    return made.changed(batch=batch, schedule=schedule, predicted=None, claim=None)


def test_plans_of_very_many_micro_batches_are_simulated_and_checked() -> None:
    few, many = (tp.simulate(planned("1f1b", count), cluster="h100:2") for count in (2**14, BILLION // 4))
    assert many.timeline is None and few.timeline is not None
    with refused("batch.micro_batches", problem=250000000, fix=re.compile(r"\d+")):
        many.trace()
    pieces = (BILLION // 4) / 2**14
    assert 0.99 * pieces < many.step_ns / few.step_ns < 1.01 * pieces
    assert many.performance is not None and few.performance is not None
    assert many.performance.compute == pytest.approx(few.performance.compute, rel=1e-2)
    with refused("batch.micro_batches", problem=250000000, fix=re.compile(r"\d+")):
        tp.simulate(planned("gpipe", BILLION // 4), cluster="h100:2")
