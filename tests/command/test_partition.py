"""The command on pipelines cut at sub-layers: the problem built, solved, checked and compared; `partition`; `simulate`."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from trainplan.profiling.base.quantities import format_time

import trainplan as tp
from tests.command.test_command import refuses_in_one_line
from tests.helpers.calls import call

PAPER = ["--model", "gpt2-345m", "--dtype", "float32", "--cluster", "autopipe-3090-16"]
FOUR = ["--pipeline", "4", "--micro-batches", "8"]
METHODS = {"branch-and-bound", "milp", "cpsat", "autopipe", "algorithm-1", "megatron", "piper", "dapple", "brute-force"}
FAST = ("exact", "autopipe", "algorithm-1", "megatron", "piper", "dapple")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("partition")


@pytest.fixture(scope="module")
def instance(folder: Path) -> Path:
    path = folder / "instance.json"
    done = call("build", "pipeline-partition", *PAPER, *FOUR, "--batch", "64", "-o", path)
    assert done.returncode == 0, done.stderr
    for line in ("sublayers      50", "stages         4", "micro_batches  8"):
        assert line in done.stdout
    return path


@pytest.fixture(scope="module")
def plan(folder: Path) -> Path:
    path, picture = folder / "plan.json", folder / "plan.png"
    done = call("partition", *PAPER, *FOUR, "--batch", "128", "-o", path, "--picture", picture)
    assert done.returncode == 0, done.stderr
    for text in (
        "embedding .. block",
        "head",
        "<- master stage",
        "start-up",
        "bubble",
        "4 pipelines of 4 stages",
        "proven lower bound",
        "peak ",
    ):
        assert text in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert f"written  {picture}" in done.stdout
    return path


def test_solve_and_check(instance: Path, folder: Path) -> None:
    jsonschema.validate(json.loads(instance.read_text()), tp.schema("pipeline-partition"))
    answer = folder / "solution.json"
    solved = call("solve", instance, "-o", answer)
    assert solved.returncode == 0, solved.stderr
    for text in ("embedding .. ", "<- master stage", "status       optimal", "sub-layers; 8 micro-batches", "24 GiB"):
        assert text in solved.stdout
    jsonschema.validate(json.loads(answer.read_text()), tp.schema("pipeline-partition-solution"))
    result = json.loads(call("solve", instance, "--json").stdout)
    assert (result["status"], result["gap"]) == ("optimal", 0.0)
    checked = call("check", instance, answer)
    assert checked.returncode == 0 and format_time(result["objective"]) in checked.stdout
    wrong = folder / "wrong.json"
    wrong.write_text('{"cuts": [3, 2, 1]}')
    done = call("check", instance, wrong)
    assert done.returncode == 1 and "strictly increasing" in done.stdout


def test_methods_agree(instance: Path) -> None:
    listed = json.loads(call("methods", "pipeline-partition", "--json").stdout)
    assert listed["exact"] == "branch-and-bound" and {entry["name"] for entry in listed["methods"]} == METHODS
    found = json.loads(
        call("compare-methods", instance, *(word for name in FAST for word in ("--method", name)), "--json").stdout
    )
    assert found["contradictions"] == []
    times = {result["method"]: result["objective"] for result in found["results"]}
    assert len(times) == len(FAST) and min(times.values()) == times["branch-and-bound"]
    assert times["autopipe"] <= times["algorithm-1"] < times["megatron"]


def test_the_plan_is_valid_and_sliced(plan: Path) -> None:
    made = json.loads(plan.read_text())
    jsonschema.validate(made, tp.schema("plan"))
    assert made["sliced"] == 1 and len(made["stages"]) == 4
    assert [unit["layout"] for unit in made["units"]] == [{"levels": [{"axis": "dp", "degree": 4}]}] * len(made["units"])
    found = json.loads(call("partition", *PAPER, *FOUR, "--batch", "128", "--sliced", "0", "--json").stdout)
    assert found["plan"]["sliced"] == found["alternatives"][0]["sliced"] == 0
    assert found["result"]["status"] == "optimal"
    for name, time in (("claim", "objective_ns"), ("predicted", "step_ns")):
        assert found["plan"][name][time] > made[name][time]
    more = json.loads(call("partition", *PAPER, *FOUR, "--batch", "128", "--sliced", "3", "--json").stdout)
    assert more["plan"]["sliced"] == 3


def test_all_depths_are_listed() -> None:
    words = [*PAPER, "--batch", "64", "--micro-batches", "4", "--method", "algorithm-1"]
    done = call("partition", *words)
    assert done.returncode == 0, done.stderr
    assert "5 alternatives, the best first" in done.stdout
    found = json.loads(call("partition", *words, "--json").stdout)
    assert found["alternatives"][0]["pipeline"] == len(found["plan"]["stages"])


def test_partitions_that_do_not_fit_say_what_would_do() -> None:
    done = call("partition", *PAPER, *FOUR, "--batch", "64", "--memory", "1GiB")
    assert done.returncode == 1 and "the least that would do" in done.stdout


def test_simulate_a_plan(plan: Path, folder: Path) -> None:
    trace, picture = folder / "trace.json", folder / "timeline.svg"
    done = call("simulate", plan, "--cluster", "autopipe-3090-16", "--trace", trace, "--picture", picture)
    assert done.returncode == 0, done.stderr
    predicted = json.loads(plan.read_text())["predicted"]["step_ns"]
    found = json.loads(call("simulate", plan, "--cluster", "autopipe-3090-16", "--json").stdout)
    assert found["step_ns"] == predicted and found["sliced"] == 1
    for text in (format_time(found["iteration_ns"]), "master stage", "critical path", "1 sliced", "gradients and optimizer"):
        assert text in done.stdout
    assert (
        sum(event["ph"] == "X" and event["cat"] != "transfer" for event in json.loads(trace.read_text())["traceEvents"]) == 68
    )
    assert "<svg" in picture.read_text()
    other = json.loads(call("simulate", plan, "--cluster", "autopipe-3090-16", "--sliced", "0", "--json").stdout)
    assert other["iteration_ns"] > found["iteration_ns"] and other["startup_ns"] > found["startup_ns"]


def test_simulate_an_instance(instance: Path, folder: Path) -> None:
    answer = folder / "even.json"
    assert call("solve", instance, "--method", "megatron", "-o", answer).returncode == 0
    given = json.loads(call("simulate", instance, "--solution", answer, "--json").stdout)
    solved = json.loads(call("simulate", instance, "--json").stdout)
    assert solved["iteration_ns"] < given["iteration_ns"] == given["step_ns"]
    assert [device["in_flight"] for device in solved["devices"]] == [4, 3, 2, 1]
    assert sum(device["busy_ns"] + device["idle_ns"] for device in solved["devices"]) == 4 * solved["iteration_ns"]
    chunked = call("simulate", instance, "--schedule", "interleaved-1f1b", "--chunks", "2")
    assert chunked.returncode == 0 and "2 stages a device" in chunked.stdout


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["build", "pipeline-partition", "--model", "gpt2", "--batch", "8"], ("--cluster is missing",)),
        (
            ["build", "pipeline-partition", *PAPER, "--batch", "64", "--pipeline", "3"],
            ("--pipeline is 3", "give one of: 1, 2, 4"),
        ),
        (["build", "pipeline-partition", *PAPER, "--batch", "63", *FOUR], ("--batch is 63", "give a multiple of 32")),
        (
            ["build", "pipeline-partition", *PAPER, "--batch", "64", *FOUR, "--tp", "4", "--dp", "2"],
            ("--dp is 2", "give at most 1"),
        ),
        (["build", "pipeline-partition", *PAPER, "--batch", "64", "--space", "full"], ("No such option: --space",)),
        (["build", "pipeline-partition", *PAPER, "--batch", "64", "--micro-batches", "0"], ("--micro-batches is 0",)),
        (["build", "pipeline", *PAPER, "--batch", "64", "--dp", "2"], ("No such option: --dp",)),
        (["partition", *PAPER, "--batch", "64", *FOUR, "--method", "greedy"], ("--method is 'greedy'", "autopipe")),
        (["partition", *PAPER, "--batch", "64", *FOUR, "--sliced", "9"], ("--sliced is 9", "at most 3")),
        (["partition", *PAPER, "--batch", "64", *FOUR, "--sliced", "-1"], ("--sliced is -1", "at least 0")),
        (["partition", *PAPER, "--batch", "64", *FOUR, "--picture", "p.gif"], ("--picture is 'p.gif'", ".png")),
        (["partition", *PAPER, "--batch", "64", *FOUR, "-o", "/nowhere/p.json"], ("/nowhere/p.json", "cannot be written")),
        (["simulate", "absent.json"], ("absent.json", "does not exist")),
    ],
)
def test_bad_input_gets_one_line(words: list[str], parts: tuple[str, ...]) -> None:
    refuses_in_one_line(call(*words), *parts)


def test_bad_input_of_simulate(instance: Path, plan: Path, folder: Path) -> None:
    refuses_in_one_line(call("simulate", plan, "--cluster", "cpu-4"), "has 4 devices")
    refuses_in_one_line(call("simulate", instance, "--schedule", "zigzag"), "--schedule is 'zigzag'", "interleaved-1f1b")
    refuses_in_one_line(call("simulate", instance, "--sliced", "7"), "--sliced is 7", "give 0 to 3")
    refuses_in_one_line(
        call("simulate", instance, "--trace", folder / "t", "--picture", folder / "t.gif"), "--picture is", ".png"
    )
    neither = folder / "neither.json"
    neither.write_text("{}")
    refuses_in_one_line(call("simulate", neither), "is neither a plan nor an instance")
    other = folder / "other.json"
    words = (
        "--model",
        "amp-gpt2",
        "--dtype",
        "float32",
        "--cluster",
        "amp-homogeneous-16",
        "--batch",
        "32",
        "--pipeline",
        "4",
        "-o",
        other,
    )
    assert call("build", "stage-assignment", *words).returncode == 0
    refuses_in_one_line(call("simulate", other), "problem is 'stage-assignment'", "pipeline-partition")
