"""memory-switches solved exactly: against every choice, by simulation, and on the paper's sizes."""

from __future__ import annotations

from dataclasses import astuple, replace
from itertools import product

import numpy as np
import pytest
from trainplan.formulations.memory_switches.problem import Instance, Solution, evaluate, load_solution, violations
from trainplan.formulations.memory_switches.simulation import simulate
from trainplan.formulations.plan.switches import ALL_ON
from trainplan.profiling.base.quantities import enough_bytes
from trainplan.solvers.core.solve import solve
from trainplan.solvers.switches.exact import explain

from tests.helpers.switch_instances import bert_instance, random_instance


def all_choices(instance: Instance) -> tuple[np.ndarray, np.ndarray]:
    """Time and peak of every choice of switches, by simulation of the whole step."""
    on = np.array([astuple(option) for option in instance.options], bool)
    indices = np.array(list(product(range(len(on)), repeat=instance.layers)))
    found = [
        simulate(instance.columns, instance.nvlink, on[part]) for part in np.array_split(indices, 1 + len(indices) // 8192)
    ]
    times, peaks = (np.concatenate(values) for values in zip(*found, strict=True))
    return times, peaks


@pytest.mark.parametrize("seed", range(60))
def test_every_choice_of_small_steps(seed: int) -> None:
    rng = np.random.default_rng(seed)
    layers = 3 if seed % 20 == 0 else int(rng.integers(1, 3))
    instance = random_instance(
        rng, layers, scale=int(rng.choice([3, 100, 10**6])), offload_needs_ckpt=bool(seed % 3 or layers > 2)
    )
    times, peaks = all_choices(instance)
    result, fits = solve(instance, "label-setting"), peaks <= instance.memory_bytes
    if fits.any():
        assert (result.status, result.objective, result.bound) == ("optimal", times[fits].min(), times[fits].min())
        assert explain(instance) is None
    else:
        assert result.status == "infeasible"
        assert result.reason is not None and result.reason.least_memory_bytes == peaks.min()


def realistic() -> list[Instance]:
    return [
        bert_instance(size, 2**40, batch=batch, nvlink=nvlink, noise=noise, seed=3)
        for size, batch, nvlink, noise in (("1.8b", 128, False, 0.03), ("13b", 128, True, 0.0), ("100b", 512, True, 0.03))
    ]


@pytest.mark.parametrize("instance", realistic(), ids=lambda instance: instance.name)
def test_the_papers_sizes_from_least_memory_to_ample(instance: Instance) -> None:
    """Proven at every limit; more memory never takes longer; the least memory that is reported is the boundary."""
    hopeless = explain(replace(instance, memory_bytes=1))
    assert hopeless is not None
    least, ample = (
        hopeless.least_memory_bytes,
        evaluate(instance, Solution((instance.options[0],) * instance.layers)).peak_bytes,
    )
    times = []
    for limit in np.geomspace(least, ample, 5).astype(np.int64).tolist():
        limited = replace(instance, memory_bytes=limit)
        result = solve(limited, "label-setting")
        assert (result.status, result.gap) == ("optimal", 0.0)
        assert result.solution is not None and not violations(limited, load_solution(result.solution))
        times.append(result.objective)
    assert times == sorted(times, reverse=True) and times[-1] < times[0]
    assert solve(replace(instance, memory_bytes=least - 1), "label-setting").status == "infeasible"
    # All switches on is the least memory of the paper's planner; none may need less than what is proven.
    assert evaluate(instance, Solution((ALL_ON,) * instance.layers)).peak_bytes >= least


def test_a_gap_is_certified_and_cheaper() -> None:
    """Offloads that all cost the same for a byte, so that a great number of choices are nearly as good."""
    instance = alike_offloads(48)
    loose = solve(instance, "label-setting", gap=1e-3)
    exact = solve(instance, "label-setting")
    assert loose.status == exact.status == "optimal" and loose.tolerance == 1e-3
    assert loose.bound is not None and exact.objective is not None and loose.objective is not None
    assert loose.bound <= exact.objective <= loose.objective <= exact.objective * 1.001
    assert loose.statistics["labels"] < exact.statistics["labels"]


def alike_offloads(layers: int) -> Instance:
    """Inputs of every size, at one price of a byte for all layers."""
    base, rng = bert_instance("1.8b", 2**40, batch=128, layers=layers), np.random.default_rng(1)
    sizes = rng.integers(60_000_000, 140_000_000, layers + 1)
    columns = {name: np.zeros(layers, np.int64) + 1000 for name in base.columns}
    columns |= {"forward_ns": columns["forward_ns"] * 2000, "backward_ns": columns["backward_ns"] * 4000}
    columns |= {"forward_without_graph_ns": columns["forward_ns"]}
    columns |= {"input_bytes": sizes[:-1], "output_bytes": sizes[1:], "graph_bytes": 8 * sizes[:-1]}
    columns |= {"offload_hidden_ns": sizes[:-1] // 10, "prefetch_hidden_ns": sizes[:-1] // 10}
    columns |= {"forward_without_graph_peak_bytes": 2 * sizes[1:], "forward_peak_bytes": sizes[1:] + 8 * sizes[:-1]}
    columns |= {"backward_peak_bytes": 2 * sizes[:-1]}
    instance = replace(base, columns=columns)
    least = explain(replace(instance, memory_bytes=1))
    assert least is not None
    return replace(instance, memory_bytes=int(1.15 * least.least_memory_bytes))


def test_the_reason_names_layer_and_pass() -> None:
    reason = explain(bert_instance("13b", 10**9, batch=128))
    assert reason is not None
    assert f"at the backward pass of {reason.peak_layer_name}" in str(reason)
    assert reason.state_bytes + reason.activation_bytes == reason.least_memory_bytes > 10**9
    assert f"at least {enough_bytes(reason.least_memory_bytes)}" in reason.advice[0]


@pytest.mark.parametrize("seed", range(12))
def test_the_reason_names_the_least_peak_of_all_choices(seed: int) -> None:
    instance = random_instance(np.random.default_rng(seed), 1 + seed % 2)
    least = int(all_choices(instance)[1].min())
    reason = explain(replace(instance, memory_bytes=least - 1))
    assert reason is not None and reason.least_memory_bytes == least
    assert explain(replace(instance, memory_bytes=least)) is None
