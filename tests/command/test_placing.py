"""The command on clusters of mixed devices: AMP's problems built, solved and compared; `place` and `trial`; bad input."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from trainplan.profiling.base.quantities import format_time

import trainplan as tp
from tests.command.test_command import refuses_in_one_line
from tests.helpers.calls import call

MIXED = ["--model", "amp-gpt2", "--cluster", "amp-heterogeneous-16", "--dtype", "float16", "--batch", "32"]
LOCAL = ["--model", "gpt2", "--cluster", "cpu-4", "--batch", "8", "--sequence", "64"]
PLANNERS = {"amp", "megatron", "random", "simulated-annealing"}
PROVING = {"branch-and-bound", "milp", "cpsat", "brute-force"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("placing")


@pytest.fixture(scope="module")
def instance(folder: Path) -> Path:
    """By AMP's own cost model, which knows no tied tables."""
    path = folder / "instance.json"
    done = call("build", "cluster-strategy", *MIXED, "--no-tied", "-o", path)
    assert done.returncode == 0, done.stderr
    assert "devices        16" in done.stdout
    return path


def test_planners_on_the_mixed_cluster(instance: Path, folder: Path) -> None:
    listed = json.loads(call("methods", "cluster-strategy", "--json").stdout)
    assert listed["exact"] == "branch-and-bound"
    assert {entry["name"] for entry in listed["methods"]} == PLANNERS | PROVING
    found = json.loads(
        call("compare-methods", instance, *(w for name in sorted(PLANNERS) for w in ("--method", name)), "--json").stdout
    )
    assert found["contradictions"] == []
    answer = folder / "solution.json"
    solved = call("solve", instance, "--method", "amp", "-o", answer, "--json")
    result = json.loads(solved.stdout)
    assert (solved.returncode, result["status"]) == (0, "feasible")
    assert result["objective"] == result["statistics"]["candidates"][0]["time_ns"]
    checked = call("check", instance, answer)
    assert checked.returncode == 0
    assert format_time(result["objective"]) in checked.stdout
    jsonschema.validate(json.loads(answer.read_text()), tp.schema("cluster-strategy-solution"))
    jsonschema.validate(json.loads(instance.read_text()), tp.schema("cluster-strategy"))


def test_place_shows_stages_and_draws_them(folder: Path) -> None:
    plan, picture = folder / "plan.json", folder / "placement.png"
    done = call("place", *MIXED, "--method", "amp", "-o", plan, "--picture", picture)
    assert done.returncode == 0, done.stderr
    for text in ("Tesla V100", "Tesla T4", "predicted time", "pp", "written"):
        assert text in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    made = json.loads(plan.read_text())
    jsonschema.validate(made, tp.schema("plan"))
    assert made["claim"]["method"] == "amp"


def test_a_slow_kind_of_device_gets_fewer_layers(instance: Path) -> None:
    """By its own times T4 holds fewer layers than where all devices are taken for alike, and the step is faster."""
    held, times = {}, {}
    for layer_times in ("device", "average"):
        done = call("solve", instance, "--method", "amp", "--option", f"layer_times={layer_times}", "--json")
        found = json.loads(done.stdout)
        stages = [stage for stage in found["evaluation"]["stages"] if ["Tesla T4", 4] in stage["kinds"]]
        held[layer_times] = sum(stage["last"] - stage["first"] + 1 for stage in stages)
        times[layer_times] = found["objective"]
    assert 0 < held["device"] < held["average"]
    assert times["device"] < times["average"]


def test_the_exact_placement_beats_the_heuristic(instance: Path) -> None:
    done = call("compare-methods", instance, "--method", "amp", "--method", "exact", "--json")
    heuristic, exact = json.loads(done.stdout)["results"]
    assert (done.returncode, exact["status"]) == (0, "optimal")
    assert exact["objective"] < heuristic["objective"]


def test_the_assignment_alone(folder: Path) -> None:
    path = folder / "assignment.json"
    done = call("build", "stage-assignment", *MIXED, "--pipeline", "4", "--micro-batches", "8", "-o", path)
    assert done.returncode == 0, done.stderr
    found = json.loads(call("compare-methods", path, "--time-limit", "60", "--json").stdout)
    assert found["contradictions"] == []
    answers = {r["method"]: r["objective"] for r in found["results"]}
    assert answers["sweep"] == answers["milp"] == answers["cpsat"] == answers["amp-dp"]
    assert answers["sweep"] < answers["uniform-layers"]


def test_three_devices_get_a_plan(folder: Path) -> None:
    """dp 3 cannot become a plan, so it is not searched."""
    cluster, target = folder / "three.yaml", folder / "three.json"
    shipped = (Path(tp.__file__).parent / "data" / "clusters" / "cpu-4.yaml").read_text()
    cluster.write_text(shipped.replace("devices: 4", "devices: 3"))
    words = ["--model", "gpt2", "--dtype", "float32", "--cluster", cluster, "--batch", "24", "--sequence", "64", "-o", target]
    done = call("place", *words)
    assert done.returncode == 0, done.stderr
    assert "optimal" in done.stdout and len(json.loads(target.read_text())["stages"]) == 3


@pytest.mark.long
def test_trial_runs_the_best_and_writes_the_fastest(folder: Path) -> None:
    target = folder / "fastest.json"
    words = [*LOCAL, "--scale-down", "8", "--top", "3", "--steps", "2", "--warmup", "1", "-o", target]
    done = call("trial", *words, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [trial["status"] for trial in found["trials"]] == ["ran"] * 3
    best = min(found["trials"], key=lambda trial: trial["step_ns"])
    assert found["best"] == best["index"]
    assert json.loads(target.read_text()) == found["plans"][found["best"]]
    predicted = [plan["predicted"]["step_ns"] for plan in found["plans"]]
    assert predicted == sorted(predicted)


def test_infeasible_says_what_would_do() -> None:
    done = call("place", *MIXED, "--memory", "64MiB")
    assert done.returncode == 1
    assert "the least that would do" in done.stdout


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["build", "cluster-strategy", "--model", "gpt2", "--batch", "8"], ("--cluster is missing",)),
        (["build", "cluster-strategy", "--cluster", "cpu-4", "--batch", "8"], ("--model is missing",)),
        (["build", "cluster-strategy", *MIXED, "--pipeline", "4"], ("No such option: --pipeline",)),
        (["build", "cluster-strategy", *MIXED, "--space", "full"], ("No such option: --space",)),
        (["build", "stage-assignment", *MIXED, "--pipeline", "3"], ("--pipeline is 3", "give one of: 1, 2, 4, 8, 16")),
        (
            ["build", "stage-assignment", *MIXED, "--pipeline", "16", "--tp", "2"],
            ("--pipeline is 16", "give one of: 1, 2, 4, 8\n"),
        ),
        (["build", "stage-assignment", *MIXED, "--tp", "3"], ("--tp is 3", "give one of: 1, 2, 4")),
        (["build", "stage-assignment", *MIXED, "--micro-batches", "3"], ("--batch is 32", "give a multiple of")),
        (["build", "pipeline", *MIXED, "--uneven-shares"], ("No such option: --uneven-shares",)),
        (["place", *MIXED[:-1], "0"], ("--batch is 0",)),
        (["place", *MIXED, "--method", "greedy"], ("--method is 'greedy'", "amp")),
        (["place", *MIXED, "--method", "amp", "--option", "layer_times=guess"], ("option layer_times is 'guess'", "device")),
        (["trial", *LOCAL, "--top", "0"], ("--top is 0",)),
        (["trial", *MIXED], ("model.dtype is 'float16'", "give --run-dtype float32, float64 or bfloat16")),
        (["trial", *LOCAL, "--device", "tpu"], ("--device is 'tpu'", "cpu")),
    ],
)
def test_bad_input_gets_one_line(words: list[str], parts: tuple[str, ...]) -> None:
    refuses_in_one_line(call(*words), *parts)
