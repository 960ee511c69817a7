"""What users plausibly type wrongly, verb by verb: each ends with exit code 2 and one line that helps."""

from __future__ import annotations

import json
import shlex
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import trainplan as tp
from tests.helpers.made import SMALL
from trainplan.command import main

GPT2 = "--model gpt2 --cluster cpu-4 --batch 8 --sequence 64"
# A command line, and parts of the one line that answers it: what was wrong, and what would work.
MISTAKES: list[tuple[str, ...]] = [
    # names
    ("plan --model gtp2 --cluster cpu-4 --batch 8", "--model is 'gtp2'", "gpt2"),
    ("plan --model facebook/xglm-7.5B --cluster cpu-4 --batch 8", "--model is 'facebook/xglm-7.5B'", "config.json"),
    ("plan --model nofile.json --cluster cpu-4 --batch 8", "nofile.json", "config.json"),
    ("plan --model gpt2 --cluster cpu4 --batch 8", "--cluster is 'cpu4'", "cpu-4"),
    ("plan --model gpt2 --cluster h100-46 --batch 8", "--cluster is 'h100-46'", "h100-64"),
    (f"plan {GPT2} --like megatron", "--like is 'megatron'", "galvatron-bmw"),
    (f"plan {GPT2} --method magic", "--method is 'magic'", "exact"),
    (f"plan {GPT2} --space everything", "--space is 'everything'", "full"),
    (f"plan {GPT2} --schedule zero-bubble", "--schedule is 'zero-bubble'", "1f1b"),
    (f"plan {GPT2} --backend gpu", "--backend is 'gpu'", "serial"),
    (f"plan {GPT2} --dtype int8", "--dtype is 'int8'", "bfloat16"),
    # what is missing
    ("plan --cluster cpu-4 --batch 8", "--model is missing", "--profile"),
    ("plan --model gpt2 --batch 8", "--cluster is missing", "--profile"),
    ("plan --model gpt2 --cluster cpu-4", "--batch is missing", "samples"),
    ("place --profile profile.json --batch 8", "--cluster is missing", "give it"),
    ("export plan.json", "--to", "Missing"),
    # numbers
    (f"plan {GPT2} --batch 0", "--batch is 0", "give 1 to"),
    (f"plan {GPT2} --batch -8", "--batch is -8", "give 1 to"),
    (f"plan {GPT2} --batch eight", "--batch is 'eight'", "give a whole number"),
    (f"plan {GPT2} --sequence 4096", "--sequence is 4096", "give 1 to 1024"),
    (f"plan {GPT2} --sequence 0", "--sequence is 0", "give 1 to 1024"),
    ("plan --model vit-base --cluster cpu-4 --batch 8 --sequence 128", "--sequence is 128", "leave it out"),
    (f"plan {GPT2} --memory lots", "--memory is 'lots'", "8GiB"),
    (f"plan {GPT2} --memory 0", "--memory is '0'", "8GiB"),
    (f"plan {GPT2} --memory=-1GiB", "--memory is '-1GiB'", "8GiB"),
    (f"plan {GPT2} --reserve 4GiB", "--reserve is 4294967296 bytes", "256MiB"),
    (f"plan {GPT2} --reserve some", "--reserve is 'some'", "8GiB"),
    (f"plan {GPT2} --memory 1GiB --reserve 1GiB", "--reserve is 1073741824 bytes", "64MiB"),
    (f"plan {GPT2} --pipeline 3", "--pipeline is 3", "1, 2, 4"),
    (f"plan {GPT2} --micro-batches 3", "8 in 3 micro-batches", "multiple"),
    (f"plan {GPT2} --time-limit 0", "--time-limit is 0", "give"),
    (f"plan {GPT2} --gap 2", "--gap is 2", "give"),
    (f"plan {GPT2} --seed -1", "--seed is -1", "give"),
    (f"switch {GPT2} --batch 6", "--batch is 6", "multiple of the 4 devices"),
    (f"partition {GPT2} --pipeline 5", "--pipeline is 5", "give"),
    # options
    (f"plan {GPT2} --sequenc 64", "No such option: --sequenc", "--sequence"),
    (f"plna {GPT2}", "'plna'", "plan"),
    (f"plan {GPT2} --option workers", "--option is 'workers'", "NAME=VALUE"),
    (f"plan {GPT2} --option worker=2 --method cpsat", "--option worker is no argument", "did you mean --option workers=?"),
    ("solve instance.json --method cpsat --option worker=2", "--option worker is", "did you mean --option workers=?"),
    ("solve instance.json --option time_limt=2", "--option time_limt is", "did you mean --time-limit?"),
    (f"plan {GPT2} --option gap=0.1", "--option is 'gap=0.1'", "--gap"),
    (f"plan {GPT2} --uneven-shares", "No such option: --uneven-shares", "--help"),
    (f"partition {GPT2} --sliced all", "--sliced is 'all'", "give a whole number"),
    (f"partition {GPT2} --objective fastest", "--objective is 'fastest'", "iteration"),
    ("switch --model vit-base --cluster cpu-4 --batch 8", "--model is 'vit-base' (vit)", "gpt2, bert, llama"),
    ("switch --model gpt2 --cluster amp-heterogeneous-16 --batch 16", "--cluster is 'amp-heterogeneous-16'", "place"),
    ("plan --model gpt2 --cluster rtx-titan-8 --batch 8 --dtype bfloat16", "has no bfloat16", "--dtype of float32"),
    # configurations
    ("plan --model typo.json --cluster cpu-4 --batch 8", "typo.json: hiden_size is 256", "did you mean hidden_size?"),
    ("plan --model small.json --cluster cpu-4 --batch 8", "small.json: num_hidden_layers is missing", "such as 32"),
    ("plan --model float8.json --cluster cpu-4 --batch 8", "float8.json: torch_dtype is 'float8_e4m3fn'", "--dtype of float32"),
    ("plan --model mamba.json --cluster cpu-4 --batch 8", "mamba.json: model_type is 'mamba'", "a model with state-space"),
    ("plan --model plan.json --cluster cpu-4 --batch 8", "plan.json: model_type is missing", "gpt2, bert, llama"),
    ("model show gpt2 --tp 0", "--tp is 0", "from 1"),
    # files
    (f"plan {GPT2} -o /nowhere/plan.json", "/nowhere/plan.json", "cannot be written"),
    (f"plan {GPT2} --picture plan.gif", "--picture is 'plan.gif'", ".png"),
    ("plan --profile nofile.json --batch 8", "nofile.json: does not exist", "existing"),
    ("plan --model gpt2 --cluster plan.json --batch 8", "plan.json: is a file of 'trainplan-plan'", "give a cluster"),
    ("simulate nofile.json", "nofile.json: does not exist", "existing"),
    ("simulate instance.json", "problem is 'layer-strategies'", "pipeline-partition"),
    ("simulate plan.json --schedule interleaved-1f1b", "--schedule is 'interleaved-1f1b'", "1f1b or gpipe"),
    ("run instance.json", "instance.json: is an instance of 'layer-strategies'", "give a plan"),
    ("run small.json", "small.json: is the config.json of a 'llama'", "give a plan"),
    ("profile show instance.json", "instance.json: is an instance of 'layer-strategies'", "give a profile"),
    ("run version1.json", "version1.json: predicted.step_ns is missing", "add it"),
    ("solve plan.json", "plan.json: problem is ", "layer-strategies"),
    ("check instance.json plan.json", "plan.json: ", "choice"),
    # running and handing on
    ("run half.json", "half.json: model.dtype is 'float16'", "--dtype float32, float64 or bfloat16"),
    ("run plan.json --dtype float16", "--dtype is 'float16'", "float32, float64 or bfloat16"),
    ("run plan.json --steps 0", "--steps is 0", "1 or more"),
    ("run plan.json --device gpu", "--device is 'gpu'", "cpu, cuda"),
    ("run plan.json --model bert-large", "model_digest is ", "'bert-large'"),
    ("export plan.json --to nemo", "--to is 'nemo'", "megatron"),
    ("trial plan.json --steps 0", "--steps is 0", "1 or more"),
    (f"trial {GPT2} --top 0", "--top is 0", "give 1 to"),
    ("throughput --model gpt2 --cluster cpu-4 --planner zero", "--planner is 'zero'", "fsdp"),
    ("throughput --model gpt2 --cluster cpu-4 --step 0", "--step is 0", "give 1 to"),
    # problems by themselves
    (f"build knapsack {GPT2}", "problem is 'knapsack'", "pipeline"),
    (f"build layer-strategies {GPT2} --pipeline 2 --stage 2", "stage", "0"),
    ("solve instance.json --method brute-force", "brute-force", "exact"),
    ("solve instance.json --option levels=8", "levels", "label-setting"),
    ("methods pipelines", "problem is 'pipelines'", "pipeline"),
    ("schema plans", "format is 'plans'", "plan"),
    ("profile estimate --model gpt2 --cluster cpu-4 --rows 0", "--rows is ", "1,2,4"),
    ("profile estimate --model gpt2 --cluster cpu-4 --tp 3", "--tp is 3", "1, 2, 4"),
    ("profile import plan.json", "plan.json: ", "give"),
    ("cluster detect --network fast", "--network is 'fast'", "8GiB"),
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
    asked = {"cluster": "cpu-4", "batch": 8}
    for name, planned in (
        ("plan", tp.plan(model="gpt2", sequence=64, pipeline=2, micro_batches=2, space="dp+pp", **asked)),
        ("half", tp.plan(model=path / "half.json", dtype="float16", **asked)),
    ):
        assert planned.plan is not None
        (path / f"{name}.json").write_text(planned.plan.model_dump_json())
    first = json.loads((path / "plan.json").read_text()) | {"version": 1, "claim": None, "predicted": {"gap": None}}
    (path / "version1.json").write_text(json.dumps(first))
    (path / "instance.json").write_text(json.dumps(tp.build(model="gpt2", sequence=64, **asked).to_dict()))
    (path / "profile.json").write_text(tp.profile(model="gpt2", cluster="cpu-4", sequence=64).model_dump_json())
    return path


@pytest.fixture(autouse=True)
def _process_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The command sets how warnings are shown, and what ends it."""
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(("words", "parts"), [(words, parts) for words, *parts in MISTAKES], ids=[each[0] for each in MISTAKES])
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
    for part in parts:
        assert part in printed.err
    assert {path.name for path in folder.iterdir()} == before, "nothing is written"
