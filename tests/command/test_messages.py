"""The command's messages about mistakes, its help, and its output in pipes and narrow terminals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from trainplan.formulations.plan.plan import load_plan
from trainplan.profiling.base.dtypes import parse_dtype
from trainplan.profiling.base.errors import as_arguments, named, one_of
from trainplan.profiling.base.quantities import enough_bytes, parse_bytes, parse_tokens
from trainplan.profiling.models.model import load_model
from trainplan.solvers.core.result import Point
from typer import Exit

import trainplan as tp
from tests.command.test_command import COMMAND, refuses_in_one_line
from tests.helpers.calls import call
from tests.helpers.instances import paper_instance
from tests.helpers.refusals import refused, stated
from trainplan.command import bars, options, printing, problems
from trainplan.command.app import ALIASES, COMMANDS, GROUPS, TASKS
from trainplan.planning.presets import PRESETS, planner, preset

MODEL, CLUSTER = ("--model", "gpt2"), ("--cluster", "cpu-4")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["plan", "--model", "gpt22", *CLUSTER], ("--model is 'gpt22'; did you mean 'gpt2'", "`trainplan model list`")),
        (["plan", *MODEL, "--cluster", "h100-46"], ("--cluster is 'h100-46'; did you mean 'h100-64'",)),
        (["plan", "--model", "nofile.json", *CLUSTER], ("--model is 'nofile.json': no such file",)),
        (["plan", *MODEL, "--cluster", "./here.yaml"], ("--cluster is './here.yaml': no such file",)),
        (
            ["plan", "--model", "facebook/xglm-7.5B", *CLUSTER],
            ("Hugging Face hub", "hf download facebook/xglm-7.5B config.json", "give xglm-7.5B/config.json"),
        ),
        (["plan", *MODEL, *CLUSTER, "--memory", "8"], ("--memory is '8', without a unit", "8GiB")),
        (["plan", *MODEL, *CLUSTER, "--batch", "8", "--method", "exat"], ("--method is 'exat'; did you mean 'exact'",)),
        (["plan", *MODEL, *CLUSTER, "--like", "galvatron-bwm"], ("--like is 'galvatron-bwm'; did you mean 'galvatron-bmw'",)),
        (["plan", *MODEL, *CLUSTER, "--dtype", "bfloat61"], ("--dtype is 'bfloat61'; did you mean 'bfloat16'",)),
        (["methods", "pipelines"], ("problem is 'pipelines'; did you mean 'pipeline'",)),
        (["throughput", *MODEL, *CLUSTER, "--planner", "galvatron-bnw"], ("did you mean 'galvatron-bmw'",)),
    ],
)
def test_values_that_are_near_to_one_that_works(words: list[str], parts: tuple[str, ...]) -> None:
    refuses_in_one_line(call(*words), *parts)


def test_a_model_and_a_cluster_by_position() -> None:
    """`plan MODEL CLUSTER` is `plan --model MODEL --cluster CLUSTER`; both at once are refused."""
    words = ("--batch", "8", "--sequence", "64", "--method", "exat")
    assert call("plan", "gpt2", "cpu-4", *words).stderr == call("plan", *MODEL, *CLUSTER, *words).stderr
    refuses_in_one_line(call("plan", "gpt22", "cpu-4", *words[:4]), "--model is 'gpt22'; did you mean 'gpt2'")
    refuses_in_one_line(
        call("plan", "gpt2", *CLUSTER, *MODEL, *words[:4]),
        "--model is 'gpt2', and 'gpt2' is given by position; give one of the two",
    )


def test_lengths_as_they_are_named() -> None:
    read = [parse_tokens(text) for text in ("8192", "8k", "8K", " 128k ", "1M", "1.5k", "8,192", "8_192", "131,072")]
    assert read == [8192, 8192, 8192, 131072, 2**20, 1536, 8192, 8192, 131072]
    for text in ("", "k", "8kk", "-8k", "8,19", "1.3k", "8k tokens", "1e3"):
        with refused("sequence", fix=("8k", 8192)):
            parse_tokens(text)
    requested = ("plan", "gpt2", "cpu-4", "--batch", "8", "--seq")
    refuses_in_one_line(call(*requested, "8kk"), "--sequence is '8kk'; give a number of tokens, such as 8192 or 8k")
    refuses_in_one_line(call(*requested, "2k"), "--sequence is 2048; give 1 to 1024")


def test_names_in_any_case_and_short_names() -> None:
    for text, name in (("bf16", "bfloat16"), ("FP16", "float16"), ("Float32", "float32"), ("torch.bfloat16", "bfloat16")):
        assert parse_dtype(text) == load_model("gpt2", dtype=text).dtype == name
    assert preset("Galvatron-BMW").name == "galvatron-bmw" and planner("MEGATRON").name == "megatron"
    assert load_model("GPT2").digest == load_model("gpt2", dtype="float32").digest
    assert named("x", ["y"]) is None and named(3, ["y"]) is None and named("Y", ["y"]) == "y"
    assert [entry.name for entry in tp.methods("layer-strategies")][:2] == ["label-setting", "milp"]
    assert parse_bytes("12 bytes") == 12 and parse_bytes("8 gib") == 2**33


def test_exports_in_any_case(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    made = call("partition", *MODEL, *CLUSTER, "--batch", "8", "--sequence", "32", "--pipeline", "2", "--tp", "1", "-o", plan)
    assert made.returncode == 0, made.stderr
    assert call("export", plan, "--to", "Megatron").stdout == call("export", plan, "--to", "megatron").stdout != ""
    refuses_in_one_line(call("export", plan, "--to", "megatrn"), "--to is 'megatrn'; did you mean 'megatron'")


def test_few_names_are_listed_and_many_are_not() -> None:
    assert one_of("x", ["serial", "fused"]) == "give one of: serial, fused"
    assert one_of("fusd", ["serial", "fused"]) == "did you mean 'fused'? Give one of: serial, fused"
    many = [f"model-{number}" for number in range(30)]
    found = one_of("modle-7", many, "trainplan model list")
    assert found.startswith("did you mean 'model-7'") and found.endswith("(`trainplan model list` lists all)")


def test_python_names_arguments_and_the_command_flags() -> None:
    with refused("memory", "'8'", ("8GiB", "500MB")) as caught:
        tp.plan(model="gpt2", cluster="cpu-4", batch=8, memory="8")
    assert caught.value.argument == "memory" and caught.value.command_text.startswith("command line: --memory ")
    assert str(caught.value).startswith("memory ")
    with refused("micro_batches", problem=0, fix=1):
        tp.plan(model="gpt2", cluster="cpu-4", batch=8, micro_batches=0)
    short = tp.plan(model="gpt2", cluster="cpu-4", batch=8, sequence=32, memory="1MiB", pipeline=1)
    assert f"give memory of at least {enough_bytes(short.needed_bytes or 0)}" in str(short.result.reason)
    assert f"give --memory of at least {enough_bytes(short.needed_bytes or 0)}" in dict(short.summary(flags=True))["reason"]
    assert "--" not in short._repr_html_()
    assert as_arguments("give --no-by-unit, `plan --like amp` or a--b") == "give by_unit=False, `plan --like amp` or a--b"


@pytest.mark.parametrize(
    ("verb", "wrong", "problem", "right"),
    [
        (tp.plan, {"pipelin": 2}, "joint", "pipeline"),
        (tp.plan, {"time_limt": 2}, "joint", "time_limit"),
        (tp.place, {"uneven_share": True}, "amp", "uneven_shares"),
        (tp.build, {"micro_batchs": 2}, "layer-strategies", "micro_batches"),
    ],
)
def test_an_argument_that_is_near_to_one_that_there_is(
    verb: object, wrong: dict[str, object], problem: str, right: str
) -> None:
    [name] = wrong
    with refused(name, problem, f"--{right.replace('_', '-')}") as caught:
        verb(model="gpt2", cluster="cpu-4", batch=8, **wrong)  # type: ignore[operator]
    assert str(caught.value).startswith(f"{name} ") and stated(right, str(caught.value))


def test_verbs_without_choices_name_the_nearest_argument() -> None:
    with pytest.raises(TypeError, match=r"run\(\) has no argument 'step'; did you mean 'steps'\?"):
        tp.run("plan.json", step=3)
    with pytest.raises(TypeError, match=r"profile\(\) has no argument 'modell'; did you mean 'model'\?"):
        tp.profile(modell="gpt2")


def test_docstrings_name_every_choice_of_every_preset() -> None:
    docs = {"plan": tp.plan.__doc__, "place": tp.place.__doc__, "partition": tp.partition.__doc__, "switch": tp.switch.__doc__}
    for one_preset in PRESETS.values():
        text = " ".join((docs[one_preset.verb or "plan"] or "").split())
        missing = [parameter.name for parameter in one_preset.parameters if parameter.name not in text]
        assert not missing, f"{one_preset.verb or 'plan'} says nothing of {missing}"
    for verb in (tp.plan, tp.solve, tp.compare):
        assert "progress: called with" in " ".join((verb.__doc__ or "").split())


def test_errors_are_json_where_json_is_requested() -> None:
    done = call("plan", *MODEL, *CLUSTER, "--memory", "8", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == found["exit_code"] == 2
    assert (found["error"]["field"], found["error"]["where"]) == ("--memory", "command line")
    assert done.stderr == f"trainplan: {found['error']['message']}\n"
    usage = json.loads(call("plan", "--sequence", "x", "--json").stdout)
    assert usage["exit_code"] == 2 and "--sequence" in usage["error"]["message"]
    for words, field in (
        (["plan", "--sequence", "x"], "--sequence"),
        (["export", "p.json"], "--to"),
        (["plan", "--sequen"], "--sequen"),
    ):
        error = json.loads(call(*words, "--json").stdout)["error"]
        assert error["where"] == "command line" and error["field"] == field and error["problem"] and error["fix"], error


def test_help_is_by_task_and_plan_comes_first() -> None:
    text = call("--help").stdout
    indices = [text.index(f" {task} ") for task in TASKS]
    assert indices == sorted(indices) and text.index("│ plan ") < min(
        text.index(f"│ {name} ") for name in COMMANDS if name not in ("plan", *ALIASES)
    )
    assert all((f"│ {name} " in text) == (name not in ALIASES) for name in (*COMMANDS, *GROUPS))
    of_plan = call("plan", "--help-all").stdout
    for part in (
        "What to plan for",
        options.CHOICES,
        "Search",
        "Output",
        "trainplan plan qwen3-8b h100:8",
        "[default: estimate]",
    ):
        assert part in of_plan
    bare = call()
    assert bare.returncode == 2 and "Usage: trainplan" in bare.stdout and bare.stderr == ""


def test_version() -> None:
    assert call("--version").stdout == f"trainplan {tp.__version__}\n"
    module = subprocess.run([sys.executable, "-m", "trainplan", "--version"], capture_output=True, text=True, check=True)
    assert module.stdout == f"trainplan {tp.__version__}\n"


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("trainplan pl", "plan"),
        ("trainplan plan --model gpt2-x", "gpt2-xl"),
        ("trainplan plan --cluster h100", "h100-64"),
        ("trainplan plan --cluster h100", "h100:8x16"),
    ],
)
def test_the_shell_completes_commands_and_values(words: str, wanted: str) -> None:
    requested = {"_TRAINPLAN_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    done = subprocess.run(COMMAND, env={**os.environ, **requested}, capture_output=True, text=True, check=False)
    assert wanted in done.stdout.split(), done


@pytest.mark.parametrize("words", [["model", "list"], ["schema", "plan"], ["--help"]])
def test_a_closed_pipe_is_no_error(words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*COMMAND, *words], stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_narrow_terminals_lose_no_column(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = ("device", "holds", "forward", "backward", "busy", "idle")
    rows = [["0", "embedding .. block3.attention", "12.34 ms", "24.68 ms", "37.02 ms", "1.234 ms"]]
    for width in (200, 60, 40):
        text = StringIO()
        monkeypatch.setattr(printing, "out", Console(file=text, width=width, highlight=False, soft_wrap=True))
        printing.table(columns, rows, "a title")
        shown = text.getvalue()
        assert all(line == line[:width] for line in map(str.rstrip, shown.splitlines())), shown
        for part in ("a title", *columns, *rows[0][2:], "embedding", "block3.attention"):
            assert part in shown, (width, part, shown)


def test_planning_names_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    text = StringIO()
    monkeypatch.setattr(bars, "err", Console(file=text, force_terminal=True, width=100))
    with bars.planning() as progress:
        for event in ("estimating", "solving (exact)", Point(0.1, 2_000_000, 1_000_000)):
            progress(event)
    assert "measuring" not in text.getvalue() and "solving (exact): best 2 ms, bound 1 ms" in text.getvalue()


def test_a_frontier_shows_its_progress(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text, path = StringIO(), tmp_path / "instance.json"
    monkeypatch.setattr(bars, "err", Console(file=text, force_terminal=True, width=100))
    path.write_text(json.dumps(paper_instance().to_dict()))
    ends: dict[str, Any] = {"least": "8GiB", "most": "9GiB", "points": 2, "picture": None, "as_json": True}
    with pytest.raises(Exit):
        problems.frontier(instance=path, **ends, method=["exact"], time_limit=30.0, gap=0.0, seed=0)
    assert "solving: exact, 9 GiB" in text.getvalue()


def test_plan_writes_its_picture_and_the_plan_with_one_strategy(tmp_path: Path) -> None:
    picture, uniform = tmp_path / "plan.png", tmp_path / "uniform.json"
    words = ("--batch", "8", "--sequence", "32", "--micro-batches", "2", "--pipeline", "1")
    done = call("plan", *MODEL, *CLUSTER, *words, "--details", "--picture", picture, "--uniform-output", uniform)
    assert done.returncode == 0, done.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert load_plan(uniform).one_strategy is not None
    for part in ("tokens/s per device", "MFU", "exposed communication", "bubble", "gradients", "one strategy", "samples/s"):
        assert part in done.stdout
    assert " ns)" not in done.stdout
