"""Plans near a request: on the fewest devices, on a cluster with other numbers, and with a batch that more devices divide."""

from __future__ import annotations

import json
from typing import Any

import pytest
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.clusters.network import Island

import trainplan as tp
from tests.helpers.calls import call
from tests.helpers.refusals import refused
from trainplan.planning.what_if import CHANGES, better_batch, changed_cluster

GPT2: dict[str, Any] = {"model": "gpt2", "batch": 16, "sequence": 1024}
TIGHT = {"memory": "1.2GiB"}


@pytest.fixture(scope="module")
def fewest() -> Any:
    return tp.plan_sizes(**GPT2, **TIGHT, cluster="h100", devices="any")


def test_with_the_fewest_devices_there_is_a_plan_and_with_each_number_before_none(fewest: Any) -> None:
    found = fewest.first.request.origin.devices
    assert fewest.tried and max(fewest.tried) < found and fewest.first.plan is not None
    for devices in fewest.tried:
        assert tp.fit(**GPT2, **TIGHT, cluster=f"h100:{devices}").fits is False


def test_more_devices_are_shown_with_the_fewest(fewest: Any) -> None:
    found = fewest.first.request.origin.devices
    assert [entry.request.origin.devices for entry in fewest.larger] == [2 * found, 4 * found]
    assert all(entry.step_ns < fewest.first.step_ns for entry in fewest.larger)


def test_a_range_begins_where_it_is_stated() -> None:
    made = tp.plan_sizes(**GPT2, cluster="h100:8", devices="4-8", gap=0.1)
    assert made.tried == () and made.first is not None and made.first.request.origin.devices == 4
    assert [entry.request.origin.devices for entry in made.larger] == [8]
    none = tp.plan_sizes(**GPT2, **TIGHT, cluster="h100", devices="1-1")
    assert none.first is None and none.proven and none.tried == (1,)


@pytest.mark.parametrize("text", ["0", "8-4", "many", "4-", "1-99999999"])
def test_devices_that_are_no_numbers_are_refused(text: str) -> None:
    with refused("devices", text, ("any", "16-512", 131072)):
        tp.plan_sizes(**GPT2, cluster="h100", devices=text)


def of_network(name: str) -> Island:
    return load_cluster(name).islands[-1]


def test_the_network_changes_as_the_same_line_rate_in_the_clusters_name() -> None:
    """`network=480Gb/s` is what 1.2 times a line of 400 Gb/s is."""
    faster = changed_cluster(load_cluster("h100:8x4,network=400Gb/s"), {"network": 1.2}).islands[-1]
    named = of_network("h100:8x4,network=480Gb/s")
    assert faster.bandwidth_bytes_per_s == pytest.approx(named.bandwidth_bytes_per_s, rel=0.01)
    assert (faster.node_bytes_per_s or faster.bandwidth_bytes_per_s) == pytest.approx(
        named.node_bytes_per_s or named.bandwidth_bytes_per_s, rel=0.01
    )


def test_a_ring_over_nodes_is_no_faster_than_the_links_that_feed_it() -> None:
    cluster = load_cluster("h100:8x4")
    within = cluster.nodes[0].islands[-1].bandwidth_bytes_per_s
    fast = changed_cluster(cluster, {"network": 100.0}).islands[-1]
    assert fast.bandwidth_bytes_per_s == within < (fast.node_bytes_per_s or 0)
    slow = changed_cluster(cluster, {"nvlink": 0.01})
    assert slow.islands[-1].bandwidth_bytes_per_s <= slow.nodes[0].islands[-1].bandwidth_bytes_per_s


@pytest.mark.parametrize("name", CHANGES)
def test_a_factor_of_one_changes_nothing(name: str) -> None:
    cluster = load_cluster("h100:8x4")
    assert changed_cluster(cluster, {name: 1.0}).changed(name=cluster.name) == cluster


def test_what_if_predicts_what_a_plan_on_such_a_cluster_does() -> None:
    request = {**GPT2, "cluster": "h100:2x4,network=100Gb/s"}
    reported = tp.what_if(tp.plan(**request, comparisons=False), "network=2")
    same = tp.plan(**{**request, "cluster": "h100:2x4,network=200Gb/s"}, comparisons=False)
    assert reported.share is not None and reported.share < 0
    assert reported.after.step_ns == pytest.approx(same.step_ns, rel=0.005)


def test_what_if_changes_a_runtimes_prediction_with_each_rate() -> None:
    before = tp.plan(model="gpt2", cluster="h100:2x2", batch=16, sequence=1024, for_="megatron", comparisons=False)
    for factors in ("flops=2", "network=2", "nvlink=0.05"):
        found = tp.what_if(before, factors)
        assert found.share is not None and (found.share > 0) == ("0.05" in factors) and found.share != 0


@pytest.mark.parametrize("text", ["netwrk=1.2", "network", "network=0", "flops=nan", "memory=-1", "network=fast"])
def test_what_if_names_what_it_can_change(text: str) -> None:
    done = call("plan", "gpt2", "h100:2x4", "--batch", "8", "--seq", "64", "--what-if", text)
    assert done.returncode == 2 and not done.stdout and "--what-if" in done.stderr
    assert "network" in done.stderr or "=1.2" in done.stderr


def test_a_batch_that_devices_do_not_divide_is_held_against_the_next_that_they_do() -> None:
    made = tp.plan(**{**GPT2, "batch": 60}, cluster="h100:2x4", comparisons=False)
    found = better_batch(made, 20.0)
    assert found is not None and found.batch == 64
    other = tp.plan(**{**GPT2, "batch": 64}, cluster="h100:2x4", comparisons=False)
    assert made.step_ns is not None and other.step_ns is not None
    assert found.gain == pytest.approx(1 - (other.step_ns / 64) / (made.step_ns / 60), abs=0.01)


@pytest.mark.parametrize("batch", [64, 8, 40, 9])
def test_batches_that_limit_nothing_or_are_far_from_a_better_one_are_left_alone(batch: int) -> None:
    made = tp.plan(**{**GPT2, "batch": batch}, cluster="h100:2x4", comparisons=False, gap=0.2)
    assert better_batch(made, 0.1) is None


def test_the_screen_and_json_say_what_is_near() -> None:
    words = ("plan", "gpt2", "h100:2x4", "--batch", "60", "--seq", "1k", "--gap", "0.02", "--what-if", "memory=0.9,network=1.2")
    shown = call(*words).stdout
    assert "WHAT IF    memory x 0.9, network x 1.2: " in shown and "layout" in shown
    assert "BATCH      batch 64 would take" in shown
    reported = json.loads(call(*words, "--json").stdout)
    assert reported["what_if"]["factors"] == {"memory": 0.9, "network": 1.2} and reported["better_batch"]["batch"] == 64
    sized = call("plan", "gpt2", "h100", "--devices", "1-2", "--batch", "16", "--seq", "1k", "--json", "--gap", "0.1")
    assert json.loads(sized.stdout)["devices"]["fewest_devices"] == 1


def test_nodes_of_a_kind_need_no_quotes() -> None:
    answers = [
        json.loads(call("fit", "gpt2", *words, "--seq", "1k", "--json").stdout) for words in (("2x2", "h100"), ("h100:2x2",))
    ]
    assert answers[0]["peak_bytes"] == answers[1]["peak_bytes"] and answers[0]["fits"] is True
