"""`trainplan profile`, `model` and `cluster` as people call them: as processes, with files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.profiles import load_profile

import trainplan as tp
from tests.command.test_command import refuses_in_one_line
from tests.helpers.calls import call


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("profile") / "t5.json"
    done = call("profile", "estimate", "--model", "t5-512-4-32", "--cluster", "a100-16", "--tp", "1,2", "-o", path)
    assert done.returncode == 0, done.stderr
    assert "estimated" in done.stdout
    return path


def test_show_says_where_time_and_memory_go(profile: Path, tmp_path: Path) -> None:
    done = call("profile", "show", profile, "--rows", "2")
    assert done.returncode == 0, done.stderr
    for text in ("encoder1 and 13 more", "cross", "forward and backward, 2 rows, tp 1", "model states on one device"):
        assert text in done.stdout
    picture = tmp_path / "t5.png"
    assert call("profile", "show", profile, "--picture", picture).returncode == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    found = json.loads(call("profile", "show", profile, "--tp", "2", "--json").stdout)
    assert (found["tp"], found["rows"], len(found["units"])) == (2, 1, 83)
    assert sum(unit["forward_ns"] for unit in found["units"]) > 0


def test_a_profile_stands_in_for_model_and_cluster(profile: Path, tmp_path: Path) -> None:
    alone, both = tmp_path / "alone.json", tmp_path / "both.json"
    options: list[Any] = ["--batch", "32", "--memory", "16GiB"]
    assert call("build", "layer-strategies", "--profile", profile, *options, "-o", alone).returncode == 0
    named = ["--model", "t5-512-4-32", "--cluster", "a100-16"]
    assert call("build", "layer-strategies", "--profile", profile, *named, *options, "-o", both).returncode == 0
    assert json.loads(alone.read_text())["layers"] == json.loads(both.read_text())["layers"]
    assert json.loads(call("solve", alone, "--json").stdout)["status"] == "optimal"
    refuses_in_one_line(
        call("build", "layer-strategies", "--model", "gpt2", *options), "--cluster is missing", "or a --profile"
    )


def test_measured_and_resumed(tmp_path: Path) -> None:
    config = {"model_type": "gpt2", "n_embd": 32, "n_head": 2, "n_layer": 2, "n_positions": 32, "vocab_size": 100}
    model, output, journal = tmp_path / "tiny.json", tmp_path / "profile.json", tmp_path / "journal"
    model.write_text(json.dumps(config))
    cluster = tmp_path / "one.yaml"
    node = "nodes: [{kind: CPU, devices: 1}]"
    kind = "kinds: [{name: CPU, memory_bytes: 4294967296, flops_per_s: {float32: 5e10}, memory_bytes_per_s: 5e9}]"
    cluster.write_text(f"name: one\n{kind}\n{node}\n")
    options = ["--model", model, "--cluster", cluster, "--rows", "1,2", "--budget", "2", "--resume", journal, "-o", output]
    first = call("profile", "measure", *options)
    assert first.returncode == 0, first.stderr
    again = call("profile", "measure", *options)
    assert again.returncode == 0, again.stderr
    assert load_profile(output).origin == "measured"
    assert "measured, spread" in again.stdout


def test_import_plans(tmp_path: Path) -> None:
    """A synthetic H3T layer profile, typed here."""
    runtime = {
        "optimizer_step": 0.01,
        "forward_no_grad": 0.02,
        "forward_with_grad": 0.021,
        "backward": 0.04,
        "prefetch_hidden_state": 0.002,
        "offload_hidden_state": 0.002,
        "prefetch_parameter": 0.001,
        "gather_parameter": 0.008,
        "scatter_gradient": 0.008,
        "offload_gradient": 0.001,
    }
    shared = Path(__file__).parents[3] / "shared" / "data" / "h3t"
    if not shared.is_dir():
        pytest.skip("the real data is not here")
    source = sorted(shared.glob("*.json"))[0]
    assert set(runtime) <= set(json.loads(source.read_text())["layer_runtime"][0])
    output = tmp_path / "profile.json"
    done = call("profile", "import", source, "--memory", "10GiB", "-o", output)
    assert done.returncode == 0, done.stderr
    assert "imported" in done.stdout
    instance = tmp_path / "instance.json"
    assert call("build", "layer-strategies", "--profile", output, "--batch", "8", "-o", instance).returncode == 0
    assert json.loads(call("solve", instance, "--json").stdout)["status"] == "optimal"


def test_a_table_of_times_plans(tmp_path: Path) -> None:
    table, output = tmp_path / "times.csv", tmp_path / "profile.json"
    table.write_text("layer,tp1,tp2,parameters,output_bytes\n" + "".join(f"{i},0.03,0.018,1e6,2048\n" for i in range(4)))
    words = ("profile", "import", table, "--cluster", "rtx-titan-8")
    refuses_in_one_line(call(*words), "give --communication included or excluded")
    refuses_in_one_line(call(*words, "--communication", "included", "--tp", "1,2"), "--tp is [1, 2]; leave it out")
    done = call(*words, "--communication", "included", "--rows", "2", "-o", output)
    assert done.returncode == 0, done.stderr
    assert "kept_bytes: not known, counted as nothing" in " ".join(done.stdout.split())
    instance = tmp_path / "instance.json"
    assert call("build", "pipeline", "--profile", output, "--batch", "16", "-o", instance).returncode == 0
    assert json.loads(call("solve", instance, "--json").stdout)["status"] == "optimal"


def test_layers_of_several_types_are_a_list(tmp_path: Path) -> None:
    done = call("profile", "import", tmp_path / "absent.json", "--layers", "24;24")
    refuses_in_one_line(done, "--layers is '24;24'; give whole numbers from 1 with commas")


def test_lists_and_shows() -> None:
    assert {"swin-huge-48", "llama3-70b", "amp-transgan"} <= {
        m["name"] for m in json.loads(call("model", "list", "--json").stdout)
    }
    clusters = {c["name"]: c for c in json.loads(call("cluster", "list", "--json").stdout)}
    assert clusters["amp-heterogeneous-16"]["kinds"] == ["Tesla V100-SXM2 16 GB", "Tesla T4"]
    assert clusters["h200-1024"]["devices"] == 1024
    assert "346.9" not in call("model", "show", "gpt2").stdout
    shown = json.loads(call("model", "show", "gpt2", "--rows", "2", "--json").stdout)
    assert shown["parameters"] == 124_439_808
    assert [row["count"] for row in shown["sublayers"]] == [1, 12, 12, 1]
    assert "12.5 GB/s" in call("cluster", "show", "a100-16").stdout


def test_kinds_are_listed_as_in_the_documents() -> None:
    listed = call("cluster", "kinds").stdout
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    assert "\n".join(line.rstrip() for line in listed.splitlines() if line.strip()) in page
    sheets = {row["kind"]: row["sheet"] for row in json.loads(call("cluster", "kinds", "--json").stdout)}
    assert sheets["h100"]["flops_per_s"]["float8"] == 1979e12 and sheets["mi300x"]["sources"]


def test_nodes_of_a_kind_stand_for_a_cluster(tmp_path: Path) -> None:
    """In every command, and with the efficiencies that times rest on, whose they are, and their error."""
    shown = call("cluster", "show", "GB300:8x2").stdout
    assert "gb300:8x2, 16 devices" in shown and "fitted, of GB200 186 GB" in shown
    words = ["--model", "gpt2", "--cluster", "h200:8", "--dtype", "bf16"]
    planned = call("plan", *words, "--batch", "8", "--details", "-o", tmp_path / "plan.json")
    assert planned.returncode == 0, planned.stderr
    reached = next(line for line in planned.stdout.splitlines() if line.startswith("reached"))
    assert (
        "of the peak of H200-SXM5 141 GB: matrix multiplications " in reached
        and ", of H100-SXM5 80 GB)" in reached
        and "time ±" in reached
    )
    assert "8 devices of 141 GiB, 133 GiB usable each" in planned.stdout
    assert "reached" in call("profile", "estimate", *words).stdout
    same = call("plan", "--model", "gpt2", "--cluster", "h200-8", "--dtype", "bf16", "--batch", "8", "--details").stdout
    reported_alike = [
        [line for line in text.splitlines() if line.startswith(("reached", "predicted"))] for text in (same, planned.stdout)
    ]
    assert reported_alike[0] == reported_alike[1] and len(reported_alike[0]) >= 3  # a shipped name of the same nodes
    papers = call(
        "plan", "--model", "gpt2", "--cluster", "a100-16", "--dtype", "bf16", "--batch", "16", "--gap", "0.1", "--details"
    ).stdout
    assert "with the numbers of the paper Galvatron-BMW, not of data sheets" in papers and "reached" not in papers
    assert call("simulate", tmp_path / "plan.json", "--cluster", "l40s:8").returncode == 0
    assert tp.plan(model="gpt2", cluster="h200:8", dtype="bf16", batch=8).plan == tp.plan(
        model="gpt2", cluster=load_cluster("h200:8"), dtype="bf16", batch=8
    ).plan  # fmt: skip
    refuses_in_one_line(
        call("plan", *words[:3], "h10:8", "--batch", "8"), "--cluster names the device 'h10'", "did you mean 'h100'"
    )


def test_detect_describes_this_machine(tmp_path: Path) -> None:
    path = tmp_path / "here.yaml"
    done = call("cluster", "detect", "--name", "here", "-o", path)
    assert done.returncode == 0, done.stderr
    cluster = load_cluster(path)
    assert cluster.name == "here"
    assert call("build", "layer-strategies", "--model", "gpt2", "--cluster", path, "--batch", "8").returncode == 0


def test_plans_of_families_that_do_not_run_yet(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    done = call("plan", "--model", "vit-base", "--cluster", "cpu-4", "--batch", "8", "--details", "-o", path)
    assert done.returncode == 0, done.stderr
    assert "plans of vit models are no programs yet" in done.stdout
    refuses_in_one_line(call("run", path), "model.config.model_type is 'vit', which does not run yet", "gpt2, bert, llama")


def test_bad_input_gets_one_line(profile: Path, tmp_path: Path) -> None:
    estimate = ["profile", "estimate", "--model", "gpt2", "--cluster", "h100-8"]
    refuses_in_one_line(call(*estimate, "--rows", "1,x"), "--rows is '1,x'", "such as 1,2,4")
    refuses_in_one_line(call(*estimate, "--rows", ""), "--rows is ''")
    refuses_in_one_line(call(*estimate, "--tp", "3"), "--tp is 3", "give degrees among 1, 2, 4")
    refuses_in_one_line(call(*estimate, "--dtype", "int4"), "--dtype is 'int4'")
    refuses_in_one_line(
        call("profile", "estimate", "--model", "gpt2", "--cluster", "rtx-titan-8", "--dtype", "bfloat16"), "has no bfloat16"
    )
    refuses_in_one_line(call("profile", "show", profile, "--tp", "8"), "--tp is 8", "[1, 2]")
    refuses_in_one_line(call("profile", "show", profile, "--rows", "0"), "--rows is 0")
    refuses_in_one_line(call("profile", "show", profile, "--kind", "T4"), "--kind is 'T4'", "A100")
    refuses_in_one_line(call("profile", "show", profile, "--picture", tmp_path / "p.bmp"), "give a name that ends in .png")
    refuses_in_one_line(call("profile", "show", tmp_path / "none.json"), "does not exist")
    refuses_in_one_line(
        call("profile", "measure", "--model", "gpt2", "--cluster", "cpu-4", "--device", "cuda"), "torch finds no GPU"
    )
    refuses_in_one_line(call("profile", "measure", "--model", "gpt2", "--cluster", "cpu-4", "-o", tmp_path), "is a folder")
    refuses_in_one_line(call("profile", "import", profile), "is a profile of trainplan already")
    refuses_in_one_line(call("model", "show", "gpt5"), "is 'gpt5'")
    refuses_in_one_line(call("cluster", "show", "moon"), "is 'moon'")
    refuses_in_one_line(call("nope"), "No such command 'nope'")
    refuses_in_one_line(call("plan", "--cluster", "cpu-4", "--batch", "8"), "--model is missing")
    refuses_in_one_line(call(*estimate, "-o", "/dev/full"), "cannot be written")
    same, measure = tmp_path / "same.json", ["profile", "measure", "--model", "gpt2", "--cluster", "cpu-4"]
    refuses_in_one_line(call(*measure, "--resume", same, "-o", same), "is named for two outputs")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    refuses_in_one_line(call(*measure, "--resume", pipe), "cannot be read")
    refuses_in_one_line(call("cluster", "detect", "--topology", pipe), "cannot be read")
    refuses_in_one_line(call("cluster", "show", "a\nb"), "is 'a\\nb'")
    refuses_in_one_line(call("cluster", "detect", "--network", "fast"), "--network is 'fast'")
