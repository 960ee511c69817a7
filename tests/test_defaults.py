"""Defaults of requests: the longest sequence, the config's dtype, the usable memory, and of every function and command
that searches one gap and one time limit; and clusters of any size."""

from __future__ import annotations

import inspect
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from trainplan.profiling.base.errors import InputWarning
from trainplan.profiling.clusters.cluster import Cluster, load_cluster
from trainplan.profiling.models.model import Model, load_model
from trainplan.profiling.shipped import shipped
from trainplan.solvers.core import limits

import trainplan as tp
from tests.command.test_helping import names, options
from tests.helpers.calls import call
from tests.helpers.refusals import cautioned, refused
from tests.helpers.small_models import SMALL
from trainplan.inputs import LONG
from trainplan.planning.planning_run import limits_bytes
from trainplan.planning.presets import OTHERWISE, PRESETS

GIB = 2**30
DEFAULTS = {"gap": limits.GAP, "time_limit": limits.TIME_LIMIT_S}
LLAMA = {"model_type": "llama", **SMALL["llama"], "num_hidden_layers": 2, "torch_dtype": "bfloat16"}
PAPERS = [name for name in shipped("clusters") if not name.startswith(("h100", "h200"))]


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    path = tmp_path / "small.json"
    path.write_text(json.dumps(LLAMA))
    return path


@pytest.fixture
def long(tmp_path: Path) -> Path:
    path = tmp_path / "long.json"
    path.write_text(json.dumps(LLAMA | {"max_position_embeddings": 2 * LONG}))
    return path


def cpus(devices: int) -> Cluster:
    """One machine of a given number of processes."""
    cluster = load_cluster("cpu-4")
    islands = [cluster.nodes[0].islands[0].changed(devices=devices)]
    return cluster.changed(name=f"cpu-{devices}", nodes=[cluster.nodes[0].changed(devices=devices, islands=islands)])


@pytest.mark.parametrize("name", PRESETS)
def test_every_verb_plans_in_the_configs_dtype(name: str, llama: Path) -> None:
    """bfloat16 is planned, compiled, analysed and predicted, and takes less memory than float32, whatever runs here."""
    made = {dtype: tp.plan(like=name, model=llama, cluster="a100:4", batch=8, dtype=dtype).plan for dtype in (None, "float32")}
    half, full = made[None], made["float32"]
    assert half is not None and half.predicted is not None and full is not None and full.predicted is not None
    assert (half.planned_model().dtype, full.planned_model().dtype) == ("bfloat16", "float32")
    assert half.predicted.most_bytes < full.predicted.most_bytes


def test_a_plan_that_does_not_run_says_what_does(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.json"
    plan = tp.plan(model=llama, cluster="cpu-4", batch=8, dtype="float16").plan
    assert plan is not None
    path.write_text(plan.model_dump_json())
    done = call("run", path)
    reported = "model.dtype is 'float16', which is planned, but does not run yet; give --dtype float32, float64 or bfloat16"
    assert done.returncode == 2 and f"{path}: {reported}" in done.stderr
    with refused("model.dtype", problem="float16", fix=("float32", "float64", "bfloat16")):
        tp.trial([plan])
    with monkeypatch.context() as patch, refused("model.dtype", problem="float16", fix=("float32", "float64", "bfloat16")):
        patch.setattr("trainplan.api.plan_verbs.planned", None)  # what does not run is not planned first
        tp.trial(model=llama, cluster="cpu-4", batch=8, dtype="float16")


def test_a_long_sequence_is_warned_of_unless_it_is_requested(long: Path) -> None:
    requested: dict[str, Any] = {"model": long, "cluster": "cpu-4", "batch": 4, "dtype": "float32"}
    with cautioned("sequence", problem=2 * LONG, fix=4096):
        instance = tp.build("pipeline", **requested)
    with warnings.catch_warnings():
        warnings.simplefilter("error", InputWarning)
        assert tp.build("pipeline", **requested, sequence=2 * LONG).layers == instance.layers
        assert tp.build("pipeline", **requested | {"model": "gpt2"})


def test_the_command_says_the_sequence_and_the_dtype(long: Path, llama: Path) -> None:
    done = call("plan", "--model", llama, "--cluster", "cpu-4", "--batch", "4", "--details")
    assert done.returncode == 0
    assert done.stderr.endswith("it is planned in float32; give --dtype bfloat16 for a run in that\n")
    assert done.stderr.count("\n") == 1  # of a file in bfloat16, in which CPUs are no faster
    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if line.startswith(("sequence", "dtype")))
    assert lines == {"sequence": "128 tokens, the most that the model allows (--sequence changes it)", "dtype": "float32"}
    shown = call("model", "show", long)
    assert shown.returncode == 0
    assert (
        shown.stderr.startswith("trainplan: warning: command line: --sequence is not given") and shown.stderr.count("\n") == 1
    )


@pytest.mark.parametrize("name", PAPERS)
def test_clusters_of_papers_keep_their_limits_and_say_so(name: str) -> None:
    cluster = load_cluster(name)
    assert cluster.usable_bytes == cluster.memory_bytes
    assert "No memory is reserved" in cluster.source


@pytest.mark.parametrize(("name", "memory", "usable"), [("h100-64", 80, 74), ("h100-8", 80, 74), ("h200-8", 141, 133)])
def test_other_clusters_have_a_reserve_with_its_source(name: str, memory: int, usable: int) -> None:
    cluster = load_cluster(name)
    assert (cluster.memory_bytes, cluster.usable_bytes) == (memory * GIB, usable * GIB)
    assert "the reserve" in cluster.source


def small(**sizes: int) -> Model:
    fields = {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_inner": 256, "n_positions": 64, "vocab_size": 128}
    return load_model("gpt2", 64, "float32").with_fields(**fields | sizes)


@pytest.mark.parametrize("name", PRESETS)
def test_every_verb_plans_with_what_is_usable(name: str) -> None:
    """A device's memory less its reserve, unless a memory is requested; `reserve` changes either."""
    cluster = load_cluster("h100-8")
    for requested, limit in (
        ({}, 74 * GIB),
        ({"reserve": 0}, 80 * GIB),
        ({"reserve": "10GiB"}, 70 * GIB),
        ({"memory": "20GiB"}, 20 * GIB),
        ({"memory": "20GiB", "reserve": "4GiB"}, 16 * GIB),
    ):
        planned = tp.plan(like=name, model=small(), cluster=cluster, batch=8, **requested)
        assert planned.plan is not None
        assert limits_bytes(planned.plan, planned.request) == [limit] * 8 and planned.plan.memory_bytes == limit
        assert planned.instance.common_memory_bytes in (None, limit)


def test_the_command_says_what_is_usable() -> None:
    words = ["plan", "--details", "--model", "gpt2", "--sequence", "64", "--cluster", "h100-8", "--batch", "8"]
    for more, reported in (
        ([], "h100:8, 8 devices of 80 GiB, 74 GiB usable each"),
        (["--reserve", "10GiB"], "h100:8, 8 devices of 80 GiB, 70 GiB usable each"),
        (["--memory", "60GiB"], "h100:8, 8 devices of 60 GiB each"),
    ):
        done = call(*words, *more)
        assert done.returncode == 0 and f"cluster   {reported}\n" in done.stdout


def test_throughput_is_of_what_is_usable() -> None:
    requested: dict[str, Any] = {"model": small(), "cluster": "cpu-4", "planners": ["ddp"], "largest_batch": 8}
    assert tp.throughput(**requested)[0].best is not None
    assert tp.throughput(**requested, reserve=4 * GIB - 1000)[0].best is None
    assert tp.throughput(**requested, memory="1GiB", reserve=GIB - 1000)[0].best is None


def test_profiles_carry_the_reserve() -> None:
    profile = tp.profile(model=small(), cluster="h100-8", rows=[1], tp=[1])
    assert (profile.memory_bytes, profile.usable_bytes) == (80 * GIB, 74 * GIB)
    assert tp.build(profile=profile, batch=8).memory_bytes == 74 * GIB
    assert tp.build(profile=profile, batch=8, reserve="1GiB").memory_bytes == 79 * GIB


def test_a_reserve_leaves_memory() -> None:
    for reserve, refusal in (
        (80 * GIB, ("reserve", 80 * GIB, ("80 GiB", "5GiB"))),
        (-1, ("reserve", -1, ("80 GiB", "5GiB"))),
        ("x", ("reserve", "x", "8GiB")),
    ):
        with refused(*refusal):
            tp.plan(model=small(), cluster="h100-8", batch=8, reserve=reserve)
    with refused("reserve_bytes", problem=85899345920, fix="memory_bytes = 85899345920"):
        load_cluster("h100-8").with_reserve(80 * GIB)


def test_a_number_that_looks_like_gigabytes_is_refused() -> None:
    with refused("memory", problem=8, fix="8GiB"):
        tp.plan(model=small(), cluster="h100-8", batch=8, memory=8)


def test_more_memory_than_is_usable_is_warned_of() -> None:
    with cautioned("memory", problem=("80 GiB", "h100:8", "74 GiB")):
        tp.build("pipeline", model=small(), cluster="h100-8", batch=8, memory="80GiB")


@pytest.mark.parametrize(("devices", "depths"), [(6, {3, 6}), (12, {3, 6}), (5, {5}), (8, {1, 2, 4, 8})])
def test_devices_need_not_be_a_power_of_two(devices: int, depths: set[int]) -> None:
    """Stages have a power of two of devices, so that 12 of them are 3 stages of 4, or 6 of 2. (These models have 6 layers.)"""
    model, batch = small(n_layer=6), 8
    instance = tp.build("pipeline", model=model, cluster=cpus(devices), batch=batch)
    assert {configuration.stages for configuration in instance.configurations} == depths
    planned = tp.plan(like=OTHERWISE, model=model, cluster=cpus(devices), batch=batch)
    assert planned.plan is not None and planned.plan.predicted is not None and planned.result.status == "optimal"
    assert planned.plan.world == devices and len(planned.plan.stages) in depths
    with refused("pipeline", problem=7, fix=", ".join(map(str, sorted(depths)))):
        tp.plan(like=OTHERWISE, model=model, cluster=cpus(devices), batch=batch, pipeline=7)
    jointly = tp.plan(model=model, cluster=cpus(devices), batch=batch).plan  # in stages of any size
    assert jointly is not None and jointly.predicted is not None and jointly.world == devices
    assert jointly.predicted.step_ns <= planned.plan.predicted.step_ns


def test_what_takes_powers_of_two_alone_says_so() -> None:
    requested: dict[str, Any] = {"model": small(), "cluster": cpus(6), "batch": 12}
    with refused("space", problem=("sdp", 6), fix=("full", "`place`")):
        tp.plan(**requested, space="sdp")
    with refused("cluster", problem=6, fix=(4, "`plan`", "`place`")):
        tp.switch(**requested)
    with refused("pipeline", problem=1, fix=(3, 6)):
        tp.build("layer-strategies", **requested)


def searching() -> list[str]:
    """The public functions that take a gap or a time limit."""
    functions = [name for name in tp.__all__ if inspect.isfunction(getattr(tp, name))]
    return [name for name in functions if DEFAULTS.keys() & inspect.signature(getattr(tp, name)).parameters.keys()]


@pytest.mark.parametrize("name", searching())
def test_a_function_has_the_common_defaults(name: str) -> None:
    parameters = inspect.signature(getattr(tp, name)).parameters
    found = {default: parameters[default].default for default in DEFAULTS if default in parameters}
    assert found == {entry: DEFAULTS[entry] for entry in found}


def test_these_functions_search() -> None:
    assert {"plan", "solve", "compare", "compare_planners", "frontier", "throughput", "import_run", "explain", "report"} <= {
        *searching()
    }


@pytest.mark.parametrize("name", names())
def test_a_command_has_the_common_defaults(name: str) -> None:
    """As the default of its option; or as the help says it, where the option does not suit all that the command takes."""
    own: dict[str, Any] = options(name.split())
    for entry in DEFAULTS.keys() & own.keys():
        if own[entry].default is None:
            assert own[entry].help.endswith(f"\\[default: {DEFAULTS[entry]}]")
        else:
            assert own[entry].default == DEFAULTS[entry]
