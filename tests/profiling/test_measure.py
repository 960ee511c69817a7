"""Measuring on real processes: every number measured, resumed after an interruption, and short of memory without a crash."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.lines import fit_line
from trainplan.profiling.clusters.cluster import Cluster, load_cluster
from trainplan.profiling.clusters.network import Island
from trainplan.profiling.costs import collective_ns
from trainplan.profiling.measure.measure import OPERATIONS, measure
from trainplan.profiling.measure.outliers import doubtful
from trainplan.profiling.measure.timing import spread
from trainplan.profiling.models.model import Model, load_model
from trainplan.profiling.profiles import NUMBERS, Profile

import trainplan as tp
from tests.helpers.refusals import refused
from tests.helpers.sizes import first_and_others

GPT2 = load_model("gpt2", 64, "float32").with_fields(n_embd=64, n_head=4, n_layer=2, vocab_size=512, n_positions=64)


def cluster_of(devices: int, memory_bytes: int = 2**32) -> Cluster:
    base = load_cluster("cpu-4")
    node = base.nodes[0].changed(devices=devices, islands=[Island(devices=devices, bandwidth_bytes_per_s=1e9)])
    return base.changed(kinds=[base.kinds[0].changed(memory_bytes=memory_bytes)], nodes=[node])


@pytest.fixture(scope="module")
def profile() -> Profile:
    return measure(GPT2, cluster_of(2), [(1, 2), (2, 4)], budget_seconds=10)


def test_everything_is_measured(profile: Profile) -> None:
    assert {island.origin for island in profile.network.islands} == {profile.origin} == {"measured"}
    for entry in profile.costs:
        assert {getattr(entry, name).origin for name in NUMBERS} == {"measured"}
        assert min(entry.forward_ns.value, entry.backward_ns.value, entry.forward_without_graph_ns.value) > 0
    assert profile.optimizer_ns_per_parameter.origin == "measured"
    assert profile.host is not None
    assert profile.host.to_device_bytes_per_s.origin == "measured"
    assert profile.compute_slowdown.origin == profile.communication_slowdown.origin == "measured"
    assert 1 <= profile.compute_slowdown.value < 50
    fitted = {island.operation for island in profile.network.islands}
    assert fitted == {*OPERATIONS, None}


def test_bytes_are_those_of_the_shapes(profile: Profile) -> None:
    for entry in profile.costs:
        part = GPT2.sublayers[entry.sublayer]
        assert entry.kept_bytes.value == pytest.approx(part.kept_bytes(entry.rows, entry.tp), rel=0.02, abs=64)


def test_a_measured_profile_plans_other_batches(profile: Profile) -> None:
    for batch in (4, 12):
        assert tp.plan(model=GPT2, cluster=cluster_of(2), batch=batch, memory=2**30, profile=profile).result.status == "optimal"
    assert Profile.model_validate_json(profile.model_dump_json()) == profile


@pytest.mark.long
def test_an_interrupted_measurement_goes_on(tmp_path: Path) -> None:
    """Stopped after five tasks: the second run starts with the sixth, and what was finished is used as it was."""
    journal, started = tmp_path / "journal", []

    def stop(event: dict[str, Any]) -> None:
        started.append(event["done"])
        if len(started) > 5:
            raise KeyboardInterrupt

    options: Any = {"budget_seconds": 12, "journal": journal}
    with pytest.raises(KeyboardInterrupt):
        interrupted(stop, **options)
    lines = journal.read_text().splitlines()
    assert len(lines) >= 6
    kept = {line["task"]: line["result"] for line in map(json.loads, lines[1:])}
    journal.write_text(journal.read_text() + '{"task": "cut sh')  # as an interruption within a write leaves it
    again: list[int] = []
    found = measure(GPT2, cluster_of(1), [(1, 1), (1, 2)], progress=lambda event: again.append(event["done"]), **options)
    assert min(again) == len(kept)
    first = found.cost("embedding", 1, 1)
    assert first.forward_ns.value == round(kept["embedding tp1 rows 1"]["forward_ns"][0])
    with refused("line 1", problem=("model", "cluster", "machine", "seed")):
        measure(GPT2, cluster_of(1), [(1, 1)], seed=1, **options)
    journal.write_text("not a journal\n")
    with refused("line 1", problem="not a journal"):
        measure(GPT2, cluster_of(1), [(1, 1)], **options)


def interrupted(stop: Any, **options: Any) -> None:
    """The callback runs on a relaying thread; Ctrl-C reaches the main one."""
    import _thread

    def relayed(event: dict[str, Any]) -> None:
        try:
            stop(event)
        except KeyboardInterrupt:
            _thread.interrupt_main()

    measure(GPT2, cluster_of(1), [(1, 1), (1, 2)], progress=relayed, **options)


@pytest.mark.parametrize(
    "result",
    [
        5,
        {},
        [-5, "x"],
        {"forward_ns": 1},
        {"seconds": 0, "spread": 0, "message_bytes": 8},
        {"to_device": 1},
        {"out_of_memory": "?"},
    ],
)
def test_broken_journals_get_one_line(result: Any, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    lines = [{"journal": "x", "spread": 0.05}, {"task": "overlap", "result": result}]
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with refused("line 2", problem='{"task": "overlap"'):
        measure(GPT2, cluster_of(1), [(1, 1)], journal=journal)


def test_a_tighter_bound_is_not_met_by_old_results(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    measure(GPT2, cluster_of(1), [(1, 1)], budget_seconds=1, spread=0.5, journal=journal)
    with refused("line 1", problem=0.5, fix="--spread 0.5"):
        measure(GPT2, cluster_of(1), [(1, 1)], budget_seconds=1, spread=0.1, journal=journal)


@pytest.mark.long
def test_three_processes(tmp_path: Path) -> None:
    """A group that is no power of two: pairs and all three are measured, and every group of the cluster has a link."""
    found = measure(GPT2, cluster_of(3), [(1, 1)], budget_seconds=2)
    assert {island.devices for island in found.network.islands} == {2, 3}
    assert found.network.reaches(3)


@pytest.mark.long
def test_a_killed_measurement_goes_on(tmp_path: Path) -> None:
    """kill -9 on the measuring command: its processes end with it, and the next call goes on from what was finished."""
    config, journal, output = tmp_path / "tiny.json", tmp_path / "journal", tmp_path / "profile.json"
    config.write_text(
        json.dumps({"model_type": "gpt2", "n_embd": 32, "n_head": 2, "n_layer": 2, "n_positions": 32, "vocab_size": 99})
    )
    words = ["profile", "measure", "--model", config, "--cluster", "cpu-4", "--rows", "1", "--tp", "1", "--budget", "8"]
    command = [str(Path(sys.executable).parent / "trainplan"), *map(str, words), "--resume", str(journal), "-o", str(output)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        while not (journal.exists() and len(journal.read_text().splitlines()) > 4) and running.poll() is None:
            time.sleep(0.1)
        running.kill()
    kept = journal.read_text().splitlines()
    assert len(kept) > 4
    assert not output.exists()
    command[command.index("--budget") + 1] = "2"
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert journal.read_text().splitlines()[: len(kept) - 1] == kept[:-1]
    assert output.exists()


@pytest.mark.parametrize("mebibytes", first_and_others([60, 20, 200], stride=2))
def test_little_memory_is_never_a_crash(mebibytes: int) -> None:
    """Either something was measured, or one line says that nothing fits; and what fits with more rows fits with fewer."""
    try:
        found = measure(large(), cluster_of(1, mebibytes * 2**20), [(1, 1), (1, 16), (1, 64)], budget_seconds=1)
    except InputError as error:
        assert "did not fit" in str(error)
        return
    held = {(entry.sublayer, entry.rows) for entry in found.costs}
    for shape in found.out_of_memory:
        assert not any((shape.sublayer, rows) in held for rows in (1, 16, 64) if rows > shape.rows), shape


@pytest.mark.long
def test_what_does_not_fit_is_a_data_point() -> None:
    """A device of 96 MiB holds one row of this model's sub-layers, and not sixty-four."""
    model = large()
    found = measure(model, cluster_of(1, 96 * 2**20), [(1, 1), (1, 64)], budget_seconds=4)
    failed = {(shape.sublayer, shape.rows) for shape in found.out_of_memory}
    assert ("attention", 64) in failed
    assert ("embedding", 1) not in failed
    assert {shape.rows for shape in found.out_of_memory} == {64}
    assert {entry.sublayer for entry in found.costs if entry.rows == 1} == set(model.sublayers)
    everything = measure(model, cluster_of(1), [(1, 1), (1, 64)], budget_seconds=4)
    assert everything.out_of_memory == []


def large() -> Model:
    return load_model("gpt2", 128, "float32").with_fields(n_embd=256, n_head=4, n_layer=1, vocab_size=512, n_positions=128)


@given(
    alpha=st.floats(1e-6, 1e-2),
    beta=st.floats(1e-12, 1e-7),
    sizes=st.lists(st.integers(1, 2**26), min_size=2, max_size=8, unique=True),
)
def test_lines_are_found_again(alpha: float, beta: float, sizes: list[int]) -> None:
    points = [(size, alpha + beta * size) for size in sizes]
    a, b, error = fit_line(points)
    assert error < 1e-6
    assert all(a + b * x == pytest.approx(y, rel=1e-6) for x, y in points)


def test_lines_are_never_negative() -> None:
    assert fit_line([(1e6, 5.0), (2e6, 3.0)])[1] == 0
    assert fit_line([(1.0, 1.0), (100.0, 1000.0)])[0] == 0


@pytest.mark.long
def test_fitted_links_give_the_measured_times_back(tmp_path: Path) -> None:
    """Every collective's measured time, from the journal, is the profile's within the error that its fit states."""
    journal = tmp_path / "journal"
    found = measure(GPT2, cluster_of(2), [(1, 2)], budget_seconds=4, journal=journal)
    checked = 0
    for line in map(json.loads, journal.read_text().splitlines()[1:]):
        operation, _, rest = line["task"].partition(" of 2, ")
        if rest and operation in OPERATIONS:
            ns = collective_ns(found.network, operation, line["result"]["message_bytes"], (0, 1))
            island = next(island for island in found.network.islands if island.operation == operation)
            assert abs(ns / (line["result"]["seconds"] * 1e9) - 1) <= island.error + 1e-3
            checked += 1
    assert checked == 25


@pytest.mark.parametrize("cut", first_and_others([30, 1, 2], stride=2))
def test_a_journal_cut_anywhere_goes_on(cut: int, tmp_path: Path) -> None:
    """Without its last newline, its last brace, or half of its last line: that task is measured again, the others are kept."""
    journal = tmp_path / "journal"
    measure(GPT2, cluster_of(1), [(1, 1)], budget_seconds=1, journal=journal)
    whole = journal.read_text()
    journal.write_text(whole[:-cut])
    measure(GPT2, cluster_of(1), [(1, 1)], budget_seconds=1, journal=journal)
    again = journal.read_text().splitlines()
    assert again[:-1] == whole.splitlines()[:-1]
    assert json.loads(again[-1])["task"] == json.loads(whole.splitlines()[-1])["task"]


def test_times_that_others_contradict_are_doubted() -> None:
    """Rows 2 take ten times what they should, rows 8 of another sub-layer twice; a linear cost with an offset is believed."""
    rows = (1, 2, 4, 8)
    milliseconds = {"attention": (3, 50, 9, 17), "feed-forward": (3, 5, 9, 40), "head": (3, 5, 9, 17)}
    tasks, results = dict[int, Any](), dict[int, Any]()
    for name, times in milliseconds.items():
        for count, time_ms in zip(rows, times, strict=True):
            tasks[len(tasks)] = {"kind": "sublayer", "sublayer": name, "tp": 1, "rows": count}
            results[len(results)] = {"forward_ns": [time_ms * 4e5, 0.01], "backward_ns": [time_ms * 6e5, 0.01]}
    assert doubtful(tasks, results) == [1, 7]
    results[1] = {"out_of_memory": True}
    tasks[12], results[12] = {"kind": "optimizer", "where": "host"}, {"ns_per_parameter": 1.0, "spread": 0.0}
    assert doubtful(tasks, results) == [7]


def test_spreads() -> None:
    assert spread([1.0, 1.0, 1.0, 1.0]) == 0
    assert spread([5.0]) == 0
    assert spread([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx((4.5 - 1.5) / 2 / 3)


def test_bad_arguments_are_reported() -> None:
    for options, refusal in (
        ({"budget_seconds": 0}, ("budget", 0, "seconds")),
        ({"spread": 2}, ("spread", 2, (0, 1))),
        ({"device": "tpu"}, ("device", "tpu", ("cpu", "cuda"))),
        ({"seed": 2**70}, ("seed", 2**70, (0, 2147483647))),
    ):
        with refused(*refusal):
            measure(GPT2, cluster_of(1), [(1, 1)], **options)  # type: ignore[arg-type]


@pytest.mark.long
def test_a_dtype_without_a_rate_is_measured_all_the_same() -> None:
    """The shipped CPU's data sheet has no bfloat16: it cannot be estimated, and a measurement needs no data sheet."""
    found = measure(GPT2.in_dtype("bfloat16"), cluster_of(1), [(1, 1), (1, 2)], budget_seconds=1)
    assert found.origin == "measured"
    assert (found.parameter_bytes, found.state_bytes_per_parameter) == (2, 16)
