"""The command as users call it: exit codes, one-line errors, JSON, and files that are whole or absent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from trainplan.profiling.models.model import load_model

import trainplan as tp
from tests.helpers.calls import call
from tests.helpers.instances import paper_instance, random_dict
from tests.helpers.plans import GPT2, pipeline, plan_of
from tests.helpers.refusals import refused

COMMAND = [str(Path(sys.executable).parent / "trainplan")]


@pytest.fixture
def instance(tmp_path: Path) -> Path:
    path = tmp_path / "instance.json"
    path.write_text(json.dumps(paper_instance(pipeline=4, micro_batches=4, batch=32).to_dict()))
    return path


def refuses_in_one_line(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    """Exit 2, one line on standard error with all the parts, nothing on standard output."""
    assert done.returncode == 2, done
    assert done.stderr.count("\n") == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    for part in parts:
        assert part in done.stderr


def test_build_solve_check_compare(tmp_path: Path) -> None:
    path, answer = tmp_path / "i.json", tmp_path / "s.json"
    built = call(
        "build",
        "layer-strategies",
        "--model",
        "bert-huge-32",
        "--cluster",
        "rtx-titan-8",
        "--batch",
        "8",
        "--memory",
        "8GiB",
        "-o",
        path,
    )
    assert built.returncode == 0, built.stderr
    solved = call("solve", path, "-o", answer, "--json")
    result = json.loads(solved.stdout)
    assert (solved.returncode, result["status"], result["gap"]) == (0, "optimal", 0.0)
    assert solved.stderr == "", "no progress in a pipe"
    checked = call("check", path, answer, "--json")
    assert (checked.returncode, json.loads(checked.stdout)["objective"]) == (0, result["objective"])
    compared = call(
        "compare-methods",
        path,
        "--time-limit",
        "60",
        "--method",
        "exact",
        "--method",
        "cpsat",
        "--method",
        "galvatron-dp",
        "--json",
    )
    found = json.loads(compared.stdout)
    assert (compared.returncode, found["contradictions"]) == (0, [])
    assert {r["method"]: r["objective"] for r in found["results"]}["cpsat"] == result["objective"]


def test_schemas_describe_the_files(instance: Path) -> None:
    schema = json.loads(call("schema", "layer-strategies").stdout)
    good = json.loads(instance.read_text())
    jsonschema.validate(good, schema)
    del good["layers"][0]["options"][0]["time_ns"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(good, schema)
    for name in ("plan", "profile", "cluster", "layer-strategies-solution"):
        assert "properties" in json.loads(call("schema", name).stdout)
    refuses_in_one_line(call("schema", "nothing"), "format is 'nothing'", "layer-strategies")


def test_methods(instance: Path) -> None:
    found = json.loads(call("methods", "--json").stdout)
    assert found["exact"] == "label-setting"
    assert {m["name"] for m in found["methods"]} == {"label-setting", "milp", "cpsat", "galvatron-dp", "brute-force"}
    refuses_in_one_line(call("solve", instance, "--method", "magic"), "--method is 'magic'", "label-setting")
    refuses_in_one_line(call("solve", instance, "--method", "brute-force"), "brute-force", "2e6")
    refuses_in_one_line(call("solve", instance, "--time-limit", "0"), "--time-limit is 0")
    refuses_in_one_line(call("solve", instance, "--time-limit", "nan"), "--time-limit is nan")
    refuses_in_one_line(call("solve", instance, "--gap", "2"), "--gap is 2")
    refuses_in_one_line(call("solve", instance, "--option", "workers=2"), "is not an option of label-setting")
    refuses_in_one_line(call("solve", instance, "--method", "cpsat", "--option", "workers=x"), "workers is 'x'")


def test_infeasible_says_why(instance: Path) -> None:
    content = json.loads(instance.read_text())
    instance.write_text(json.dumps({**content, "memory_bytes": 10**9}))
    done = call("solve", instance)
    assert done.returncode == 1
    assert "the least that would do is" in done.stdout
    result = json.loads(call("solve", instance, "--json").stdout)
    least = result["reason"]["least_memory_bytes"]
    instance.write_text(json.dumps({**content, "memory_bytes": least}))
    assert call("solve", instance).returncode == 0
    instance.write_text(json.dumps({**content, "memory_bytes": least - 1}))
    assert call("solve", instance).returncode == 1
    for method in ("milp", "cpsat", "galvatron-dp"):
        assert call("solve", instance, "--method", method, "--time-limit", "30").returncode == 1


def test_violated_solutions(instance: Path, tmp_path: Path) -> None:
    layers = len(json.loads(instance.read_text())["layers"])
    solution = tmp_path / "s.json"
    solution.write_text(json.dumps({"choice": [0] * layers}))
    done = call("check", instance, solution)
    assert done.returncode == 1
    assert "more than memory_bytes" in done.stdout
    solution.write_text(json.dumps({"choice": [0]}))
    assert call("check", instance, solution).returncode == 1
    solution.write_text(json.dumps({"choice": [-1] * layers}))
    refuses_in_one_line(call("check", instance, solution), "choice[0] is -1")
    solution.write_text(json.dumps({"choices": [0]}))
    refuses_in_one_line(call("check", instance, solution), "choice is missing")


def test_check_of_a_plan(tmp_path: Path, instance: Path) -> None:
    """Its programs, and the memory that they need; the instance of a solution is not taken for one."""
    plan, path = pipeline(GPT2, 2, 4), tmp_path / "plan.json"
    path.write_text(plan.model_dump_json())
    done = call("check", path)
    assert done.returncode == 0 and done.stderr == ""
    for part in ("2 ranks", "2 programs (each rank's)", "instructions", "peak memory", "memory limit", "violations"):
        assert part in done.stdout
    content = json.loads(call("check", path, "--json").stdout)
    assert content["violations"] == [] and content["peak_bytes"] > 0
    path.write_text(plan.changed(memory_bytes=content["peak_bytes"] - 1).model_dump_json())
    over = call("check", path)
    assert over.returncode == 1
    assert f"rank {content['peak_rank']} needs {content['peak_bytes']} bytes, more than memory_bytes" in over.stdout
    refuses_in_one_line(call("check", path, path), "solution is given; leave it out")
    refuses_in_one_line(call("check", instance), "solution is missing; give one")
    path.write_text("{}")
    refuses_in_one_line(call("check", path), "is neither a plan nor an instance")


def test_check_of_a_plan_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = pipeline(GPT2, 2, 4)
    assert tp.check(plan) == tp.check(plan.model_dump()) and tp.check(plan).violations == ()
    monkeypatch.setattr("trainplan.execution.prediction.compiled_plan.check", lambda programs: ["rank 0: is wrong"])
    checked = tp.check(plan)
    assert checked.violations == checked.faults == ("rank 0: is wrong",) and checked.peak_bytes is None
    vision = load_model("vit-huge-32")
    unrun = plan_of(vision, ["single"] * len(vision.units), 1)
    with refused("model.config.model_type", where="plan", problem="vit", fix=("gpt2", "bert", "llama")):
        tp.check(unrun)


def test_what_a_limit_stops_is_exit_3(instance: Path) -> None:
    done = call("solve", instance, "--method", "galvatron-dp", "--time-limit", "1e-9")
    assert done.returncode == 3
    assert "the time limit" in done.stdout


CHANGES: list[tuple[str, Any, tuple[str, ...]]] = [
    ("layers[0].options[0].time_ns", None, ("layers[0].options[0].time_ns is missing", "add it")),
    ("layers[0].options[1].time_ns", -5, ("layers[0].options[1].time_ns is -5", "at least 0")),
    ("layers[0].options[1].time_ns", float("nan"), ("layers[0].options[1].time_ns is NaN", "whole number")),
    ("layers[0].options[1].time_ns", float("inf"), ("layers[0].options[1].time_ns is inf", "whole number")),
    ("layers[0].options[1].time_ns", 1.5, ("layers[0].options[1].time_ns is 1.5", "whole number")),
    ("layers[0].options[1].time_ns", "7", ("layers[0].options[1].time_ns is '7'", "whole number")),
    ("layers[0].options[1].time_ns", True, ("layers[0].options[1].time_ns is true", "whole number")),
    ("layers[0].options[1].time_ns", 10**30, ("layers[0].options[1].time_ns", "at most")),
    ("layers[0].options[1].state_bytes", -1, ("layers[0].options[1].state_bytes is -1", "at least 0")),
    ("memory_bytes", 0, ("memory_bytes is 0", "above 0")),
    ("memory_bytes", None, ("memory_bytes is missing",)),
    ("transitions_ns[0][1]", [1], ("transitions_ns[0][1] has 1 entries", "give 6")),
    ("transitions_ns[0]", [[0]], ("transitions_ns[0] has 1 rows", "give 6")),
    ("transitions_ns[2]", None, ("transitions_ns has 7 tables", "give 8")),
    ("layers", [], ("layers is []", "at least 1 items")),
    ("problem", "knapsack", ("problem is 'knapsack'", "layer-strategies")),
    ("version", 2, ("version is 2", "give 1")),
    ("layers[0].options[1].strategy", "dp2", ("layers[0].options names 'dp2' twice",)),
    ("layers[0].options[1].strategy", "dp4-tp2", ("layers[0].options[1].strategy is 'dp4-tp2'", "make them multiply to 2")),
    ("layers[0].options[1].strategy", "fast", ("layers[0].options[1].strategy is 'fast'", "give levels of dp, sdp and tp")),
    ("devices", 3, ("layers[0].options[0].strategy is 'dp2'", "make them multiply to 3")),
    ("surprise", 1, ("surprise is not a field",)),
]


@pytest.mark.parametrize(("path", "value", "parts"), CHANGES, ids=[f"{path}={value}" for path, value, _ in CHANGES])
def test_bad_instances_get_one_line(instance: Path, path: str, value: Any, parts: tuple[str, ...]) -> None:
    content = json.loads(instance.read_text())
    steps = [int(step) if step.isdigit() else step for step in path.replace("[", ".").replace("]", "").split(".")]
    node = content
    for step in steps[:-1]:
        node = node[step]
    if value is None:
        del node[steps[-1]]
    else:
        node[steps[-1]] = value
    instance.write_text(json.dumps(content))
    refuses_in_one_line(call("solve", instance), str(instance), *parts)


def test_broken_files_get_one_line(instance: Path, tmp_path: Path) -> None:
    text = instance.read_text()
    instance.write_text(text[: len(text) // 2])
    refuses_in_one_line(call("solve", instance), str(instance), "truncated")
    instance.write_text("")
    refuses_in_one_line(call("solve", instance), "is empty")
    instance.write_text("{]")
    refuses_in_one_line(call("solve", instance), "line 1 column 2", "is not JSON")
    instance.write_text("[1, 2]")
    refuses_in_one_line(call("solve", instance), "give a JSON object")
    instance.write_text("[" * 100_000)
    refuses_in_one_line(call("solve", instance), str(instance))
    instance.write_bytes(b"\xff\xfe\x00")
    refuses_in_one_line(call("solve", instance), "UTF-8")
    with instance.open("wb") as stream:
        stream.truncate(200 * 2**20)
    refuses_in_one_line(call("solve", instance), "209,715,200 bytes", "100 MiB")
    refuses_in_one_line(call("solve", tmp_path / "absent.json"), "does not exist")
    refuses_in_one_line(call("solve", tmp_path), "is a folder")


def test_bad_builds_get_one_line(tmp_path: Path) -> None:
    def build(**changes: str) -> subprocess.CompletedProcess[str]:
        words = {"model": "bert-huge-32", "cluster": "rtx-titan-8", "batch": "8", "memory": "8GiB", **changes}
        options = [word for name, value in words.items() for word in (f"--{name.replace('_', '-')}", value)]
        return call("build", "layer-strategies", *options, "-o", tmp_path / "o.json")

    refuses_in_one_line(build(model="gpt5"), "--model is 'gpt5'", "gpt2")
    refuses_in_one_line(build(cluster="moon"), "--cluster is 'moon'", "`trainplan cluster list` lists all names")
    refuses_in_one_line(build(batch="0"), "--batch is 0")
    refuses_in_one_line(build(batch="7", micro_batches="2"), "--batch is 7")
    refuses_in_one_line(build(memory="lots"), "--memory is 'lots'", "8GiB")
    refuses_in_one_line(build(memory="0B"), "--memory is 0")
    refuses_in_one_line(build(pipeline="3"), "--pipeline is 3")
    refuses_in_one_line(build(pipeline="4", stage="4"), "stage from 0")
    refuses_in_one_line(build(cost_model="guess"), "--cost-model is 'guess'", "paper")
    refuses_in_one_line(build(granularity="atom"), "No such option: --granularity")
    refuses_in_one_line(build(sequence="1024"), "--sequence is 1024", "512")
    refuses_in_one_line(build(dtype="int8"), "--dtype is 'int8'")
    assert list(tmp_path.iterdir()) == []
    refuses_in_one_line(
        call("build", "knapsack", "--model", "gpt2", "--cluster", "cpu-4", "--batch", "4"), "problem is 'knapsack'"
    )


def test_output_files_are_whole_or_absent(instance: Path, tmp_path: Path) -> None:
    refuses_in_one_line(call("solve", instance, "-o", tmp_path / "no" / "s.json"), "cannot be written")
    (tmp_path / "taken").mkdir()
    reported_once = call("solve", instance, "-o", tmp_path / "taken")
    refuses_in_one_line(reported_once, "cannot be written", "not a folder")
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".part")]


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    done = call(
        "plan",
        "--model",
        "gpt2",
        "--cluster",
        "cpu-4",
        "--batch",
        "8",
        "--sequence",
        "256",
        "--memory",
        "1GiB",
        "-o",
        path,
    )
    assert done.returncode == 0, done.stderr
    return path


def test_plan_and_run(plan: Path) -> None:
    assert json.loads(plan.read_text())["claim"]["status"] == "optimal"
    done = call("run", plan, "--scale-down", "16", "--dtype", "float64", "--steps", "2", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert len(report["losses"]) == 2
    assert report["gradient_difference"] < 1e-12
    assert done.stderr == ""
    fused = call("run", plan, "--scale-down", "16", "--backend", "fused", "--steps", "1", "--no-compare")
    assert fused.returncode == 0
    assert "step 1" in fused.stdout


def test_bad_plans_get_one_line(plan: Path, tmp_path: Path) -> None:
    content = json.loads(plan.read_text())

    def changed(**changes: Any) -> subprocess.CompletedProcess[str]:
        plan.write_text(json.dumps({**content, **changes}))
        return call("run", plan)

    units = content["units"]
    refuses_in_one_line(
        changed(units=[{"name": units[0]["name"], "strategy": "dp2-tp4"}, *units[1:]]),
        str(plan),
        "units[0].strategy is 'dp2-tp4'",
        "multiply to 4",
    )
    refuses_in_one_line(
        changed(units=[{"name": units[0]["name"], "strategy": "dp3"}, *units[1:]]), "units[0].strategy is 'dp3'"
    )
    three = {"levels": [{"axis": "dp", "degree": 3}]}
    refuses_in_one_line(changed(units=[{**units[0], "layout": three}, *units[1:]]), "units[0].layout is 'dp3'")
    refuses_in_one_line(changed(units=units[1:]), "units has 25 items", "26")
    refuses_in_one_line(changed(units=[{**units[0], "name": "x"}, *units[1:]]), "units[0].name is 'x'", "'embedding'")
    model, config = content["model"], content["model"]["config"]
    refuses_in_one_line(changed(model={**model, "config": {**config, "n_layer": 13}}), "model_digest", "plan for it")
    refuses_in_one_line(changed(model={**model, "colour": "red"}), "model.colour is not a field")
    refuses_in_one_line(
        changed(model={**model, "config": {**config, "n_head": 5}}), "model.config.n_head is 5", "divisor of n_embd"
    )
    refuses_in_one_line(changed(batch={"global_samples": 7, "micro_batches": 1}), "divides 7 samples")
    refuses_in_one_line(changed(batch={"global_samples": 8, "micro_batches": 3}), "batch.micro_batches is 3")
    refuses_in_one_line(
        changed(stages=[{**content["stages"][0], "ranks": [0, 1]}]), "stages leave rank 2 out", "ranks 0 to 3 once"
    )
    refuses_in_one_line(changed(world=0), "world is 0")
    plan.write_text(json.dumps(content))
    refuses_in_one_line(call("run", plan, "--model", "bert-huge-32"), "model_digest", "plan for 'bert-huge-32'")
    refuses_in_one_line(call("run", plan, "--steps", "0"), "--steps is 0")
    refuses_in_one_line(call("run", plan, "--scale-down", "0"), "--scale-down is 0")
    refuses_in_one_line(call("run", plan, "--backend", "magic"), "--backend is 'magic'")
    refuses_in_one_line(call("run", plan, "--dtype", "int8"), "--dtype is 'int8'")


def test_an_infeasible_plan_is_exit_1_and_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    done = call("plan", "--model", "gpt2", "--cluster", "cpu-4", "--batch", "8", "--memory", "100MiB", "-o", path)
    assert done.returncode == 1
    assert done.stdout.startswith("FITS NOT   no plan fits into 0.0977 GiB a GPU (proven)\nNEEDS ") and not path.exists()
    detailed = call("plan", "--model", "gpt2", "--cluster", "cpu-4", "--batch", "8", "--memory", "100MiB", "--details")
    assert "no choice fits into 100 MiB: each needs at least" in detailed.stdout and ", and one needs" in detailed.stdout


def test_corrupted_random_instances_never_trace_back(tmp_path: Path) -> None:
    """Any value of any field replaced by nonsense: one line, never a traceback (through the library, for speed)."""
    import random

    import trainplan as tp

    rng = random.Random(4)
    nonsense = [None, -1, 1.5, float("nan"), "x", [], {}, True, 10**40, [[]], {"a": 1}]
    refused = 0
    for _ in range(600):
        content: Any = random_dict(rng, 4, 3)
        node, key = content, rng.choice(list(content))
        while isinstance(node[key], dict | list) and node[key] and rng.random() < 0.8:
            node = node[key]
            key = rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
        node[key] = rng.choice(nonsense)
        try:
            tp.load(content)
        except tp.InputError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > 400


def test_an_interrupted_run_ends_all_its_processes(plan: Path) -> None:
    running = subprocess.Popen([*COMMAND, "run", str(plan)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while len(children := _workers_of(running.pid)) < 3 and running.poll() is None:
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate()
    assert (running.returncode, out, err) == (3, "", "trainplan: interrupted\n")
    assert len(children) >= 3
    for _ in range(6000):  # ten minutes: one that is left stays for ever
        if not (left := [child for child in children if b"worker" in _command_of(child)]):
            break
        time.sleep(0.1)
    assert not left


def _command_of(process: str) -> bytes:
    path = Path(f"/proc/{process}/cmdline")
    return path.read_bytes() if path.exists() else b""


def _workers_of(parent: int) -> list[str]:
    """Process ids of a process's children and theirs: one that starts the ranks, and the ranks."""
    path = Path(f"/proc/{parent}/task/{parent}/children")
    children = path.read_text().split() if path.exists() else []
    return [process for child in children for process in (child, *_workers_of(int(child)))]


def test_words_that_are_missing_are_bad_input() -> None:
    assert call().returncode in (0, 2)
    assert call("solve").returncode == 2
