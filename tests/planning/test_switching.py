"""From a profile, or a file of H3T's published code, to a memory-switches instance, a plan whose programs fit, and pictures."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trainplan.execution.analysis.memory.peak import memory_walk
from trainplan.execution.compile.compiler import compile_plan
from trainplan.execution.prediction.evaluate_plan import PlanPrediction
from trainplan.formulations.memory_switches import costs
from trainplan.formulations.memory_switches.definition import PROBLEM
from trainplan.formulations.memory_switches.problem import Instance, Solution, evaluate, load_solution, violations
from trainplan.formulations.parameters import chosen
from trainplan.formulations.plan.plan import Plan, load_plan
from trainplan.formulations.plan.request import Request
from trainplan.formulations.plan.switches import ALL_ON, Switches, combinations
from trainplan.profiling.base.errors import MissingExtra
from trainplan.profiling.base.quantities import enough_bytes, format_bytes, parse_bytes
from trainplan.profiling.clusters.cluster import Cluster, load_cluster
from trainplan.profiling.costs import collective_ns
from trainplan.profiling.models.model import Model, load_model
from trainplan.profiling.profiles import Profile
from trainplan.solvers.core import answer

import trainplan as tp
from tests.helpers.clock import without_alarms
from tests.helpers.refusals import refused
from tests.helpers.sizes import first_and_others
from tests.helpers.switch_instances import any_combinations, random_instance, simulated_step
from trainplan import pictures
from trainplan.pictures import lanes as switch_pictures
from trainplan.pictures.lanes import draw_frontier, draw_switches
from trainplan.planning.memory_frontier import frontier as switch_frontier
from trainplan.planning.memory_frontier import memory_limits
from trainplan.planning.presets import PRESETS
from trainplan.planning.result import PlanningResult
from trainplan.prediction import predict

H3T = Path(__file__).parents[3] / "shared" / "data" / "h3t"
CLUSTER = load_cluster("cpu-4")
GPT2: dict[str, Any] = {"model_type": "gpt2", "n_layer": 3, "n_embd": 32, "n_head": 4, "n_positions": 16, "vocab_size": 96}


def small(folder: Path, **fields: Any) -> Model:
    path = folder / "small.json"
    path.write_text(json.dumps(GPT2 | fields))
    return load_model(path, dtype="float32").fused()


def request_for(model: Model, batch: int, **options: Any) -> Request:
    return Request(model, CLUSTER, batch, options=chosen(PROBLEM.parameters, {"by_unit": True, **options}, PROBLEM.name))


def switch_instance(model: Model, batch: int, **options: Any) -> tuple[Instance, Profile]:
    """The instance, by default of sub-layers, and the profile that it is made from."""
    request = request_for(model, batch, **options)
    return PROBLEM.instance(request), request.obtained[0]


def switch(model: Model, cluster: Cluster, batch: int, memory_bytes: int | None = None, **options: Any) -> PlanningResult:
    return tp.switch(model=model, cluster=cluster, batch=batch, memory=memory_bytes, **options)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return small(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def made(model: Model) -> tuple[Instance, Profile]:
    return switch_instance(model, 8)


def step_peak(instance: Instance, switches: Switches) -> int:
    return evaluate(instance, Solution((switches,) * instance.layers)).peak_bytes


def test_a_layer_is_what_the_profile_says_of_its_unit(made: tuple[Instance, Profile]) -> None:
    instance, profile = made
    assert instance.layer_names == tuple(unit.name for unit in profile.units)
    assert not instance.nvlink, "copies share the machine's memory with the collectives"
    assert (instance["input_bytes"][1:] == instance["output_bytes"][:-1]).all()
    for index, unit in enumerate(profile.units):
        entry, shape = profile.cost(unit.sublayer, 1, 2), profile.shapes[unit.sublayer]
        shard = -(-shape.shard(1).parameters // 4)
        found = {name: int(column[index]) for name, column in instance.columns.items()}
        for name in ("forward_ns", "forward_without_graph_ns", "backward_ns"):
            assert found[name] == getattr(entry, name).value
        assert found["graph_bytes"] == entry.kept_bytes.value
        for of in ("parameter", "gradient"):
            assert found[f"partitioned_{of}_bytes"] == 4 * shard and found[f"gathered_{of}_bytes"] == 16 * shard
        assert found["all_gather_ns"] == round(collective_ns(profile.network, "all-gather", 16 * shard, range(4)))
        assert found["reduce_scatter_ns"] == round(collective_ns(profile.network, "reduce-scatter", 16 * shard, range(4)))
        host = profile.host
        assert host is not None
        assert found["optimizer_ns"] == round(shard * host.optimizer_ns_per_parameter.value)
        latency, rate = host.latency_ns.value, host.to_device_bytes_per_s.value
        assert found["prefetch_hidden_ns"] == round(found["input_bytes"] / rate * 1e9 + latency)
        assert found["prefetch_parameter_ns"] == round(4 * shard / rate * 1e9 + latency)


def test_the_ends_of_the_chain(made: tuple[Instance, Profile]) -> None:
    """Tokens have no gradient; the loss holds targets, and three numbers of each, in addition to the logits."""
    instance, profile = made
    tokens, hidden = 2 * 16, 2 * 16 * 32 * 4
    first, last = (profile.cost(profile.units[index].sublayer, 1, 2) for index in (0, -1))
    assert (instance["input_bytes"][0], instance["output_bytes"][0]) == (8 * tokens, hidden)
    assert instance["backward_peak_bytes"][0] == first.backward_workspace_bytes.value
    assert instance["backward_peak_bytes"][1] > hidden
    logits, loss = tokens * 96 * 4, tokens * (8 + 3 * 4)
    assert instance["output_bytes"][-1] == logits
    workspace = last.forward_workspace_bytes.value
    assert instance["forward_peak_bytes"][-1] == logits + last.kept_bytes.value + max(workspace, loss)
    without = logits + max(last.kept_bytes.value + workspace, loss)
    assert instance["forward_without_graph_peak_bytes"][-1] == without


def peaks_of(model: Model, instance: Instance, solution: Solution) -> tuple[int, int]:
    """Peak of the simulated step, and of the analysis of the program, without the number that programs keep the loss in."""
    [program] = compile_plan(PROBLEM.plan(instance, solution, request_for(model, 16)), ranks=[0])
    return simulated_step(instance, solution).peak_bytes, memory_walk(program).peak_bytes - program.buffers["loss"]


@pytest.mark.parametrize("options", [combinations(), any_combinations()], ids=["synchronised", "any"])
@pytest.mark.parametrize("nvlink", [True, False])
def test_where_nothing_overlaps_peaks_are_those_of_the_programs(
    model: Model, options: Sequence[Switches], nvlink: bool
) -> None:
    """A program is analysed in the order of issue. So is a step whose copies and collectives take no time and are issued before
    the computation."""
    instance, _ = switch_instance(model, 16)
    timeless = {name: 0 * column for name, column in instance.columns.items() if name.endswith("_ns") and "ward" not in name}
    instance = replace(instance, nvlink=nvlink, columns=instance.columns | timeless)
    plain = [switches for switches in options if not (switches.eco_forward or switches.eco_backward)]
    rng = np.random.default_rng(0)
    for _ in range(40):
        switches = tuple(plain[index] for index in rng.integers(len(plain), size=instance.layers))
        known, found = peaks_of(model, instance, Solution(switches))
        assert known == found


@pytest.mark.parametrize("options", [combinations(), any_combinations()], ids=["synchronised", "any"])
def test_simulated_peaks_are_close_to_those_of_the_programs(model: Model, options: Sequence[Switches]) -> None:
    """Also with what overlaps, on plans nothing was fitted to."""
    instance, _ = switch_instance(model, 16)
    rng, ratios = np.random.default_rng(1), []
    for _ in range(40):
        switches = tuple(options[index] for index in rng.integers(len(options), size=instance.layers))
        known, found = peaks_of(model, instance, Solution(switches))
        ratios.append(found / known)
    print(f"walk over simulation: {min(ratios):.4f} to {max(ratios):.4f}, median {np.median(ratios):.4f}")
    assert max(ratios) < 1.02 and min(ratios) > 0.85 and np.median(ratios) > 0.93


def test_units_in_one_layer_go_one_after_the_other() -> None:
    """Two units by hand: (input 4, output 6, graph 10) and (input 6, output 2, graph 20), workspaces 3 and 5, 7 and 11."""

    def row(source: int, output: int, graph: int, forward: int, backward: int) -> dict[str, int]:
        times = dict.fromkeys(("forward_without_graph_ns", "forward_ns", "backward_ns", "optimizer_ns"), 1)
        sizes = dict.fromkeys(costs.PARAMETER_BYTES, 8) | {"input_bytes": source, "output_bytes": output, "graph_bytes": graph}
        peaks = (output + graph + forward, output + graph + forward, source + backward)
        names = ("forward_without_graph_peak_bytes", "forward_peak_bytes", "backward_peak_bytes")
        return times | sizes | dict(zip(names, peaks, strict=True))

    found = costs._joined([row(4, 6, 10, 3, 7), row(6, 2, 20, 5, 11)])
    assert (found["forward_ns"], found["gathered_parameter_bytes"]) == (2, 16)
    assert (found["input_bytes"], found["output_bytes"]) == (4, 2)
    assert found["graph_bytes"] == 10 + 6 + 20, "both graphs, and the second unit's input"
    assert found["forward_without_graph_peak_bytes"] == max(6 + 10 + 3, 6 + 2 + 20 + 5)
    assert found["forward_peak_bytes"] == max(6 + 10 + 3, 10 + 6 + 2 + 20 + 5)
    # The second unit adds its input's gradient, 6, and 11; then its graph, 20, and the output's gradient, 2, are gone.
    assert found["backward_peak_bytes"] == max(6 + 11, -22 + 4 + 7)


def test_layers_are_those_of_the_paper(model: Model, made: tuple[Instance, Profile]) -> None:
    units = made[0]
    layers, _ = switch_instance(model, 8, by_unit=False)
    assert layers.layer_names == ("embedding", "block0", "block1", "block2", "head")
    for name in ("forward_ns", "backward_ns", "optimizer_ns", "gathered_parameter_bytes"):
        assert layers[name].sum() == pytest.approx(units[name].sum(), abs=layers.layers)
    nothing = Switches(segment_sync=True)
    least, most = (step_peak(layers, switches) / step_peak(units, switches) for switches in (ALL_ON, nothing))
    assert least >= 1 and 1 <= most < 1.05, "a layer keeps and computes what its units do"


def test_build_says_what_it_cannot_use(model: Model, made: tuple[Instance, Profile], tmp_path: Path) -> None:
    profile = made[1]
    for options, refusal in (
        ({"batch": 6}, ("batch", 6, 4)),
        ({"batch": 0}, ("batch", 0, (1, 1048576))),
        ({}, ("batch", (), "samples")),
        ({"batch": 8, "pipeline": 2}, ("pipeline", 2, ("memory-switches", "--paper-combinations", "--by-unit"))),
        ({"batch": 8, "profile": profile.changed(host=None)}, ("host", (), "`host`")),
        ({"batch": 8, "cluster": None}, ("cluster", (), "--profile")),
    ):
        with refused(*refusal):
            tp.build("memory-switches", **({"model": model, "cluster": CLUSTER} | options))
    with refused("paper_combinations", problem="true", fix=("pipeline", "--cost-model")):
        tp.build("pipeline", model=model, cluster=CLUSTER, batch=8, paper_combinations=True)
    assert tp.build("memory-switches", profile=profile, batch=8, by_unit=True).columns.keys() == made[0].columns.keys()
    assert len(tp.build("memory-switches", profile=profile, batch=8, paper_combinations=True).options) == 64


def published(folder: Path, layers: int = 3, **fields: Any) -> Path:
    """A file in the format of H3T's published code; fields: of every layer's memory."""
    names = ("forward_no_grad", "forward_with_grad", "backward", "gather_parameter", "scatter_gradient", "prefetch_parameter")
    names += ("offload_gradient", "prefetch_hidden_state", "offload_hidden_state", "optimizer_step")
    memory = {"input_tensor": 100, "gathered_parameter": 400, "partitioned_parameter": 100, "gathered_gradient": 400}
    memory |= {"partitioned_gradient": 100, "forward_no_grad_peak": 150, "forward_no_grad_delta": 100}
    memory |= {"forward_with_grad_peak": 500, "forward_with_grad_delta": 450, "backward_peak": 130, "backward_delta": -350}
    times = [{name: (i + 1) * (k + 1) * 1e-6 for k, name in enumerate(names)} for i in range(layers)]
    path = folder / "h3t.json"
    path.write_text(json.dumps({"nvlink_available": True, "layer_runtime": times, "layer_memory": [memory | fields] * layers}))
    return path


def test_files_of_the_published_code_are_taken_as_they_are(tmp_path: Path) -> None:
    path = published(tmp_path)
    instance = tp.build("memory-switches", profile=path, memory="1KB")
    assert (instance.name, instance.layers, instance.memory_bytes, instance.nvlink) == ("h3t", 3, 1000, True)
    assert len(instance.options) == 48 and "lifted" not in instance.provenance
    assert instance["forward_without_graph_ns"].tolist() == [1000, 2000, 3000]
    assert instance["optimizer_ns"].tolist() == [10_000, 20_000, 30_000]
    assert set(instance["graph_bytes"].tolist()) == {350} and set(instance["output_bytes"].tolist()) == {100}
    assert instance.provenance["devices"] == 4
    assert len(tp.build("memory-switches", profile=path, memory=1000, paper_combinations=True).options) == 64
    lifted = tp.build("memory-switches", profile=published(tmp_path, backward_peak=60), memory=1000)
    assert lifted["backward_peak_bytes"].tolist() == [60, 100, 100]
    assert lifted.provenance["lifted"] == {"backward_peak_bytes": [1, 2]}
    for options, refusal in (
        ({}, ("memory", (), ("8GiB", "H3T"))),
        ({"memory": 1000, "batch": 8}, ("batch", 8, "H3T")),
        ({"memory": 1000, "model": "gpt2"}, ("model", "gpt2", "H3T")),
    ):
        with refused(*refusal):
            tp.build("memory-switches", profile=path, **options)
    assert tp.build("memory-switches", profile=published(tmp_path, input_tensor=111), memory=1000)["output_bytes"][0] == 111
    for size in (1, 10_000):
        other = published(tmp_path, input_tensor=100 + 512 * size)
        with refused("layer_memory[1].input_tensor", (100 + 512 * size, "layer 0", "forward_no_grad_delta"), 100, where=other):
            tp.build("memory-switches", profile=other, memory=1000)
    with refused("layer_memory[0].gathered_parameter", problem=(401, 100), fix=4):
        tp.build("memory-switches", profile=published(tmp_path, gathered_parameter=401), memory=1000)


def test_the_least_memory_of_a_real_file() -> None:
    path = H3T / "bert1.8b_n12_8x2080ti_bs128.json"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    instance = tp.build("memory-switches", profile=path, memory="3GB")
    assert step_peak(instance, ALL_ON) == 1_678_770_176
    assert not instance.nvlink and tp.solve(instance).status == "optimal"


def test_a_plan_says_what_was_chosen(model: Model, made: tuple[Instance, Profile]) -> None:
    instance = made[0]
    low, high = step_peak(instance, ALL_ON), step_peak(instance, Switches(segment_sync=True))
    found = switch(model, CLUSTER, 8, memory_bytes=(low + high) // 2)
    assert found.plan is not None and found.plan.predicted is not None and found.result.solution is not None
    chosen = load_solution(found.result.solution)
    assert found.plan.switches() == list(chosen.switches) and len(set(chosen.switches)) > 1
    assert found.plan.nvlink is False and found.plan.world == 4
    assert {str(unit.strategy) for unit in found.plan.units} <= {"sdp4", "sdp4-ckpt"}
    claim, simulated = found.plan.claim, evaluate(found.instance, chosen)
    assert claim is not None and claim.objective_ns == simulated.time_ns
    assert found.result.evaluation is not None and found.result.evaluation["peak_bytes"] == simulated.peak_bytes
    assert (claim.status, claim.gap, claim.bound_ns) == ("optimal", 0.0, claim.objective_ns)
    assert (claim.problem, claim.method) == ("memory-switches", "label-setting")
    predicted = found.plan.predicted
    assert predicted.backend == "streams" and tuple(predicted.peak_bytes) == found.walk_bytes
    serial = switch(model, CLUSTER, 8, memory_bytes=(low + high) // 2, backend="serial").plan
    assert serial is not None and serial.content == found.plan.content | {"backend": "serial"} and serial.predicted is not None
    assert serial.predicted.backend == "serial" and serial.predicted.step_ns >= predicted.step_ns
    assert violations(found.instance, chosen) == [] and found.margin_bytes == 0
    assert len(found.walk_bytes) == 4 and max(found.walk_bytes) <= found.instance.memory_bytes
    assert load_plan(json.loads(found.plan.model_dump_json())) == found.plan
    step = tp.simulate(found.plan)
    assert step.step_ns == predicted.step_ns and step.timeline is None, "its lanes are no pipeline's"
    assert step.trace()["otherData"] == {"step_ns": step.step_ns}
    assert json.loads(json.dumps(found.to_dict()))["plan"]["units"][0]["order"]


def test_one_device_has_nobody_to_share_with(model: Model) -> None:
    one = CLUSTER.changed(name="one", nodes=[CLUSTER.nodes[0].changed(devices=1, islands=[])])
    found = switch(model, one, 2)
    assert found.plan is not None and {str(unit.strategy) for unit in found.plan.units} <= {"single", "single-ckpt"}


def peaking(judged: PlanPrediction, peak_bytes: int) -> PlanPrediction:
    """The analyses of programs that need a given number of bytes on every rank and back-end."""
    found = replace(judged, memory=tuple(replace(walk, peak_bytes=peak_bytes) for walk in judged.memory))
    vars(found)["serial_bytes"] = peak_bytes
    return found


def test_memory_that_programs_need_in_addition_is_kept_free(
    model: Model, made: tuple[Instance, Profile], monkeypatch: Any
) -> None:
    instance = made[0]
    low, high = step_peak(instance, ALL_ON), step_peak(instance, Switches(segment_sync=True))
    limit, more = (low + high) // 2, (high - low) // 10

    def needing_more(plan: Plan, *others: Any) -> Any:
        judged = judge(plan, *others)
        solution = Solution(tuple(plan.switches() or ()))
        return peaking(judged, evaluate(instance, solution).peak_bytes + more)

    judge = predict.judge
    alone = switch(model, CLUSTER, 8, memory_bytes=limit)
    monkeypatch.setattr(predict, "judge", needing_more)
    found = switch(model, CLUSTER, 8, memory_bytes=limit)
    assert found.plan is not None and found.plan.claim is not None
    assert alone.plan is not None and alone.plan.claim is not None
    assert 0 < found.margin_bytes <= more and max(found.walk_bytes) <= limit
    assert found.result.evaluation is not None
    assert found.result.evaluation["peak_bytes"] <= limit - more and found.plan.memory_bytes == limit
    claim, best = found.plan.claim, alone.plan.claim
    assert claim.bound_ns == best.bound_ns, "the bound is that of the memory asked for"
    assert claim.gap == (claim.objective_ns - best.objective_ns) / claim.objective_ns > 0
    assert claim.status == "feasible" and claim.objective_ns == found.result.objective
    assert found.result.instance_hash == found.instance.digest == alone.instance.with_memory(limit - found.margin_bytes).digest
    short = switch(model, CLUSTER, 8, memory_bytes=low + more // 2)
    assert (short.plan, short.result.status, short.result.solution, short.result.objective) == (None, "unknown", None, None)
    assert short.needed_bytes == low + more and short.result.bound is not None
    assert short.result.message == (
        f"the compiled programs are {format_bytes(more - more // 2)} short; "
        f"give --memory of at least {enough_bytes(low + more)}"
    )
    assert switch(model, CLUSTER, 8, memory_bytes=low + more).plan is not None


@pytest.mark.parametrize("backend", ["serial", "streams"])
@pytest.mark.parametrize(
    ("fields", "batch"), first_and_others([({"vocab_size": 1000}, 4), ({"n_embd": 64, "n_layer": 2}, 16), ({}, 16)], 2)
)
def test_the_memory_that_is_named_does(tmp_path: Path, fields: Any, batch: int, backend: str) -> None:
    model = small(tmp_path, **fields)
    none = switch(model, CLUSTER, batch, memory_bytes=1000, backend=backend)
    reason, needed = none.result.reason, none.needed_bytes
    assert none.plan is None and none.result.status == "infeasible" and reason is not None and needed is not None
    assert (reason.memory_bytes, reason.least_memory_bytes) == (1000, needed)
    assert reason.state_bytes + reason.activation_bytes == needed
    assert reason.advice[0] == f"give --memory of at least {enough_bytes(needed)}" and "memory_bytes" not in str(reason)
    other = re.findall(r"backend serial, whose programs need ([\d.]+[KMG]?i?B)", str(reason))
    if backend == "serial":
        assert not other
    for size in map(parse_bytes, other):
        assert size < needed and switch(model, CLUSTER, batch, memory_bytes=size, backend="serial").plan is not None
    enough = switch(model, CLUSTER, batch, memory_bytes=needed, backend=backend)
    assert enough.plan is not None and max(enough.walk_bytes) <= needed and enough.needed_bytes is None
    less = switch(model, CLUSTER, batch, memory_bytes=needed - 1, backend=backend)
    assert less.plan is None and less.needed_bytes == needed


@pytest.mark.parametrize("like", PRESETS)
def test_every_preset_names_the_memory_that_does(model: Model, like: str) -> None:
    """The reserve and the memory that would do are the same for all: planned with it, short with one byte less."""

    def planned(memory: int) -> PlanningResult:
        return tp.plan(like=like, model=model, cluster=CLUSTER, batch=8, memory=memory)

    none = planned(1000)
    needed, reason = none.needed_bytes, none.result.reason
    assert none.plan is None and needed is not None and reason is not None
    assert reason.advice[0] == f"give --memory of at least {enough_bytes(needed)}" and reason.least_memory_bytes == needed
    enough, less = planned(needed), planned(needed - 1)
    assert enough.plan is not None and max(enough.walk_bytes) <= needed
    if less.plan is None:
        assert less.needed_bytes == needed
    else:  # whose programs need less than tables of what they hold at most
        assert like == "joint" and max(less.walk_bytes) < needed
    claim = enough.plan.claim
    assert claim is not None and claim.bound_ns is not None and claim.bound_ns <= claim.objective_ns
    assert claim.status == "feasible" or not enough.margin_bytes or claim.gap == 0


def test_the_programs_of_both_back_ends_may_need_as_much(tmp_path: Path) -> None:
    """Then the other back-end is no advice; where streams hold more, it is."""
    alike, unlike = (switch(small(tmp_path, **fields), CLUSTER, 4, memory_bytes=1000) for fields in ({"vocab_size": 1000}, {}))
    for found, advised in ((alike, False), (unlike, True)):
        assert ("backend serial" in str(found.result.reason)) is advised


@pytest.mark.parametrize("late", [False, True])
def test_a_later_round_that_finds_nothing_says_so(model: Model, made: Any, monkeypatch: Any, late: bool) -> None:
    rounds = list[Any]()

    def once(instance: Instance, method: str, **options: Any) -> Any:
        rounds.append(instance.memory_bytes)
        found = tp.solve(instance, method)
        return found if len(rounds) == 1 else replace(found, solution=None, objective=None, status="unknown")

    def needing_more(*requested: Any) -> Any:
        return peaking(judge(*requested), limit + 7)

    judge = predict.judge
    limit = step_peak(made[0], Switches(segment_sync=True))
    monkeypatch.setattr(answer, "solve", once)
    monkeypatch.setattr(predict, "judge", needing_more)
    without_alarms(monkeypatch)
    found = switch(model, CLUSTER, 8, memory_bytes=limit, time_limit=1e-6 if late else None)
    least = step_peak(made[0], ALL_ON)
    assert rounds == ([limit, least] if late else [limit, limit - 7, least]), "at last the least that any step needs"
    assert (found.plan, found.needed_bytes, found.result.status) == (None, None, "unknown")
    reported = "the compiled programs are 7 B short, and label-setting found nothing that needs less"
    assert found.result.message == reported + (" before time ran out" if late else "")


def test_what_has_no_plan_is_refused(model: Model) -> None:
    mixed = load_cluster("amp-heterogeneous-16")
    for options, refusal in (
        ({"model": load_model("vit-huge-32")}, ("model", "vit", ("gpt2", "bert", "llama"))),
        ({"cluster": mixed}, ("cluster", ("amp-heterogeneous-16", "Tesla T4"), "`place`")),
        ({"batch": 7}, ("batch", 7, 4)),
        ({"method": "best"}, ("method", "best", ("exact", "label-setting", "h3t-dp"))),
    ):
        with refused(*refusal):
            tp.switch(**({"model": model, "cluster": CLUSTER, "batch": 8} | options))
    nothing = tp.switch(model=model, cluster=CLUSTER, batch=8, memory="1KiB")
    assert nothing.plan is None and nothing.result.status == "infeasible" and nothing.walk_bytes == ()


def frontier() -> list[Any]:
    instance = random_instance(np.random.default_rng(5), 4)
    return switch_frontier(instance, memory_limits(instance, 5), ["exact", "manual", "h3t-greedy"])


def test_a_frontier_falls_and_starts_at_the_least_memory() -> None:
    points = frontier()
    assert len(points) == 15 and [point.result.method for point in points[:5]] == ["label-setting"] * 5
    times = [point.result.objective for point in points[:5]]
    assert None not in times and times == sorted(times, reverse=True) and times[0] > times[-1]
    assert all(point.result.status == "optimal" for point in points[:5])
    for point in points[5:]:
        best = next(other for other in points if other.memory_bytes == point.memory_bytes).result.objective
        assert point.result.objective is None or point.result.objective >= best
    instance = random_instance(np.random.default_rng(5), 4)
    assert tp.solve(replace(instance, memory_bytes=points[0].memory_bytes - 1)).status == "infeasible"
    with refused("", problem=0, fix="bytes"):
        switch_frontier(instance, [0])


def gids(figure: Any, name: str) -> list[Any]:
    return [artist for artist in figure.findobj() if artist.get_gid() == name]


@pytest.mark.parametrize("seed", range(6))
def test_pictures_show_what_was_simulated(seed: int) -> None:
    instance = random_instance(np.random.default_rng(seed), 5)
    rng = np.random.default_rng(seed)
    solution = Solution(tuple(instance.options[index] for index in rng.integers(len(instance.options), size=5)))
    step, figure = evaluate(instance, solution), draw_switches(instance, solution)
    for what in switch_pictures.KINDS:
        [bars] = gids(figure, what)
        own = [one for one in step.timeline if one.what == what and one.end_ns > one.start_ns]
        boxes = [(path.vertices[:, 0].min(), path.vertices[:, 0].max()) for path in bars.get_paths()]
        scale = 1 if step.time_ns < 1000 else 1e3
        assert boxes == [pytest.approx((one.start_ns / scale, one.end_ns / scale)) for one in own]
    assert {one.what for one in step.timeline} <= switch_pictures.KINDS.keys()
    [peak], [limit], [held] = gids(figure, "peak"), gids(figure, "limit"), gids(figure, "held")
    size = next((s for s, _ in switch_pictures.SIZES if step.peak_bytes >= s), 1)
    assert peak.get_ydata()[0] * size == pytest.approx(step.peak_bytes) == max(held.get_ydata()) * size
    assert limit.get_ydata()[0] * size == pytest.approx(instance.memory_bytes)
    [cells] = gids(figure, "switches")
    assert cells.get_array().sum() == sum(len(switches.names) for switches in solution.switches)


def test_a_window_shows_that_part_of_the_step_alone() -> None:
    instance = random_instance(np.random.default_rng(2), 5)
    solution = Solution((ALL_ON,) * 5)
    step = evaluate(instance, solution)
    begin, end = step.phases_ns[0] - 300, step.phases_ns[0] + 300
    figure = draw_switches(instance, solution, window_ns=(begin, end))
    streams, memory = figure.axes
    assert streams.get_xlim() == memory.get_xlim() == (begin, end) and not gids(figure, "switches")
    for what in switch_pictures.KINDS:
        [bars] = gids(figure, what)
        seen = [one for one in step.timeline if one.what == what and begin < one.end_ns and one.start_ns < end]
        assert len(bars.get_paths()) == len([one for one in seen if one.end_ns > one.start_ns])
    for text in streams.texts:
        assert begin <= text.get_position()[0] <= end
    for window in ((-1, 5), (5, 5), (0, step.time_ns + 1)):
        with refused("", fix=(0, step.time_ns)):
            draw_switches(instance, solution, window_ns=window)


def test_pictures_name_methods_and_need_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    points = frontier()
    figure = draw_frontier(points, title="small")
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert labels[0] == "label-setting (proven)" and labels[1].startswith("manual")
    [line] = gids(figure, "gap label-setting")
    assert not np.any(line.get_ydata())
    instance = random_instance(np.random.default_rng(0), 3)
    with refused("switches", problem=(2, 3)):
        draw_switches(instance, Solution((ALL_ON,) * 2))
    with refused("", fix="`frontier`"):
        draw_frontier([])

    def absent(name: str) -> ModuleSpec | None:
        return None

    monkeypatch.setattr(pictures, "find_spec", absent)
    with pytest.raises(MissingExtra, match="matplotlib"):
        tp.draw_switches(instance, Solution((ALL_ON,) * 3))
