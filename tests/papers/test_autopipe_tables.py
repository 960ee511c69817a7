"""AutoPipe's tables and figures against our simulation. `pytest -s tests/papers/test_autopipe_tables.py` prints all.

What comes out without any fitting: AutoPipe's plan of GPT-2 345M on 2 stages, 13 and 11 layers; Table II's partition 4 as
AutoPipe's choice and the proven optimum of 4 stages; what planner, slicer and both bring over Megatron-LM, within a few
hundredths, but 1.37 for 345M on 12 stages where the paper's largest is 1.30; with the plans that the text tells of, how much
longer DAPPLE and Piper take for a micro-batch on 4 GPUs, within 0.05.

What falls short, and why:
- Seconds. A 3090 takes twice what the roofline says in half precision (a factor of 1.977, fitted to one cell). With that
  factor times are typically 9 % off; 1.3B's come out up to 22 % too long, for its larger products reach more of the peak.
- The plans of DAPPLE and Piper. By its published latency DAPPLE takes data parallelism where the paper has 2 stages, out of
  memory with Mbs 32; Piper by its published objective takes 2 stages of equal replicas, as AutoPipe does, where the paper has
  4 to 6 stages. So the paper's planners ran with other profiles or in another form; `told` takes its word.
- AutoPipe takes 2 stages for 1.3B, not 4: they fit our memory, with 20.2 of 24 GiB. And DAPPLE's, out of memory in the paper,
  fit with 19.1. Ours counts 16 bytes a parameter and logits in half precision; Megatron-LM holds 18 or 20 (as the notes on its
  distributed optimizer have it), and logits in single precision, in addition to CUDA's context. 762M with Mbs 32, out of memory
  there, takes 96 % of the memory with us.
- Cuts on 8 GPUs, which the text does not tell. The printed times are not those of the least of their objectives:
  DAPPLE's are of 4 layers on the first GPU, not 3 (`test_dapple_on_8_gpus`); 1.3B with Piper's 5 stages is as fast as
  AutoPipe's 4 with us, or faster, and 7 to 14 % slower in the paper. All five wrong orders are on 8 GPUs.
- Balance on 8 GPUs: AutoPipe's deviation is 0.8 % of its stage times, so small that ratios to it say little.
- Figure 9's speed-ups grow with the micro-batch. Ours do not: by the roofline all times grow alike.
- Slicing two stages lengthens the paper's step, by what more messages cost. Sending costs nothing here.
- More than 4 stages: a link between two nodes is costed as if all four GPUs of a node sent at once, and all cuts as the
  slowest. Interleaving does not halve messages, so its start-up on 12 stages is 0.62 of Megatron's.
- Search time. AutoPipe's is a half to a sixth of our Piper's in these settings, not a tenth: ours computes all ends of a stage
  at once, in arrays.
- Figure 11's values are lost. What can be tested is that our times rise with the largest stage and with the imbalance.
"""

from __future__ import annotations

import time

import numpy as np
import pytest
from trainplan.formulations.pipeline_partition.problem import Solution, evaluate, violations
from trainplan.profiling.models.model import load_model

from benchmarks.studies import autopipe_study as study
from benchmarks.studies.galvatron_study import spearman
from tests.helpers.papers.autopipe import (
    ALGORITHMS,
    AUTOPIPE_SECOND_STAGE,
    BALANCE,
    BERT_12_STAGES,
    DAPPLE_REPLICAS_OF_16,
    MODELS,
    OUT_OF_MEMORY_FIGURE_9,
    OVER_DAPPLE,
    OVER_PIPER,
    OVER_PIPER_LARGE,
    PARTITIONS,
    PLANNERS,
    SETTINGS,
    SPEEDUPS_FIGURE_9,
    SPEEDUPS_FIGURE_10,
    STAGES,
    STARTUP,
    Setting,
)
from trainplan.papers.replicated import Replicated, autopipe_plan, dapple_plan, piper_plan

STUDY = study.load_study()
BIG = SETTINGS[2:4]  # GPT-2 345M, Mbs 32

# Reached: median of ours over the printed times; typical factor apart; pairs in the printed order, in the other, equal with us.
REACHED = {
    "planned": (0.53, 2.0, {"agree": 10, "differ": 2, "equal": 11}),
    "told": (0.54, 1.91, {"agree": 25, "differ": 5, "equal": 6}),
    "told, calibrated": (1.05, 1.10, {"agree": 25, "differ": 5, "equal": 6}),
}
# What a micro-batch more takes, over AutoPipe's: at most so far from the printed ratio, in the order of SETTINGS.
APART = {"D": (0.06, None, 0.01, 0.14, None, None), "P": (0.03, 0.01, 0.01, 0.07, 0.02, 0.16)}


# The tables


def test_tables_agree_with_themselves() -> None:
    """Partitions have all layers; the text's speed-ups are those of the tables."""
    for layers in PARTITIONS.values():
        assert sum(layers) == MODELS["gpt2-345m"][0]
    ratios: dict[str, list[float]] = {"D": [], "P": [], "P, 1.3B": []}
    for setting in SETTINGS:
        for algorithm in ("D", "P"):
            for column in range(3):
                printed, ours = (setting.milliseconds(of, column) for of in (algorithm, "A"))
                if printed and ours and setting.table == 4:
                    if setting.model == "gpt2-345m":
                        ratios[algorithm].append(printed / ours)
                    elif setting.gpus == 8:
                        ratios["P, 1.3B"].append(printed / ours)
    assert max(ratios["D"]) == pytest.approx(OVER_DAPPLE, abs=0.005)
    assert max(ratios["P"]) == pytest.approx(OVER_PIPER, abs=0.005)
    assert (min(ratios["P, 1.3B"]), max(ratios["P, 1.3B"])) == pytest.approx(OVER_PIPER_LARGE, abs=0.005)


@pytest.mark.parametrize("name", MODELS)
def test_models_are_the_papers(name: str) -> None:
    """Table I: embedding, two sub-layers a layer, head; as many parameters, by a twentieth."""
    layers, hidden, millions = MODELS[name]
    given, model = study.instance(name, 4, 4, 8), load_model(name)
    assert given.sublayers == 2 * layers + 2
    assert model.units[1].sublayer.hidden == hidden
    parameters = sum(unit.sublayer.parameter_count(1) for unit in model.units) - model.tied_elements
    print(f"\n{name}: {parameters / 1e6:.0f} M parameters, printed {millions}")
    assert parameters / 1e6 == pytest.approx(millions, rel=0.05)


# The readings


def test_calibration() -> None:
    assert study.fitted() == pytest.approx(study.SLOWER, rel=1e-3)


def test_single_precision_is_not_what_ran() -> None:
    """Plans that ran do not fit in single precision, and 1.3B would reach 71 % of the peak in products alone."""
    single = study.OTHER_READINGS[0]
    assert single.dtype == "float32"
    for setting in BIG:
        cell = study.outcome(setting, "A", 0, study.plan_of_text(setting, "A", 0, single), single)
        assert cell["failure"] == "OOM"
    setting = SETTINGS[4]
    slope = setting.slope_ms("A")
    assert slope is not None
    shares = {peak: study.flops_share(setting.model, setting.mbs, slope, setting.gpus, peak) for peak in (35.6e12, 71e12)}
    print(f"\n{setting}: a GPU reaches {shares[35.6e12]:.0%} of the single-precision peak, {shares[71e12]:.0%} of the half one")
    assert shares[35.6e12] == pytest.approx(0.712, abs=0.005)


def test_other_readings() -> None:
    """Among all, ours leaves AutoPipe's stage 2 with the paper's layers, and is nearest to Figure 9's planner (at most
    1.10)."""
    print(f"\nGPT-2 345M: layers on AutoPipe's stage 2 of 2 (paper {AUTOPIPE_SECOND_STAGE}), and the planner over Megatron-LM")
    largest = {}
    for reading in (study.ESTIMATED, *study.OTHER_READINGS):
        given = study.instance("gpt2-345m", 32, 4, 8, reading)
        times = given.forward_ns + given.backward_ns
        layers = 24 - (study.plan_of_text(SETTINGS[2], "A", 0, reading).cuts[0] - 1) / 2
        largest[reading.name] = study.speedups("gpt2-345m", 32, 4, 8, reading)["planner"]
        head = times[-1] / (times[1] + times[2])
        print(f"  {reading.name:<16} {layers:4.1f}, {largest[reading.name]:.3f}; the head takes {head:.2f} of a layer")
        assert (layers == AUTOPIPE_SECOND_STAGE) == (reading.name != "fused attention")
    assert largest["estimated"] == pytest.approx(min(largest.values()), abs=0.001)


# 1. Gaps


@pytest.mark.parametrize("name", MODELS)
def test_gaps(name: str) -> None:
    """Every optimum is proven; no method is below it. AutoPipe's heuristic against it for 2 to 12 stages, m = 2p."""
    methods = (*study.METHODS, "autopipe, published")
    gaps: dict[str, list[float]] = {method: [] for method in methods}
    print(f"\n{name}, above the proven optimum:")
    for p in study.DEPTHS:
        row = STUDY["gaps"][f"{name}, p {p}"]
        assert row["status"] == "optimal"
        for method in methods:
            gaps[method].append(row[method] / row["optimum"] - 1)
        reported = ", ".join(f"{method} {gaps[method][-1]:.2%}" for method in methods)
        print(f"  p {p:2}: {row['optimum'] / 1e6:9.3f} ms; {reported}")
    assert min(map(min, gaps.values())) >= 0
    assert max(gaps["autopipe"]) < (0.001 if name in ("gpt2-345m", "gpt2-1.3b") else 0.025)
    assert max(gaps["autopipe, published"]) == 0
    assert max(gaps["megatron"]) > 0.15


@pytest.mark.parametrize(("name", "p"), [("gpt2-345m", 4), ("gpt2-762m", 12), ("gpt2-1.3b", 8), ("bert-large", 10)])
def test_stored_gaps_are_ours(name: str, p: int) -> None:
    assert study.gaps(name, p) == STUDY["gaps"][f"{name}, p {p}"]


# 2. Table II


def test_table_2() -> None:
    """Simulated times of the seven partitions. AutoPipe's choice and the optimum are partition 4."""
    found = study.table_2()
    assert found == STUDY["table 2"]
    print("\nTable II, per micro-batch (Mbs 4, m = 8):")
    for name, row in sorted(found.items(), key=lambda item: item[1]["per_micro_batch_ns"]):
        layers = PARTITIONS[int(name)] if name.isdigit() else ""
        largest, deviation = row["largest_ns"] / 1e6, row["deviation_ns"] / 1e6
        time_ms = row["per_micro_batch_ns"] / 1e6
        print(f"  {name:<9}{time_ms:8.2f} ms, largest stage {largest:7.2f} ms, deviation {deviation:5.2f} ms  {layers}")
    rows = [found[str(number)] for number in PARTITIONS]
    times = [row["per_micro_batch_ns"] for row in rows]
    correlation = {name: spearman(times, [row[name] for row in rows]) for name in ("largest_ns", "deviation_ns")}
    print(f"  spread {max(times) / min(times) - 1:.1%}; Spearman with {correlation}")
    assert found["exact"]["per_micro_batch_ns"] == found["autopipe"]["per_micro_batch_ns"] == min(times)
    assert found["autopipe"]["cuts"] == found["exact"]["cuts"] == found["4"]["cuts"]
    assert np.argmax(times) == 0 and np.argsort(times)[-2] == 5
    assert min(correlation.values()) > 0.85
    assert max(times) / min(times) - 1 == pytest.approx(0.116, abs=0.005)
    for mbs in (8, 32):
        again = [study.table_2(mbs)[str(number)]["per_micro_batch_ns"] for number in PARTITIONS]
        assert spearman(times, again) > 0.97


# 3. Tables III and IV


@pytest.mark.parametrize("kind", REACHED)
def test_tables_3_and_4(kind: str) -> None:
    """Every cell next to the printed one; the order of the algorithms in each."""
    found = STUDY[kind]
    for setting in SETTINGS:
        print(f"\n{setting}, {kind}")
        for algorithm in ALGORITHMS:
            row = [found[study.key(setting, algorithm, column)] for column in range(3)]
            plans = " ".join(f"{cell.get('cuts')} x {cell.get('replicas')}" for cell in row[:1])
            ours = ", ".join(cell["failure"] or f"{cell['ms']:.0f}" for cell in row)
            printed = [setting.milliseconds(algorithm, column) or setting.printed[algorithm] for column in range(3)]
            print(f"  {algorithm}  ours {ours}; printed {printed}; {plans}, peak {row[0].get('peak_gib')} GiB")
    result = study.score(found)
    ratios = np.array(result.ratios)
    median, apart = float(np.median(ratios)), float(np.exp(np.abs(np.log(ratios)).mean()))
    print(f"\n{kind}: {len(ratios)} times, ours over printed: median {median:.3f}, typically a factor {apart:.2f} apart")
    print(f"  from {ratios.min():.2f} to {ratios.max():.2f}; order of pairs {result.pairs}")
    print("  failures there {}, here {}, alike {}".format(*result.failures))
    assert median == pytest.approx(REACHED[kind][0], abs=0.01)
    assert apart <= REACHED[kind][1]
    assert result.pairs == REACHED[kind][2]


@pytest.mark.parametrize("setting", [setting for setting in SETTINGS if setting.gpus < 16], ids=str)
def test_stored_plans_are_ours(setting: Setting) -> None:
    for algorithm in ALGORITHMS:
        for kind, chosen in (("planned", study.planned), ("told", study.plan_of_text)):
            cell = study.outcome(setting, algorithm, 1, chosen(setting, algorithm, 1), study.ESTIMATED)
            assert cell == STUDY[kind][study.key(setting, algorithm, 1)]


def test_plans() -> None:
    """Plans as the text describes them, and those that our planners choose."""
    print("\nstages, paper and ours:")
    alike = dict.fromkeys(ALGORITHMS, 0)
    for index, setting in enumerate(SETTINGS):
        for algorithm in ALGORITHMS:
            cell = STUDY["planned"][study.key(setting, algorithm, 2)]
            same = len(cell["replicas"]) == STAGES[algorithm][index]
            alike[algorithm] += same
            reported = f"paper {STAGES[algorithm][index]}, ours {len(cell['replicas'])} x {cell['replicas']}"
            print(f"  {setting}, {PLANNERS[algorithm]}: {reported}")
    assert alike == {"D": 0, "P": 1, "A": 4}
    for setting in BIG:
        cut = STUDY["planned"][study.key(setting, "A", 0)]["cuts"]
        assert cut == [study.cuts_of((24 - AUTOPIPE_SECOND_STAGE, AUTOPIPE_SECOND_STAGE))[0]]
    assert STUDY["told"][study.key(SETTINGS[1], "D", 0)] == {
        "cuts": [2],
        "replicas": [16 - DAPPLE_REPLICAS_OF_16, DAPPLE_REPLICAS_OF_16],
        "failure": "error",
    }


@pytest.mark.parametrize("algorithm", APART)
def test_micro_batches_more(algorithm: str) -> None:
    """The time of one more micro-batch, over AutoPipe's: no start-up, no all-reduce, and no speed of the device is in it."""
    print(f"\n{PLANNERS[algorithm]} over AutoPipe, a micro-batch more:")
    for setting, apart in zip(SETTINGS, APART[algorithm], strict=True):
        printed, own = setting.slope_ms(algorithm), setting.slope_ms("A")
        if printed is None or own is None:
            assert apart is None
            continue
        assert apart is not None
        ours = study.slope_ms(STUDY["told"], setting, algorithm) / study.slope_ms(STUDY["told"], setting, "A")
        print(f"  {setting}: paper {printed / own:.3f}, ours {ours:.3f}")
        assert ours == pytest.approx(printed / own, abs=apart)


def test_dapple_on_8_gpus() -> None:
    """The text has no cut. What a micro-batch more takes is that of 4 layers on the one GPU of stage 1; L's least has 3."""
    setting = BIG[1]
    plan = Replicated((1 + 4,), (1, setting.gpus - 1))
    cells = [study.outcome(setting, "D", column, plan, study.ESTIMATED)["ms"] for column in (0, 2)]
    more = (cells[1] - cells[0]) / (setting.micro_batches(2) - setting.micro_batches(0))
    printed, own = setting.slope_ms("D"), setting.slope_ms("A")
    assert printed is not None and own is not None
    ours = more / study.slope_ms(STUDY["told"], setting, "A")
    print(
        f"\n{setting}, DAPPLE with 4 and 20 layers on 1 and 7 GPUs, over AutoPipe: paper {printed / own:.3f}, ours {ours:.3f}"
    )
    assert ours == pytest.approx(printed / own, abs=0.01)


def test_plans_with_given_stages() -> None:
    """Where a planner's own choice has the number of stages, or the replicas, that are given, it is the choice."""
    for setting in SETTINGS[2:]:
        layers, rounds = study.chain(setting, 0, study.ESTIMATED, by_layer=True), setting.micro_batches(0)
        plan = piper_plan(layers, setting.gpus, rounds)
        assert plan is not None
        assert study.piper_of(layers, setting.gpus, rounds, len(plan.replicas)) == plan
    setting = SETTINGS[0]
    layers, rounds = study.chain(setting, 0, study.ESTIMATED, by_layer=True), setting.micro_batches(0)
    plan = dapple_plan(layers, setting.gpus, rounds)
    assert plan.replicas == (2, 2)
    assert study.two_stages(layers, (2, 2), rounds) == plan


def test_memory_of_figure_9() -> None:
    """Megatron's even split of 762M with Mbs 24 ran; with 32 it did not, where ours still fits."""
    model, mbs = OUT_OF_MEMORY_FIGURE_9
    for size, share in ((24, 0.76), (mbs, 0.965)):
        given = study.instance(model, size, 4, 8)
        cuts = study.cuts_by(given, "megatron")
        assert violations(given, Solution(cuts)) == []
        peaks = [stage.peak_bytes for stage in evaluate(given, Solution(cuts)).stages]
        assert given.memory is not None and None not in peaks
        fullest = max(peak for peak in peaks if peak is not None) / int(given.memory.limit_bytes[0])
        print(f"\n{model}, Mbs {size}: the fullest GPU holds {fullest:.0%} of its memory")
        assert fullest == pytest.approx(share, abs=0.01)


# 4. Figure 13


def test_balance() -> None:
    """Standard deviation of stage times over AutoPipe's, of the plans that the text tells of."""
    print("\nstandard deviation of stage times over AutoPipe's:")
    reached = {}
    for algorithm in ("D", "P"):
        for setting in BIG:
            found = [
                study.balance(STUDY["told"], setting, algorithm, per_step)
                / study.balance(STUDY["told"], setting, "A", per_step)
                for per_step in (False, True)
            ]
            reached[algorithm, setting.gpus] = found
            reported = f"of a micro-batch {found[0]:.2f}, of a step {found[1]:.2f}; paper {BALANCE[algorithm]} for 4 and 8 GPUs"
            print(f"  {PLANNERS[algorithm]}, {setting.gpus} GPUs: {reported}")
            assert 2 < found[0] < found[1] < 13
    assert reached["D", 4][0] == pytest.approx(BALANCE["D"][0], abs=0.1)
    low, high = BALANCE["P"]
    assert low <= min(reached["P", 4][1], reached["P", 8][1]) <= max(reached["P", 4][1], reached["P", 8][1]) <= high


# 5. Figures 9, 10 and 14


def test_figure_9() -> None:
    """Over Megatron-LM with 4 stages and 8 micro-batches."""
    found = study.figure_9()
    assert found == STUDY["figure 9"]
    print("\nFigure 9, over Megatron-LM:")
    for name, row in found.items():
        print(f"  {name:<20} planner {row['planner']:.3f}, slicer {row['slicer']:.3f}, both {row['both']:.3f}")
    for part, (low, high) in SPEEDUPS_FIGURE_9.items():
        ours = [row[part] for row in found.values()]
        print(f"  {part:<8} ours {min(ours):.3f} to {max(ours):.3f}, paper {low} to {high}")
        assert low <= min(ours) <= max(ours) <= high + 0.04
    for row in found.values():
        assert row["sliced"] == [1, 1]


def test_figure_10() -> None:
    """Over Megatron-LM with m = 2p; more with more stages."""
    found = study.figure_10()
    assert found == STUDY["figure 10"]
    print("\nFigure 10, over Megatron-LM:")
    for name, row in found.items():
        speedups = f"planner {row['planner']:.3f}, slicer {row['slicer']:.3f}, both {row['both']:.3f}"
        print(f"  {name:<17} {speedups}; sliced {row['sliced']}")
    for part, (low, high) in SPEEDUPS_FIGURE_10.items():
        ours = [row[part] for row in found.values()]
        print(f"  {part:<8} ours {min(ours):.3f} to {max(ours):.3f}, paper {low or 'less than 1'} to {high}")
        assert max(1.0, low or 0.0) < min(ours) <= max(ours) <= high + 0.08
    assert min(row["planner"] for row in found.values()) > 1
    print(f"  BERT-large, 12 stages, planner: paper {BERT_12_STAGES}")
    assert found["bert-large, p 12"]["planner"] == pytest.approx(BERT_12_STAGES, abs=0.02)
    for model in ("gpt2-345m", "gpt2-762m", "bert-large"):
        rising = [row["both"] for name, row in found.items() if name.startswith(model)]
        assert rising == sorted(rising) and len(rising) == 4


def test_startup() -> None:
    """Figure 14: the slicer halves it, to the nanosecond that a half is rounded by; AutoPipe's is a little longer."""
    print("\nstart-up over Megatron-LM's, GPT-2 345M, Mbs 4:")
    for p in (2, 4, 8, 12):
        row = STUDY["figure 10"][f"gpt2-345m, p {p}"]["startup"]
        reported = f"{study.interleaved_startup('gpt2-345m', 4, p):.3f}" if 24 % (2 * p) == 0 else "does not divide the layers"
        print(f"  p {p:2}: slicer {row['slicer']:.4f}, with the planner {row['both']:.4f}, interleaved {reported}")
        assert row["slicer"] == pytest.approx(STARTUP, abs=1e-6)
        assert STARTUP < row["both"] < 0.55
    assert study.interleaved_startup("gpt2-345m", 4, 4) == pytest.approx(STARTUP, abs=0.02)


# 6. Search


def test_search_time() -> None:
    """The paper has AutoPipe an order of magnitude faster than Piper; here both are printed. Both find plans that fit."""
    print("\nsearch, Piper over AutoPipe, sub-layers:")
    for setting in SETTINGS:
        layers, seconds = study.chain(setting, 0, study.ESTIMATED, by_layer=False), []
        for planner in (piper_plan, autopipe_plan):
            planner(layers, setting.gpus, setting.micro_batches(0))  # warm
            started = time.perf_counter()
            plan = planner(layers, setting.gpus, setting.micro_batches(0))
            seconds.append(time.perf_counter() - started)
            assert plan is not None and sum(plan.replicas) <= setting.gpus
        print(f"  {setting}: {1e3 * seconds[0]:.1f} ms over {1e3 * seconds[1]:.1f} ms, {seconds[0] / seconds[1]:.1f}")
