"""Our simulation of H3T's tables and figures: every method under several limits, the case study, least memory, step
times and the seconds of the solvers.

Readings, and their sources:
- the solver's layers are the Transformer layers (Table 2's N); embedding and head are no part of a problem;
- half precision (Section C.3), of gradients, too;
- attention writes its scores to memory (no FlashAttention, Section C.3) and nothing is dropped out: the layers of BMTrain's
  published examples keep two matrices of scores, ours of PyTorch with dropout three and a mask;
- times are estimates from data sheets (`profiling.estimate`, clusters h3t-*). None of them is fitted to the paper;
- the 2080 Ti have no NVLink: copies and collectives go over PCI-E. The paper gives 15.8 GB/s, and not to how many devices: to
  each, or to 4 (of a CPU) or all 8 together (`sharing`);
- gigabytes are decimal;
- all methods plan with every segment synchronised, as the paper's DP does; the paper's other methods need not.

Limits run from LEAST times the least memory of any choice to what the step needs with nothing on but synchronisation, in a
geometric row: at the first hardly anything fits, from the last on nothing has to be saved.

`python -m benchmarks.studies.h3t_study` computes h3t_study.json anew and prints it (minutes; needs the layer profiles).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import numpy as np
from trainplan.formulations.memory_switches.costs import build
from trainplan.formulations.memory_switches.problem import Instance, Solution, evaluate, load_solution
from trainplan.formulations.memory_switches.segment_columns import undominated
from trainplan.formulations.memory_switches.segments import segments
from trainplan.formulations.plan.switches import ALL_ON, SWITCHES, Switches, SwitchName
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.estimate import estimate_shapes
from trainplan.profiling.imports.source import Source
from trainplan.profiling.models.model import load_model
from trainplan.profiling.profiles import Profile
from trainplan.solvers.chain.label_setting import label_setting
from trainplan.solvers.chain.least_memory import least_memory
from trainplan.solvers.core import method_registry
from trainplan.solvers.core.result import Result
from trainplan.solvers.core.search import Search
from trainplan.solvers.core.solve import solve
from trainplan.solvers.switches.exact import chain_of_columns

from benchmarks.studies.galvatron_study import dump
from tests.helpers.papers.h3t import CASE_SWITCHES, CASES, GB, SEARCHES, SEQUENCE, SETTINGS, Setting
from trainplan.papers import h3t_file

STORED = Path(__file__).with_name("h3t_study.json")
DATA = Path(os.environ.get("TRAINPLAN_DATA") or STORED.parents[2].parent / "shared/data") / "h3t"
FILES = {"n = 12": "bert1.8b_n12_8x2080ti_bs128.json", "n = 48": "bert1.8b_n48_8xA100_bs128.json"}
AMPLE = 2**45  # bytes; nothing in the paper needs as much
LEAST = 1.05
LIMITS = 6
SYNCHRONISED = Switches(segment_sync=True)

PLANNERS = ("h3t-dp", "h3t-greedy", "manual", "random", "random, last")  # the paper's, and random as published
ZERO = ("zero-2", "zero-3")
REPEATS = 3
MODEL_SECONDS = 10.0  # for MILP and CP-SAT
COMPUTATIONS = ("forward_without_graph_ns", "forward_ns", "backward_ns")
COPIES = ("prefetch_parameter_ns", "offload_gradient_ns", "prefetch_hidden_ns", "offload_hidden_ns")
COLLECTIVES = ("all_gather_ns", "reduce_scatter_ns")
PCI_E = "h3t-2080ti-8"
SHARINGS = (1, 4, 8)


# Instances


@dataclass(frozen=True)
class Reading:
    """One reading of what a layer holds. by_unit: attention and feed-forward are layers of their own. ends:
    embedding and head are layers of the chain, too."""

    name: str
    attention: str = "scores"
    by_unit: bool = False
    ends: bool = False


LAYERS, SUBLAYERS = Reading("Transformer layers"), Reading("sub-layers", by_unit=True)
OTHER_READINGS = (
    SUBLAYERS,
    Reading("with dropout", "dropout"),
    Reading("fused attention", "fused"),
    Reading("embedding and head", ends=True),
)


@cache
def profile(model: str, environment: str, rows: int, attention: str) -> Profile:
    chain, cluster = load_model(model, dtype="float16"), load_cluster(environment)
    chain = chain.fused() if attention == "fused" else chain.with_fields(attn_implementation="eager")
    if attention != "dropout":
        chain = chain.with_fields(attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0)
    return estimate_shapes(chain, cluster, [(1, rows)], cluster.devices)


@cache
def instance(model: str, environment: str, batch: int, reading: Reading = LAYERS) -> Instance:
    """A model on an environment, with ample memory."""
    used = profile(model, environment, batch // load_cluster(environment).devices, reading.attention)
    given = build(used, batch, AMPLE, by_unit=reading.by_unit)
    return given if reading.ends else given.part(1, given.layers - 1)


@dataclass(frozen=True)
class Case:
    """A setting, and how many devices share a link to the host where collectives use it, too."""

    setting: Setting
    sharing: int = 1

    @property
    def instance(self) -> Instance:
        """As in `of`."""
        given = of(self.setting)
        return slower(given, COPIES + COLLECTIVES, self.sharing) if self.sharing > 1 else given

    def __str__(self) -> str:
        return f"{self.setting}" + (f", {self.sharing} on a link" if self.sharing > 1 else "")


EVERY: tuple[Case, ...] = tuple(Case(setting) for setting in SETTINGS)
SHARED: tuple[Case, ...] = tuple(Case(setting, 8) for setting in SETTINGS if setting.environment == PCI_E)


def of(setting: Setting, reading: Reading = LAYERS) -> Instance:
    """A setting, with ample memory."""
    return instance(setting.model, setting.environment, setting.batch, reading)


@cache
def from_data(name: str) -> Instance:
    """One of the profiles of DATA, with ample memory."""
    path = DATA / FILES[name]
    return h3t_file.build(Source(str(path), json.loads(path.read_text())), AMPLE)


def within(given: Instance, limit: int) -> Instance:
    return replace(given, memory_bytes=limit)


def slower(given: Instance, columns: tuple[str, ...], factor: int) -> Instance:
    changed = {name: column * factor if name in columns else column for name, column in given.columns.items()}
    return replace(given, columns=changed)


def least_bytes(given: Instance) -> int:
    """The least memory of any choice."""
    return least_memory(chain_of_columns(undominated(segments(given)), AMPLE))[0]


def alike(given: Instance, switches: Switches) -> tuple[int, int]:
    """Time in ns and peak in bytes with the same switches in all layers."""
    found = evaluate(given, Solution((switches,) * given.layers))
    return found.time_ns, found.peak_bytes


def limits(given: Instance, count: int = LIMITS) -> list[int]:
    """In bytes, rising; see above."""
    return [round(limit) for limit in np.geomspace(LEAST * least_bytes(given), alike(given, SYNCHRONISED)[1], count)]


# Methods


def run(given: Instance, method: str, **options: Any) -> Result:
    """A method by its name in PLANNERS, or of the registry; checked by the problem's own evaluation."""
    name, _, answer = method.partition(", ")
    options |= {"answer": answer} if answer else {}
    found = solve(given, name, explained=False, **options)
    assert found.status != "failed", found.message
    return found


def summary(found: Result) -> dict[str, Any] | None:
    """Time, peak and what the method itself proves of its answer; None where it has none."""
    if found.objective is None:
        return None
    assert found.evaluation is not None
    proves = method_registry.method("memory-switches", found.method).proves
    return {
        "status": found.status,
        "time_ns": found.objective,
        "bound_ns": found.bound if proves else None,
        "peak_bytes": found.evaluation["peak_bytes"],
    }


def shares(found: Result) -> dict[str, float] | None:
    """The share of layers that have a switch on, for every switch."""
    if found.solution is None:
        return None
    layers = load_solution(found.solution).switches
    return {name: round(sum(getattr(s, name) for s in layers) / len(layers), 4) for name in SWITCHES}


def fewest(given: Instance, switch: SwitchName, state: bool, optimal: bool = True) -> int:
    """The least number of layers with a switch on (state) or off, among all optimal choices, or all that fit: of a
    problem whose time counts such layers, after nanoseconds that are worth more than all of them."""
    chain, worth = segments(given), given.layers + 1
    counted = np.array([getattr(option, switch) == state for option in chain.options], np.int64)[:, None]
    weighed = replace(chain, time_ns=chain.time_ns * (worth * optimal) + counted)
    whole = chain_of_columns(undominated(weighed), given.memory_bytes)

    def objective(choice: Any) -> int | None:
        taken = np.array([choice])
        return int(whole.times(taken)[0]) if int(whole.peaks(taken)[0]) <= whole.memory_bytes else None

    search = Search(objective)
    outcome = label_setting(whole, search)
    assert search.objective is not None and outcome.bound is not None and search.objective <= outcome.bound
    return search.objective % worth


def optimal_shares(given: Instance, switch: SwitchName) -> tuple[float, float]:
    """The least and the largest share of layers that have a switch on among all optimal choices."""
    counts = fewest(given, switch, True), given.layers - fewest(given, switch, False)
    return round(counts[0] / given.layers, 4), round(counts[1] / given.layers, 4)


# 1. The two profiles of the notes, at three limits


def methods_on_data(name: str) -> dict[str, Any]:
    """Every method at a tight, a medium and an ample limit."""
    given, found = from_data(name), {}
    for kind, limit in zip(("tight", "medium", "ample"), limits(given, 3), strict=True):
        problem = within(given, limit)
        methods = {method: summary(run(problem, method)) for method in ("label-setting", *PLANNERS, *ZERO)}
        methods |= {method: summary(run(problem, method, time_limit=MODEL_SECONDS)) for method in ("milp", "cpsat")}
        found[kind] = {"limit_bytes": limit, "methods": methods}
    return found


# 2. Table 6


def cases(sharing: int) -> dict[str, tuple[Instance, str]]:
    """The instance of every case, and the paper's method."""
    (setting,) = (setting for setting in SETTINGS if (setting.model, setting.batch) == ("bert-1.8b", 128))
    given = Case(setting, sharing).instance
    default = within(given, 8 * GB)
    found = {
        "default": (default, "h3t-dp"),
        "slow PCI-E": (slower(default, COPIES + COLLECTIVES, 10), "h3t-dp"),
        "slow FPU": (slower(default, COMPUTATIONS, 10), "h3t-dp"),
        "25 GB": (within(given, 25 * GB), "h3t-dp"),
        "greedy": (default, "h3t-greedy"),
    }
    assert list(found) == list(CASES)
    return found


def case(sharing: int, name: str) -> dict[str, Any]:
    """Shares of the layers with each switch on: of the paper's method; and, of the cases of its DP, of the exact one, the least
    and the most among all optimal choices, and the least share with recomputation of any choice that fits."""
    given, method = cases(sharing)[name]
    planned = run(given, method)
    found: dict[str, Any] = {"planned": {**(summary(planned) or {}), "on": shares(planned)}}
    if method == "h3t-dp":
        best = run(given, "label-setting")
        among = {switch: list(optimal_shares(given, switch)) for switch in CASE_SWITCHES}
        found["optimum"] = {**(summary(best) or {}), "on": shares(best), "among optima": among}
        found["least ckpt"] = round(fewest(given, "ckpt", True, optimal=False) / given.layers, 4)
    return found


# 3. Table 3


def memory(setting: Setting) -> dict[str, Any]:
    """Bytes by reading."""
    return {reading.name: least(of(setting, reading)) for reading in (LAYERS, *OTHER_READINGS)}


def least(given: Instance) -> dict[str, int]:
    """Bytes with all switches on, and the least of any choice."""
    return {"all on": alike(given, ALL_ON)[1], "least": least_bytes(given)}


def gpt3() -> dict[str, Any]:
    """GPT-3 on 64 A100, batch 512, of 512 tokens."""
    environment, batch = "h3t-a100-64", 512
    chain = load_model("gpt3-175b", dtype="float16").with_fields(sequence=SEQUENCE, attn_implementation="eager")
    chain = chain.with_fields(attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)
    cluster = load_cluster(environment)
    used = estimate_shapes(chain, cluster, [(1, batch // cluster.devices)], cluster.devices)
    found: dict[str, Any] = {}
    for reading in (LAYERS, SUBLAYERS):
        whole = build(used, batch, AMPLE, by_unit=reading.by_unit)
        given = whole.part(1, whole.layers - 1)
        found[reading.name] = {**least(given), "time_ns": alike(given, ALL_ON)[0]}
    return found


# 4. Figure 6


def under_limits(which: Case) -> dict[str, Any]:
    """The paper's methods and the optimum, by limit in bytes."""
    given, found = which.instance, {}
    for limit in limits(given):
        problem = within(given, limit)
        found[str(limit)] = {method: summary(run(problem, method)) for method in ("label-setting", *PLANNERS)}
    return found


# 5. Table 1


def steps(which: Case) -> dict[str, Any]:
    """At the paper's limit: its methods, all switches on, and the optimum."""
    given = within(which.instance, which.setting.limit_bytes)
    time_ns, peak_bytes = alike(given, ALL_ON)
    return {
        "dp": summary(run(given, "h3t-dp")),
        "greedy": summary(run(given, "h3t-greedy")),
        "random": summary(run(given, "random")),
        "all on": {"time_ns": time_ns, "peak_bytes": peak_bytes},
        "optimum": summary(run(given, "label-setting")),
        **{method: summary(run(which.instance, method)) for method in ZERO},  # with ample memory
    }


def reached(which: Case, step_s: float) -> float:
    """The share of its peak that a device reaches in the layers' products alone, in a step that recomputes all layers."""
    setting, cluster = which.setting, load_cluster(which.setting.environment)
    chain = load_model(setting.model, dtype="float16")
    parts = [unit.sublayer for unit in chain.units[1:-1]]
    products = sum(one.flops for part in parts for one in part.operators(setting.batch // cluster.devices, 1) if one.m)
    return 4 * products / (step_s * cluster.used_kinds[0].flops_per_s["float16"])


# 6. Table 5


def searches() -> dict[str, Any]:
    """Seconds of the solvers, one after the other: the least of some runs."""
    found: dict[str, Any] = {}
    for row in SEARCHES:
        given = within(instance(row.model, "h3t-a100-64", row.batch), row.limit_gb * GB)
        found[str(row)] = {}
        for method in ("h3t-dp", "label-setting", "h3t-greedy", "random"):
            runs = [run(given, method) for _ in range(REPEATS)]
            seconds = min(one.build_seconds + one.solve_seconds for one in runs)
            found[str(row)][method] = {"seconds": round(seconds, 2), "time_ns": runs[0].objective}
    return found


# All of it


def load_study() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(STORED.read_text())
    return found


def compute(processes: int = 2) -> dict[str, Any]:
    found: dict[str, Any] = {"search": searches()}  # first, and alone: it is timed
    with Pool(processes) as pool:

        def by_key(part: Callable[..., Any], keys: Any) -> dict[str, Any]:
            return {str(key): row for key, row in zip(keys, pool.map(part, keys, chunksize=1), strict=True)}

        found["data"] = by_key(methods_on_data, list(FILES))
        for sharing in SHARINGS:
            found[f"cases, {sharing} on a link"] = by_key(partial(case, sharing), list(CASES))
        found["memory"] = by_key(memory, SETTINGS) | {"gpt3": gpt3()}
        found["limits"] = by_key(under_limits, (*EVERY, *SHARED))
        found["steps"] = by_key(steps, (*EVERY, *SHARED))
    return found


if __name__ == "__main__":
    from tests.helpers.papers.h3t_tables import report

    STORED.write_text(dump(compute(int(sys.argv[1]) if len(sys.argv) > 1 else 2)))
    print(report(load_study()))
