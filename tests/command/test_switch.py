"""The command on memory switches: the problem built from a model and from H3T's format, solved, checked, compared and drawn;
`switch`, and its plan run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from trainplan.execution.launch.report import RunReport
from trainplan.formulations.plan.plan import load_plan
from trainplan.profiling.base.quantities import enough_bytes, format_time

import trainplan as tp
from tests.command.test_command import refuses_in_one_line
from tests.helpers.calls import call
from tests.helpers.refusals import refused
from tests.planning.test_switching import GPT2, published
from trainplan.command.render_runs import run_report

METHODS = {"label-setting", "milp", "cpsat", "h3t-dp", "h3t-greedy", "random", "manual", "zero-2", "zero-3", "brute-force"}
FAST = ("exact", "h3t-dp", "h3t-greedy", "random", "manual", "zero-2", "zero-3")
LIMIT = "300KB"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("switch")


@pytest.fixture(scope="module")
def words(folder: Path) -> list[str]:
    """A model of three blocks, so that everything takes a moment only."""
    path = folder / "config.json"
    path.write_text(json.dumps(GPT2))
    return ["--model", str(path), "--cluster", "cpu-4", "--batch", "8"]


@pytest.fixture(scope="module")
def instance(folder: Path, words: list[str]) -> Path:
    path = folder / "instance.json"
    done = call("build", "memory-switches", *words, "--memory", LIMIT, "--by-unit", "-o", path)
    assert done.returncode == 0, done.stderr
    for line in ("layers         8", "options        48", "memory_bytes   300000"):
        assert line in done.stdout
    return path


@pytest.fixture(scope="module")
def plan(folder: Path, words: list[str]) -> Path:
    path, picture = folder / "plan.json", folder / "plan.png"
    done = call("switch", *words, "--memory", LIMIT, "-o", path, "--picture", picture)
    assert done.returncode == 0, done.stderr
    for text in (
        "embedding",
        "head",
        "offload hidden",
        "share of layers",
        "●",
        "optimal",
        "proven lower bound",
        "peak ",
    ):
        assert text in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert f"written  {picture}" in done.stdout
    return path


def test_solve_check_and_draw(instance: Path, folder: Path) -> None:
    jsonschema.validate(json.loads(instance.read_text()), tp.schema("memory-switches"))
    answer, picture = folder / "solution.json", folder / "step.svg"
    solved = call("solve", instance, "-o", answer, "--picture", picture)
    assert solved.returncode == 0, solved.stderr
    for text in ("segment sync", "share of layers", "busy", "compute", "status       optimal", "into the step"):
        assert text in solved.stdout
    assert "<svg" in picture.read_text()
    jsonschema.validate(json.loads(answer.read_text()), tp.schema("memory-switches-solution"))
    result = json.loads(call("solve", instance, "--json").stdout)
    assert (result["status"], result["gap"]) == ("optimal", 0.0)
    assert result["solution"] == json.loads(answer.read_text())
    checked = call("check", instance, answer)
    assert checked.returncode == 0 and format_time(result["objective"]) in checked.stdout and "into the step" in checked.stdout
    wrong = folder / "wrong.json"
    wrong.write_text(json.dumps({"switches": [["offload_hidden", "segment_sync"]] * 8}))
    done = call("check", instance, wrong)
    assert done.returncode == 1 and "offload_hidden needs" in done.stdout


def test_methods_agree(instance: Path) -> None:
    listed = json.loads(call("methods", "memory-switches", "--json").stdout)
    assert listed["exact"] == "label-setting" and {entry["name"] for entry in listed["methods"]} == METHODS
    found = json.loads(
        call("compare-methods", instance, *(word for name in FAST for word in ("--method", name)), "--json").stdout
    )
    assert found["contradictions"] == []
    times = {result["method"]: result["objective"] for result in found["results"] if result["objective"] is not None}
    assert times["label-setting"] == min(times.values()) and {"h3t-dp", "h3t-greedy", "manual"} <= times.keys()
    table = call("compare-methods", instance, "--method", "exact", "--method", "manual").stdout
    assert "label-setting" in table and "above best" in table


def test_the_plan_is_valid_and_proven(plan: Path, words: list[str], instance: Path) -> None:
    made = json.loads(plan.read_text())
    jsonschema.validate(made, tp.schema("plan"))
    assert made["nvlink"] is False and all(unit["order"]["synchronised"] for unit in made["units"])
    assert {str(unit.strategy) for unit in load_plan(made).units} <= {"sdp4", "sdp4-ckpt"}
    proven = json.loads(call("solve", instance, "--json").stdout)
    assert made["claim"]["objective_ns"] == proven["objective"] == made["claim"]["bound_ns"]
    assert max(made["predicted"]["peak_bytes"]) <= 300_000
    found = json.loads(call("switch", *words, "--memory", LIMIT, "--method", "manual", "--json").stdout)
    assert found["result"]["method"] == "manual" and found["plan"]["claim"]["objective_ns"] >= made["claim"]["objective_ns"]
    assert max(found["walk_bytes"]) <= 300_000


@pytest.mark.long
def test_the_plan_runs(plan: Path) -> None:
    done = call("run", plan, "--steps", "1", "--dtype", "float64")
    assert done.returncode == 0, done.stderr
    for text in ("segment_sync", "4 processes", "gradients", "prediction"):
        assert text in done.stdout
    step = json.loads(plan.read_text())["predicted"]["step_ns"]
    assert json.loads(call("simulate", plan, "--json").stdout)["step_ns"] == step
    assert call("simulate", plan, "--trace", plan.with_name("trace.json")).returncode == 0
    traced = json.loads(plan.with_name("trace.json").read_text())
    assert traced["otherData"]["step_ns"] == step
    assert {entry["cat"] for entry in traced["traceEvents"] if entry["ph"] == "X"} >= {"compute", "host"}


def test_files_of_the_published_code(folder: Path) -> None:
    path, made = published(folder), folder / "h3t-instance.json"
    done = call("build", "memory-switches", "--profile", path, "--memory", "1KB", "-o", made)
    assert done.returncode == 0, done.stderr
    found = json.loads(made.read_text())
    assert (found["synchronisation"], found["memory_bytes"], len(found["layers"])) == ("forced", 1000, 3)
    done = call("build", "memory-switches", "--profile", path, "--memory", "1KB", "--paper-combinations", "--json")
    assert json.loads(done.stdout)["offload_needs_ckpt"] is False
    refuses_in_one_line(call("build", "memory-switches", "--profile", path), "--memory is missing")
    assert "lifted" not in done.stdout
    low = published(folder, backward_peak=60)
    arguments = ("build", "memory-switches", "--profile", low, "--memory", "1KB", "-o", made)
    assert "backward_peak_bytes of 2 layers, raised to what the layer keeps" in call(*arguments).stdout
    assert json.loads(call(*arguments, "--json").stdout)["lifted"] == {"backward_peak_bytes": [1, 2]}
    refuses_in_one_line(
        call("build", "memory-switches", "--profile", path, "--memory", "1KB", "--batch", "8"), "--batch is 8", "leave it out"
    )
    refuses_in_one_line(call("build", "layer-strategies", "--profile", path, "--memory", "1KB"), f"{path}: name is missing")


def test_what_does_not_fit_says_what_would_do(words: list[str]) -> None:
    done = call("switch", *words, "--memory", "50KB")
    assert done.returncode == 1 and "no choice fits into" in done.stdout and ", and one needs" in done.stdout
    assert "give --memory of at least" in done.stdout and "memory_bytes" not in done.stdout
    found = json.loads(call("switch", *words, "--memory", "50KB", "--backend", "serial", "--json").stdout)
    least = found["needed_bytes"]
    assert found["plan"] is None and found["result"]["reason"]["least_memory_bytes"] == least
    assert call("switch", *words, "--memory", f"{least}B", "--backend", "serial").returncode == 0
    short = call("switch", *words, "--memory", f"{least - 1}B", "--backend", "serial", "--json")
    assert short.returncode == 1 and short.stderr == ""
    found = json.loads(short.stdout)
    assert (found["plan"], found["needed_bytes"]) == (None, least)
    message = f"the compiled programs are 1 B short; give --memory of at least {enough_bytes(least)}"
    assert found["result"]["message"] == message


def test_a_run_is_held_against_its_plan(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = load_plan(json.loads(plan.read_text()))
    assert made.predicted is not None
    seconds = made.predicted.step_ns / 1e9

    def shown(scale_down: int = 1, **fields: Any) -> str:
        given: dict[str, Any] = {"dtype": "float32", "backend": "serial"} | fields
        run_report(
            made,
            RunReport(
                model=made.model["name"],
                world=4,
                device="cpu",
                losses=[1.0, 1.0, 1.0],
                step_seconds=[seconds, 5 * seconds, 2 * seconds],
                predicted_peak_bytes=[300_000] * 4,
                peak_bytes=None,
                gradient_difference=None,
                parameter_difference=None,
                loss_difference=None,
                **given,
            ),
            scale_down,
        )
        return capsys.readouterr().out

    message, backend_note = (
        "2 times the predicted time (profile estimated)",
        "of the back-end streams; this run's back-end is serial",
    )
    assert message in shown() and backend_note in shown()
    assert message in shown(backend="threads") and backend_note not in shown(backend="threads")
    for other in (shown(scale_down=8), shown(dtype="float64")):
        assert "median step" not in other, "not the planned model"


@pytest.mark.parametrize(
    ("more", "parts"),
    [
        (["--method", "magic"], ("--method is 'magic'", "h3t-greedy")),
        (["--option", "levels=64"], ("option levels", "is not an option of label-setting")),
        (["--backend", "cuda"], ("--backend is 'cuda'", "streams")),
        (["--batch", "6"], ("--batch is 6", "multiple of the 4 devices")),
        (["--cluster", "amp-heterogeneous-16", "--batch", "16"], ("--cluster is 'amp-heterogeneous-16'", "place")),
        (["--picture", "p.gif"], ("--picture is 'p.gif'", ".png")),
        (["-o", "/nowhere/p.json"], ("/nowhere/p.json", "cannot be written")),
        (["--memory", "0B"], ("--memory is 0 bytes",)),
    ],
)
def test_bad_input_gets_one_line(words: list[str], more: list[str], parts: tuple[str, ...]) -> None:
    refuses_in_one_line(call("switch", *words, *more), *parts)


def test_bad_input_of_build_and_solve(words: list[str], folder: Path) -> None:
    refuses_in_one_line(call("build", "memory-switches", *words, "--pipeline", "2"), "No such option: --pipeline")
    refuses_in_one_line(call("build", "memory-switches", *words, "--layers", "2"), "No such option: --layers")
    refuses_in_one_line(call("build", "pipeline", *words, "--paper-combinations"), "No such option: --paper-combinations")
    with refused("paper_combinations", problem="true", fix=("pipeline", "--cost-model")):
        tp.build("pipeline", model="gpt2", cluster="cpu-4", batch=8, paper_combinations=True)
    other = folder / "layers.json"
    assert call("build", "layer-strategies", *words, "-o", other).returncode == 0
    refuses_in_one_line(call("solve", other, "--picture", folder / "p.png"), "--picture is of a layer-strategies instance")


def test_all_planners_take_the_options_that_every_plan_takes(words: list[str]) -> None:
    done = call("plan", "--like", "all", *words, "--sequence", "16", "--details")
    assert done.returncode == 0 and "--option" not in done.stdout, done.stdout
    assert {"joint", "galvatron-bmw", "amp", "autopipe", "h3t"} <= {
        line.split()[0] for line in done.stdout.splitlines() if line.strip()
    }
