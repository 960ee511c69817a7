"""One judge of every plan, and one way from a request to a plan: random requests, all presets, one prediction."""

from __future__ import annotations

import ast
import json
import random
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from trainplan.formulations.plan.plan import Plan, load_plan
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.clusters.cluster import Cluster, load_cluster
from trainplan.profiling.models.model import Model, load_model

import trainplan as tp
from tests.helpers.refusals import refused
from tests.helpers.sizes import of_all
from trainplan.planning.planning_run import limits_bytes
from trainplan.planning.presets import PRESETS
from trainplan.planning.result import PlanningResult

ROOT = Path(__file__).parent.parent
GPT2 = {"n_embd": 128, "n_head": 4, "n_inner": 512, "n_positions": 64, "vocab_size": 1009}
LLAMA = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 352}
REQUESTS, EVERY = 50, 4  # of which `make test` takes one in a number


def models(rng: random.Random) -> Model:
    """A small GPT-2 or Llama, tied or not."""
    layers = rng.randint(2, 5)
    if rng.random() < 0.5:
        return load_model("gpt2", 64, "float32").with_fields(**GPT2, n_layer=layers, tie_word_embeddings=rng.random() < 0.5)
    return load_model("llama2-7b", 64, "float32").with_fields(**LLAMA, num_hidden_layers=layers, vocab_size=1009)


def requests() -> Iterator[dict[str, Any]]:
    """Random requests: models, clusters of CPUs and GPUs, batches, memory from tight to ample, a back-end or none."""
    rng = random.Random(13)
    for number in range(REQUESTS):
        cluster: Cluster = load_cluster(rng.choice(["cpu-4", "rtx-titan-8", "a100-16"]))
        model = models(rng)
        states = 16 * model.total_parameters
        memory = round(states * rng.choice([0.3, 0.6, 1.2, 8]) + 2**20 * rng.choice([1, 4, 64]))
        request = {"model": model, "cluster": cluster, "batch": cluster.devices * rng.choice([2, 4]), "memory": memory}
        yield request | {"backend": (None, None, "streams", None, "serial")[number % 5]}


@cache
def answer(number: int) -> tuple[dict[str, Any], list[PlanningResult]]:
    """All presets' answers to one request."""
    request = next(islice(requests(), number, None))
    made = tp.plans(time_limit=5, gap=0.05, **request)
    return request, [entry for entry in made if not isinstance(entry, InputError)]


def answers(every: int) -> list[tuple[dict[str, Any], list[PlanningResult]]]:
    """All presets' answers to one in a number of requests."""
    return [answer(number) for number in range(0, REQUESTS, every)]


def planned(every: int) -> list[tuple[PlanningResult, Plan]]:
    """Every answer to these with a plan."""
    return [(answer, answer.plan) for _, one_answer in answers(every) for answer in one_answer if answer.plan is not None]


def test_equal_plans_have_equal_predictions_whoever_made_them(every: int = EVERY) -> None:
    seen: dict[str, tuple[str, Any]] = {}
    twice = 0
    for index, (_, one_answer) in enumerate(answers(every)):
        for answer in one_answer:
            if answer.plan is None:
                continue
            key = f"{index} {json.dumps(answer.plan.content)}"
            first = seen.setdefault(key, (answer.preset.name, answer.plan.predicted))
            assert answer.plan.predicted == first[1], (answer.preset.name, first[0])
            twice += first[0] != answer.preset.name
    assert len(seen) > REQUESTS // every and twice > 0, "some plans are found by several presets"


def test_a_prediction_is_what_simulate_says(every: int = EVERY) -> None:
    for answer, plan in planned(every):
        assert plan.predicted is not None
        assert tp.simulate(plan).step_ns == plan.predicted.step_ns, answer.preset.name
        again = tp.simulate(plan, cluster=answer.request.cluster)
        assert again.step_ns == plan.predicted.step_ns, answer.preset.name


def test_every_plan_fits_its_own_limit(every: int = EVERY) -> None:
    for answer, plan in planned(every):
        assert plan.predicted is not None and len(answer.walk_bytes) == plan.world
        assert list(answer.walk_bytes) == plan.predicted.peak_bytes
        limits = limits_bytes(plan, answer.request)
        assert all(peak <= limit for peak, limit in zip(answer.walk_bytes, limits, strict=True)), answer.preset.name
        assert plan.memory_bytes == answer.request.memory_bytes


def test_what_does_not_fit_names_a_memory_that_does(every: int = EVERY) -> None:
    short = [
        (request, answer)
        for request, one_answer in answers(every)
        for answer in one_answer
        if answer.plan is None and answer.needed_bytes
    ]
    assert short
    for request, answer in short[:8]:
        again = tp.plan(like=answer.preset.name, time_limit=20, **{**request, "memory": answer.needed_bytes})
        assert again.plan is not None, (answer.preset.name, answer.needed_bytes)


def test_claims_name_problem_and_costs(every: int = EVERY) -> None:
    for answer, plan in planned(every):
        claim = plan.claim
        assert claim is not None
        assert claim.problem == answer.preset.problem_name and claim.cost_model
        assert claim.bound_ns is None or claim.bound_ns <= claim.objective_ns


@pytest.mark.long
def test_all_of_it_holds_of_every_request() -> None:
    """In one test, so that each request is planned once. One request in three; `make test-all` has all."""
    every = of_all(3, 1)
    test_equal_plans_have_equal_predictions_whoever_made_them(every)
    test_a_prediction_is_what_simulate_says(every)
    test_every_plan_fits_its_own_limit(every)
    test_what_does_not_fit_names_a_memory_that_does(every)
    test_claims_name_problem_and_costs(every)


def test_presets_are_named_in_their_table_alone() -> None:
    """No other module of the front door checks which preset it has before it (planners of throughput have names of their
    own). The checker of the library shares no code with the package, and names problems itself."""
    names = set(PRESETS)
    for path in (ROOT / "trainplan").rglob("*.py"):
        if path.name in ("presets.py", "check_library.py") or "papers" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            assert not (isinstance(node, ast.Constant) and node.value in names), f"{path}:{getattr(node, 'lineno', 0)}"


def test_plans_of_version_1_load_and_are_not_trusted(tmp_path: Path) -> None:
    plan = next(plan for _, plan in planned(EVERY))
    old = plan.content | {"version": 1}
    old["predicted"] = {
        "step_ns": 5,
        "peak_bytes": 7,
        "lower_bound_ns": 4,
        "gap": 0.2,
        "method": "label-setting",
        "status": "feasible",
        "profile_origin": "estimated",
        "versions": {"trainplan": "0.1.0"},
    }
    path = tmp_path / "old.json"
    path.write_text(json.dumps(old))
    read = load_plan(path)
    assert read.predicted is None and read.content == plan.content
    assert read.claim is not None and (read.claim.objective_ns, read.claim.bound_ns, read.claim.gap) == (5, 4, 0.2)
    with refused("cluster", fix="--profile"):
        tp.simulate(path)
    assert plan.predicted is not None
