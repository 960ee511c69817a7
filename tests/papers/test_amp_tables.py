"""AMP's Tables 3 to 11 against our model, and what lies past the paper. `pytest -s tests/papers/test_amp_tables.py` prints all.

What falls short, and why:
- Rows with tmp 2 or large micro-batches. By the roofline half a layer takes half the time, and a micro-batch of four samples
  nearly four times that of one. The authors' runs show neither: in Table 6, from mbs 2 to 4, pp 2 takes 0.26 s more and tmp 2
  0.05 s less. Estimated times keep the ranks, for with them synchronisation decides; one factor on all layer times brings the
  seconds near (1.20 to 1.63 in the homogeneous setting) and their ranks are lost.
- The mixed cluster's devices. The authors' profile has a V100 1.4 times as fast as a T4, the data sheets 2.6
  (`test_published_profile`): per-device times bring us more than they would have brought them.
- TransGAN's blocks. Those of hidden 1024 have 81 tokens, and take 28 times the roofline's time in the authors' profile; those
  of hidden 16 four times. With the measured times every cut of Table 11 comes out within a layer.
- GPT-2's cuts. Our head takes the time of more than two blocks. In Table 7 a stage of a block and the head stands next to
  stages of two blocks, so theirs takes no more than one.
- Table 10's second row: 1.99 s with mbs 2 for the cuts that Table 5 has at 1.25 s with mbs 1. We know no cause.
- With pp 1, mbs 2 GPT-2 was out of memory on 16 GiB (by the authors' logs). Ours needs 13.7 GiB (8 with fused attention, which
  they had not), without CUDA's context and DeepSpeed's buckets: on devices of 16 GiB our Megatron takes dp 16 there, and the
  paper's cannot.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import combinations, pairwise

import numpy as np
import pytest
from trainplan.formulations.cluster_strategy.instance import Degrees
from trainplan.formulations.cluster_strategy.problem import Solution, evaluate, load_solution, violations
from trainplan.solvers.cluster.amp import assigned
from trainplan.solvers.cluster.placements import node_order
from trainplan.solvers.core.solve import solve

from benchmarks.studies import amp_study as study
from benchmarks.studies.galvatron_study import spearman
from tests.helpers.papers.amp import (
    BEST_AND_MEAN,
    CANDIDATES,
    OPTIMIZATION_S,
    PUBLISHED_DP16,
    PUBLISHED_PREDICTIONS,
    PUBLISHED_TRANSGAN_US,
    SETTINGS,
    SPEEDUPS,
    V100_SHARE,
    Setting,
    candidates,
)

STUDY = study.load_study()
NAMES = tuple(SETTINGS)
PAIRS = [(setting.name, reading.name) for setting in SETTINGS.values() for reading in study.readings(setting)]

# Reached: rank correlation, typical factor to the listed seconds, place of the fastest listed candidate in our order.
REACHED = {
    ("homogeneous", "estimated"): (0.91, 2.24, 2),
    ("homogeneous", "calibrated"): (0.16, 1.17, 5),
    ("heterogeneous cluster", "estimated"): (0.88, 2.26, 1),
    ("heterogeneous cluster", "calibrated"): (0.83, 1.12, 2),
    ("heterogeneous model", "estimated"): (0.71, 3.24, 3),
    ("heterogeneous model", "calibrated"): (0.59, 1.22, 3),
    ("heterogeneous model", "imported"): (0.19, 1.36, 1),
}
POOLED = {"estimated": 0.76, "calibrated": 0.69}

# Cuts within one layer of the paper's, of all.
NEAR = {
    ("homogeneous", "estimated"): (12, 27),
    ("homogeneous", "calibrated"): (12, 27),
    ("heterogeneous cluster", "estimated"): (14, 35),
    ("heterogeneous cluster", "calibrated"): (14, 35),
    ("heterogeneous model", "estimated"): (29, 43),
    ("heterogeneous model", "calibrated"): (29, 43),
    ("heterogeneous model", "imported"): (43, 43),
}


def of(pair: tuple[str, str]) -> tuple[Setting, study.Reading]:
    return SETTINGS[pair[0]], study.READINGS[pair[1]]


# The tables


@pytest.mark.parametrize("name", NAMES)
def test_tables_agree_with_themselves(name: str) -> None:
    """Cuts rise within the chain, degrees and batch divide, and the best rows are the best of Tables 3 to 5 and of the text."""
    setting = SETTINGS[name]
    for candidate in candidates(setting):
        borders = [0, *candidate.cuts, setting.layers]
        assert borders == sorted(set(borders))
        assert candidate.pp * candidate.dp * candidate.tmp == 16
        assert setting.batch % (candidate.dp * candidate.mbs) == 0
        assert candidate.printed_pp == (candidate.pp // 2 if candidate.table == 10 else None)
    megatron, amp = (min(candidate.seconds for candidate in CANDIDATES[table]) for table in setting.tables)
    assert (megatron, amp) == (BEST_AND_MEAN[name]["megatron"][0], BEST_AND_MEAN[name]["amp"][0])
    if name in SPEEDUPS:
        assert megatron / amp == pytest.approx(SPEEDUPS[name], abs=0.005)


@pytest.mark.parametrize("name", NAMES)
def test_chains_are_the_papers(name: str) -> None:
    """All of our units' times and bytes are on the paper's layers; Megatron's listed cuts are ours, counted in blocks."""
    setting, reading = of((name, "estimated"))
    given, units = study.instance(setting, reading), study.by_unit(name, True, False)
    blocks = study.block_layers(setting)
    assert given.layers == setting.layers
    assert len(blocks) == 24
    assert (given.reductions[blocks] == 4).all()
    for key, table in given.tables.items():
        assert (table.layer_ns.sum(axis=1) == units.tables[key].layer_ns.sum(axis=1)).all()
        assert table.kept_bytes.sum() == units.tables[key].kept_bytes.sum()
    for tmp, shard in given.shards.items():
        assert shard.gradient_bytes.sum() == 2 * units.shards[tmp].gradient_bytes.sum()
    for candidate in CANDIDATES[setting.tables[0]]:
        own = study.solution(given, candidate)
        cuts = assigned(given, own.degrees, own.placement, "uniform-layers").cuts
        for listed, ours in zip(candidate.cuts, cuts, strict=True):
            assert sum(block < listed for block in blocks) == sum(block < ours for block in blocks)
    assert len(PUBLISHED_TRANSGAN_US) == SETTINGS["heterogeneous model"].layers


@pytest.mark.parametrize("name", NAMES)
def test_listed_candidates_fit(name: str) -> None:
    """They ran, so they fit."""
    setting, reading = of((name, "estimated"))
    given = study.instance(setting, reading, within_memory=True)
    for candidate in candidates(setting):
        assert violations(given, study.solution(given, candidate)) == []


def test_pure_data_parallelism_fills_the_memory() -> None:
    """As shipped, the models count unfused attention: what ran out of memory leaves no room for context and buckets here."""
    peaks = {}
    for name, most in (("amp-gpt2", 2), ("amp-transgan", 4)):
        given = study.mixed(name, 16 * most)
        shares = given.even_shares(16, most)
        assert shares is not None
        peaks[name] = evaluate(given, Solution(Degrees(1, 16, 1, most), node_order(given), (), shares)).peak_bytes
    assert 13.5 * 2**30 < peaks["amp-gpt2"] < 14 * 2**30
    assert peaks["amp-transgan"] > 16 * 2**30


# Seconds


@pytest.mark.parametrize("kind", study.SLOWER)
def test_calibration(kind: str) -> None:
    assert study.fitted(kind) == pytest.approx(study.SLOWER[kind], rel=1e-3)


@pytest.mark.parametrize("pair", PAIRS, ids=": ".join)
def test_seconds(pair: tuple[str, str]) -> None:
    """Rank correlation with the listed seconds and the distance from them, row by row."""
    found = study.score(*of(pair))
    print(f"\n{pair[0]}, layer times {pair[1]}")
    for candidate, seconds in found.rows:
        mark = " (calibrates)" if candidate in study.CALIBRATION.values() else ""
        print(f"  {candidate!s:<46} listed {candidate.seconds:.2f} s, ours {seconds:.2f} s{mark}")
    print(
        f"  Spearman {found.correlation:.3f}, typically a factor {found.apart:.2f} apart, the fastest listed one is our "
        f"number {found.best_rank} of {len(found.rows)}"
    )
    correlation, apart, best = REACHED[pair]
    assert found.correlation >= correlation
    assert found.apart <= apart
    assert found.best_rank <= best


@pytest.mark.parametrize("name", POOLED)
def test_seconds_of_all_settings(name: str) -> None:
    pooled = study.pooled(study.READINGS[name])
    print(f"\nall settings together, layer times {name}: Spearman {pooled:.3f}")
    assert pooled >= POOLED[name]


def test_predictions_that_the_authors_published() -> None:
    """AMP's own predictions on the rows that it published them for, with measured layer times, against ours without any."""
    for name in ("homogeneous", "heterogeneous cluster"):
        setting, reading = of((name, "estimated"))
        theirs = [value for table in setting.tables for value in PUBLISHED_PREDICTIONS[table]]
        rows = zip(study.score(setting, reading).rows, theirs, strict=True)
        kept = [(candidate.seconds, ours, own) for (candidate, ours), own in rows if own is not None]
        listed, ours, own = zip(*kept, strict=True)
        print(f"\n{name}, {len(kept)} rows: AMP's Spearman {spearman(own, listed):.3f}, ours {spearman(ours, listed):.3f}")
        assert spearman(ours, listed) >= {"homogeneous": 0.78, "heterogeneous cluster": 0.8}[name]


def test_other_readings() -> None:
    """None changes the picture: the rank correlations of estimated times stay between 0.5 and 1."""
    for setting in SETTINGS.values():
        print()
        for reading in study.readings(setting, study.OTHER_READINGS):
            found = study.score(setting, reading)
            print(f"{setting.name}, {reading.name}: Spearman {found.correlation:.3f}, a factor {found.apart:.2f} apart")
            assert found.correlation >= (0.42 if reading.imported else 0.5)


def test_published_profile() -> None:
    """By the authors' predictions of pp 1 for one sample's layers, a V100 is 1.4 times as fast as a T4, not 2.6 times."""
    parameters = 1024 * 52256 + 24 * 12 * 1024**2
    sums = []
    for seconds, bits in PUBLISHED_DP16.values():
        synchronised = 2 * 15 / 16 * parameters * 32 / bits
        sums.append((seconds - synchronised) / 2)
    t4, mean = sums
    v100 = (mean - (1 - V100_SHARE) * t4) / V100_SHARE
    ours = study.instance(*of(("heterogeneous cluster", "estimated"))).tables[1, 1].layer_ns.sum(axis=1) / 1e9
    print(f"\none sample of GPT-2: published T4 {t4:.3f} s, V100 {v100:.3f} s; ours {ours[1]:.3f} s, {ours[0]:.3f} s")
    assert t4 / v100 == pytest.approx(1.4, abs=0.05)
    assert ours[1] / ours[0] == pytest.approx(2.6, abs=0.1)
    blocks = np.array(PUBLISHED_TRANSGAN_US)[[3, 41]] * 1000
    gpt2 = study.instance(*of(("homogeneous", "estimated"))).tables[1, 1].layer_ns[0]
    assert gpt2[28] > 2 * gpt2[2]
    factors = blocks / study.instance(*of(("heterogeneous model", "estimated"))).tables[1, 1].layer_ns[0][[3, 41]]
    print(f"TransGAN's blocks on V100: published {factors[0]:.1f} (hidden 1024) and {factors[1]:.1f} times ours (hidden 16)")
    assert factors[0] > 5 * factors[1]


# Cuts


@pytest.mark.parametrize("pair", PAIRS, ids=": ".join)
def test_cuts(pair: tuple[str, str]) -> None:
    """The paper's cuts against AMP's method on our layer times, per-device times, and the least Eq. 4."""
    print(f"\n{pair[0]}, layer times {pair[1]}")
    near = total = 0
    for found in study.cuts_of(*of(pair)):
        print(f"  {found.candidate}: {found.near()} of {len(found.paper[0])} within one layer")
        for reported in ("paper", "amp", "device", "optimum"):
            cuts, time_ns = getattr(found, reported)
            print(f"    {reported:<8}{time_ns / 1e9:7.3f} s  {list(cuts)}")
        near, total = near + found.near(), total + len(found.paper[0])
        assert found.optimum[1] <= min(found.paper[1], found.amp[1], found.device[1])
    print(f"  {near} of {total} cuts within one layer of the paper's")
    assert total == NEAR[pair][1]
    assert near >= NEAR[pair][0]


@pytest.mark.parametrize("index", (0, 1, 3))
def test_least_time_is_the_least(index: int) -> None:
    """Against all cuts into two and four stages."""
    setting, reading = of(("homogeneous", "estimated"))
    given, candidate = study.instance(setting, reading), CANDIDATES[7][index]
    placed = given.placed(study.solution(given, candidate).degrees, range(16))
    sync, more, times = cache(placed.sync_ns), given.batch // (candidate.dp * candidate.mbs) - 1, []
    for cuts in combinations(range(1, given.layers), candidate.pp - 1):
        stages, spans = placed.stage_ns(cuts)[:, 0], pairwise([0, *cuts, given.layers])
        moved = sum(placed.transfer_ns[i, 0, cut - 1] for i, cut in enumerate(cuts))
        last = max(sync(i, first, after - 1) for i, (first, after) in enumerate(spans))
        times.append(more * stages.max() + stages.sum() + moved + last)
    found = study.solution(given, candidate, study.least_time(given, candidate))
    assert evaluate(given, found).time_ns == min(times)


@pytest.mark.parametrize(("name", "index"), (("homogeneous", 1), ("heterogeneous model", 0)))
def test_the_papers_table_gives_the_same(name: str, index: int) -> None:
    """Eq. 5 of AMP's own dynamic program is that of the fast method."""
    setting, reading = of((name, "estimated"))
    given = study.instance(setting, reading)
    own = study.solution(given, CANDIDATES[setting.tables[1]][index])
    plans = [assigned(given, own.degrees, own.placement, method) for method in ("exact", "amp-dp")]
    fast, table = (max(evaluate(given, plan).pipelines_ns) for plan in plans)
    assert fast == table


# Methods


def test_stored_methods_are_ours() -> None:
    """One setting's planners, computed again."""
    pair = ("heterogeneous model", "imported")
    for name, seconds in study.methods(*of(pair)).items():
        assert seconds == pytest.approx(STUDY["methods"][", ".join(pair)][name])


@pytest.mark.parametrize("pair", PAIRS, ids=": ".join)
def test_methods(pair: tuple[str, str]) -> None:
    """Tables 3 to 5: best and mean candidate of each planner; AMP's speedup over Megatron."""
    ours, printed = STUDY["methods"][", ".join(pair)], BEST_AND_MEAN[pair[0]]
    print(f"\n{pair[0]}, layer times {pair[1]}")
    for name, (best, mean) in ours.items():
        listed = "the paper {:.2f}, {:.2f} s".format(*printed[name]) if name in printed else ""
        print(f"  {name:<20} best {best:.3f} s, mean {mean:.3f} s  {listed}")
    speedup, listed = ours["megatron"][0] / ours["amp"][0], printed["megatron"][0] / printed["amp"][0]
    print(f"  AMP over Megatron {speedup:.2f}, in the paper {listed:.2f}")
    assert ours["amp per device"][0] <= ours["amp"][0] <= ours["megatron"][0]
    assert ours["amp"][1] < ours["megatron"][1]
    assert ours["amp"][1] < ours["random"][1]
    if pair[1] != "estimated":
        assert abs(math.log(speedup / listed)) < math.log(1.15)


def test_strategies_are_as_many() -> None:
    """The 53 strategies of the authors' logs for GPT-2, with tmp within a node, and the 65 iterations of the text for TransGAN,
    whose head of three channels is whole on each of four ranks."""
    for name, count in (("homogeneous", 53), ("heterogeneous cluster", 53), ("heterogeneous model", 65)):
        given = study.instance(*of((name, "estimated")))
        assert sum(degrees.tmp <= 4 for degrees in given.degrees()) == count


def test_table_2() -> None:
    """The whole of Algorithm 1 for GPT-2 on 4 x 4 devices, next to the paper's seconds; benchmarks/ has the other sizes."""
    result = solve(study.instance(*of(("homogeneous", "estimated"))), "amp")
    print(f"\n4 x 4 devices: {result.solve_seconds:.2f} s, in the paper {OPTIMIZATION_S[4]} s")
    assert result.status == "feasible"


def test_uniform_assignments() -> None:
    """Table 5: AMP's best strategy with uniform layers is slower, with uniform parameters slower yet."""
    printed = BEST_AND_MEAN["heterogeneous model"]
    fastest = printed["amp"][0]
    for reading in study.readings(SETTINGS["heterogeneous model"]):
        found = study.assignments(SETTINGS["heterogeneous model"], reading)
        print(f"\nlayer times {reading.name}, over AMP's assignment ({found['exact']:.3f} s):")
        for rule in ("uniform-layers", "uniform-parameters"):
            print(f"  {rule:<20} {found[rule] / found['exact']:.2f}, in the paper {printed[rule][0] / fastest:.2f}")
        assert found["exact"] < found["uniform-layers"] < found["uniform-parameters"]


# Mixed devices


@pytest.mark.parametrize("case", study.CASES, ids=study.label)
def test_mixed_devices(case: tuple[str, int, int | None]) -> None:
    """On the mixed cluster the exact placement is never worse than the heuristic; stored solutions are what they say."""
    found = STUDY["steps"][study.label(case)]
    times = {name: row["time_ns"] for name, row in found.items()}
    print(f"\n{study.label(case)}")
    for name, row in found.items():
        bound = f", bound {row['bound_ns'] / 1e6:.3f}" if row["bound_ns"] else ""
        chosen = {key: row["solution"][key] for key in ("pp", "dp", "tmp", "mbs", "cuts", "shares")}
        print(f"  {name:<10}{row['time_ns'] / 1e6:9.3f} ms {row['status']}{bound}, {row['seconds']:.1f} s  {chosen}")
        given = study.mixed(*case, name == "shared")
        choice = load_solution(row["solution"])
        assert violations(given, choice) == []
        assert evaluate(given, choice).time_ns == row["time_ns"]
        assert row["bound_ns"] is None or row["bound_ns"] <= row["time_ns"]
    assert times["shared"] <= times["placed"] <= times["heuristic"] <= times["blind"]


def test_what_each_step_brings() -> None:
    """Exact placement beats the heuristic in every case here, proven; uneven shares pay where the batch has few divisors.

    Elsewhere they bring nothing, proven, too: the four T4 are a node, and so one stage with fewer layers.
    """
    print("\nstep time saved on the step before:")
    for key, found in STUDY["steps"].items():
        times = [found[name]["time_ns"] for name in study.STEP_NAMES]
        saved = dict(zip(study.STEP_NAMES[1:], (1 - after / before for before, after in pairwise(times)), strict=True))
        print(f"  {key:<26}" + ", ".join(f"{name} {share:6.1%}" for name, share in saved.items()))
        assert saved["placed"] > 0
        assert all(found[name]["status"] == "optimal" for name in ("placed", "shared"))
        assert (saved["shared"] > 0) == (key in ("amp-gpt2, batch 50", "gpt2, batch 31"))


@pytest.mark.parametrize("name", study.STEP_NAMES)
def test_stored_steps_are_ours(name: str) -> None:
    """One case, computed again: the one that every step is better in."""
    case = ("gpt2", 31, None)
    result, stored = study.step(*case, name), STUDY["steps"][study.label(case)][name]
    assert (result.objective, result.status) == (stored["time_ns"], stored["status"])
