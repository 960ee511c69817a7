"""The command on whole pipelines: from a model or from the engine's files to plans, and one line for whatever is wrong."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from trainplan.profiling.base.quantities import format_time
from trainplan.profiling.models.model import load_model

import trainplan as tp
from tests.command.test_command import refuses_in_one_line
from tests.helpers.calls import call
from tests.helpers.instances import random_pipeline, random_pipeline_dict
from tests.helpers.published import files, llama_plan
from tests.helpers.refusals import refused
from trainplan import api

MODEL = ["--model", "bert-huge-32", "--cluster", "rtx-titan-8"]
METHODS = {"branch-and-bound", "milp", "cpsat", "galvatron-bmw", "galvatron-base", "brute-force"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pipeline")


@pytest.fixture(scope="module")
def instance(folder: Path) -> Path:
    path = folder / "instance.json"
    done = call("build", "pipeline", *MODEL, "--batch", "16", "--memory", "8GiB", "-o", path)
    assert done.returncode == 0, done.stderr
    assert "options        22" in done.stdout
    return path


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(random_pipeline(9).to_dict()))
    return path


def test_build_solve_check_compare(instance: Path, folder: Path) -> None:
    answer = folder / "solution.json"
    solved = call("solve", instance, "-o", answer, "--json")
    result = json.loads(solved.stdout)
    assert (solved.returncode, result["status"], result["gap"], solved.stderr) == (0, "optimal", 0.0, "")
    checked = call("check", instance, answer)
    assert checked.returncode == 0
    assert format_time(result["objective"]) in checked.stdout
    shown = call("solve", instance).stdout
    for text in ("optimal", "branch-and-bound", "stages", "micro-batches", "1F1B-Flush"):
        assert text in shown
    compared = call(
        "compare-methods", instance, "--method", "exact", "--method", "galvatron-bmw", "--method", "galvatron-base", "--json"
    )
    found = json.loads(compared.stdout)
    assert (compared.returncode, found["contradictions"]) == (0, [])
    assert min(r["objective"] for r in found["results"]) == result["objective"]


def test_every_method_on_a_tiny_instance(tiny: Path) -> None:
    listed = json.loads(call("methods", "pipeline", "--json").stdout)
    assert listed["exact"] == "branch-and-bound"
    assert {entry["name"] for entry in listed["methods"]} == METHODS
    assert "branch-and-bound (= exact)" in call("methods", "pipeline").stdout
    found = json.loads(call("compare-methods", tiny, "--time-limit", "60", "--json").stdout)
    assert found["contradictions"] == []
    answers = {r["method"]: r for r in found["results"]}
    assert set(answers) == METHODS
    proven = {answers[name]["objective"] for name in ("branch-and-bound", "milp", "cpsat", "brute-force")}
    assert len(proven) == 1
    milp = call("solve", tiny, "--method", "milp", "--json")
    assert (milp.returncode, json.loads(milp.stdout)["objective"]) == (0, proven.pop())


def test_infeasible_says_why(tiny: Path) -> None:
    content = json.loads(tiny.read_text())
    tiny.write_text(json.dumps({**content, "memory_bytes": 1}))
    done = call("solve", tiny)
    assert done.returncode == 1
    assert "the least that would do is" in done.stdout
    least = json.loads(call("solve", tiny, "--json").stdout)["reason"]["least_memory_bytes"]
    for memory, code in ((least, 0), (least - 1, 1)):
        tiny.write_text(json.dumps({**content, "memory_bytes": memory}))
        assert call("solve", tiny).returncode == code


def test_schemas(tiny: Path) -> None:
    schema = json.loads(call("schema", "pipeline").stdout)
    good = json.loads(tiny.read_text())
    jsonschema.validate(good, schema)
    del good["configurations"][0]["options"][0][0]["time_ns"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(good, schema)
    jsonschema.validate(tp.solve(random_pipeline(9)).solution, tp.schema("pipeline-solution"))


def test_plans_of_several_stages(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    shape = ["--batch", "8", "--sequence", "64", "--memory", "3GiB"]
    stages = ["--pipeline", "2", "--micro-batches", "4", "--schedule", "gpipe"]
    done = call("plan", "--model", "gpt2", "--cluster", "cpu-4", *shape, *stages, "--details", "-o", path)
    assert done.returncode == 0, done.stderr
    for text in ("2 stages, GPipe", "8 samples in 4 micro-batches", "2 .. 3", "peak "):
        assert text in done.stdout
    content = json.loads(path.read_text())
    assert (content["schedule"], [stage["ranks"] for stage in content["stages"]]) == ("gpipe", [[0, 1], [2, 3]])
    refuses_in_one_line(
        call("plan", "--model", "gpt2", "--cluster", "cpu-4", *shape, "--pipeline", "3"), "--pipeline is 3", "1, 2, 4"
    )
    refuses_in_one_line(
        call("plan", "--model", "gpt2", "--cluster", "cpu-4", *shape, "--schedule", "zb"), "--schedule is 'zb'", "gpipe"
    )


def test_verbs_stay_functions() -> None:
    """No module of the package takes a verb's name, which importing it would put in the verb's place."""
    assert all(callable(getattr(tp, name)) for name in tp.__all__)
    assert tp.throughput is api.throughput


def test_throughput(tmp_path: Path) -> None:
    picture = tmp_path / "throughput.png"
    words = ["throughput", *MODEL, "--memory", "8GiB", "--planner", "fsdp", "--planner", "optimum", "--largest-batch", "24"]
    done = call(*words, "--json", "--picture", picture)
    assert done.returncode == 0, done.stderr
    fsdp, optimum = json.loads(done.stdout)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert (fsdp["planner"]["name"], optimum["planner"]["method"]) == ("fsdp", "exact")
    best = [max(p["throughput_samples_per_s"] for p in one["points"]) for one in (fsdp, optimum)]
    assert best[0] <= best[1]
    refuses_in_one_line(call(*words, "--picture", tmp_path / "x.bmp"), "--picture is", ".png, .svg or .pdf")
    named = {"model": "bert-huge-32", "cluster": "rtx-titan-8"}
    refuses(api.throughput, **named, planners=["magic"], refusal=("planner", "magic", ("ddp", "megatron", "gpipe", "fsdp")))
    refuses(api.throughput, **named, step=0, refusal=("step", 0, 1))


def refuses(function: Any, *arguments: Any, refusal: Sequence[Any], where: object = None, **options: Any) -> None:
    """As the command, without starting it: one line about a field and with facts, as `refused` takes them."""
    with refused(*refusal, where=where) as caught:
        function(*arguments, **options)
    assert "\n" not in str(caught.value)


OPTIONS: list[tuple[dict[str, Any], tuple[Any, ...]]] = [
    ({"pipeline": 3}, ("pipeline", 3, (1, 2, 4, 8))),
    ({"micro_batches": 3}, ("batch", (16, 3), "--micro-batches")),
    ({"batch": 0}, ("batch", 0, (1, 1048576))),
    ({"memory": "lots"}, ("memory", "lots", ("8GiB", "500MB"))),
    ({"space": "all"}, ("space", "all", ("full", "dp+tp", "3d"))),
    ({"space": "dp", "pipeline": 2}, ("pipeline", 2, ("dp", 1, "34 layers"))),
    ({"layers": 3}, ("layers", 3, ("--cost-model", "--micro-batches", "--by-unit"))),
    ({"hidden_size": 3}, ("hidden_size", 3, ("--cost-model", "--micro-batches", "--by-unit"))),
    ({"default_dp_type": "ddp"}, ("default_dp_type", "ddp", ("--cost-model", "--micro-batches", "--by-unit"))),
    ({"both_orders": True}, ("both_orders", "true", ("--cost-model", "--micro-batches", "--by-unit"))),
    ({"cost_model": "guess"}, ("cost_model", "guess", ("paper", "executed"))),
]


def test_bad_options_get_one_line(instance: Path, tmp_path: Path) -> None:
    for change, text in OPTIONS:
        options: dict[str, Any] = {"model": "bert-huge-32", "cluster": "rtx-titan-8", "batch": 16, **change}
        refuses(tp.build, "pipeline", refusal=text, **options)
    for method, options, text in (
        ("label-setting", {}, ("method", "label-setting", ("exact", "branch-and-bound"))),
        ("brute-force", {}, ("method", "brute-force", ("exact", "2e6"))),
        ("exact", {"cutoff_ns": 0}, ("cutoff_ns", 0, (1, 2**53))),
        ("galvatron-base", {"partition": "even"}, ("partition", "even", ("layers", "parameters", "memory", "time"))),
    ):
        refuses(tp.solve, instance, method, refusal=text, **options)
    output = tmp_path / "o.json"
    refuses_in_one_line(
        call("build", "pipeline", *MODEL, "--batch", "16", "--schedule", "zero", "-o", output), "--schedule is 'zero'"
    )
    refuses_in_one_line(
        call("build", "pipeline", *MODEL, "--batch", "16", "--layers", "3", "-o", output), "No such option: --layers"
    )
    assert not output.exists()
    refuses_in_one_line(call("methods", "pipelines"), "problem is 'pipelines'", "pipeline")


def test_more_stages_than_layers() -> None:
    model = load_model("gpt2", 64, "float32").with_fields(n_layer=1, n_embd=64, n_head=4)
    found = tp.build("pipeline", model=model, cluster="h100-8", batch=16)
    assert {given.stages for given in found.configurations} == {1, 2}
    assert tp.load(found.to_dict()).digest == found.digest
    refuses(
        tp.build,
        "pipeline",
        model=model,
        cluster="h100-8",
        batch=16,
        pipeline=4,
        refusal=("pipeline", 4, ("full", "1, 2", "3 layers")),
    )


SOLUTIONS: list[tuple[Any, tuple[Any, ...]]] = [
    ([], ("", "[]", "JSON")),
    ({"choice": [0]}, ("configuration",)),
    ({"configuration": -1, "stages": [1], "choice": [0]}, ("configuration", -1, 0)),
    ({"configuration": 0, "stages": [], "choice": [0]}, ("stages", "[]", 1)),
    ({"configuration": 0, "stages": [0], "choice": [0]}, ("stages[0]", 0, 1)),
    ({"configuration": 0, "stages": [1], "choice": [1.5]}, ("choice[0]", 1.5, 1000)),
    ({"configuration": 0, "stages": 4, "choice": [0]}, ("stages", 4, "[...]")),
    ({"configuration": 0, "stages": [1], "choice": [0], "x": 1}, ("x",)),
    ({"pp_deg": 1}, ("configuration",)),
]


def test_bad_solutions(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "solution.json"
    for content, text in SOLUTIONS:
        path.write_text(json.dumps(content))
        refuses(tp.check, tiny, path, refusal=text, where=path)
    refuses_in_one_line(call("check", tiny, path), str(path), "configuration is missing")
    path.write_text(json.dumps({"configuration": 99, "stages": [1], "choice": [0]}))
    done = call("check", tiny, path)
    assert (done.returncode, done.stderr) == (1, "")
    assert "configuration is 99" in done.stdout


def test_corrupted_instances_never_trace_back() -> None:
    """Any value of any field replaced by nonsense, through the library for speed: one line, or an instance that solves."""
    rng = random.Random(11)
    nonsense: list[Any] = [None, -1, 0, 1.5, float("nan"), "x", [], {}, True, 10**40, 2**63, [[]], [0], {"a": 1}, "dp2"]
    refused = 0
    for _ in range(600):
        content: Any = random_pipeline_dict(rng, 4, 3)
        node, key = content, rng.choice(list(content))
        while isinstance(node[key], dict | list) and node[key] and rng.random() < 0.85:
            node = node[key]
            key = rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
        node[key] = rng.choice(nonsense)
        try:
            loaded = tp.load(content)
        except tp.InputError as error:
            refused += 1
            assert "\n" not in str(error)
        else:
            assert tp.solve(loaded).status in ("optimal", "infeasible")
    assert refused > 300


def test_malformed_files(tiny: Path) -> None:
    text = tiny.read_text()
    content = json.loads(text)
    first = content["configurations"][0]
    changes: list[tuple[Any, tuple[Any, ...]]] = [
        ({**content, "problem": "pipelines"}, ("problem", "pipelines", ("pipeline", "layer-strategies", "stage-assignment"))),
        ({**content, "configurations": []}, ("configurations", "[]", 1)),
        ({**content, "configurations": [{**first, "stages": 3}]}, ("configurations[0].stages", 3, 4)),
        ({**content, "configurations": [{**first, "schedule": "x"}]}, ("configurations[0].schedule", "x", ("1f1b", "gpipe"))),
        ({**content, "configurations": [{**first, "micro_batches": 7}]}, ("configurations[0].micro_batches", 7, 8)),
        ({**content, "devices": 0}, ("devices", 0, 1)),
        ({**content, "memory_bytes": 2**60}, ("memory_bytes", 2**60, 2**48)),
    ]
    for changed, part in changes:
        tiny.write_text(json.dumps(changed))
        refuses(tp.solve, tiny, refusal=part, where=tiny)
    refuses_in_one_line(call("solve", tiny), str(tiny), "memory_bytes", str(2**60))
    tiny.write_text(text[:-20])
    refuses_in_one_line(call("compare-methods", tiny), str(tiny), "truncated")


def engine_files() -> list[Path]:
    names = [f"{kind}_profiling_bf16_llama2-7b_all.json" for kind in ("memory", "computation")]
    return files("llama2-7b", *names)


@pytest.mark.long
def test_the_engines_cost_model(tmp_path: Path) -> None:
    """Llama2-7B, 16 samples, 36 GiB: the engine's own search, the plan that its authors shipped, and the optimum."""
    profile, path = tmp_path / "profile", tmp_path / "instance.json"
    profile.mkdir()
    for file in engine_files():
        shutil.copy(file, profile)
    shutil.copy(llama_plan(), profile)  # the engine's own folder has its plans, too
    shape = ["--layers", "32", "--hidden-size", "4096", "--batch", "16", "--memory", "36GiB"]
    done = call("build", "galvatron-engine", "--engine-files", profile, *shape, "-o", path)
    assert done.returncode == 0, done.stderr
    exact = json.loads(call("solve", path, "--json").stdout)
    assert (exact["status"], exact["objective"]) == ("optimal", 1_083_027_349)
    search = tp.solve(path, "published")
    assert search.status == "feasible"
    assert search.objective == pytest.approx(1_084_781_258, abs=40)
    checked = call("check", path, llama_plan(), "--json")
    found = json.loads(checked.stdout)
    assert (checked.returncode, found["violations"]) == (0, [])
    assert found["objective"] == pytest.approx(1_086_372_900, abs=100)
    options: dict[str, Any] = {"layers": 32, "hidden_size": 4096, "batch": 16, "memory": "36GiB"}
    again = tp.build("galvatron-engine", engine_files=engine_files(), **options)
    assert again.to_dict() == tp.load(path).to_dict() == json.loads(path.read_text())
    assert tp.check(again, json.loads(llama_plan().read_text())).objective == found["objective"]

    plan = json.loads(llama_plan().read_text())
    changed = tmp_path / "plan.json"
    for change, part in (
        ({"global_bsz": 8}, ("global_bsz", 8)),
        ({"default_dp_type": "ddp"}, ("default_dp_type", "ddp")),
        ({"pp_deg": 3}, ("pp_deg", 3)),
        ({"tp_sizes_enc": "1,2"}, ("tp_sizes_enc", "1,2")),
        ({"chunks": "x"}, ("chunks", "x")),
    ):
        changed.write_text(json.dumps({**plan, **change}))
        refuses(tp.check, again, changed, refusal=part, where=changed)
    broken: list[dict[str, Any]] = [{"choices": []}, {"choices": 1}, {"options": 1}, {"options": {}}]
    for change in broken:
        refuses(
            tp.check, replace(again, provenance={**again.provenance, **change}), plan, refusal=(re.compile("provenance.*"),)
        )


ENGINE_OPTIONS: list[tuple[dict[str, Any], tuple[Any, ...]]] = [
    ({"model": "gpt2"}, ("model", "gpt2", "--engine-files")),
    ({"cluster": "cpu-4"}, ("cluster", "cpu-4", "--engine-files")),
    ({"dtype": "bfloat16"}, ("dtype", "bfloat16", "--model")),
    ({"cost_model": "paper"}, ("cost_model", "paper", "galvatron-engine")),
    ({"pipeline": 2}, ("pipeline", 2, "galvatron-engine")),
    ({"stage": 1}, ("stage", 1, "galvatron-engine")),
    ({"schedule": "gpipe"}, ("schedule", "gpipe", "galvatron-engine")),
    ({"space": "dp"}, ("space", "dp", "galvatron-engine")),
    ({"by_unit": True}, ("by_unit", "true", "galvatron-engine")),
    ({"takeaway3": False}, ("takeaway3", "false", "galvatron-engine")),
    ({"problem_name": "layer-strategies"}, ("model", (), "--profile")),
    ({"problem_name": "layer-strategies", "model": "gpt2", "cluster": "cpu-4"}, ("engine_files", (), "layer-strategies")),
    ({"memory": None}, ("memory", (), "36GiB")),
    ({"memory": 1000}, ("memory", 1000, "1MiB")),
    ({"batch": 0}, ("batch", 0, 1)),
    ({"batch": 10**6}, ("batch", 10**6, (1, 65536))),
    ({"default_dp_type": "x"}, ("default_dp_type", "x", ("zero2", "ddp"))),
    ({"layers": None}, ("", "layers", "layers")),
    ({"engine_files": []}, ("engine_files",)),
]


def test_engine_options_that_make_no_sense(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "problem_name": "galvatron-engine",
        "engine_files": engine_files(),
        "layers": 32,
        "hidden_size": 4096,
    }
    profile = tp.profile(model="gpt2", cluster="cpu-4", sequence=64, tp=[1], rows=[1])
    for change, text in [*ENGINE_OPTIONS, ({"profile": profile}, ("profile", profile.name, "--engine-files"))]:
        refuses(tp.build, refusal=text, **{**given, "batch": 16, "memory": "36GiB", **change})
    words = ["build", "galvatron-engine", "--batch", "16", "--memory", "36GiB", "--engine-files"]
    refuses_in_one_line(call(*words, engine_files()[0], "--pipeline", "2"), "No such option: --pipeline")
    refuses_in_one_line(call(*words, engine_files()[0]), "comes without")
    refuses_in_one_line(call(*words, tmp_path), str(tmp_path), "holds no profile")
    refuses_in_one_line(call(*words, tmp_path / "absent"), "does not exist")
